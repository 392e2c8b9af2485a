package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// engine is what the runtimes differ in. How a kick goes is the same for all,
// and in this file.
type engine interface {
	// isolation names the runtime for the Result.
	isolation() Isolation
	// check looks for what this runtime in particular cannot do.
	check(spec *LaunchSpec) error
	// together tells that the artifacts are made in the sandbox in which the
	// command has run, unless it was lost. Otherwise they have one of their own.
	together() bool
	// sends tells that the workspace goes to the sandbox as frames, since there is
	// no directory that both see. Then the command and the artifacts are together.
	sends() bool
	// instead is a launcher that can make the artifacts when this one cannot
	// any more; nil if there is none.
	instead() Launcher
	// newBox plans a sandbox and gives it the workspace. Nothing is started.
	newBox(ctx context.Context, spec LaunchSpec, mode frame.Mode) (box, error)
}

// keeper is an engine that may keep what its sandboxes have in common, and what a
// kick leaves, beside them.
type keeper interface {
	// hasBase tells that sandboxes have the base's objects without their being sent.
	hasBase() bool
	// forget removes a kick's workspace, if it is kept. Nothing needs it any more.
	forget(spec LaunchSpec) error
}

// policyEnforcer is an engine that enforces Egress.Policy.
type policyEnforcer interface{ enforcesPolicy() }

// runKick is Launcher.Run for any engine.
func runKick(ctx context.Context, e engine, spec LaunchSpec) (Result, error) {
	res := Result{ExitCode: -1, Reason: ReasonStartFailed, Isolation: e.isolation()}
	k := &kick{engine: e, spec: spec, res: &res}
	err := k.run(ctx)
	switch {
	case errors.Is(err, ErrIsolation):
		res.Reason = ReasonIsolation
	case len(spec.Command) == 0: // then a nil error says that the artifacts were made
	case res.Started.IsZero() && ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		res.Reason, res.Detail, err = ReasonCancelled, "the run was cancelled before the command started", besides(err, ctx.Err())
	}
	if err != nil && res.Detail == "" {
		res.Detail = err.Error()
	}
	res.Finished = time.Now()
	k.event(EventFinished)
	return res, err
}

// besides is what else went wrong than the end of a context, as that the sandbox is
// there still. It is one of several joined errors.
func besides(err, end error) error {
	_, whole := err.(*Error)                                              //nolint:errorlint // whatever it wraps is its own
	if several, ok := err.(interface{ Unwrap() []error }); ok && !whole { //nolint:errorlint // errors.Join's, of this very level
		var others []error
		for _, e := range several.Unwrap() {
			others = append(others, besides(e, end))
		}
		return errors.Join(others...)
	}
	if errors.Is(err, end) {
		return nil
	}
	return err
}

// runShell is the Preflight of a runtime with images: their shell runs, in what the
// runtime calls its sandboxes.
func runShell(ctx context.Context, l Launcher, image, in string, ws Workspace) (Isolation, error) {
	res, err := l.Run(ctx, LaunchSpec{
		ID:        fmt.Sprintf("p%d-%d", os.Getpid(), preflights.Add(1)),
		Agent:     "preflight",
		Image:     image,
		Command:   []string{"/bin/sh", "-c", ":"},
		Network:   NetworkNone,
		Workspace: ws,
	})
	if err == nil && res.ExitCode != 0 {
		err = &Error{Kind: ErrRuntime, Op: "run /bin/sh in " + in + " of " + image, Err: errors.New(res.Detail)}
	}
	return res.Isolation, err
}

// kick is one run of a launcher.
type kick struct {
	engine engine
	spec   LaunchSpec
	limits Limits
	res    *Result
	early  chan *collection // the sandbox for the artifacts, made while the command runs
}

func (k *kick) event(kind EventKind) {
	if k.spec.OnEvent != nil {
		k.spec.OnEvent(Event{Kind: kind, Time: time.Now()})
	}
}

func (k *kick) run(ctx context.Context) error {
	release, err := claim(k.spec.ID)
	if err != nil {
		return err
	}
	defer release()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkSpec(&k.spec); err != nil {
		return err
	}
	if k.engine.sends() {
		if err := checkSent(&k.spec); err != nil {
			return err
		}
	}
	if _, ok := k.engine.(policyEnforcer); !ok && k.spec.Egress.Policy != "" {
		return specError("egress policy", errors.New("this runtime enforces none by itself"), "Give the socket of a gateway that does")
	}
	if err := k.engine.check(&k.spec); err != nil {
		return err
	}
	k.limits = resolveLimits(k.spec.Limits)
	if len(k.spec.Command) == 0 {
		if !k.collects() {
			return specError("command", errors.New("there is none, and no workspace and sink for its artifacts"), "Name one or the other")
		}
		if k.engine.sends() {
			// What is not out when such a sandbox ends is gone with it. As after a
			// command, there is a deadline.
			ctx = context.WithoutCancel(ctx)
		}
		return errors.Join(k.collect(ctx, nil), k.forget())
	}
	s, err := k.command(ctx)
	if k.collects() && !k.res.Started.IsZero() { // where nothing has run there is nothing to collect
		err = errors.Join(err, k.collect(context.WithoutCancel(ctx), s)) // it has a deadline of its own
	}
	return errors.Join(err, k.forget())
}

// forget removes what the engine keeps of the kick, when all of it has come back.
// Otherwise another attempt may have more luck, and Reap removes it when the
// workspace on this host is gone; as where it cannot be removed now, which is no
// reason to give up work that is here.
func (k *kick) forget() error {
	e, ok := k.engine.(keeper)
	if !ok || len(k.res.Missing) > 0 {
		return nil
	}
	err := e.forget(k.spec)
	if err != nil && len(k.res.Artifacts) > 0 {
		k.res.Detail = cmp.Or(k.res.Detail, err.Error())
		return nil
	}
	return err
}

// collects reports whether there are artifacts to make, and a place for them.
func (k *kick) collects() bool { return k.spec.Workspace.Sink != nil && k.spec.Workspace.Dir != "" }

// command runs the agent's command and says how it ended.
func (k *kick) command(ctx context.Context) (*session, error) {
	mode := frame.RunMode
	event := k.event
	var sink *sinkCopy
	switch {
	case !k.collects():
	case k.engine.together():
		mode, sink = frame.RunAndCollectMode, &sinkCopy{sink: k.spec.Workspace.Sink}
	default:
		event = func(kind EventKind) {
			if kind == EventStarted {
				k.collectEarly(ctx)
			}
			k.event(kind)
		}
	}
	b, err := k.engine.newBox(ctx, k.spec, mode)
	if err != nil {
		return nil, err
	}
	res, spec := k.res, k.spec
	if e, ok := k.engine.(keeper); ok && e.hasBase() {
		spec.Workspace.Objects = ""
	}
	s := &session{spec: spec, limits: k.limits, mode: mode, box: b, sink: sink, event: event, pauses: k.engine.together(), sends: k.engine.sends() && k.spec.Workspace.Dir != "",
		out: newOutput(k.spec.Stdout, k.spec.Stderr, k.limits.Output)}
	err = s.run(ctx)
	b.describe(res)
	k.spec.Image = res.Image // a name may mean another one by the time that another sandbox is made
	res.OutputCut = s.out.finish()
	res.StdoutBytes, res.StderrBytes = s.out.total[0], s.out.total[1]
	res.Isolation.Properties = s.props
	res.Started = s.started
	if err != nil {
		return s, errors.Join(err, s.endErr)
	}
	// A last look, for a command that fails may have done so for lack of space.
	// It costs a walk through the workspace, so others are spared it.
	overDisk := false
	if s.exit == nil || s.exit.Code != 0 || s.exit.Signal != 0 {
		_, overDisk = s.dog.lookAtDisk(context.WithoutCancel(ctx))
	}
	overDisk = overDisk || s.overDisk
	res.Peak = s.dog.peak
	s.outcome(res, overDisk)
	s.sayExited()
	if res.Reason == ReasonLost || res.Reason == ReasonStartFailed && s.exit == nil {
		return s, errors.Join(&Error{Kind: ErrRuntime, Op: "run the sandbox", Err: errors.New(res.Detail), Remedy: s.dog.remedy}, s.endErr)
	}
	return s, s.endErr
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
	limits := s.limits
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
		if s.dog.why != "" && (res.Reason == ReasonOutOfMemory || res.Reason == ReasonDiskLimit || res.Reason == ReasonLost) {
			res.Detail = s.dog.why
		}
		if s.broke != nil && res.Detail == "" {
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
		words = s.box.lastWords()
	}
	if words == "" {
		return ""
	}
	return ": " + escaped(words)
}

// collection is the sandbox in which the artifacts are made.
type collection struct {
	s    *session
	turn chan struct{} // closed when it may look at the workspace
	done chan struct{} // closed when it has ended, with err
	err  error
}

// newCollection starts a fresh sandbox that has the workspace read-only and no
// way out. It waits for its turn.
func (k *kick) newCollection(ctx context.Context, sink *sinkCopy) (*collection, error) {
	spec := k.spec
	spec.Egress, spec.Network = Egress{}, NetworkNone
	b, err := k.engine.newBox(ctx, spec, frame.CollectMode)
	if err != nil {
		return nil, err
	}
	c := &collection{turn: make(chan struct{}), done: make(chan struct{})}
	c.s = &session{spec: spec, limits: k.limits, mode: frame.CollectMode, box: b, sink: sink, event: func(EventKind) {}, turn: c.turn}
	go func() {
		defer close(c.done)
		c.err = c.s.run(ctx)
	}()
	return c, nil
}

// run lets the sandbox go and waits for its end. It reports whether the sandbox
// began: one that could not be started, or that died waiting, has done nothing.
func (c *collection) run(ctx context.Context) (began bool) {
	openUp(ctx, c.s.spec.Workspace.Dir)
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
func (k *kick) collectEarly(ctx context.Context) {
	k.early = make(chan *collection, 1)
	go func() {
		c, err := k.newCollection(context.WithoutCancel(ctx), &sinkCopy{sink: k.spec.Workspace.Sink})
		if err != nil {
			c = nil
		}
		k.early <- c
	}()
}

// collect makes the artifacts. It comes after every end of the agent, also after
// a cancel: work is never lost for the way in which a kick ended. The session is
// the command's, which may have made them already; nil if there is no command.
func (k *kick) collect(ctx context.Context, command *session) error {
	h := k.handBack(ctx, command)
	res, only := k.res, command == nil
	if h.sink != nil {
		h.sink.breakOff("the sandbox ended before it was whole")
		res.Artifacts, res.Missing = h.sink.stored, h.sink.missing
		if h.err != nil {
			res.Checkpoint = h.sink.checkpoint
		}
	}
	if only {
		res.Isolation.Properties = h.props
	}
	if h.err != nil {
		res.Missing, res.Gone = append(res.Missing, "artifacts: "+h.err.Error()), errors.Is(h.err, errGone)
		if only {
			return h.err
		}
		return nil
	}
	if only {
		res.Reason, res.ExitCode = ReasonExited, 0
	}
	k.event(EventBundled)
	return nil
}

// errGone is the work of a sandbox that is not there any more.
var errGone = errors.New("nothing else had the work")

// handedBack is what a sandbox has handed back.
type handedBack struct {
	sink  *sinkCopy // nil: there was no sandbox
	props []Property
	err   error // why it is not all
}

func (s *session) handedBack(err error) handedBack {
	if err == nil && s.mode == frame.CollectMode {
		err = s.endErr
	}
	if err == nil && !s.complete {
		why := "it ended early" + s.lastWords()
		if killed := s.killed.Load(); killed != nil {
			why = string(*killed) + s.lastWords()
		}
		err = &Error{Kind: ErrRuntime, Op: "collect the work", Err: errors.New(why), Remedy: "The workspace is kept: kick salvage tries again"}
	}
	return handedBack{s.sink, s.props, err}
}

// handBack finds the sandbox that has made the artifacts, or makes one.
func (k *kick) handBack(ctx context.Context, command *session) handedBack {
	sink := &sinkCopy{sink: k.spec.Workspace.Sink}
	if command != nil && command.mode == frame.RunAndCollectMode {
		if command.complete {
			return command.handedBack(nil)
		}
		// What it could not make, another sandbox makes.
		sink = command.sink.again("the sandbox was lost")
	}
	if k.early != nil {
		if c := <-k.early; c != nil && c.run(ctx) {
			return c.s.handedBack(c.err)
		}
	}
	c, err := k.newCollection(ctx, sink)
	if err == nil && c.run(ctx) {
		return c.s.handedBack(c.err)
	}
	if other := k.engine.instead(); other != nil {
		return k.handBackElsewhere(ctx, other, sink)
	}
	if err != nil {
		return handedBack{sink: sink, err: err}
	}
	return c.s.handedBack(c.err)
}

// handBackElsewhere has another launcher make the artifacts. The sandbox of the
// command is dead; only its runtime does not answer.
func (k *kick) handBackElsewhere(ctx context.Context, other Launcher, sink *sinkCopy) handedBack {
	spec := k.spec
	spec.ID = spec.ID[:min(len(spec.ID), 17)] + "-s"
	spec.Command, spec.Image, spec.OnEvent = nil, "", nil
	spec.Network, spec.Egress = NetworkNone, Egress{}
	spec.Workspace.Sink = &restOf{sink}
	res, err := other.Run(ctx, spec)
	sink.missing = append(sink.missing, res.Missing...)
	return handedBack{sink, res.Isolation.Properties, err}
}

// restOf is a sink for what another sandbox has not made yet.
type restOf struct{ copy *sinkCopy }

func (r *restOf) Create(a Artifact, name string) (SinkWriter, error) {
	if r.copy.had[cmp.Or(name, string(a))] {
		return discard{}, nil
	}
	w, err := r.copy.sink.Create(a, name)
	if err != nil {
		return nil, err
	}
	return &counted{w, r.copy, a}, nil
}

// counted notes an artifact that is whole.
type counted struct {
	SinkWriter
	copy *sinkCopy
	a    Artifact
}

func (c *counted) Close() error {
	err := c.SinkWriter.Close()
	if err == nil {
		c.copy.stored = append(c.copy.stored, c.a)
	}
	return err
}

// discard takes an artifact that is there already.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }
func (discard) Abort() error                { return nil }

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
	release, err = claimNow(id)
	for until := time.Now().Add(lingers); errors.Is(err, errLingers) && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
		release, err = claimNow(id)
	}
	if err != nil {
		return nil, &Error{Kind: ErrSpec, Op: "id " + id, Err: unix.EADDRINUSE, Remedy: "If a sandbox of this id is running, wait for its end"}
	}
	return release, nil
}

// errLingers is a claim that another process has, or that has just ended.
var errLingers = errors.New("the id is claimed")

// claimNow claims an id without waiting.
func claimNow(id string) (release func(), err error) {
	if _, held := claimed.LoadOrStore(id, true); held {
		return nil, errors.New("a sandbox of this id runs in this process")
	}
	name := &net.UnixAddr{Name: fmt.Sprintf("@kick-sandbox/%d/%s", os.Geteuid(), id), Net: "unixgram"}
	c, err := net.ListenUnixgram("unixgram", name)
	if err != nil {
		claimed.Delete(id)
		if errors.Is(err, unix.EADDRINUSE) {
			err = errLingers
		}
		return nil, err
	}
	return func() {
		_ = c.Close() // no file is behind it
		claimed.Delete(id)
	}, nil
}
