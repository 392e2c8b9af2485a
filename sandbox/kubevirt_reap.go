package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// KubeVirtRules is all that the launcher of machines asks of the API server.
var KubeVirtRules = []KubernetesRule{
	{kubevirtapi.Group, "virtualmachineinstances", []string{"create", "get", "list", "watch", "delete"}, "one machine for each kick; get is for those that a dead kick has left"},
	{kubevirtapi.SubresourceGroup, "virtualmachineinstances/portforward", []string{"get"}, "the way into the machine"},
	{"", "secrets", []string{"create", "delete"}, "whom a machine lets in, and who it is; none is read"},
	{"", "events", []string{"list"}, "why a machine does not start"},
}

// Preflight implements Preflighter: it asks for the rights, boots the image, and
// makes a sandbox in it.
func (l *KubeVirt) Preflight(ctx context.Context) (Isolation, error) {
	if err := l.Rights(ctx); err != nil {
		return l.isolation(), err
	}
	return runShell(ctx, l, l.config.Image, "a machine", Workspace{})
}

// Rights asks whether the account may do all that the launcher does. The error names
// what it may not.
func (l *KubeVirt) Rights(ctx context.Context) error {
	l, err := l.open()
	if err != nil {
		return err
	}
	return l.cluster.rights(ctx, l.config.Namespace, l.config.Rules())
}

// Rules is all that a launcher of this choice asks of the API server.
func (c KubeVirtChoice) Rules() []KubernetesRule {
	if c.Pool == "" && c.Linger.Machines == 0 {
		return KubeVirtRules
	}
	return slices.Concat(KubeVirtRules, KubeVirtPoolRules)
}

// Served says what of KubeVirt there is in the cluster, with its version and, if the
// account may look at nodes, how many have KVM.
func (l *KubeVirt) Served(ctx context.Context) (string, error) {
	l, err := l.open()
	if err != nil {
		return "", err
	}
	c := l.cluster.client
	missing := func(what string, err error) (string, error) {
		if !apierrors.IsNotFound(err) {
			return "", kubeError("look for KubeVirt in the cluster", err)
		}
		return "", &Error{Kind: ErrRuntime, Op: "look for KubeVirt in the cluster", Err: fmt.Errorf("%s: %w", what, err), Remedy: "Install KubeVirt with version " + kubevirtapi.Version + " of its API: kubectl get kubevirt --all-namespaces"}
	}
	kinds, err := kube.Get[metav1.APIResourceList](ctx, c, kube.Resource{Group: kubevirtapi.Group, Version: kubevirtapi.Version}, "", "")
	if err != nil {
		return missing("there are no virtual machines", err)
	}
	if !slices.ContainsFunc(kinds.APIResources, func(r metav1.APIResource) bool { return r.Name == kubevirtapi.Instances.Name }) {
		return missing("there are no "+kubevirtapi.Instances.Name, apierrors.NewNotFound(schema.GroupResource{Group: kubevirtapi.Group, Resource: kubevirtapi.Instances.Name}, kubevirtapi.Version))
	}
	version, err := kube.Get[kubeVirtVersion](ctx, c, kube.Resource{Group: kubevirtapi.SubresourceGroup, Version: kubevirtapi.Version, Name: "version"}, "", "")
	if err != nil {
		return missing("virt-api does not answer", err)
	}
	said := "KubeVirt " + escaped(version.GitVersion)
	nodes, _, err := kube.List[corev1.Node](ctx, c, kube.Selection{Resource: kube.Resource{Version: "v1", Name: "nodes"}})
	if err != nil {
		return said + "; whether nodes have KVM, this account may not see", nil
	}
	kvm := 0
	for _, n := range nodes {
		if q := n.Status.Allocatable[kvmDevice]; !q.IsZero() {
			kvm++
		}
	}
	return fmt.Sprintf("%s; KVM on %d of %d nodes", said, kvm, len(nodes)), nil
}

// kubeVirtVersion is what virt-api says that it is.
type kubeVirtVersion struct {
	GitVersion string `json:"gitVersion"`
}

// kvmDevice is how a node tells of KVM, by KubeVirt's device plugin.
const kvmDevice = "devices.kubevirt.io/kvm"

// Reap implements Reaper, in all namespaces that this state has used. What is in a
// machine, a later process of this state can still take while its kick's sandbox
// waits, so a machine is removed when it has ended or is past its deadline, and only
// if its kick does not live. One that lingers is removed when its time is over.
func (l *KubeVirt) Reap(ctx context.Context) ([]string, error) {
	return l.clusters.eachNamespace(func(where KubernetesChoice) ([]string, error) {
		c := l.config.KubeVirtChoice
		c.Kubeconfig, c.Context, c.Namespace = where.Kubeconfig, where.Context, where.Namespace
		return l.With(c).reap(ctx)
	})
}

func (l *KubeVirt) reap(ctx context.Context) ([]string, error) {
	l, err := l.open()
	if err != nil {
		return nil, err
	}
	list, _, err := kube.List[kubevirtapi.Instance](ctx, l.cluster.client, kube.Selection{Resource: kubevirtapi.Instances, Namespace: l.config.Namespace, Labels: labelOwner})
	if err != nil {
		return nil, kubeError("list the machines of kick", err)
	}
	here, err := claimOwner()
	if err != nil {
		return nil, err
	}
	removed := map[string]bool{}
	var errs []error
	for i := range list {
		m := &list[i]
		o := objectOf(kubevirtapi.Instances, &m.ObjectMeta)
		if lingering(m) {
			ok, err := l.reapLingering(ctx, m)
			if errs = append(errs, err); ok {
				removed[m.Name] = true
			}
			continue
		}
		if !ofKick(m) {
			continue // not one that this launcher has made
		}
		ok, err := o.reap(here, l.cluster.client.Now(), machineNews(m).phase == kubeEnded, func() error {
			e := followMachine(l.cluster.client, l.config.Namespace, m)
			defer e.close()
			return e.remove()
		})
		if errs = append(errs, err); ok {
			removed[o.id] = true
		}
	}
	return names(removed), errors.Join(errs...)
}
