package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/policy"
)

func newPolicy() *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Check and explain the policy: what may be pushed",
		Args:  args(known),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var path string
	c.PersistentFlags().StringVar(&path, "policy", "", "policy `file` (default: built in)")
	c.AddCommand(newPolicyCheckFile(), newPolicySchema())
	return c
}

func newPolicyCheckFile() *cobra.Command {
	return &cobra.Command{
		Use:   "check-file FILE",
		Short: "Check a policy file: every mistake with its line and what to do",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, a []string) error {
			if _, err := policy.Load(a[0]); err != nil {
				return usageError{err}
			}
			fmt.Printf("%s: ok\n", a[0])
			return nil
		},
	}
}

func newPolicySchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the policy file",
		Args:  args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, err := os.Stdout.Write(policy.Schema)
			return err
		},
	}
}
