package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	c.AddCommand(newImageBuild(), newImageShim())
	return c
}

type imageOptions struct {
	image.Options
	shim   bool
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
  kick image build --agent codex --shim --name registry.example/codex:1
  kick image build --from rootfs.tar --out layout -o json`,
		Args: args(none),
		RunE: func(c *cobra.Command, _ []string) error { return imageEnd(c.Context(), imageBuildRun(c.Context(), o)) },
	}
	f := c.Flags()
	f.StringVar(&o.Agent, "agent", "", "coding agent from npm: a `kind` that kick knows, or KIND@VERSION")
	f.BoolVar(&o.Node, "node", false, "add Node.js; an agent that needs it brings it along")
	f.StringSliceVar(&o.Packages, "package", nil, "further Debian `package`, as NAME or NAME=VERSION; may be repeated")
	f.StringVar(&o.From, "from", "", "root file system in place of Debian packages: a `directory` or a tar, plain or in gzip")
	f.BoolVar(&o.shim, "shim", false, "add this kick's first process for Kubernetes, so that pods start without an image that brings it; another version of kick wants another image")
	f.StringVar(&o.Out, "out", "kick-image.tar", "`path` of the OCI layout: a tar file if it ends with .tar, else a directory")
	f.StringVar(&o.Name, "name", "localhost/kick-agent:latest", "`name` of the image when it is loaded")
	addOutput(c, &o.output, "json")
	completeWords(c, "agent", image.Agents()...)
	return c
}

func newImageShim() *cobra.Command {
	o := &imageOptions{}
	c := &cobra.Command{
		Use:   "shim",
		Short: "Build the image that brings kick's first process into pods",
		Long: `Build an image that has kick-shim, the first process of every sandbox, at
/kick-shim and nothing else to run. Kubernetes pods get it from there, before the
agent's container starts, so that the agent's image needs nothing of kick. It is
the shim of this very kick: another version of kick wants its own.`,
		Example: "  kick image shim --out shim.tar --name registry.example/kick-shim:1",
		Args:    args(none),
		RunE:    func(c *cobra.Command, _ []string) error { return imageEnd(c.Context(), imageShimRun(c.Context(), o)) },
	}
	c.Flags().StringVar(&o.Out, "out", "kick-shim.tar", "`path` of the OCI layout: a tar file if it ends with .tar, else a directory")
	c.Flags().StringVar(&o.Name, "name", "localhost/kick-shim:latest", "`name` of the image when it is loaded")
	addOutput(c, &o.output, "json")
	return c
}

func imageShimRun(ctx context.Context, o *imageOptions) (err error) {
	shim, err := openShim()
	if err != nil {
		return err
	}
	defer func() { _ = shim.Close() }() // only read
	dir, err := os.MkdirTemp("", "kick-shim-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := os.OpenFile(filepath.Join(dir, "kick-shim"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, shim)
	if err = errors.Join(err, f.Chmod(0o755), f.Close()); err != nil { // whatever the umask
		return err
	}
	o.From = dir
	return imageBuildRun(ctx, o)
}

// imageEnd is what an error of building an image means to who called.
func imageEnd(ctx context.Context, err error) error {
	var input *image.InputError
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "kick: told to stop: there is no image")
		return exit{manager.Cancelled.ExitCode()}
	case errors.As(err, &input):
		return usageError{err}
	}
	return err
}

func imageBuildRun(ctx context.Context, o *imageOptions) error {
	if o.shim {
		o.Shim = func() (io.ReadCloser, error) { return openShim() }
	}
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
