package policy

import (
	"strings"
	"testing"
	"time"
)

// What explain says is what Judge does, for every path of the table's examples.
func TestExplainIsWhatJudgeDoes(t *testing.T) {
	t.Parallel()
	p, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for _, who := range [][2]string{{"", ""}, {"acme/api", "fixer"}, {"acme/api", "docs"}} {
		q := p.For(who[0], who[1])
		for _, r := range Rules() {
			for _, s := range r.Matches {
				if s.Change == nil {
					continue
				}
				x := p.Explain(who[0], who[1], []Change{*s.Change}, now)
				var most Level
				for _, f := range q.Judge(s, now) {
					if weight(f.Level) > weight(most) || most == "" {
						most = f.Level
					}
				}
				if c := x.Changes[0]; c.Level != most || x.Rules[0].Rule != c.Rule && weight(x.Rules[0].Level) != weight(most) {
					t.Errorf("%v %s: explained as %+v, judged as %s", who, show(s), c, most)
				}
			}
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	p, err := Parse("etc/policy.yaml", []byte(`version: 1
changes:
  rules:
    protected-build: block
  exceptions:
    - {rule: protected-ci, paths: [".github/workflows/docs.yml"], level: review, repos: [acme/api], agents: [fixer], reason: docs, expires: 2999-01-01}
    - {rule: protected-ci, agents: [other], reason: other, expires: 2999-01-01}
    - {rule: protected-ci, repos: [acme/web], agents: [fixer], reason: web, expires: 2999-01-01}
    - {rule: protected-build, paths: [go.sum], reason: old, expires: 2020-01-01}
  scopes:
    - {repos: ["acme/*"], limits: {files: 3}, rules: {protected-agent: block}}
`))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, tc := range []struct {
		path, level, rule, from string
		because                 []string // of each exception
	}{
		{"src/a.go", "", "", "", nil},
		{"AGENTS.md", "block", "protected-agent", "the scope on line 11 of policy.yaml", nil},
		{"go.mod", "block", "protected-build", "changes.rules on line 4 of policy.yaml", []string{"it is for other paths"}},
		{"go.sum", "block", "protected-build", "changes.rules on line 4 of policy.yaml", []string{"it expired on 2020-01-01"}},
		{".github/workflows/docs.yml", "review", "protected-ci", "the exception on line 6 of policy.yaml",
			[]string{"it holds until 2999-01-01: docs", "it is for other agents", "it is for other repositories"}},
		{".github/workflows/ci.yml", "block", "protected-ci", "its default", []string{"it is for other paths", "it is for other agents", "it is for other repositories"}},
	} {
		x := p.Explain("https://github.com/acme/api", "fixer", ExplainChanges(tc.path), now)
		if len(x.Changes) != 3 || len(x.Scopes) != 1 || x.Limits.Files != 3 || x.Policy != "etc/policy.yaml" || x.Digest != p.Digest() {
			t.Errorf("%s: %+v", tc.path, x)
		}
		for _, c := range x.Changes {
			if string(c.Level) != tc.level || c.Rule != tc.rule {
				t.Errorf("%s %s: %s by %q, want %s by %q", tc.path, c.Change, c.Level, c.Rule, tc.level, tc.rule)
			}
		}
		if tc.rule == "" {
			continue
		}
		r := x.Rules[0]
		if r.From != tc.from || strings.Join(r.On, " ") != "added changed deleted" || r.Pattern == "" || len(r.Exceptions) != len(tc.because) {
			t.Errorf("%s: %+v", tc.path, r)
			continue
		}
		for i, e := range r.Exceptions {
			if e.Because != tc.because[i] || e.Applies != strings.HasPrefix(e.Because, "it holds") {
				t.Errorf("%s: exception %d: %v because %s", tc.path, i, e.Applies, e.Because)
			}
		}
	}
}
