package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/policy/policytest"
)

// worldwide is an outside in which each name has the address of the moment, and
// whose server answers everything, fetches too.
type worldwide struct {
	*outside
	mu   sync.Mutex
	addr netip.Addr
}

func newWorldwide(t *testing.T) *worldwide {
	t.Helper()
	w := &worldwide{outside: newOutside(t)}
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/info/refs"):
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		case strings.HasSuffix(r.URL.Path, "/git-upload-pack"):
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		}
		_, _ = io.WriteString(w, "reached")
	})
	// One port for both, as all addresses lead there: TLS begins with a byte that HTTP has not.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.serveOn(t, l, func(c net.Conn) {
		in := bufio.NewReader(c)
		first, err := in.Peek(1)
		if err != nil {
			return
		}
		var conn net.Conn = &readAhead{Conn: c, r: in}
		if first[0] == 22 {
			conn = tls.Server(conn, w.serverTLS())
		}
		one := &oneListener{conn: make(chan net.Conn, 1), ended: make(chan struct{}), addr: c.LocalAddr()}
		one.conn <- conn
		s := &http.Server{Handler: answer, ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				close(one.ended)
			}
		}}
		_ = s.Serve(one)
	})
	return w
}

func (w *worldwide) at(addr netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addr = addr
}

func (w *worldwide) resolve(context.Context, string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return []netip.Addr{w.addr}, nil
}

// asked is what became of a question: whether it reached the outside, by the
// gateway's words and by the outside's.
func (w *worldwide) ask(t *testing.T, g *Gateway, q policytest.Question) bool {
	t.Helper()
	target := q.Path
	if q.Query != "" {
		target += "?" + q.Query
	}
	rest := " HTTP/1.1\r\nHost: " + fmt.Sprintf("%s:%d", q.Host, q.Port) + "\r\nConnection: close\r\n"
	if q.Method != "GET" && q.Method != "HEAD" {
		rest += "Content-Length: 0\r\n"
	}
	if q.Scheme == policy.SchemeHTTP {
		return reached(t, dial(t, g), q.Method+fmt.Sprintf(" http://%s:%d%s", q.Host, q.Port, target)+rest+"\r\n", q.Method)
	}
	// As git does, by the settings that it finds.
	if service, body, ok := fetches(q); ok && reached(t, dial(t, g), q.Method+" /git/"+strings.ToLower(q.Host)+q.Path+service+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+body+"\r\n", q.Method) {
		return true
	}
	c := dial(t, g)
	if _, err := fmt.Fprintf(c, "CONNECT %s:%d HTTP/1.1\r\nHost: x\r\n\r\n", q.Host, q.Port); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	if res.StatusCode != 200 {
		if res.StatusCode != 403 {
			t.Errorf("%s: CONNECT gives %s", q, res.Status)
		}
		return false
	}
	conn := tls.Client(&readAhead{Conn: c, r: in}, &tls.Config{ServerName: strings.ToLower(q.Host), InsecureSkipVerify: true})
	if err := conn.Handshake(); err != nil {
		t.Errorf("%s: %v", q, err)
		return false
	}
	defer conn.Close()
	return reached(t, conn, q.Method+" "+target+rest+"\r\n", q.Method)
}

// fetches tells how git sends a question that is a request of a fetch.
func fetches(q policytest.Question) (service, body string, ok bool) {
	switch {
	case q.Port != 443:
	case q.Method == "GET" && q.Query == "service=git-upload-pack" && strings.HasSuffix(q.Path, "/info/refs"):
		return "?" + q.Query, "", true
	case q.Method == "POST" && strings.HasSuffix(q.Path, "/git-upload-pack"):
		return "", "Content-Type: application/x-git-upload-pack-request\r\nContent-Length: 0\r\n", true
	}
	return "", "", false
}

// reached sends a request and reports whether the outside answered it. Who does
// not answer is the gateway, with a denial.
func reached(t *testing.T, c net.Conn, raw, method string) bool {
	t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case res.StatusCode == 200 && (string(body) == "reached" || method == "HEAD"):
		return true
	case res.StatusCode != 403 && res.StatusCode != 400:
		t.Errorf("%q: %s %s", raw, res.Status, body)
	}
	return false
}

// evaluated is the verdict of the policy's own evaluator: about a connection,
// and about a request where the gateway reads it.
func evaluated(r *policy.Reach, q policytest.Question) policy.Answer {
	if q.Scheme == policy.SchemeHTTPS {
		if a := r.Decide(policy.Request{Scheme: q.Scheme, Method: "CONNECT", Host: q.Host, Port: q.Port}); a.Allow && !a.Terminate {
			return a
		}
		if _, _, ok := fetches(q); ok {
			repo := strings.TrimSuffix(strings.TrimSuffix(q.Path, "/info/refs"), "/git-upload-pack")
			if a := r.Decide(policy.Request{Scheme: policy.SchemeGit, Host: q.Host, Path: repo}); a.Allow {
				return a
			}
		}
	}
	return r.Decide(policy.Request{Scheme: q.Scheme, Method: q.Method, Host: q.Host, Port: q.Port, Path: q.Path})
}

// examplePolicy is the one that the compiled forms of package policy are tested
// with.
func examplePolicy(t *testing.T) (policy.Egress, *policy.Reach) {
	t.Helper()
	p, err := policy.Load("../policy/testdata/compile/egress.yaml")
	if err != nil {
		t.Fatal(err)
	}
	e := p.Egress
	e.Models, e.Scopes = nil, nil
	r, err := e.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return e, r
}

// TestGatewayAgrees sends hundreds of requests through the gateway's socket, as
// clients and git send them, and holds what reaches the outside against the
// evaluator, against what OpenShell makes of the compiled policy and, as to the
// addresses, against the compiled NetworkPolicies.
func TestGatewayAgrees(t *testing.T) {
	t.Parallel()
	e, r := examplePolicy(t)
	shellPolicy, err := e.OpenShell(policy.OpenShellBinaries())
	if err != nil {
		t.Fatal(err)
	}
	shellFile, err := shellPolicy.YAML()
	if err != nil {
		t.Fatal(err)
	}
	shell, err := policytest.ParseOpenShell(shellFile)
	if err != nil {
		t.Fatal(err)
	}
	cluster := policy.DefaultCluster()
	manifests, err := e.NetworkPolicies(cluster)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := policy.NetworkPoliciesYAML(manifests)
	if err != nil {
		t.Fatal(err)
	}
	network, err := policytest.ParseNetworkPolicies(manifest)
	if err != nil {
		t.Fatal(err)
	}
	gatewayPods := map[string]string{"app.kubernetes.io/name": "kick-gateway"}

	w := newWorldwide(t)
	lim := defaultLimits
	lim.decisions = 1 << 20
	g, _ := openConfig(t, lim, Config{Policy: e, Roots: w.roots(), Resolve: w.resolve, Dial: w.dial})
	public, listed := netip.MustParseAddr("93.184.215.14"), netip.MustParseAddr("10.1.2.3")
	addresses := []netip.Addr{public, listed}
	for _, a := range []string{"10.2.0.1", "127.0.0.1", "169.254.169.254", "192.168.1.1", "100.64.0.7", "2606:50c0:8000::153", "fd12::1", "fd12::2", "fe80::1", "::1", "64:ff9b::a9fe:a9fe"} {
		addresses = append(addresses, netip.MustParseAddr(a))
	}
	counts := map[string]int{}
	for i, q := range policytest.Questions(1500) {
		answer := evaluated(r, q)
		addr := public // where the rule goes
		if len(answer.Addresses) > 0 {
			addr = listed
		}
		usual := i%3 > 0
		if !usual {
			addr = addresses[i/3%len(addresses)]
		}
		w.at(addr)
		_, addressed := answer.AllowsAddress(addr)
		got := w.ask(t, g, q)
		if want := answer.Allow && addressed; got != want {
			t.Errorf("%s at %s: the gateway says %v, its evaluator %v by %s", q, addr, got, want, answer.Rule)
		}
		counts[fmt.Sprint("evaluator ", got)]++

		port := policytest.Port{Protocol: "TCP", Port: q.Port}
		if network.Reaches(cluster.Sandboxes, map[string]string{policy.NetworkLabel: policy.NetworkRestricted}, addr, "", nil, port) {
			t.Errorf("%s: a sandbox reaches %s itself", q, addr)
		}
		if got && !network.Reaches(cluster.Gateway, gatewayPods, addr, "", nil, port) {
			t.Errorf("%s at %s: the gateway reaches it, and its NetworkPolicy cuts it off", q, addr)
		}
		if !usual {
			continue
		}
		// The compiled file knows a port and no scheme, and puts strange paths
		// straight: TestOpenShellAgrees of package policy says what of that may be.
		canonical, ok := policytest.Canonical(q.Path, true)
		strange := !ok || strings.ReplaceAll(canonical, " ", "%20") != q.Path
		open := shell.Allows(q)
		switch {
		case got == open:
			counts[fmt.Sprint("OpenShell ", got)]++
		case got:
			t.Errorf("%s: the gateway allows what OpenShell denies", q)
		case strange, answer.Rule == "scheme":
			counts["OpenShell differs, as is said"]++
		default:
			t.Errorf("%s: OpenShell allows what the gateway denies by %s", q, answer.Rule)
		}
	}
	t.Log(counts)
	if counts["evaluator true"] < 100 || counts["evaluator false"] < 300 || counts["OpenShell true"] < 100 || counts["OpenShell false"] < 200 {
		t.Errorf("the requests try too little: %v", counts)
	}
}
