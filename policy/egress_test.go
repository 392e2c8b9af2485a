package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// testEgress has every form of rule.
const testEgress = `version: 1
egress:
  presets: [npm, debian, github-read]
  hosts:
    - host: "*.example.com"
    - host: api.example.org
      terminate: true
      methods: [GET]
      paths: ["/v1/**", "/a/*/c", "/"]
    - host: api.example.org
      terminate: true
      methods: [POST]
      paths: ["/v1/search", "/u/me@x"]
    - host: plain.example.net
      scheme: http
      ports: [8080, 8081]
      methods: [GET, PUT]
    - host: vault.corp.example.net
      addresses: [10.1.0.0/16, "fd12::1"]
  git: [git.example.net/acme/*, git.example.net/other/Lib]
  models:
    - provider: anthropic
      names: ["claude-*", "x*y*z"]
    - provider: openai-compatible
      route: local
      endpoint: https://models.example.net/v1
  scopes:
    - agents: [fixer]
      hosts: [{host: only.fixer.example}]
    - repos: [acme/api]
      hosts: [{host: only.fixer.example, reason: the same}]
`

func mustReach(t *testing.T, in, repo, agent string) *Reach {
	t.Helper()
	p, err := Parse("p.yaml", []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.For(repo, agent).Egress.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDecide(t *testing.T) {
	t.Parallel()
	r := mustReach(t, testEgress, "", "")
	for _, c := range []struct {
		scheme, method, host string
		port                 int
		path, rule           string // rule begins with "+" where it allows
	}{
		{"https", "CONNECT", "a.example.com", 443, "", "+host:*.example.com"},
		{"https", "CONNECT", "a.b.EXAMPLE.com", 443, "", "+host:*.example.com"},
		{"https", "POST", "a.example.com", 443, "//x/../y", "+host:*.example.com"}, // inside of TLS, not seen
		{"https", "CONNECT", "example.com", 443, "", "default-deny"},
		{"https", "CONNECT", "aexample.com", 443, "", "default-deny"},
		{"https", "CONNECT", "a.example.com.evil.test", 443, "", "default-deny"},
		{"https", "CONNECT", "a.example.com", 22, "", "port"},
		{"https", "CONNECT", "a.example.com", 0, "", "port"},
		{"http", "GET", "a.example.com", 443, "/", "scheme"},
		{"http", "GET", "a.example.com", 80, "/", "port"},
		{"https", "CONNECT", "a.example.com.", 443, "", "host-form"},
		{"https", "CONNECT", "*.example.com", 443, "", "host-form"},
		{"https", "CONNECT", "a%2eexample.com", 443, "", "host-form"},
		{"https", "CONNECT", "a.example.com\x00.evil.test", 443, "", "host-form"},
		{"https", "CONNECT", "ａ.example.com", 443, "", "host-form"},
		{"https", "CONNECT", "", 443, "", "host-form"},
		{"https", "CONNECT", ".example.com", 443, "", "host-form"},
		{"https", "CONNECT", "127.0.0.1", 443, "", "host-form"},
		{"https", "CONNECT", "2130706433", 443, "", "host-form"},
		{"https", "CONNECT", "0x7f.1", 443, "", "host-form"},
		{"https", "CONNECT", "0x7f000001", 443, "", "host-form"},
		{"https", "CONNECT", "0177.0.0.1", 443, "", "host-form"},
		{"https", "CONNECT", "[::ffff:169.254.169.254]", 443, "", "host-form"},
		{"https", "CONNECT", "::1", 443, "", "host-form"},
		{"https", "CONNECT", "localhost", 443, "", "default-deny"},

		{"https", "CONNECT", "api.example.org", 443, "", "+host:api.example.org"},
		{"https", "GET", "api.example.org", 443, "/", "+host:api.example.org"},
		{"https", "HEAD", "api.example.org", 443, "/v1/x/y", "+host:api.example.org"},
		{"https", "GET", "api.example.org", 443, "/v1/", "+host:api.example.org"},
		{"https", "GET", "api.example.org", 443, "/v1", "path"},
		{"https", "GET", "api.example.org", 443, "/V1/x", "path"},
		{"https", "GET", "api.example.org", 443, "/v1x", "path"},
		{"https", "GET", "api.example.org", 443, "/a/b/c", "+host:api.example.org"},
		{"https", "GET", "api.example.org", 443, "/a/b/b/c", "path"},
		{"https", "POST", "api.example.org", 443, "/v1/search", "+host:api.example.org"},
		{"https", "POST", "api.example.org", 443, "/u/me%40x", "+host:api.example.org"},
		{"https", "POST", "api.example.org", 443, "/v1/other", "path"},
		{"https", "DELETE", "api.example.org", 443, "/v1/x", "method"},
		{"https", "get", "api.example.org", 443, "/v1/x", "method"},
		{"https", "", "api.example.org", 443, "/v1/x", "method"},
		{"https", "GET", "api.example.org", 443, "", "path-form"},
		{"https", "GET", "api.example.org", 443, "*", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1//x", "path-form"},
		{"https", "GET", "api.example.org", 443, "//v1/x", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/../x", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/..;/x", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/%2e%2E/x", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/%2fx", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/%5cx", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/a;b", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/%3bx", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/%252e", "path-form"},
		{"https", "GET", "api.example.org", 443, "/%76%31/x", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/%zz", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/%0", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/%00", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/\r\nX: y", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/\\x", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/é", "path-form"},
		{"https", "GET", "api.example.org", 443, "/v1/" + strings.Repeat("a", 9000), "path-form"},

		{"http", "PUT", "plain.example.net", 8081, "/any/path;x", "+host:plain.example.net"},
		{"http", "POST", "plain.example.net", 8080, "/", "method"},
		{"http", "CONNECT", "plain.example.net", 8080, "", "path-form"},
		{"https", "CONNECT", "plain.example.net", 8080, "", "scheme"},

		{"https", "GET", "registry.npmjs.org", 443, "/@babel%2fcore", "+preset:npm"},
		{"https", "GET", "registry.npmjs.org", 443, "/@babel%2f..", "+preset:npm"},
		{"https", "GET", "registry.npmjs.org", 443, "/a/..", "path-form"},
		{"https", "PUT", "registry.npmjs.org", 443, "/left-pad", "method"},
		{"http", "GET", "deb.debian.org", 80, "/debian/pool/main/g/g%2b%2b/g%7e1.deb", "+preset:debian"},
		{"https", "CONNECT", "github.com", 443, "", "default-deny"},
		{"https", "POST", "api.github.com", 443, "/graphql", "method"},
		{"ftp", "GET", "a.example.com", 21, "/", "scheme"},
		{"", "", "", 0, "", "scheme"},
		{"https", "CONNECT", "only.fixer.example", 443, "", "default-deny"},

		{"git", "", "github.com", 0, "/any/thing", "+preset:github-read"},
		{"git", "", "GitHub.com", 0, "/Any/Thing.git", "+preset:github-read"},
		{"git", "", "git.example.net", 0, "/acme/x", "+git:git.example.net/acme/*"},
		{"git", "", "git.example.net", 0, "/other/lib", "+git:git.example.net/other/Lib"},
		{"git", "", "git.example.net", 0, "/other/lib2", "default-deny"},
		{"git", "", "git.example.net", 0, "/acme/x/y", "git-form"},
		{"git", "", "git.example.net", 0, "/acme/..", "git-form"},
		{"git", "", "git.example.net", 0, "/acme/*", "git-form"},
		{"git", "", "git.example.net", 0, "/acme", "git-form"},
		{"git", "", "git.example.net/acme", 0, "/x", "git-form"},
		{"git", "", "evil.test", 0, "/acme/x", "default-deny"},

		{"model", "", "anthropic", 0, "/claude-opus", "+model:anthropic"},
		{"model", "", "anthropic", 0, "/xAyBz", "+model:anthropic"},
		{"model", "", "anthropic", 0, "/xz", "model-name"},
		{"model", "", "anthropic", 0, "/gpt", "model-name"},
		{"model", "", "local", 0, "/any/name", "+model:local"},
		{"model", "", "openai", 0, "/gpt", "default-deny"},
	} {
		a := r.Decide(Request{c.scheme, c.method, c.host, c.port, c.path})
		rule, allow := strings.CutPrefix(c.rule, "+")
		if a.Allow != allow || a.Rule != rule || a.Detail == "" {
			t.Errorf("%s %s %s:%d %.60q: %v %s (%s), want %s", c.scheme, c.method, c.host, c.port, c.path, a.Allow, a.Rule, a.Detail, c.rule)
		}
	}
	for agent, want := range map[string]bool{"fixer": true, "other": false} {
		for _, repo := range []string{"acme/web", "acme/api"} {
			r := mustReach(t, testEgress, repo, agent)
			got := r.Decide(Request{"https", "CONNECT", "only.fixer.example", 443, ""}).Allow
			if got != (want || repo == "acme/api") {
				t.Errorf("%s of %s: %v", agent, repo, got)
			}
		}
	}
}

// What is denied says what the operator adds, and adding it allows it.
func TestRemedy(t *testing.T) {
	t.Parallel()
	for want, q := range map[string]Request{
		"{host: a.example.com, terminate: true}":                {"https", "GET", "a.example.com", 443, "/x"},
		"{host: a.example.com, ports: [8443], terminate: true}": {"https", "GET", "a.example.com", 8443, "/x"},
		"{host: a.example.com, scheme: http}":                   {"http", "GET", "a.example.com", 80, "/x"},
		"{host: a.example.com, scheme: http, ports: [81]}":      {"http", "GET", "a.example.com", 81, "/x"},
	} {
		a := mustReach(t, "version: 1\n", "", "").Decide(q)
		if a.Allow || !strings.Contains(a.Detail, want+" to egress.hosts") {
			t.Errorf("%+v: %s", q, a.Detail)
		}
		if a := mustReach(t, "version: 1\negress: {hosts: ["+want+"]}\n", "", "").Decide(q); !a.Allow {
			t.Errorf("%+v: with %s: %s", q, want, a.Detail)
		}
	}
	if a := mustReach(t, "version: 1\n", "", "").Decide(Request{"https", "GET", "pypi.org", 443, "/simple/"}); !strings.Contains(a.Detail, "the preset pypi to egress.presets") {
		t.Error(a.Detail)
	}
	if a := mustReach(t, "version: 1\n", "", "").Decide(Request{"https", "CONNECT", "api.openai.com", 443, ""}); !strings.Contains(a.Detail, "{provider: openai} to egress.models") {
		t.Error(a.Detail)
	}
}

func TestAllowsAddress(t *testing.T) {
	t.Parallel()
	public, listed := Answer{Allow: true}, Answer{Allow: true, Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd12::1/128")}}
	for _, c := range []struct {
		ip             string
		public, listed string // the rule that refuses; "": allowed
	}{
		{"140.82.112.3", "", "address-not-listed"},
		{"2606:50c0:8000::153", "", "address-not-listed"},
		{"10.1.2.3", "address-private", ""},
		{"::ffff:10.1.2.3", "address-private", ""},
		{"fd12::1", "address-private", ""},
		{"fd12::2", "address-private", "address-not-listed"},
		{"10.2.0.1", "address-private", "address-not-listed"},
		{"172.31.0.1", "address-private", "address-not-listed"},
		{"192.168.1.1", "address-private", "address-not-listed"},
		{"100.64.0.1", "address-private", "address-not-listed"},
		{"127.0.0.1", "address-never", "address-never"},
		{"127.8.8.8", "address-never", "address-never"},
		{"0.0.0.0", "address-never", "address-never"},
		{"::1", "address-never", "address-never"},
		{"::", "address-never", "address-never"},
		{"::ffff:127.0.0.1", "address-never", "address-never"},
		{"::7f00:1", "address-never", "address-never"},
		{"169.254.169.254", "address-never", "address-never"},
		{"::ffff:169.254.169.254", "address-never", "address-never"},
		{"64:ff9b::a9fe:a9fe", "address-never", "address-never"},
		{"2002:a9fe:a9fe::1", "address-never", "address-never"},
		{"fd00:ec2::254", "address-never", "address-never"},
		{"100.100.100.200", "address-never", "address-never"},
		{"168.63.129.16", "address-never", "address-never"},
		{"fe80::1", "address-never", "address-never"},
		{"fe80::1%eth0", "address-never", "address-never"},
		{"224.0.0.1", "address-never", "address-never"},
		{"255.255.255.255", "address-never", "address-never"},
		{"ff02::1", "address-never", "address-never"},
	} {
		for i, a := range []Answer{public, listed} {
			want := []string{c.public, c.listed}[i]
			if rule, ok := a.AllowsAddress(netip.MustParseAddr(c.ip)); ok != (want == "") || rule != want {
				t.Errorf("%s, list %v: %v %q, want %q", c.ip, a.Addresses, ok, rule, want)
			}
		}
	}
	if _, ok := public.AllowsAddress(netip.Addr{}); ok {
		t.Error("no address is allowed")
	}
}

func TestEgressErrors(t *testing.T) {
	t.Parallel()
	hosts := func(lines ...string) string {
		return "version: 1\negress:\n  hosts:\n    - " + strings.Join(lines, "\n    - ") + "\n"
	}
	for _, c := range []struct{ name, in, want string }{
		{"unknown key", hosts("{host: a.test, method: [GET]}"), `p.yaml:4: unknown key "method" in a host`},
		{"preset", "version: 1\negress: {presets: [gem]}\n", `p.yaml:2: presets: there is no preset "gem": the presets are crates, debian, github-read, go, npm, pypi`},
		{"public suffix", hosts(`{host: "*.co.uk"}`), "p.yaml:4: host \"*.co.uk\" has the names of anybody"},
		{"private suffix", hosts(`{host: "*.github.io"}`), "github.io is a public suffix"},
		{"top level", hosts(`{host: "*.com"}`), "com is a public suffix"},
		{"unlisted top level", hosts(`{host: "*.corp"}`), "corp is a public suffix"},
		{"address", hosts(`{host: "10.1.2.3"}`), "is no DNS name"},
		{"number", hosts(`{host: "0x7f"}`), "is no DNS name"},
		{"methods in TLS", hosts("{host: a.test, methods: [GET]}"), `p.yaml:4: methods and paths of "a.test" are inside of TLS`},
		{"terminated http", hosts("{host: a.test, scheme: http, terminate: true}"), "has no TLS to terminate"},
		{"scheme", hosts("{host: a.test, scheme: ftp}"), `scheme is "ftp"`},
		{"front", hosts("{host: x.cloudfront.net}"), "a front of many sites"},
		{"shared", hosts("{host: a.test, terminate: true, shared: true}"), "shared has no effect"},
		{"twice", hosts("{host: a.test}", "{host: a.test, reason: again}"), `p.yaml:5: host "a.test" on line 5 and host "a.test" on line 4: the first is shadowed`},
		{"shadowed", hosts(`{host: "*.b.test"}`, "{host: a.b.test}"), `p.yaml:5: host "a.b.test" on line 5 and host "*.b.test" on line 4: the first is shadowed`},
		{"shadowed before", hosts("{host: a.b.test}", `{host: "*.b.test"}`), `p.yaml:5: host "*.b.test" on line 5 and host "a.b.test" on line 4: the second is shadowed`},
		{"shadowed path", hosts(`{host: a.test, terminate: true, paths: ["/a/**"]}`, `{host: a.test, terminate: true, paths: ["/a/b"]}`), "line 5 and host \"a.test\" on line 4: the first is shadowed"},
		{"overlapping path", hosts(`{host: a.test, terminate: true, paths: ["/a/*"]}`, `{host: a.test, terminate: true, methods: [GET, POST], paths: ["/*/b"]}`), "they overlap: allow each method"},
		{"overlapping in one", hosts(`{host: a.test, terminate: true, paths: ["/a/**", "/*/b"]}`), `paths "/a/**" and "/*/b" of host "a.test" overlap`},
		{"overlapping wildcard", hosts(`{host: "*.b.test", terminate: true, paths: ["/a"]}`, "{host: a.b.test, terminate: true, methods: [POST]}"), "they overlap: name hosts"},
		{"terminated and not", hosts(`{host: a.test, terminate: true}`, "{host: a.test}"), "one is terminated and the other passes through"},
		{"two schemes", hosts(`{host: a.test, ports: [80]}`, "{host: a.test, scheme: http}"), "one port is https and http"},
		{"two address lists", hosts(`{host: a.test, terminate: true, addresses: [10.0.0.1]}`, "{host: a.test, terminate: true, methods: [POST]}"), "two lists of addresses"},
		{"preset has it", "version: 1\negress:\n  presets: [npm]\n  hosts:\n    - {host: registry.npmjs.org, terminate: true}\n", `p.yaml:5: host "registry.npmjs.org" on line 5 and preset:npm: the first is shadowed`},
		{"scope has it", "version: 1\negress:\n  hosts: [{host: a.test}]\n  scopes:\n    - repos: [a/b]\n      hosts:\n        - {host: a.test}\n", `p.yaml:7: host "a.test" on line 7 and host "a.test" on line 3`},
		{"scope for nobody", "version: 1\negress: {scopes: [{presets: [go]}]}\n", "a scope has no repos or agents"},
		{"scope of nothing", "version: 1\negress: {scopes: [{repos: [a/b]}]}\n", "a scope has no presets, hosts, git, git_hosts or models"},
		{"git shadowed", "version: 1\negress:\n  git:\n    - x.test/a/b\n    - x.test/a/*\n", `p.yaml:4: git "x.test/a/b" on line 4 is shadowed by git "x.test/a/*" on line 5`},
		{"route twice", "version: 1\negress:\n  models:\n    - {provider: openai}\n    - {provider: openai, names: [x]}\n", "p.yaml:5: the model route openai is there twice"},
		{"git URL", "version: 1\negress: {git: [\"https://x.test/a/b\"]}\n", "is no repository"},
		{"git suffix", "version: 1\negress: {git: [x.test/a/b.git]}\n", "is no repository"},
		{"git host open", "version: 1\negress: {git: [\"*/a/b\"]}\n", "is no repository"},
		{"git host of nothing", "version: 1\negress:\n  git: [x.test/a/b]\n  git_hosts:\n    - {host: y.test, addresses: [10.0.0.1]}\n", "p.yaml:5: git_hosts has y.test, of which git has no repository"},
		{"git host twice", "version: 1\negress:\n  git: [x.test/a/b]\n  git_hosts:\n    - {host: x.test, addresses: [10.0.0.1]}\n    - {host: x.test, addresses: [10.0.0.2]}\n", "p.yaml:6: git_hosts has x.test twice"},
		{"git host without addresses", "version: 1\negress:\n  git: [x.test/a/b]\n  git_hosts: [{host: x.test}]\n", "a host of git_hosts has no host and addresses"},
		{"git host wildcard", "version: 1\negress:\n  git: [x.test/a/b]\n  git_hosts: [{host: \"*.x.test\", addresses: [10.0.0.1]}]\n", "is a wildcard"},
		{"prefix", hosts(`{host: a.test, terminate: true, paths: ["/v1/"]}`), `ends with a slash: write "/v1/**"`},
		{"dots", hosts(`{host: a.test, terminate: true, paths: ["/v1/../x"]}`), "is no path pattern"},
		{"part of a segment", hosts(`{host: a.test, terminate: true, paths: ["/v1/*.tgz"]}`), "is no path pattern"},
		{"escape", hosts(`{host: a.test, terminate: true, paths: ["/v1/%20"]}`), "is no path pattern"},
		{"query", hosts(`{host: a.test, terminate: true, paths: ["/v1?x"]}`), "is no path pattern"},
		{"deep", hosts(`{host: a.test, terminate: true, paths: ["/**/a/**/b/**"]}`), "more than two"},
		{"loopback", hosts("{host: a.test, addresses: [127.0.0.1]}"), "no policy opens"},
		{"metadata inside", hosts("{host: a.test, addresses: [169.0.0.0/8]}"), "no policy opens"},
		{"mapped", hosts(`{host: a.test, addresses: ["::ffff:10.0.0.1"]}`), "no policy opens"},
		{"all", hosts("{host: a.test, addresses: [0.0.0.0/0]}"), "more than a network"},
		{"bits", hosts("{host: a.test, addresses: [10.1.2.3/16]}"), "write 10.1.0.0/16"},
		{"no address", hosts("{host: a.test, addresses: [ten]}"), "is no address"},
		{"port twice", hosts("{host: a.test, ports: [1, 1]}"), "ports has 1 twice"},
		{"no port", hosts("{host: a.test, ports: []}"), "ports is empty"},
		{"credential", hosts("{host: a.test, reason: " + "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a" + "}"), "p.yaml:4: a value looks like"},
	} {
		_, err := Parse("p.yaml", []byte(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Rules that do not meet may stand side by side.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		`{host: a.test, terminate: true}, {host: a.test, terminate: true, methods: [POST], paths: ["/x"]}`,
		`{host: a.test}, {host: a.test, scheme: http}`,
		`{host: a.test}, {host: a.test, ports: [8443], terminate: true}`,
		`{host: b.test}, {host: "*.b.test"}`,
		`{host: a.test, terminate: true, paths: ["/a/*"]}, {host: a.test, terminate: true, paths: ["/a/*/c", "/b"]}`,
	} {
		if _, err := Parse("p", []byte("version: 1\negress: {hosts: ["+in+"]}")); err != nil {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestPathPatterns(t *testing.T) {
	t.Parallel()
	all := []string{"/", "/*", "/**", "/a", "/a/*", "/a/**", "/**/a", "/*/b", "/a/b", "/a/**/b", "/**/a/**", "/a/*/*"}
	paths := []string{"/", "/a", "/b", "/a/", "/a/b", "/b/b", "/a/b/c", "/a/c/b", "/x/a", "/x/a/y", "/a/a/a/b", "/x/y/a/z/b"}
	for _, ps := range all {
		if err := checkURLPath(ps); err != nil {
			t.Errorf("%s: %v", ps, err)
		}
		p := parsePath(ps)
		for _, qs := range all {
			q := parsePath(qs)
			both := func(path string) bool { return p.matches(path) && q.matches(path) }
			if slices.ContainsFunc(paths, both) && !p.meets(q) {
				t.Errorf("%s and %s meet in a path, but it is said that they do not", ps, qs)
			}
			if p.meets(q) != q.meets(p) {
				t.Errorf("%s meets %s in one order alone", ps, qs)
			}
			only := func(path string) bool { return q.matches(path) && !p.matches(path) }
			if p.covers(q) && slices.ContainsFunc(paths, only) {
				t.Errorf("%s does not cover %s", ps, qs)
			}
			if p.covers(q) && !p.meets(q) {
				t.Errorf("%s covers %s, but does not meet it", ps, qs)
			}
		}
	}
	for _, c := range [][2]string{{"/**", "/a"}, {"/**", "/"}, {"/a/**", "/a/*/b"}, {"/**/b", "/a/**/b"}, {"/a/*", "/a/b"}, {"/**", "/**/a"}} {
		if !parsePath(c[0]).covers(parsePath(c[1])) || parsePath(c[1]).covers(parsePath(c[0])) {
			t.Errorf("%s covers %s, and not the other way round", c[0], c[1])
		}
	}
}

// FuzzDecide looks for a request that crashes the evaluator, and for one that
// is allowed although its path is not what it seems.
func FuzzDecide(f *testing.F) {
	p, err := Parse("p.yaml", []byte(testEgress))
	if err != nil {
		f.Fatal(err)
	}
	r, err := p.Egress.Compile()
	if err != nil {
		f.Fatal(err)
	}
	f.Add("https", "GET", "api.example.org", 443, "/v1/%2e%2e/x")
	f.Add("git", "", "git.example.net", 0, "/acme/x.git")
	f.Add("model", "", "anthropic", 0, "/x*y*z")
	f.Add("http", "PUT", "plain.example.net", 8080, "/@a%2fb")
	f.Fuzz(func(t *testing.T, scheme, method, host string, port int, path string) {
		q := Request{scheme, method, host, port, path}
		a := r.Decide(q)
		if a.Rule == "" || a.Detail == "" {
			t.Fatalf("%+v: no reason: %+v", q, a)
		}
		if len(a.Detail) > 4000 {
			t.Fatalf("a detail of %d bytes", len(a.Detail))
		}
		if a.Allow && (a.Terminate || scheme == SchemeHTTP) && method != "CONNECT" {
			low := strings.ToLower(path)
			for _, bad := range []string{"/../", "/./", "//", "%2e", "%5c", "\\", "\n", "%00"} {
				if strings.Contains(low, bad) {
					t.Fatalf("%+v is allowed", q)
				}
			}
		}
	})
}
