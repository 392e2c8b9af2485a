package exposure

import (
	"slices"
	"strings"
)

// otherActors are accounts that other people's bots use; a kick's App or token
// is none of them.
var otherActors = []string{
	"dependabot[bot]", "dependabot-preview[bot]", "renovate[bot]", "github-actions[bot]", "github-merge-queue[bot]", "pre-commit-ci[bot]",
	"mergify[bot]", "allcontributors[bot]", "web-flow",
}

// scope returns what the contexts hold in an occurrence.
func (p Push) scope(o occurrence) scope {
	return func(path []string) value {
		if path[0] != "github" || len(path) < 2 {
			return unknown
		}
		if path[1] == "event" {
			return p.payload(o, path[2:])
		}
		if len(path) != 2 {
			return unknown
		}
		return p.github(o, path[1])
	}
}

func (p Push) github(o occurrence, name string) value {
	pull := o.onPullRequest()
	switch name {
	case "event_name":
		return text(o.event)
	case "ref":
		switch {
		case o.trusted():
			return begins("refs/heads/")
		case pull:
			return begins("refs/pull/")
		case o.event == "push":
			return text("refs/heads/" + p.Branch)
		}
	case "ref_name":
		if o.event == "push" {
			return text(p.Branch)
		}
	case "ref_type":
		return text("branch")
	case "head_ref":
		if pull {
			return text(p.Branch)
		}
		return text("")
	case "base_ref":
		if pull {
			return text(p.Base)
		}
		return text("")
	case "repository":
		return p.repository("full_name")
	case "repository_owner":
		return p.repository("owner.login")
	case "actor", "triggering_actor":
		return actor
	}
	return unknown
}

var actor = value{truth: yes, id: "actor", never: otherActors}

// repository is a property of the one repository: head and base of the pull
// request are the same.
func (p Push) repository(property string) value {
	owner, name, known := strings.Cut(p.Repo, "/")
	switch {
	case property == "full_name" && known:
		return text(p.Repo)
	case property == "owner.login" && known:
		return text(owner)
	case property == "name" && known:
		return text(name)
	}
	return value{truth: maybe, id: "repository." + property}
}

// payloads are the parts of an event's data that not all events have.
var payloads = map[string][]string{
	"pull_request":   {"pull_request", "pull_request_target"},
	"label":          {"pull_request", "pull_request_target"},
	"workflow_run":   {"workflow_run"},
	"issue":          {"issues"},
	"comment":        {},
	"release":        {},
	"review":         {},
	"schedule":       {},
	"inputs":         {},
	"merge_group":    {},
	"head_commit":    {"push"},
	"action":         {"pull_request", "pull_request_target", "issues", "workflow_run", "check_run", "check_suite", "deployment", "deployment_status"},
	"discussion":     {},
	"alert":          {},
	"pusher":         {"push"},
	"client_payload": {},
}

func (p Push) payload(o occurrence, path []string) value {
	if len(path) == 0 {
		return value{truth: yes}
	}
	if events, ok := payloads[path[0]]; ok && !slices.Contains(events, o.event) {
		return null
	}
	full := strings.Join(path, ".")
	switch path[0] {
	case "repository":
		return p.repository(strings.Join(path[1:], "."))
	case "pull_request":
		return p.pullRequest(o, strings.Join(path[1:], "."))
	}
	switch {
	case full == "sender.login":
		return actor
	case full == "action" && o.action != "":
		return text(o.action)
	case full == "label.name" && o.onPullRequest():
		if o.action == "labeled" {
			return text(o.label)
		}
		return null
	case o.event == "push" && full == "created":
		return boolean(true)
	case o.event == "push" && (full == "deleted" || full == "forced"):
		return boolean(false)
	case o.event == "push" && full == "ref":
		return text("refs/heads/" + p.Branch)
	case full == "workflow_run.event":
		return text(o.viaEvent)
	case full == "workflow_run.name":
		return text(o.via)
	case full == "workflow_run.head_branch":
		return text(p.Branch)
	case strings.HasPrefix(full, "workflow_run.head_repository."):
		return p.repository(strings.TrimPrefix(full, "workflow_run.head_repository."))
	}
	return unknown
}

func (p Push) pullRequest(o occurrence, property string) value {
	switch property {
	case "", "number", "head", "base", "user", "head.sha", "base.sha":
		return value{truth: yes}
	case "draft":
		if p.Draft {
			return boolean(true)
		}
	case "merged":
		return boolean(false)
	case "state":
		return text("open")
	case "head.ref":
		return text(p.Branch)
	case "base.ref":
		return text(p.Base)
	case "user.login":
		return actor
	case "labels.*.name":
		switch o.action {
		case "opened":
			return value{kind: listKind}
		case "labeled":
			v := texts(p.Labels)
			v.list = append(v.list, unknown) // somebody else may have been as fast
			return v
		}
	}
	for _, side := range []string{"head.repo.", "base.repo."} {
		if name, ok := strings.CutPrefix(property, side); ok {
			return p.repository(name)
		}
	}
	return unknown
}

// holds evaluates a condition. One without the text of an expression is true.
func (c condition) holds(in scope) certainty {
	e, ok := c.expr()
	switch {
	case !ok:
		return maybe
	case e == nil:
		return yes
	}
	return e.eval(in).truthy()
}

// expr returns the condition's expression; nil if there is none. It is not ok
// where text stands around the "${{ }}": then GitHub makes one text of it all,
// which is true whatever it says.
func (c condition) expr() (*expr, bool) {
	body := c.text
	switch {
	case c.odd:
		return nil, false
	case strings.TrimSpace(body) == "":
		return nil, true
	case strings.Contains(body, "${{"):
		found, ok := segments(body)
		if !ok || len(found) != 1 || len(body) != len(found[0])+len("${{}}") {
			return nil, false
		}
		body = found[0]
	}
	e, err := parseExpr(body)
	return e, err == nil
}

// survives reports whether the condition lets a job run although one that it
// needs was skipped.
func (c condition) survives() bool {
	e, ok := c.expr()
	if !ok {
		return true
	}
	found := false
	if e != nil {
		e.calls(func(name string) { found = found || name == "always" || name == "cancelled" || name == "failure" })
	}
	return found
}
