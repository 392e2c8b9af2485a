package main

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func newLogs(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:               "logs ID",
		Short:             "Print the agent's output",
		Long:              "Print what the agent wrote to stdout and stderr, with control characters\nescaped. ID may be a prefix, or \"last\".",
		Args:              args(one),
		ValidArgsFunction: g.completeKicks,
		RunE: func(c *cobra.Command, a []string) error {
			state, id, err := g.find(a[0])
			if err != nil {
				return err
			}
			f, err := state.Transcript(id)
			if errors.Is(err, os.ErrNotExist) {
				return usagef("kick %s has no transcript: its agent did not start", id)
			}
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(os.Stdout, f)
			return err
		},
	}
}
