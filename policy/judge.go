package policy

import (
	"fmt"
	"time"
)

// Judge returns a finding for every rule that s strikes, at the level that the
// policy gives it at time now. The policy is one that For made.
func (p *Policy) Judge(s Subject, now time.Time) []Finding {
	p.fill(&s)
	var found []Finding
	for i := range rules {
		r := &rules[i]
		if what := r.Match(s); what != "" {
			found = append(found, p.place(r.finding(what), s, now)...)
		}
	}
	if s.Change == nil {
		return found
	}
	folded := Fold(s.Change.Path)
	if c := p.Changes; c.AllowOnly != nil && firstMatch(c.AllowOnly, folded) == "" {
		found = append(found, p.place(NewFinding("path-not-allowed", s.Change.verb()), s, now)...)
	}
	for _, pr := range p.Changes.Protect {
		if g := firstMatch(pr.Paths, folded); g != "" {
			f := NewFinding("protected-custom", fmt.Sprintf("%s (%s): %s", s.Change.verb(), g, pr.Reason))
			f.Level = pr.Level
			found = append(found, p.place(f, s, now)...)
		}
	}
	return found
}

// fill hands the policy's settings to the rules that need them.
func (p *Policy) fill(s *Subject) {
	switch {
	case s.Commit != nil:
		c := *s.Commit
		c.CoAuthors = p.Changes.CoAuthors
		s.Commit = &c
	case s.Work != nil:
		w := *s.Work
		w.Limits = p.Changes.Limits
		s.Work = &w
	}
}

func (p *Policy) place(f Finding, s Subject, now time.Time) []Finding {
	f.Commit = s.CommitID
	switch {
	case s.Change != nil:
		f.Path = s.Change.Path
	case s.Names != nil:
		f.Path = s.Names.Path
	}
	return p.Apply(f, now)
}

// Apply sets the level of a change rule's finding by the policy's levels and
// exceptions. It returns the finding, and one more where an exception would
// have lowered it but has expired.
func (p *Policy) Apply(f Finding, now time.Time) []Finding {
	r, ok := byID[f.Rule]
	if ok && r.Fixed {
		return []Finding{f}
	}
	if l, ok := p.Changes.Rules[f.Rule]; ok {
		f.Level = l
	}
	var over *Exception // that expired
	for _, e := range p.Changes.Exceptions {
		if e.Rule != f.Rule || weight(e.Level) >= weight(f.Level) || len(e.Paths) > 0 && (f.Path == "" || firstMatch(e.Paths, Fold(f.Path)) == "") {
			continue
		}
		if e.Expires.Past(now) {
			over = &e
			continue
		}
		f.Level, f.Exception = e.Level, e.Reason
	}
	if over != nil && f.Exception == "" {
		return []Finding{f, expired(f, over.Expires, over.Reason)}
	}
	return []Finding{f}
}

// ApplySecret does the same for a finding of a secret scanner, which is
// certain if it comes with the level Block and possible if with Review.
func (p *Policy) ApplySecret(f Finding, now time.Time) []Finding {
	switch f.Level {
	case Block:
		f.Level = p.Secrets.Certain
	case Review:
		f.Level = p.Secrets.Possible
	}
	var over *SecretException
	for _, e := range p.Secrets.Exceptions {
		if f.Fingerprint == "" || e.Fingerprint != f.Fingerprint {
			continue
		}
		if !e.Expires.Past(now) {
			f.Level, f.Exception = Report, e.Reason
			return []Finding{f}
		}
		over = &e
	}
	if over != nil {
		return []Finding{f, expired(f, over.Expires, over.Reason)}
	}
	return []Finding{f}
}

func expired(f Finding, on Date, reason string) Finding {
	e := NewFinding("exception-expired", fmt.Sprintf("for %s, on %s (%s)", f.Rule, on.Format(time.DateOnly), reason))
	e.Commit, e.Path = f.Commit, f.Path
	return e
}

// weight orders levels from report to block.
func weight(l Level) int {
	switch l {
	case Block:
		return 2
	case Review:
		return 1
	}
	return 0
}

// HasEnds reports whether the policy's decision depends on the day.
func (p *Policy) HasEnds() bool {
	return len(p.Changes.Exceptions) > 0 || len(p.Secrets.Exceptions) > 0 || len(p.CI.Accept) > 0
}
