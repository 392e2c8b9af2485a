package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/config"
	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/request"
	"github.com/kickhq/kick/internal/ui"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

type runOptions struct {
	request.Options
	promptFile string
	output     string
	quiet      bool
	update     string
}

func newRun(g *globals) *cobra.Command {
	o := &runOptions{}
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run an agent on a task and publish its commits",
		Long: `Run one agent on one task.

The agent works on a fresh copy of the base branch, in a sandbox without
credentials, and commits. What it committed is inspected outside the sandbox;
only if it passes is a token made and the branch kick/AGENT/ID pushed, with a
pull request where the forge has them.

In a git checkout, --repo defaults to its origin and --base to its branch. A
checkout without a remote is its own forge: the result is a local branch.

The agent's prompt lies in .hive/kick-prompt.txt in its working directory. Steps
and the agent's output go to stderr, the result to stdout; with -o json the
agent's output is in "kick logs" alone.

Exit codes: 0 published, 1 base not fetched or a fault of this host, 2 usage,
10 nothing to publish, 11 agent failed, 12 timed out, 13 refused, 14 isolation
not provable, 15 runtime failed, 16 push failed, 130 cancelled. Work that is
not on the remote is always kept, and the output says where.

A repository on GitHub is reached with a GitHub App (--github-app-id and
--github-app-key) or with a token of yours in KICK_GITHUB_TOKEN.`,
		Example: `  kick run -p "add a changelog" -- sh -c './agent < .hive/kick-prompt.txt'
  kick run --agent-kind codex --policy policy.yaml -p "fix the flaky test"
  kick run --agent scanner                      # as kick.yaml says
  kick run --repo https://github.com/acme/api --base main -- ./agent
  kick run --repo /srv/git/api.git --publish branch -o json -- ./agent`,
		RunE: func(c *cobra.Command, command []string) error {
			if at := c.ArgsLenAtDash(); at > 0 || (at < 0 && len(command) > 0) {
				return usagef("the agent's command goes after --, as in: kick run -- %s", command[0])
			}
			o.Command = command
			o.Set = c.Flags().Changed
			return runRun(c.Context(), g, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Repo, "repo", "", "git `URL` or path to work on (default: the checkout's origin)")
	f.StringVar(&o.Base, "base", "", "`branch` to start from (default: the checkout's branch, else the remote's HEAD)")
	f.StringVar(&o.Agent, "agent", "", "agent's `name`; runs by kick.yaml if that has it")
	f.StringVar(&o.Kind, "agent-kind", "", "run a coding agent of a known `kind` (see kick agents) instead of a command")
	f.StringVar(&o.Model, "model", "", "`name` of the model that --agent-kind uses")
	f.StringVar(&o.ConfigPath, "config", "", "kick.yaml `file` (default: found from here upward)")
	f.StringVar(&o.PolicyPath, "policy", "", "policy `file` (default: built in)")
	f.StringVar(&o.Runtime, "runtime", "", "what isolates the agent: embedded (default), podman, openshell, kubernetes or kubevirt")
	f.StringVar(&o.Image, "image", "", "container `image` that the agent runs in, for --runtime podman and kubernetes, and by its digest for openshell and kubevirt")
	addKubernetesFlags(c, &o.Kubernetes)
	f.StringVar(&o.OCIRuntime, "oci-runtime", "", "`program` that the Podman service must start containers with: crun, runc, runsc, krun or kata")
	f.StringVarP(&o.Prompt, "prompt", "p", "", "the task, as `text` for the agent")
	f.StringVar(&o.promptFile, "prompt-file", "", "`file` with the task, - for standard input")
	f.DurationVar(&o.Timeout, "timeout", 45*time.Minute, "time that the agent has, from its start")
	f.StringVar(&o.Publish, "publish", "", "how far to go: pr, branch or none (default: pr where the forge has pull requests, else branch)")
	f.BoolVar(&o.AcceptReview, "accept-review", false, "publish work that asks for a review where there is no reviewer")
	f.StringVar(&o.update, "update", "", "go on with the branch and pull request of an earlier kick, by its `id`; with --base, write them anew")
	f.BoolVar(&o.Squash, "squash", false, "publish one commit of the work; what only its commits in between hold is left behind")
	f.BoolVar(&o.Signed, "signed", false, "have GitHub make and sign the commits; work that it cannot express is refused")
	f.StringVar(&o.Network, "network", "", "restricted (the egress gateway alone, default) or none")
	f.StringArrayVar(&o.Env, "env", nil, "`NAME=VALUE` for the agent's environment; never a credential")
	f.StringVar(&o.Memory, "memory", "", "memory limit, e.g. `4GiB`")
	f.StringVar(&o.Disk, "disk", "", "limit of the workspace, e.g. `10GiB`")
	f.IntVar(&o.Processes, "processes", 0, "limit of processes and threads")
	f.Float64Var(&o.CPUs, "cpus", 0, "limit of CPU cores")
	f.StringArrayVar(&o.ProgramDirs, "program-dir", nil, "further host `directory` of programs, seen read-only by the agent")
	f.StringArrayVar(&o.AcceptWeaker, "accept-weaker", nil, "isolation `property` that may be missing on this host, or hole that git may have, by name")
	completeWords(c, "agent-kind", agents.Names()...)
	completeWords(c, "runtime", config.Runtimes...)
	completeWords(c, "oci-runtime", sandbox.OCIRuntimes...)
	completeWords(c, "publish", string(manager.PublishPR), string(manager.PublishBranch), string(manager.PublishNone))
	completeWords(c, "network", string(sandbox.NetworkRestricted), string(sandbox.NetworkNone))
	completeWords(c, "accept-weaker", request.Weaknesses()...)
	addOpenShellFlags(c, &o.OpenShell)
	addGitHubFlags(c, &o.Options)
	addOutput(c, &o.output, "json")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no steps and no agent output on stderr, only why it went wrong")
	return c
}

// addOpenShellFlags adds the flags that say which gateway of OpenShell is used.
// kick.yaml has more.
func addOpenShellFlags(c *cobra.Command, o *sandbox.OpenShellChoice) {
	f := c.Flags()
	f.StringVar(&o.Gateway, "openshell-gateway", "", "`name` of a gateway of the openshell command (default: its active one)")
	f.BoolVar(&o.TelemetryOff, "openshell-telemetry-off", false, "your word that the gateway sends no telemetry, which nothing else tells")
}

// addKubernetesFlags adds the flags that say where pods and machines run. kick.yaml has more.
func addKubernetesFlags(c *cobra.Command, k *sandbox.KubernetesChoice) {
	f := c.Flags()
	f.StringVar(&k.Kubeconfig, "kubeconfig", "", "kubeconfig `file` for --runtime kubernetes and kubevirt (default: as kubectl finds it)")
	f.StringVar(&k.Context, "context", "", "context of the kubeconfig, by `name`")
	f.StringVar(&k.Namespace, "namespace", "", "`namespace` that the Jobs or machines are made in (default: the context's)")
	f.StringVar(&k.Gateway, "gateway", "", "`address` and ports at which pods reach this kick's egress gateway, as 10.1.2.3:8377-8392: it has the first that is free")
	f.StringVar(&k.ShimImage, "shim-image", "", "`image` with kick's shim, for agents' images that lack it")
	f.StringVar(&k.Claim, "claim", "", "PersistentVolumeClaim in which workspaces are, by `name` (default: they go with their pods)")
}

// addGitHubFlags adds the flags that say how GitHub is reached.
func addGitHubFlags(c *cobra.Command, o *request.Options) {
	f := c.Flags()
	f.StringVar(&o.GitHubAppID, "github-app-id", os.Getenv("KICK_GITHUB_APP_ID"), "GitHub App `id` (KICK_GITHUB_APP_ID)")
	f.StringVar(&o.GitHubAppKey, "github-app-key", os.Getenv("KICK_GITHUB_APP_KEY_FILE"), "`file` with the GitHub App's private key (KICK_GITHUB_APP_KEY_FILE)")
	f.StringVar(&o.GitHubAPI, "github-api", os.Getenv("KICK_GITHUB_API_URL"), "REST `URL` of a GitHub Enterprise host (KICK_GITHUB_API_URL)")
}

func runRun(ctx context.Context, g *globals, o *runOptions) error {
	// A reader of the steps who goes away does not end the kick half-way: a
	// write then fails, instead of killing this process. Ignoring the signal
	// would be inherited by every git.
	gone := make(chan os.Signal, 1)
	signal.Notify(gone, syscall.SIGPIPE)

	p := ui.New(os.Stderr)
	began := time.Now()
	out, err := kickOnce(ctx, g, o, p)
	if out.ID == "" && o.output == "json" {
		// A program that reads the object learns of this as of any other end.
		out = manager.Outcome{Outcome: outcomeOf(err), Agent: o.Agent, Repo: o.Repo, Base: o.Base, Error: err.Error(),
			Findings: []policy.Finding{}, Timings: map[string]float64{}, Started: began.UTC(), Finished: time.Now().UTC(),
			Isolation: sandbox.Isolation{Properties: []sandbox.Property{}}}
		out.ExitCode = out.Outcome.ExitCode()
	}
	if err != nil && out.ID != "" && out.ExitCode == 0 {
		// How it ended stays true, but its record is missing.
		out.ExitCode = manager.Internal.ExitCode()
	}
	var werr error
	switch {
	case o.output == "json":
		werr = escape.JSON(os.Stdout, out)
	case out.ID != "":
		// --quiet leaves out how it went, not why it went wrong.
		if !o.quiet || out.ExitCode != 0 {
			p.Outcome(out)
		}
		_, werr = os.Stdout.WriteString(ui.ResultLine(out) + "\n")
	}
	switch {
	case errors.Is(err, errCancelled):
		fmt.Fprintln(os.Stderr, "kick:", err)
		return exit{manager.Cancelled.ExitCode()}
	case err != nil && out.ID == "":
		return err
	case err != nil:
		fmt.Fprintln(os.Stderr, "kick:", err)
		return exit{out.ExitCode}
	case out.ExitCode != 0:
		return exit{out.ExitCode}
	case werr != nil:
		return fmt.Errorf("kick %s is %s, but the result could not be written: %w", out.ID, out.Outcome, werr)
	}
	return nil
}

// kickOnce builds the request and runs it. An outcome without an id is none:
// the error says why nothing ran.
func kickOnce(ctx context.Context, g *globals, o *runOptions, p *ui.Printer) (manager.Outcome, error) {
	if o.promptFile != "" {
		if o.Prompt != "" {
			return manager.Outcome{}, usagef("--prompt and --prompt-file are both given: choose one")
		}
		prompt, err := request.ReadPrompt(o.promptFile)
		if err != nil {
			return manager.Outcome{}, usageError{err}
		}
		o.Prompt = prompt
	}
	if o.update != "" {
		state, err := g.state()
		if err != nil {
			return manager.Outcome{}, err
		}
		u, err := state.Update(o.update)
		if err != nil {
			return manager.Outcome{}, usagef("--update %s: %v", o.update, err)
		}
		o.Update = &u
	}
	req, err := request.Build(ctx, o.Options)
	if ctx.Err() != nil {
		// Whatever else was seen meanwhile is of a look that was cut short.
		return manager.Outcome{}, errCancelled
	}
	if err != nil {
		return manager.Outcome{}, usageError{err}
	}
	m, err := g.manager()
	if err != nil {
		return manager.Outcome{}, err
	}
	if !o.quiet {
		req.Progress = p.Step
		if o.output == "text" {
			req.Output = p.Output()
		}
	}
	return m.Run(ctx, req)
}

var errCancelled = errors.New("kick was told to stop before anything ran")

func outcomeOf(err error) manager.Code {
	var u usageError
	switch {
	case errors.As(err, &u):
		return manager.Usage
	case errors.Is(err, errCancelled):
		return manager.Cancelled
	}
	return manager.Internal
}
