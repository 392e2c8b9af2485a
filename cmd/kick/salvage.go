package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/ui"
	"github.com/kickhq/kick/manager"
)

func newSalvage(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "salvage ID",
		Short: "Show the kept work of a kick, and how to get it back",
		Long: `Show the work that is kept of a kick, and the commands that get it back. The
work of a kick whose process died is first taken out of its live workspace, by
a fresh sandbox that sees it read-only. ID may be a prefix, or "last".`,
		Args:              args(one),
		ValidArgsFunction: g.completeKicks,
		RunE: func(c *cobra.Command, a []string) error {
			m, err := g.manager()
			if err != nil {
				return err
			}
			id, err := m.State.Find(a[0])
			if err != nil {
				return usageError{err}
			}
			o, err := m.Recover(c.Context(), id)
			if errors.Is(err, manager.ErrBusy) {
				return usagef("kick %s is still running: wait for it, or end its process first", id)
			}
			if err != nil {
				return err
			}
			p := ui.New(os.Stdout)
			if o.KeptAt == "" {
				p.Linef("nothing is kept of kick %s: it ended as %s and left no work that is not on the remote", id, o.Outcome)
				return nil
			}
			p.Linef("kick %s ended as %s; its work is in %s", id, o.Outcome, o.KeptAt)
			work, err := manager.DescribeWork(c.Context(), m.State, id)
			if err != nil && !errors.Is(err, manager.ErrNoCommits) {
				p.Linef("the bundle cannot be read: %v", err)
			}
			for _, line := range work {
				p.Linef("  %s", line)
			}
			p.Unpublished(o)
			commands := o.RestoreCommands()
			if len(commands) > 0 {
				p.Linef("\nin a fresh clone, this gets it back:")
			}
			for _, cmd := range commands {
				fmt.Println(cmd)
			}
			return nil
		},
	}
}
