package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/openshellapi"
	"github.com/kickhq/kick/internal/resume"
)

// The line to the shim is carried by commands in the sandbox, one after the other as
// they break: a gateway cuts them when it restarts, when the sandbox's supervisor does,
// and when anything between does.

// openShellCut is how long the shim may be out of reach while the sandbox is there.
var openShellCut = 2 * time.Minute // tests wait less

// openShellEnd is how a sandbox ended, or the way to it.
type openShellEnd struct {
	reason   Reason
	why      string
	shimGone bool // and the sandbox is there
}

// errNoServer is a sandbox in which no shim listens.
var errNoServer = errors.New("the shim has ended in the sandbox, which goes on without it")

// execConn is a connection with the shim: the standard streams of a command.
type execConn struct {
	exec   openshellapi.Exec
	cancel context.CancelFunc // ends the command
	log    io.Writer
	rest   []byte
	got    int // bytes, in all
}

// progress is how many bytes a connection brings for certain if it works at all.
const progress = 4 << 10

func (b *openShellBox) connect(ctx context.Context) (*execConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	x, err := b.gateway.Exec(ctx, openshellapi.ExecRequest{Name: b.name(), Command: []string{b.plan.shim(), "line"}})
	if err != nil {
		cancel()
		return nil, shown(err)
	}
	return &execConn{exec: x, cancel: cancel, log: &b.log}, nil
}

func (c *execConn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		e, err := c.exec.Recv()
		if err != nil {
			return 0, shown(err)
		}
		_, _ = c.log.Write(e.Stderr)
		switch {
		case e.Exit == nil:
			c.rest, c.got = e.Stdout, c.got+len(e.Stdout)
		case *e.Exit == frame.NoServer:
			return 0, errNoServer
		default:
			return 0, fmt.Errorf("the connection ended with exit code %d", *e.Exit)
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *execConn) Write(p []byte) (int, error) {
	n := 0
	for chunk := range bytesChunks(p, openshellapi.MaxStdin) {
		if err := c.exec.Send(chunk); err != nil {
			return n, shown(err)
		}
		n += len(chunk)
	}
	return n, nil
}

func (c *execConn) Close() error {
	c.cancel()
	return nil
}

// carry connects with the shim, again and again.
func (b *openShellBox) carry(ctx context.Context) {
	pause, since := 10*time.Millisecond, time.Now()
	for ctx.Err() == nil {
		begun := time.Now()
		conn, err := b.connect(ctx)
		if err == nil {
			err = b.line.Carry(conn)
		}
		if errors.Is(err, resume.ErrEnded) || ctx.Err() != nil {
			return
		}
		if time.Since(begun) > time.Second || conn != nil && conn.got > progress {
			pause, since = 10*time.Millisecond, time.Now()
		}
		gone := errors.Is(err, errNoServer)
		if gone {
			// It may have gone with its sandbox, whose end has a reason that comes later.
			select {
			case <-b.gonech:
			case <-time.After(errorLasts):
			}
		}
		if gone || time.Since(since) > openShellCut {
			b.noteEnd(openShellEnd{ReasonLost, "the line to the sandbox is cut: " + escaped(err.Error()), gone})
			b.line.End()
			return
		}
		if wait(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// attend notes how the sandbox ends, and ends the line then.
func (b *openShellBox) attend(ctx context.Context, lost chan<- loss) {
	defer close(b.gonech)
	for ctx.Err() == nil {
		var last openshellapi.Sandbox
		err := b.gateway.Watch(ctx, b.name(), func(e openshellapi.Event) bool {
			if e.Sandbox != nil {
				last = *e.Sandbox
			}
			return e.Sandbox == nil || !ended(last.Phase)
		})
		words := sandboxWords(last, nil)
		end := openShellEnd{reason: ReasonLost, why: fmt.Sprintf("the sandbox is in the phase %s%s", last.Phase, words)}
		switch {
		case ctx.Err() != nil:
			return
		case openshellapi.CodeOf(err) == openshellapi.CodeNotFound:
			end.why = "the sandbox was deleted"
		case err != nil, !ended(last.Phase):
			if wait(ctx, 500*time.Millisecond) != nil {
				return
			}
			continue
		case strings.Contains(words, "OOMKilled"):
			end.reason = ReasonOutOfMemory
		}
		b.noteEnd(end)
		lost <- loss{end.reason, end.why, openShellRemedy(words)}
		// What the sandbox has said by then is on the way, if anything is.
		_ = wait(ctx, lastBytes)
		b.line.End()
		return
	}
}

// ended reports whether nothing runs in a sandbox any more.
func ended(p openshellapi.Phase) bool {
	switch p {
	case openshellapi.Failed, openshellapi.Completed, openshellapi.Stopped, openshellapi.Deleting:
		return true
	}
	return false
}

// noteEnd keeps the first end, which is the cause of the others.
func (b *openShellBox) noteEnd(e openShellEnd) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending == nil && !b.killed {
		b.ending = &e
	}
}

// errSandboxGone is the work of a sandbox that is not there any more.
var errSandboxGone = fmt.Errorf("its sandbox is gone, and %w", errGone)

// find finds the sandbox that has the work of a run before, of this process or a dead
// one.
func (b *openShellBox) find(ctx context.Context) error {
	b.adopted = true
	s, err := b.gateway.Get(ctx, b.name())
	op := "collect the work of the sandbox " + b.name()
	switch {
	case openshellapi.CodeOf(err) == openshellapi.CodeNotFound:
		return &Error{Kind: ErrRuntime, Op: op, Err: errSandboxGone, Remedy: "What had come back before is kept"}
	case err != nil:
		return b.startError(op, err)
	case s.Labels[labelID] != b.plan.spec.ID || s.Labels[labelOwner] != b.plan.create.Labels[labelOwner]:
		return &Error{Kind: ErrRuntime, Op: op, Err: errors.New("it is not this host's")}
	case ended(s.Phase):
		b.launcher.forget(b.plan.spec.ID)
		return errors.Join(&Error{Kind: ErrRuntime, Op: op, Err: errSandboxGone, Remedy: "What had come back before is kept"}, b.remove())
	}
	return nil
}

// adopt waits until commands can be run in the sandbox, and makes sure that a shim
// listens. greets tells that it is a new one, which has no key yet. An error leaves
// everything, for another attempt.
func (b *openShellBox) adopt(ctx context.Context) (greets bool, err error) {
	if err := b.ready(ctx); err != nil {
		return false, err
	}
	err = b.retrying(ctx, "look for the shim", func() error { return command(ctx, b.gateway, b.name(), nil, b.plan.shim(), "line") })
	var exit *commandExit
	if err == nil || !errors.As(err, &exit) {
		return false, err
	}
	if err := b.upload(ctx); err != nil {
		return false, err
	}
	return true, b.serve(ctx)
}
