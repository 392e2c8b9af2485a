package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/wrap"
	"github.com/kickhq/kick/policy"
)

// what follows from the level of the rule that decides.
var follows = map[policy.Level]string{
	"":            "passes",
	policy.Report: "passes, and the pull request names it",
	policy.Review: "waits for a person: a draft pull request, or a refusal (exit code 13) where nobody reviews",
	policy.Block:  "is refused (exit code 13); the work is kept",
}

var levelStyle = map[policy.Level]Style{"": Green, policy.Report: Green, policy.Review: Amber, policy.Block: Red}

// Explanation prints what a policy makes of a path.
func (p *Printer) Explanation(x policy.Explanation) {
	p.Linef("%s", p.Paint(Bold, escape.String(x.Path)))
	p.pair("policy", x.Policy+scopeOf(x))
	for _, s := range x.Scopes {
		p.pair("", s.At+" holds ("+named(s.Repos, s.Agents)+")")
	}
	p.Linef("")
	p.decisions(x)
	for _, r := range x.Rules {
		p.explainedRule(r)
	}
	if len(x.AllowOnly) > 0 {
		p.Linef("")
		p.para(0, fmt.Sprintf("Only these paths may change at all: %s", globs(x.AllowOnly)))
	}
	p.Linef("")
	p.para(0, "One push may have "+limits(x.Limits)+".")
	p.para(0, "A path does not tell all: secrets, links, file contents and commit messages are judged when the work is there, by `kick inspect` too.")
}

func scopeOf(x policy.Explanation) string {
	of := ""
	if x.Repo != "" {
		of += ", repository " + escape.String(x.Repo)
	}
	if x.Agent != "" {
		of += ", agent " + escape.String(x.Agent)
	}
	return of
}

func named(repos, agents []string) string {
	var parts []string
	for _, l := range [][]string{repos, agents} {
		if len(l) > 0 {
			parts = append(parts, strings.Join(l, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// decisions says what follows for each change, in one line where it is the
// same for all.
func (p *Printer) decisions(x policy.Explanation) {
	var lines []string
	var levels []policy.Level
	var who [][]string
	for _, c := range x.Changes {
		text := follows[c.Level]
		if c.Rule != "" {
			text += " [" + c.Rule + "]"
		}
		at := slices.Index(lines, text)
		if at < 0 {
			at = len(lines)
			lines, levels, who = append(lines, text), append(levels, c.Level), append(who, nil)
		}
		word := c.Change
		if c.Old != "" && c.New != "" && c.Old != c.New {
			word += " from mode " + c.Old + " to " + c.New
		} else if c.Change == "added" && c.New != "100644" {
			word += " with mode " + c.New
		}
		who[at] = append(who[at], word)
	}
	for i, text := range lines {
		change := "If it is " + orList(who[i])
		text, rule, _ := strings.Cut(text, " [")
		line := change + ", the push " + text + "."
		if rule = strings.TrimSuffix(rule, "]"); rule != "" {
			line += " The rule " + rule + " decides."
		}
		p.styled(levelStyle[levels[i]], line)
	}
}

func orList(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

func (p *Printer) explainedRule(r policy.ExplainedRule) {
	p.Linef("")
	level := p.Paint(levelStyle[r.Level], string(r.Level))
	if r.Level != r.Default {
		level += fmt.Sprintf(" (by default %s)", r.Default)
	}
	p.Linef("  %s  %s", p.Paint(Bold, r.Rule), level)
	p.pair("when", "the path is "+orList(r.On))
	p.pair("why", escape.String(r.Message))
	if r.Pattern != "" {
		p.pair("match", r.Pattern)
	}
	if !slices.ContainsFunc(r.Exceptions, func(e policy.ExplainedException) bool { return e.Applies }) {
		p.pair("level", "set by "+r.From)
	}
	for _, e := range r.Exceptions {
		verb := "does not count"
		if e.Applies {
			verb = "counts"
		}
		p.pair("except", e.At+" "+verb+": "+escape.String(e.Because))
	}
	p.pair("do", r.Remedy)
}

// PolicyTable prints a whole policy as it is for one repository and agent.
func (p *Printer) PolicyTable(rows []policy.RuleRow, q *policy.Policy) {
	p.Linef("%s", p.Paint(Bold, fmt.Sprintf("%-24s %-8s %s", "RULE", "LEVEL", "STRIKES WHEN")))
	for _, r := range rows {
		level := p.Paint(levelStyle[r.Level], fmt.Sprintf("%-8s", r.Level))
		for i, l := range wrap.Text(r.Reason, p.columns()-34) {
			if i == 0 {
				p.Linef("%-24s %s %s", r.Rule, level, l)
			} else {
				p.Linef("%-33s %s", "", l)
			}
		}
		if r.Level != r.Default || r.From != "" {
			for _, l := range wrap.Text(fmt.Sprintf("by default %s; set by %s", r.Default, r.From), p.columns()-34) {
				p.Linef("%-33s %s", "", p.Paint(Dim, l))
			}
		}
	}
	p.Linef("")
	p.para(0, "One push may have "+limits(q.Changes.Limits)+".")
	if len(q.Changes.AllowOnly) > 0 {
		p.para(0, "Only these paths may change at all: "+globs(q.Changes.AllowOnly))
	}
	for _, pr := range q.Changes.Protect {
		p.para(0, fmt.Sprintf("Protected besides: %s (%s: %s)", globs(pr.Paths), pr.Level, escape.String(pr.Reason)))
	}
	for _, e := range q.Changes.Exceptions {
		where := "everywhere"
		if len(e.Paths) > 0 {
			where = "in " + globs(e.Paths)
		}
		p.para(0, fmt.Sprintf("Exception until %s: %s is %s %s (%s)", e.Expires.Format(time.DateOnly), e.Rule, e.Level, where, escape.String(e.Reason)))
	}
	p.para(0, fmt.Sprintf("Secrets: a certain one is %s, a possible one %s; %d known ones are accepted. What cannot be searched to its end is as a certain one (not-searched), an archive that cannot be opened as a possible one (opaque-archive).", q.Secrets.Certain, q.Secrets.Possible, len(q.Secrets.Exceptions)))
}

func limits(l policy.Limits) string {
	return fmt.Sprintf("%d changed files, %s a file, %s in all and %d commits", l.Files, size(l.FileBytes), size(l.TotalBytes), l.Commits)
}

func size(n int64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<u.shift && n%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d %s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

func globs(gs []policy.Glob) string {
	words := make([]string, len(gs))
	for i, g := range gs {
		words[i] = escape.String(g.String())
	}
	return strings.Join(words, " ")
}

// pair prints a name and a text that wraps behind it.
func (p *Printer) pair(name, text string) {
	for i, l := range wrap.Text(text, p.columns()-12) {
		if i > 0 {
			name = ""
		}
		p.Linef("    %s %s", p.Paint(Dim, fmt.Sprintf("%-7s", name)), l)
	}
}

// para prints a text that wraps.
func (p *Printer) para(indent int, text string) {
	for _, l := range wrap.Text(text, p.columns()-indent) {
		p.Linef("%*s%s", indent, "", l)
	}
}

func (p *Printer) styled(st Style, text string) {
	for _, l := range wrap.Text(text, p.columns()) {
		p.Linef("%s", p.Paint(st, l))
	}
}
