package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/checkout"
	"github.com/kickhq/kick/internal/demo"
	"github.com/kickhq/kick/internal/ui"
)

func newDemo(g *globals) *cobra.Command {
	var serve bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job here: one pull request, two refusals",
		Long: `Show kick's main job on this machine alone: a scripted agent in the embedded
sandbox commits to a copy of this repository, and a pull request is opened on a
stand-in for GitHub. Then the agent hides a token and changes a workflow, and
is refused. The kicks stay in --state-dir, or in a directory of their own that
is named at the end.`,
		Args: args(none),
		RunE: func(c *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			o := demo.Options{Kick: self, Out: os.Stdout, Printer: ui.New(os.Stderr), State: g.stateDir, Serve: serve}
			if here, err := checkout.Find(c.Context(), "."); err == nil {
				o.Source = here.Top
			}
			return demo.Run(c.Context(), o)
		},
	}
	c.Flags().BoolVar(&serve, "serve", false, "keep the stand-in running at the end, to look at the pull request and to try kicks of your own")
	return c
}
