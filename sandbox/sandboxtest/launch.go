package sandboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

// outcome is a finished run.
type outcome struct {
	sandbox.Result
	err            error
	stdout, stderr string
	events         []sandbox.EventKind
}

// launched is a run that goes on.
type launched struct {
	t              *testing.T
	stdout, stderr *watched
	started        chan struct{} // closed with EventStarted
	done           chan struct{}
	out            outcome
	cancel         context.CancelFunc
}

// start starts a run and does not wait for it.
func (s *suite) start(t *testing.T, spec sandbox.LaunchSpec) *launched {
	t.Helper()
	return s.startWith(t, s.launcher, spec)
}

func (s *suite) startWith(t *testing.T, l sandbox.Launcher, spec sandbox.LaunchSpec) *launched {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &launched{t: t, stdout: newWatched(), stderr: newWatched(), started: make(chan struct{}), done: make(chan struct{}), cancel: cancel}
	if spec.Stdout == nil {
		spec.Stdout = r.stdout
	}
	if spec.Stderr == nil {
		spec.Stderr = r.stderr
	}
	spec.OnEvent = func(e sandbox.Event) {
		if e.Kind == sandbox.EventWaiting {
			return // as often as the runtime lets it wait
		}
		r.out.events = append(r.out.events, e.Kind)
		if e.Kind == sandbox.EventStarted {
			close(r.started)
		}
	}
	go func() {
		defer close(r.done)
		r.out.Result, r.out.err = l.Run(ctx, spec)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// patience is how long the suite waits for what takes a second on an idle
// machine. It ends a test that would hang, and decides nothing.
var patience = 90 * time.Second

// wait waits for the end of the run.
func (r *launched) wait() outcome {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.t.Fatalf("the run has not ended after %v; stdout %q, stderr %q", patience, clip(r.stdout.String()), clip(r.stderr.String()))
	}
	r.out.stdout, r.out.stderr = r.stdout.String(), r.stderr.String()
	return r.out
}

// waitFor waits until the command has written text to stdout.
func (r *launched) waitFor(text string) {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		changed := r.stdout.changed()
		if strings.Contains(r.stdout.String(), text) {
			return
		}
		select {
		case <-changed:
		case <-r.done:
			if strings.Contains(r.stdout.String(), text) {
				return
			}
			r.t.Fatalf("the run ended without %q: %v %s, stdout %q, stderr %q", text, r.out.err, r.out.Detail, clip(r.stdout.String()), clip(r.stderr.String()))
		case <-timeout:
			r.t.Fatalf("no %q after %v; stdout %q, stderr %q", text, patience, clip(r.stdout.String()), clip(r.stderr.String()))
		}
	}
}

// run runs to the end; an error of the runtime fails the test.
func (s *suite) run(t *testing.T, spec sandbox.LaunchSpec) outcome {
	t.Helper()
	o := s.start(t, spec).wait()
	if o.err != nil {
		t.Fatalf("run: %v", o.err)
	}
	return o
}

// succeed is run for a command that must exit with 0.
func (s *suite) succeed(t *testing.T, spec sandbox.LaunchSpec) outcome {
	t.Helper()
	o := s.run(t, spec)
	if o.Reason != sandbox.ReasonExited || o.ExitCode != 0 {
		t.Fatalf("the command ended with %s, exit code %d (%s); stdout %q, stderr %q", o.Reason, o.ExitCode, o.Detail, clip(o.stdout), clip(o.stderr))
	}
	return o
}

// ask runs the probe and returns its answers by their question.
func (s *suite) ask(t *testing.T, spec sandbox.LaunchSpec) map[string]string {
	t.Helper()
	o := s.succeed(t, spec)
	answers := map[string]string{}
	if err := json.Unmarshal([]byte(o.stdout), &answers); err != nil {
		t.Fatalf("answers of the probe: %v: %q, stderr %q", err, clip(o.stdout), clip(o.stderr))
	}
	return answers
}

func clip(s string) string {
	if len(s) > 2000 {
		return s[:1000] + "…" + s[len(s)-1000:]
	}
	return s
}

// watched is a buffer whose growth can be waited for.
type watched struct {
	mu   sync.Mutex
	b    bytes.Buffer
	grew chan struct{}
}

func newWatched() *watched { return &watched{grew: make(chan struct{})} }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.grew)
	w.grew = make(chan struct{})
	return w.b.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// changed returns a channel that is closed with the next write.
func (w *watched) changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.grew
}

// childEnv names a variable that makes TestLauncher run one sandbox and nothing
// else: for tests that kill the launcher, or look at all that a process leaves.
const childEnv = "KICK_SANDBOXTEST_CHILD"

// childSpec is the sandbox of a child, as JSON in childEnv.
type childSpec struct {
	ID, Image, Dir string
	Command        []string
	Env            map[string]string
}

func runChild(t *testing.T, h Harness, spec string) {
	var c childSpec
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		t.Fatal(err)
	}
	l, err := h.New()
	if err != nil {
		t.Fatal(err)
	}
	res, err := l.Run(t.Context(), sandbox.LaunchSpec{
		ID: c.ID, Image: c.Image, Command: c.Command, Env: c.Env, Workspace: sandbox.Workspace{Dir: c.Dir},
		Stdout: os.Stdout, Stderr: os.Stderr, Limits: sandbox.Limits{Wall: time.Minute},
	})
	if err != nil || res.Reason != sandbox.ReasonExited || res.ExitCode != 0 {
		t.Fatalf("run in a child process: %v, %s, exit code %d, %s", err, res.Reason, res.ExitCode, res.Detail)
	}
}

// child is another process with a launcher of its own.
type child struct {
	cmd  *exec.Cmd
	out  *watched
	done chan struct{}
	err  error
	tmp  string
}

// startChild runs spec in another process, whose temporary files go to a
// directory of their own.
func (s *suite) startChild(t *testing.T, spec sandbox.LaunchSpec) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(childSpec{spec.ID, spec.Image, spec.Workspace.Dir, spec.Command, spec.Env})
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(s.test, "/")
	c := &child{out: newWatched(), done: make(chan struct{}), tmp: filepath.Join(t.TempDir(), "tmp")}
	if err := os.Mkdir(c.tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command(exe, "-test.run=^"+name+"$", "-test.count=1", "-test.v")
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(b), "TMPDIR="+c.tmp, ProbeEnv+"="+s.probe)
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		c.err = c.cmd.Wait()
	}()
	t.Cleanup(c.kill)
	return c
}

// kill kills the child and nothing else, the way the kernel would when it is
// out of memory, and waits for its end.
func (c *child) kill() {
	if err := c.cmd.Process.Kill(); err == nil || errors.Is(err, os.ErrProcessDone) {
		<-c.done
	}
}

// waitFor waits until the child's output has text.
func (c *child) waitFor(t *testing.T, text string) {
	t.Helper()
	timeout := time.After(patience)
	for {
		changed := c.out.changed()
		if strings.Contains(c.out.String(), text) {
			return
		}
		select {
		case <-changed:
		case <-c.done:
			t.Fatalf("the child process ended without %q: %v\n%s", text, c.err, clip(c.out.String()))
		case <-timeout:
			t.Fatalf("no %q from the child process after %v\n%s", text, patience, clip(c.out.String()))
		}
	}
}
