package policy

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/policy/policytest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The compiled forms of the example, byte by byte.
func TestCompileGolden(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"full", "egress", "deny"} {
		shell, network := compiled(t, filepath.Join("testdata", "compile", name+".yaml"))
		golden(t, filepath.Join("testdata", "compile", name+".openshell"), shell)
		golden(t, filepath.Join("testdata", "compile", name+".networkpolicy"), network)
	}
}

// What each preset becomes, and the policies that kicks on OpenShell have most often: to
// read GitHub's repositories, and its API alone, an endpoint of a model that is no
// inference.local, and two hosts more.
func TestCompileOpenShellGolden(t *testing.T) {
	t.Parallel()
	policies := map[string]string{
		"read-api":   "{hosts: [{host: api.github.com, terminate: true}]}",
		"model-host": "{hosts: [{host: models.example.net, terminate: true, methods: [POST], paths: [/v1/chat/completions, /v1/messages]}]}",
		"two-hosts":  "{presets: [github-read], hosts: [{host: a.example.net, terminate: true}, {host: b.example.net, terminate: true, methods: [GET, PUT]}]}",
	}
	for _, name := range Presets() {
		policies["preset-"+name] = "{presets: [" + name + "]}"
	}
	for name, egress := range policies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(file, []byte("version: 1\negress: "+egress+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			shell, _ := compiled(t, file)
			golden(t, filepath.Join("testdata", "openshell", name+".yaml"), shell)
		})
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs, run with -update and look at the difference:\n%s", file, got)
	}
}

func compiled(t *testing.T, file string) (shell, network []byte) {
	t.Helper()
	p, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Egress.OpenShell(OpenShellBinaries())
	if err != nil {
		t.Fatal(err)
	}
	if shell, err = s.YAML(); err != nil {
		t.Fatal(err)
	}
	n, err := p.Egress.NetworkPolicies(DefaultCluster())
	if err != nil {
		t.Fatal(err)
	}
	if network, err = NetworkPoliciesYAML(n); err != nil {
		t.Fatal(err)
	}
	return shell, network
}

func TestParsePorts(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Ports{"0": {}, "8377": {8377, 8377}, "8377-8392": {8377, 8392}, "65535-65535": {65535, 65535}} {
		if p, err := ParsePorts(s); err != nil || p != want {
			t.Errorf("%s: %v, %v", s, p, err)
		}
	}
	for _, s := range []string{"", "-", "x", "-1", "1-", "0-5", "9-8", "65536", "1-65536", "1-2-3", " 1", "+1"} {
		if p, err := ParsePorts(s); err == nil || !strings.Contains(err.Error(), "are no ports") {
			t.Errorf("%q: %v, %v", s, p, err)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	t.Parallel()
	e := Egress{Hosts: []Host{{Host: "a.test", Ports: []int{6443}}}}
	if _, err := e.OpenShell(nil); err == nil || !strings.Contains(err.Error(), "host:a.test: OpenShell opens port 6443 for nobody") {
		t.Error(err)
	}
	for _, c := range []struct {
		cluster Cluster
		want    string
	}{
		{Cluster{Sandboxes: "a", Gateway: "a", Ports: Ports{1, 1}}, "share the namespace a"},
		{Cluster{Sandboxes: "A", Gateway: "b", Ports: Ports{1, 1}}, "is no name"},
		{Cluster{Sandboxes: "a", Gateway: "b"}, "ports 0 of the gateway"},
		{Cluster{Sandboxes: "a", Gateway: "b", Ports: Ports{8, 7}}, "ports 8-7 of the gateway"},
		{Cluster{Sandboxes: "a", Addresses: prefixes("0.0.0.0/0"), Ports: Ports{1, 1}}, "would be anywhere"},
		{Cluster{Sandboxes: "a", Addresses: prefixes("10.1.2.3/24"), Ports: Ports{1, 1}}, "write 10.1.2.0/24, or 10.1.2.3/32"},
	} {
		if _, err := (Egress{}).NetworkPolicies(c.cluster); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.cluster, err)
		}
	}
	if _, err := (Egress{Presets: []string{"gem"}}).NetworkPolicies(DefaultCluster()); err == nil {
		t.Error("an unknown preset compiles")
	}
}

// TestNetworkPolicyOfGatewayOutside: a gateway outside the cluster is reached by
// its address and port, and has no policy in the cluster.
func TestNetworkPolicyOfGatewayOutside(t *testing.T) {
	t.Parallel()
	c := Cluster{Sandboxes: "boxes", Addresses: prefixes("10.1.2.3/32", "fd00::3/128"), Ports: Ports{8377, 8379}}
	list, err := (Egress{}).NetworkPolicies(c)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := NetworkPoliciesYAML(list)
	if err != nil {
		t.Fatal(err)
	}
	ps, err := policytest.ParseNetworkPolicies(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []struct {
		labels map[string]string
		ip     string
		port   int
		want   bool
	}{
		{restricted, "10.1.2.3", 8377, true}, {restricted, "fd00::3", 8377, true},
		{restricted, "10.1.2.3", 8379, true}, {restricted, "10.1.2.3", 8376, false}, {restricted, "10.1.2.3", 8380, false},
		{restricted, "10.1.2.3", 443, false}, {restricted, "10.1.2.4", 8377, false},
		{nil, "10.1.2.3", 8377, false}, {map[string]string{NetworkLabel: "none"}, "10.1.2.3", 8377, false},
	} {
		if got := ps.Reaches("boxes", q.labels, netip.MustParseAddr(q.ip), "", nil, policytest.Port{Protocol: "TCP", Port: q.port}); got != q.want {
			t.Errorf("%+v: reaches is %v", q, got)
		}
	}
}

// ask is the gateway's verdict: for TLS, first about the connection, and then
// about the request where the connection is terminated.
func ask(q policytest.Question, r *Reach) bool {
	if q.Scheme == SchemeHTTPS {
		a := r.Decide(Request{q.Scheme, "CONNECT", q.Host, q.Port, ""})
		if a.Allow && !a.Terminate {
			return true
		}
	}
	u := url.URL{Scheme: q.Scheme, Path: "/", RawQuery: q.Query, Host: fmt.Sprintf("%s:%d", q.Host, q.Port)}
	if repo, ok := fetchOf(q.Method, &url.URL{Path: q.Path, RawPath: q.Path, RawQuery: q.Query}); ok && u.Scheme == SchemeHTTPS && q.Port == 443 {
		if r.Decide(Request{Scheme: SchemeGit, Host: q.Host, Path: repo}).Allow {
			return true
		}
	}
	return r.Decide(Request{q.Scheme, q.Method, q.Host, q.Port, q.Path}).Allow
}

// The same requests get the same verdict from the gateway's evaluator and from
// what OpenShell makes of the compiled policy. A path that servers may read in
// several ways is denied by the one and put straight by the other: then what
// it is put to decides.
func TestOpenShellAgrees(t *testing.T) {
	t.Parallel()
	file := filepath.Join("testdata", "compile", "egress.yaml")
	p, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Egress.Compile()
	if err != nil {
		t.Fatal(err)
	}
	shell, _ := compiled(t, file)
	doc, err := policytest.ParseOpenShell(shell)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, q := range policytest.Questions(4000) {
		kick, open := ask(q, r), doc.Allows(q)
		plain := unclearPath(q.Path, false) == ""
		http := r.Decide(Request{SchemeHTTP, "GET", q.Host, q.Port, "/"})
		https := r.Decide(Request{SchemeHTTPS, "CONNECT", q.Host, q.Port, ""})
		switch {
		case http.Rule == "scheme" && q.Scheme == SchemeHTTP, https.Rule == "scheme" && q.Scheme == SchemeHTTPS:
			counts["other scheme"]++
			if kick {
				t.Errorf("%s: allowed in a scheme that the rule does not have", q)
			}
		case kick == open:
			counts[fmt.Sprint("same ", kick)]++
		case plain:
			t.Errorf("%s: gateway %v, OpenShell %v", q, kick, open)
		case kick:
			t.Errorf("%s: only the gateway allows it", q)
		default:
			counts["put straight"]++
			straight := q
			straight.Path, _ = policytest.Canonical(q.Path, true)
			straight.Path = strings.ReplaceAll(straight.Path, " ", "%20")
			if !ask(straight, r) {
				t.Errorf("%s: OpenShell makes %s of it, which the gateway denies", q, straight)
			}
		}
	}
	t.Log(counts)
	if counts["same true"] < 300 || counts["same false"] < 300 {
		t.Errorf("the requests try too little: %v", counts)
	}
}

// Under the compiled manifests a sandbox reaches the gateway alone, and the
// gateway reaches what its evaluator allows and no address that it refuses.
func TestNetworkPolicyAgrees(t *testing.T) {
	t.Parallel()
	file := filepath.Join("testdata", "compile", "egress.yaml")
	p, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Egress.Compile()
	if err != nil {
		t.Fatal(err)
	}
	_, manifest := compiled(t, file)
	ps, err := policytest.ParseNetworkPolicies(manifest)
	if err != nil {
		t.Fatal(err)
	}
	gateway := map[string]string{"app.kubernetes.io/name": "kick-gateway"}
	none := netip.Addr{}
	if !ps.Reaches("kick-sandboxes", restricted, none, "kick-gateway", gateway, policytest.Port{Protocol: "TCP", Port: 8377}) {
		t.Error("a sandbox does not reach the gateway")
	}
	if ps.Reaches("kick-sandboxes", nil, none, "kick-gateway", gateway, policytest.Port{Protocol: "TCP", Port: 8377}) {
		t.Error("a sandbox without network reaches the gateway")
	}
	for _, c := range []struct {
		namespace string
		labels    map[string]string
		port      policytest.Port
	}{
		{"kick-gateway", gateway, policytest.Port{Protocol: "TCP", Port: 443}}, {"kick-gateway", gateway, policytest.Port{Protocol: "UDP", Port: 8377}},
		{"kick-gateway", map[string]string{"app.kubernetes.io/name": "other"}, policytest.Port{Protocol: "TCP", Port: 8377}},
		{"kick-sandboxes", gateway, policytest.Port{Protocol: "TCP", Port: 8377}}, {"kube-system", map[string]string{"k8s-app": "kube-dns"}, policytest.Port{Protocol: "UDP", Port: 53}},
	} {
		if ps.Reaches("kick-sandboxes", restricted, none, c.namespace, c.labels, c.port) {
			t.Errorf("a sandbox reaches %+v", c)
		}
	}
	if !ps.Reaches("kick-gateway", gateway, none, "kube-system", map[string]string{"k8s-app": "kube-dns"}, policytest.Port{Protocol: "UDP", Port: 53}) {
		t.Error("the gateway has no resolver")
	}
	addresses := []string{
		"140.82.112.3", "10.1.2.3", "10.2.0.1", "127.0.0.1", "169.254.169.254", "192.168.1.1", "100.64.0.7", "0.0.0.0", "224.0.0.1",
		"2606:50c0:8000::153", "fd12::1", "fd12::2", "fe80::1", "::1", "64:ff9b::a9fe:a9fe", "fd00:ec2::254", "2002:7f00:1::",
	}
	allowed, refused := 0, 0
	for i, q := range policytest.Questions(4000) {
		ip := netip.MustParseAddr(addresses[i%len(addresses)])
		port := policytest.Port{Protocol: "TCP", Port: q.Port}
		if ps.Reaches("kick-sandboxes", restricted, ip, "", nil, port) {
			t.Fatalf("a sandbox reaches %s port %d itself", ip, q.Port)
		}
		a := r.Decide(Request{q.Scheme, "CONNECT", q.Host, q.Port, ""})
		if q.Scheme == SchemeHTTP {
			a = r.Decide(Request{q.Scheme, q.Method, q.Host, q.Port, q.Path})
		}
		_, addressed := a.AllowsAddress(ip)
		reaches := ps.Reaches("kick-gateway", gateway, ip, "", nil, port)
		switch {
		case a.Allow && addressed && !reaches:
			t.Errorf("%s at %s: allowed, but the gateway's own policy cuts it off", q, ip)
		case a.Allow && addressed:
			allowed++
		case !a.Allow && reaches:
			// The same port is open for another host: names are not the network's.
		case !reaches:
			refused++
		}
		if _, ok := (Answer{}).AllowsAddress(ip); !ok && reaches && a.Addresses == nil && ip.String() != "10.1.2.3" && ip.String() != "fd12::1" {
			t.Errorf("the gateway reaches %s port %d, which no rule lists", ip, q.Port)
		}
	}
	if allowed < 50 || refused < 300 {
		t.Errorf("the requests try too little: %d allowed, %d refused", allowed, refused)
	}
}
