package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/openshellapi"
	"github.com/kickhq/kick/internal/resume"
)

// openShellBox is one sandbox of a gateway, from its creation to its deletion, or one
// that a run before has left.
type openShellBox struct {
	launcher *OpenShell
	gateway  openshellapi.Gateway
	plan     *openShellPlan
	version  string
	adopted  bool // it has the work of a run before, in CollectMode

	sandbox openshellapi.Sandbox // as it was when it became ready
	policy  string               // what was found of its policy
	log     tail                 // what the shim and the gateway said of their trouble

	line    *resume.Client
	cancel  context.CancelFunc // of what carries the line and attends the sandbox
	carried sync.WaitGroup
	gonech  chan struct{}

	mu     sync.Mutex
	killed bool
	ending *openShellEnd // if it was not by the session's will
}

func (b *openShellBox) name() string { return b.plan.create.Name }

func (b *openShellBox) start(ctx context.Context, dog *watchdog) (_ line, err error) {
	greets := true
	if b.adopted {
		greets, err = b.adopt(ctx)
	} else {
		err = b.begin(ctx)
	}
	if err != nil {
		return line{}, err
	}
	lost := make(chan loss, 1)
	dog.lost = lost
	b.line = resume.NewClient(keyOfLine(b.launcher.key, b.sandbox.ID), greets)
	ctx, b.cancel = context.WithCancel(context.Background())
	b.carried.Go(func() { b.carry(ctx) })
	b.carried.Go(func() { b.attend(ctx, lost) })
	return line{to: b.line, from: b.line}, nil
}

// begin has the sandbox made, and the shim listen in it. An error leaves nothing.
func (b *openShellBox) begin(ctx context.Context) (err error) {
	if err := b.launcher.note(b.plan.spec.ID); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			b.launcher.forget(b.plan.spec.ID)
		}
		if err != nil && b.sandbox.Name != "" {
			err = errors.Join(err, b.remove())
		}
	}()
	if err := b.create(ctx); err != nil {
		return err
	}
	if err := b.ready(ctx); err != nil {
		return err
	}
	effective, err := b.gateway.Policy(ctx, b.name())
	if err != nil {
		return &Error{Kind: ErrIsolation, Op: "policy", Err: fmt.Errorf("it could not be read back: %w", shown(err)), Remedy: "The credential needs the scope config:read"}
	}
	if b.policy, err = b.plan.readBack(effective); err != nil {
		return err
	}
	if t := b.plan.spec.Egress.TCP; t != nil {
		if err := t.Admit(netip.Addr{}); err != nil { // the gateway tells no address of a sandbox
			return &Error{Kind: ErrRuntime, Op: "let the sandbox in at kick's gateway", Err: err, Remedy: "Set openshell.egress_from to the network that connections of sandboxes come from"}
		}
	}
	if err := b.upload(ctx); err != nil {
		return err
	}
	return b.serve(ctx)
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
		code := openshellapi.CodeOf(err)
		if !refused(code) {
			b.sandbox.Name = b.name() // it may be there for all that
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case code == openshellapi.CodeExists:
			old, getErr := b.gateway.Get(ctx, b.name())
			switch {
			case openshellapi.CodeOf(getErr) == openshellapi.CodeNotFound:
				// It is gone meanwhile.
				if err := wait(ctx, 50*time.Millisecond); err != nil {
					return err
				}
				continue
			case getErr != nil:
				return b.startError("look at the sandbox "+b.name(), getErr)
			case old.Annotations[annotationAttempt] == attempt:
				b.sandbox = old
				return nil
			case removed || old.Labels[labelID] != b.plan.spec.ID || old.Labels[labelOwner] != b.plan.create.Labels[labelOwner]:
				b.sandbox.Name = ""
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
		return b.startError("create the sandbox "+b.name(), err)
	}
}

// refused are the errors after which nothing of a call has been done.
func refused(code openshellapi.Code) bool {
	switch code {
	case openshellapi.CodeInvalid, openshellapi.CodeExists, openshellapi.CodePrecondition, openshellapi.CodePermission, openshellapi.CodeUnauthenticated, openshellapi.CodeUnimplemented:
		return true
	}
	return false
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
	why, told := make(chan string), make(chan struct{})
	go func() {
		defer close(told)
		new(waits).follow(why, b.plan.spec.OnEvent)
	}()
	defer func() {
		close(why)
		<-told
	}()
	why <- "the gateway has said nothing of it yet"
	var said []string
	for last := b.sandbox; ; {
		last.Phase = openshellapi.Unknown
		err := b.gateway.Watch(ctx, b.name(), func(e openshellapi.Event) bool {
			if e.Platform != "" && len(said) < 20 {
				said = append(said, e.Platform)
			}
			if e.Sandbox != nil {
				last = *e.Sandbox
			}
			why <- fmt.Sprintf("it is in the phase %s%s", last.Phase, sandboxWords(last, said))
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
	{"unauthenticated", remedyUnauthenticated},
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
	return &Error{Kind: kind, Op: op, Err: shownIn(op, err), Remedy: openShellRemedy(err.Error())}
}

// shownIn is shown, below what was being done: which the gateway's error may say too.
func shownIn(op string, err error) error {
	var e *openshellapi.Error
	if errors.As(err, &e) && strings.HasPrefix(e.Op, op) {
		return &openShellRefusal{e}
	}
	return shown(err)
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
		default:
			return &commandExit{*e.Exit, said.String()}
		}
	}
}

// commandExit is the exit of a command of kick's own with anything but 0.
type commandExit struct {
	code int
	said string // the end of its output
}

func (e *commandExit) Error() string {
	if e.code == 124 { // the gateway's own
		return fmt.Sprintf("it took longer than %v: %s", uploadTimeout, escaped(e.said))
	}
	return strings.TrimSuffix(fmt.Sprintf("exit code %d: %s", e.code, escaped(e.said)), ": ")
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

// serve has the shim give up what the plan says, and listen.
func (b *openShellBox) serve(ctx context.Context) error {
	wait, err := json.Marshal(b.plan.wait(b.launcher.config.Alone))
	if err != nil {
		return err
	}
	tries := 0
	err = b.retrying(ctx, "start the shim", func() error {
		tries++
		err := command(ctx, b.gateway, b.name(), nil, b.plan.shim(), "guest", string(wait))
		if tries > 1 && err != nil && strings.Contains(err.Error(), unix.EADDRINUSE.Error()) {
			return nil // it was the first try that succeeded
		}
		return err
	})
	var exit *commandExit
	if errors.As(err, &exit) {
		name, text, _ := strings.Cut(exit.said, ": ")
		if remedies[name] != "" {
			return &Error{Kind: ErrIsolation, Op: name, Err: errors.New(escaped(text)), Remedy: remedies[name]}
		}
	}
	return err
}

func (b *openShellBox) configs() ([]frame.Config, error) { return []frame.Config{b.plan.config}, nil }

func (b *openShellBox) prove(r frame.Readiness) ([]Property, error) {
	if b.adopted {
		return b.plan.proveAdopted(r), nil
	}
	return b.plan.prove(r, b.policy, b.launcher.config.TelemetryOff, b.sandbox), nil
}

func (b *openShellBox) describe(r *Result) {
	r.Image = b.plan.spec.Image
	r.Isolation.Engine = fmt.Sprintf("OpenShell %s, workspace %s", b.version, cmp.Or(b.launcher.config.Connection.Workspace, openshellapi.DefaultWorkspace))
}

// look has nothing to note: nothing of the sandbox is seen from here.
func (b *openShellBox) look() {}

// kill ends the sandbox at once: it is deleted. One that has the work of a run before
// is only let go of.
func (b *openShellBox) kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.killed {
		return
	}
	b.killed = true
	if b.adopted {
		b.line.End()
		return
	}
	b.carried.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), killGrace)
		defer cancel()
		_ = b.gateway.Delete(ctx, b.name()) // end does it again
	})
	time.AfterFunc(killGrace, b.line.End)
}

func (b *openShellBox) gone() <-chan struct{} { return b.gonech }

func (b *openShellBox) lastWords() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending != nil {
		return b.ending.why
	}
	return b.log.String()
}

// end deletes the sandbox, and says what the gateway knows of its end. One that has
// work which has not come back is left to Run: its shim alone has died, or nobody heard
// another one to its end.
func (b *openShellBox) end() (boxUsage, error) {
	b.mu.Lock()
	cut := b.killed || b.ending != nil
	b.killed = true // from here on there is nothing to kill, and the end is ours
	ending := b.ending
	b.mu.Unlock()
	b.cancel()
	b.line.End()
	b.carried.Wait()
	var used boxUsage
	if ending != nil && ending.reason == ReasonOutOfMemory {
		used.oomKills = 1
	}
	if !b.adopted {
		ctx, cancel := context.WithTimeout(context.Background(), gapTimeout)
		defer cancel()
		b.tellLogs(ctx)
	}
	if b.adopted && cut || ending != nil && ending.shimGone && b.plan.config.Mode == frame.RunAndCollectMode {
		b.launcher.left.Store(b.plan.spec.ID, b)
		return used, nil
	}
	b.launcher.left.Delete(b.plan.spec.ID)
	b.launcher.forget(b.plan.spec.ID)
	return used, b.remove()
}

// tellLogs passes the sandbox's log on, which tells of what its policy denied.
func (b *openShellBox) tellLogs(ctx context.Context) {
	tell := b.plan.spec.OnLog
	if tell == nil {
		return
	}
	logs, err := b.gateway.Logs(ctx, b.name(), logLines)
	for lines := logLines / 4; openshellapi.CodeOf(err) == openshellapi.CodeExhausted && lines > 0; lines /= 4 {
		// Lines may be as long as what the agent asked for.
		logs, err = b.gateway.Logs(ctx, b.name(), lines)
	}
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
		op := "delete the sandbox " + name
		return &Error{Kind: ErrRuntime, Op: op, Err: shownIn(op, err), Remedy: "It ends at its deadline by itself; kick gc deletes it when the gateway answers again"}
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
