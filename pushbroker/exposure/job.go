package exposure

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// judge judges one workflow.
type judge struct {
	repo *repository
	w    *workflow
	push Push
	set  Settings

	jobs  map[string]*Job
	order []string
	idle  []string // why not
	ran   bool     // some event starts it
}

// start judges the jobs that an occurrence starts, and reports whether there is
// one.
func (j *judge) start(ctx context.Context, o occurrence) (bool, error) {
	runs := false
	for _, e := range j.w.events {
		c, why := e.starts(o, j.push)
		if c == no {
			if why != "" && !slices.Contains(j.idle, why) {
				j.idle = append(j.idle, why)
			}
			continue
		}
		t := Trigger{Event: o.String(), Line: e.line, Why: why, Certain: c == yes}
		v := &visit{judge: j, ctx: ctx, o: o, scope: j.push.scope(o)}
		found, err := v.workflow(j.w, caller{})
		if err != nil {
			return false, err
		}
		runs = runs || len(found) > 0
		j.ran = true
		for _, f := range found {
			j.keep(f, t)
		}
	}
	return runs, nil
}

// keep adds what one occurrence does to what is known of the job.
func (j *judge) keep(f Job, t Trigger) {
	known := j.jobs[f.ID]
	if known == nil {
		known = &Job{ID: f.ID, Line: f.Line}
		j.jobs[f.ID] = known
		j.order = append(j.order, f.ID)
	}
	if !slices.Contains(known.Triggers, t) {
		known.Triggers = append(known.Triggers, t)
	}
	if known.Waits == "" {
		known.Waits = f.Waits
	}
	if known.Code == "" || len(known.Exposes) == 0 && len(f.Exposes) > 0 {
		known.Code = f.Code
	}
	for _, r := range f.Exposes {
		if !slices.Contains(known.Exposes, r) {
			known.Exposes = append(known.Exposes, r)
		}
	}
}

func (j *judge) result() ([]Job, string) {
	var out []Job
	for _, id := range j.order {
		out = append(out, *j.jobs[id])
	}
	switch {
	case len(out) > 0:
		return out, ""
	case j.ran:
		return nil, "every job's condition is false"
	case len(j.idle) > 0:
		return nil, strings.Join(j.idle, "; ")
	}
	var names []string
	for _, e := range j.w.events {
		names = append(names, e.name)
	}
	return nil, "nothing that kick does starts it (" + strings.Join(names, ", ") + ")"
}

// visit is one workflow in one occurrence, with those that it calls.
type visit struct {
	*judge
	ctx   context.Context
	o     occurrence
	scope scope
	calls int // of reusable workflows and local actions
}

// caller is the job that calls a reusable workflow; zero at the top.
type caller struct {
	prefix  string // of job ids, "build / "
	line    int    // of the job at the top
	token   *tokenRights
	secrets *handed // nil: all, by their own names
	depth   int
}

// Bounds of reusable workflows and local actions, GitHub's own.
const (
	maxCallDepth = 10
	maxCalls     = 50
)

// workflow returns the jobs that run.
func (v *visit) workflow(w *workflow, from caller) ([]Job, error) {
	running := v.running(w)
	// Whatever a job with the branch's files hands on as an artifact is written
	// by the agent, too.
	dirty := v.o.event == "workflow_run"
	for _, j := range w.jobs {
		if !dirty && running[j.id] != no {
			dirty = j.uses != nil || v.code(j, false).present
		}
	}
	var out []Job
	for _, j := range w.jobs {
		if running[j.id] == no {
			continue
		}
		if j.uses != nil {
			found, err := v.call(w, j, from)
			if err != nil {
				return nil, err
			}
			out = append(out, found...)
			continue
		}
		out = append(out, v.job(w, j, from, dirty))
	}
	return out, v.ctx.Err()
}

// running says which jobs start: by their conditions, and by those that they
// need.
func (v *visit) running(w *workflow) map[string]certainty {
	out := map[string]certainty{}
	byID := map[string]*job{}
	for _, j := range w.jobs {
		byID[j.id] = j
	}
	var decide func(j *job, depth int) certainty
	decide = func(j *job, depth int) certainty {
		if c, ok := out[j.id]; ok {
			return c
		}
		c := j.cond.holds(v.scope)
		out[j.id] = c // also ends a circle, which GitHub refuses
		if c == no || depth > maxDepth {
			return c
		}
		for _, id := range j.needs {
			if need := byID[id]; need != nil && decide(need, depth+1) == no && !j.cond.survives() {
				c = no
			}
		}
		out[j.id] = c
		return c
	}
	for _, j := range w.jobs {
		decide(j, 0)
	}
	return out
}

// job judges one job with steps.
func (v *visit) job(w *workflow, j *job, from caller, dirty bool) Job {
	out := Job{ID: from.prefix + j.id, Line: j.line}
	if from.line > 0 {
		out.Line = from.line
	}
	envs, unguarded := v.environments(j)
	if len(envs) > 0 && !unguarded {
		out.Waits = strings.Join(envs, ", ")
		return out
	}
	out.Code = v.code(j, dirty).runs
	if out.Code == "" {
		return out
	}
	in := ""
	if w != v.w {
		in = w.path
		out.Code += " (" + w.path + ")"
	}
	add := func(k Kind, name string, line int) {
		out.Exposes = append(out.Exposes, Reach{Kind: k, Name: name, Line: line, In: in})
	}
	for _, s := range from.secrets.through(secretsIn(w.env, j.node)) {
		add(Secret, s.name, s.line)
	}
	if len(envs) > 0 {
		add(Environment, strings.Join(envs, ", "), j.environment.Line)
	}
	rights := v.rights(w, j, from.token)
	if what := rights.String(); what != "" {
		add(Token, what, rights.line)
	}
	if rights.oidc {
		add(OIDC, "id-token: write", rights.line)
	}
	if what, line := v.foreignRunner(j); what != "" {
		add(Runner, what, line)
	}
	return out
}

// call follows a job that calls a reusable workflow.
func (v *visit) call(w *workflow, j *job, from caller) ([]Job, error) {
	id := from.prefix + j.id
	line := j.line
	if from.line > 0 {
		line = from.line
	}
	rights := v.rights(w, j, from.token)
	given := handedBy(j.secrets, from.secrets)
	uses := strings.TrimSpace(j.uses.Value)
	if file, local := strings.CutPrefix(uses, "./"); local {
		v.calls++
		var callee *workflow
		if from.depth < maxCallDepth && v.calls <= maxCalls {
			callee = v.repo.find(file)
		}
		if callee != nil {
			return v.workflow(callee, caller{prefix: id + " / ", line: line, token: &rights, secrets: given, depth: from.depth + 1})
		}
	}
	// Another repository's, or one that cannot be read: what it does is not
	// known, what it is given is.
	out := Job{ID: id, Line: line, Code: fmt.Sprintf("the reusable workflow %s cannot be read here, and may run the branch's files (line %d)", uses, j.uses.Line)}
	for _, s := range given.everything() {
		out.Exposes = append(out.Exposes, Reach{Kind: Secret, Name: s.name, Line: s.line})
	}
	if what := rights.String(); what != "" {
		out.Exposes = append(out.Exposes, Reach{Kind: Token, Name: what, Line: rights.line})
	}
	if rights.oidc {
		out.Exposes = append(out.Exposes, Reach{Kind: OIDC, Name: "id-token: write", Line: rights.line})
	}
	return []Job{out}, nil
}
