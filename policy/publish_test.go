package policy

import (
	"slices"
	"strings"
	"testing"
)

func TestPublishScopes(t *testing.T) {
	t.Parallel()
	p, err := Parse("p.yaml", []byte(`version: 1
publish:
  squash: true
  labels: [agent]
  reviewers: [olga, acme/owners]
  scopes:
    - repos: [acme/api]
      squash: false
      labels: [api, agent]
      title_prefix: "[api] "
    - agents: [fixer]
      code_owners: false
`))
	if err != nil {
		t.Fatal(err)
	}
	other := p.For("acme/web", "docs").Publish
	if !Is(other.Squash) || !slices.Equal(other.Labels, []string{"agent"}) || other.TitlePrefix != "" || other.CodeOwners != nil || other.Scopes != nil {
		t.Errorf("elsewhere: %+v", other)
	}
	api := p.For("acme/api", "fixer").Publish
	if Is(api.Squash) || !slices.Equal(api.Labels, []string{"api", "agent"}) || api.TitlePrefix != "[api] " || api.CodeOwners == nil || *api.CodeOwners || len(api.Reviewers) != 2 {
		t.Errorf("in the scopes: %+v", api)
	}
	if len(p.Publish.Scopes) != 2 {
		t.Error("For changed the whole policy")
	}
}

func TestPublishErrors(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`squash: yes`:                        `p.yaml:2: squash is "yes": write true or false`,
		`signed: "true"`:                     `p.yaml:2: signed is "true": write true or false`,
		`labels: ["a,b"]`:                    `labels: "a,b" is no label`,
		`labels: []`:                         `labels is empty`,
		`reviewers: ["@olga"]`:               `reviewers: "@olga" is neither a user's name nor org/team: write it without @`,
		`assignees: [acme/owners]`:           `assignees: "acme/owners" is no user's name`,
		`template: ../x.md`:                  `template: "../x.md" is no file's name`,
		`template: ..`:                       `template: ".." is no file's name`,
		"title_prefix: \"a\\u202eb\"":        `title_prefix: "a\u202eb": write at most 60 characters`,
		`automerge: true`:                    `unknown key "automerge" in publish`,
		`scopes: [{labels: [x]}]`:            `a scope has no repos or agents: add it`,
		`scopes: [{repos: [a], x: 1}]`:       `unknown key "x" in a scope of publish`,
		`assignees: [a,b,c,d,e,f,g,h,i,j,k]`: `assignees has 11 entries: keep at most 10`,
	} {
		_, err := Parse("p.yaml", []byte("version: 1\npublish: {"+in+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", in, err, want)
		}
	}
}
