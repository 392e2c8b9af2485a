package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// CI is what the operator says of continuous integration: settings that no
// file of a repository tells, and exposures that are accepted by name.
type CI struct {
	CISettings
	// Accept are exposures that stay, each with a reason and an end.
	Accept []CIAcceptance `json:"accept,omitempty"`
	// Scopes change the settings for some repositories or agents, in order.
	Scopes []CIScope `json:"scopes,omitempty"`
}

// CISettings describe a repository on its forge.
type CISettings struct {
	// DefaultToken is what the token of a workflow without permissions can do:
	// "read" or "write". Empty: not known, which counts as write.
	DefaultToken string `json:"default_token,omitempty"`
	// GuardedEnvironments are those in which no job of a kick's branch starts
	// before a person approves.
	GuardedEnvironments []string `json:"guarded_environments,omitempty"`
	// HostedRunners are labels of runners, beyond GitHub's own, that live for
	// one job and reach nothing of the operator's; "*" as in path.Match.
	HostedRunners []string `json:"hosted_runners,omitempty"`
	// External are other services that build pushed branches.
	External []ExternalCI `json:"external,omitempty"`
}

// ExternalCI is a service that builds pushed branches.
type ExternalCI struct {
	Name    string `json:"name"`
	Secrets bool   `json:"secrets"` // the build of a kick's branch gets secrets
}

// CIAcceptance accepts the exposure of one workflow, or of one of its jobs, or
// of an external service. Repos and agents that are empty stand for all.
type CIAcceptance struct {
	Workflow string   `json:"workflow,omitempty"` // path, as .github/workflows/ci.yml
	Job      string   `json:"job,omitempty"`      // id as the finding names it; empty: all
	External string   `json:"external,omitempty"` // name of the service, in place of a workflow
	Repos    []string `json:"repos,omitempty"`
	Agents   []string `json:"agents,omitempty"`
	Reason   string   `json:"reason"`
	Expires  Date     `json:"expires"`
}

// CIScope changes the settings for some repositories or agents.
type CIScope struct {
	Repos  []string `json:"repos,omitempty"`
	Agents []string `json:"agents,omitempty"`
	CISettings
}

// For returns what holds for one repository and one agent; see Policy.For.
func (c CI) For(repo, agent string) CI {
	out := CI{CISettings: c.CISettings}
	for _, s := range c.Scopes {
		if appliesRepo(s.Repos, repo) && applies(s.Agents, agent) {
			out.CISettings = s.or(out.CISettings)
		}
	}
	out.Accept = slices.DeleteFunc(slices.Clone(c.Accept), func(a CIAcceptance) bool {
		return !appliesRepo(a.Repos, repo) || !applies(a.Agents, agent)
	})
	return out
}

// or fills what s leaves open from d.
func (s CISettings) or(d CISettings) CISettings {
	if s.DefaultToken == "" {
		s.DefaultToken = d.DefaultToken
	}
	if s.GuardedEnvironments == nil {
		s.GuardedEnvironments = d.GuardedEnvironments
	}
	if s.HostedRunners == nil {
		s.HostedRunners = d.HostedRunners
	}
	if s.External == nil {
		s.External = d.External
	}
	return s
}

// ApplyCI sets the level of a finding about CI. workflow and job, or external,
// say what it is about. It returns the finding, and one more where an
// acceptance has expired.
func (p *Policy) ApplyCI(f Finding, workflow, job, external string, now time.Time) []Finding {
	found := p.Apply(f, now)
	for _, a := range p.CI.Accept {
		if a.Workflow != workflow || a.Job != "" && a.Job != job || !strings.EqualFold(a.External, external) {
			continue
		}
		if a.Expires.Past(now) {
			return append(found, expired(f, a.Expires, a.Reason))
		}
		found[0].Level, found[0].Exception = Report, a.Reason
		break
	}
	return found
}

// ciRules are raised by the push broker, which reads the workflows.
var ciRules = []Rule{{
	ID: "ci-exposure", Level: Block,
	Reason: "CI would run what the agent wrote, with more than it may have, before anyone looks",
	Remedy: "Keep CI off kick's branches, take from it what it exposes, or accept it by name under ci.accept.",
}, {
	ID: "ci-unreadable", Level: Block,
	Reason: "a workflow cannot be read, so that nobody knows what it would run",
	Remedy: "Mend or remove the workflow on the base branch, or accept it by name under ci.accept.",
}, {
	ID: "ci-external", Level: Report,
	Reason: "another service may build the branch, and kick cannot tell what it gives to the build",
	Remedy: "Say under ci.external whether builds of kick's branches get secrets.",
}}

func (d *decoder) ci(n *yaml.Node, c *CI) {
	fields := d.ciSettings(&c.CISettings)
	fields["accept"] = func(v *yaml.Node) {
		d.list(v, "accept", func(v *yaml.Node) { c.Accept = append(c.Accept, d.ciAcceptance(v)) })
	}
	fields["scopes"] = func(v *yaml.Node) {
		d.list(v, "scopes", func(v *yaml.Node) {
			var s CIScope
			d.scoped(v, "a scope of ci", &s.Repos, &s.Agents, d.ciSettings(&s.CISettings))
			c.Scopes = append(c.Scopes, s)
		})
	}
	d.mapping(n, "ci", fields)
}

func (d *decoder) ciSettings(s *CISettings) map[string]field {
	return map[string]field{
		"default_token": func(v *yaml.Node) {
			word, ok := d.str(v, "default_token")
			if ok && word != "read" && word != "write" {
				d.fail(v, "default_token is %q: write read or write, as the repository's Actions settings say", word)
			}
			s.DefaultToken = word
		},
		"guarded_environments": func(v *yaml.Node) { s.GuardedEnvironments = d.strs(v, "guarded_environments", nil) },
		"hosted_runners":       func(v *yaml.Node) { s.HostedRunners = d.strs(v, "hosted_runners", checkLabelPattern) },
		"external": func(v *yaml.Node) {
			s.External = []ExternalCI{}
			d.list(v, "external", func(v *yaml.Node) { s.External = append(s.External, d.externalCI(v)) })
		},
	}
}

func (d *decoder) externalCI(n *yaml.Node) (e ExternalCI) {
	d.mapping(n, "an external service", map[string]field{
		"name":    func(v *yaml.Node) { e.Name, _ = d.str(v, "name") },
		"secrets": func(v *yaml.Node) { e.Secrets = Is(d.flag(v, "secrets")) },
	})
	d.need(n, "an external service", "name", d.has(n, "name"))
	d.need(n, "an external service", "secrets", d.has(n, "secrets"))
	return e
}

func (d *decoder) ciAcceptance(n *yaml.Node) (a CIAcceptance) {
	d.mapping(n, "an entry of accept", map[string]field{
		"workflow": func(v *yaml.Node) {
			s, ok := d.str(v, "workflow")
			if ok && path.Dir(s) != ".github/workflows" {
				d.fail(v, "workflow %q: write its path, as .github/workflows/ci.yml", s)
			}
			a.Workflow = s
		},
		"job":      func(v *yaml.Node) { a.Job, _ = d.str(v, "job") },
		"external": func(v *yaml.Node) { a.External, _ = d.str(v, "external") },
		"repos":    func(v *yaml.Node) { a.Repos = d.strs(v, "repos", checkRepo) },
		"agents":   func(v *yaml.Node) { a.Agents = d.strs(v, "agents", checkAgent) },
		"reason":   func(v *yaml.Node) { a.Reason, _ = d.str(v, "reason") },
		"expires":  func(v *yaml.Node) { a.Expires = d.date(v) },
	})
	if n.Kind == yaml.MappingNode && d.has(n, "workflow") == d.has(n, "external") {
		d.fail(n, "an entry of accept names one of workflow and external: correct it")
	}
	if d.has(n, "external") && d.has(n, "job") {
		d.fail(n, "an external service has no job here: remove it")
	}
	d.need(n, "an entry of accept", "reason", d.has(n, "reason"))
	d.need(n, "an entry of accept", "expires", d.has(n, "expires"))
	return a
}

func checkLabelPattern(s string) error {
	if _, err := path.Match(s, ""); err != nil {
		return fmt.Errorf("label pattern %q: %w: close the bracket", s, err)
	}
	return nil
}
