package exposure

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/policy"
)

// SettingsOf are the settings that a policy holds, which For has made for the
// repository and the agent.
func SettingsOf(pol *policy.Policy) Settings {
	ci := pol.CI
	return Settings{ReadToken: ci.DefaultToken == "read", Guarded: ci.GuardedEnvironments, Hosted: ci.HostedRunners}
}

// Findings turns what is exposed into findings, at the levels that the policy
// gives them.
func (r Report) Findings(pol *policy.Policy, now time.Time) []policy.Finding {
	var out []policy.Finding
	for _, w := range r.Workflows {
		if w.Unreadable != "" {
			f := policy.NewFinding("ci-unreadable", w.Unreadable)
			f.Path = w.Path
			out = append(out, pol.ApplyCI(f, w.Path, "", "", now)...)
		}
		for _, j := range w.Jobs {
			if j.Exposed() {
				f := policy.NewFinding("ci-exposure", j.sentence())
				f.Path, f.Line, f.Place = w.Path, j.Line, "job "+j.ID
				f.Remedy = j.Remedy(w.Path)
				out = append(out, pol.ApplyCI(f, w.Path, j.ID, "", now)...)
			}
		}
	}
	return append(out, r.external(pol, now)...)
}

// external judges other services by what the operator declared of them.
func (r Report) external(pol *policy.Policy, now time.Time) []policy.Finding {
	var out []policy.Finding
	declared := pol.CI.External
	for _, e := range declared {
		if e.Secrets {
			f := policy.NewFinding("ci-exposure", fmt.Sprintf("the service %s builds pushed branches, and its builds get secrets", e.Name))
			f.Place = "external service " + e.Name
			f.Remedy = fmt.Sprintf("Have %s leave kick/** out or ask before it builds, and say so under ci.external, or accept it under ci.accept.", e.Name)
			out = append(out, pol.ApplyCI(f, "", "", e.Name, now)...)
		}
	}
	for _, s := range r.Services {
		if !slices.ContainsFunc(declared, func(e policy.ExternalCI) bool { return strings.EqualFold(e.Name, s.Name) }) {
			f := policy.NewFinding("ci-external", s.Name)
			f.Path = s.Path
			out = append(out, pol.ApplyCI(f, "", "", s.Name, now)...)
		}
	}
	return out
}

// sentence says how code runs, when, and what it reaches.
func (j Job) sentence() string {
	return fmt.Sprintf("%s; it starts on %s; it reaches %s", j.Code, j.starts(), j.reaches())
}

// starts names the triggers, the actions of one event together.
func (j Job) starts() string {
	var parts []string
	actions := map[string][]string{}
	for _, t := range j.Triggers {
		name, action, _ := strings.Cut(t.Event, " ")
		key := fmt.Sprintf("%s (line %d%s)", name, t.Line, prefixed(": ", t.Why))
		if _, seen := actions[key]; !seen {
			parts = append(parts, key)
		}
		actions[key] = append(actions[key], action)
	}
	for i, key := range parts {
		if list := strings.Join(actions[key], ", "); list != "" {
			name, rest, _ := strings.Cut(key, " ")
			parts[i] = name + " " + list + " " + rest
		}
	}
	return strings.Join(parts, " and ")
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func (j Job) reaches() string {
	var parts []string
	for _, r := range j.Exposes {
		parts = append(parts, r.String())
	}
	return strings.Join(parts, ", ")
}

// String names what is reached, and where it comes from.
func (r Reach) String() string {
	what := r.Name
	switch r.Kind {
	case Secret:
		if what = "secret " + r.Name; r.Name == "*" {
			what = "all secrets of the repository"
		}
	case Token:
		what = "a token with " + r.Name
		if strings.HasPrefix(r.Name, "no permissions") {
			what = "a token that may write, since " + r.Name
		}
	case OIDC:
		what = "an identity (" + r.Name + ")"
	case Environment:
		what = "the secrets of environment " + r.Name + ", whose approval is not known"
	}
	switch {
	case r.Line == 0:
		return what
	case r.In != "":
		return fmt.Sprintf("%s (%s:%d)", what, r.In, r.Line)
	}
	return fmt.Sprintf("%s (line %d)", what, r.Line)
}

// Remedy says what to do about an exposed job of a workflow, one sentence a
// way.
func (j Job) Remedy(workflow string) string {
	var ways []string
	add := func(way string) {
		if !slices.Contains(ways, way) {
			ways = append(ways, way)
		}
	}
	for _, t := range j.Triggers {
		switch name, _, _ := strings.Cut(t.Event, " "); {
		case name == "push" && strings.Contains(t.Why, "is in branches "):
			add("Add '!kick/**' at the end of on.push.branches.")
		case name == "push":
			add("Leave the branches out with on.push.branches-ignore: ['kick/**'].")
		case name == "pull_request":
			add("Run it for pull requests from forks alone, or skip it in the job's if: !startsWith(github.head_ref, 'kick/').")
		case name == "pull_request_target" || name == "workflow_run":
			add("Do not fetch or run the branch's files under " + name + "; use pull_request for that.")
		case name == "create":
			add("Skip it in the job's if: !startsWith(github.ref, 'refs/heads/kick/').")
		}
	}
	for _, r := range j.Exposes {
		switch r.Kind {
		case Secret:
			add("Move the secret into an environment that asks for approval, and name that under ci.guarded_environments.")
		case Token:
			add("Give the workflow permissions: read-all.")
			if strings.HasPrefix(r.Name, "no permissions") {
				add("If the repository's default is read, declare ci.default_token: read.")
			}
		case OIDC:
			add("Take id-token: write from this job.")
		case Runner:
			add("Use GitHub's runners for it, or name the label under ci.hosted_runners if its runners live for one job.")
		case Environment:
			add("Have the environment ask for approval, and name it under ci.guarded_environments.")
		}
	}
	add(fmt.Sprintf("Or accept it under ci.accept: {workflow: %s, job: %s}.", workflow, quoteYAML(j.ID)))
	return strings.Join(ways, " ")
}

func quoteYAML(s string) string {
	if strings.ContainsAny(s, " :{}[],&*#?|<>=!%@\\\"'") {
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	return s
}
