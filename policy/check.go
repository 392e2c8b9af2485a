package policy

import (
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// checkExceptions refuses exceptions that never decide anything: whoever wrote
// one believes that something is allowed, or for longer than it is.
func (d *decoder) checkExceptions(p *Policy) {
	for i, e := range p.Changes.Exceptions {
		r, ok := byID[e.Rule]
		if !ok {
			continue // an error already
		}
		at := &yaml.Node{Line: e.line}
		switch most := p.mostLevel(r); {
		case r.pathless && len(e.Paths) > 0:
			d.fail(at, "an exception for %s has paths, but that rule is about no path and the exception would never apply: remove paths", e.Rule)
		case most == "":
			d.fail(at, "an exception for %s, which nothing in this file makes a finding of: remove it, or write %s", e.Rule, map[string]string{"path-not-allowed": "allow_only", "protected-custom": "protect"}[e.Rule])
		case weight(e.Level) >= weight(most):
			d.fail(at, "an exception that makes %s a %s is pointless, since its level is %s at most: remove it", e.Rule, e.Level, most)
		}
		for _, f := range p.Changes.Exceptions[:i] {
			if e.Rule == f.Rule && meet(e.Repos, f.Repos) && meet(e.Agents, f.Agents) && meet(texts(e.Paths), texts(f.Paths)) {
				d.fail(at, "this exception for %s and the one on line %d are for the same place: keep one, or give them different paths, repos or agents", e.Rule, f.line)
			}
		}
	}
	for i, e := range p.Secrets.Exceptions {
		for _, f := range p.Secrets.Exceptions[:i] {
			if e.Fingerprint == f.Fingerprint && meet(e.Repos, f.Repos) && meet(e.Agents, f.Agents) {
				d.fail(&yaml.Node{Line: e.line}, "this exception and the one on line %d are for the same fingerprint: keep one", f.line)
			}
		}
	}
}

// mostLevel is the highest level that a rule has anywhere in the policy, and
// empty if nothing can raise it.
func (p *Policy) mostLevel(r *Rule) Level {
	var levels []Level
	switch r.ID {
	case "path-not-allowed":
		if p.Changes.AllowOnly != nil || slices.ContainsFunc(p.Changes.Scopes, func(s Scope) bool { return s.AllowOnly != nil }) {
			levels = append(levels, r.Level)
		}
	case "protected-custom":
		protects := p.Changes.Protect
		for _, s := range p.Changes.Scopes {
			protects = append(slices.Clip(protects), s.Protect...)
		}
		for _, pr := range protects {
			levels = append(levels, pr.Level)
		}
	default:
		levels = append(levels, r.Level)
	}
	if len(levels) == 0 {
		return ""
	}
	if l, ok := p.Changes.Rules[r.ID]; ok {
		levels = []Level{l}
	}
	for _, s := range p.Changes.Scopes {
		if l, ok := s.Rules[r.ID]; ok {
			levels = append(levels, l)
		}
	}
	return slices.MaxFunc(levels, func(a, b Level) int { return weight(a) - weight(b) })
}

// meet reports whether two lists, which stand for everything if they are
// empty, have something in common as they are written.
func meet(a, b []string) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

func texts(globs []Glob) []string {
	var out []string
	for _, g := range globs {
		out = append(out, g.text)
	}
	return out
}

// Warnings names what has come to its end at now and only misleads since, one
// sentence each.
func (p *Policy) Warnings(now time.Time) []string {
	var out []string
	warn := func(line int, what string, end Date) {
		if end.Past(now) {
			out = append(out, fmt.Sprintf("%s:%d: the exception for %s expired on %s and does not count: renew it or remove it", p.name, line, what, end.Format(time.DateOnly)))
		}
	}
	for _, e := range p.Changes.Exceptions {
		warn(e.line, e.Rule, e.Expires)
	}
	for _, e := range p.Secrets.Exceptions {
		warn(e.line, "the secret "+e.Fingerprint, e.Expires)
	}
	return out
}
