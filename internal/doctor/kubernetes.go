package doctor

import (
	"context"

	"github.com/kickhq/kick/manager"
)

// kubernetes asks for the rights of kick's account, and proves the properties of a
// pod on a live one.
func kubernetes(ctx context.Context, o Options) []Check {
	const name = "kubernetes sandbox"
	state, embedded, err := onState(o)
	if state == nil {
		return nil // the check of the state directory says it
	}
	if err != nil {
		return []Check{notProved(name, err)}
	}
	l, err := manager.NewKubernetes(state, embedded, o.Image, o.Kubernetes)
	if err != nil {
		return []Check{notProved(name, err)}
	}
	checks := []Check{{Name: "kubernetes rights", OK: true, Found: "all that a kick needs"}}
	if err := l.Rights(ctx); err != nil {
		return []Check{notProved("kubernetes rights", err)}
	}
	if o.Kubernetes.Gateway != "" {
		checks = append(checks, gatewayPort(o.Kubernetes.Gateway))
	}
	if o.Image == "" {
		return append(checks, Check{Name: name, Isolation: true, Found: "no image, so no pod was looked into", Remedy: "Pass --image."})
	}
	return append(checks, provedOnce(ctx, name, l)...)
}

// gatewayPort looks whether the egress gateway can listen for what pods reach at an
// address.
func gatewayPort(address string) Check {
	at, err := manager.TryWayIn(address)
	if err != nil {
		c := notProved("egress gateway", err)
		c.Isolation = false // nothing runs without it
		return c
	}
	return Check{Name: "egress gateway", OK: true, Found: "it can listen at " + at + "; whether pods reach " + address + ", the first kick finds out before its agent starts"}
}
