package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/ui"
	"github.com/kickhq/kick/manager"
)

func newShow(g *globals) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:               "show ID",
		Short:             "Show how a kick ended and what is kept of it",
		Long:              "Show how a kick ended, what was found, and what is kept of it. ID may be a\nprefix, or \"last\".",
		Args:              args(one),
		ValidArgsFunction: g.completeKicks,
		RunE: func(c *cobra.Command, a []string) error {
			return showRun(g, a[0], output)
		},
	}
	addOutput(c, &output, "json")
	return c
}

func showRun(g *globals, name, output string) error {
	state, id, err := g.find(name)
	if err != nil {
		return err
	}
	o, err := state.Outcome(id)
	if errors.Is(err, os.ErrNotExist) {
		status, err := state.Status(id)
		if err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(os.Stdout).Encode(map[string]string{"id": id, "status": string(status)})
		}
		fmt.Printf("%s  %s\n", status, id)
		if status == manager.StatusDead {
			fmt.Printf("its process died; `kick salvage %s` or `kick gc` keeps its work\n", id)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if output == "json" {
		return escape.JSON(os.Stdout, o)
	}
	p := ui.New(os.Stdout)
	p.Linef("%s  agent %s on %s  %s", o.ID, o.Agent, o.Repo, o.Started.Local().Format("2006-01-02 15:04:05"))
	p.Outcome(o)
	p.Isolation(o.Isolation)
	return nil
}
