package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
	"github.com/kickhq/kick/internal/resume"
)

// kubeVirtBox is one machine, from its making to its end, or one that a dead process
// has left.
type kubeVirtBox struct {
	launcher *KubeVirt
	client   *kube.Client
	spec     LaunchSpec
	mode     frame.Mode
	plan     *kubeVirtPlan
	adopted  *kubevirtapi.Instance // what a dead process has left, in CollectMode
	cold     []string              // why it has no machine that was there before
	kicks    int                   // that the machine has had before
	after    string                // what becomes of a machine that may linger

	eye       *machineEye
	guest     guest
	dir       string        // of this kick, in the machine
	machine   frame.Machine // as the shim has found it
	enclosure *enclosure
	waits     waits
	kubeLine
	fine bool // the kick has ended by itself
}

// start takes or makes the machine, comes into it, and makes the sandbox in it.
func (b *kubeVirtBox) start(ctx context.Context, dog *watchdog) (line, error) {
	b.words.max = 4 << 10
	if b.adopted == nil {
		owner, err := claimOwner()
		if err != nil {
			return line{}, err
		}
		b.plan = newKubeVirtPlan(b.launcher.config, b.spec, b.mode, owner, rand.Text())
	}
	conn, err := b.again(ctx)
	if conn == nil && err == nil {
		conn, err = b.first(ctx)
	}
	if err != nil {
		return line{}, err
	}
	lost := make(chan loss, 1)
	dog.lost = lost
	b.line = resume.NewClient(keyOfLine(b.launcher.cluster.key, b.eye.object.uid+" "+b.spec.ID), b.adopted == nil)
	ctx, b.cancel = context.WithCancel(context.Background())
	b.carried.Go(func() { b.carry(ctx, conn) })
	b.carried.Go(func() { b.attendEnd(ctx, lost) })
	return line{to: b.line, from: b.line}, nil
}

// first gives the kick a machine that no other one has had, or what a dead one has left.
func (b *kubeVirtBox) first(ctx context.Context) (*guestConn, error) {
	machine := b.adopted
	if machine == nil && b.launcher.config.Pool != "" {
		var err error
		if machine, err = b.fromPool(ctx); err != nil {
			return nil, err
		}
	}
	return b.inside(ctx, machine)
}

// inside comes into a machine, which it makes if it is nil, and makes the sandbox in
// it. An error leaves nothing behind but what may have another one's work.
func (b *kubeVirtBox) inside(ctx context.Context, machine *kubevirtapi.Instance) (conn *guestConn, err error) {
	defer func() {
		if err != nil && b.eye != nil {
			if b.adopted == nil || errors.Is(err, errMachineGone) {
				err = errors.Join(err, b.eye.remove())
			}
			b.eye.close()
		}
	}()
	if machine != nil {
		b.follow(machine)
	} else if err := b.make(ctx); err != nil {
		return nil, err
	}
	b.guest = guest{user: b.launcher.config.User, keys: b.launcher.keysFor(b.eye.instance()), dial: func(ctx context.Context) (net.Conn, error) {
		return b.client.PortForward(ctx, kubevirtapi.Guests, b.launcher.config.Namespace, b.eye.object.name, machineSSH, kubevirtapi.Protocol)
	}}
	if conn, err = b.enter(ctx); err != nil {
		return nil, err
	}
	if b.adopted == nil {
		err = b.enclose(ctx, conn)
	} else {
		b.dir, err = b.findLeft(ctx, conn)
	}
	if err != nil {
		_ = conn.Close() // a context that has ended has closed it already
		return nil, err
	}
	return conn, nil
}

func (b *kubeVirtBox) follow(m *kubevirtapi.Instance) {
	b.eye = followMachine(b.client, b.launcher.config.Namespace, m)
}

// Pauses between attempts to come into a machine. Nothing tells when its sshd is
// there.
const (
	enterFirst = 200 * time.Millisecond
	enterMost  = 3 * time.Second
)

// enterLeft is how long kick tries to come into a machine that another kick has left.
// kick gc has others to see to, and looks again; a new kick can have another machine.
const enterLeft = time.Minute

// enter waits until the machine runs and lets kick in.
func (b *kubeVirtBox) enter(ctx context.Context) (*guestConn, error) {
	patience := b.launcher.config.Pending
	if b.adopted != nil || b.kicks > 0 {
		patience = min(patience, enterLeft)
	}
	waiting, cancel := context.WithTimeoutCause(ctx, patience, errPending)
	defer cancel()
	var last error
	for pause := enterFirst; ; {
		n, changed, blind := b.eye.look()
		fail := func(err error) (*guestConn, error) {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			why := n.why
			if w := b.eye.warning(ctx); w != "" {
				why += "; " + w
			}
			if last != nil && n.phase == kubeRunning {
				why += "; " + last.Error()
			}
			op, remedy := "start the ", n.remedy
			switch {
			case b.adopted != nil:
				op, remedy = "come into the ", "kick gc looks again, and removes it past its deadline"
			case n.phase != kubeRunning:
				remedy = machineRemedy(why, n.remedy)
			}
			return nil, &Error{Kind: ErrRuntime, Op: op + b.eye.object.String(), Err: fmt.Errorf("%w: %s", err, escaped(why)), Remedy: remedy}
		}
		switch {
		case blind != nil:
			return nil, kubeError("watch the "+b.eye.object.String(), blind)
		case b.adopted != nil && n.phase != kubeRunning:
			// It has ended, or was never so far that something could run in it.
			return fail(errMachineGone)
		case n.phase == kubeEnded:
			return fail(errEarlyEnd)
		case n.phase == kubeRunning:
			conn, err := b.guest.connect(waiting)
			if err == nil {
				return conn, nil
			}
			if last = err; b.final(err) {
				return fail(errNoWayIn)
			}
			if errors.Is(err, errKeptOut) {
				n.why = "it runs, and does not let kick in as " + b.guest.user
				n.remedy = "See that the image has that user, and that its sshd lets it in by the keys that the machine was given, as docs/kubevirt.md says"
			}
			select {
			case <-b.waits.still(n.why):
				b.waits.tell(n.why, b.spec.OnEvent)
			default:
			}
			if kube.Pause(waiting, pause) {
				pause = min(2*pause, enterMost)
				continue
			}
			return fail(errPending)
		}
		select {
		case <-changed:
		case <-b.waits.still(n.why):
			b.waits.tell(n.why, b.spec.OnEvent)
		case <-waiting.Done():
			return fail(errPending)
		}
	}
}

var (
	errEarlyEnd = errors.New("it has ended")
	errNoWayIn  = errors.New("there is no way into it")
)

// final tells an error that another attempt would not mend.
func (b *kubeVirtBox) final(err error) bool {
	_, forbidden := kube.Forbidden(err)
	return errors.Is(err, errWrongHost) || forbidden && !b.client.Settling()
}

// enclose puts the shim into the machine and has it make the sandbox.
func (b *kubeVirtBox) enclose(ctx context.Context, conn *guestConn) (err error) {
	fail := func(op string, err error, remedy string) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: remedy}
	}
	shim, err := b.launcher.config.Shim()
	if err != nil {
		return fail("read the shim", err, "")
	}
	defer shim.Close()
	const remedy = "The image's user needs a home directory that can be written, with room, and programs must be allowed there"
	if _, err := conn.command(ctx, "umask 077 && mkdir "+b.spec.ID+" && cd "+b.spec.ID+" && mkdir workspace base egress && cat >kick-shim && chmod 500 kick-shim", shim); err != nil {
		return fail("put the shim into the machine", err, remedy)
	}
	if b.dir, err = b.findDir(ctx, conn); err != nil {
		return err
	}
	if err := b.sendTrust(ctx, conn); err != nil {
		return fail("send what programs trust into the machine", err, remedy)
	}
	question, err := json.Marshal(frame.Question{Paths: systemPatterns(), Show: machineShown, Canaries: b.launcher.config.Canaries})
	if err != nil {
		return err
	}
	said, err := conn.command(ctx, b.dir+"/kick-shim look", bytes.NewReader(question))
	if err == nil {
		err = json.Unmarshal(said, &b.machine)
	}
	if err != nil {
		return fail("look at the machine", err, "The shim is built for this host's kind of processor: the machine's must be of it")
	}
	if b.enclosure, err = b.plan.enclosure(b.machine, b.dir); err != nil {
		return err
	}
	wait, err := json.Marshal(b.enclosure.wait)
	if err != nil {
		return err
	}
	if _, err := conn.command(ctx, b.dir+"/kick-shim enclose "+b.dir+"/line", bytes.NewReader(wait)); err != nil {
		return enclosureError(err)
	}
	return b.openEgress(ctx, conn)
}

// enclosureError names the property that the machine's kernel does not give.
func enclosureError(err error) error {
	for name := range remedies {
		if strings.Contains(err.Error(), name+": ") {
			return &Error{Kind: ErrIsolation, Op: name, Err: err, Remedy: remedies[name]}
		}
	}
	return &Error{Kind: ErrRuntime, Op: "make the sandbox in the machine", Err: err, Remedy: "The machine's kernel must be Linux 5.12 or newer and let ordinary users make user namespaces"}
}

// findLeft is the same in a machine that a dead kick has left, if that had come so far
// that there is a sandbox.
func (b *kubeVirtBox) findLeft(ctx context.Context, conn *guestConn) (string, error) {
	said, err := conn.command(ctx, "if [ -S "+b.spec.ID+"/line ]; then echo made; fi", nil)
	switch {
	case err != nil:
		return "", &Error{Kind: ErrRuntime, Op: "look for the sandbox in the machine", Err: err, Remedy: "kick gc looks again"}
	case len(said) == 0:
		return "", &Error{Kind: ErrRuntime, Op: "look for the sandbox in the machine", Err: errMachineGone, Remedy: "What had come back before is kept"}
	}
	return b.findDir(ctx, conn)
}

// findDir is where this kick's files are in the machine.
func (b *kubeVirtBox) findDir(ctx context.Context, conn *guestConn) (string, error) {
	said, err := conn.command(ctx, "cd "+b.spec.ID+" && pwd -P", nil)
	dir := strings.TrimSpace(string(said))
	if err == nil && (!machineDir.MatchString(dir) || path.Clean(dir) != dir) {
		err = fmt.Errorf("%q", escaped(dir))
	}
	if err != nil {
		return "", &Error{Kind: ErrRuntime, Op: "find the directory of the kick in the machine", Err: err, Remedy: "The user's home directory must have a plain path, of letters, digits, dots, - and _"}
	}
	return dir, nil
}

// sendTrust sends the certificates that lie beside the gateway's socket, if any do.
func (b *kubeVirtBox) sendTrust(ctx context.Context, conn *guestConn) error {
	if b.spec.Egress.Socket == "" {
		return nil
	}
	name := path.Base(EgressTrustPath)
	trust, err := os.ReadFile(filepath.Join(filepath.Dir(b.spec.Egress.Socket), name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = conn.command(ctx, "cat >"+b.dir+"/egress/"+name, bytes.NewReader(trust))
	return err
}

// openEgress makes the gateway's socket in the machine, where it is carried to this
// host's.
func (b *kubeVirtBox) openEgress(ctx context.Context, conn *guestConn) error {
	if b.spec.Egress.Socket == "" || b.mode == frame.CollectMode {
		return nil
	}
	socket := b.dir + "/egress/" + path.Base(EgressSocketPath)
	_, err := conn.command(ctx, "rm -f "+socket, nil) // of a connection that was cut
	if err == nil {
		err = conn.forward(socket, b.spec.Egress.Socket)
	}
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "carry the gateway's socket into the machine", Err: err, Remedy: "The image's sshd must allow it: AllowStreamLocalForwarding remote and AllowTcpForwarding remote"}
	}
	return nil
}

// carry speaks with the shim over the connection that is there, and over new ones
// while the machine runs. It gives up when a sandbox that nobody has come to has
// stopped its command.
func (b *kubeVirtBox) carry(ctx context.Context, conn *guestConn) {
	pause, since := enterFirst, time.Now()
	for ctx.Err() == nil {
		begun := time.Now()
		err := b.carryOnce(ctx, conn)
		conn = nil
		if errors.Is(err, resume.ErrEnded) || ctx.Err() != nil {
			return
		}
		if errors.Is(err, errWasConnected) {
			since = time.Now()
		}
		if time.Since(begun) > guestHello {
			pause = enterFirst
		}
		if alone := time.Since(since); b.final(err) || alone > b.launcher.config.Alone {
			b.noteEnd(kubeNews{phase: kubeEnded, reason: ReasonLost, why: fmt.Sprintf("the line to the machine is cut for %v: %s", alone.Round(time.Second), escaped(err.Error()))})
			b.line.End()
			return
		}
		if !kube.Pause(ctx, pause) {
			return
		}
		pause = min(2*pause, enterMost)
	}
}

// carryOnce speaks with the shim until the connection breaks, which the error says.
func (b *kubeVirtBox) carryOnce(ctx context.Context, conn *guestConn) (err error) {
	if conn == nil {
		if conn, err = b.guest.connect(ctx); err != nil {
			return err
		}
		if err := b.openEgress(ctx, conn); err != nil {
			return errors.Join(err, conn.Close())
		}
	}
	defer func() { _ = conn.Close() }() // how it broke is known
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	s, err := conn.stream(b.dir+"/kick-shim line "+b.dir+"/line", &b.words)
	if err != nil {
		return err
	}
	if err = b.line.Carry(s); !errors.Is(err, resume.ErrGreeting) {
		err = errors.Join(errWasConnected, err)
	}
	return err
}

// errWasConnected is a line that was there and broke.
var errWasConnected = errors.New("the line broke")

// attendEnd notes how the machine ends, and ends the line then.
func (b *kubeVirtBox) attendEnd(ctx context.Context, lost chan<- loss) {
	defer close(b.gonech)
	for {
		n, changed, blind := b.eye.look()
		if blind != nil {
			n = kubeNews{phase: kubeEnded, reason: ReasonLost, why: kubeError("watch the machine", blind).Error()}
		}
		if n.phase == kubeEnded {
			b.noteEnd(n)
			lost <- loss{n.reason, escaped(n.why), "Look at what the cluster says of it, and start the kick again"}
			b.line.End()
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (b *kubeVirtBox) configs() ([]frame.Config, error) {
	return []frame.Config{b.plan.shimConfig()}, nil
}

// kill ends the machine at once: it is deleted.
func (b *kubeVirtBox) kill() {
	b.killObject(b.client, b.launcher.config.Namespace, b.eye.object)
}

// describe tells what ran.
func (b *kubeVirtBox) describe(r *Result) {
	if b.eye == nil {
		return
	}
	r.Image, r.Isolation.Engine = b.spec.Image, "KubeVirt"
	if s := b.eye.instance().Status; s != nil && s.NodeName != "" {
		r.Isolation.Engine += ", node " + s.NodeName
	}
	if kernel := strings.TrimSpace(b.machine.Shown["/proc/sys/kernel/osrelease"]); kernel != "" {
		r.Isolation.Engine += ", a machine with Linux " + escaped(kernel)
	}
	if pool := b.eye.instance().Labels[labelPool]; pool != "" {
		r.Isolation.Engine += ", of pool " + pool
	}
	for _, why := range b.cold {
		r.Isolation.Engine += ", " + why
	}
	if b.kicks > 0 {
		r.Isolation.Engine += fmt.Sprintf(", which lingered and has had kicks before (%d)", b.kicks)
	}
	if b.after != "" {
		r.Isolation.Engine += "; " + b.after
	}
}

// linger lets the machine linger, if it may.
func (b *kubeVirtBox) linger() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fine = true
}

func (b *kubeVirtBox) end() (boxUsage, error) {
	b.mu.Lock()
	lingers := b.fine && b.plan.lingers() && !b.killed && b.ending.phase != kubeEnded
	b.killed = true // from here on there is nothing to kill, and the end is ours
	b.mu.Unlock()
	if lingers {
		b.line.Part(leaveEnds) // else the shim would stay, and be found
	}
	b.cancel()
	b.line.End()
	var err error
	if lingers {
		lingers, err = b.leave()
	}
	if !lingers {
		err = b.eye.remove()
	}
	b.carried.Wait()
	b.eye.close()
	return boxUsage{}, err
}
