package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/kube"
)

// A kick with a warm pool of agent-sandbox (sigs.k8s.io/agent-sandbox) has a
// SandboxClaim in place of a Job. Agent-sandbox's controller gives the claim a
// sandbox that stands by, or makes one; kick takes the pod by a patch, and from then
// on follows it as a Job's. The claim's end is the pod's.

// KubernetesWarmRules is all that a launcher with a warm pool asks of the API
// server. It is no more than that makes pods.
var KubernetesWarmRules = []KubernetesRule{
	{kube.SandboxClaims.Group, kube.SandboxClaims.Name, []string{"create", "get", "list", "watch", "delete"}, "one claim for each kick; get is for those that a dead kick has left"},
	{kube.SandboxWarmPools.Group, kube.SandboxWarmPools.Name, []string{"get"}, "what the pool's pods are made as"},
	{"", "pods", []string{"list", "watch", "patch"}, "the claim's pod: its state and its end; with the patch come its kick's labels and its deadline"},
	{"", "pods/exec", []string{"get", "create"}, "the line to the shim; newer API servers want create too"},
	{"", "events", []string{"list", "watch"}, "why a pod does not start"},
}

// sandboxClaim is a SandboxClaim: as much of its kind as is used.
type sandboxClaim struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta  `json:"metadata"`
	Spec            sandboxClaimSpec   `json:"spec"`
	Status          sandboxClaimStatus `json:"status,omitzero"`
}

type sandboxClaimSpec struct {
	WarmPoolRef sandboxRef       `json:"warmPoolRef"`
	Lifecycle   sandboxLifecycle `json:"lifecycle"`
}

type sandboxRef struct {
	Name string `json:"name"`
}

// sandboxLifecycle is when the controller ends a claim, whatever has become of kick.
type sandboxLifecycle struct {
	ShutdownTime            string `json:"shutdownTime"`
	ShutdownPolicy          string `json:"shutdownPolicy"`
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished"`
}

type sandboxClaimStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	Sandbox    sandboxRef         `json:"sandbox,omitzero"` // whose name is also its pod's
}

func (c *sandboxClaim) meta() *metav1.ObjectMeta { return &c.Metadata }

// condition is the one of a kind; its zero value, if there is none.
func (c *sandboxClaim) condition(kind string) metav1.Condition {
	for _, c := range c.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

// news is what a claim says of itself whose pod was not taken yet.
func (c *sandboxClaim) news() kubeNews {
	ready := c.condition("Ready")
	n := kubeNews{why: fmt.Sprintf("the claim waits: %s: %s", ready.Reason, ready.Message)}
	refuse := func(why, remedy string) kubeNews {
		return kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: why + ready.Message, remedy: remedy}
	}
	switch {
	case ready.Type == "":
		n.why = "nothing has looked at the claim yet"
		n.remedy = "See whether the controller of agent-sandbox runs, with its extensions: kubectl get pods --namespace agent-sandbox-system"
	case ready.Reason == "TemplateNotFound" || ready.Reason == "WarmPoolNotFound":
		return refuse("the claim cannot be served: "+ready.Reason+": ", remedyWarmPool)
	case ready.Reason == "ClaimExpired":
		return refuse("the claim's time is over: ", "See whether the clocks of this host and of the cluster agree")
	case strings.Contains(ready.Message, "exceeded quota"):
		n.why, n.remedy = "quota is full: "+ready.Message, remedyQuota
	case strings.Contains(ready.Message, "is forbidden"):
		return refuse("the pod was refused: ", remedyRefused)
	}
	return n
}

// remedyWarmPool is what to do about a warm pool that is not as a kick wants it.
const remedyWarmPool = "Apply what this kick prints for the agent: kick manifests kubernetes --agent NAME"

// untaken is the name of the claim's pod, if that is known and the pod not yet the
// kick's.
func (s *kubeSeen) untaken() string {
	if s.claim == nil || s.pod != nil || s.jobGone {
		return ""
	}
	return s.claim.Status.Sandbox.Name
}

// fromWarmPool makes the kick's claim.
func (b *kubeBox) fromWarmPool(ctx context.Context) error {
	l, job := b.launcher, b.plan.job
	standby, shape, err := standbyPlan(l.config, b.spec)
	if err != nil {
		return err
	}
	b.shape = shape
	b.expect(standby)
	if err := b.checkWarmPool(ctx); err != nil {
		return err
	}
	return makeOwner(ctx, b, kube.SandboxClaims, &sandboxClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: kube.SandboxClaims.Group + "/" + kube.SandboxClaims.Version, Kind: "SandboxClaim"},
		Metadata: metav1.ObjectMeta{Name: job.Name, Namespace: job.Namespace, Labels: job.Labels, Annotations: job.Annotations},
		Spec: sandboxClaimSpec{
			WarmPoolRef: sandboxRef{l.config.WarmPool},
			Lifecycle:   sandboxLifecycle{b.client.Now().Add(b.plan.lifetime()).UTC().Format(time.RFC3339), "DeleteForeground", job.Spec.TTLSecondsAfterFinished},
		},
	}, (*sandboxClaim).meta)
}

// checkWarmPool looks whether the pool is there, and of pods as the kick's.
func (b *kubeBox) checkWarmPool(ctx context.Context) error {
	name := b.launcher.config.WarmPool
	pool, err := kube.Get[metav1.PartialObjectMetadata](ctx, b.client, kube.SandboxWarmPools, b.launcher.config.Namespace, name)
	var status *apierrors.StatusError
	switch {
	case apierrors.IsNotFound(err) && errors.As(err, &status) && (status.ErrStatus.Details == nil || status.ErrStatus.Details.Name == ""):
		return &Error{Kind: ErrRuntime, Op: "find warm pool " + name, Err: errors.New("the cluster has no SandboxWarmPools"),
			Remedy: "Install agent-sandbox with its extensions (" + kube.SandboxWarmPools.Group + "/" + kube.SandboxWarmPools.Version + "), or leave kubernetes.warm_pool out"}
	case apierrors.IsNotFound(err):
		return &Error{Kind: ErrRuntime, Op: "find warm pool " + name, Err: err, Remedy: remedyWarmPool}
	case err != nil:
		return b.failed(ctx, "find warm pool "+name, err)
	}
	return b.checkShape("claim a sandbox of warm pool "+name, pool.Labels)
}

// checkShape wants pods as the kick's own would be.
func (b *kubeBox) checkShape(op string, labels map[string]string) error {
	if labels[labelShape] == b.shape {
		return nil
	}
	return &Error{Kind: ErrRuntime, Op: op, Err: errNoShape, Remedy: remedyWarmPool}
}

// takePod makes the pod of the kick's claim the kick's own, if it is there: with the
// labels by which it is followed and reaches the gateway, and the node's deadline. That
// of a dead kick it leaves alone.
func (b *kubeBox) takePod(ctx context.Context, name string) (took bool, err error) {
	l := b.launcher
	op := "take pod " + name + " of the " + b.object.String()
	for {
		list, _, err := kube.List[corev1.Pod](ctx, b.client, kube.Selection{Resource: kube.Pods, Namespace: l.config.Namespace, Fields: "metadata.name=" + name})
		if err != nil {
			return false, b.failed(ctx, op, err)
		}
		if len(list) == 0 {
			return false, nil // the claim will tell
		}
		p := &list[0]
		if b.adopted {
			if p.Labels[labelID] == "" {
				return false, errNothingRan // its kick died before it took it
			}
			return false, nil // the watch will tell
		}
		if id := p.Labels[labelID]; id != "" && p.Annotations[jobStart] != b.object.start {
			return false, &Error{Kind: ErrIsolation, Op: op, Err: fmt.Errorf("it was that of kick %s", id), Remedy: "See who gives a used sandbox to another claim: kubectl get sandboxes --output yaml"}
		}
		if err := b.checkShape(op, p.Labels); err != nil {
			return false, err
		}
		job := b.plan.job
		p, err = kube.Patch[corev1.Pod](context.WithoutCancel(ctx), b.client, kube.Pods, l.config.Namespace, name, map[string]any{
			"metadata": map[string]any{"resourceVersion": p.ResourceVersion, "labels": job.Spec.Template.Labels, "annotations": job.Annotations},
			"spec":     b.deadline(p),
		})
		switch {
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			continue // the controller writes to it, too
		case err != nil:
			return false, b.failed(ctx, op, err)
		}
		b.eye.update(func(e *kubeEye) {
			e.keep(p)
			e.seen.unlisted = true
		})
		return true, nil
	}
}

// WarmTemplate is what agent-sandbox makes a warm pool's pods from: as much of
// its kind as is written.
type WarmTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              WarmTemplateSpec `json:"spec"`
}

// WarmTemplateSpec is its specification.
type WarmTemplateSpec struct {
	NetworkPolicyManagement string  `json:"networkPolicyManagement"`
	PodTemplate             WarmPod `json:"podTemplate"`
}

// WarmPod is a pod as the template has it.
type WarmPod struct {
	Metadata WarmPodMetadata `json:"metadata"`
	Spec     corev1.PodSpec  `json:"spec"`
}

// WarmPodMetadata is all of a pod's metadata that a template may have.
type WarmPodMetadata struct {
	Labels map[string]string `json:"labels"`
}

// WarmPool is a number of sandboxes that stand by.
type WarmPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              WarmPoolSpec `json:"spec"`
}

// WarmPoolSpec is its specification.
type WarmPoolSpec struct {
	Replicas           int               `json:"replicas"`
	SandboxTemplateRef map[string]string `json:"sandboxTemplateRef"`
	UpdateStrategy     map[string]string `json:"updateStrategy"`
}

// NewSandboxWarmPool makes a warm pool of c.WarmPool's name of pods for kicks of an
// image and limits, as a launcher of the same configuration claims them, and the
// template of that name. replicas is how many stand by at any time.
func NewSandboxWarmPool(c KubernetesConfig, image string, limits Limits, replicas int) (*WarmTemplate, *WarmPool, error) {
	if c.WarmPool == "" || image == "" || replicas < 0 {
		return nil, nil, errors.New("a warm pool wants a name, an image and a number of sandboxes")
	}
	standby, shape, err := standbyPlan(c, LaunchSpec{Image: image, Limits: limits, Workspace: Workspace{MountPath: DefaultMountPath}})
	if err != nil {
		return nil, nil, err
	}
	labels := map[string]string{labelShape: shape}
	kind := func(name string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: kube.SandboxWarmPools.Group + "/" + kube.SandboxWarmPools.Version, Kind: name}
	}
	meta := metav1.ObjectMeta{Name: c.WarmPool, Namespace: c.Namespace, Labels: labels}
	return &WarmTemplate{
			TypeMeta: kind("SandboxTemplate"), ObjectMeta: meta,
			Spec: WarmTemplateSpec{
				// The namespace's own policies deny every pod everything.
				NetworkPolicyManagement: "Unmanaged",
				PodTemplate:             WarmPod{WarmPodMetadata{labels}, standby.pod()},
			},
		}, &WarmPool{
			TypeMeta: kind("SandboxWarmPool"), ObjectMeta: meta,
			Spec: WarmPoolSpec{
				Replicas: replicas, SandboxTemplateRef: map[string]string{"name": c.WarmPool},
				// Else a claim gets what the template was before it was changed.
				UpdateStrategy: map[string]string{"type": "Recreate"},
			},
		}, nil
}
