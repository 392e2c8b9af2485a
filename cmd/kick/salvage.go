package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/ui"
	"github.com/kickhq/kick/manager"
)

func newSalvage(g *globals) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "salvage ID",
		Short: "Show the kept work of a kick, and how to get it back",
		Long: `Show the work that is kept of a kick, and the commands that get it back. The
work of a kick whose process died is first taken out of its live workspace, by
a fresh sandbox that sees it read-only. ID may be a prefix, or "last".`,
		Args:              args(one),
		ValidArgsFunction: g.completeKicks,
		RunE: func(c *cobra.Command, a []string) error {
			return salvageRun(c.Context(), g, a[0], output)
		},
	}
	addOutput(c, &output, "json")
	return c
}

func salvageRun(ctx context.Context, g *globals, name, output string) error {
	m, err := g.manager()
	if err != nil {
		return err
	}
	id, err := m.State.Find(name)
	if err != nil {
		return usageError{err}
	}
	o, err := m.Recover(ctx, id)
	if errors.Is(err, manager.ErrBusy) {
		return usagef("kick %s is still running: wait for it, or end its process first", id)
	}
	if err != nil {
		return err
	}
	var commits []string
	var unread error
	if o.KeptAt != "" {
		if commits, unread = manager.DescribeWork(ctx, m.State, id); errors.Is(unread, manager.ErrNoCommits) {
			unread = nil
		}
	}
	if output == "json" {
		kept := struct {
			ID          string               `json:"id"`
			Outcome     manager.Code         `json:"outcome"`
			KeptAt      string               `json:"keptAt,omitempty"`
			Commits     []string             `json:"commits"` // the newest first: short id and subject
			Unpublished *manager.Unpublished `json:"unpublished,omitempty"`
			Commands    []string             `json:"commands"` // get it back in a fresh clone
			Missing     []string             `json:"missing,omitempty"`
			Error       string               `json:"error,omitempty"`
		}{id, o.Outcome, o.KeptAt, append([]string{}, commits...), o.Unpublished, append([]string{}, o.RestoreCommands()...), o.Missing, ""}
		if unread != nil {
			kept.Error = unread.Error()
		}
		return escape.JSON(os.Stdout, kept)
	}
	p := ui.New(os.Stdout)
	switch {
	case o.KeptAt != "":
	case len(o.Missing) > 0:
		p.Linef("nothing is kept of kick %s, which ended as %s: what it had could not be taken out", id, o.Outcome)
		p.Unpublished(o)
		return nil
	default:
		p.Linef("nothing is kept of kick %s: it ended as %s and left no work that is not on the remote", id, o.Outcome)
		return nil
	}
	p.Linef("kick %s ended as %s; its work is in %s", id, o.Outcome, o.KeptAt)
	if unread != nil {
		p.Linef("the bundle cannot be read: %v", unread)
	}
	for _, line := range commits {
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
}
