package scan

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	"github.com/zricethezav/gitleaks/v8/detect"
	"github.com/zricethezav/gitleaks/v8/report"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/scan/internal/corpus"
)

// gitleaksDetector is gitleaks without its allowances.
func gitleaksDetector(t testing.TB, depth int) *detect.Detector {
	t.Helper()
	d, err := corpus.Gitleaks(depth)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// certainIDs are gitleaks' rules that block here, by their own ids or by the
// rules of kick that supersede them.
func certainIDs() map[string]bool {
	out := map[string]bool{}
	for i := range ruleTable {
		if ruleTable[i].certain {
			out[ruleTable[i].id] = true
		}
	}
	return out
}

// compare reports what gitleaks finds in text, what of it we do not find, and
// what we find but do not call certain.
func compare(t testing.TB, s *Scanner, d *detect.Detector, text, path, where string) (theirs, missed, unsure []report.Finding) {
	t.Helper()
	all, not, err := s.search(context.Background(), []byte(text), path)
	if err != nil || not.why != "" {
		t.Fatalf("%s: %v, not searched: %q", where, err, not.why)
	}
	theirs = d.Detect(detect.Fragment{Raw: text, FilePath: path}) //nolint:staticcheck // Detect takes no other type
	for _, g := range theirs {
		worst := policy.Level("")
		for _, f := range all {
			if !strings.Contains(g.Match, f.value) && !strings.Contains(f.value, g.Secret) {
				continue
			}
			if worst = f.level; worst == policy.Block {
				break
			}
		}
		switch worst {
		case "":
			missed = append(missed, g)
		case policy.Block:
		default:
			unsure = append(unsure, g)
		}
	}
	return theirs, missed, unsure
}

// TestFindsWhatGitleaksFinds plants, for every rule of gitleaks, values drawn
// from its expression in several surroundings. Whatever gitleaks finds by a
// rule that is certain must be found; of the rest, most.
func TestFindsWhatGitleaksFinds(t *testing.T) {
	t.Parallel()
	s, d := newScanner(t, nil), gitleaksDetector(t, 0)
	certain := certainIDs()
	known := map[string]bool{}
	for i := range ruleTable {
		known[ruleTable[i].id] = true
	}
	frames := []string{"%s\n", "prefix text\nkey: %s\nsuffix\n", "\t\"%s\",\n", strings.Repeat("filler line of words\n", 400) + "%s\n" + strings.Repeat("x = y\n", 300)}
	r := rand.New(rand.NewPCG(7, 7))
	planted, possibleFound, possibleAll := 0, 0, 0
	for _, id := range slices.Sorted(maps.Keys(d.Config.Rules)) {
		rule := d.Config.Rules[id]
		if rule.Regex == nil {
			continue
		}
		re, err := syntax.Parse(rule.Regex.String(), syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		struck := false
		for n := range 24 {
			text := fmt.Sprintf(frames[n%len(frames)], corpus.Random(re, r))
			if len(rule.Keywords) > 0 && n%2 == 0 {
				text += rule.Keywords[0] + "\n" // some rules ask for a word anywhere
			}
			theirs, missed, unsure := compare(t, s, d, text, "", id)
			for _, g := range unsure {
				// Private keys drawn from gitleaks' expression have any bytes for a body.
				if certain[g.RuleID] && g.RuleID != "private-key" {
					t.Errorf("%s: %q of %.300q is not certain", g.RuleID, g.Secret, text)
				}
			}
			planted += len(theirs)
			for _, g := range theirs {
				struck = struck || g.RuleID == id
				if known[g.RuleID] && !certain[g.RuleID] {
					possibleAll++
					possibleFound++
				}
			}
			for _, g := range missed {
				if known[g.RuleID] && !certain[g.RuleID] {
					possibleFound--
					continue
				}
				t.Errorf("%s finds %q in %.300q; we do not", g.RuleID, g.Secret, text)
			}
		}
		if !struck && rule.Path == nil {
			t.Logf("no drawn value of rule %s is found by gitleaks itself", id)
		}
	}
	t.Logf("gitleaks found %d planted values; of %d possible ones we found %d", planted, possibleAll, possibleFound)
	if planted < 2000 {
		t.Errorf("only %d values were planted; the test lost its grip", planted)
	}
	if float64(possibleFound) < 0.95*float64(possibleAll) {
		t.Errorf("of %d possible ones we found only %d", possibleAll, possibleFound)
	}
}

// goSource calls f for each file below a directory of Go's standard library.
func goSource(t testing.TB, f func(path string, data []byte), dirs ...string) {
	t.Helper()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		root := filepath.Join(strings.TrimSpace(string(goroot)), "src", dir)
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if err == nil {
				f(path, data)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestGoSourceAgainstGitleaks compares on source that nobody planted anything
// in. KICK_SOAK=1 takes the whole tree, which costs gitleaks minutes.
func TestGoSourceAgainstGitleaks(t *testing.T) {
	t.Parallel()
	s, d := newScanner(t, nil), gitleaksDetector(t, 0)
	dirs := []string{"crypto/tls", "crypto/x509", "net/url", "encoding/pem", "debug/buildinfo"}
	if os.Getenv("KICK_SOAK") == "1" {
		dirs = []string{""}
	}
	certain := certainIDs()
	total := 0
	goSource(t, func(path string, data []byte) {
		theirs, missed, _ := compare(t, s, d, string(data), "", path)
		total += len(theirs)
		for _, g := range missed {
			if certain[g.RuleID] || g.RuleID == "private-key" {
				t.Errorf("%s: gitleaks finds %s at line %d; we do not", path, g.RuleID, g.StartLine+1)
			}
		}
	}, dirs...)
	t.Logf("gitleaks finds %d in these directories", total)
	if total == 0 {
		t.Error("gitleaks found nothing; the test lost its grip")
	}
}

// TestGoSourceIsQuiet bounds false alarms: gitleaks has 96 on this tree, ours
// are to be a tenth. Two of those that are left are true: credentials in the
// environment of a core dump, which only unpacking shows; three are real,
// published private keys. That an archive cannot be opened is no alarm about a
// secret, and is not counted: the tree has twelve of them.
func TestGoSourceIsQuiet(t *testing.T) {
	t.Parallel()
	if testing.Short() && os.Getenv("CI") == "" {
		t.Skip("reads 120 MB; run without -short")
	}
	s := newScanner(t, nil)
	n := 0
	goSource(t, func(path string, data []byte) {
		f, err := s.Text(context.Background(), data)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range f {
			t.Logf("%s:%d: %s %s %s", path, f.Line, f.Level, f.Rule, f.Excerpt)
			if f.Level != policy.Report && f.Rule != "opaque-archive" {
				n++
			}
		}
	}, "")
	if n > 9 {
		t.Errorf("%d findings in Go's source, want at most 9", n)
	}
}
