package scan

import (
	"context"
	"strings"
	"testing"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
)

func newScanner(t testing.TB, held map[string]string) *Scanner {
	t.Helper()
	key := []byte("a key of a test, 32 bytes long..")
	var h *Held
	if held != nil {
		var err error
		if h, err = NewHeld(key, held); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(Options{Key: key, Held: h})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func scanText(t testing.TB, s *Scanner, text string) []policy.Finding {
	t.Helper()
	f, err := s.Text(context.Background(), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func level(findings []policy.Finding) policy.Level {
	worst := policy.Level("")
	for _, f := range findings {
		switch {
		case f.Level == policy.Block:
			return policy.Block
		case f.Level == policy.Review, worst == "":
			worst = f.Level
		}
	}
	return worst
}

func want(g ruleset.Grade) policy.Level {
	if g == ruleset.Certain {
		return policy.Block
	}
	return policy.Review
}

// TestOwnRules runs each rule's examples alone, in a line of code, and between
// other text.
func TestOwnRules(t *testing.T) {
	t.Parallel()
	s := newScanner(t, nil)
	frames := map[string][2]string{
		"alone": {"", ""}, "quoted": {"v = \"", "\"\n"},
		"within": {strings.Repeat("some text before\n", 50), "\n" + strings.Repeat("some text after\n", 50)},
		"binary": {"\x00\xff\x01\n", "\x00\x00"},
	}
	for _, r := range ruleset.Own {
		t.Run(r.ID, func(t *testing.T) {
			t.Parallel()
			if len(r.Matches) == 0 || len(r.Misses) == 0 {
				t.Fatal("the rule has no examples")
			}
			for _, m := range r.Matches {
				for name, frame := range frames {
					for seed := range uint64(5) {
						text := frame[0] + ruleset.Expand(m, seed) + frame[1]
						if name == "quoted" && strings.ContainsAny(m, "\"\n") {
							continue
						}
						if got := level(scanText(t, s, text)); got != want(r.Grade) {
							t.Errorf("%s, %s: level %q, want %q, of %.200q", m, name, got, want(r.Grade), text)
						}
					}
				}
			}
			for _, m := range r.Misses {
				for _, f := range scanText(t, s, ruleset.Expand(m, 1)) {
					if f.Rule == r.ID && f.Level != policy.Report {
						t.Errorf("%s is found", m)
					}
				}
			}
		})
	}
}

// TestTableCompiles compiles every expression: compile panics on a bad one.
func TestTableCompiles(t *testing.T) {
	t.Parallel()
	for i := range ruleTable {
		r := &ruleTable[i]
		c := compile(i)
		if r.group > c.expr.NumSubexp() {
			t.Errorf("rule %s has no group %d", r.id, r.group)
		}
		if r.verify != "" && verifiers[r.verify] == nil {
			t.Errorf("rule %s asks for the unknown check %q", r.id, r.verify)
		}
		for _, a := range r.anchors {
			if len(a.lit) < minLiteral {
				t.Errorf("rule %s: anchor %q is too short", r.id, a.lit)
			}
		}
		if r.expr != "" && len(r.anchors)+len(r.gate) == 0 {
			t.Errorf("rule %s can never strike", r.id)
		}
	}
}
