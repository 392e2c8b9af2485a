package sandbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// make makes the instance, and then the Secret that its node waits for, which so
// belongs to it from the start. An instance of that name is what a dead kick of this
// id has left, since the id is claimed, or what a call has made that broke off.
func (b *kubeVirtBox) make(ctx context.Context) error {
	l := b.launcher
	name := b.plan.instance.Name
	for {
		made, err := b.create(ctx)
		if apierrors.IsAlreadyExists(err) {
			old, err := kube.Get[kubevirtapi.Instance](ctx, b.client, kubevirtapi.Instances, l.config.Namespace, name)
			switch {
			case apierrors.IsNotFound(err):
				continue
			case err != nil:
				return b.failed(ctx, "look at the machine "+name, err)
			case old.Annotations[jobStart] == b.plan.instance.Annotations[jobStart]:
				made = old
			default:
				if err := b.removeOld(ctx, old); err != nil {
					return err
				}
				continue
			}
		} else if err != nil {
			return b.failed(ctx, "make the machine "+name, err)
		}
		b.follow(made)
		break
	}
	secret, err := b.plan.secret(b.eye.object.uid, l.keysFor(b.eye.instance()))
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "make the keys of the machine " + name, Err: err}
	}
	if _, err := kube.Create(ctx, b.client, kube.Secrets, l.config.Namespace, secret, false); err != nil && !apierrors.IsAlreadyExists(err) {
		return b.failed(ctx, "make the Secret of the machine "+name, err)
	}
	return nil
}

// recounted is how long a quota may take to be counted anew when a machine has gone.
const recounted = 10 * time.Second

// create asks for the instance, again and again while a quota has no room for it, as
// the controller of a Job does for its pod. Machines that linger make room.
func (b *kubeVirtBox) create(ctx context.Context) (*kubevirtapi.Instance, error) {
	waiting, cancel := context.WithTimeout(ctx, b.launcher.config.Pending)
	defer cancel()
	var freed time.Time
	for pause := enterFirst; ; pause = min(2*pause, enterMost) {
		made, err := kube.Create(ctx, b.client, kubevirtapi.Instances, b.launcher.config.Namespace, b.plan.instance, false)
		if !noRoom(err) {
			return made, err
		}
		b.waits.tell("a quota has no room for the machine", b.spec.OnEvent)
		if time.Since(freed) > recounted {
			if ok, _ := b.launcher.makeRoom(waiting); ok { // if not, or nobody knows, waiting may help
				freed = time.Now()
			}
		}
		if !kube.Pause(waiting, pause) {
			return made, err
		}
	}
}

func (b *kubeVirtBox) failed(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if apierrors.IsNotFound(err) {
		return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: "Is KubeVirt in the cluster (kubectl get crd virtualmachineinstances.kubevirt.io), and is there the namespace?"}
	}
	return kubeError(op, err)
}

// removeOld removes what a dead kick has left, or what lingers after an earlier one of
// this id.
func (b *kubeVirtBox) removeOld(ctx context.Context, old *kubevirtapi.Instance) error {
	o := objectOf(kubevirtapi.Instances, &old.ObjectMeta)
	if lingering(old) && b.launcher.ours(old) {
		_, err := b.launcher.removeLingering(ctx, old)
		return err
	}
	if o.id != b.spec.ID || o.owner != b.plan.instance.Labels[labelOwner] && !o.expired(b.client.Now()) {
		return &Error{Kind: ErrRuntime, Op: "start the sandbox of " + b.spec.ID, Err: fmt.Errorf("there is the %v, and it is not this host's", o), Remedy: "Wait for its end, or remove it: kubectl delete vmi " + o.name}
	}
	e := followMachine(b.client, b.launcher.config.Namespace, old)
	defer e.close()
	return e.remove()
}

// find finds what a dead kick of this id has left.
func (b *kubeVirtBox) find(ctx context.Context) error {
	list, _, err := kube.List[kubevirtapi.Instance](ctx, b.client, kube.Selection{Resource: kubevirtapi.Instances, Namespace: b.launcher.config.Namespace, Labels: labelID + "=" + b.spec.ID})
	if err != nil {
		return b.failed(ctx, "look for the machine of "+b.spec.ID, err)
	}
	i := slices.IndexFunc(list, func(m kubevirtapi.Instance) bool { return ofKick(&m) })
	if i < 0 {
		return &Error{Kind: ErrRuntime, Op: "collect the work of " + b.spec.ID, Err: errMachineGone, Remedy: "What had come back before is kept"}
	}
	m := &list[i]
	b.adopted = m
	b.plan = newKubeVirtPlan(b.launcher.config, b.spec, b.mode, m.Labels[labelOwner], m.Annotations[jobStart])
	return nil
}
