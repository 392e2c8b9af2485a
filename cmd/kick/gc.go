package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/manager"
)

func newGC(g *globals) *cobra.Command {
	var olderThan, mirrors time.Duration
	var output string
	c := &cobra.Command{
		Use:   "gc",
		Short: "End dead kicks, keep their work, and clean up",
		Long: `End kicks whose process died: their work is taken out of the live workspace
and kept, a pull request that is missing is opened, and what their sandboxes
left behind is removed. Mirrors that no kick used for a while go too. Kept work
is only removed with --older-than.

A repository on GitHub is reached by what the environment says:
KICK_GITHUB_APP_ID and KICK_GITHUB_APP_KEY_FILE, or KICK_GITHUB_TOKEN, and
KICK_GITHUB_API_URL for an Enterprise host.`,
		Args: args(none),
		RunE: func(c *cobra.Command, _ []string) error {
			if olderThan < 0 || mirrors < 0 {
				return usagef("--older-than and --mirrors want a positive duration, e.g. 720h")
			}
			m, err := g.manager()
			if err != nil {
				return err
			}
			rep, err := m.GC(c.Context(), olderThan, mirrors)
			if err != nil {
				return err
			}
			if output == "json" {
				if err := escape.JSON(os.Stdout, rep); err != nil {
					return err
				}
				return errors.Join(problems(rep)...)
			}
			if len(rep.Recovered)+len(rep.Running)+len(rep.Removed)+len(rep.Problems) == 0 {
				fmt.Println("nothing to clean up")
			}
			for _, o := range rep.Recovered {
				where := o.KeptAt
				if o.PullRequest != "" {
					where = o.PullRequest
				}
				fmt.Printf("recovered %s  %s  %s\n", o.ID, o.Outcome, where)
			}
			for _, id := range rep.Running {
				fmt.Printf("running   %s\n", id)
			}
			for _, name := range rep.Removed {
				fmt.Printf("removed   %s\n", name)
			}
			return errors.Join(problems(rep)...)
		},
	}
	addOutput(c, &output, "json")
	c.Flags().DurationVar(&olderThan, "older-than", 0, "also remove kicks that ended this long ago, with their kept work")
	c.Flags().DurationVar(&mirrors, "mirrors", 30*24*time.Hour, "remove mirrors that were not used for this long")
	return c
}

func problems(rep manager.GCReport) []error {
	var errs []error
	for _, p := range rep.Problems {
		errs = append(errs, errors.New(p))
	}
	return errs
}
