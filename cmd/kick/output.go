package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// form is a flag with one of a few words as its value.
type form struct {
	value *string
	forms []string
}

func (f form) String() string { return *f.value }
func (f form) Type() string   { return "form" }

func (f form) Set(s string) error {
	if !slices.Contains(f.forms, s) {
		return fmt.Errorf("want %s", f.list())
	}
	*f.value = s
	return nil
}

func (f form) list() string {
	last := len(f.forms) - 1
	return strings.Join(f.forms[:last], ", ") + " or " + f.forms[last]
}

// addOutput adds --output with the form text, which is the default, and those
// for programs.
func addOutput(c *cobra.Command, value *string, others ...string) {
	*value = "text"
	f := form{value, append([]string{"text"}, others...)}
	c.Flags().VarP(f, "output", "o", f.list())
	completeWords(c, "output", f.forms...)
}
