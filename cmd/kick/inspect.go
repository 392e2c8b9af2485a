package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/config"
	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/localwork"
	"github.com/kickhq/kick/internal/request"
	"github.com/kickhq/kick/internal/sarif"
	"github.com/kickhq/kick/internal/ui"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/pushbroker"
)

type inspectOptions struct {
	localwork.Source
	policy       string
	agent        string
	output       string
	acceptReview bool
	target       request.Options // of which --github-api counts
}

func newInspect(g *globals) *cobra.Command {
	o := &inspectOptions{}
	c := &cobra.Command{
		Use:   "inspect BUNDLE|RANGE",
		Short: "Judge a bundle or a range of commits as kick would",
		Long: `Judge commits as kick judges an agent's work, and do nothing else: no sandbox,
no network, no push, and the repository stays as it is.

RANGE is base..tip, or a commit or branch, which is then compared with --base or
with the default branch of origin. What the base gained since the two parted is
not part of the work. BUNDLE is a git bundle of one ref; it is compared with the
commit that it builds on, which the repository must hold and --base, if given,
must have in its history.

CI is judged as for a run: by the base's workflows, for a branch kick/AGENT/ID and
its pull request at origin. Where origin is not on GitHub, that is only reported.

The verdict goes to stdout. Exit codes: 0 passed, 13 refused, also for work that
asks for a review unless --accept-review is given, 10 no new commit, 2 usage,
1 a fault of this host.`,
		Example: `  kick inspect main..my-branch
  kick inspect origin/main..HEAD -o sarif > kick.sarif
  kick inspect work.bundle --base main --agent scanner`,
		Args: args(one),
		RunE: func(c *cobra.Command, a []string) error {
			o.Work = a[0]
			err := inspectRun(c.Context(), g, o)
			if c.Context().Err() != nil {
				fmt.Fprintln(os.Stderr, "kick: inspect was told to stop: there is no verdict")
				return exit{manager.Cancelled.ExitCode()}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Dir, "repo", ".", "`directory` of the repository that holds the base")
	f.StringVar(&o.Base, "base", "", "`branch` or commit that the work builds on (default: see above)")
	f.StringVar(&o.policy, "policy", "", "policy `file` (default: built in)")
	f.StringVar(&o.agent, "agent", "", "judge it as this agent's work: its `name` in the policy, its identity in every commit")
	f.BoolVar(&o.acceptReview, "accept-review", false, "exit with 0 also if the work asks for a review")
	f.StringVar(&o.target.GitHubAPI, "github-api", os.Getenv("KICK_GITHUB_API_URL"), "origin is the GitHub Enterprise host with this REST `URL` (KICK_GITHUB_API_URL)")
	addOutput(c, &o.output, "json", "sarif")
	return c
}

func inspectRun(ctx context.Context, g *globals, o *inspectOptions) (err error) {
	if o.agent != "" && !config.IsAgentName(o.agent) {
		return usagef("--agent %q: want up to 63 lower-case letters, digits, - and _", o.agent)
	}
	pol, err := request.LoadPolicy(o.policy)
	if err != nil {
		return usageError{err}
	}
	state, err := g.state()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kick-inspect-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	w, err := localwork.Prepare(ctx, o.Source, dir)
	var verdict pushbroker.Verdict
	var input *localwork.InputError
	var refusal *pushbroker.Refusal
	switch {
	case errors.As(err, &input):
		return usageError{err}
	case errors.As(err, &refusal):
		verdict, err = refusal.Verdict(w), nil
	case err == nil:
		w.Destination = request.Destination(w.Repo, w.Destination.Base, o.target)
		if w.Agent = o.agent; o.agent != "" {
			id := manager.DefaultIdentity(o.agent)
			w.IdentityName, w.IdentityEmail = id.Name, id.Email
		}
		verdict, err = manager.Inspect(ctx, state, dir, w, pol, request.Held(os.Environ()))
	}
	if errors.Is(err, pushbroker.ErrNothing) {
		fmt.Fprintln(os.Stderr, "kick: there is no new commit to judge")
		return exit{manager.Nothing.ExitCode()}
	}
	if err != nil {
		return fmt.Errorf("inspect %s: %w", escape.String(o.Work), err)
	}
	if err := writeVerdict(verdict, o.output); err != nil {
		return err
	}
	if !verdict.Pass && !(verdict.Review && o.acceptReview) {
		return exit{manager.Refused.ExitCode()}
	}
	return nil
}

func writeVerdict(v pushbroker.Verdict, output string) error {
	switch output {
	case "json":
		return escape.JSON(os.Stdout, v)
	case "sarif":
		return sarif.Write(os.Stdout, v, strings.TrimPrefix(version, "v"))
	}
	return ui.New(os.Stdout).Verdict(v)
}
