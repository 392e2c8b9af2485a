package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pb33f/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

func TestParseFull(t *testing.T) {
	t.Parallel()
	p, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := p.Changes
	if c.Limits != (Limits{Files: 200, FileBytes: 1 << 20, TotalBytes: 4 << 20, Commits: 20}) {
		t.Errorf("limits: %+v", c.Limits)
	}
	if c.Rules["protected-build"] != Report || c.Rules["lfs-pointer"] != Block {
		t.Errorf("rules: %v", c.Rules)
	}
	if len(c.Protect) != 2 || c.Protect[0].Level != Review || c.Protect[1].Level != Block {
		t.Errorf("protect: %+v", c.Protect)
	}
	if len(p.Egress.Models) != 2 || p.Egress.Models[1].Addresses[0].String() != "10.1.0.0/16" || p.Egress.Models[0].Tokens != 2000000 || p.Egress.Hosts[0].Ports[0] != 443 {
		t.Errorf("egress: %+v", p.Egress)
	}
	q := p.For("acme/api", "fixer")
	if q.Changes.Limits.Files != 20 || q.Changes.Limits.Commits != 20 || q.Changes.Rules["binary"] != Block || len(q.Changes.AllowOnly) != 2 || len(q.Changes.Exceptions) != 0 {
		t.Errorf("scope is not applied: %+v", q.Changes)
	}
	if other := p.For("acme/web", "fixer"); other.Changes.AllowOnly != nil || other.Changes.Rules["binary"] != "" {
		t.Errorf("scope is applied elsewhere: %+v", other.Changes)
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, want string }{
		{"empty", "", "p.yaml: empty"},
		{"no version", "changes: {}\n", "p.yaml:1: version is missing"},
		{"other version", "version: 2\n", `p.yaml:1: version is "2": this kick reads version 1`},
		{"text version", "version: \"1\"\n", `p.yaml:1: version is "1"`},
		{"unknown key", "version: 1\nchange: {}\n", `p.yaml:2: unknown key "change" in the policy: the keys are changes, ci, egress, publish, secrets, version`},
		{"duplicate", "version: 1\negress: {}\negress: {}\n", `p.yaml:3: key "egress" of the policy stands on line 2 already`},
		{"wrong type", "version: 1\nchanges: [a]\n", "p.yaml:2: changes is a list: write a mapping"},
		{"null", "version: 1\nchanges:\n", "p.yaml:2: changes is empty"},
		{"unknown rule", "version: 1\nchanges:\n  rules:\n    protected-cii: report\n", `p.yaml:4: there is no rule "protected-cii"`},
		{"fixed rule", "version: 1\nchanges: {rules: {object-malformed: report}}\n", "has a fixed level"},
		{"level", "version: 1\nchanges: {rules: {binary: warn}}\n", `the level of binary is "warn": write block or review or report`},
		{"only the level of a rule with an exception", "version: 1\nchanges:\n  rules: {binary: warn}\n  exceptions: [{rule: binary, reason: x, expires: 2027-01-01}]\n", `write block or review or report`},
		{"limit", "version: 1\nchanges: {limits: {files: -1}}\n", `files is "-1": write a whole number above 0`},
		{"limit huge", "version: 1\nchanges: {limits: {files: 99999999999999999999}}\n", "write a whole number"},
		{"size", "version: 1\nchanges: {limits: {file_bytes: 5MB}}\n", `file_bytes is "5MB"`},
		{"glob", "version: 1\nchanges: {allow_only: [\"docs/\"]}\n", `write "docs/**"`},
		{"exception without end", "version: 1\nchanges:\n  exceptions:\n    - {rule: binary, reason: logos}\n", "p.yaml:4: an exception has no expires"},
		{"exception without reason", "version: 1\nchanges: {exceptions: [{rule: binary, expires: 2027-01-01}]}\n", "an exception has no reason"},
		{"bad date", "version: 1\nchanges: {exceptions: [{rule: binary, reason: x, expires: soon}]}\n", `expires is "soon": write a day`},
		{"exception blocks", "version: 1\nchanges: {exceptions: [{rule: binary, reason: x, level: block, expires: 2027-01-01}]}\n", "write review or report"},
		{"scope that changes nothing", "version: 1\nchanges:\n  scopes:\n    - {repos: [acme/api]}\n", "p.yaml:4: a scope has no rules, limits, allow_only or protect"},
		{"repository that names nothing", "version: 1\nchanges: {scopes: [{repos: [\"acme/\"], limits: {files: 1}}]}\n", `"acme/" matches nothing: name a repository as owner/name`},
		{"repository without an owner", "version: 1\nchanges: {scopes: [{repos: [api], limits: {files: 1}}]}\n", `"api" has no owner, and matches nothing`},
		{"every repository", "version: 1\nchanges: {scopes: [{repos: [\"*\"], limits: {files: 1}}]}\n", `"*" has no owner, and matches nothing`},
		{"relative path of a repository", "version: 1\nci: {scopes: [{repos: [../api], default_token: read}]}\n", `"../api" is no absolute path`},
		{"agent in capitals", "version: 1\nchanges: {scopes: [{agents: [Fixer], limits: {files: 1}}]}\n", `"Fixer" matches nothing`},
		{"agent with a slash", "version: 1\npublish: {scopes: [{agents: [team/fixer], squash: true}]}\n", `"team/fixer" matches nothing`},
		{"excluded path", "version: 1\nchanges: {protect: [{paths: [\"!docs/**\"], reason: x}]}\n", `begins with !, which excludes nothing`},
		{"agent with a space", "version: 1\nchanges: {scopes: [{agents: [\"the fixer\"], limits: {files: 1}}]}\n", `"the fixer" has a space`},
		{"exception for nothing", "version: 1\nchanges:\n  exceptions:\n    - {rule: binary, reason: x, expires: 2999-01-01}\n", "p.yaml:4: an exception that makes binary a report is pointless, since its level is report at most: remove it"},
		{"exception for a path of no path", "version: 1\nchanges:\n  exceptions:\n    - {rule: commit-empty, paths: [a], reason: x, expires: 2999-01-01}\n", "p.yaml:4: an exception for commit-empty has paths, but that rule is about no path"},
		{"exception without a list", "version: 1\nchanges:\n  exceptions:\n    - {rule: path-not-allowed, paths: [a], reason: x, expires: 2999-01-01}\n", "remove it, or write allow_only"},
		{"exception that the rules made pointless", "version: 1\nchanges:\n  rules: {protected-ci: review}\n  exceptions:\n    - {rule: protected-ci, level: review, reason: x, expires: 2999-01-01}\n", "p.yaml:5: an exception that makes protected-ci a review is pointless"},
		{"two exceptions for one place", "version: 1\nchanges:\n  exceptions:\n    - {rule: protected-ci, paths: [/.github/a.yml], reason: x, expires: 2999-01-01}\n    - {rule: protected-ci, paths: [/.github/b.yml, /.github/a.yml], level: review, reason: y, expires: 2999-01-01}\n", "p.yaml:5: this exception for protected-ci and the one on line 4 are for the same place"},
		{"two exceptions for one secret", "version: 1\nsecrets:\n  exceptions:\n    - {fingerprint: f, reason: x, expires: 2999-01-01}\n    - {fingerprint: f, repos: [acme/api], reason: y, expires: 2999-01-01}\n", "p.yaml:5: this exception and the one on line 4 are for the same fingerprint"},
		{"scope for all", "version: 1\nchanges: {scopes: [{limits: {files: 1}}]}\n", "a scope has no repos or agents"},
		{"anchor", "version: 1\nchanges: &a {}\negress: *a\n", "anchors and aliases are not allowed"},
		{"two documents", "version: 1\n---\nversion: 1\n", "a second document begins here"},
		{"not yaml", "version: [1\n", "p.yaml: not YAML"},
		{"host", "version: 1\negress: {hosts: [{host: \"https://x.example\"}]}\n", "is no DNS name"},
		{"port", "version: 1\negress: {hosts: [{host: x.example, ports: [70000]}]}\n", "port 70000 is above 65535"},
		{"method", "version: 1\negress: {hosts: [{host: x.example, methods: [get]}]}\n", `"get" is no method`},
		{"endpoint", "version: 1\negress: {models: [{provider: a, endpoint: \"http://x.example\"}]}\n", "is not https"},
		{"key in file", "version: 1\negress: {models: [{provider: a, key_env: \"sk-abc\"}]}\n", "write the variable's name, never the key itself"},
		{"repeated", "version: 1\negress: {presets: [go, go]}\n", `presets has "go" twice`},
		{"empty list", "version: 1\negress: {presets: []}\n", "presets is empty"},
		{"too large", "version: 1\n# " + strings.Repeat("x", MaxFile), "larger than"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p, err := Parse("p.yaml", []byte(tc.in))
			if err == nil {
				t.Fatalf("taken: %+v", p)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q, want %q in it", err, tc.want)
			}
		})
	}
}

func TestParseReturnsEveryError(t *testing.T) {
	t.Parallel()
	_, err := Parse("p.yaml", []byte("version: 1\nx: 1\nchanges:\n  y: 2\n"))
	for _, want := range []string{"p.yaml:2:", "p.yaml:4:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v has no %s", err, want)
		}
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	parse := func(s string) string {
		p, err := Parse("p", []byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return p.Digest()
	}
	if parse("version: 1\n") != Default().Digest() {
		t.Error("a file that says nothing has another digest than the default")
	}
	a := parse("version: 1\nchanges: {rules: {binary: block, lfs-pointer: block}}\n")
	b := parse("# comment\nchanges:\n  rules:\n    lfs-pointer: block\n    binary: block\nversion: 1\n")
	if a != b {
		t.Error("order and comments change the digest")
	}
	if a == parse("version: 1\nchanges: {rules: {binary: review, lfs-pointer: block}}\n") {
		t.Error("another level has the same digest")
	}
}

func TestExceptions(t *testing.T) {
	t.Parallel()
	p, err := Parse("p", []byte(`
version: 1
changes:
  exceptions:
    - {rule: protected-ci, paths: [".github/workflows/docs.yml"], level: review, reason: docs, expires: 2027-03-31}
    - {rule: lfs-pointer, reason: all, expires: 2027-03-31, agents: [artist]}
secrets:
  exceptions:
    - {fingerprint: "v1:aa", reason: test data, expires: 2027-03-31}
`))
	if err != nil {
		t.Fatal(err)
	}
	during := time.Date(2027, 3, 31, 23, 59, 0, 0, time.UTC)
	after := during.Add(2 * time.Minute)
	levels := func(fs []Finding) (out []string) {
		for _, f := range fs {
			out = append(out, f.Rule+"="+string(f.Level))
		}
		return out
	}
	q := p.For("r", "writer")
	for _, tc := range []struct {
		name string
		got  []Finding
		want []string
	}{
		{"in time", q.Judge(edited(".github/workflows/docs.yml"), during), []string{"protected-ci=review"}},
		{"other case of the path", q.Judge(edited(".GITHUB/workflows/docs.yml"), during), []string{"protected-ci=review"}},
		{"expired", q.Judge(edited(".github/workflows/docs.yml"), after), []string{"protected-ci=block", "exception-expired=report"}},
		{"other path", q.Judge(edited(".github/workflows/ci.yml"), during), []string{"protected-ci=block"}},
		{"secret", q.ApplySecret(Finding{Rule: "k", Level: Block, Fingerprint: "v1:aa"}, during), []string{"k=report"}},
		{"secret expired", q.ApplySecret(Finding{Rule: "k", Level: Block, Fingerprint: "v1:aa"}, after), []string{"k=block", "exception-expired=report"}},
		{"other secret", q.ApplySecret(Finding{Rule: "k", Level: Block, Fingerprint: "v1:bb"}, during), []string{"k=block"}},
		{"secret without fingerprint", q.ApplySecret(Finding{Rule: "k", Level: Review}, during), []string{"k=review"}},
	} {
		if got := levels(tc.got); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	if len(q.Changes.Exceptions) != 1 || len(p.For("r", "artist").Changes.Exceptions) != 2 {
		t.Error("an exception for one agent applies to another")
	}
}

// TestMistakesInOrder: they come in the order of the file, whatever the order in
// which they are found, and of very many the first.
func TestMistakesInOrder(t *testing.T) {
	t.Parallel()
	bad := "version: 1\nchanges:\n  exceptions:\n    - {rule: protected-ci, level: block, reason: x, expires: 2999-01-01}\n  rules: {nothing: block}\nsecrets: 1\n"
	_, err := Parse("p.yaml", []byte(bad))
	if err == nil {
		t.Fatal("no error")
	}
	var at []string
	for line := range strings.Lines(err.Error()) {
		place, _, _ := strings.Cut(line, ": ")
		at = append(at, place)
	}
	if want := []string{"p.yaml:4", "p.yaml:5", "p.yaml:6"}; !slices.Equal(at, want) {
		t.Errorf("mistakes at %q, want %q:\n%v", at, want, err)
	}
	many := "version: 1\nchanges:\n  rules:\n" + strings.Repeat("    nothing: block\n", 2000)
	_, err = Parse("p.yaml", []byte(many))
	if err == nil || strings.Count(err.Error(), "\n") != 20 || !strings.Contains(err.Error(), "p.yaml:4: ") || !strings.HasSuffix(err.Error(), "980 more mistakes: mend these first") {
		t.Errorf("of many: %v", err)
	}
}

// Of exceptions that meet through their patterns, the lowest level counts, and
// one that has expired hides none that has not.
func TestExceptionsThatMeet(t *testing.T) {
	t.Parallel()
	p, err := Parse("p.yaml", []byte(`
version: 1
changes:
  exceptions:
    - {rule: protected-ci, paths: [".github/**"], reason: old, expires: 2020-01-01}
    - {rule: protected-ci, paths: [".github/workflows/**"], level: review, reason: some, expires: 2999-01-01}
    - {rule: protected-ci, paths: [".github/workflows/docs.yml"], reason: docs, expires: 2999-01-01}
`))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for path, want := range map[string]string{
		".github/workflows/docs.yml": "protected-ci=report docs",
		".github/workflows/ci.yml":   "protected-ci=review some",
		".github/dependabot.yml":     "protected-ci=block exception-expired=report",
	} {
		var got []string
		for _, f := range p.For("", "").Judge(edited(path), now) {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s=%s %s", f.Rule, f.Level, f.Exception)))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if w := p.Warnings(now); len(w) != 1 || !strings.HasPrefix(w[0], "p.yaml:5: the exception for protected-ci expired on 2020-01-01") {
		t.Errorf("warnings %q", w)
	}
}

func TestScopesNameRepositories(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern, repo string
		want          bool
	}{
		{"acme/api", "acme/api", true},
		{"acme/api", "https://github.com/acme/api", true},
		{"acme/api", "https://github.com/Acme/API.git", true},
		{"acme/api", "https://github.com:443/acme/api/", true},
		{"acme/api", "ssh://git@github.com/acme/api.git", true},
		{"acme/api", "git@github.com:acme/api.git", true},
		{"acme/api", "https://github.com/evil/acme/api", false},
		{"acme/api", "https://github.com/acme/apis", false},
		{"acme/api", "/srv/acme/api", false},
		{"acme/*", "https://github.com/acme/api", true},
		{"acme/*", "https://github.com/acme/group/api", false},
		{"*/api", "git@ghe.example.com:acme/api", true},
		{"github.com/acme/api", "git@github.com:acme/api.git", true},
		{"github.com/acme/api", "git@ghe.example.com:acme/api.git", false},
		{"https://github.com/acme/api", "git@github.com:acme/api.git", true},
		{"https://github.com/acme/api", "https://ghe.example.com/acme/api", false},
		{"/srv/git/api.git", "/srv/git/api.git", true},
		{"/srv/git/*", "/srv/git/api.git", true},
		{"/srv/git/api.git", "file:///srv/git/api.git", true},
		{"file:///srv/git/api.git", "/srv/git/api.git", true},
		{"acme/api.git", "https://github.com/acme/api", true},
		{"github.com/acme/api.git", "git@github.com:acme/api.git", true},
		{"/srv/git/API.git", "/srv/git/api.git", false},
		{"acme/api", "", false},
	} {
		if err := checkRepo(tc.pattern); err != nil {
			t.Error(err)
		}
		if got := appliesRepo([]string{tc.pattern}, tc.repo); got != tc.want {
			t.Errorf("%q names %q: %v, want %v", tc.pattern, tc.repo, got, tc.want)
		}
	}
}

func TestAllowOnlyAndProtect(t *testing.T) {
	t.Parallel()
	p, err := Parse("p", []byte("version: 1\nchanges:\n  allow_only: [\"src/**\"]\n  protect: [{paths: [\"src/gen/**\"], level: review, reason: generated}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	q := p.For("", "")
	for path, want := range map[string]string{"src/a": "", "docs/a": "path-not-allowed", "src/Gen/x": "protected-custom"} {
		got := ""
		for _, f := range q.Judge(edited(path), time.Now()) {
			got += f.Rule
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// The published schema and the parser agree on the examples.
func TestSchema(t *testing.T) {
	t.Parallel()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	check := func(in []byte) error {
		var v any
		if err := yaml.Unmarshal(in, &v); err != nil {
			return err
		}
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		inst, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			return err
		}
		return schema.Validate(inst)
	}
	files, _ := filepath.Glob("testdata/*.yaml")
	if len(files) == 0 {
		t.Fatal("no examples")
	}
	for _, f := range files {
		in, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		// A bare date is a timestamp to a YAML library, and a text to JSON.
		in = quoteDates(in)
		if err := check(in); err != nil {
			t.Errorf("%s: schema refuses it: %v", f, err)
		}
		if _, err := Parse(f, in); err != nil {
			t.Errorf("parser refuses it: %v", err)
		}
	}
	for _, bad := range []string{
		"changes: {}", "version: 2", "version: 1\nx: 1", "version: 1\nchanges: {rules: {nope: block}}",
		"version: 1\nchanges: {rules: {object-malformed: report}}", "version: 1\nchanges: {rules: {binary: warn}}",
		"version: 1\nchanges: {limits: {files: 0}}", "version: 1\nchanges: {limits: {file_bytes: 5MB}}",
		"version: 1\nchanges: {exceptions: [{rule: binary, reason: x}]}", "version: 1\nchanges: {scopes: [{limits: {files: 1}}]}",
		"version: 1\nchanges: {scopes: [{repos: [a/b]}]}", "version: 1\nchanges: {scopes: [{repos: [\"a b\"], limits: {files: 1}}]}",
		"version: 1\negress: {hosts: [{host: \"https://x\"}]}", "version: 1\negress: {models: [{endpoint: \"https://x\"}]}",
		"version: 1\negress: {presets: [go, go]}", "version: 1\nchanges: {allow_only: []}",
		"version: 1\nci: {default_token: none}", "version: 1\nci: {external: [{name: x}]}", "version: 1\nci: {accept: [{reason: x, expires: \"2027-01-01\"}]}",
		"version: 1\nci: {accept: [{external: x, job: y, reason: x, expires: \"2027-01-01\"}]}", "version: 1\nci: {scopes: [{default_token: read}]}",
		"version: 1\nci: {accept: [{workflow: ci.yml, reason: x, expires: \"2027-01-01\"}]}",
	} {
		if check([]byte(bad)) == nil {
			t.Errorf("schema takes %q", bad)
		}
		if _, err := Parse("p", []byte(bad)); err == nil {
			t.Errorf("parser takes %q", bad)
		}
	}
	var raw struct {
		Defs struct{ Rule struct{ Enum []string } } `json:"$defs"`
	}
	if err := json.Unmarshal(Schema, &raw); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(raw.Defs.Rule.Enum, changeableIDs()) {
		t.Errorf("rule ids of the schema differ from the table:\n%q\n%q", raw.Defs.Rule.Enum, changeableIDs())
	}
}

func quoteDates(in []byte) []byte {
	lines := strings.Split(string(in), "\n")
	for i, l := range lines {
		if k, v, ok := strings.Cut(l, "expires: "); ok && !strings.HasPrefix(v, `"`) {
			lines[i] = k + `expires: "` + v + `"`
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

func FuzzParse(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte("version: 1\nchanges: {rules: {binary: block}}\n"))
	f.Add([]byte("{version: 1, ? [a]: b}"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := Parse("p.yaml", in)
		if err != nil {
			return
		}
		again, err := Parse("p.yaml", in)
		if err != nil || again.Digest() != p.Digest() || p.Version != Version {
			t.Errorf("a policy that is read twice differs: %v", err)
		}
		p.For("r", "a").Judge(added("x"), time.Unix(0, 0))
	})
}

// The policies that the README shows are policies.
func TestReadmeExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
		body, _, _ := strings.Cut(block, "```")
		if !strings.HasPrefix(body, "version: 1\n") {
			continue
		}
		n++
		if _, err := Parse("README.md", []byte(body)); err != nil {
			t.Errorf("%v in\n%s", err, body)
		}
	}
	if n == 0 {
		t.Error("there is none")
	}
}
