package policy

import (
	"strings"
	"testing"

	"github.com/kickhq/kick/policy/policytest"
)

func TestWidened(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, old, now string
		want           []string // each in one change, in order; none: nothing widens
	}{
		{"the same in other words", "{hosts: [{host: b.test}, {host: a.test, ports: [443]}]}", "{hosts: [{host: a.test, scheme: https, reason: x}, {host: b.test}]}", nil},
		{"less", "{presets: [npm, go], hosts: [{host: a.test}]}", "{presets: [npm]}", nil},
		{"host", "{}", "{hosts: [{host: a.test}]}", []string{"host:a.test: GET https://a.test:443/"}},
		{"covered by a wildcard", `{hosts: [{host: "*.b.test"}]}`, "{hosts: [{host: a.b.test}]}", nil},
		{"wildcard over exact", "{hosts: [{host: a.b.test}]}", `{hosts: [{host: "*.b.test"}]}`, []string{"GET https://*.b.test:443/"}},
		{"wildcard below", `{hosts: [{host: "*.b.test"}]}`, `{hosts: [{host: "*.a.b.test"}]}`, nil},
		{"preset for hosts", "{presets: [npm]}", "{hosts: [{host: registry.npmjs.org, terminate: true}]}", nil},
		{"port", "{hosts: [{host: a.test}]}", "{hosts: [{host: a.test, ports: [443, 444]}]}", []string{"https://a.test:444/"}},
		{"scheme", "{hosts: [{host: a.test}]}", "{hosts: [{host: a.test}, {host: a.test, scheme: http}]}", []string{"GET http://a.test:80/"}},
		{"no longer terminated", "{hosts: [{host: a.test, terminate: true, methods: [GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE]}]}", "{hosts: [{host: a.test}]}", []string{"passes through"}},
		{"terminated", "{hosts: [{host: a.test}]}", "{hosts: [{host: a.test, terminate: true, methods: [GET, POST]}]}", nil},
		{"method", "{hosts: [{host: a.test, terminate: true}]}", "{hosts: [{host: a.test, terminate: true, methods: [GET, POST]}]}", []string{"POST https://a.test:443/"}},
		{"HEAD comes with GET", "{hosts: [{host: a.test, terminate: true}]}", "{hosts: [{host: a.test, terminate: true, methods: [GET, HEAD]}]}", nil},
		{"narrower path", `{hosts: [{host: a.test, terminate: true, paths: ["/a/**"]}]}`, `{hosts: [{host: a.test, terminate: true, paths: ["/a/*/c", "/a/b"]}]}`, nil},
		{"wider path", `{hosts: [{host: a.test, terminate: true, paths: ["/a/*"]}]}`, `{hosts: [{host: a.test, terminate: true, paths: ["/a/**"]}]}`, []string{"/a/*/*"}},
		{"all paths", `{hosts: [{host: a.test, terminate: true, paths: ["/**"]}]}`, `{hosts: [{host: a.test, terminate: true}]}`, []string{"https://a.test:443/"}},
		{"two for one", `{hosts: [{host: a.test, terminate: true, paths: ["/a/b", "/c"]}]}`, `{hosts: [{host: a.test, terminate: true, paths: ["/c"]}, {host: a.test, terminate: true, paths: ["/a/b"]}]}`, nil},
		{"private address", "{hosts: [{host: a.test}]}", "{hosts: [{host: a.test, addresses: [10.0.0.0/8]}]}", []string{"at 10.0.0.0/8"}},
		{"smaller network", "{hosts: [{host: a.test, addresses: [10.0.0.0/8]}]}", "{hosts: [{host: a.test, addresses: [10.1.0.0/16]}]}", nil},
		{"public addresses too", "{hosts: [{host: a.test, addresses: [10.0.0.0/8]}]}", "{hosts: [{host: a.test}]}", []string{"at all public addresses"}},
		{"git", "{git: [x.test/a/b]}", `{git: ["x.test/a/*"]}`, []string{"git:x.test/a/*: FETCH https://x.test/a/*"}},
		{"git within a preset", "{presets: [github-read]}", "{git: [github.com/a/b]}", nil},
		{"git at a private address", "{git: [x.test/a/b]}", "{git: [x.test/a/b], git_hosts: [{host: x.test, addresses: [10.0.0.0/8]}]}", []string{"git:x.test/a/b: FETCH https://x.test/a/b at 10.0.0.0/8"}},
		{"git at fewer addresses", "{git: [x.test/a/b], git_hosts: [{host: x.test, addresses: [10.0.0.0/8]}]}", "{git: [x.test/a/b], git_hosts: [{host: x.test, addresses: [10.1.0.0/16]}]}", nil},
		{"model", "{}", "{models: [{provider: openai}]}", []string{"model:openai: MODEL openai/* at https://api.openai.com/v1"}},
		{"model names", `{models: [{provider: openai, names: ["gpt-*"]}]}`, `{models: [{provider: openai, names: [gpt-x, "o*"]}]}`, []string{"MODEL openai/o*"}},
		{"model feature", "{models: [{provider: openai}]}", "{models: [{provider: openai, allow: [web-search]}]}", []string{"allows web-search"}},
		{"model endpoint", "{models: [{provider: openai}]}", "{models: [{provider: openai, endpoint: \"https://x.test/v1\"}]}", []string{"calls go to https://x.test/v1"}},
		{"no longer forced", "{models: [{provider: openai, force: a}]}", "{models: [{provider: openai, names: [a, b]}]}", []string{"MODEL openai/b"}},
		{"budget raised", "{models: [{provider: openai, tokens: 10}]}", "{models: [{provider: openai, tokens: 11}]}", []string{"tokens of a kick: 11 instead of 10"}},
		{"budget removed", "{models: [{provider: openai, requests: 10}]}", "{models: [{provider: openai}]}", []string{"no longer limited"}},
		{"budget lowered", "{models: [{provider: openai, requests: 10}]}", "{models: [{provider: openai, requests: 9, tokens: 5}]}", nil},
		{"scope", "{}", "{scopes: [{repos: [\"acme/*\"], hosts: [{host: a.test}]}]}", []string{"repository acme/any: host:a.test: GET https://a.test:443/"}},
		{"scope to all", "{scopes: [{agents: [x], hosts: [{host: a.test}]}]}", "{hosts: [{host: a.test}]}", []string{"host:a.test"}},
		{"all to scope", "{hosts: [{host: a.test}]}", "{scopes: [{agents: [x], hosts: [{host: a.test}]}]}", nil},
	} {
		parse := func(in string) *Policy {
			p, err := Parse("p", []byte("version: 1\negress: "+in+"\n"))
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			return p
		}
		old, now := parse(c.old), parse(c.now)
		got, err := now.Widened(old)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %+v, want %q", c.name, got, c.want)
			continue
		}
		for i, g := range got {
			line := g.Rule + ": " + g.What
			if g.For != "" {
				line = g.For + ": " + line
			}
			if !strings.Contains(line, c.want[i]) {
				t.Errorf("%s: %q, want %q", c.name, line, c.want[i])
			}
		}
		for _, p := range []*Policy{old, now} {
			if same, err := p.Widened(p); err != nil || len(same) > 0 {
				t.Errorf("%s: a policy is wider than itself: %+v %v", c.name, same, err)
			}
		}
	}
}

// What widens for no request of the differential test is not said to widen,
// and what widens for one is.
func TestWidenedAgreesWithDecide(t *testing.T) {
	t.Parallel()
	policies := []string{
		"{}", "{presets: [npm, debian]}", "{presets: [github-read]}", `{hosts: [{host: "*.example.com"}]}`, "{hosts: [{host: a.example.com}]}",
		`{hosts: [{host: api.example.org, terminate: true}]}`, `{hosts: [{host: api.example.org, terminate: true, paths: ["/v1/**"]}]}`,
		`{hosts: [{host: api.example.org, terminate: true, methods: [GET, POST], paths: ["/**"]}]}`, "{hosts: [{host: api.example.org}]}",
		"{hosts: [{host: plain.example.net, scheme: http, ports: [80, 8080]}]}", `{git: [github.com/acme/x, "git.example.net/*/lib"]}`, `{git: ["github.com/acme/*"]}`,
	}
	qs := policytest.Questions(1500)
	var reaches []*Reach
	var answers [][]bool
	for _, in := range policies {
		r := mustReach(t, "version: 1\negress: "+in+"\n", "", "")
		var list []bool
		for _, q := range qs {
			list = append(list, ask(q, r))
		}
		reaches, answers = append(reaches, r), append(answers, list)
	}
	for i, old := range reaches {
		for j, now := range reaches {
			said := len(now.widened(old)) > 0
			for k, q := range qs {
				if answers[j][k] && !answers[i][k] && !said {
					t.Errorf("%s to %s: %s is newly allowed, and nothing is said", policies[i], policies[j], q)
					break
				}
			}
		}
	}
}
