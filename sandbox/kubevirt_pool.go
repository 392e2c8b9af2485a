package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// KubeVirtPoolRules is what a launcher with a pool, or with machines that linger, asks
// of the API server beside KubeVirtRules.
var KubeVirtPoolRules = []KubernetesRule{
	{kubevirtapi.Group, "virtualmachineinstances", []string{"patch"}, "a claim is a patch of a machine that stands by or lingers"},
}

// standbyLife is how long a machine of a pool lives: its own start ends it then, which
// knows no kick, and its pool replaces it. A kick takes one that has time enough left.
const standbyLife = 48 * time.Hour

// Standbys makes a pool of the configured name of machines for kicks of an image and
// limits, as this launcher claims them, and the Secret that all of them start with. Its
// keys are those of this launcher's state directory, so launchers of others do not
// claim from it. replicas is how many stand by at any time.
func (l *KubeVirt) Standbys(image string, limits Limits, replicas int) (*corev1.Secret, *kubevirtapi.ReplicaSet, error) {
	c := l.config
	if c.Pool == "" || image == "" || replicas < 0 {
		return nil, nil, errors.New("a pool wants a name, an image and a number of machines")
	}
	spec := LaunchSpec{Image: image, Limits: limits, Command: []string{"any"}}
	if err := l.check(&spec); err != nil {
		return nil, nil, err
	}
	key, err := lineKey(c.Dir)
	if err != nil {
		return nil, nil, err
	}
	keys := poolKeys(key, c.Pool)
	machine, shape, err := standbyMachine(c, spec, keys)
	if err != nil {
		return nil, nil, err
	}
	m := metav1.ObjectMeta{Name: machine.secretName(), Namespace: c.Namespace, Labels: map[string]string{labelPool: c.Pool}}
	secret, err := machineSecret(m, c, keys, standbyLife)
	if err != nil {
		return nil, nil, err
	}
	owned := map[string]string{labelPool: c.Pool, labelStandby: standsNew}
	labels := maps.Clone(owned)
	labels[labelShape], labels[labelNetwork] = shape, string(NetworkNone)
	return secret, &kubevirtapi.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: kubevirtapi.InstanceType.APIVersion, Kind: kubevirtapi.InstanceType.Kind + "ReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{Name: "kick-pool-" + c.Pool, Namespace: c.Namespace, Labels: map[string]string{labelPool: c.Pool}},
		Spec: kubevirtapi.ReplicaSetSpec{
			Replicas: int32(replicas), Selector: metav1.LabelSelector{MatchLabels: owned},
			Template: kubevirtapi.Template{ObjectMeta: metav1.ObjectMeta{GenerateName: "kick-pool-" + c.Pool + "-", Labels: labels}, Spec: machine.machine()},
		},
	}, nil
}

// poolKeys are the keys of all machines of a pool: which of them a kick will have, is
// not known when they start.
func poolKeys(key []byte, pool string) machineKeyPairs { return keyPairs(key, "pool "+pool) }

// standbyMachine plans the machine of a kick of this specification as it is before
// there is a kick, and its shape.
func standbyMachine(c KubeVirtConfig, spec LaunchSpec, keys machineKeyPairs) (*kubeVirtPlan, string, error) {
	host, err := ssh.NewPublicKey(keys.host.Public())
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(host.Marshal())
	p := &kubeVirtPlan{config: c, spec: spec, limits: resolveLimits(spec.Limits), standby: "kick-pool-" + c.Pool + "-" + hex.EncodeToString(sum[:4])}
	shape, err := shapeOf(p.machine())
	return p, shape, err
}

// fromPool gives the kick a machine that stands by; nil if there is none, and why is in
// b.cold.
func (b *kubeVirtBox) fromPool(ctx context.Context) (*kubevirtapi.Instance, error) {
	l := b.launcher
	plan, shape, err := standbyMachine(l.config, b.spec, poolKeys(l.cluster.key, l.config.Pool))
	if err != nil {
		return nil, err
	}
	claimed, err := b.claim(ctx, &kubePool[kubevirtapi.Instance]{label: labelPool, name: l.config.Pool, stands: standsNew, shape: shape, ready: b.fits}, l.config.PoolWait)
	switch {
	case errors.Is(err, errNoStandby), errors.Is(err, errNoShape):
		b.cold = append(b.cold, fmt.Sprintf("not of pool %s: %v", l.config.Pool, err))
		return nil, nil
	case err != nil:
		return nil, err
	}
	b.plan.standby, b.plan.instance.Spec = plan.standby, plan.machine()
	return claimed, nil
}

// claim makes a machine of a pool the kick's own. If none is ready it waits, at most so
// long.
func (b *kubeVirtBox) claim(ctx context.Context, pool *kubePool[kubevirtapi.Instance], wait time.Duration) (*kubevirtapi.Instance, error) {
	made, ns := b.plan.instance, b.launcher.config.Namespace
	old, err := kube.Get[kubevirtapi.Instance](ctx, b.client, kubevirtapi.Instances, ns, made.Name)
	if err == nil {
		err = b.removeOld(ctx, old)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, b.failed(ctx, "look at the machine "+made.Name, err)
	}
	pool.client, pool.resource, pool.namespace = b.client, kubevirtapi.Instances, ns
	pool.meta = func(m *kubevirtapi.Instance) *metav1.ObjectMeta { return &m.ObjectMeta }
	annotations := maps.Clone(made.Annotations)
	delete(annotations, machineLife) // it has its own
	claimed, err := pool.claim(ctx, kubeClaim[kubevirtapi.Instance]{
		id: b.spec.ID, start: made.Annotations[jobStart], labels: made.Labels, annotations: annotations, lifetime: b.plan.lifetime(),
		remove: func(m *kubevirtapi.Instance) error { return b.removeOld(ctx, m) },
	}, wait)
	if err != nil && !errors.Is(err, errNoStandby) && !errors.Is(err, errNoShape) {
		return nil, b.failed(ctx, "claim a machine with "+pool.label+"="+pool.name, err)
	}
	return claimed, err
}

// fits tells a machine that stands by, lets kick in, and lives long enough.
func (b *kubeVirtBox) fits(m *kubevirtapi.Instance) bool {
	s := m.Status
	if m.DeletionTimestamp != nil || s == nil || s.Phase != kubevirtapi.Running || b.client.Now().Sub(m.CreationTimestamp.Time)+b.plan.lifetime() > standbyLife {
		return false
	}
	for _, c := range s.Conditions {
		if c.Type == kubevirtapi.Ready {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// ofKick tells an instance that this launcher has made for a kick, or claimed, or
// claimed again.
func ofKick(m *kubevirtapi.Instance) bool {
	id := m.Labels[labelID]
	return idForm.MatchString(id) && (m.Name == "kick-"+id || claimedMachine(m) || m.Labels[labelLinger] != "")
}

// claimedMachine tells one that stood by.
func claimedMachine(m *kubevirtapi.Instance) bool {
	_, stands := m.Labels[labelStandby]
	return m.Labels[labelPool] != "" && !stands && m.Labels[labelID] != ""
}

// keysFor are the keys of a machine.
func (l *KubeVirt) keysFor(m *kubevirtapi.Instance) machineKeyPairs {
	if claimedMachine(m) {
		return poolKeys(l.cluster.key, m.Labels[labelPool])
	}
	return keyPairs(l.cluster.key, string(m.UID))
}
