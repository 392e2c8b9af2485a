package policy

import (
	"strings"
	"testing"
	"time"
)

func TestCIScopes(t *testing.T) {
	t.Parallel()
	p, err := Parse("p.yaml", []byte(`version: 1
ci:
  default_token: read
  guarded_environments: [production]
  external: [{name: jenkins, secrets: true}]
  accept:
    - {workflow: .github/workflows/ci.yml, agents: [fixer], reason: no harm, expires: 2999-01-01}
  scopes:
    - repos: [acme/api]
      default_token: write
      external: []
`))
	if err != nil {
		t.Fatal(err)
	}
	web, api := p.For("acme/web", "fixer").CI, p.For("acme/api", "docs").CI
	if web.DefaultToken != "read" || len(web.External) != 1 || len(web.Accept) != 1 || web.Scopes != nil {
		t.Errorf("elsewhere: %+v", web)
	}
	if api.DefaultToken != "write" || len(api.External) != 0 || len(api.GuardedEnvironments) != 1 || len(api.Accept) != 0 {
		t.Errorf("in the scope: %+v", api)
	}
	if !p.HasEnds() || p.Digest() == Default().Digest() {
		t.Error("what is accepted is not in the digest")
	}
}

func TestApplyCI(t *testing.T) {
	t.Parallel()
	p, err := Parse("p.yaml", []byte(`version: 1
ci:
  accept:
    - {workflow: .github/workflows/ci.yml, job: test, reason: no harm, expires: 2026-06-30}
    - {workflow: .github/workflows/docs.yml, reason: docs, expires: 2026-06-30}
    - {external: Jenkins, reason: test keys, expires: 2026-06-30}
`))
	if err != nil {
		t.Fatal(err)
	}
	last := time.Date(2026, 6, 30, 23, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		workflow, job, external string
		now                     time.Time
		want                    string
	}{
		{".github/workflows/ci.yml", "test", "", last, "report"},
		{".github/workflows/ci.yml", "test", "", last.Add(time.Hour), "block exception-expired"},
		{".github/workflows/ci.yml", "lint", "", last, "block"},
		{".github/workflows/docs.yml", "any", "", last, "report"},
		{".github/workflows/other.yml", "test", "", last, "block"},
		{"", "", "jenkins", last, "report"},
		{"", "", "circleci", last, "block"},
	} {
		got := ""
		for i, f := range p.For("r", "a").ApplyCI(NewFinding("ci-exposure", "x"), c.workflow, c.job, c.external, c.now) {
			if i == 0 {
				got = string(f.Level)
			} else {
				got += " " + f.Rule
			}
		}
		if got != c.want {
			t.Errorf("%s %s %s: %s, want %s", c.workflow, c.job, c.external, got, c.want)
		}
	}
}

func TestCIErrors(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`default_token: none`:                                                                         `default_token is "none": write read or write`,
		`guarded_environments: []`:                                                                    `guarded_environments is empty`,
		`hosted_runners: ["a["]`:                                                                      `label pattern "a["`,
		`external: [{name: x}]`:                                                                       `an external service has no secrets: add it`,
		`external: [{name: x, secrets: 1}]`:                                                           `secrets is "1": write true or false`,
		`accept: [{workflow: ci.yml, reason: x, expires: 2027-01-01}]`:                                `workflow "ci.yml": write its path, as .github/workflows/ci.yml`,
		`accept: [{workflow: .github/workflows/ci.yml, expires: 2027-01-01}]`:                         `an entry of accept has no reason`,
		`accept: [{workflow: .github/workflows/ci.yml, reason: x}]`:                                   `an entry of accept has no expires`,
		`accept: [{reason: x, expires: 2027-01-01}]`:                                                  `names one of workflow and external`,
		`accept: [{external: x, job: y, reason: x, expires: 2027-01-01}]`:                             `an external service has no job`,
		`scopes: [{default_token: read}]`:                                                             `a scope has no repos or agents`,
		`scopes: [{repos: [a], accept: []}]`:                                                          `unknown key "accept" in a scope of ci`,
		`accept: [{workflow: .github/workflows/ci.yml, external: x, reason: x, expires: 2027-01-01}]`: `names one of workflow and external`,
	} {
		_, err := Parse("p.yaml", []byte("version: 1\nci: {"+in+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", in, err, want)
		}
	}
}
