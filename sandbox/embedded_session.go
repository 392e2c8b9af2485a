package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// session is one sandbox of the embedded runtime, from its start to its end.
type session struct {
	plan  *plan
	shim  *os.File
	out   *output   // nil where nothing is said
	sink  *sinkCopy // nil where nothing is handed back
	event func(EventKind)
	weak  weakness
	turn  <-chan struct{} // closed when a sandbox that is ready may be proved and go; nil: at once

	proc    *process
	group   *cgroup
	dog     *watchdog
	to      *frame.Writer
	rlimits []frame.Rlimit // those that the host wants to see

	released chan struct{} // closed when the sandbox may go
	running  chan struct{} // closed when the command runs
	over     chan struct{} // closed when the shim says nothing more
	killed   atomic.Pointer[Reason]

	// What came of it.
	props    []Property
	started  time.Time
	exit     *frame.ExitStatus
	problem  string // what the shim said that it could not do
	broke    error  // how it broke the protocol
	complete bool   // it said goodbye
}

// weakness changes a sandbox so that it lacks a property, for the tests of the
// host's checks. Both functions are nil in earnest.
type weakness struct {
	session func(*session)
	process func(*os.ProcAttr)
}

// end notes why the host ends the sandbox. The first reason stays.
func (s *session) end(r Reason) { s.killed.CompareAndSwap(nil, &r) }

// run starts the sandbox, proves it, lets it go and sees it to its end. The
// error is a failure of the runtime; how the command fared is in s.
func (s *session) run(ctx context.Context) (err error) {
	s.released, s.running, s.over = make(chan struct{}), make(chan struct{}), make(chan struct{})
	if err := s.start(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.supervise(ctx) })
	err = s.converse()
	close(s.over)
	wg.Wait()
	s.proc.end()
	return errors.Join(err, s.finish())
}

// start starts the shim and places it under its limits.
func (s *session) start() (err error) {
	p := s.plan
	s.group, err = newCgroup(groupName(p.spec.ID, p.mode), cgroupLimits{p.limits.Memory, p.limits.Processes, p.limits.CPUs})
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "make the control group", Err: err, Remedy: "If another sandbox of this id is running, wait for its end"}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.group.remove())
		}
	}()
	s.dog = &watchdog{workspace: p.spec.Workspace.Dir}
	if p.mode == frame.RunMode {
		s.dog.disk = p.limits.Disk
	}
	if !s.group.limits("memory-limit") {
		if s.dog.memory = p.limits.Memory; s.dog.memory > 0 {
			s.dog.reserve = hostReserve()
		}
	}
	if !s.group.limits("process-limit") {
		s.dog.processes = p.limits.Processes
		p.limitProcesses()
	}
	s.rlimits = slices.Clone(p.jail.Rlimits)
	started := *p // the expectations stay what they are
	if s.weak.session != nil {
		s.weak.session(s)
	}
	var trees []*os.File
	if started.asRoot {
		trees, err = cloneTrees(p.jail.Entries, firstTreeFD)
		if err != nil {
			return &Error{Kind: ErrRuntime, Op: "prepare the mounts", Err: err}
		}
		defer closeAll(trees)
	}
	s.proc, err = startProcess(p, s.shim, trees, s.weak.process)
	if err != nil {
		return startError(err, p.clone)
	}
	p.hostUID, p.hostGID = started.hostUID, started.hostGID
	s.dog.pid = s.proc.pid
	s.to = frame.NewWriter(s.proc.stdin)
	if s.group != nil {
		if err := s.group.add(s.proc.pid); err != nil {
			s.proc.end()
			return &Error{Kind: ErrRuntime, Op: "limit the sandbox", Err: err}
		}
	}
	return nil
}

// supervise ends the sandbox when its time is up, the caller gives up or a
// limit is reached.
func (s *session) supervise(ctx context.Context) {
	watching, stopWatching := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopWatching()
	select {
	case <-s.myTurn(): // its time begins
	case <-s.over:
		return
	case <-ctx.Done():
		s.stop(ReasonCancelled)
		return
	}
	limit := startTimeout
	if s.plan.mode == frame.CollectMode {
		limit = collectTimeout
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	released, running, reason := s.released, s.running, ReasonStartFailed
	for {
		select {
		case <-released:
			released = nil
			if s.plan.mode == frame.RunMode {
				timer.Reset(checkoutTimeout)
			}
			wg.Go(func() {
				s.dog.run(watching, func(r Reason) {
					s.end(r)
					s.proc.kill()
				})
			})
		case <-running:
			running, reason = nil, ReasonTimeout
			timer.Reset(s.plan.limits.Wall)
		case <-timer.C:
			s.stop(reason)
			return
		case <-ctx.Done():
			s.stop(ReasonCancelled)
			return
		case <-s.over:
			return
		}
	}
}

// stop asks the shim to end the command, and ends the sandbox if it does not.
func (s *session) stop(r Reason) {
	s.end(r)
	if r == ReasonStartFailed {
		s.proc.kill()
		return
	}
	_ = s.proc.stdin.SetWriteDeadline(time.Now().Add(wallGrace))
	_ = s.to.Write(frame.Stop, nil)
	select {
	case <-s.over:
	case <-time.After(wallGrace):
		s.proc.kill()
	}
}

// converse speaks with the shim until it says nothing more.
func (s *session) converse() error {
	first, err := s.plan.jailConfig()
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "configure the sandbox", Err: err}
	}
	// A shim that dies meanwhile says why; that is read below.
	if s.to.WriteConfig(first) == nil {
		_ = s.to.WriteConfig(s.plan.config)
	}
	c := frame.NewConversation(frame.NewReader(bufio.NewReaderSize(s.proc.stdout, 8<<10)), s.plan.mode, s.plan.limits.Bundle)
	for {
		m, err := c.Next()
		switch {
		case errors.Is(err, frame.ErrProtocol):
			s.broke = err
			s.end(ReasonLost)
			s.proc.kill()
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			s.broke = err
		}
		if err != nil {
			return s.verdict()
		}
		if err := s.take(m); err != nil {
			s.proc.kill()
			return err
		}
	}
}

// take does what one message asks for.
func (s *session) take(m frame.Message) error {
	switch m.Type {
	case frame.Ready:
		select {
		case <-s.myTurn():
		case <-s.proc.done: // reading tells how it ended
			return nil
		}
		if err := s.prove(m.Readiness); err != nil {
			return err
		}
		s.event(EventProved)
		close(s.released)
		// If the shim is gone, reading tells.
		_ = s.to.Write(frame.Go, nil)
	case frame.Started:
		s.started = time.Now()
		close(s.running)
		s.event(EventStarted)
	case frame.Stdout:
		s.out.write(0, m.Data)
	case frame.Stderr:
		s.out.write(1, m.Data)
	case frame.Look:
		s.dog.lookAtProcesses()
		_ = s.to.Write(frame.Ack, nil)
	case frame.Exit:
		s.exit = &m.Exit
	case frame.Begin, frame.Data, frame.End:
		s.sink.take(m)
	case frame.Problem:
		s.problem = m.Problem
	case frame.Goodbye:
		s.complete = true
	}
	return nil
}

// myTurn is closed when the sandbox may be proved and go.
func (s *session) myTurn() <-chan struct{} {
	if s.turn != nil {
		return s.turn
	}
	now := make(chan struct{})
	close(now)
	return now
}

// prove looks at the sandbox from outside, and refuses what is not as planned.
func (s *session) prove(r frame.Readiness) error {
	shim, err := s.shim.Stat()
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "look at the shim", Err: err}
	}
	self, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "look at this process", Err: err}
	}
	filters, _ := strconv.Atoi(parseStatus(string(self))["Seccomp_filters"])
	var groups []int
	if !s.plan.asRoot {
		if groups, err = os.Getgroups(); err != nil {
			return &Error{Kind: ErrRuntime, Op: "look at this process's groups", Err: err}
		}
		slices.Sort(groups)
	}
	s.props = prove(subject{
		proc:      "/proc/" + strconv.Itoa(s.proc.pid),
		hostUID:   s.plan.hostUID,
		hostGID:   s.plan.hostGID,
		groups:    groups,
		pipes:     s.proc.pipes,
		shim:      shim,
		entries:   s.plan.root.entries,
		rlimits:   s.rlimits,
		filters:   filters,
		readiness: r,
	})
	s.props = append(s.props, s.limitProperties()...)
	return judge(s.props, s.plan.spec.AcceptWeaker)
}

// judge marks what the operator accepted, and names the first property that is
// missing otherwise.
func judge(props []Property, accepted []string) error {
	var missing []string
	var first Property
	for i := range props {
		p := &props[i]
		if p.Status != Missing {
			continue
		}
		if slices.Contains(accepted, p.Name) {
			p.Status = Accepted
			continue
		}
		if missing = append(missing, p.Name); len(missing) == 1 {
			first = *p
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return &Error{Kind: ErrIsolation, Op: strings.Join(missing, ", "), Err: errors.New(first.Evidence), Remedy: first.Remedy}
}

// limitProperties tells how each limit is enforced.
func (s *session) limitProperties() []Property {
	p := s.plan
	limit := func(name string, none bool, otherwise string) Property {
		switch {
		case none:
			return Property{Name: name, Status: NotRequested}
		case s.group.limits(name):
			problem, evidence := s.group.verify(name, s.proc.pid)
			if problem != "" {
				return Property{Name: name, Status: Missing, Evidence: problem, Remedy: remedyOf(name)}
			}
			return Property{Name: name, Status: Enforced, Evidence: evidence}
		case otherwise == "":
			return Property{Name: name, Status: Missing, Evidence: "no control group may be used here, and nothing else limits it", Remedy: remedyOf(name)}
		}
		return Property{Name: name, Status: Enforced, Evidence: otherwise}
	}
	disk := fmt.Sprintf("poller: at most %d bytes in the workspace, measured at least every %v and when its file system fills; tmpfs sizes for the rest", p.limits.Disk, watchMaxDisk)
	if p.spec.Workspace.Dir == "" {
		disk = "tmpfs sizes"
	}
	processes := limit("process-limit", p.limits.Processes == 0, fmt.Sprintf("RLIMIT_NPROC in the user namespace is %d", p.limits.Processes+shimThreads))
	if processes.Status == Enforced {
		processes.Evidence += fmt.Sprintf("; %d of it for the shim's threads", shimThreads)
	}
	return []Property{
		limit("memory-limit", p.limits.Memory == 0, fmt.Sprintf("watchdog: at most %d bytes of resident and shared memory, looked at at least every %v; %d bytes are left to the host", p.limits.Memory, watchMaxMemory, s.dog.reserve)),
		processes,
		limit("cpu-limit", p.limits.CPUs == 0, ""),
		limit("disk-limit", p.limits.Disk == 0, disk),
	}
}

// verdict is the runtime's failure, if the conversation ended in one.
func (s *session) verdict() error {
	if s.problem == "" || s.exit != nil {
		return nil
	}
	// Before the sandbox was let go, the shim's words are its own.
	select {
	case <-s.released:
		return nil
	default:
	}
	name, text, _ := strings.Cut(s.problem, ": ")
	if remedies[name] != "" {
		return &Error{Kind: ErrIsolation, Op: name, Err: errors.New(text), Remedy: remedies[name]}
	}
	return &Error{Kind: ErrRuntime, Op: "build the sandbox", Err: errors.New(s.problem)}
}

// finish takes from the group what it knows, and removes it.
func (s *session) finish() error {
	if s.group.oomKills() > 0 && (s.exit == nil || s.exit.Code != 0) {
		s.end(ReasonOutOfMemory)
	}
	if s.group.forkFailures() > 0 {
		s.dog.full = true
	}
	u := s.group.peak()
	s.dog.peak.Memory = max(s.dog.peak.Memory, u.Memory)
	s.dog.peak.Processes = max(s.dog.peak.Processes, u.Processes)
	return s.group.remove()
}
