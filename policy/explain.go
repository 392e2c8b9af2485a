package policy

import (
	"fmt"
	"slices"
	"time"
)

// Explanation is what a policy makes of changes to one path. A path alone does
// not decide all: what is in a file, in a message or in a link is judged when
// it is there.
type Explanation struct {
	Path      string            `json:"path"`
	Repo      string            `json:"repo,omitempty"`
	Agent     string            `json:"agent,omitempty"`
	Policy    string            `json:"policy"` // the file; "built in" without one
	Digest    string            `json:"digest"`
	Changes   []ExplainedChange `json:"changes"`
	Rules     []ExplainedRule   `json:"rules"`                // that match, the one that decides first
	Scopes    []ExplainedScope  `json:"scopes,omitempty"`     // that hold for this repository and agent
	AllowOnly []Glob            `json:"allow_only,omitempty"` // the only paths that may change
	Limits    Limits            `json:"limits"`
}

// ExplainedChange is one way to change the path, and what follows from it.
type ExplainedChange struct {
	Change string `json:"change"` // added, changed or deleted
	Old    string `json:"old_mode,omitempty"`
	New    string `json:"new_mode,omitempty"`
	// Level is the highest of the rules that match; empty: the change passes.
	Level Level  `json:"level,omitempty"`
	Rule  string `json:"rule,omitempty"` // the rule that decides
}

// ExplainedRule is a rule that matches the path.
type ExplainedRule struct {
	Rule       string               `json:"rule"`
	Level      Level                `json:"level"`             // with this policy
	Default    Level                `json:"default"`           // without
	From       string               `json:"from"`              // what set the level
	On         []string             `json:"on"`                // the changes that it matches
	Message    string               `json:"message"`           // why, and what of the path matched
	Pattern    string               `json:"pattern,omitempty"` // that matches the path, of a protected class
	Remedy     string               `json:"remedy"`
	Exceptions []ExplainedException `json:"exceptions,omitempty"` // of the policy, for this rule
}

// ExplainedException is an exception for a rule that matches, and what becomes
// of it here.
type ExplainedException struct {
	Exception
	At      string `json:"at"`      // where it stands
	Applies bool   `json:"applies"` // it sets the level
	Because string `json:"because"` // why it applies, or does not
}

// ExplainedScope is a scope that holds.
type ExplainedScope struct {
	Repos  []string `json:"repos,omitempty"`
	Agents []string `json:"agents,omitempty"`
	At     string   `json:"at"`
}

// BuiltIn names the policy that holds without a file.
const BuiltIn = "built in"

// Name is the policy file's name as errors have it, or BuiltIn.
func (p *Policy) Name() string {
	if p.name == "" {
		return BuiltIn
	}
	return p.name
}

// Explain says what the policy, which is a whole one, makes of each change of
// one path for a repository and an agent at a time.
func (p *Policy) Explain(repo, agent string, changes []Change, now time.Time) Explanation {
	q := p.For(repo, agent)
	x := Explanation{
		Repo: repo, Agent: agent, Policy: p.Name(), Digest: p.Digest(), Rules: []ExplainedRule{},
		AllowOnly: q.Changes.AllowOnly, Limits: q.Changes.Limits,
	}
	for _, s := range p.Changes.Scopes {
		if appliesRepo(s.Repos, repo) && applies(s.Agents, agent) {
			x.Scopes = append(x.Scopes, ExplainedScope{Repos: s.Repos, Agents: s.Agents, At: at("the scope", s.line, p.name)})
		}
	}
	for _, c := range changes {
		x.Path = c.Path
		e := ExplainedChange{Change: c.verb(), Old: octal(c.Old), New: octal(c.New)}
		for _, f := range q.Judge(Subject{Change: &c}, now) {
			if f.Rule == "exception-expired" {
				continue // said with the exception
			}
			if e.Rule == "" || weight(f.Level) > weight(e.Level) {
				e.Level, e.Rule = f.Level, f.Rule
			}
			i := slices.IndexFunc(x.Rules, func(r ExplainedRule) bool { return r.Rule == f.Rule && r.Remedy == f.Remedy })
			if i < 0 {
				i = len(x.Rules)
				x.Rules = append(x.Rules, p.explainRule(q, f, repo, agent, now))
			}
			r := &x.Rules[i]
			r.On = append(r.On, e.Change)
			if weight(f.Level) > weight(r.Level) {
				r.Level = f.Level
			}
		}
		x.Changes = append(x.Changes, e)
	}
	slices.SortStableFunc(x.Rules, func(a, b ExplainedRule) int { return weight(b.Level) - weight(a.Level) })
	return x
}

func (p *Policy) explainRule(q *Policy, f Finding, repo, agent string, now time.Time) ExplainedRule {
	r := ExplainedRule{Rule: f.Rule, Level: f.Level, Default: byID[f.Rule].Level, From: "its default", Message: f.Message, Remedy: f.Remedy}
	if rule := byID[f.Rule]; rule.paths != nil {
		r.Message, r.Pattern = rule.Reason, firstMatch(rule.paths, Fold(f.Path))
	}
	if f.Rule == "protected-custom" {
		r.From = "changes.protect"
	}
	if from := q.Changes.from[f.Rule]; from != "" {
		r.From = from
	}
	for _, e := range p.Changes.Exceptions {
		if e.Rule != f.Rule {
			continue
		}
		x := ExplainedException{Exception: e, At: at("the exception", e.line, p.name)}
		switch {
		case !appliesRepo(e.Repos, repo):
			x.Because = "it is for other repositories"
		case !applies(e.Agents, agent):
			x.Because = "it is for other agents"
		case len(e.Paths) > 0 && firstMatch(e.Paths, Fold(f.Path)) == "":
			x.Because = "it is for other paths"
		case e.Expires.Past(now):
			x.Because = "it expired on " + e.Expires.Format(time.DateOnly)
		case f.Exception != e.Reason:
			x.Because = "another level counts"
		default:
			x.Applies, r.From = true, x.At
			x.Because = "it holds until " + e.Expires.Format(time.DateOnly) + ": " + e.Reason
		}
		r.Exceptions = append(r.Exceptions, x)
	}
	return r
}

func octal(mode uint32) string {
	if mode == 0 {
		return ""
	}
	return fmt.Sprintf("%06o", mode)
}

// ExplainChanges are the changes that explain looks at if none is named: the
// path added, changed and deleted.
func ExplainChanges(path string) []Change {
	return []Change{{Path: path, New: modeFile}, {Path: path, Old: modeFile, New: modeFile}, {Path: path, Old: modeFile}}
}

// RuleRow is a rule and the level that it has.
type RuleRow struct {
	Rule    string `json:"rule"`
	Level   Level  `json:"level"`
	Default Level  `json:"default"`
	From    string `json:"from,omitempty"` // what set the level; empty: its default
	Fixed   bool   `json:"fixed,omitempty"`
	Reason  string `json:"reason"`
	Remedy  string `json:"remedy"`
}

// Table lists the built-in rules with the levels of a policy that For made.
func (p *Policy) Table() []RuleRow {
	rows := make([]RuleRow, len(rules))
	for i, r := range rules {
		rows[i] = RuleRow{Rule: r.ID, Level: r.Level, Default: r.Level, From: p.Changes.from[r.ID], Fixed: r.Fixed, Reason: r.Reason, Remedy: r.Remedy}
		if l, ok := p.Changes.Rules[r.ID]; ok {
			rows[i].Level = l
		}
	}
	return rows
}
