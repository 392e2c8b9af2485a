package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/config"
)

func newConfig(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check and show kick.yaml",
		Args:  args(none),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var path string
	c.PersistentFlags().StringVar(&path, "config", "", "kick.yaml `file` (default: found from here upward)")
	var output, name string
	check := &cobra.Command{
		Use:   "check",
		Short: "Check kick.yaml: every mistake with its line and what to do",
		Args:  args(none),
		RunE: func(*cobra.Command, []string) error {
			return configCheck(path)
		},
	}
	show := &cobra.Command{
		Use:   "show --resolved NAME",
		Short: "Show what holds for an agent, and where each value came from",
		Args:  args(none),
		RunE: func(*cobra.Command, []string) error {
			return configShow(path, name, output)
		},
	}
	show.Flags().StringVar(&name, "resolved", "", "agent's `name`")
	addOutput(show, &output, "json")
	schema := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of kick.yaml",
		Args:  args(none),
		RunE: func(*cobra.Command, []string) error {
			_, err := os.Stdout.Write(config.Schema())
			return err
		},
	}
	c.AddCommand(check, show, schema)
	return c
}

func loadConfig(path string) (*config.Config, error) {
	if path == "" {
		var err error
		path, err = config.Find(".")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, usagef("no kick.yaml here or above, up to the top of the repository: make one or pass --config FILE")
		}
		if err != nil {
			return nil, usageError{err}
		}
	}
	c, err := config.Load(path)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

func configCheck(path string) error {
	c, err := loadConfig(path)
	if err != nil {
		return err
	}
	for _, w := range c.Warnings() {
		fmt.Printf("warning: %s\n", w)
	}
	agents := "1 agent"
	if n := len(c.Names()); n != 1 {
		agents = fmt.Sprintf("%d agents", n)
	}
	fmt.Printf("%s: ok, %s\n", c.Path(), agents)
	return nil
}

func configShow(path, name, output string) error {
	c, err := loadConfig(path)
	if err != nil {
		return err
	}
	if name == "" {
		return usagef("which agent? pass --resolved NAME with one of %v", c.Names())
	}
	r, err := c.Agent(name)
	if err != nil {
		return usageError{err}
	}
	if output == "json" {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if err := r.WriteTable(os.Stdout); err != nil {
		return err
	}
	if err := r.Runnable(); err != nil {
		fmt.Printf("\nit does not run: %v\n", err)
	}
	return nil
}
