package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/request"
	"github.com/kickhq/kick/internal/ui"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/workspace"
)

type policyCIOptions struct {
	*policyOptions
	request.Options
}

func newPolicyCI(g *globals, of *policyOptions) *cobra.Command {
	o := &policyCIOptions{policyOptions: of}
	c := &cobra.Command{
		Use:   "ci [REPO]",
		Short: "Say which CI would run for a kick's branch, and what it would expose",
		Long: `Read the workflows of REPO's base branch, and say which of them would run for
the branch that kick pushes and for its pull request, before anyone looks: why
each one starts, whether it runs what the agent wrote, and what that could reach
there (secrets, a token that can write, an identity at a cloud, runners of your
own). A kick to this repository is refused for what is exposed here.

REPO is a URL or a path; the default is the checkout's origin. Nothing is
pushed. Settings that no file tells, and what is accepted, are in the policy
under ci. Exit codes: 0 nothing is exposed, or it is accepted; 13 exposed; 1 the
repository could not be read; 2 usage.`,
		Example: `  kick policy ci https://github.com/acme/api
  kick policy ci . --base main --policy policy.yaml --agent fixer -o json`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, a []string) error {
			if len(a) == 1 {
				o.Repo = a[0]
			}
			return policyCIRun(c.Context(), g, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Base, "base", "", "`branch` whose workflows are read (default: the checkout's branch, else the remote's HEAD)")
	f.StringVar(&o.agent, "agent", "", "agent's `name`, which is part of the branch's")
	addOutput(c, &o.output, "json")
	addGitHubFlags(c, &o.Options)
	return c
}

func policyCIRun(ctx context.Context, g *globals, o *policyCIOptions) error {
	o.Agent, o.PolicyPath = o.agent, o.path
	req, err := request.Repository(ctx, o.Options)
	if err != nil {
		return usageError{err}
	}
	state, err := g.state()
	if err != nil {
		return err
	}
	m := manager.Manager{State: state}
	report, err := m.CI(ctx, req)
	switch {
	case errors.Is(err, workspace.ErrSource):
		return usageError{err}
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "kick: told to stop before the workflows were judged")
		return exit{manager.Cancelled.ExitCode()}
	case err != nil:
		return err
	}
	if o.output == "json" {
		if err := escape.JSON(os.Stdout, report); err != nil {
			return err
		}
	} else {
		ui.New(os.Stdout).CI(report)
	}
	if report.Exposed {
		return exit{manager.Refused.ExitCode()}
	}
	return nil
}
