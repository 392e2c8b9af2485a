package sandbox

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// KubeVirtLinger is how machines stay when their kick has ended, for the next one of
// the same LaunchSpec.Trust. The zero value: none does.
//
// The sandbox in such a machine is made and proved anew for each kick. What an agent
// has done that came out of its sandbox meets the next kick of the same trust, and no
// other.
type KubeVirtLinger struct {
	// Machines is how many linger at most, of one state directory in one namespace.
	// When there are more, those go whose time is over first.
	Machines int `json:"machines"`
	// For is how long each of them lingers.
	For time.Duration `json:"for"`
}

// Bounds of KubeVirtLinger.
const (
	MaxLingering = 100
	MaxLinger    = 24 * time.Hour
)

func (g KubeVirtLinger) check() error {
	if g == (KubeVirtLinger{}) || g.Machines >= 1 && g.Machines <= MaxLingering && g.For >= time.Second && g.For <= MaxLinger {
		return nil
	}
	return specError("machines that linger", fmt.Errorf("%d for %v", g.Machines, g.For), fmt.Sprintf("Use 1 to %d machines and a second to %v, or neither", MaxLingering, MaxLinger))
}

// What a machine says of itself that lingers or may.
const (
	labelLinger  = "kick.linger" // whose it is, see lingerFor; it stays after the claim
	standsAgain  = "again"       // the labelStandby of one that lingers
	machineLife  = "kick.life"   // how long its guest lives, from its making on
	machineKicks = "kick.kicks"  // how many it has had
)

// lingers tells whether the kick's machine may linger.
func (p *kubeVirtPlan) lingers() bool {
	return p.config.Linger.Machines > 0 && p.spec.Trust != "" && p.mode != frame.CollectMode
}

// life is how long the guest is made to live: one that may linger has room for another
// kick after that.
func (p *kubeVirtPlan) life() time.Duration {
	once := p.lifetime()
	if !p.lingers() {
		return once
	}
	return max(once, min(once+p.config.Linger.For+once, standbyLife))
}

// endOfLife is when a machine's guest powers it off, or a little earlier; zero: nobody
// knows.
func endOfLife(m *kubevirtapi.Instance) time.Time {
	life := standbyLife
	if m.Labels[labelPool] == "" {
		var err error
		if life, err = time.ParseDuration(m.Annotations[machineLife]); err != nil {
			return time.Time{}
		}
	}
	return m.CreationTimestamp.Add(life)
}

// lingering tells a machine that waits for another kick.
func lingering(m *kubevirtapi.Instance) bool { return m.Labels[labelStandby] == standsAgain }

// lingerState begins what names the machines that linger for kicks of this state.
func (l *KubeVirt) lingerState() string {
	return hex.EncodeToString(deriveKey(l.cluster.key, "lingering")[:8]) + "."
}

// lingerFor names those who may have one machine one after another: kicks of this
// state, of one trust, that come into it as one user. Nobody else can make the name.
func (l *KubeVirt) lingerFor(trust string) string {
	return l.lingerState() + hex.EncodeToString(deriveKey(l.cluster.key, "linger of "+l.config.User+" "+trust)[:16])
}

// lingerShape is what the kick's machine is made as, whatever its Secret is called.
func (p *kubeVirtPlan) lingerShape() (string, error) {
	bare := *p
	bare.standby, bare.spec.ID = "", ""
	return shapeOf(bare.machine())
}

// again gives the kick a machine that lingers, with its sandbox in it; nil if there is
// none. One in which that cannot be made is no use to others either, and is removed.
func (b *kubeVirtBox) again(ctx context.Context) (*guestConn, error) {
	if b.adopted != nil || !b.plan.lingers() {
		return nil, nil
	}
	shape, err := b.plan.lingerShape()
	if err != nil {
		return nil, err
	}
	claimed, err := b.claim(ctx, &kubePool[kubevirtapi.Instance]{
		label: labelLinger, name: b.launcher.lingerFor(b.spec.Trust), stands: standsAgain, shape: shape, ready: b.fitsAgain,
	}, 0)
	if errors.Is(err, errNoStandby) || errors.Is(err, errNoShape) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	before, _ := strconv.Atoi(claimed.Annotations[machineKicks]) // for people
	b.kicks = max(before, 1)
	conn, err := b.inside(ctx, claimed)
	if err == nil || ctx.Err() != nil || !b.eye.isGone() {
		return conn, err
	}
	b.cold = append(b.cold, "not of a machine that lingered: "+escaped(err.Error()))
	b.kicks, b.eye, b.dir = 0, nil, ""
	return nil, nil
}

// fitsAgain tells a machine that lingers and lives long enough.
func (b *kubeVirtBox) fitsAgain(m *kubevirtapi.Instance) bool {
	now := b.client.Now()
	o := objectOf(kubevirtapi.Instances, &m.ObjectMeta)
	return machineNews(m).phase == kubeRunning && !o.expires.IsZero() && !o.expired(now) && now.Add(b.plan.lifetime()).Before(endOfLife(m))
}

// leaveTime bounds how long a kick's end waits to have its machine linger, and leaveEnds
// how long, of that, the last processes of its sandbox and its connections take to end.
const (
	leaveTime = time.Minute
	leaveEnds = 20 * time.Second
)

// leave lets the machine linger, if nothing of the kick is left in it, and tells
// whether it does or, with an error, may. Whoever removes it then must look first.
func (b *kubeVirtBox) leave() (lingers bool, err error) {
	b.carried.Wait() // else its connections would be found in the machine
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	if err := b.sweep(ctx); err != nil {
		b.after = "it does not linger: " + escaped(err.Error())
		return false, nil
	}
	until, lingers, err := b.release(ctx)
	if !lingers {
		b.after = "it does not linger: " + escaped(err.Error())
		return false, nil
	}
	b.after = "it lingers until " + until.UTC().Format(time.RFC3339)
	if err == nil {
		if err := b.launcher.evict(ctx, b.launcher.config.Linger.Machines); err != nil {
			b.after += "; one that is to go for it does not: " + escaped(err.Error())
		}
	}
	return true, err
}

// sweep removes what the kick has in the machine, if no process of it is left there.
func (b *kubeVirtBox) sweep(ctx context.Context) error {
	conn, err := b.guest.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing more is said over it
	leave, err := json.Marshal(frame.Leave{Dir: b.dir, Before: b.machine.Processes, PatienceMS: leaveEnds.Milliseconds()})
	if err != nil {
		return err
	}
	_, err = conn.command(ctx, b.dir+"/kick-shim leave", bytes.NewReader(leave))
	return err
}

// release takes the kick's name from its machine and has it linger, at once or not at
// all. An error beside true: nobody knows whether it does.
func (b *kubeVirtBox) release(ctx context.Context) (until time.Time, lingers bool, err error) {
	l := b.launcher
	shape, err := b.plan.lingerShape()
	if err != nil {
		return until, false, err
	}
	labels := map[string]any{}
	for k := range b.plan.instance.Labels {
		labels[k] = nil
	}
	delete(labels, labelOwner)
	delete(labels, labelNetwork)
	labels[labelLinger], labels[labelStandby], labels[labelShape] = l.lingerFor(b.spec.Trust), standsAgain, shape
	// A conflict is KubeVirt's own change of the status, or this patch, whose answer
	// was lost: the machine tells. A few of the first come one after the other.
	const most = 5
	for n := 0; ; n++ {
		m, look := kube.Get[kubevirtapi.Instance](ctx, b.client, kubevirtapi.Instances, l.config.Namespace, b.eye.object.name)
		switch {
		case look != nil && n == 0, apierrors.IsNotFound(look):
			return until, false, look
		case look != nil:
			return until, true, b.failed(ctx, "see whether the "+b.eye.object.String()+" lingers", look)
		case m.Labels[labelID] != b.spec.ID || m.Annotations[jobStart] != b.eye.object.start:
			if n == 0 {
				return until, false, errors.New("somebody else has changed whose it is")
			}
			return until, true, nil
		case n == most:
			return until, false, err
		}
		now := b.client.Now()
		if until = now.Add(l.config.Linger.For); until.After(endOfLife(m).Add(-b.plan.lifetime())) {
			until = endOfLife(m).Add(-b.plan.lifetime())
		}
		if !until.After(now) {
			return until, false, errors.New("it has no time for another kick")
		}
		_, err = kube.Patch[kubevirtapi.Instance](ctx, b.client, kubevirtapi.Instances, l.config.Namespace, m.Name, map[string]any{"metadata": map[string]any{
			"resourceVersion": m.ResourceVersion, "labels": labels,
			"annotations": map[string]any{jobStart: nil, jobLifetime: until.Sub(m.CreationTimestamp.Time).String(), machineKicks: strconv.Itoa(b.kicks + 1)},
		}})
		if err == nil {
			return until, true, nil
		}
	}
}

// evict removes machines that linger, while there are more than so many.
func (l *KubeVirt) evict(ctx context.Context, most int) error {
	for {
		list, err := l.lingerers(ctx)
		if err != nil || len(list) <= most {
			return err
		}
		if _, err := l.removeLingering(ctx, &list[0]); err != nil {
			return err
		}
	}
}

// makeRoom removes one machine that lingers, for one that a quota has no room for, and
// tells whether it has.
func (l *KubeVirt) makeRoom(ctx context.Context) (bool, error) {
	list, err := l.lingerers(ctx)
	if err != nil || len(list) == 0 {
		return false, err
	}
	return l.removeLingering(ctx, &list[0])
}

// lingerers are the machines that linger for kicks of this state, in the order in which
// their time is over.
func (l *KubeVirt) lingerers(ctx context.Context) ([]kubevirtapi.Instance, error) {
	list, _, err := kube.List[kubevirtapi.Instance](ctx, l.cluster.client, kube.Selection{Resource: kubevirtapi.Instances, Namespace: l.config.Namespace, Labels: labelStandby + "=" + standsAgain})
	if err != nil {
		return nil, kubeError("list the machines that linger", err)
	}
	list = slices.DeleteFunc(list, func(m kubevirtapi.Instance) bool { return m.DeletionTimestamp != nil || !l.ours(&m) })
	expires := func(m kubevirtapi.Instance) time.Time { return objectOf(kubevirtapi.Instances, &m.ObjectMeta).expires }
	slices.SortFunc(list, func(a, b kubevirtapi.Instance) int { return expires(a).Compare(expires(b)) })
	return list, nil
}

// ours tells a machine that lingers for kicks of this state.
func (l *KubeVirt) ours(m *kubevirtapi.Instance) bool {
	return strings.HasPrefix(m.Labels[labelLinger], l.lingerState())
}

// removeLingering removes a machine that lingers, unless a kick has claimed it since it
// was seen.
func (l *KubeVirt) removeLingering(ctx context.Context, m *kubevirtapi.Instance) (removed bool, err error) {
	seen := metav1.ObjectMeta{Namespace: l.config.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	if ok, err := l.cluster.client.DeleteSeen(ctx, kubevirtapi.Instances, &seen); !ok || err != nil {
		return false, err
	}
	e := followMachine(l.cluster.client, l.config.Namespace, m)
	defer e.close()
	err = e.remove()
	return err == nil, err
}

// reapLingering removes one whose time is over, or that has ended.
func (l *KubeVirt) reapLingering(ctx context.Context, m *kubevirtapi.Instance) (removed bool, err error) {
	o := objectOf(kubevirtapi.Instances, &m.ObjectMeta)
	if !o.expired(l.cluster.client.Now()) && !(l.ours(m) && machineNews(m).phase == kubeEnded) {
		return false, nil
	}
	return l.removeLingering(ctx, m)
}
