package doctor

import (
	"cmp"
	"context"

	"github.com/kickhq/kick/manager"
)

// kubeVirt looks for KubeVirt in the cluster and for the rights of kick's account, and
// proves the properties of a machine on a live one.
func kubeVirt(ctx context.Context, o Options) []Check {
	const name = "kubevirt sandbox"
	state, embedded, err := onState(o)
	if state == nil {
		return nil // the check of the state directory says it
	}
	if err != nil {
		return []Check{notProved(name, err)}
	}
	c := o.KubeVirt
	c.Kubeconfig, c.Context, c.Namespace = cmp.Or(o.Kubernetes.Kubeconfig, c.Kubeconfig), cmp.Or(o.Kubernetes.Context, c.Context), cmp.Or(o.Kubernetes.Namespace, c.Namespace)
	l, err := manager.NewKubeVirt(state, embedded, o.Image, c)
	if err != nil {
		return []Check{notProved(name, err)}
	}
	said, err := l.Served(ctx)
	if err != nil {
		return []Check{notProved("kubevirt", err)}
	}
	checks := []Check{{Name: "kubevirt", OK: true, Found: said}}
	if err := l.Rights(ctx); err != nil {
		return append(checks, notProved("kubevirt rights", err))
	}
	checks = append(checks, Check{Name: "kubevirt rights", OK: true, Found: "all that a kick needs"})
	if o.Image == "" {
		return append(checks, Check{Name: name, Isolation: true, Found: "no image, so no machine was looked into", Remedy: "Pass --image."})
	}
	return append(checks, provedOnce(ctx, name, l)...)
}
