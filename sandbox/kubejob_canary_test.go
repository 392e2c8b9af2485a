package sandbox_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/sandbox"
)

// TestKubeLoopback: where kick comes to the API server by an address of its own
// loopback, what a pod does not reach there proves nothing. Without policies no agent
// starts, and with them it does.
func TestKubeLoopback(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	tunnel := throughProxy(n.Proxy(t))
	e := newKubeKick(t, n, "true", tunnel).run(t)
	if e.err != nil || e.res.Reason != sandbox.ReasonExited {
		t.Errorf("with policies: %s %s, %v", e.res.Reason, e.res.Detail, e.err)
	}
	n.Kubectl(t, "delete", "networkpolicies", "--all", "--namespace", n.Name)
	newKubeKick(t, n, "true", tunnel).run(t).says(t, sandbox.ReasonIsolation, "no-network: "+n.APIServer(t).String()+" can be reached")
}

// What is no canary, no namespace and no gateway for a pod is refused before anything is
// asked for.
func TestKubeChoiceRefused(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	canary := func(address string) func(*sandbox.KubernetesConfig) {
		return func(c *sandbox.KubernetesConfig) { c.Canaries = []string{"192.0.2.1:443", address} }
	}
	same := func(*sandbox.KubernetesConfig) {}
	for name, tt := range map[string]struct {
		change      func(*sandbox.KubernetesConfig)
		gateway, op string
	}{
		"a pod's own loopback":       {canary("127.0.0.1:443"), "", "canary"},
		"loopback of version 6":      {canary("[::1]:443"), "", "canary"},
		"loopback, mapped":           {canary("[::ffff:127.0.0.2]:443"), "", "canary"},
		"no address in particular":   {canary("0.0.0.0:443"), "", "canary"},
		"a name":                     {canary("kubernetes.example:443"), "", "canary"},
		"no port":                    {canary("192.0.2.1"), "", "canary"},
		"a namespace in capitals":    {func(c *sandbox.KubernetesConfig) { c.Namespace = "Sandboxes_1" }, "", "namespace"},
		"a gateway that has a name":  {same, "gateway.example:8377", "egress address"},
		"a gateway that has no port": {same, "192.0.2.1", "egress address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKubeKick(t, n, "true", tt.change)
			if tt.gateway != "" {
				k.spec.Egress = egressAt(tt.gateway)
			}
			res, err := k.l.Run(t.Context(), k.spec)
			var said *sandbox.Error
			if !errors.Is(err, sandbox.ErrSpec) || !errors.As(err, &said) || said.Op != tt.op || said.Remedy == "" || k.l.Calls() > 0 {
				t.Errorf("%s, %v, after %d calls", res.Reason, err, k.l.Calls())
			}
		})
	}
}

// egressAt is a gateway that nobody has opened.
func egressAt(address string) sandbox.Egress {
	return sandbox.Egress{Port: 18080, TCP: &sandbox.EgressTCP{Address: address, Secret: strings.Repeat("0", 64), Pin: strings.Repeat("0", 64), Admit: func(netip.Addr) error { return nil }}}
}

// TestKubeNoGateway: a gateway that is not where a pod looks for it is named, with what
// to do.
func TestKubeNoGateway(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	k := newKubeKick(t, n, "true")
	at := netip.AddrPortFrom(n.Host, uint16(n.Ports.Last)).String()
	k.spec.Egress = egressAt(at)
	k.run(t).says(t, sandbox.ReasonStartFailed, "ask the egress gateway at "+at, "kick's host as sandboxes see it", "NetworkPolicy")
}
