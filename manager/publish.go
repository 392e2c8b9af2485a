package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kickhq/kick/pushbroker"
)

// publish pushes inspected work and opens its pull request.
func (r *run) publish(ctx context.Context, q *pushbroker.Quarantine, v pushbroker.Verdict, branch string) {
	req := pushbroker.PublishRequest{
		Target: r.req.Target, Quarantine: q, Verdict: v,
		Refs:         pushbroker.Refs{Branch: branch, Base: r.out.Base},
		PullRequest:  r.req.Publish == PublishPR,
		AcceptReview: r.req.AcceptReview || r.req.LocalCheckout,
		Description:  r.description(v, branch),
		Journal:      r.k.Journal.Intend,
	}
	var pub pushbroker.Publication
	err := r.step("publish", func() (detail string, err error) {
		if pub, err = pushbroker.Publish(ctx, req); err != nil {
			return "", err
		}
		return published(pub), r.k.Journal.Note("published", map[string]string{"branch": pub.Branch, "commit": pub.Commit, "pull-request": pub.URL})
	})
	r.out.Notes = append(r.out.Notes, pub.Warnings...)
	r.out.Branch, r.out.PullRequest, r.out.Draft = pub.Branch, pub.URL, pub.Draft
	var perr *pushbroker.PublishError
	switch {
	case err == nil:
		r.out.Commit, r.out.Commits = pub.Commit, v.Commits
		if r.out.Squashed > 0 {
			r.out.Notes = append(r.out.Notes, fmt.Sprintf("kick made one commit of the %s that the agent left; the kept bundle has those", count(r.out.Squashed, "commit")))
		}
		r.fail(Published, nil)
	case errors.As(err, &perr) && perr.Pushed:
		r.fail(PushFailed, fmt.Errorf("the branch %s is on the remote, and its pull request is not: %w", branch, err))
	default:
		r.fail(codeFor(ctx, err, PushFailed), err)
	}
}

func published(p pushbroker.Publication) string {
	if p.URL != "" {
		return fmt.Sprintf("%s, pull request #%d", p.Branch, p.Number)
	}
	return p.Branch
}

// description is what the pull request will say.
func (r *run) description(v pushbroker.Verdict, branch string) pushbroker.Description {
	return pushbroker.Description{
		KickID: r.k.ID, Agent: r.req.Agent, Prompt: r.req.Prompt, Report: r.agentReport(),
		TitlePrefix: r.form().TitlePrefix, Notes: r.formNotes(),
		Isolation: r.out.Isolation, Took: time.Duration(r.out.Timings["agent"] * float64(time.Second)), Version: r.m.Version,
		Refs: pushbroker.Refs{Branch: branch, Base: r.out.Base}, Verdict: v, Target: r.req.Target,
	}
}

// agentReport is the agent's first report, as it came; nil if there is none.
func (r *run) agentReport() []byte {
	paths, err := filepath.Glob(filepath.Join(r.k.Path("out"), "agent-report*.json"))
	if err != nil || len(paths) == 0 {
		return nil
	}
	b, err := os.ReadFile(paths[0])
	r.note("read the agent's report", err)
	return b
}

// reconcile asks the remote what became of a push that a dead kick had begun.
func (r *run) reconcile(ctx context.Context, entries []Entry) {
	branch, begun := field(entries, "push", "branch")
	if !begun {
		return
	}
	commit, _ := field(entries, "push", "commit")
	r.out.Commit = commit
	target, err := r.m.target(r.out.Repo)
	var found pushbroker.Found
	if err == nil {
		var warnings []string
		found, warnings, err = pushbroker.Lookup(ctx, target, branch, r.k.Journal.Intend)
		r.out.Notes = append(r.out.Notes, warnings...)
	}
	switch {
	case err != nil:
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("a push to %s had begun, and the remote could not be asked whether it arrived: %v", branch, err))
	case found.Commit == commit || found.Commit == "" && found.Number > 0: // a pull request outlives its branch
		r.out.Branch, r.out.PullRequest = branch, found.URL
		r.fail(Published, nil)
		if _, wanted := field(entries, "pull-request", "branch"); wanted && found.Number == 0 {
			r.out.Notes = append(r.out.Notes, "kick died while it opened the pull request, and there is none: open it by hand for "+branch)
		}
	}
}

// target is where a dead kick's work went.
func (m *Manager) target(repo string) (pushbroker.Target, error) {
	if m.Target != nil {
		return m.Target(repo)
	}
	return pushbroker.NewTarget(repo, pushbroker.Access{})
}
