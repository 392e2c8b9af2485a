package pushbroker

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// Description is what a pull request tells its reviewer. Prompt, Report and
// everything of the Verdict that comes from the work are hostile; the rest is
// kick's own.
type Description struct {
	KickID, Agent string
	Prompt        string // the task
	Report        []byte // the agent's report, as it came; nil: none
	Isolation     sandbox.Isolation
	Took          time.Duration // of the agent. 0: not shown
	Version       string        // kick's
	TitlePrefix   string        // e.g. "[agent] "
	// Notes are further sentences of kick's own on how the work got here.
	Notes []string

	// Publish fills these in. Template is the repository's own text, in
	// Markdown; the body begins with it.
	Refs     Refs
	Verdict  Verdict
	Target   Target
	Template string
}

// Caps of the parts of a body. GitHub takes 65,536 characters in all.
const (
	maxTitle        = 120 // characters; GitHub cuts its own view at about 70 and takes 256
	maxQuote        = 6000
	maxLines        = 120 // lines of a quote
	maxShownCommits = 25
	maxShownFiles   = 50
	maxShown        = 25
	maxName         = 200 // characters of a path or a subject
	maxReasons      = 10  // reasons for a review, at the top
	maxBody         = 65536
)

// Text returns the title and the body, as Markdown. It depends on the
// Description alone.
func (d Description) Text() (title, body string) { return d.title(), d.body() }

func (d Description) title() string {
	text := ""
	if len(d.Verdict.Subjects) == 1 {
		text = d.Verdict.Subjects[0]
	}
	for line := range strings.Lines(d.Prompt) {
		if text = strings.TrimSpace(text); text != "" {
			break
		}
		text = line
	}
	if text = plain(text, maxTitle); text == "" {
		text = fmt.Sprintf("Work of %s (%s)", d.Agent, d.KickID)
	}
	return d.TitlePrefix + text
}

func (d Description) body() string {
	own := d.ownBody()
	if d.Template == "" || utf8.RuneCountInString(d.Template)+len(templateEnd)+utf8.RuneCountInString(own) > maxBody {
		return own
	}
	return d.Template + templateEnd + own
}

const templateEnd = "\n\n---\n\n"

// ownBody is kick's part.
func (d Description) ownBody() string {
	var b strings.Builder
	v := d.Verdict
	fmt.Fprintf(&b, "The agent %s made this in a sandbox without credentials; [kick](https://github.com/kickhq/kick) inspected and pushed it. ", code(d.Agent))
	b.WriteString("Text in frames comes from the task or the agent. It is quoted as data, and may be wrong.\n")
	d.reasons(&b)
	for _, note := range d.Notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	d.quoted(&b, "Task", d.Prompt)
	d.summary(&b)
	d.changes(&b)
	d.inspection(&b)
	d.run(&b)
	d.locally(&b)
	fmt.Fprintf(&b, "\n---\n<sub>kick %s · %s · base %s · commit %s · tree %s", code(d.KickID), code(d.Version), code(v.Base), code(v.Tip), code(v.Tree))
	for _, name := range []string{"policy", "scanner"} {
		if v.Digests[name] != "" {
			fmt.Fprintf(&b, " · %s %s", name, code(v.Digests[name]))
		}
	}
	b.WriteString("</sub>\n")
	return b.String()
}

// reasons says at the top why a person must look.
func (d Description) reasons(b *strings.Builder) {
	if !d.Verdict.Review {
		return
	}
	b.WriteString("\n> [!IMPORTANT]\n> A person must look at the following before this is merged:\n>\n")
	n := 0
	for _, f := range d.Verdict.Findings {
		if f.Level != policy.Review {
			continue
		}
		if n++; n <= maxReasons {
			fmt.Fprintf(b, "> - %s: %s\n", code(findingPlace(f)), code(f.Message))
		}
	}
	if n > maxReasons {
		fmt.Fprintf(b, "> - and %s more\n", count(n-maxReasons, "finding"))
	}
	b.WriteString(">\n> What to do about each is in the table under Inspection.\n")
}

func (d Description) quoted(b *strings.Builder, heading, text string) {
	if strings.TrimSpace(text) != "" {
		fmt.Fprintf(b, "\n### %s\n\n%s", heading, frame(text))
	}
}

func (d Description) summary(b *strings.Builder) {
	if len(d.Report) == 0 {
		return
	}
	r, err := ParseReport(d.Report)
	if err != nil {
		fmt.Fprintf(b, "\n### Summary by the agent\n\nThe agent left a report that could not be read: %s\n", code(err.Error()))
		return
	}
	text := r.Summary
	for _, f := range r.Findings {
		text += fmt.Sprintf("\n- %s: %s", f.Severity, f.Title)
		if f.File != "" {
			text += fmt.Sprintf(" (%s:%d)", f.File, f.Line)
		}
	}
	d.quoted(b, "Summary by the agent", text)
}

func (d Description) changes(b *strings.Builder) {
	v := d.Verdict
	fmt.Fprintf(b, "\n### Changes\n\n%s, %s on %s", count(v.Commits, "commit"), count(v.Files, "file"), code(d.Refs.Base))
	if v.Added >= 0 && v.Removed >= 0 {
		fmt.Fprintf(b, ", %d lines added, %d removed", v.Added, v.Removed)
	}
	b.WriteString(".\n\n")
	for _, s := range v.Subjects[:min(len(v.Subjects), maxShownCommits)] {
		fmt.Fprintf(b, "- %s\n", code(s))
	}
	more(b, v.Commits-min(len(v.Subjects), maxShownCommits), "commit")
	b.WriteString("\n<details><summary>Files</summary>\n\n")
	for _, c := range v.Changes[:min(len(v.Changes), maxShownFiles)] {
		fmt.Fprintf(b, "- %s %s\n", statusWord(c.Status), code(c.Path))
	}
	more(b, v.Files-min(len(v.Changes), maxShownFiles), "file")
	b.WriteString("\n</details>\n")
}

func (d Description) inspection(b *strings.Builder) {
	v := d.Verdict
	outcome := "passed"
	if v.Review {
		outcome = "passed, with findings that ask for a review"
	}
	fmt.Fprintf(b, "\n### Inspection\n\n%d new bytes inspected: **%s**.\n", v.Bytes, outcome)
	if len(v.Findings) == 0 {
		return
	}
	b.WriteString("\n| Level | Rule | Where | What | To do |\n|---|---|---|---|---|\n")
	for _, f := range v.Findings[:min(len(v.Findings), maxShown)] {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", code(string(f.Level)), code(f.Rule), code(findingPlace(f)), code(f.Message), code(f.Remedy))
	}
	more(b, len(v.Findings)-maxShown, "finding")
}

func findingPlace(f policy.Finding) string {
	s := f.Path
	if f.Line > 0 {
		s += fmt.Sprintf(":%d", f.Line)
	}
	if f.Place != "" {
		s = strings.TrimSpace(f.Place + " " + s)
	}
	if f.Commit != "" {
		s = strings.TrimSpace(fmt.Sprintf("%s in %.10s", s, f.Commit))
	}
	return s
}

func (d Description) run(b *strings.Builder) {
	if d.Isolation.Runtime == "" {
		return
	}
	enforced, weaker := 0, []string{}
	for _, p := range d.Isolation.Properties {
		switch p.Status {
		case sandbox.Enforced:
			enforced++
		case sandbox.Accepted, sandbox.Missing:
			weaker = append(weaker, code(p.Name))
		}
	}
	fmt.Fprintf(b, "\n### Run\n\nRuntime %s, %d isolation properties enforced", code(d.Isolation.Runtime), enforced)
	if len(weaker) > 0 {
		fmt.Fprintf(b, "; accepted as missing: %s", strings.Join(weaker, ", "))
	}
	if d.Took > 0 {
		fmt.Fprintf(b, "; the agent ran for %s", d.Took.Round(time.Second))
	}
	b.WriteString(".\n")
}

// locally is for whoever has no kick. A GitHub target's URL and a branch that
// kick made are of safe characters alone; any other is left out.
func (d Description) locally(b *strings.Builder) {
	if !d.Target.HasPullRequests() || plain(d.Refs.Branch, maxName) != d.Refs.Branch || strings.ContainsAny(d.Refs.Branch, "`'\"$;&|<>()!#\\ ") {
		return
	}
	fmt.Fprintf(b, "\n### Look at it locally\n\n```sh\ngit fetch %s %s\ngit switch --detach FETCH_HEAD\n```\n", d.Target.URL, d.Refs.Branch)
}

func more(b *strings.Builder, n int, what string) {
	if n > 0 {
		fmt.Fprintf(b, "\nand %s more.\n", count(n, what))
	}
}

func statusWord(status string) string {
	switch status {
	case "A":
		return "added"
	case "D":
		return "deleted"
	case "T":
		return "changed kind of"
	}
	return "changed"
}
