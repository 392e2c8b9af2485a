package sarif

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/jsonschema/v6"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
)

// schema returns the published one.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	cache := os.Getenv("KICK_CACHE")
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(base, "kick")
	}
	raw, err := os.ReadFile(filepath.Join(cache, "sarif-2.1.0-rtm.5.json"))
	if os.IsNotExist(err) && os.Getenv("CI") == "" {
		t.Skip("the schema of SARIF is not in the cache: run internal/sarif/schema.sh")
	}
	if err != nil {
		t.Fatalf("%v: run internal/sarif/schema.sh", err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat() // URIs
	if err := c.AddResource("sarif.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("sarif.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func finding(rule string, edit func(*policy.Finding)) policy.Finding {
	f := policy.Finding{Rule: rule, Level: policy.Block, Message: "something is wrong", Remedy: "Mend it."}
	if _, ok := policy.RuleByID(rule); ok {
		f = policy.NewFinding(rule, "detail")
	}
	if edit != nil {
		edit(&f)
	}
	return f
}

const commit = "0123456789abcdef0123456789abcdef01234567"

var verdicts = map[string]pushbroker.Verdict{
	"passed": {Pass: true, Findings: []policy.Finding{}, Digests: map[string]string{"policy": "x"}},
	"refused ingest": (&pushbroker.Refusal{Findings: []policy.Finding{policy.NewFinding("bundle-format", "")}}).
		Verdict(pushbroker.Work{BaseOID: commit}),
	"every place": {Base: commit, Tip: commit, Findings: []policy.Finding{
		finding("protected-ci", func(f *policy.Finding) { f.Path, f.Commit = ".github/workflows/ci.yml", commit }),
		finding("a-scanner-rule", func(f *policy.Finding) {
			f.Path, f.Line, f.Column, f.Commit, f.Excerpt, f.Fingerprint = "a b/ü:#?%.txt", 3, 7, commit, "AKIA…", "abc"
		}),
		finding("a-scanner-rule", func(f *policy.Finding) {
			f.Path, f.Line, f.Fingerprint, f.Level = "x", 3, "abc", policy.Review
		}),
		finding("possible", func(f *policy.Finding) { f.Level, f.Exception, f.Path = policy.Report, "a known example", "y" }),
		finding("commit-header", func(f *policy.Finding) { f.Commit, f.Place = commit, "commit" }),
	}},
	"hostile": {Findings: []policy.Finding{
		finding("r", func(f *policy.Finding) {
			f.Path, f.Place, f.Excerpt = "http://evil.example/\x1b[31m\n../\xff::error::x", "\u202e", "\x00"
			f.Message = "see [here](http://evil.example) {0} \x1b[2J\u2066"
		}),
	}},
}

func render(t *testing.T, v pushbroker.Verdict) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, v, "1.2.3"); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSchema(t *testing.T) {
	t.Parallel()
	s := schema(t)
	for name, v := range verdicts {
		inst, err := jsonschema.UnmarshalJSON(bytes.NewReader(render(t, v)))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(inst); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The schema is not one that takes anything.
	for _, bad := range []string{`{}`, `{"version":"2.1.0"}`, `{"version":"2.1.0","runs":[{"tool":{"driver":{}}}]}`,
		`{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"x"}},"results":[{"message":{"text":"x"},"level":"block"}]}]}`} {
		inst, err := jsonschema.UnmarshalJSON(strings.NewReader(bad))
		if err != nil {
			t.Fatal(err)
		}
		if s.Validate(inst) == nil {
			t.Errorf("the schema takes %s", bad)
		}
	}
}

// read returns the run of a verdict, as a reader sees it.
func read(t *testing.T, v pushbroker.Verdict) run {
	t.Helper()
	var l log
	if err := json.Unmarshal(render(t, v), &l); err != nil {
		t.Fatal(err)
	}
	return l.Runs[0]
}

func TestResults(t *testing.T) {
	t.Parallel()
	v := verdicts["every place"]
	r := read(t, v)
	if len(r.Results) != len(v.Findings) || len(r.Tool.Driver.Rules) != 4 {
		t.Fatalf("%d results of %d rules", len(r.Results), len(r.Tool.Driver.Rules))
	}
	var levels, prints []string
	for i, res := range r.Results {
		levels = append(levels, res.Level)
		prints = append(prints, res.Partial["kickFinding/v1"])
		if rule := r.Tool.Driver.Rules[res.RuleIndex]; rule.ID != v.Findings[i].Rule || rule.Short.Text == "" || rule.Help.Text == "" {
			t.Errorf("result %d is of rule %+v", i, rule)
		}
		if path := v.Findings[i].Path; path != "" {
			got, err := url.PathUnescape(res.Locations[0].Physical.Artifact.URI)
			if err != nil || got != path {
				t.Errorf("path %q is read as %q, %v", path, got, err)
			}
		}
	}
	if want := []string{"error", "error", "warning", "note", "error"}; !slices.Equal(levels, want) {
		t.Errorf("levels %v", levels)
	}
	slices.Sort(prints)
	if len(slices.Compact(prints)) != len(v.Findings) {
		t.Error("two findings have one fingerprint")
	}
	if s := r.Results[3].Suppressions; len(s) != 1 || s[0].Justification != "a known example" {
		t.Errorf("an accepted finding is not suppressed: %+v", s)
	}
	if r.Results[1].Locations[0].Physical.Region.Line != 3 || r.Results[1].Prints["kickSecret/v1"] != "abc" {
		t.Errorf("result %+v", r.Results[1])
	}
}

// Work that is done again keeps the fingerprints of what is still wrong.
func TestFingerprintsOutliveTheCommit(t *testing.T) {
	t.Parallel()
	before := verdicts["every place"]
	after := pushbroker.Verdict{Findings: slices.Clone(before.Findings)}
	for i := range after.Findings {
		if after.Findings[i].Commit != "" {
			after.Findings[i].Commit = strings.Repeat("f", 40)
		}
		after.Findings[i].Line++
	}
	a, b := read(t, before), read(t, after)
	for i := range a.Results {
		if a.Results[i].Partial["kickFinding/v1"] != b.Results[i].Partial["kickFinding/v1"] {
			t.Errorf("result %d has another fingerprint", i)
		}
	}
}

func TestHostileText(t *testing.T) {
	t.Parallel()
	out := string(render(t, verdicts["hostile"]))
	for i := 0; i < len(out); i++ {
		if c := out[i]; c < ' ' && c != '\n' || c == 0x7F {
			t.Errorf("control character %#x", c)
		}
	}
	res := read(t, verdicts["hostile"]).Results[0]
	if m := res.Message.Text; strings.Contains(m, "](") || !strings.Contains(m, "{{0}}") || strings.ContainsAny(m, "\x1b\u2066") {
		t.Errorf("message %q", m)
	}
	u, err := url.Parse(res.Locations[0].Physical.Artifact.URI)
	if err != nil || u.Scheme != "" || u.Host != "" {
		t.Errorf("location %v, %v", u, err)
	}
}
