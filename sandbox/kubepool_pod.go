package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// KubernetesPoolRules is what a launcher with a pool asks of the API server beside
// KubernetesRules.
var KubernetesPoolRules = []KubernetesRule{
	{"", "pods", []string{"patch", "delete"}, "a claim is a patch of a pod that stands by; a claimed one has no Job that would delete it"},
}

// StandbyDeployment is a Deployment of pods that stand by: as much of its kind as
// is written, so that nobody has to register all of its group.
type StandbyDeployment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              StandbyDeploymentSpec `json:"spec"`
}

// StandbyDeploymentSpec is its specification.
type StandbyDeploymentSpec struct {
	Replicas             int                    `json:"replicas"`
	RevisionHistoryLimit int                    `json:"revisionHistoryLimit"`
	Selector             metav1.LabelSelector   `json:"selector"`
	Template             corev1.PodTemplateSpec `json:"template"`
}

// NewStandbyDeployment makes a pool of c.Pool's name of pods for kicks of an image
// and limits, as a launcher of the same configuration claims them. replicas is how
// many stand by at any time.
func NewStandbyDeployment(c KubernetesConfig, image string, limits Limits, replicas int) (*StandbyDeployment, error) {
	if c.Pool == "" || image == "" || replicas < 0 {
		return nil, errors.New("a pool wants a name, an image and a number of pods")
	}
	spec := LaunchSpec{Image: image, Limits: limits, Workspace: Workspace{MountPath: DefaultMountPath}}
	p, shape, err := standbyPlan(c, spec)
	if err != nil {
		return nil, err
	}
	pod := p.pod()
	pod.RestartPolicy = corev1.RestartPolicyAlways // a Deployment's pods have no other
	owned := map[string]string{labelPool: c.Pool, labelStandby: standsNew}
	labels := maps.Clone(owned)
	labels[labelShape] = shape
	return &StandbyDeployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: "kick-pool-" + c.Pool, Namespace: c.Namespace, Labels: map[string]string{labelPool: c.Pool}},
		Spec: StandbyDeploymentSpec{
			Replicas: replicas, Selector: metav1.LabelSelector{MatchLabels: owned},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}, nil
}

// standbyPlan is that of the pod of a kick of this specification, as it is before
// there is a kick. It has whatever any kick may need: a place for the base, and for
// what the gateway's way needs.
func standbyPlan(c KubernetesConfig, spec LaunchSpec) (p *kubePlan, shape string, err error) {
	filter, err := systemCallFilter()
	if err != nil {
		return nil, "", &Error{Kind: ErrIsolation, Op: "seccomp", Err: err, Remedy: remedyOf("seccomp")}
	}
	spec.ID, spec.Workspace.BaseOID, spec.Egress.Port = "", "any", 1
	c.setDefaults()
	p = &kubePlan{config: c, spec: spec, limits: resolveLimits(spec.Limits), filter: filter, stands: true}
	p.rlimits = p.kubeRlimits()
	shape, err = shapeOf(p.pod())
	return p, shape, err
}

// fromPool gives the kick a pod that stands by, which is b.object then. Where it does
// not, the kick is to have a Job, and why is in b.cold.
func (b *kubeBox) fromPool(ctx context.Context, start string) error {
	l := b.launcher
	standby, shape, err := standbyPlan(l.config, b.spec)
	if err != nil {
		return err
	}
	b.cold = ""
	b.expect(standby)
	old, err := kube.Get[metav1.PartialObjectMetadata](ctx, b.client, kube.Jobs, l.config.Namespace, b.plan.job.Name)
	if err == nil {
		err = b.removeOld(ctx, objectOf(kube.Jobs, &old.ObjectMeta))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return b.failed(ctx, "look at the Job "+b.plan.job.Name, err)
	}
	labels := maps.Clone(b.plan.job.Spec.Template.Labels)
	pool := &kubePool[corev1.Pod]{
		client: b.client, resource: kube.Pods, namespace: l.config.Namespace, label: labelPool, name: l.config.Pool, stands: standsNew, shape: shape,
		meta: func(p *corev1.Pod) *metav1.ObjectMeta { return &p.ObjectMeta }, ready: podStandsBy,
	}
	claimed, err := pool.claim(ctx, kubeClaim[corev1.Pod]{
		id: b.spec.ID, start: start, labels: labels, annotations: b.plan.job.Annotations, lifetime: b.plan.lifetime(),
		spec:   b.deadline,
		remove: func(p *corev1.Pod) error { return b.removeOld(ctx, objectOf(kube.Pods, &p.ObjectMeta)) },
	}, l.config.PoolWait)
	switch {
	case errors.Is(err, errNoStandby), errors.Is(err, errNoShape):
		b.cold = fmt.Sprintf("a Job, since of pool %s %v", l.config.Pool, err)
		return nil
	case err != nil:
		return b.failed(ctx, "claim a pod of pool "+l.config.Pool, err)
	}
	b.object = objectOf(kube.Pods, &claimed.ObjectMeta)
	b.eye.update(func(e *kubeEye) {
		e.uid, e.seen = b.object.uid, kubeSeen{noJob: true, unlisted: true}
		e.keep(claimed)
	})
	return nil
}

// deadline is what of a pod is changed with the claim. From then on the node ends
// it, whatever has become of kick.
func (b *kubeBox) deadline(p *corev1.Pod) map[string]any {
	age := time.Duration(0)
	if p.Status.StartTime != nil {
		age = max(b.client.Now().Sub(p.Status.StartTime.Time), 0)
	}
	return map[string]any{"activeDeadlineSeconds": int64(math.Ceil((age + b.plan.lifetime()).Seconds()))}
}

// podStandsBy tells a pod whose shim waits, and has from the pod's start: one that
// was started again may have had a kick. One that has a deadline had one, for that
// comes with a claim and nobody can take it away. Of a pod whose node is away the
// cluster says that it is not ready, and nothing else.
func podStandsBy(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Labels[labelID] != "" || p.Spec.ActiveDeadlineSeconds != nil || len(p.Spec.EphemeralContainers) > 0 {
		return false
	}
	restarted := slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.RestartCount > 0 })
	return !restarted && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// claimedPod finds the pod that a dead kick of this id has claimed; nil if none.
func claimedPod(ctx context.Context, c *kube.Client, namespace, id string) (*corev1.Pod, error) {
	list, err := claimedPods(ctx, c, namespace, "="+id)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// claimedPods are the pods that were claimed by kicks. which ends a selector of
// their ids; empty: all.
func claimedPods(ctx context.Context, c *kube.Client, namespace, which string) ([]corev1.Pod, error) {
	list, _, err := kube.List[corev1.Pod](ctx, c, kube.Selection{Resource: kube.Pods, Namespace: namespace, Labels: labelPool + ",!" + labelStandby + "," + labelID + which})
	return list, err
}

// kubeObject is what a kick has in the cluster, and its end is the kick's: a Job, a
// claim of a sandbox, or a pod that it has claimed.
type kubeObject struct {
	resource  kube.Resource
	name, uid string
	id, owner string    // of the kick
	start     string    // which attempt has made it
	expires   time.Time // by the API server's clock; zero: unknown
	ended     bool      // of those that are listed: nothing runs in it any more
}

func objectOf(r kube.Resource, m *metav1.ObjectMeta) kubeObject {
	o := kubeObject{resource: r, name: m.Name, uid: string(m.UID), id: m.Labels[labelID], owner: m.Labels[labelOwner], start: m.Annotations[jobStart]}
	if lifetime, err := time.ParseDuration(m.Annotations[jobLifetime]); err == nil {
		o.expires = m.CreationTimestamp.Add(lifetime)
	}
	return o
}

// String is for messages.
func (o kubeObject) String() string {
	return map[kube.Resource]string{kube.Jobs: "Job ", kube.Pods: "pod ", kube.SandboxClaims: "SandboxClaim ", kubevirtapi.Instances: "machine "}[o.resource] + o.name
}

// expired tells what should have ended, where now is kube.Client.Now: hosts whose
// clocks differ share a namespace.
func (o kubeObject) expired(now time.Time) bool { return !o.expires.IsZero() && now.After(o.expires) }
