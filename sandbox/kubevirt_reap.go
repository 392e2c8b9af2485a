package sandbox

import (
	"context"
	"errors"

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
	return l.cluster.rights(ctx, l.config.Namespace, KubeVirtRules)
}

// Reap implements Reaper, in all namespaces that this state has used. What is in a
// machine, a later process of this state can still take while its kick's sandbox
// waits, so a machine is removed when it has ended or is past its deadline, and only
// if its kick does not live.
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
	list, _, err := kube.List[kubevirtapi.Instance](ctx, l.cluster.client, kube.Selection{Resource: kubevirtapi.Instances, Namespace: l.config.Namespace, Labels: labelID})
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
		if !idForm.MatchString(o.id) || o.name != "kick-"+o.id {
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
