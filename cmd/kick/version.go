package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  args(none),
		Run: func(*cobra.Command, []string) {
			fmt.Printf("kick %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
		},
	}
}
