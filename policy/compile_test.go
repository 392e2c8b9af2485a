package policy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"
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
		{Cluster{"a", "a", 1}, "share the namespace a"},
		{Cluster{"A", "b", 1}, "is no name"},
		{Cluster{"a", "b", 0}, "port 0"},
	} {
		if _, err := (Egress{}).NetworkPolicies(c.cluster); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.cluster, err)
		}
	}
	if _, err := (Egress{Presets: []string{"gem"}}).NetworkPolicies(DefaultCluster()); err == nil {
		t.Error("an unknown preset compiles")
	}
}

// question is one request of the differential test.
type question struct {
	scheme, method, host string
	port                 int
	path, query          string
}

func (q question) String() string {
	return fmt.Sprintf("%s %s://%s:%d%s?%s", q.method, q.scheme, q.host, q.port, q.path, q.query)
}

// ask is the gateway's verdict: for TLS, first about the connection, and then
// about the request where the connection is terminated.
func (q question) ask(t *testing.T, r *Reach) bool {
	t.Helper()
	if q.scheme == SchemeHTTPS {
		a := r.Decide(Request{q.scheme, "CONNECT", q.host, q.port, ""})
		if a.Allow && !a.Terminate {
			return true
		}
	}
	u := url.URL{Scheme: q.scheme, Path: "/", RawQuery: q.query, Host: fmt.Sprintf("%s:%d", q.host, q.port)}
	if repo, ok := fetchOf(q.method, &url.URL{Path: q.path, RawPath: q.path, RawQuery: q.query}); ok && u.Scheme == SchemeHTTPS && q.port == 443 {
		if r.Decide(Request{Scheme: SchemeGit, Host: q.host, Path: repo}).Allow {
			return true
		}
	}
	return r.Decide(Request{q.scheme, q.method, q.host, q.port, q.path}).Allow
}

// questions are requests near the rules and far from them, always the same.
func questions(n int) []question {
	rnd := rand.New(rand.NewPCG(4, 20))
	pick := func(list ...string) string { return list[rnd.IntN(len(list))] }
	hosts := []string{
		"a.example.com", "a.b.example.com", "example.com", "aexample.com", "a.example.com.evil.test", "api.example.org", "API.example.org", "x.api.example.org",
		"plain.example.net", "vault.corp.example.net", "registry.npmjs.org", "evil.registry.npmjs.org", "deb.debian.org", "api.github.com", "github.com",
		"git.example.net", "evil.test", "127.0.0.1", "169.254.169.254", "2130706433", "localhost", "metadata.google.internal",
	}
	segments := []string{
		"v1", "V1", "a", "b", "c", "u", "search", "me@x", "acme", "other", "lib", "lib.git", "x.git", "info", "refs", "git-upload-pack", "git-receive-pack",
		"..", ".", "", "%2e%2e", "%2f", "a%2fb", "%61", "a;b", "..;", "%00", "a%20b", "left-pad",
	}
	qs := make([]question, 0, n)
	for range n {
		q := question{
			scheme: pick("https", "https", "http"), method: pick("GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"),
			host: pick(hosts...), port: []int{443, 443, 443, 80, 80, 8080, 8081, 22, 8443}[rnd.IntN(9)],
			query: pick("", "", "service=git-upload-pack", "service=git-receive-pack", "service=git-upload-pack&service=git-receive-pack"),
		}
		for range rnd.IntN(5) {
			q.path += "/" + pick(segments...)
		}
		switch rnd.IntN(6) {
		case 0:
			q.scheme, q.port, q.host = "https", 443, pick("api.example.org", "api.example.org", "registry.npmjs.org", "b.example.com")
			q.path = pick("/v1/x", "/v1/search", "/u/me@x", "/a/b/c", "/", "/v1/x/y/z")
		case 1:
			repo := pick("/acme/x", "/acme/x.git", "/other/lib", "/other/lib.git", "/other/x", "/any/thing.git")
			q.scheme, q.host, q.port = "https", pick("github.com", "git.example.net", "git.example.net", "evil.test"), 443
			q.path, q.method = repo+pick("/info/refs", "/git-upload-pack", "/git-receive-pack"), pick("GET", "POST")
		}
		if q.path == "" {
			q.path = "/"
		}
		qs = append(qs, q)
	}
	return qs
}

// canonical is a path as OpenShell matches it: decoded, dot segments resolved,
// doubled slashes collapsed, parameters cut. It is refused where it cannot be.
func canonical(p string, encodedSlash bool) (string, bool) {
	low := strings.ToLower(p)
	if strings.Contains(low, "%2f") && !encodedSlash || strings.Contains(low, "%00") {
		return "", false
	}
	segments := strings.Split(p, "/")
	for i, s := range segments {
		s, _, _ = strings.Cut(s, ";")
		d, err := url.PathUnescape(s)
		if err != nil {
			return "", false
		}
		segments[i] = strings.ReplaceAll(d, "/", "%2F")
	}
	clean := path.Clean(strings.Join(segments, "/"))
	if last := segments[len(segments)-1]; clean != "/" && (last == "" || last == "." || last == "..") {
		clean += "/"
	}
	return clean, true
}

// openShell is a compiled file as it is read back, and shares no code with
// what made it.
type openShell struct {
	Rules map[string]struct {
		Endpoints []struct {
			Host         string
			Ports        []int
			Protocol     string
			Enforcement  string
			Access       string
			EncodedSlash bool `yaml:"allow_encoded_slash"`
			Rules        []struct {
				Allow struct {
					Method, Path string
					Query        map[string]struct{ Glob string }
				}
			}
		}
	} `yaml:"network_policies"`
}

// allows evaluates the rules as OpenShell does.
func (doc *openShell) allows(t *testing.T, q question) bool {
	t.Helper()
	for _, rule := range doc.Rules {
		for _, ep := range rule.Endpoints {
			if !globMatches(ep.Host, ".", strings.ToLower(q.host)) || !slices.Contains(ep.Ports, q.port) {
				continue
			}
			if ep.Protocol != "rest" || ep.Enforcement != "enforce" {
				t.Fatalf("endpoint %s is not enforced", ep.Host)
			}
			p, ok := canonical(q.path, ep.EncodedSlash)
			if ep.Access == "full" {
				return true
			}
			for _, r := range ep.Rules {
				values, err := url.ParseQuery(q.query)
				match := ok && err == nil && (r.Allow.Method == q.method || q.method == "HEAD" && r.Allow.Method == "GET") &&
					(r.Allow.Path == "**" || globMatches(r.Allow.Path, "/", p))
				for key, m := range r.Allow.Query {
					match = match && len(values[key]) > 0 && !slices.ContainsFunc(values[key], func(v string) bool { return !globMatches(m.Glob, "", v) })
				}
				if match {
					return true
				}
			}
		}
	}
	return false
}

var globs sync.Map // of pattern and delimiter

func globMatches(pattern, delimiter, s string) bool {
	key := [2]string{pattern, delimiter}
	if re, ok := globs.Load(key); ok {
		return re.(*regexp.Regexp).MatchString(s)
	}
	q := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*\*`, `.*`)
	q = strings.ReplaceAll(q, `\*`, `[^`+delimiter+`\n]*`)
	re := regexp.MustCompile(`^(?s:` + q + `)$`)
	globs.Store(key, re)
	return re.MatchString(s)
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
	var doc openShell
	if err := yaml.Unmarshal(shell, &doc); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, q := range questions(4000) {
		kick, open := q.ask(t, r), doc.allows(t, q)
		plain := unclearPath(q.path, false) == ""
		http := r.Decide(Request{SchemeHTTP, "GET", q.host, q.port, "/"})
		https := r.Decide(Request{SchemeHTTPS, "CONNECT", q.host, q.port, ""})
		switch {
		case http.Rule == "scheme" && q.scheme == SchemeHTTP, https.Rule == "scheme" && q.scheme == SchemeHTTPS:
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
			straight.path, _ = canonical(q.path, true)
			straight.path = strings.ReplaceAll(straight.path, " ", "%20")
			if !straight.ask(t, r) {
				t.Errorf("%s: OpenShell makes %s of it, which the gateway denies", q, straight)
			}
		}
	}
	t.Log(counts)
	if counts["same true"] < 300 || counts["same false"] < 300 {
		t.Errorf("the requests try too little: %v", counts)
	}
}

// networkPolicies evaluates compiled manifests.
type networkPolicies []NetworkPolicy

// reaches tells whether pods of from with labels may connect to an address or
// to other pods. Several policies for one pod add up, and none allows all.
func (ps networkPolicies) reaches(from string, labels map[string]string, ip netip.Addr, to string, toLabels map[string]string, port NetworkPort) bool {
	selected := false
	for _, p := range ps {
		if p.Metadata.Namespace != from || !hasLabels(labels, &p.Spec.PodSelector) || !slices.Contains(p.Spec.PolicyTypes, "Egress") {
			continue
		}
		selected = true
		for _, e := range p.Spec.Egress {
			if slices.Contains(e.Ports, port) && slices.ContainsFunc(e.To, func(peer NetworkPeer) bool {
				if peer.IPBlock != nil {
					return ip.IsValid() && peer.IPBlock.CIDR.Contains(ip) && !slices.ContainsFunc(peer.IPBlock.Except, func(x netip.Prefix) bool { return x.Contains(ip) })
				}
				return !ip.IsValid() && hasLabels(map[string]string{"kubernetes.io/metadata.name": to}, peer.Namespace) && hasLabels(toLabels, peer.Pods)
			}) {
				return true
			}
		}
	}
	return !selected
}

func hasLabels(labels map[string]string, s *labelSelector) bool {
	if s == nil {
		return true
	}
	for k, v := range s.MatchLabels {
		if labels[k] != v {
			return false
		}
	}
	return true
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
	var ps networkPolicies
	dec := yaml.NewDecoder(bytes.NewReader(manifest))
	for {
		var n NetworkPolicy
		if err := dec.Decode(&n); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, n)
	}
	gateway := map[string]string{"app.kubernetes.io/name": "kick-gateway"}
	none := netip.Addr{}
	if !ps.reaches("kick-sandboxes", nil, none, "kick-gateway", gateway, NetworkPort{"TCP", 8377}) {
		t.Error("a sandbox does not reach the gateway")
	}
	for _, c := range []struct {
		namespace string
		labels    map[string]string
		port      NetworkPort
	}{
		{"kick-gateway", gateway, NetworkPort{"TCP", 443}}, {"kick-gateway", gateway, NetworkPort{"UDP", 8377}},
		{"kick-gateway", map[string]string{"app.kubernetes.io/name": "other"}, NetworkPort{"TCP", 8377}},
		{"kick-sandboxes", gateway, NetworkPort{"TCP", 8377}}, {"kube-system", map[string]string{"k8s-app": "kube-dns"}, NetworkPort{"UDP", 53}},
	} {
		if ps.reaches("kick-sandboxes", nil, none, c.namespace, c.labels, c.port) {
			t.Errorf("a sandbox reaches %+v", c)
		}
	}
	if !ps.reaches("kick-gateway", gateway, none, "kube-system", map[string]string{"k8s-app": "kube-dns"}, NetworkPort{"UDP", 53}) {
		t.Error("the gateway has no resolver")
	}
	addresses := []string{
		"140.82.112.3", "10.1.2.3", "10.2.0.1", "127.0.0.1", "169.254.169.254", "192.168.1.1", "100.64.0.7", "0.0.0.0", "224.0.0.1",
		"2606:50c0:8000::153", "fd12::1", "fd12::2", "fe80::1", "::1", "64:ff9b::a9fe:a9fe", "fd00:ec2::254", "2002:7f00:1::",
	}
	allowed, refused := 0, 0
	for i, q := range questions(4000) {
		ip := netip.MustParseAddr(addresses[i%len(addresses)])
		port := NetworkPort{"TCP", q.port}
		if ps.reaches("kick-sandboxes", nil, ip, "", nil, port) {
			t.Fatalf("a sandbox reaches %s port %d itself", ip, q.port)
		}
		a := r.Decide(Request{q.scheme, "CONNECT", q.host, q.port, ""})
		if q.scheme == SchemeHTTP {
			a = r.Decide(Request{q.scheme, q.method, q.host, q.port, q.path})
		}
		_, addressed := a.AllowsAddress(ip)
		reaches := ps.reaches("kick-gateway", gateway, ip, "", nil, port)
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
			t.Errorf("the gateway reaches %s port %d, which no rule lists", ip, q.port)
		}
	}
	if allowed < 50 || refused < 300 {
		t.Errorf("the requests try too little: %d allowed, %d refused", allowed, refused)
	}
}
