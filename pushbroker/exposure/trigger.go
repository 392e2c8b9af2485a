package exposure

import (
	"fmt"
	"slices"
	"strings"
)

// occurrence is one event that a kick brings about, or may.
type occurrence struct {
	event, action string
	label         string // of the action labeled
	via, viaEvent string // of workflow_run: the workflow that ran, and its event
}

// trusted reports whether the run takes the workflow and the code of the
// default branch: agent-written code comes in only if a step fetches it.
func (o occurrence) trusted() bool {
	switch o.event {
	case "pull_request_target", "workflow_run", "status", "check_run", "check_suite", "issues":
		return true
	}
	return false
}

func (o occurrence) onPullRequest() bool {
	return o.event == "pull_request" || o.event == "pull_request_target"
}

// String names the occurrence for people.
func (o occurrence) String() string {
	switch {
	case o.event == "workflow_run":
		return fmt.Sprintf("workflow_run after %q", o.via)
	case o.action != "":
		return o.event + " " + o.action
	}
	return o.event
}

// defaultTypes are the actions of an event without "types".
var defaultTypes = []string{"opened", "synchronize", "reopened"}

// occurrences are the events of a push and its pull request. Those that a
// service outside reports are there too: whether there is such a service is in
// no file of the repository. What people start is not: an issue's comment, a
// dispatch, a schedule, a review, a merge.
func (p Push) occurrences() []occurrence {
	out := []occurrence{{event: "push"}, {event: "create"}}
	for _, e := range []string{"deployment", "deployment_status", "status", "check_run", "check_suite"} {
		out = append(out, occurrence{event: e})
	}
	if !p.PullRequest {
		return out
	}
	if p.Issue {
		out = append(out, occurrence{event: "issues", action: "opened"})
	}
	for _, e := range []string{"pull_request", "pull_request_target"} {
		out = append(out, occurrence{event: e, action: "opened"})
		for _, l := range p.Labels {
			out = append(out, occurrence{event: e, action: "labeled", label: l})
		}
		// An update of the kick pushes again.
		for _, a := range []string{"assigned", "review_requested", "synchronize"} {
			out = append(out, occurrence{event: e, action: a})
		}
	}
	return out
}

// known are the events that this package knows; of another it cannot say when
// it happens.
var known = []string{
	"push", "create", "delete", "pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment",
	"workflow_run", "workflow_call", "workflow_dispatch", "repository_dispatch", "schedule", "issues", "issue_comment", "label", "milestone",
	"release", "registry_package", "discussion", "discussion_comment", "fork", "gollum", "member", "merge_group", "page_build", "project", "project_card",
	"project_column", "public", "watch", "deployment", "deployment_status", "status", "check_run", "check_suite", "branch_protection_rule", "image_version",
}

// starts reports whether the event entry reacts to an occurrence, and why or
// why not.
func (e event) starts(o occurrence, p Push) (certainty, string) {
	if !slices.Contains(known, e.name) {
		return certain(o.event == "push").min(maybe), fmt.Sprintf("kick does not know the event %s", e.name)
	}
	if e.name != o.event {
		return no, ""
	}
	types := e.types
	if types == nil && o.onPullRequest() {
		types = defaultTypes
	}
	if types != nil && o.action != "" {
		if !slices.ContainsFunc(types, func(t string) bool { return strings.EqualFold(t, o.action) }) {
			if e.types == nil {
				return no, "" // one of the default's is there, too
			}
			return no, fmt.Sprintf("%s reacts to %s alone", e.name, strings.Join(types, ", "))
		}
	}
	if o.event == "workflow_run" && !slices.Contains(e.workflows, o.via) {
		return no, "workflow_run follows other workflows"
	}
	byBranch, why := e.byBranch(o, p)
	if byBranch == no {
		return no, why
	}
	byPath, pathWhy := e.byPath(o, p)
	if byPath == no {
		return no, pathWhy
	}
	if pathWhy != "" {
		why = strings.TrimPrefix(why+", "+pathWhy, ", ")
	}
	return min(byBranch, byPath), why
}

func (c certainty) min(d certainty) certainty { return min(c, d) }

// byBranch applies the branch filters: to the pushed branch, or to the base of a
// pull request.
func (e event) byBranch(o occurrence, p Push) (certainty, string) {
	name, what := p.Branch, "the branch"
	switch {
	case o.onPullRequest():
		name, what = p.Base, "the base "+p.Base
	case o.event != "push" && o.event != "workflow_run":
		return yes, ""
	}
	switch {
	case e.branches != nil && e.branchesIgnore != nil:
		return maybe, fmt.Sprintf("branches and branches-ignore are both there (lines %d and %d)", e.branches.line, e.branchesIgnore.line)
	case e.branches != nil:
		c := e.branches.includes(name)
		if c == no {
			return no, fmt.Sprintf("%s is not in branches (line %d)", what, e.branches.line)
		}
		return c, fmt.Sprintf("%s is in branches (line %d)", what, e.branches.line)
	case e.branchesIgnore != nil:
		c := e.branchesIgnore.ignores(name).not()
		if c == no {
			return no, fmt.Sprintf("%s is in branches-ignore (line %d)", what, e.branchesIgnore.line)
		}
		return c, fmt.Sprintf("%s is not in branches-ignore (line %d)", what, e.branchesIgnore.line)
	case o.event == "push" && e.tags:
		return no, "push reacts to tags alone"
	case o.event == "push":
		return yes, "push has no branch filter"
	}
	return yes, ""
}

// maxFilteredPaths is how many changed files GitHub looks at; with more, it
// may run what the filter leaves out.
const maxFilteredPaths = 300

// byPath applies the path filters to what the work changes.
func (e event) byPath(o occurrence, p Push) (certainty, string) {
	if o.event != "push" && !o.onPullRequest() {
		return yes, ""
	}
	f, what := e.paths, "paths"
	passes := func(path string) certainty { return f.includes(path) }
	switch {
	case e.paths == nil && e.pathsIgnore == nil:
		return yes, ""
	case e.paths != nil && e.pathsIgnore != nil:
		return maybe, fmt.Sprintf("paths and paths-ignore are both there (lines %d and %d)", e.paths.line, e.pathsIgnore.line)
	case e.pathsIgnore != nil:
		f, what = e.pathsIgnore, "paths-ignore"
		passes = func(path string) certainty { return f.ignores(path).not() }
	}
	if p.Changed == nil || len(p.Changed) > maxFilteredPaths {
		return maybe, fmt.Sprintf("if a changed file passes %s (line %d)", what, f.line)
	}
	result := no
	for _, path := range p.Changed {
		if result = max(result, passes(path)); result == yes {
			return yes, fmt.Sprintf("a changed file passes %s (line %d)", what, f.line)
		}
	}
	if result == no {
		return no, fmt.Sprintf("no changed file passes %s (line %d)", what, f.line)
	}
	return maybe, fmt.Sprintf("a changed file may pass %s (line %d)", what, f.line)
}
