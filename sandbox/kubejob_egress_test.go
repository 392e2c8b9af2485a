package sandbox_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/sandbox"
)

// TestKubeEgress: an agent in a pod reaches the gateway by its loopback port, and
// nothing else: no other port of this host, not the API server, no name server. The
// gateway's own port is open to the pod, and answers the shim alone, by its secret.
func TestKubeEgress(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	in, err := egress.ListenTCP(netip.AddrPortFrom(n.Host, uint16(n.Ports.First)).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	})
	beside, reached := countConnections(t, n.Host)
	const gatewayPort = 18080
	script := fmt.Sprintf(`
ask() {
	timeout 10 bash -c 'exec 3<>/dev/tcp/$1/$2; printf "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n" >&3; IFS= read -r line <&3; echo "$line"' ask "$1" "$2" 2>/dev/null || true
}
echo "gateway says $(ask 127.0.0.1 %[1]d)"
echo "door says $(ask %[2]s %[3]d)"
try() { if timeout 3 bash -c 'exec 3<>/dev/tcp/$1/$2' try "$1" "$2" 2>/dev/null; then echo "reached $3"; else echo "closed $3"; fi; }
try 127.0.0.1 %[1]d gateway
try %[4]s %[5]d host
try %[6]s %[7]d apiserver
try 169.254.169.254 80 metadata
if timeout 5 getent hosts example.com; then echo "reached name"; else echo "closed name"; fi
`, gatewayPort, n.Host, n.Ports.First, beside.Addr(), beside.Port(), n.APIServer(t).Addr(), n.APIServer(t).Port())
	k := newKubeKick(t, n, "")
	k.spec.Command = []string{"bash", "-c", script}
	var audit bytes.Buffer // written until Close, read after
	g, err := egress.Listen(t.Context(), filepath.Join(t.TempDir(), "egress"), egress.Config{Kick: k.spec.ID, Agent: "test", Audit: &audit, TCP: in})
	if err != nil {
		t.Fatal(err)
	}
	k.spec.Egress = sandbox.Egress{Port: gatewayPort, TCP: &sandbox.EgressTCP{Address: in.Address(), Secret: g.Secret(), Pin: in.Pin(), Admit: g.Admit}}
	e := k.run(t)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if e.err != nil || e.res.ExitCode != 0 {
		t.Fatalf("%v, %s %s", e.err, e.res.Reason, e.res.Detail)
	}
	said := k.out.b.String()
	for _, want := range []string{"gateway says HTTP/1.1 403", "reached gateway\n", "closed host\n", "closed apiserver\n", "closed metadata\n", "closed name\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("the agent does not say %q", want)
		}
	}
	if strings.Contains(said, "door says HTTP/1.1 403") || reached.Load() != 0 {
		t.Errorf("the gateway answers without a secret, or this host was reached %d times", reached.Load())
	}
	if got := strings.Count(audit.String(), "default-deny"); got != 1 {
		t.Errorf("%d requests were denied, want the gateway's one:\n%s", got, audit.String())
	}
	if t.Failed() {
		t.Log(said)
	}
}

// countConnections listens beside the gateway, on another port, and counts.
func countConnections(t *testing.T, host netip.Addr) (at netip.AddrPort, count *atomic.Int64) {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(host, 0)))
	if err != nil {
		t.Fatal(err)
	}
	count = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			count.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).AddrPort(), count
}
