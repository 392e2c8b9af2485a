package scan

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/kickhq/kick/pushbroker/scan/internal/corpus"
	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
)

// addSeeds adds every rule's examples and every encoding of a token.
func addSeeds(f *testing.F) {
	for _, r := range ruleset.Own {
		for _, m := range append(r.Matches, r.Misses...) {
			f.Add([]byte(ruleset.Expand(m, 1)))
		}
	}
	for _, e := range corpus.Encodings {
		f.Add([]byte(e.Encode(ruleset.Expand("ghp_{an:36}", 1))))
	}
}

// FuzzScan wants no panic, places within the item, and no value in a finding.
func FuzzScan(f *testing.F) {
	addSeeds(f)
	s, err := New(Options{Key: testKey, MaxDecoded: 4 << 20, MaxMatched: 16 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		all, _, err := s.search(context.Background(), data, "a.yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range all {
			if found.at.from < 0 || found.at.to < found.at.from || found.at.to > len(data) {
				t.Fatalf("place %v in %d bytes", found.at, len(data))
			}
			out := s.finding(data, found)
			if v := found.value; len(v) > 8 && strings.Contains(out.Message+out.Remedy+out.Excerpt, v) {
				t.Fatalf("a finding holds its value: %+v", out)
			}
			if lines := bytes.Count(data, []byte("\n")) + 1; out.Line > lines {
				t.Fatalf("line %d of %d", out.Line, lines)
			}
		}
	})
}

// FuzzWindows wants every match of an expression on the whole text to be hit by
// the engine, which looks only in windows.
func FuzzWindows(f *testing.F) {
	addSeeds(f)
	e := newEngine(nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4<<10 {
			return
		}
		checkWindows(t, e, data)
	})
}

func checkWindows(t *testing.T, e *engine, data []byte) {
	t.Helper()
	hits, err := e.find(&budget{ctx: context.Background(), work: 1 << 40}, &view{text: data}, "a.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lowered := bytes.ToLower(data)
	for i := range ruleTable {
		r := &ruleTable[i]
		if r.expr == "" || r.path != "" || r.gate != nil && !holdsAny(lowered, r.gate) {
			continue
		}
		c := compile(i)
		p := &pass{text: data}
	match:
		for _, m := range c.expr.FindAllSubmatchIndex(data, -1) {
			start, end := secretOf(r, m)
			h := hit{rule: i, match: m[0], start: start, end: end, level: r.level()}
			if !p.accept(r, c, &h, m[0], m[1]) {
				continue
			}
			for _, got := range hits {
				if got.rule == i && got.start < h.end && h.start < got.end {
					continue match
				}
			}
			t.Errorf("rule %s matches %q at %d of %d bytes; the engine does not", r.id, data[m[0]:m[1]], m[0], len(data))
		}
	}
}

func holdsAny(text []byte, words []string) bool {
	for _, w := range words {
		if bytes.Contains(text, []byte(w)) {
			return true
		}
	}
	return false
}

// TestWindowsMissNothing runs the same comparison on examples that stand close
// together, far apart, on long lines, and at either end of the text.
func TestWindowsMissNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(nil)
	for _, sep := range []string{"\n", ";", strings.Repeat("word ", 120), strings.Repeat("x", 600), strings.Repeat("é\u212a", 60)} {
		var b strings.Builder
		for _, r := range ruleset.Own {
			b.WriteString(ruleset.Expand(r.Matches[0], 1))
			b.WriteString(sep)
			if b.Len() > 4<<10 {
				checkWindows(t, e, []byte(b.String()))
				b.Reset()
			}
		}
		checkWindows(t, e, []byte(b.String()))
	}
}

// FuzzDerive wants decoded views whose pieces lie within their text and their
// parent's, in order.
func FuzzDerive(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		b := &budget{ctx: context.Background(), left: 1 << 20}
		defer b.close()
		for views := []*view{{text: data}}; len(views) > 0; views = views[1:] {
			v := views[0]
			last := 0
			for _, p := range v.pieces {
				if p.at.from < last || p.at.to < p.at.from || p.at.to > len(v.text) ||
					p.raw.from < 0 || p.raw.to < p.raw.from || p.raw.to > len(v.parent.text) {
					t.Fatalf("piece %+v of %d bytes from %d", p, len(v.text), len(v.parent.text))
				}
				last = p.at.to
			}
			if at, _, ok := v.locate(0, len(v.text)); ok && (at.from < 0 || at.to > len(data)) {
				t.Fatalf("located at %+v of %d bytes", at, len(data))
			}
			views = append(views, derive(v, b)...)
		}
	})
}
