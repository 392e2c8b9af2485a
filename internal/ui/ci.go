package ui

import (
	"fmt"
	"slices"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/exposure"
)

// CI prints what a repository's CI would do with a kick's branch.
func (p *Printer) CI(r manager.CIReport) {
	p.Linef("%s  branch %s at %.12s", p.Paint(Bold, escape.String(r.Repo)), escape.String(r.Base), r.Commit)
	p.para(0, "What would run for a branch such as "+escape.String(r.Branch)+" and its pull request, before anyone looks.")
	if !r.GitHub {
		p.para(0, "This remote is not GitHub, and no workflow runs on it: all that follows holds where the branch is mirrored to GitHub. A kick here is not refused for it.")
	}
	if len(r.Workflows) == 0 {
		p.para(0, "The branch "+escape.String(r.Base)+" has no workflow.")
	}
	for _, f := range r.Findings {
		p.ciFinding(r, f)
	}
	p.ciQuiet(r)
	p.Linef("")
	switch {
	case r.Exposed:
		p.styled(Red, "Exposed: agent-written code would reach what it may not have.")
	case len(r.Findings) > 0:
		p.styled(Green, "Nothing is exposed beyond what the policy accepts.")
	default:
		p.styled(Green, "Nothing is exposed.")
	}
}

// ciFinding prints one finding, with the parts of its job on lines of their own.
func (p *Printer) ciFinding(r manager.CIReport, f policy.Finding) {
	p.Linef("")
	where := f.Path
	if f.Line > 0 {
		where = fmt.Sprintf("%s:%d", f.Path, f.Line)
	}
	if f.Place != "" {
		where += "  " + f.Place
	}
	word := "EXPOSED"
	if f.Level == policy.Report {
		word = "to know"
	}
	p.Linef("%s  %s", p.Paint(levelStyle[f.Level], word), p.Paint(Bold, escape.String(where)))
	if j, ok := jobOf(r.Report, f); ok {
		p.pair("runs", escape.String(j.Code))
		p.pair("starts", "on "+escape.String(j.Starts()))
		p.pair("reaches", escape.String(j.Reaches()))
	} else {
		p.pair("what", escape.String(f.Message))
	}
	if f.Exception != "" {
		p.pair("as", "accepted by the policy: "+escape.String(f.Exception))
		return
	}
	p.pair("do", escape.String(f.Remedy))
}

// jobOf returns the job that a finding is about.
func jobOf(r exposure.Report, f policy.Finding) (exposure.Job, bool) {
	for _, w := range r.Workflows {
		for _, j := range w.Jobs {
			if w.Path == f.Path && f.Rule == "ci-exposure" && f.Place == "job "+j.ID {
				return j, true
			}
		}
	}
	return exposure.Job{}, false
}

// ciQuiet prints what runs without exposing anything, and what does not run.
func (p *Printer) ciQuiet(r manager.CIReport) {
	for _, w := range r.Workflows {
		exposed := slices.ContainsFunc(w.Jobs, exposure.Job.Exposed)
		if w.Unreadable != "" || exposed && len(w.Jobs) == 1 {
			continue
		}
		p.Linef("")
		if w.Idle != "" {
			p.Linef("%s  %s", p.Paint(Dim, "idle   "), escape.String(w.Path))
			p.pair("since", escape.String(w.Idle))
			continue
		}
		p.Linef("%s  %s", p.Paint(Green, "runs   "), escape.String(w.Path))
		for _, j := range w.Jobs {
			switch {
			case j.Exposed():
			case j.Waits != "":
				p.pair("job", escape.String(fmt.Sprintf("%s waits for the approval of environment %s", j.ID, j.Waits)))
			case j.Code == "":
				p.pair("job", escape.String(j.ID+" starts on "+j.Starts()+"; it runs nothing of the branch"))
			default:
				p.pair("job", escape.String(fmt.Sprintf("%s starts on %s; %s, and reaches nothing", j.ID, j.Starts(), j.Code)))
			}
		}
	}
}
