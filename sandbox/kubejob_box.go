package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/resume"
)

// kubeBox is one Job, claim or claimed pod, from its making to its end, or one that a
// dead process has left.
type kubeBox struct {
	launcher *Kubernetes
	client   *kube.Client
	spec     LaunchSpec
	mode     frame.Mode
	plan     *kubePlan
	adopted  bool // what a dead process has left, in CollectMode
	keeps    bool // it may have work that could not be come to

	// Where the workspace is on a claim.
	base    kubeBase
	objects map[string]int64 // files of the base, with their sizes
	given   bool             // the base was brought to this pod
	begun   bool             // the directory may have been made
	clears  bool             // it is there to remove the directory

	eye    *kubeEye
	object kubeObject
	shape  string // of the pods of its warm pool
	cold   string // why it has no pod of the pool, if there is one
	waits  waits
	pod    *corev1.Pod
	kubeLine
}

// Bounds of what is done again.
const (
	kubeAttempts = 3                // to have a pod, where the cluster took the one before away
	kubeAnew     = 30 * time.Second // of a Job for which there is no room
	kubeRemove   = 2 * time.Minute  // for the end of a pod and its Job
	kubeAdopt    = 15 * time.Second // for the pod of an orphan to be seen, and come to
)

// start makes the Job, waits for its pod and connects.
func (b *kubeBox) start(ctx context.Context, dog *watchdog) (_ line, err error) {
	l := b.launcher
	b.words.max = 4 << 10
	defer func() {
		if err != nil {
			if !b.keeps {
				err = errors.Join(b.lostWork(err), b.remove())
			}
			b.eye.close()
		}
	}()
	if b.adopted {
		b.eye = watchOne(b.client, l.config.Namespace, b.object)
		if err := b.adopt(ctx); err != nil {
			return line{}, err
		}
	} else {
		b.eye = l.watch.open(b.spec.ID)
		if err := b.attempt(ctx); err != nil {
			return line{}, err
		}
	}
	lost := make(chan loss, 1)
	dog.lost = lost
	b.line = resume.NewClient(keyOfLine(l.key, b.object.uid), !b.adopted)
	ctx, b.cancel = context.WithCancel(context.Background())
	b.carried.Go(func() { b.carry(ctx) })
	b.carried.Go(func() { b.attendEnd(ctx, lost) })
	return line{to: b.line, from: b.line}, nil
}

// attempt has a pod started, more than once where the cluster takes it away before
// anything has run in it.
func (b *kubeBox) attempt(ctx context.Context) error {
	for try := 1; ; try++ {
		if err := b.make(ctx); err != nil {
			return err
		}
		n, err := b.awaitStart(ctx)
		if err == nil || !n.again || try == kubeAttempts || ctx.Err() != nil {
			return err
		}
		if err := b.unmake(); err != nil {
			return err
		}
	}
}

// unmake removes what was made for the kick, so that it can be made anew.
func (b *kubeBox) unmake() error {
	err := b.remove()
	if err == nil {
		b.object = kubeObject{}
		b.eye.expect(b.object)
	}
	return err
}

// awaitStart waits until the pod runs, and gives it the base where it waits for that.
// A Job for which a quota has no room is made anew now and then: its controller tries
// less and less often, up to once a minute, and Jobs that came later take the room.
func (b *kubeBox) awaitStart(ctx context.Context) (kubeNews, error) {
	until := time.Now().Add(b.launcher.config.Pending)
	for {
		next := time.Now().Add(kubeAnew)
		if next.After(until) {
			next = until
		}
		waiting, cancel := context.WithDeadlineCause(ctx, next, errPending)
		n, err := b.awaitPod(waiting)
		cancel()
		switch {
		case errors.Is(err, errWantsBase):
			b.given = true
			if err := b.giveBase(ctx); err != nil {
				return n, err
			}
			until = time.Now().Add(b.launcher.config.Pending)
		case !errors.Is(err, errPending) || ctx.Err() != nil || !time.Now().Before(until):
			return n, err
		case n.noRoom:
			if err := b.unmake(); err != nil {
				return n, err
			}
			if err := b.make(ctx); err != nil {
				return n, err
			}
		}
	}
}

// errPending ends waiting for a pod.
var errPending = errors.New("it did not start in time")

// make claims a sandbox or a pod that stands by, or makes the Job.
func (b *kubeBox) make(ctx context.Context) error {
	owner, err := claimOwner()
	if err != nil {
		return err
	}
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails on Linux
	l, start := b.launcher, hex.EncodeToString(random)
	if l.config.Claim != "" {
		if err := b.prepareClaim(ctx); err != nil {
			return err
		}
	}
	if b.plan, err = newKubePlan(l.config, b.spec, b.mode, b.base, owner, start); err != nil {
		return err
	}
	b.plan.clears = b.clears
	key, value, _ := strings.Cut(l.watch.labels, "=")
	b.plan.job.Labels[key], b.plan.job.Spec.Template.Labels[key] = value, value
	if l.config.WarmPool != "" {
		return b.fromWarmPool(ctx)
	}
	if l.config.Pool != "" {
		if err := b.fromPool(ctx, start); err != nil || b.object.uid != "" {
			return err
		}
	}
	b.expect(nil)
	select {
	case l.making <- struct{}{}:
		defer func() { <-l.making }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return makeOwner(ctx, b, kube.Jobs, b.plan.whole(), jobMeta)
}

// expect says as what the kick's pod is made: as a standby, or by its own plan.
func (b *kubeBox) expect(standby *kubePlan) {
	b.eye.update(func(e *kubeEye) {
		b.plan.standby = standby
		e.differs = b.plan.differs
	})
}

// makeOwner makes what has the kick's pod, which is b.object then. One of that name
// is what a dead kick of this id has left, since the id is claimed, or what a call
// has made that broke off.
func makeOwner[T any](ctx context.Context, b *kubeBox, r kube.Resource, o *T, meta func(*T) *metav1.ObjectMeta) error {
	want := objectOf(r, meta(o))
	for {
		made, err := kube.Create(ctx, b.client, r, b.launcher.config.Namespace, o, false)
		if apierrors.IsAlreadyExists(err) {
			if made, err = kube.Get[T](ctx, b.client, r, b.launcher.config.Namespace, want.name); apierrors.IsNotFound(err) {
				continue
			}
		}
		switch there := objectOf(r, meta(made)); {
		case err != nil:
			return b.failed(ctx, "make the "+want.String(), err)
		case there.start != want.start:
			if err := b.removeOld(ctx, there); err != nil {
				return err
			}
		default:
			b.object = there
			b.eye.expect(b.object)
			return nil
		}
	}
}

func (b *kubeBox) failed(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return kubeError(op, err)
}

// removeOld removes what a dead kick has left.
func (b *kubeBox) removeOld(ctx context.Context, old kubeObject) error {
	owner, err := claimOwner()
	if err != nil {
		return err
	}
	if old.id != b.spec.ID || old.owner != owner && !old.expired(b.client.Now()) {
		return &Error{Kind: ErrRuntime, Op: "start the sandbox of " + b.spec.ID, Err: fmt.Errorf("there is the %v, and it is not this host's", old), Remedy: "Wait for its end, or remove it: kubectl delete " + strings.ToLower(old.String())}
	}
	return removeObject(ctx, b.client, b.launcher.config.Namespace, old)
}

// removeObject removes what a kick has, and waits until it is gone, which a Job's
// pods are before it.
func removeObject(ctx context.Context, c *kube.Client, namespace string, o kubeObject) error {
	ctx, cancel := context.WithTimeout(ctx, kubeRemove)
	defer cancel()
	e := watchOne(c, namespace, o)
	defer e.close()
	if err := c.Delete(ctx, o.resource, namespace, o.name, o.uid); err != nil {
		return kubeError("remove the "+o.String(), err)
	}
	return e.awaitEnd(ctx, o)
}

// awaitEnd waits until neither it nor its pod is there.
func (e *kubeEye) awaitEnd(ctx context.Context, o kubeObject) error {
	for {
		seen, changed, blind := e.look()
		switch {
		case seen.jobGone && seen.pod == nil, (seen.jobGone || seen.noJob) && seen.podGone:
			return nil
		case blind != nil:
			return kubeError("see the end of the "+o.String(), blind)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &Error{Kind: ErrRuntime, Op: "remove the " + o.String(), Err: fmt.Errorf("it or its pod is still there after %v: %s", kubeRemove, seen.news().why),
				Remedy: "If its node is gone, remove the node or force: kubectl delete pod --force; kick gc looks again"}
		}
	}
}

// awaitPod waits until the pod runs.
func (b *kubeBox) awaitPod(ctx context.Context) (kubeNews, error) {
	for {
		seen, changed, blind := b.eye.look()
		if name := seen.untaken(); name != "" {
			if took, err := b.takePod(ctx, name); err != nil {
				return kubeNews{}, err
			} else if took {
				continue
			}
		}
		n := seen.news()
		begun, installing := installs(seen.pod)
		b.begun = b.begun || begun || blind != nil
		fail := func(err error) (kubeNews, error) {
			return n, &Error{Kind: ErrRuntime, Op: "start the pod of the " + b.object.String(), Err: err, Remedy: n.remedy}
		}
		switch {
		case blind != nil:
			return n, kubeError("watch the "+b.object.String(), blind)
		case n.phase == kubeRunning:
			b.pod = seen.pod
			return n, nil
		case n.phase == kubeEnded:
			return fail(errors.New(escaped(n.why)))
		case b.adopted && seen.pod != nil && seen.pod.Status.Phase == corev1.PodPending:
			return n, errNothingRan
		case installing && !b.given && b.objects != nil:
			return n, errWantsBase
		}
		select {
		case <-changed:
		case <-b.waits.still(n.why):
			b.waits.tell(n.why, b.spec.OnEvent)
		case <-ctx.Done():
			if err := context.Cause(ctx); errors.Is(err, errPending) || b.adopted {
				return fail(fmt.Errorf("%w: %s", err, escaped(n.why)))
			}
			return n, context.Cause(ctx)
		}
	}
}

// find finds what a dead kick of this id has left.
func (b *kubeBox) find(ctx context.Context) error {
	l := b.launcher
	r, want := l.owner(), kubeObject{resource: l.owner(), name: "kick-" + b.spec.ID}
	b.adopted = true
	o, err := kube.Get[metav1.PartialObjectMetadata](ctx, b.client, r, l.config.Namespace, want.name)
	switch {
	case err == nil && o.Labels[labelID] != b.spec.ID:
		return &Error{Kind: ErrRuntime, Op: "collect the work of " + want.name, Err: fmt.Errorf("the %v is not kick's", want)}
	case err == nil:
		b.object = objectOf(r, &o.ObjectMeta)
		return nil
	case !apierrors.IsNotFound(err):
		return b.failed(ctx, "look at the "+want.String(), err)
	}
	p, err := claimedPod(ctx, b.client, l.config.Namespace, b.spec.ID)
	switch {
	case err != nil:
		return b.failed(ctx, "look for a pod that "+b.spec.ID+" has claimed", err)
	case p == nil:
		return &Error{Kind: ErrRuntime, Op: "collect the work of " + want.name, Err: errPodGone, Remedy: "What had come back before is kept"}
	}
	b.object = objectOf(kube.Pods, &p.ObjectMeta)
	return nil
}

// adopt comes to the pod that a dead process has left. That is removed if it cannot
// have work: what cannot be seen or come to now, another attempt may.
func (b *kubeBox) adopt(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, kubeAdopt, errPending)
	defer cancel()
	b.keeps = true
	if n, err := b.awaitPod(ctx); n.phase == kubeEnded {
		b.keeps = false
		return errors.Join(errPodGone, err)
	} else if err != nil {
		b.keeps = !errors.Is(err, errNothingRan)
		return err
	}
	for {
		conn, err := b.connect(ctx)
		if err == nil {
			var waits bool
			if waits, err = resume.Waits(conn); waits {
				b.keeps = false
				return errNothingRan
			}
		}
		switch {
		case err == nil:
			return nil
		case !kube.Pause(ctx, 200*time.Millisecond):
			return &Error{Kind: ErrRuntime, Op: "come to the pod of the " + b.object.String(), Err: errors.Join(context.Cause(ctx), errors.New(escaped(err.Error()))),
				Remedy: "See whether the API server reaches the node; kick gc tries again"}
		}
	}
}

// connect opens a line to the shim.
func (b *kubeBox) connect(ctx context.Context) (io.ReadWriteCloser, error) {
	shim := b.pod.Spec.Containers[0].Command[0]
	return b.client.Exec(ctx, b.launcher.config.Namespace, b.pod.Name, kubeContainer, []string{shim, "line"}, &b.words)
}

// carry connects with the shim, again and again while the pod runs. It gives up when
// a pod that nobody has come to has stopped its command.
func (b *kubeBox) carry(ctx context.Context) {
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
		if conn != nil && !errors.Is(err, resume.ErrGreeting) { // it was connected
			since = time.Now()
		}
		if time.Since(begun) > time.Second {
			pause = 10 * time.Millisecond
		}
		if final := strings.Contains(err.Error(), "orbidden") && !b.client.Settling() || time.Since(since) > b.launcher.config.Alone; final {
			b.noteEnd(kubeNews{phase: kubeEnded, reason: ReasonLost, why: fmt.Sprintf("the line to the pod is cut for %v: %s", time.Since(since).Round(time.Second), escaped(err.Error()))})
			b.line.End()
			return
		}
		if !kube.Pause(ctx, pause) {
			return
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// attendEnd notes how the pod ends, and ends the line then.
func (b *kubeBox) attendEnd(ctx context.Context, lost chan<- loss) {
	for {
		seen, changed, blind := b.eye.look()
		n := seen.news()
		if blind != nil {
			n = kubeNews{phase: kubeEnded, reason: ReasonLost, why: kubeError("watch the pod", blind).Error()}
		}
		if n.phase == kubeEnded {
			b.noteEnd(n)
			close(b.gonech)
			lost <- loss{n.reason, escaped(n.why), cmp.Or(n.remedy, "Look at what the cluster says of it, and start the kick again")}
			// What the pod has said by then is on the way, if anything is.
			kube.Pause(ctx, lastBytes)
			b.line.End()
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			close(b.gonech)
			return
		}
	}
}

// lastBytes is how long what a pod has sent may take to come when it has ended.
const lastBytes = time.Second

func (b *kubeBox) configs() ([]frame.Config, error) {
	p := b.plan
	if p == nil {
		p = &kubePlan{config: b.launcher.config, spec: b.spec, limits: resolveLimits(b.spec.Limits), mode: b.mode}
	}
	return []frame.Config{p.shimConfig()}, nil
}

// admit tells the gateway where the sandbox's connections come from.
func (b *kubeBox) admit() error {
	t := b.spec.Egress.TCP
	if t == nil || b.mode == frame.CollectMode {
		return nil
	}
	seen, _, _ := b.eye.look()
	ip, err := podAddress(seen.pod.Status, t.Address)
	if err == nil {
		err = t.Admit(ip)
	}
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "tell the gateway the pod's address", Err: err}
	}
	return nil
}

// podAddress returns the address from which a pod comes to the gateway: of those of
// a pod with two families, the one that is of the gateway's.
func podAddress(s corev1.PodStatus, gateway string) (netip.Addr, error) {
	to, err := netip.ParseAddrPort(gateway)
	if err != nil || len(s.PodIPs) == 0 {
		return netip.ParseAddr(s.PodIP)
	}
	for _, p := range s.PodIPs {
		if ip, err := netip.ParseAddr(p.IP); err == nil && ip.Unmap().Is4() == to.Addr().Unmap().Is4() {
			return ip, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the pod has %v, and none is of the kind of the gateway's address %s: name an address of the gateway that is", s.PodIPs, to.Addr())
}

// kill ends the pod at once: it is deleted, or its Job.
func (b *kubeBox) kill() { b.killObject(b.client, b.launcher.config.Namespace, b.object) }

// describe tells what ran.
func (b *kubeBox) describe(r *Result) {
	if b.pod == nil {
		return
	}
	for _, c := range b.pod.Status.ContainerStatuses {
		r.Image = cmp.Or(c.ImageID, b.spec.Image)
	}
	r.Isolation.Engine = "Kubernetes, node " + b.pod.Spec.NodeName
	switch {
	case b.cold != "":
		r.Isolation.Engine += ", " + b.cold
	case b.object.resource == kube.Pods:
		r.Isolation.Engine += ", a pod of pool " + b.pod.Labels[labelPool]
	case b.object.resource == kube.SandboxClaims && b.pod.Name == b.object.name:
		r.Isolation.Engine += ", a pod made for its claim, since of warm pool " + b.launcher.config.WarmPool + " none was ready"
	case b.object.resource == kube.SandboxClaims:
		r.Isolation.Engine += ", a pod of warm pool " + b.launcher.config.WarmPool
	}
}

func (b *kubeBox) end() (boxUsage, error) {
	b.mu.Lock()
	b.killed = true // from here on there is nothing to kill, and the end is ours
	b.mu.Unlock()
	b.cancel()
	b.line.End()
	err := b.remove()
	b.carried.Wait()
	b.eye.close()
	var used boxUsage
	if b.ending.reason == ReasonOutOfMemory {
		used.oomKills++
	}
	return used, err
}

// remove deletes what the kick has, and returns when it is gone with its pod.
func (b *kubeBox) remove() error {
	o := b.object
	if o.uid == "" {
		return nil // none was made
	}
	ctx, cancel := context.WithTimeout(context.Background(), kubeRemove)
	defer cancel()
	if err := b.client.Delete(ctx, o.resource, b.launcher.config.Namespace, o.name, o.uid); err != nil {
		return kubeError("remove the "+o.String(), err)
	}
	return b.eye.awaitEnd(ctx, o)
}
