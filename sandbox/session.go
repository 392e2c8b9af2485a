package sandbox

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// box is one sandbox of some runtime, from its start to its end, as a session
// sees it. The session calls start first. If that went well, it speaks with the
// shim over line, calls the rest in any order, and end once; nothing of the
// sandbox is left when end has returned.
type box interface {
	// start starts the shim, which waits for its configuration, under its
	// limits, and tells the watchdog which of them nothing else enforces. An
	// error leaves nothing behind.
	start(ctx context.Context, dog *watchdog) (line, error)
	// configs are what the shim is told, one after the other.
	configs() ([]frame.Config, error)
	// prove looks at the sandbox from outside, before anything of the agent
	// has run, and at what the shim has tried.
	prove(r frame.Readiness) ([]Property, error)
	// describe tells what runs, in the Result.
	describe(r *Result)
	// look notes what can be known only while the sandbox lives. It is called
	// when the command has ended and the shim waits for the host.
	look()
	// kill ends the sandbox at once, without waiting.
	kill()
	// gone is closed when the first process has ended.
	gone() <-chan struct{}
	// lastWords is what the runtime and the shim said of their own trouble.
	lastWords() string
	// end kills what is left, waits for it, frees what the runtime holds and
	// says what the runtime has counted.
	end() (boxUsage, error)
}

// lingerer is a box that another kick may have after this one. The session calls linger
// before end, if the kick has ended by itself.
type lingerer interface{ linger() }

// line is the way to the shim and back.
type line struct {
	to interface {
		io.Writer
		SetWriteDeadline(time.Time) error
	}
	from io.Reader
}

// boxUsage is what a runtime has counted.
type boxUsage struct {
	oomKills     int64 // processes that the kernel killed for the memory limit
	forkFailures int64 // how often the process limit refused a process
	peak         Usage // as far as it is known
}

// session is one sandbox from its start to its end, whatever the runtime.
type session struct {
	spec   LaunchSpec
	limits Limits // resolved: 0 means none
	mode   frame.Mode
	box    box
	out    *output   // nil where nothing is said
	sink   *sinkCopy // nil where nothing is handed back
	event  func(EventKind)
	pauses bool            // the shim waits for the host when the command has ended
	sends  bool            // the workspace goes to the sandbox as frames
	turn   <-chan struct{} // closed when a sandbox that is ready may be proved and go; nil: at once

	dog watchdog
	to  *frame.Writer

	line     line
	released chan struct{} // closed when the sandbox may go
	running  chan struct{} // closed when the command runs
	exited   chan struct{} // closed when it has ended
	over     chan struct{} // closed when the shim says nothing more
	killed   atomic.Pointer[Reason]
	sending  sync.WaitGroup
	sendErr  error // why the workspace could not be sent; for who has waited for sending

	// What came of it.
	props      []Property
	endErr     error // what could not be removed
	started    time.Time
	exit       *frame.ExitStatus
	saidExited bool
	overDisk   bool   // the shim found the disk limit reached
	oomKills   int64  // and counted these
	problem    string // what the shim said that it could not do
	broke      error  // how it broke the protocol
	complete   bool   // it said goodbye
}

// end notes why the host ends the sandbox, while the command runs. The first
// reason stays.
func (s *session) end(r Reason) {
	select {
	case <-s.exited: // how the command ended is known
	default:
		s.killed.CompareAndSwap(nil, &r)
	}
}

// run starts the sandbox, proves it, lets it go and sees it to its end. The
// error is a failure of the runtime before the command ran; how that fared, and
// what was left, is in s.
func (s *session) run(ctx context.Context) (err error) {
	s.released, s.running, s.exited, s.over = make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	if !s.sends {
		s.dog.workspace = s.spec.Workspace.Dir
	}
	if s.mode != frame.CollectMode {
		s.dog.disk = s.limits.Disk
	}
	if s.line, err = s.box.start(ctx, &s.dog); err != nil {
		return err
	}
	s.to = frame.NewWriter(s.line.to)
	var wg sync.WaitGroup
	wg.Go(func() { s.supervise(ctx) })
	err = s.converse()
	close(s.over)
	wg.Wait()
	if b, ok := s.box.(lingerer); ok && err == nil && ctx.Err() == nil && s.byItself() {
		b.linger()
	}
	var used boxUsage
	used, s.endErr = s.box.end()
	s.sending.Wait()
	if err == nil && s.sendErr != nil && s.problem == "" && s.started.IsZero() {
		err = &Error{Kind: ErrRuntime, Op: "give the sandbox its workspace", Err: s.sendErr}
	}
	used.oomKills += s.oomKills
	if used.oomKills > 0 && (s.exit == nil || s.exit.Code != 0) {
		s.killed.CompareAndSwap(nil, new(ReasonOutOfMemory))
	}
	if used.forkFailures > 0 {
		s.dog.full = true
	}
	s.dog.peak.Memory = max(s.dog.peak.Memory, used.peak.Memory)
	s.dog.peak.Processes = max(s.dog.peak.Processes, used.peak.Processes)
	return err
}

// byItself tells a command that has ended by itself and within its limits, and whose
// sandbox has said all that it had to.
func (s *session) byItself() bool {
	x := s.exit
	return s.complete && x != nil && x.Signal == 0 && x.Error == "" && s.killed.Load() == nil &&
		s.broke == nil && s.problem == "" && !s.overDisk && !s.dog.full && s.oomKills == 0
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
	if s.mode == frame.CollectMode {
		limit = collectTimeout
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	released, running, exited, cancelled, reason := s.released, s.running, s.exited, ctx.Done(), ReasonStartFailed
	for {
		select {
		case <-released:
			released = nil
			if s.mode != frame.CollectMode {
				timer.Reset(checkoutTimeout)
			}
			wg.Go(func() {
				s.dog.run(watching, func(r Reason) {
					s.end(r)
					s.box.kill()
				})
			})
		case <-running:
			running, reason = nil, ReasonTimeout
			timer.Reset(s.limits.Wall)
		case <-exited:
			// What is left to do has a time of its own, and is done however the
			// command ended.
			exited, cancelled, reason = nil, nil, ReasonLost
			timer.Reset(collectTimeout)
		case <-timer.C:
			if exited == nil {
				s.end(reason)
				s.box.kill()
				return
			}
			s.stop(reason)
		case <-cancelled:
			cancelled = nil
			s.stop(ReasonCancelled)
		case <-s.over:
			return
		}
	}
}

// stop asks the shim to end the command, and ends the sandbox if it does not.
func (s *session) stop(r Reason) {
	s.end(r)
	if r == ReasonStartFailed {
		s.box.kill()
		return
	}
	_ = s.line.to.SetWriteDeadline(time.Now().Add(wallGrace))
	_ = s.to.Write(frame.Stop, nil)
	select {
	case <-s.exited:
	case <-s.over:
	case <-time.After(wallGrace):
		s.box.kill()
	}
	_ = s.line.to.SetWriteDeadline(time.Time{})
}

// converse speaks with the shim until it says nothing more.
func (s *session) converse() error {
	configs, err := s.box.configs()
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "configure the sandbox", Err: err}
	}
	for _, c := range configs {
		if s.to.WriteConfig(c) != nil {
			break // a shim that dies meanwhile says why; that is read below
		}
	}
	c := frame.NewConversation(frame.NewReader(bufio.NewReaderSize(s.line.from, 8<<10)), s.mode, s.limits.Bundle)
	for {
		m, err := c.Next()
		switch {
		case errors.Is(err, frame.ErrProtocol):
			s.broke = err
			s.end(ReasonLost)
			s.box.kill()
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			s.broke = err
		}
		if err != nil {
			return s.verdict()
		}
		if err := s.take(m); err != nil {
			s.box.kill()
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
		case <-s.box.gone(): // reading tells how it ended
			return nil
		}
		if err := s.prove(m.Readiness); err != nil {
			return err
		}
		s.event(EventProved)
		close(s.released)
		// If the shim is gone, reading tells.
		_ = s.to.Write(frame.Go, nil)
		if s.sends {
			s.sending.Go(s.send)
		}
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
		s.noteUsage(m.Exit.Usage)
		close(s.exited)
		if s.pauses {
			s.pause()
		}
	case frame.Begin, frame.Data, frame.End:
		s.sink.take(m)
	case frame.Problem:
		s.problem = m.Problem
	case frame.Goodbye:
		s.complete = true
	}
	return nil
}

// send sends the workspace. A sandbox that does not get all of it is ended.
func (s *session) send() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-s.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	if s.sendErr = sendWorkspace(ctx, s.to, s.spec.Workspace); s.sendErr != nil {
		s.box.kill()
	}
}

// noteUsage takes what the shim has seen where nothing outside can look.
func (s *session) noteUsage(u *frame.Usage) {
	if u == nil || !s.sends {
		return
	}
	s.dog.peak = Usage{Memory: u.Memory, Processes: u.Processes, Disk: u.Disk}
	s.dog.full = u.Full
	s.overDisk, s.oomKills = u.DiskLimit, u.OOMKills
}

// pause is called when the command has ended, with everything else in its
// sandbox, and the shim waits for the host's word to go on in the same one.
func (s *session) pause() {
	s.box.look()
	s.sayExited() // who listens cuts the way out
	if s.mode == frame.RunAndCollectMode && !s.sends {
		openUp(context.Background(), s.spec.Workspace.Dir)
	}
	_ = s.to.Write(frame.Ack, nil)
}

// sayExited tells of the command's end, once.
func (s *session) sayExited() {
	if !s.saidExited {
		s.saidExited = true
		s.event(EventExited)
	}
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

// prove has the sandbox looked at from outside, and refuses what is not as
// planned.
func (s *session) prove(r frame.Readiness) (err error) {
	if s.props, err = s.box.prove(r); err != nil {
		return err
	}
	return judge(s.props, s.spec.AcceptWeaker)
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
