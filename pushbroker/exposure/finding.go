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
	return fmt.Sprintf("%s; it starts on %s; it reaches %s", j.Code, j.Starts(), j.Reaches())
}

// Starts names the triggers, the actions of one event together.
func (j Job) Starts() string {
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

// Reaches names what agent-written code could reach.
func (j Job) Reaches() string {
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
		if r.Name == unsetToken {
			what = "a token that may write: " + r.Name
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

// Remedy says what to do about an exposed job of a workflow: keep it off the
// branch, take away what it reaches, or accept it.
func (j Job) Remedy(workflow string) string {
	var off, away []string
	add := func(list *[]string, way string) {
		if !slices.Contains(*list, way) {
			*list = append(*list, way)
		}
	}
	for _, t := range j.Triggers {
		switch name, _, _ := strings.Cut(t.Event, " "); {
		case name == "push" && strings.Contains(t.Why, "is in branches "):
			add(&off, "add '!kick/**' at the end of on.push.branches")
		case name == "push":
			add(&off, "leave the branches out with on.push.branches-ignore: ['kick/**']")
		case name == "pull_request":
			add(&off, "skip the job for them with if: ${{ !startsWith(github.head_ref, 'kick/') }}")
		case name == "pull_request_target" || name == "workflow_run":
			add(&off, "fetch and run nothing of the branch under "+name+", but under pull_request")
		case name == "create":
			add(&off, "skip the job for them with if: ${{ !startsWith(github.ref, 'refs/heads/kick/') }}")
		default:
			add(&off, "do not start it by "+name)
		}
	}
	for _, r := range j.Exposes {
		switch r.Kind {
		case Secret:
			add(&away, "move the secret into an environment that asks for approval, and name that under ci.guarded_environments")
		case Token:
			add(&away, "give it permissions: read-all")
			if r.Name == unsetToken {
				add(&away, "if the repository's default is read, declare ci.default_token: read")
			}
		case OIDC:
			add(&away, "take id-token: write from it")
		case Runner:
			add(&away, "use GitHub's runners, or name the label under ci.hosted_runners if its runners live for one job")
		case Environment:
			add(&away, "have the environment ask for approval, and name it under ci.guarded_environments")
		}
	}
	return fmt.Sprintf("Keep it off kick's branches: %s. Or take away what it reaches: %s. Or accept it under ci.accept: {workflow: %s, job: %s}.",
		strings.Join(off, "; "), strings.Join(away, "; "), workflow, quoteYAML(j.ID))
}

func quoteYAML(s string) string {
	if strings.ContainsAny(s, " :{}[],&*#?|<>=!%@\\\"'") {
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	return s
}
