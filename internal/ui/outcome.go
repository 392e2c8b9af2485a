package ui

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kickhq/kick/internal/doctor"
	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/sandbox"
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
		p.Linef("%s  %s", p.Paint(Red, string(o.Outcome)), said(o.Error))
		if o.Remedy != "" {
			p.Linef("           %s", said(o.Remedy))
		}
	}
	p.findings(o.Findings)
	if len(o.Findings) > 0 && (o.Unpublished != nil || len(o.Missing)+len(o.Notes) > 0) {
		p.Linef("")
	}
	p.Unpublished(o)
	for _, n := range o.Notes {
		p.Linef("  %s %s", p.Paint(Dim, "note"), said(n))
	}
	if o.KeptAt != "" {
		p.Linef("")
		p.Linef("  kept at %s", o.KeptAt)
		commands := o.RestoreCommands()
		if len(commands) > 0 {
			p.Linef("  in a fresh clone, this gets it back:")
		}
		for _, c := range commands {
			p.Linef("    %s", p.Paint(Bold, c))
		}
	}
	p.next(o)
}

// next names the commands with which a person goes on.
func (p *Printer) next(o manager.Outcome) {
	var commands []string
	where := ""
	switch o.Outcome {
	case manager.Published:
		if o.PullRequest == "" && filepath.IsAbs(o.Repo) {
			where = " in " + escape.String(o.Repo)
			commands = []string{fmt.Sprintf("git diff %.12s %s", o.BaseCommit, o.Branch)}
			if _, err := os.Lstat(filepath.Join(o.Repo, ".git")); err == nil { // not a bare one
				commands = append(commands, "git merge "+o.Branch)
			}
		}
	case manager.Inspected, manager.Refused, manager.PushFailed:
		if o.Commits > 0 {
			commands = []string{"kick diff " + o.ID}
		}
	case manager.Usage, manager.FetchFailed, manager.NotIsolated: // the error says it
	default:
		if o.AgentExit != nil {
			commands = append(commands, "kick logs "+o.ID)
		}
		if o.Commits > 0 {
			commands = append(commands, "kick diff "+o.ID)
		}
	}
	if len(commands) > 0 {
		p.Linef("")
		p.Linef("  next%s:", where)
	}
	for _, c := range commands {
		p.Linef("    %s", p.Paint(Bold, c))
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

// Unpublished prints what of the work is kept and not published, and what of it
// could not be kept.
func (p *Printer) Unpublished(o manager.Outcome) {
	for _, m := range o.Missing {
		p.Linef("  %s %s", p.Paint(Red, "missing"), escape.String(m))
	}
	u := o.Unpublished
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

// findings prints findings, the worst first: the rule, the place, what to do.
func (p *Printer) findings(fs []policy.Finding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLine()
	// A terminal that is gone is noticed by the next print.
	_ = pushbroker.WriteFindings(p.w, fs, p.table())
}

// Verdict prints a verdict that is no kick's.
func (p *Printer) Verdict(v pushbroker.Verdict) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return v.WriteTable(p.w, p.table())
}

func (p *Printer) table() pushbroker.TableOptions {
	return pushbroker.TableOptions{Colour: p.color, Width: p.width}
}

// Check prints one of doctor's checks.
func (p *Printer) Check(c doctor.Check) {
	mark := p.Paint(Green, "✓")
	if !c.OK {
		mark = p.Paint(Red, "✗")
	}
	p.hang(fmt.Sprintf("%s %-20s", mark, c.Name), 23, "", said(c.Found))
	if !c.OK && c.Remedy != "" {
		p.hang(strings.Repeat(" ", 22)+" →", 25, "", said(c.Remedy))
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
		p.hang(fmt.Sprintf("    %s %-20s", p.Paint(st, fmt.Sprintf("%-13s", strings.ReplaceAll(string(prop.Status), "-", " "))), prop.Name), 39, Dim, escape.String(prop.Evidence))
	}
}

// said is the text of errors, of which each was a line, in one.
func said(text string) string { return escape.String(strings.ReplaceAll(text, "\n", "; ")) }
