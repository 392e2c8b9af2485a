package main

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/escape"
)

func newLs(g *globals) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List kicks, the newest first",
		Args:    args(none),
		RunE: func(c *cobra.Command, _ []string) error {
			return lsRun(g, output)
		},
	}
	addOutput(c, &output, "json")
	return c
}

func lsRun(g *globals, output string) error {
	state, err := g.state()
	if err != nil {
		return err
	}
	list, err := state.List()
	if err != nil {
		return err
	}
	if output == "json" {
		return escape.JSON(os.Stdout, list)
	}
	if len(list) == 0 {
		fmt.Println("no kick yet: kick run -- COMMAND starts one")
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTARTED\tAGENT\tOUTCOME\tRESULT")
	for _, s := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.ID, s.Started.Local().Format("2006-01-02 15:04"), s.Agent, s.Status, s.Result)
	}
	return w.Flush()
}
