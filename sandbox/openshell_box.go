package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/openshellapi"
)

// openShellBox is one sandbox of a gateway, from its creation to its deletion.
type openShellBox struct {
	launcher *OpenShell
	gateway  openshellapi.Gateway
	plan     *openShellPlan
	version  string

	sandbox openshellapi.Sandbox // as it was when it became ready
	policy  string               // what was found of its policy
	log     tail                 // what the shim and the gateway said of their trouble

	exec   openshellapi.Exec
	cancel context.CancelFunc // ends exec
	from   *io.PipeReader     // what the shim sends
	ended  chan struct{}      // closed when exec has ended

	mu     sync.Mutex
	killed bool
	broke  bool // the stream ended without an exit, and not for our doing
}

func (b *openShellBox) name() string { return b.plan.create.Name }

func (b *openShellBox) start(ctx context.Context, _ *watchdog) (_ line, err error) {
	defer func() {
		if err != nil && b.sandbox.Name != "" {
			err = errors.Join(err, b.remove())
		}
	}()
	if err := b.create(ctx); err != nil {
		return line{}, err
	}
	if err := b.ready(ctx); err != nil {
		return line{}, err
	}
	effective, err := b.gateway.Policy(ctx, b.name())
	if err != nil {
		return line{}, &Error{Kind: ErrIsolation, Op: "policy", Err: fmt.Errorf("it could not be read back: %w", shown(err)), Remedy: "The credential needs the scope config:read"}
	}
	if b.policy, err = b.plan.readBack(effective); err != nil {
		return line{}, err
	}
	if err := b.upload(ctx); err != nil {
		return line{}, err
	}
	return b.run(ctx)
}

// create has the sandbox made. One of that name is what a dead kick of this id has
// left, since the id is claimed, or our own, if the answer to a first attempt was
// lost.
func (b *openShellBox) create(ctx context.Context) error {
	attempt := rand.Text()
	b.plan.create.Annotations[annotationAttempt] = attempt
	removed := false
	for until := time.Now().Add(gapTimeout); ; {
		s, err := b.gateway.Create(ctx, b.plan.create)
		if err == nil {
			b.sandbox = s
			b.sandbox.Name = b.name()
			return nil
		}
		switch code := openshellapi.CodeOf(err); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case code == openshellapi.CodeExists:
			old, getErr := b.gateway.Get(ctx, b.name())
			switch {
			case openshellapi.CodeOf(getErr) == openshellapi.CodeNotFound:
				continue // it is gone meanwhile
			case getErr != nil:
				return b.startError("look at the sandbox "+b.name(), getErr)
			case old.Annotations[annotationAttempt] == attempt:
				b.sandbox = old
				return nil
			case removed || old.Labels[labelID] != b.plan.spec.ID || old.Labels[labelOwner] != b.plan.create.Labels[labelOwner]:
				return &Error{Kind: ErrRuntime, Op: "create the sandbox " + b.name(), Err: errors.New("there is one of that name, and it is not this host's"), Remedy: "Delete it, if no other host runs a kick of this id: openshell sandbox delete " + b.name()}
			}
			removed = true
			if err := deleteSandbox(ctx, b.gateway, b.name()); err != nil {
				return err
			}
			continue
		case transient(code) && time.Now().Before(until):
			if err := wait(ctx, time.Second); err != nil {
				return err
			}
			continue
		}
		// It may be there for all that.
		b.sandbox.Name = b.name()
		return b.startError("create the sandbox "+b.name(), err)
	}
}

// transient are the errors after which the same may be asked again, if nothing can
// have come of it.
func transient(code openshellapi.Code) bool {
	switch code {
	case openshellapi.CodeUnavailable, openshellapi.CodeDeadline, openshellapi.CodeAborted, openshellapi.CodeExhausted:
		return true
	}
	return false
}

// wait is a pause between two attempts at what tells nobody when it will work.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errorLasts is how long a sandbox must be in ERROR to be given up: some are for a
// moment while they start.
const errorLasts = 3 * time.Second

// ready waits until the sandbox is ready, as its watch tells. A watch may end at
// any time, and begins anew.
func (b *openShellBox) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.launcher.config.ReadyWithin, errNotReady)
	defer cancel()
	var said []string
	for {
		var last openshellapi.Sandbox
		err := b.gateway.Watch(ctx, b.name(), func(e openshellapi.Event) bool {
			if e.Platform != "" && len(said) < 20 {
				said = append(said, e.Platform)
			}
			if e.Sandbox != nil {
				last = *e.Sandbox
			}
			return e.Sandbox == nil || waiting(last)
		})
		words := sandboxWords(last, said)
		switch {
		case errors.Is(context.Cause(ctx), errNotReady):
			return &Error{Kind: ErrRuntime, Op: "wait for the sandbox", Err: fmt.Errorf("it was not ready within %v%s", b.launcher.config.ReadyWithin, words), Remedy: openShellRemedy(words)}
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case openshellapi.CodeOf(err) == openshellapi.CodeNotFound, errors.Is(err, io.EOF) && last.Phase == openshellapi.Deleting:
			return &Error{Kind: ErrRuntime, Op: "wait for the sandbox", Err: errors.New("somebody has deleted it"), Remedy: "Run the kick again"}
		case err != nil && !errors.Is(err, io.EOF) && !transient(openshellapi.CodeOf(err)):
			return b.startError("watch the sandbox", err)
		case err != nil:
			if err := wait(ctx, 200*time.Millisecond); err != nil && !errors.Is(err, errNotReady) {
				return err
			}
		case last.Phase == openshellapi.Ready:
			last.Name = b.name()
			b.sandbox = last
			return nil
		case last.Rejected != "":
			return &Error{Kind: ErrIsolation, Op: "policy", Err: errors.New("the gateway did not accept it: " + escaped(clipped(last.Rejected))), Remedy: "See which rule it names: kick policy compile --to openshell shows all"}
		default:
			if err := b.confirm(ctx, last, words); err != nil {
				return err
			}
		}
	}
}

var errNotReady = errors.New("the sandbox was not ready in time")

// waiting reports whether a sandbox may still become ready.
func waiting(s openshellapi.Sandbox) bool {
	switch s.Phase {
	case openshellapi.Provisioning, openshellapi.Starting, openshellapi.Unknown:
		return s.Rejected == ""
	}
	return false
}

// confirm looks a second time at a sandbox that has failed.
func (b *openShellBox) confirm(ctx context.Context, last openshellapi.Sandbox, words string) error {
	if err := wait(ctx, errorLasts); err != nil && !errors.Is(err, errNotReady) {
		return err
	}
	again, err := b.gateway.Get(ctx, b.name())
	if err == nil && again.Phase != last.Phase {
		return nil // the watch tells what has become of it
	}
	return &Error{Kind: ErrRuntime, Op: "wait for the sandbox", Err: fmt.Errorf("it is in the phase %s%s", last.Phase, words), Remedy: openShellRemedy(words)}
}

// clipped bounds a gateway's text for a message.
func clipped(s string) string { return s[:min(len(s), 400)] }

// sandboxWords are a sandbox's conditions and what the platform said, for people.
func sandboxWords(s openshellapi.Sandbox, said []string) string {
	var list []string
	for _, c := range s.Conditions {
		if c.Status != "True" {
			list = append(list, strings.TrimSuffix(c.Reason+": "+c.Message, ": "))
		}
	}
	if len(said) > 3 {
		said = said[len(said)-3:]
	}
	list = append(list, said...)
	if len(list) == 0 {
		return ""
	}
	return ": " + escaped(clipped(strings.Join(list, "; ")))
}

// openShellRemedies say what may help, by what the gateway said.
var openShellRemedies = []struct{ text, remedy string }{
	{"SupervisorNotConnected", "The supervisor in the sandbox does not reach the gateway: see the callback address and that the cluster lets it through"},
	{"ImagePull", "See the image's name and digest, and that the nodes may pull it"},
	{"image", "See the image's name and digest, and that the nodes may pull it"},
	{"Landlock", "The nodes need Linux 6.2 or newer with Landlock (ABI 3): the policy requires it"},
	{"landlock", "The nodes need Linux 6.2 or newer with Landlock (ABI 3): the policy requires it"},
	{"allow_driver_config", "Set allow_driver_config = true for the gateway's driver"},
	{"OOMKilled", "Raise the memory limit"},
	{"Unschedulable", "See that a node has room for the sandbox"},
	{"permission denied", "The credential needs the scopes sandbox:read, sandbox:write and config:read, and its user must be a member of the workspace"},
	{"unauthenticated", "Log in anew (openshell gateway login), or set openshell.token or the certificates to what the gateway accepts"},
}

func openShellRemedy(words string) string {
	for _, r := range openShellRemedies {
		if strings.Contains(words, r.text) {
			return r.remedy
		}
	}
	return "Look at the gateway's log, and at the sandbox with openshell sandbox get"
}

func (b *openShellBox) startError(op string, err error) error {
	kind := ErrRuntime
	if openshellapi.CodeOf(err) == openshellapi.CodeInvalid {
		kind = ErrSpec
	}
	return &Error{Kind: kind, Op: op, Err: shown(err), Remedy: openShellRemedy(err.Error())}
}

// upload puts the shim into the sandbox, where images need not have it and none
// has the wrong one.
func (b *openShellBox) upload(ctx context.Context) error {
	r, err := b.launcher.config.Shim()
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "read the shim", Err: err}
	}
	shim, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return &Error{Kind: ErrRuntime, Op: "read the shim", Err: err}
	}
	if len(shim) == 0 {
		return noShim()
	}
	dir := shimDir(b.plan.spec.ID)
	script := fmt.Sprintf(`umask 077; mkdir -p %[1]s/objects/pack && cd %[1]s && cat >shim.new && [ "$(wc -c <shim.new)" -eq %[2]d ] && chmod 500 shim.new && mv shim.new kick-shim`, dir, len(shim))
	return b.retrying(ctx, "put the shim into the sandbox", func() error {
		return command(ctx, b.gateway, b.name(), shim, "sh", "-c", script)
	})
}

// retrying asks again where the sandbox's supervisor is away for a while. Nothing of
// the agent has run yet.
func (b *openShellBox) retrying(ctx context.Context, op string, f func() error) error {
	for until := time.Now().Add(gapTimeout); ; {
		err := f()
		code := openshellapi.CodeOf(err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case (transient(code) || code == openshellapi.CodePrecondition) && time.Now().Before(until):
			if err := wait(ctx, 500*time.Millisecond); err != nil {
				return err
			}
			continue
		case code == "":
			return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: "The image needs bash, sh and coreutils, and /tmp must be writable and allow programs"}
		}
		return b.startError(op, err)
	}
}

// uploadTimeout is how long a command that kick itself runs in a sandbox may take.
const uploadTimeout = 2 * time.Minute

// command runs a command of kick's own in a sandbox, with that input. Its exit with
// anything but 0 is an error with the end of what it said.
func command(ctx context.Context, g openshellapi.Gateway, name string, stdin []byte, argv ...string) error {
	ctx, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()
	x, err := g.Exec(ctx, openshellapi.ExecRequest{Name: name, Command: argv, Timeout: uploadTimeout})
	if err != nil {
		return err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for chunk := range bytesChunks(stdin, openshellapi.MaxStdin) {
			if x.Send(chunk) != nil {
				return // receiving tells why
			}
		}
		_ = x.CloseSend() // as above
	}()
	defer func() { cancel(); <-sent }()
	said := tail{max: 1 << 10}
	for {
		e, err := x.Recv()
		if err != nil {
			return err
		}
		_, _ = said.Write(e.Stdout)
		_, _ = said.Write(e.Stderr)
		switch {
		case e.Exit == nil:
		case *e.Exit == 0:
			return nil
		case *e.Exit == 124:
			return fmt.Errorf("it took longer than %v: %s", uploadTimeout, escaped(said.String()))
		default:
			return fmt.Errorf("exit code %d: %s", *e.Exit, escaped(said.String()))
		}
	}
}

// bytesChunks yields b in pieces of at most n bytes.
func bytesChunks(b []byte, n int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			k := min(n, len(b))
			if !yield(b[:k]) {
				return
			}
			b = b[k:]
		}
	}
}

// hello is what comes before the shim's first frame: then it runs, and nothing is
// tried again.
const hello = "kick\n"

// run runs the shim. Its standard input and output are the line.
func (b *openShellBox) run(ctx context.Context) (line, error) {
	script := "printf '" + strings.TrimSpace(hello) + "\\n' && exec " + shimDir(b.plan.spec.ID) + "/kick-shim guest"
	var first []byte
	err := b.retrying(ctx, "run the shim", func() (err error) {
		var running context.Context
		running, b.cancel = context.WithCancel(context.Background()) // it ends with the box, not with who has started it
		stop := context.AfterFunc(ctx, b.cancel)
		if b.exec, err = b.gateway.Exec(running, openshellapi.ExecRequest{Name: b.name(), Command: []string{"sh", "-c", script}}); err == nil {
			first, err = b.hello()
		}
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			b.cancel()
		}
		return err
	})
	if err != nil {
		return line{}, err
	}
	b.read(first)
	return line{to: &execWriter{b: b}, from: b.from}, nil
}

// hello reads the shell's word, and returns what came after it.
func (b *openShellBox) hello() ([]byte, error) {
	var got []byte
	for {
		e, err := b.exec.Recv()
		if err != nil {
			return nil, err
		}
		got = append(got, e.Stdout...)
		_, _ = b.log.Write(e.Stderr)
		switch rest, ok := bytes.CutPrefix(got, []byte(hello)); {
		case ok:
			return rest, nil
		case e.Exit != nil, !strings.HasPrefix(hello, string(got)):
			return nil, fmt.Errorf("it said %q: %s", got[:min(len(got), 100)], escaped(b.log.String()))
		}
	}
}

// read passes on what the shim sends, until the stream ends.
func (b *openShellBox) read(first []byte) {
	r, w := io.Pipe()
	b.from = r
	go func() {
		defer close(b.ended)
		_, err := w.Write(first)
		for err == nil {
			var e openshellapi.ExecEvent
			if e, err = b.exec.Recv(); err != nil {
				break
			}
			_, _ = b.log.Write(e.Stderr)
			if len(e.Stdout) > 0 {
				_, err = w.Write(e.Stdout)
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) && !b.killed {
			b.broke = true
			_, _ = b.log.Write([]byte(shown(err).Error()))
		}
		_ = w.Close() // what is missing, the conversation knows
	}()
}

// execWriter writes to the shim. A deadline that passes within a write ends the
// command, since nothing less ends the write.
type execWriter struct {
	b *openShellBox

	mu       sync.Mutex
	deadline time.Time
}

func (w *execWriter) SetWriteDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = t
	return nil
}

func (w *execWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	deadline := w.deadline
	w.mu.Unlock()
	if !deadline.IsZero() {
		defer time.AfterFunc(time.Until(deadline), w.b.kill).Stop()
	}
	n := 0
	for chunk := range bytesChunks(p, openshellapi.MaxStdin) {
		if err := w.b.exec.Send(chunk); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}

func (b *openShellBox) configs() ([]frame.Config, error) { return b.plan.configs() }

func (b *openShellBox) prove(r frame.Readiness) ([]Property, error) {
	return b.plan.prove(r, b.policy, b.launcher.config.TelemetryOff, b.sandbox), nil
}

func (b *openShellBox) describe(r *Result) {
	r.Image = b.plan.spec.Image
	r.Isolation.Engine = fmt.Sprintf("OpenShell %s, workspace %s", b.version, cmp.Or(b.launcher.config.Connection.Workspace, openshellapi.DefaultWorkspace))
}

// look has nothing to note: nothing of the sandbox is seen from here.
func (b *openShellBox) look() {}

// kill ends the shim's stream, at which the gateway ends the shim. The sandbox goes
// at the end.
func (b *openShellBox) kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.killed = true
	b.cancel()
}

func (b *openShellBox) gone() <-chan struct{} { return b.ended }

func (b *openShellBox) lastWords() string { return b.log.String() }

// end deletes the sandbox, and says what the gateway knows of its end.
func (b *openShellBox) end() (boxUsage, error) {
	var used boxUsage
	ctx, cancel := context.WithTimeout(context.Background(), gapTimeout)
	defer cancel()
	_ = b.from.Close() // what nobody reads any more would be waited for
	select {
	case <-b.ended: // by itself, after the shim's last word
	case <-time.After(killGrace):
		b.kill()
		<-b.ended
	}
	b.cancel()
	if b.broke && b.outOfMemory(ctx) {
		used.oomKills = 1
	}
	b.tellLogs(ctx)
	return used, b.remove()
}

// outOfMemory asks the gateway whether the sandbox died of its memory limit. It
// knows a moment after the stream does.
func (b *openShellBox) outOfMemory(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, errorLasts)
	defer cancel()
	found := false
	// An error leaves it open: the reason is then that the sandbox was lost.
	_ = b.gateway.Watch(ctx, b.name(), func(e openshellapi.Event) bool {
		if e.Sandbox != nil && e.Sandbox.Phase != openshellapi.Ready {
			words := sandboxWords(*e.Sandbox, nil)
			found = strings.Contains(words, "OOMKilled")
			_, _ = b.log.Write([]byte(words))
			return false
		}
		return true
	})
	return found
}

// tellLogs passes the sandbox's log on, which tells of what its policy denied.
func (b *openShellBox) tellLogs(ctx context.Context) {
	tell := b.plan.spec.OnLog
	if tell == nil {
		return
	}
	logs, err := b.gateway.Logs(ctx, b.name(), logLines)
	if err != nil {
		tell(RuntimeLog{Time: time.Now(), Level: "ERROR", Source: "kick", Sandbox: b.name(), Message: "the sandbox's log could not be read: " + shown(err).Error()})
		return
	}
	for _, l := range logs {
		tell(RuntimeLog{Time: l.Time, Level: l.Level, Source: l.Source, Sandbox: b.name(), Message: l.Message, Fields: l.Fields})
	}
}

func (b *openShellBox) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), deleteTimeout)
	defer cancel()
	return deleteSandbox(ctx, b.gateway, b.name())
}

// deleteSandbox deletes a sandbox and waits until it is gone. The gateway may be
// away for a while.
func deleteSandbox(ctx context.Context, g openshellapi.Gateway, name string) error {
	fail := func(err error) error {
		return &Error{Kind: ErrRuntime, Op: "delete the sandbox " + name, Err: shown(err), Remedy: "It ends at its deadline by itself; kick gc deletes it when the gateway answers again"}
	}
	for asked := false; ; {
		if !asked {
			err := g.Delete(ctx, name)
			asked = err == nil
			if err != nil && !transient(openshellapi.CodeOf(err)) {
				return fail(err)
			}
		}
		_, err := g.Get(ctx, name)
		if openshellapi.CodeOf(err) == openshellapi.CodeNotFound {
			return nil
		}
		// Its end is the watch's, in good order; then it is looked for again.
		watching, cancel := context.WithTimeout(ctx, 5*time.Second)
		_ = g.Watch(watching, name, func(openshellapi.Event) bool { return true })
		cancel()
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return fail(fmt.Errorf("it is still there after %v", deleteTimeout))
		}
	}
}
