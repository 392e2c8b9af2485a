package ui

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kickhq/kick/internal/doctor"
	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/workspace"
)

// ResultLine is the one line that `kick run` prints to stdout.
func ResultLine(o manager.Outcome) string {
	where := o.KeptAt
	switch {
	case o.PullRequest != "":
		where = o.PullRequest
	case o.Outcome == manager.Published:
		where = fmt.Sprintf("%s at %.12s", o.Branch, o.Commit)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", o.Outcome, o.ID, where))
}

// Outcome prints how a kick ended, why, what is kept and what to do next.
func (p *Printer) Outcome(o manager.Outcome) {
	p.Linef("")
	switch o.Outcome {
	case manager.Published:
		p.Linef("%s  %s", p.Paint(Green, "published"), publishedWhere(o))
		p.Linef("           %s on %s at %.12s", counts(o), escape.String(o.Base), o.BaseCommit)
		if o.Draft {
			p.Linef("           %s", p.Paint(Amber, "as a draft: the findings below ask for a review"))
		}
	case manager.Inspected:
		p.Linef("%s  the work passed and was not published, as asked (--publish none)", p.Paint(Green, "inspected"))
	case manager.Nothing:
		p.Linef("%s  the agent left no commit to publish", p.Paint(Amber, "nothing"))
	default:
		p.Linef("%s  %s", p.Paint(Red, string(o.Outcome)), escape.String(o.Error))
		if o.Remedy != "" {
			p.Linef("           %s", escape.String(o.Remedy))
		}
	}
	p.Findings(o.Findings)
	p.unpublished(o.Unpublished)
	for _, m := range o.Missing {
		p.Linef("  %s %s", p.Paint(Red, "missing"), escape.String(m))
	}
	for _, n := range o.Notes {
		p.Linef("  %s %s", p.Paint(Dim, "note"), escape.String(n))
	}
	if o.KeptAt != "" {
		p.Linef("")
		p.Linef("  kept at %s", o.KeptAt)
		if filepath.Base(o.KeptAt) == "out" { // not a live workspace
			for _, c := range workspace.RestoreCommands(o.KeptAt) {
				p.Linef("    %s", p.Paint(Bold, c))
			}
		}
	}
}

func publishedWhere(o manager.Outcome) string {
	if o.PullRequest != "" {
		return o.PullRequest
	}
	return fmt.Sprintf("branch %s on %s", o.Branch, escape.String(o.Repo))
}

func counts(o manager.Outcome) string {
	return fmt.Sprintf("%s, %s", plural(o.Commits, "commit"), plural(o.Files, "file"))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (p *Printer) unpublished(u *manager.Unpublished) {
	if u == nil {
		return
	}
	for _, ref := range u.Refs {
		p.Linef("  %s %s", p.Paint(Amber, "not published:"), escape.String(ref))
	}
	if u.Stashes > 0 {
		p.Linef("  %s %d stashed", p.Paint(Amber, "not published:"), u.Stashes)
	}
	for i, f := range u.Dirty {
		if i == 5 {
			break
		}
		p.Linef("  %s %s (uncommitted)", p.Paint(Amber, "not published:"), escape.String(f))
	}
	if u.DirtyCount > 5 {
		p.Linef("  %s %d more uncommitted", p.Paint(Amber, "not published:"), u.DirtyCount-5)
	}
}

// Findings prints findings, the worst first: the rule, the place, what to do.
func (p *Printer) Findings(fs []policy.Finding) {
	for _, level := range []policy.Level{policy.Block, policy.Review, policy.Report} {
		for _, f := range fs {
			if f.Level != level {
				continue
			}
			st := map[policy.Level]Style{policy.Block: Red, policy.Review: Amber, policy.Report: Dim}[level]
			p.Linef("")
			p.Linef("  %s %s", p.Paint(st, fmt.Sprintf("%-6s", f.Level)), p.Paint(Bold, f.Rule))
			if place := Place(f); place != "" {
				p.Linef("         %s", place)
			}
			p.Linef("         %s", escape.String(f.Message))
			if f.Excerpt != "" {
				p.Linef("         %s", p.Paint(Dim, escape.String(f.Excerpt)))
			}
			if level != policy.Report {
				p.Linef("         → %s", escape.String(f.Remedy))
			}
		}
	}
}

// Place says where a finding is: path, line, commit.
func Place(f policy.Finding) string {
	var parts []string
	if f.Path != "" {
		s := escape.String(f.Path)
		if f.Line > 0 {
			s += fmt.Sprintf(":%d", f.Line)
			if f.Column > 0 {
				s += fmt.Sprintf(":%d", f.Column)
			}
		}
		parts = append(parts, s)
	}
	if f.Place != "" {
		parts = append(parts, "in the "+f.Place)
	}
	if f.Commit != "" {
		parts = append(parts, fmt.Sprintf("commit %.12s", f.Commit))
	}
	return strings.Join(parts, ", ")
}

// Check prints one of doctor's checks.
func (p *Printer) Check(c doctor.Check) {
	mark := p.Paint(Green, "✓")
	if !c.OK {
		mark = p.Paint(Red, "✗")
	}
	p.Linef("%s %-20s %s", mark, c.Name, escape.String(c.Found))
	if !c.OK && c.Remedy != "" {
		p.Linef("  %-20s → %s", "", escape.String(c.Remedy))
	}
}

// Isolation prints the properties that a sandbox had.
func (p *Printer) Isolation(iso sandbox.Isolation) {
	if len(iso.Properties) == 0 {
		return
	}
	p.Linef("")
	p.Linef("  isolation (%s)", iso.Runtime)
	for _, prop := range iso.Properties {
		st := map[sandbox.Status]Style{sandbox.Enforced: Green, sandbox.Missing: Red, sandbox.Accepted: Amber, sandbox.NotRequested: Dim}[prop.Status]
		p.Linef("    %s %-20s %s", p.Paint(st, fmt.Sprintf("%-15s", prop.Status)), prop.Name, p.Paint(Dim, escape.String(prop.Evidence)))
	}
}
