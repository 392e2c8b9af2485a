package openshelltest

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/openshellapi/wire"
	"github.com/kickhq/kick/internal/openshelltest/relay"
)

// ExecSandboxInteractive implements the call (Running commands).
func (g *Gateway) ExecSandboxInteractive(s grpc.BidiStreamingServer[wire.ExecSandboxInput, wire.ExecSandboxEvent]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	q := first.GetStart()
	switch {
	case q == nil:
		return invalid("the first message must be start")
	case q.GetSandbox() == "" || len(q.GetCommand()) == 0:
		return invalid("sandbox and command are required")
	}
	err = errors.Join(checkScope(q.GetWorkspaceScope()), checkArguments(q.GetCommand(), 1024), checkEnvironment(q.GetEnvironment()))
	if err != nil {
		return status.Convert(err).Err()
	}
	b, err := g.find(q.GetSandbox())
	if err != nil {
		return err
	}
	if snapshot, _ := b.snapshot(); snapshot.GetStatus().GetPhase() != wire.SandboxPhase_SANDBOX_PHASE_READY {
		return status.Error(codes.FailedPrecondition, "sandbox is not ready")
	}
	if err := g.options.Faults.gap(); err != nil {
		return err
	}
	c, err := b.supervisor(s)
	if err != nil {
		return err
	}
	defer c.Close()
	w := frame.NewWriter(c)
	if err := ask(w, relay.Request{Argv: b.shell(q), Env: b.environment()}); err != nil {
		return status.Error(codes.Unavailable, "supervisor session lost")
	}
	go passStdin(s, w, c)
	x := &execution{s: s, faults: g.options.Faults}
	if d := q.GetExecutionTimeout().AsDuration(); d > 0 {
		x.deadline = time.AfterFunc(d, func() { _ = c.Close() })
		defer x.deadline.Stop()
	}
	return x.pass(frame.NewReader(c))
}

// supervisor takes a connection that waits for a command.
func (b *box) supervisor(s grpc.ServerStream) (net.Conn, error) {
	select {
	case c := <-b.idle:
		return c, nil
	case <-time.After(patience):
		return nil, status.Error(codes.Unavailable, "supervisor session not connected")
	case <-s.Context().Done():
		return nil, status.FromContextError(s.Context().Err()).Err()
	}
}

// shell is the command as the gateway puts it together: a text for bash.
func (b *box) shell(q *wire.ExecSandboxRequest) []string {
	var text strings.Builder
	if d := q.GetWorkdir(); d != "" {
		text.WriteString("cd " + quoted(d) + " && ")
	}
	var env []string
	for k, v := range q.GetEnvironment() {
		env = append(env, k+"="+quoted(v)+" ")
	}
	slices.Sort(env)
	text.WriteString(strings.Join(env, ""))
	for i, a := range q.GetCommand() {
		if i > 0 {
			text.WriteByte(' ')
		}
		text.WriteString(quoted(a))
	}
	how := "-lc"
	if q.GetNoLoginShell() {
		how = "-c"
	}
	return []string{"/bin/bash", how, text.String()}
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// passStdin passes the caller's input on. When the caller goes away, so does the
// connection, and with it the command.
func passStdin(s grpc.BidiStreamingServer[wire.ExecSandboxInput, wire.ExecSandboxEvent], w *frame.Writer, c net.Conn) {
	for {
		m, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			_ = w.Write(relay.EOF, nil) // who is gone needs no end
			return
		case err != nil:
			c.Close()
			return
		}
		if _, err := w.Stream(relay.Stdin).Write(m.GetStdin()); err != nil {
			return
		}
	}
}

// execution passes a command's output on.
type execution struct {
	s        grpc.BidiStreamingServer[wire.ExecSandboxInput, wire.ExecSandboxEvent]
	faults   *Faults
	deadline *time.Timer
	sent     int64
}

func (x *execution) pass(r *frame.Reader) error {
	for {
		t, p, err := r.Read()
		switch {
		case err != nil && x.deadline != nil && !x.deadline.Stop():
			return x.exit(124) // synthetic, and in good order
		case err != nil:
			return status.Error(codes.Unavailable, "supervisor session lost")
		case t == frame.Exit:
			var e relay.Exit
			if err := json.Unmarshal(p, &e); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			return x.exit(int32(e.Code))
		}
		out := &wire.ExecOutput{Data: slices.Clone(p)}
		m := &wire.ExecSandboxEvent{Payload: &wire.ExecSandboxEvent_Stdout{Stdout: out}}
		if t == frame.Stderr {
			m.Payload = &wire.ExecSandboxEvent_Stderr{Stderr: out}
		}
		if err := x.s.Send(m); err != nil {
			return err
		}
		x.sent += int64(len(p))
		if n := x.faults.ExecEnds; n > 0 && x.sent >= n {
			return nil // in good order, and without an exit
		}
	}
}

func (x *execution) exit(code int32) error {
	if c := x.faults.ExecExit; c != nil {
		code = *c
	}
	if err := x.s.Send(&wire.ExecSandboxEvent{Payload: &wire.ExecSandboxEvent_Exit{Exit: &wire.ExecExit{ExitCode: code}}}); err != nil {
		return err
	}
	if x.faults.AfterExit {
		return x.s.Send(&wire.ExecSandboxEvent{Payload: &wire.ExecSandboxEvent_Stdout{Stdout: &wire.ExecOutput{Data: []byte("more")}}})
	}
	return nil
}
