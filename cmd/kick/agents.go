package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/spelling"
)

func newAgents() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "agents [KIND]",
		Short: "List the coding agents that kick knows, or how one of them is run",
		Long: `List the coding agents that kick knows, or show how one of them is run: its
command, its variables and the files of its home. None of it is secret: an
agent that insists on a key gets a dummy, and the egress gateway adds the real
one outside the sandbox. Run one with kick run --agent-kind KIND.`,
		Args:      args(cobra.MaximumNArgs(1)),
		ValidArgs: agents.Names(),
		RunE: func(_ *cobra.Command, a []string) error {
			if len(a) == 0 {
				return listAgents(output)
			}
			return showAgent(a[0], output)
		},
	}
	addOutput(c, &output, "json")
	return c
}

func listAgents(output string) error {
	if output == "json" {
		return escape.JSON(os.Stdout, agents.Kinds())
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KIND\tAPI\tTESTED\tPRODUCT")
	for _, k := range agents.Kinds() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", k.Name, k.API, orNot(k.Tested), k.Product)
	}
	return w.Flush()
}

func showAgent(name, output string) error {
	k, ok := agents.Find(name)
	if !ok {
		remedy := "`kick agents` lists them"
		if near := spelling.Nearest(strings.ToLower(name), agents.Names()); near != "" {
			remedy = "did you mean " + near + "?"
		}
		return usagef("agent kind %q is not known: %s", name, remedy)
	}
	if output == "json" {
		return escape.JSON(os.Stdout, k)
	}
	fmt.Printf("%s: %s\nspeaks %s, tested %s\n\ncommand, under sh -c:\n  %s\n\nvariables:\n", k.Name, k.Product, k.API, orNot(k.Tested), k.Script)
	for _, v := range slices.Sorted(maps.Keys(k.Env)) {
		fmt.Printf("  %s=%s\n", v, k.Env[v])
	}
	for _, f := range slices.Sorted(maps.Keys(k.Home)) {
		fmt.Printf("\nfile ~/%s:\n%s", f, k.Home[f])
	}
	return nil
}

func orNot(version string) string {
	if version == "" {
		return "no"
	}
	return version
}
