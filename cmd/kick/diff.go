package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/manager"
)

func newDiff(g *globals) *cobra.Command {
	var stat bool
	c := &cobra.Command{
		Use:   "diff ID",
		Short: "Show what a kick's commits change",
		Long: `Show the difference between the base and a kick's last commit, published or
kept, with control characters escaped. It is read from the kept bundle in a
fresh quarantine. ID may be a prefix, or "last".`,
		Args:              args(one),
		ValidArgsFunction: g.completeKicks,
		RunE: func(c *cobra.Command, a []string) error {
			state, id, err := g.find(a[0])
			if err != nil {
				return err
			}
			return manager.Diff(c.Context(), state, id, stat, os.Stdout)
		},
	}
	c.Flags().BoolVar(&stat, "stat", false, "names and counts only")
	return c
}
