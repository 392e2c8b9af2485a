package manager

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/gitversion"
	"github.com/kickhq/kick/internal/repoaddr"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/scan"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/workspace"
)

// Run runs one kick to its end. The Outcome says how it ended and is complete
// whatever happened; the error is for what is not an outcome: a kick that could
// not even be recorded.
func (m *Manager) Run(ctx context.Context, req Request) (Outcome, error) {
	k, err := m.State.NewKick()
	if err != nil {
		return Outcome{}, err
	}
	r := &run{m: m, k: k, req: req, start: time.Now(), work: k.Path("work")}
	if req.WorkspaceDir != "" {
		r.work = filepath.Join(req.WorkspaceDir, k.ID)
	}
	r.out = Outcome{
		ID: k.ID, Agent: req.Agent, Repo: req.Source.Repo, Base: req.Source.Base,
		Findings: []policy.Finding{}, Timings: map[string]float64{}, Started: r.start.UTC(), Notes: req.Notes,
	}
	switch { // who ends a dead kick may have another default
	case req.Runtime == "podman" && req.Podman.Socket == "":
		r.req.Podman.Socket = sandbox.DefaultPodmanSocket()
	case req.Runtime == openShellRuntime:
		if found, err := req.OpenShell.Choice.Found(); err == nil { // else the run says what is wrong
			r.req.OpenShell.Choice.Connection = found
		}
	}
	swept := m.sweep(ctx, req)
	if err := k.Journal.Note("kick", map[string]string{
		"agent": req.Agent, "runtime": req.Runtime, "repo": req.Source.Repo, "base": req.Source.Base, "work": r.work, "version": m.Version,
		"image": req.Image, "podmanSocket": r.req.Podman.Socket, "ociRuntime": req.Podman.OCIRuntime,
		"accepted": strings.Join(req.AcceptWeaker, " "), "openshell": r.req.OpenShell.journaled(req.Runtime), "kubernetes": journaled(req.Kubernetes), "kubevirt": journaled(req.KubeVirt),
	}); err != nil {
		r.fail(Internal, err)
	} else {
		r.line(ctx)
	}
	for _, note := range <-swept {
		if r.out.Error == "" || !strings.Contains(note, r.out.Error) {
			r.out.Notes = append(r.out.Notes, note)
		}
	}
	return r.finish()
}

// run is one kick under way.
type run struct {
	m     *Manager
	k     *Kick
	req   Request
	out   Outcome
	start time.Time

	work    string // the live workspace
	base    *workspace.Base
	sink    *workspace.DirSink
	summary sandbox.Work // what the shim says of the workspace, a claim
	lost    bool         // nothing has the work that is missing
	removal chan error   // result of the live workspace's removal, once begun
	scan    *scan.Scanner
}

// agentStarted is the journal's event of an agent's start.
const agentStarted = "agent-started"

// fail records how the kick ended, if it has not ended already.
func (r *run) fail(code Code, err error) {
	if r.out.Outcome != "" {
		r.note("after the end", err)
		return
	}
	r.out.Outcome = code
	if err != nil {
		r.out.Error = err.Error()
	}
}

// note records what went wrong without changing how the kick ended.
func (r *run) note(doing string, err error) {
	if err != nil {
		r.out.Notes = append(r.out.Notes, doing+": "+err.Error())
	}
}

// step times f and tells of it.
func (r *run) step(name string, f func() (string, error)) error {
	began := time.Now()
	detail, err := f()
	r.report(name, detail, began, err)
	return err
}

func (r *run) report(name, detail string, began time.Time, err error) {
	took := time.Since(began)
	r.out.Timings[name] += took.Seconds()
	if r.req.Progress == nil {
		return
	}
	if err != nil {
		detail = escape.String(firstLine(err.Error()))
	}
	r.req.Progress(Step{Name: name, Detail: detail, At: time.Since(r.start), Took: took, Failed: err != nil})
}

// waiting tells of a step that goes on, and what it waits for.
func (r *run) waiting(name, why string) {
	if r.req.Progress != nil {
		r.req.Progress(Step{Name: name, Detail: "waits: " + firstLine(why), At: time.Since(r.start), Waiting: true})
	}
}

// line is the whole line: prepare, launch, ingest, inspect, publish.
func (r *run) line(ctx context.Context) {
	if code, err := r.hostGit(ctx); err != nil {
		r.fail(codeFor(ctx, err, code), err)
		return
	}
	if r.req.Network != sandbox.NetworkNone {
		keys, err := egress.ReadKeys(ctx, r.policy().Egress)
		r.note("key for a model", err) // another route may be the one that is used
		r.hold(slices.Collect(maps.Values(keys)))
	}
	if err := r.step("prepare", func() (string, error) { return r.prepare(ctx) }); err != nil {
		code := FetchFailed
		switch {
		case errors.Is(err, workspace.ErrSource), errors.Is(err, errNoUpdate):
			code = Usage
		case errors.Is(err, errSecretTask):
			code = Refused
		}
		r.fail(codeFor(ctx, err, code), err)
		return
	}
	res, err := r.launch(ctx)
	r.judge(ctx, res, err)
	if r.out.Outcome != "" {
		return
	}
	r.broker(ctx)
}

// policy is the one that holds for the kick's repository and agent.
func (r *run) policy() *policy.Policy {
	p := r.req.Policy
	if p == nil {
		p = policy.Default()
	}
	return p.For(r.req.Source.Repo, r.req.Agent)
}

// hold adds keys that the gateway has to what must not leave through the agent's work.
func (r *run) hold(keys []string) {
	held := maps.Clone(r.req.Held)
	if held == nil {
		held = map[string]string{}
	}
	for _, key := range keys {
		if !slices.Contains(slices.Collect(maps.Values(held)), key) {
			held[fmt.Sprintf("gateway key %d", len(held))] = key
			r.scan = nil // it is made anew, with this one
		}
	}
	r.req.Held = held
}

// hostGit refuses a git that has a hole which hostile data can reach here,
// unless the operator accepted that very one.
func (r *run) hostGit(ctx context.Context) (Code, error) {
	g, err := usableGit(ctx)
	if err != nil {
		return Internal, err
	}
	for _, h := range g.Holes() {
		if !slices.Contains(r.req.AcceptWeaker, h.Name()) {
			r.out.Remedy = h.Remedy()
			return NotIsolated, fmt.Errorf("git %s has %s: %s", g, h.CVE, h.Reach)
		}
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("git %s has %s, accepted: %s", g, h.CVE, h.Reach))
	}
	return "", nil
}

// usableGit finds the host's git, and fails if kick cannot work with it.
func usableGit(ctx context.Context) (gitversion.Git, error) {
	g, err := gitversion.Find(ctx)
	if err != nil {
		return g, err
	}
	if fault := g.Fault(); fault != "" {
		return g, fmt.Errorf("git %s: %s", g, fault)
	}
	return g, nil
}

// prepare gets the base and makes the workspace.
func (r *run) prepare(ctx context.Context) (string, error) {
	// The task is looked at while git asks the remote.
	admitted := make(chan error, 1)
	go func() { admitted <- r.admit(ctx) }()
	cache := workspace.Cache{Dir: r.m.State.MirrorsDir()}
	base, err := cache.Fetch(ctx, r.req.Source)
	r.base = base
	if refused := <-admitted; refused != nil {
		err = refused
	}
	if r.req.AfterFetch != nil {
		if rerr := r.req.AfterFetch(context.WithoutCancel(ctx)); rerr != nil {
			r.out.Notes = append(r.out.Notes, "the token for the fetch could not be revoked: "+rerr.Error())
		}
	}
	if r.req.Update != nil && errors.Is(err, workspace.ErrNoBranch) {
		err = fmt.Errorf("%w: the branch %s is gone from the remote: run a new kick", errNoUpdate, r.req.Source.Base)
	}
	if err != nil {
		return "", err
	}
	r.out.Base, r.out.BaseCommit = base.Branch, base.OID
	r.out.Notes = append(r.out.Notes, base.Notes...)
	if err := r.checkUpdate(ctx); err != nil {
		return "", err
	}
	if r.req.WorkspaceDir != "" {
		if err := os.MkdirAll(r.req.WorkspaceDir, 0o700); err != nil {
			return "", fmt.Errorf("make the directory of workspaces: %w: correct workspace_dir", err)
		}
	}
	task := workspace.Task{ID: r.k.ID, Agent: r.req.Agent, Prompt: r.req.Prompt, Identity: r.req.Identity, Holder: r.k.Dir}
	if err := workspace.Prepare(ctx, r.work, base, task); err != nil {
		return "", err
	}
	if r.sink, err = workspace.NewDirSink(r.k.Path("out"), artifactsMax(r.req.Limits)); err != nil {
		return "", err
	}
	err = r.k.Journal.Note("prepared", map[string]string{"mirror": base.Mirror, "branch": base.Branch, "commit": base.OID})
	return fmt.Sprintf("%s at %.12s", escape.String(base.Branch), base.OID), err
}

// artifactsMax bounds all that one kick leaves on the host.
func artifactsMax(l sandbox.Limits) int64 {
	if l.Bundle <= 0 {
		l.Bundle = sandbox.DefaultLimits().Bundle
	}
	return 3*l.Bundle + 32<<20
}

// launch runs the agent; when it returns, nothing of the sandbox is left.
func (r *run) launch(ctx context.Context) (sandbox.Result, error) {
	began := time.Now()
	launcher, err := r.m.launcher(r.req)
	if err != nil {
		return sandbox.Result{}, err
	}
	transcript, err := os.OpenFile(r.k.Path("transcript.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return sandbox.Result{}, &sandbox.Error{Kind: sandbox.ErrRuntime, Op: "open transcript", Err: err}
	}
	defer func() { r.note("close the transcript", transcript.Close()) }()
	shown := io.Writer(transcript)
	if r.req.Output != nil {
		shown = io.MultiWriter(transcript, r.req.Output)
	}
	stdout, stderr := escape.NewWriter(shown), escape.NewWriter(shown)

	spec := sandbox.LaunchSpec{
		ID: r.k.ID, Agent: r.req.Agent, Image: r.req.Image,
		Command: r.req.Command, Env: r.environment(), Home: r.req.Home,
		Workspace: sandbox.Workspace{
			Dir: r.work, BaseOID: r.base.OID, Objects: r.base.Objects(), Sink: r.sink,
		},
		Network: r.req.Network, Limits: r.req.Limits, ProgramDirs: r.req.ProgramDirs, AcceptWeaker: r.req.AcceptWeaker, Trust: r.trust(),
		Stdout: stdout, Stderr: stderr,
		Labels: map[string]string{"kick.dev/id": r.k.ID, "kick.dev/agent": r.req.Agent},
	}
	if r.req.Runtime == openShellRuntime {
		done, err := r.openShell(&spec)
		if err != nil {
			return sandbox.Result{}, err
		}
		defer done()
	}
	started := false
	gateway, done, err := r.openGateway(ctx, &spec)
	if err != nil {
		return sandbox.Result{}, err
	}
	defer func() { done(started) }()
	spec.OnEvent = func(e sandbox.Event) {
		switch e.Kind {
		case sandbox.EventWaiting:
			r.waiting("sandbox", e.Why)
		case sandbox.EventProved:
			// The base is checked out next, which is this step too.
		case sandbox.EventStarted:
			started = true
			r.report("sandbox", "isolation proved on the live process, base checked out", began, nil)
			began = e.Time
			err = errors.Join(err, r.k.Journal.Note(agentStarted, nil))
		case sandbox.EventExited:
			if gateway != nil {
				_ = gateway.Close() // closing again, at the end, gives the same error
			}
			err = errors.Join(err, r.k.Journal.Note("agent-exited", nil))
			if started {
				r.report("agent", "ended; everything else in its sandbox is dead", began, nil)
			} else {
				r.report("sandbox", "", began, errors.New("the agent's command did not start"))
			}
			began = e.Time
		case sandbox.EventBundled:
			err = errors.Join(err, r.k.Journal.Note("bundled", nil))
			r.report("collect", "work taken out as bundles", began, nil)
		}
	}
	if err := r.k.Journal.Intend("sandbox", map[string]string{"runtime": r.req.Runtime}); err != nil {
		return sandbox.Result{}, &sandbox.Error{Kind: sandbox.ErrRuntime, Op: "journal", Err: err}
	}
	res, runErr := launcher.Run(ctx, spec)
	r.note("transcript or journal", errors.Join(stdout.Flush(), stderr.Flush(), err))
	return res, runErr
}

// trust is a digest of who may have this kick's machine next, where machines linger:
// the same agent, for the same repository, by the same policy and within the same walls.
func (r *run) trust() string {
	repo := r.req.Source.Repo
	if a, err := repoaddr.Parse(repo); err == nil {
		repo = a.URL
	}
	accepted := slices.Sorted(slices.Values(r.req.AcceptWeaker))
	b, _ := json.Marshal([]any{r.req.Agent, repo, r.policy().Digest(), r.req.Network, accepted}) // of texts alone: it cannot fail
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// environment is all that the agent's command gets.
func (r *run) environment() map[string]string {
	env := map[string]string{
		"PATH":             r.path(),
		"HOME":             sandbox.HomeDir,
		"USER":             "agent",
		"LOGNAME":          "agent",
		"SHELL":            "/bin/sh",
		"LANG":             "C.UTF-8",
		"TMPDIR":           "/tmp",
		"TERM":             "dumb",
		"KICK_ID":          r.k.ID,
		"KICK_AGENT":       r.req.Agent,
		"KICK_PROMPT_FILE": sandbox.DefaultMountPath + "/.hive/kick-prompt.txt",
	}
	if r.req.Network != sandbox.NetworkNone && r.req.Runtime != openShellRuntime {
		maps.Copy(env, agents.ProxyEnvironment())
	}
	maps.Copy(env, r.req.Env)
	return env
}

// path is the agent's PATH. An image has its own programs, not the host's.
func (r *run) path() string {
	if r.req.Image != "" {
		return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	return SandboxPath(r.req.ProgramDirs)
}

// SandboxPath is the PATH of an agent. It keeps the caller's PATH as far as its directories exist in a
// sandbox, so that tools are found in the order that people are used to.
func SandboxPath(programDirs []string) string {
	roots := append([]string{"/usr", "/bin", "/sbin"}, programDirs...)
	var dirs, added []string
	for _, d := range programDirs { // programs lie there or, as in /opt/tool, in bin below it
		added = append(added, d, filepath.Join(d, "bin"))
	}
	for _, d := range append(append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/bin", "/usr/bin", "/bin"), added...) {
		inside := slices.ContainsFunc(roots, func(root string) bool { return d == root || strings.HasPrefix(d, root+"/") })
		if inside && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return strings.Join(dirs, ":")
}

// judge turns the end of the sandbox into the outcome, unless the agent did
// well: then the broker goes on.
func (r *run) judge(ctx context.Context, res sandbox.Result, err error) {
	r.out.Image = res.Image
	r.out.Isolation, r.out.Reason, r.out.Missing = res.Isolation, res.Reason, res.Missing
	if !res.Started.IsZero() {
		r.out.AgentExit = &res.ExitCode
	}
	if res.OutputCut {
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("the agent wrote %d bytes; the transcript holds the beginning and the end", res.StdoutBytes+res.StderrBytes))
	}
	r.lost = res.Gone
	r.takeWork(res)
	if err != nil {
		code := RuntimeError
		switch {
		case errors.Is(err, sandbox.ErrSpec):
			code = Usage
		case errors.Is(err, sandbox.ErrIsolation):
			code = NotIsolated
		}
		r.fail(codeFor(ctx, err, code), err)
		return
	}
	switch res.Reason {
	case sandbox.ReasonExited:
		if res.ExitCode != 0 {
			r.fail(AgentFailed, fmt.Errorf("the agent exited with code %d", res.ExitCode))
		}
	case sandbox.ReasonTimeout:
		r.out.Remedy = "Give it more time with --timeout, or a smaller task."
		r.fail(TimedOut, fmt.Errorf("the agent was still running after %s", r.wall()))
	case sandbox.ReasonCancelled:
		if res.Started.IsZero() {
			r.fail(Cancelled, errors.New("kick was told to stop before the agent ran"))
			return
		}
		r.fail(Cancelled, errors.New("kick was told to stop while the agent ran"))
	case sandbox.ReasonSignaled, sandbox.ReasonOutOfMemory, sandbox.ReasonProcessLimit, sandbox.ReasonDiskLimit:
		r.fail(AgentFailed, errors.New(describe(res)))
	case sandbox.ReasonStartFailed:
		r.out.Remedy = "The agent sees the repository, the programs in this host's /usr, and what --program-dir adds: name a command that is there."
		if r.req.Image != "" {
			r.out.Remedy = "The agent sees the repository and the programs of the image " + r.req.Image + ": name a command that is there, or build it in (`kick image build --package` or `--agent`)."
		}
		r.fail(RuntimeError, errors.New(describe(res)))
	default:
		r.fail(RuntimeError, errors.New(describe(res)))
	}
	if r.out.Outcome == "" && len(res.Missing) > 0 {
		r.fail(RuntimeError, fmt.Errorf("the work could not be taken out whole: %s", count(len(res.Missing), "missing part")))
	}
}

func (r *run) wall() time.Duration {
	if r.req.Limits.Wall != 0 {
		return r.req.Limits.Wall
	}
	return sandbox.DefaultLimits().Wall
}

func describe(res sandbox.Result) string {
	what := map[sandbox.Reason]string{
		sandbox.ReasonSignaled:     fmt.Sprintf("the agent was killed by signal %d", res.Signal),
		sandbox.ReasonOutOfMemory:  "the agent used more memory than it may: raise the memory limit or give it less to do at once",
		sandbox.ReasonProcessLimit: "the agent started more processes than it may: raise the process limit or look for a runaway script",
		sandbox.ReasonDiskLimit:    "the agent wrote more to the workspace than it may: raise the disk limit or look for what it writes",
		sandbox.ReasonLost:         "the sandbox was lost",
		sandbox.ReasonStartFailed:  "the sandbox or the agent's command could not be started",
	}[res.Reason]
	if what == "" {
		what = "the sandbox ended with reason " + string(res.Reason)
	}
	if res.Detail != "" {
		what += " (" + res.Detail + ")"
	}
	return what
}

// takeWork reads the shim's summary for the messages, and lets go of the live
// workspace when its work is on the host.
func (r *run) takeWork(res sandbox.Result) {
	if r.sink == nil {
		return
	}
	w, err := r.sink.Work()
	switch {
	case err == nil:
		r.summary = w
		r.out.Commit, r.out.Commits = w.Head, w.Commits
		if w.Commits == 0 {
			r.out.Commit = ""
		}
		u := Unpublished{Refs: w.Unpublished, Stashes: w.Stashes, Dirty: w.Dirty, DirtyCount: w.DirtyCount}
		if len(u.Refs)+u.Stashes+u.DirtyCount > 0 {
			r.out.Unpublished = &u
		}
		r.out.Notes = append(r.out.Notes, slices.DeleteFunc(w.Problems, func(p string) bool { return slices.Contains(r.out.Notes, p) })...) // another try says it again
	case !errors.Is(err, os.ErrNotExist):
		r.out.Notes = append(r.out.Notes, "work summary: "+err.Error())
	}
	if len(res.Missing) == 0 {
		r.note("remove the checkpoint", r.sink.DropCheckpoint())
	} else if checkpoint, ok := r.sink.Path(sandbox.Checkpoint); ok {
		if info, err := os.Lstat(checkpoint); err == nil {
			r.out.Notes = append(r.out.Notes, fmt.Sprintf("what there was at the checkpoint of %s is kept: `kick show %s` says how to get it", info.ModTime().Format(time.TimeOnly), r.k.ID))
		}
	}
	if len(res.Missing) > 0 && !r.lost && r.req.Runtime != openShellRuntime { // where nothing is left of it, nothing can be tried again
		r.out.Notes = append(r.out.Notes, leftInPlace+": "+r.m.State.nextFor(Outcome{ID: r.k.ID, Missing: res.Missing}))
		return
	}
	r.removal = make(chan error, 1)
	go func() { r.removal <- workspace.Remove(r.work) }()
}

// leftInPlace begins the note of a kick whose work could not be taken out whole.
const leftInPlace = "the live workspace is left in place"

// codeFor is code unless the context was cancelled, which explains any error.
func codeFor(ctx context.Context, err error, code Code) Code {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return Cancelled
	}
	return code
}

// finish writes the outcome down and cleans up.
func (r *run) finish() (Outcome, error) {
	if r.removal != nil {
		if err := <-r.removal; err != nil {
			r.out.Notes = append(r.out.Notes, "remove the live workspace: "+err.Error())
		}
	}
	if r.base != nil {
		if err := r.base.Release(); err != nil {
			r.out.Notes = append(r.out.Notes, "release the mirror: "+err.Error())
		}
	}
	if err := os.RemoveAll(r.k.Path("egress")); err != nil {
		r.out.Notes = append(r.out.Notes, "remove the gateway's directory: "+err.Error())
	}
	if r.sink != nil {
		if err := r.sink.Close(); err != nil {
			r.out.Notes = append(r.out.Notes, "close the artifacts: "+err.Error())
		}
	}
	if r.out.Isolation.Properties == nil {
		r.out.Isolation.Properties = []sandbox.Property{} // in JSON: a list, always
	}
	r.out.KeptAt = r.kept()
	r.out.ExitCode = r.out.Outcome.ExitCode()
	if r.out.Finished.IsZero() { // else it had ended, and more of its work came out
		r.out.Finished = time.Now().UTC()
		r.out.Timings["total"] = time.Since(r.start).Seconds()
	}
	if err := r.k.Journal.Note("outcome", map[string]string{"outcome": string(r.out.Outcome)}); err != nil {
		r.out.Notes = append(r.out.Notes, err.Error())
	}
	if err := r.k.Finish(r.out); err != nil {
		return r.out, fmt.Errorf("kick %s: %w", r.k.ID, err)
	}
	return r.out, nil
}

// kept returns the directory with work that is not on the remote, if any: what
// was taken out whole, else the live workspace, else what broke off.
func (r *run) kept() string {
	has := func(suffix string) bool {
		return slices.ContainsFunc(r.out.unpublished(), func(a sandbox.Artifact) bool {
			fi, err := os.Lstat(filepath.Join(r.k.Path("out"), string(a)+suffix))
			return err == nil && fi.Mode().IsRegular()
		})
	}
	if has("") {
		return r.k.Path("out")
	}
	if _, err := os.Lstat(filepath.Join(r.work, ".git")); err == nil {
		return r.work
	}
	if has(".partial") {
		return r.k.Path("out")
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
