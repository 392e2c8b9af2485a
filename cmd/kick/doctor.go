package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/doctor"
	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/ui"
)

func newDoctor(g *globals) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this host can do, and say what to mend",
		Long: `Check this host: git, the state directory, and every isolation property of the
embedded sandbox, proved on a live one. Exit code 14 when the sandbox is not
provable here, 1 when something else is wrong.`,
		Args: args(none),
		RunE: func(c *cobra.Command, _ []string) error {
			shim, shimErr := openShim()
			if shimErr == nil {
				defer func() { _ = shim.Close() }() // only read
			}
			checks := doctor.Run(c.Context(), g.stateDir, shim, shimErr)
			if output == "json" {
				if err := escape.JSON(os.Stdout, checks); err != nil {
					return err
				}
			} else {
				p := ui.New(os.Stdout)
				for _, check := range checks {
					p.Check(check)
				}
			}
			if code := doctor.ExitCode(checks); code != 0 {
				if output != "json" {
					fmt.Println("\nkick is not ready on this host: mend what is marked above")
				}
				return exit{code}
			}
			return nil
		},
	}
	addOutput(c, &output, "json")
	return c
}
