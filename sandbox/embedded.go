package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// Embedded is the runtime that needs nothing installed: namespaces, a root file
// system made of the host's program directories, Landlock and a system call
// filter, set up by the shim and checked from outside before the agent runs.
// It works as root, where every kick gets a user of its own, and as an ordinary
// user.
type Embedded struct {
	shim *os.File
	weak weakness
}

var (
	_ Launcher    = (*Embedded)(nil)
	_ Preflighter = (*Embedded)(nil)
	_ Reaper      = (*Embedded)(nil)
)

// EmbeddedConfig configures the embedded runtime.
type EmbeddedConfig struct {
	// Shim is the program cmd/kick-shim, built static for this machine. It is
	// read to its end.
	Shim io.Reader
}

// NewEmbedded returns a launcher that is good for any number of runs. Close
// frees its copy of the shim.
func NewEmbedded(c EmbeddedConfig) (*Embedded, error) {
	if c.Shim == nil {
		return nil, noShim()
	}
	f, err := sealShim(c.Shim)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, noShim()
	}
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "seal the shim", Err: err, Remedy: "The embedded runtime needs Linux with memfd_create: use another runtime"}
	}
	return &Embedded{shim: f}, nil
}

func noShim() error {
	return &Error{Kind: ErrSpec, Op: "embedded runtime", Err: errors.New("there is no shim"), Remedy: "Build kick with make build, which builds the shim first"}
}

// Close frees the launcher. No run may be going on.
func (e *Embedded) Close() error { return e.shim.Close() }

// Run implements Launcher. Without a Workspace.Dir the working directory is a
// tmpfs, and nothing comes back but the output.
func (e *Embedded) Run(ctx context.Context, spec LaunchSpec) (Result, error) {
	res := Result{ExitCode: -1, Reason: ReasonStartFailed, Isolation: Isolation{Runtime: "embedded"}}
	event := func(k EventKind) {
		if spec.OnEvent != nil {
			spec.OnEvent(Event{k, time.Now()})
		}
	}
	err := e.run(ctx, spec, event, &res)
	switch {
	case errors.Is(err, ErrIsolation):
		res.Reason = ReasonIsolation
	case res.Started.IsZero() && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		res.Reason, res.Detail, err = ReasonCancelled, "the run was cancelled before the command started", nil
	}
	if err != nil && res.Detail == "" {
		res.Detail = err.Error()
	}
	res.Finished = time.Now()
	event(EventFinished)
	return res, err
}

func (e *Embedded) run(ctx context.Context, spec LaunchSpec, event func(EventKind), res *Result) error {
	release, err := claim(spec.ID)
	if err != nil {
		return err
	}
	defer release()
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(spec.Command) > 0 {
		p, err := newPlan(spec, frame.RunMode)
		if err != nil {
			return err
		}
		if err := giveWorkspace(ctx, p); err != nil {
			return err
		}
		var early chan *collection
		err = e.command(ctx, p, func(k EventKind) {
			if k == EventStarted && spec.collects() {
				early = e.collectEarly(ctx, spec)
			}
			event(k)
		}, res)
		if res.Started.IsZero() {
			return err // where nothing has run there is nothing to collect
		}
		return errors.Join(err, e.collect(ctx, spec, early, event, res))
	}
	return e.collect(ctx, spec, nil, event, res)
}

// command runs the agent's command and says how it ended.
func (e *Embedded) command(ctx context.Context, p *plan, event func(EventKind), res *Result) error {
	s := &session{plan: p, shim: e.shim, event: event, weak: e.weak, out: newOutput(p.spec.Stdout, p.spec.Stderr, p.limits.Output)}
	err := s.run(ctx)
	res.OutputCut = s.out.finish()
	res.StdoutBytes, res.StderrBytes = s.out.total[0], s.out.total[1]
	res.Isolation.Properties = s.props
	res.Started = s.started
	if err != nil {
		return err
	}
	// A last look, for a command that fails may have done so for lack of space.
	// It costs a walk through the workspace, so others are spared it.
	overDisk := false
	if s.exit == nil || s.exit.Code != 0 || s.exit.Signal != 0 {
		_, overDisk = s.dog.lookAtDisk(context.WithoutCancel(ctx))
	}
	res.Peak = s.dog.peak
	s.outcome(res, overDisk)
	event(EventExited)
	if res.Reason == ReasonLost || res.Reason == ReasonStartFailed && s.exit == nil {
		return &Error{Kind: ErrRuntime, Op: "run the sandbox", Err: errors.New(res.Detail)}
	}
	return nil
}

// outcome translates what the session saw into the result.
func (s *session) outcome(res *Result, overDisk bool) {
	failed := true
	if x := s.exit; x != nil {
		res.ExitCode = x.Code
		res.Reason = ReasonExited
		failed = x.Code != 0
		if x.Signal != 0 {
			res.Reason, res.Signal, res.ExitCode = ReasonSignaled, x.Signal, 128+x.Signal
			res.Detail = fmt.Sprintf("the command was killed by signal %d", x.Signal)
		}
		if x.Error != "" {
			res.Reason, res.Detail = ReasonStartFailed, escaped(x.Error)
			return
		}
	}
	limits := s.plan.limits
	switch killed := s.killed.Load(); {
	case killed != nil:
		res.Reason = *killed
		res.Signal = 0
		res.Detail = map[Reason]string{
			ReasonTimeout:     fmt.Sprintf("the time limit of %v was reached", limits.Wall),
			ReasonCancelled:   "the run was cancelled",
			ReasonOutOfMemory: fmt.Sprintf("the memory limit of %d bytes was reached", limits.Memory),
			ReasonDiskLimit:   fmt.Sprintf("the disk limit of %d bytes was reached", limits.Disk),
			ReasonStartFailed: "the sandbox did not start in time" + s.lastWords(),
		}[*killed]
		if s.dog.why != "" && (res.Reason == ReasonOutOfMemory || res.Reason == ReasonDiskLimit) {
			res.Detail = s.dog.why
		}
		if s.broke != nil {
			res.Detail = s.broke.Error()
		}
	case s.exit == nil:
		res.Reason, res.Detail = ReasonLost, "the sandbox ended without saying how"+s.lastWords()
		if s.started.IsZero() {
			res.Reason, res.Detail = ReasonStartFailed, "the sandbox ended before the command started"+s.lastWords()
		}
	case failed && overDisk:
		res.Reason, res.Detail = ReasonDiskLimit, cmp.Or(s.dog.why, fmt.Sprintf("the disk limit of %d bytes was reached", limits.Disk))
	case failed && s.dog.full:
		res.Reason, res.Detail = ReasonProcessLimit, fmt.Sprintf("the limit of %d processes was reached", limits.Processes)
	}
}

// lastWords is what the shim said of its own trouble, for messages.
func (s *session) lastWords() string {
	words := s.problem
	if words == "" {
		words = s.proc.log.String()
	}
	if words == "" {
		return ""
	}
	return ": " + escaped(words)
}

// collects reports whether there are artifacts to make, and a place for them.
func (s *LaunchSpec) collects() bool { return s.Workspace.Sink != nil && s.Workspace.Dir != "" }

// collection is the sandbox in which the artifacts are made.
type collection struct {
	s    *session
	turn chan struct{} // closed when it may look at the workspace
	done chan struct{} // closed when it has ended, with err
	err  error
}

// newCollection starts a fresh sandbox that has the workspace read-only and no
// way out. It waits for its turn.
func (e *Embedded) newCollection(ctx context.Context, spec LaunchSpec) (*collection, error) {
	spec.Egress, spec.Network = Egress{}, NetworkNone
	p, err := newPlan(spec, frame.CollectMode)
	if err != nil {
		return nil, err
	}
	if err := giveWorkspace(ctx, p); err != nil {
		return nil, err
	}
	c := &collection{turn: make(chan struct{}), done: make(chan struct{})}
	c.s = &session{plan: p, shim: e.shim, sink: &sinkCopy{sink: spec.Workspace.Sink}, weak: e.weak, event: func(EventKind) {}, turn: c.turn}
	go func() {
		defer close(c.done)
		c.err = c.s.run(ctx)
	}()
	return c, nil
}

// run lets the sandbox go and waits for its end. It reports whether the sandbox
// began: one that could not be started, or that died waiting, has done nothing.
func (c *collection) run(ctx context.Context) (began bool) {
	openUp(ctx, c.s.plan.spec.Workspace.Dir)
	close(c.turn)
	<-c.done
	select {
	case <-c.s.released:
		return true
	default:
		return false
	}
}

// collectEarly makes the collection ready while the agent runs, so that nobody
// waits for it later. What comes is nil if it could not be had now.
func (e *Embedded) collectEarly(ctx context.Context, spec LaunchSpec) chan *collection {
	early := make(chan *collection, 1)
	go func() {
		c, err := e.newCollection(context.WithoutCancel(ctx), spec)
		if err != nil {
			c = nil
		}
		early <- c
	}()
	return early
}

// collect makes the artifacts. It comes after every end of the agent, also after
// a cancel: work is never lost for the way in which a kick ended.
func (e *Embedded) collect(ctx context.Context, spec LaunchSpec, early <-chan *collection, event func(EventKind), res *Result) error {
	only := len(spec.Command) == 0
	if !spec.collects() {
		if only {
			return specError("command", errors.New("there is none, and no workspace and sink for its artifacts"), "Name one or the other")
		}
		return nil
	}
	if !only {
		ctx = context.WithoutCancel(ctx) // it has a deadline of its own
	}
	var c *collection
	if early != nil {
		if c = <-early; c != nil && !c.run(ctx) {
			c = nil
		}
	}
	if c == nil {
		var err error
		if c, err = e.newCollection(ctx, spec); err != nil {
			return err
		}
		c.run(ctx)
	}
	s, err := c.s, c.err
	s.sink.breakOff("the sandbox ended before it was whole")
	res.Artifacts, res.Missing = s.sink.stored, s.sink.missing
	if only {
		res.Isolation.Properties = s.props
	}
	if err == nil && !s.complete {
		why := "it ended early" + s.lastWords()
		if killed := s.killed.Load(); killed != nil {
			why = string(*killed) + s.lastWords()
		}
		err = &Error{Kind: ErrRuntime, Op: "collect the work", Err: errors.New(why), Remedy: "The workspace is kept: kick salvage tries again"}
	}
	if err != nil {
		res.Missing = append(res.Missing, "artifacts: "+err.Error())
		if only {
			return err
		}
		return nil
	}
	if only {
		res.Reason, res.ExitCode = ReasonExited, 0
	}
	event(EventBundled)
	return nil
}

// giveWorkspace makes the workspace the sandbox user's own, where that is not
// the caller.
func giveWorkspace(ctx context.Context, p *plan) error {
	if !p.asRoot || p.spec.Workspace.Dir == "" {
		return nil
	}
	if err := chownTree(ctx, p.spec.Workspace.Dir, p.hostUID, p.hostGID); err != nil {
		return &Error{Kind: ErrRuntime, Op: "give the workspace to the sandbox's user", Err: err}
	}
	return nil
}

// claimed are the ids of the sandboxes that this process runs.
var claimed sync.Map

// lingers is how long a name may stay after its release: a child between fork
// and exec holds a copy of it, and nobody is told when that ends. Measured
// under load: some milliseconds.
const lingers = time.Second

// claim makes sure that no other sandbox of this id runs, here or in another
// process. The name is an abstract Unix socket: it goes with the process,
// whatever ends it.
func claim(id string) (release func(), err error) {
	if !idForm.MatchString(id) {
		return func() {}, nil // the specification's check has words for it
	}
	busy := func(err error) error {
		return &Error{Kind: ErrSpec, Op: "id " + id, Err: err, Remedy: "If a sandbox of this id is running, wait for its end"}
	}
	if _, held := claimed.LoadOrStore(id, true); held {
		return nil, busy(unix.EADDRINUSE)
	}
	name := &net.UnixAddr{Name: fmt.Sprintf("@kick-sandbox/%d/%s", os.Geteuid(), id), Net: "unixgram"}
	c, err := net.ListenUnixgram("unixgram", name)
	for until := time.Now().Add(lingers); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
		c, err = net.ListenUnixgram("unixgram", name)
	}
	if err != nil {
		claimed.Delete(id)
		return nil, busy(err)
	}
	return func() {
		_ = c.Close() // no file is behind it
		claimed.Delete(id)
	}, nil
}

// preflights counts, so that several at once have different names.
var preflights atomic.Int64

// Preflight implements Preflighter: it runs /bin/true in a sandbox of its own.
func (e *Embedded) Preflight(ctx context.Context) (Isolation, error) {
	res, err := e.Run(ctx, LaunchSpec{
		ID:      fmt.Sprintf("p%d-%d", os.Getpid(), preflights.Add(1)),
		Command: []string{"/bin/true"},
		Network: NetworkNone,
	})
	if err == nil && res.ExitCode != 0 {
		err = &Error{Kind: ErrRuntime, Op: "run /bin/true in a sandbox", Err: errors.New(res.Detail)}
	}
	return res.Isolation, err
}
