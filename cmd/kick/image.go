package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/image"
	"github.com/kickhq/kick/internal/ui"
	"github.com/kickhq/kick/manager"
)

func newImage() *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Build images for agents that run in containers",
		Args:  args(known),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newImageBuild())
	return c
}

type imageOptions struct {
	image.Options
	output string
}

func newImageBuild() *cobra.Command {
	o := &imageOptions{}
	c := &cobra.Command{
		Use:   "build",
		Short: "Build an image with git, a shell and, if wanted, an agent",
		Long: `Build the image of an agent's container, as an OCI layout: git, CA certificates,
a shell and the usual small tools, and an agent if --agent names one. It needs no
root, no daemon and no registry.

The system comes from Debian packages, by the host's own apt sources, without
running any of their scripts, or from --from: a root file system, as a directory
or a tar. The agent comes from npm.

Everything in the image belongs to root and has one time, SOURCE_DATE_EPOCH or
1980. Setuid and setgid bits, file capabilities and devices are dropped. The same
inputs give the same digest, which podman load keeps. What was downloaded is
kept in $KICK_CACHE, or in kick below the user's cache directory.`,
		Example: `  kick image build --agent codex --out image.tar
  podman load --input image.tar
  kick image build --package ripgrep --package python3 --name localhost/tools:1
  kick image build --from rootfs.tar --out layout -o json`,
		Args: args(none),
		RunE: func(c *cobra.Command, _ []string) error {
			err := imageBuildRun(c.Context(), o)
			var input *image.InputError
			switch {
			case c.Context().Err() != nil:
				fmt.Fprintln(os.Stderr, "kick: told to stop: there is no image")
				return exit{manager.Cancelled.ExitCode()}
			case errors.As(err, &input):
				return usageError{err}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Agent, "agent", "", "coding agent from npm: a `kind` that kick knows, or KIND@VERSION")
	f.BoolVar(&o.Node, "node", false, "add Node.js; an agent that needs it brings it along")
	f.StringSliceVar(&o.Packages, "package", nil, "further Debian `package`, as NAME or NAME=VERSION; may be repeated")
	f.StringVar(&o.From, "from", "", "root file system in place of Debian packages: a `directory` or a tar, plain or in gzip")
	f.StringVar(&o.Out, "out", "kick-image.tar", "`path` of the OCI layout: a tar file if it ends with .tar, else a directory")
	f.StringVar(&o.Name, "name", "localhost/kick-agent:latest", "`name` of the image when it is loaded")
	addOutput(c, &o.output, "json")
	completeWords(c, "agent", image.Agents()...)
	return c
}

func imageBuildRun(ctx context.Context, o *imageOptions) error {
	if o.From != "" && len(o.Packages) > 0 {
		return usagef("--package goes with Debian packages, and --from gives a whole system: leave one of them out")
	}
	var err error
	if o.Cache = os.Getenv("KICK_CACHE"); o.Cache == "" {
		if o.Cache, err = os.UserCacheDir(); err != nil {
			return usagef("%w: set KICK_CACHE to a directory for downloads", err)
		}
		o.Cache = filepath.Join(o.Cache, "kick")
	}
	if o.Time, err = image.TimeOf(os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		return err
	}
	p := ui.New(os.Stderr)
	began, last := time.Now(), time.Now()
	o.Step = func(name, detail string) {
		p.Step(manager.Step{Name: name, Detail: escape.String(detail), At: time.Since(began), Took: time.Since(last)})
		last = time.Now()
	}
	r, err := image.Build(ctx, o.Options)
	if err != nil {
		return err
	}
	if o.output == "json" {
		return escape.JSON(os.Stdout, r)
	}
	_, err = fmt.Printf("%s  %s\nload it with: podman load --input %s\n", r.Digest, escape.String(r.Path), escape.String(r.Path))
	return err
}
