package pushbroker

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/wrap"
	"github.com/kickhq/kick/policy"
)

// Add adds findings of what was looked at after the inspection, and decides
// anew.
func (v *Verdict) Add(found ...policy.Finding) {
	v.Findings = append(found, v.Findings...)
	v.decide()
}

// decide says what follows from the findings. A level that nobody knows blocks.
func (v *Verdict) decide() {
	review, block := false, false
	for _, f := range v.Findings {
		review = review || f.Level == policy.Review
		block = block || f.Level != policy.Review && f.Level != policy.Report
	}
	v.Pass, v.Review = !review && !block, review && !block
}

// Blocks reports whether a finding blocks.
func (v Verdict) Blocks() bool { return !v.Pass && !v.Review }

// Verdict returns the verdict of a refusal, so that a refused ingest is shown
// and stored like a refused inspection.
func (r *Refusal) Verdict(w Work) Verdict {
	return Verdict{Findings: r.Findings, Base: w.BaseOID, Changes: []Change{}, Digests: map[string]string{"base": w.BaseOID}, Added: -1, Removed: -1}
}

// TableOptions say how findings are shown to a person.
type TableOptions struct {
	Colour bool // ANSI colours
	Width  int  // columns; 0: 80. It is kept between 60 and 120, where text reads well
}

// maxPlaces is how many places of one rule the table shows; the JSON has all.
const maxPlaces = 5

// WriteTable shows the verdict to a person: one line that says what follows
// from it, then each rule that found something, with the places and what to
// do. What comes from the work is escaped.
func (v Verdict) WriteTable(w io.Writer, o TableOptions) error {
	t := newTable(w, o)
	t.summary(v)
	t.findings(v.Findings)
	return t.w.Flush()
}

// WriteFindings shows the findings alone, as WriteTable does.
func WriteFindings(w io.Writer, fs []policy.Finding, o TableOptions) error {
	t := newTable(w, o)
	t.findings(fs)
	return t.w.Flush()
}

type table struct {
	w      *bufio.Writer
	colour bool
	width  int
}

func newTable(w io.Writer, o TableOptions) *table {
	if o.Width == 0 {
		o.Width = 80
	}
	return &table{w: bufio.NewWriter(w), colour: o.Colour, width: min(max(o.Width, 60), 120)}
}

// SGR codes of the levels.
var levelColour = map[policy.Level]string{policy.Block: "31;1", policy.Review: "33;1", policy.Report: "36"}

func (t *table) paint(code, s string) string {
	if !t.colour || code == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *table) summary(v Verdict) {
	n := map[policy.Level]int{}
	for _, f := range v.Findings {
		n[f.Level]++
	}
	var head string
	switch {
	case v.Pass:
		head = t.paint("32;1", "Passed.") + " Nothing stands against publishing this work."
	case v.Review:
		head = t.paint(levelColour[policy.Review], "For review.") + " A person has to look at this work before it is merged."
	default:
		head = t.paint(levelColour[policy.Block], "Refused.") + " This work must not be published as it is."
	}
	t.line(head)
	if v.Commits > 0 {
		t.line(fmt.Sprintf("%s on %.12s, the last is %.12s", count(v.Commits, "commit"), v.Base, v.Tip))
		lines := ""
		if v.Added >= 0 && v.Removed >= 0 {
			lines = fmt.Sprintf(", +%d −%d lines", v.Added, v.Removed)
		}
		t.line(fmt.Sprintf("%s%s, %s of new content", count(v.Files, "changed file"), lines, size(v.Bytes)))
	}
	var parts []string
	for _, l := range []struct {
		level policy.Level
		verb  string
	}{{policy.Block, "blocking"}, {policy.Review, "for review"}, {policy.Report, "to know of"}} {
		if n[l.level] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[l.level], l.verb))
		}
	}
	if len(parts) > 0 {
		t.line("Findings: " + strings.Join(parts, ", "))
	}
}

// findings shows them by rule, in the order in which the rules first appear.
func (t *table) findings(fs []policy.Finding) {
	type kind struct {
		level        policy.Level
		rule, remedy string
	}
	var kinds []kind
	byKind := map[kind][]policy.Finding{}
	for _, f := range fs {
		k := kind{f.Level, f.Rule, f.Remedy}
		if byKind[k] == nil {
			kinds = append(kinds, k)
		}
		byKind[k] = append(byKind[k], f)
	}
	for _, k := range kinds {
		t.rule(byKind[k])
	}
}

// rule shows findings of one rule, level and remedy.
func (t *table) rule(fs []policy.Finding) {
	t.line("")
	f := fs[0]
	t.line(fmt.Sprintf("%s  %s", t.paint(levelColour[f.Level], fmt.Sprintf("%-6s", strings.ToUpper(string(f.Level)))), t.paint("1", escape.String(f.Rule))))
	said := ""
	for i, f := range fs {
		if i == maxPlaces {
			t.row("", fmt.Sprintf("and %d more of rule %s; -o json lists all", len(fs)-maxPlaces, escape.String(f.Rule)))
			break
		}
		if f.Message != said {
			t.row("what", escape.String(f.Message))
			said = f.Message
		}
		t.row("where", placeOf(f))
		if f.Excerpt != "" {
			t.row("text", escape.String(f.Excerpt))
		}
		if f.Fingerprint != "" {
			t.row("id", escape.String(f.Fingerprint)+" (names it in the policy)")
		}
		if f.Exception != "" {
			t.row("as", "accepted by the policy: "+escape.String(f.Exception))
		}
	}
	if slices.ContainsFunc(fs, func(f policy.Finding) bool { return f.Exception == "" }) {
		t.row("do", escape.String(f.Remedy))
	}
}

// placeOf says where a finding is: path, line, what part, and the commit.
func placeOf(f policy.Finding) string {
	var b strings.Builder
	if f.Path != "" {
		b.WriteString(escape.String(f.Path))
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d", f.Line)
			if f.Column > 0 {
				fmt.Fprintf(&b, ":%d", f.Column)
			}
		}
	}
	part := func(s string) {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(s)
	}
	if f.Place != "" {
		part(escape.String(strings.ReplaceAll(f.Place, "-", " ")))
		if f.Path == "" && f.Line > 0 {
			fmt.Fprintf(&b, " line %d", f.Line)
		}
	}
	if f.Commit != "" {
		part("commit " + escape.String(f.Commit[:min(len(f.Commit), 12)]))
	}
	if b.Len() == 0 {
		return "the work as a whole"
	}
	return b.String()
}

// row writes a name and a text that wraps behind it.
func (t *table) row(name, text string) {
	const indent = 8
	first := true
	for _, l := range wrap.Text(text, t.width-indent-6) {
		if !first {
			name = ""
		}
		first = false
		t.line(fmt.Sprintf("%*s%-6s%s", indent, "", name, l))
	}
}

func (t *table) line(s string) {
	// A verdict's own text never begins with "::", and texts of the work are
	// escaped; bufio keeps the error for Flush.
	_, _ = t.w.WriteString(s + "\n")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func size(n int64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
