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
		Refs:         r.refs(),
		RulesAt:      r.rulesAt(),
		PullRequest:  r.req.Publish == PublishPR,
		AcceptReview: r.req.AcceptReview || r.req.LocalCheckout,
		Description:  r.description(v, branch),
		Form:         r.form(),
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
	if err != nil {
		r.publishFailed(ctx, branch, err)
		return
	}
	r.out.Commit, r.out.Commits = pub.Commit, v.Commits
	r.updateNote(pub)
	r.noteIssue(pub)
	if pub.Signed {
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("GitHub made and signed the commits: %.12s has the tree of the inspected %.12s", pub.Commit, v.Tip))
	}
	if r.out.Squashed > 0 {
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("kick made one commit of the %s that the agent left; the kept bundle has those", count(r.out.Squashed, "commit")))
	}
	r.fail(Published, nil)
}

// publishFailed says why work is not, or not wholly, published, and whether a
// later start can finish it.
func (r *run) publishFailed(ctx context.Context, branch string, err error) {
	var e *pushbroker.PublishError
	if !errors.As(err, &e) {
		r.fail(codeFor(ctx, err, PushFailed), err)
		return
	}
	r.out.PublishReason, r.out.RetryAfter, r.out.Remedy = e.Reason, e.RetryAfter.Seconds(), e.ToDo()
	said := errors.New(e.Said())
	if e.Pushed {
		said = fmt.Errorf("the branch %s is on the remote, and its pull request is not: %w", branch, said)
	}
	if (e.Pushed || e.Begun) && e.Reason.Temporary() {
		r.out.Unsettled = true
		r.out.Remedy = "Run `kick gc` when the server answers again: it looks what arrived, and opens the pull request that is missing."
	}
	r.fail(codeFor(ctx, err, PushFailed), said)
}

// noteIssue tells of an issue in the place of the pull request.
func (r *run) noteIssue(pub pushbroker.Publication) {
	if r.out.Issue = pub.Issue; pub.Issue != "" {
		r.out.Notes = append(r.out.Notes, "a pull request may not be opened there; as the policy says, there is an issue in its place: "+pub.Issue)
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
		Refs: pushbroker.Refs{Branch: branch, Base: r.into()}, Verdict: v, Target: r.req.Target,
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

// unsettledNote begins the note of a kick whose push may have arrived.
const unsettledNote = "the remote could not be asked"

// settle asks the remote what became of a push that was begun, and opens the
// pull request that is missing. It gives the kick an outcome if the work
// arrived.
func (r *run) settle(ctx context.Context, entries []Entry) {
	r.out.Unsettled = false
	branch, begun := field(entries, "push", "branch")
	if !begun {
		return
	}
	commit, _ := field(entries, "push", "commit")
	old, _ := field(entries, "push", "old") // an update's; its pull request proves nothing
	signed, _ := field(entries, "push", "signed")
	if made, ok := field(entries, "signed", "commit"); ok {
		commit, signed = made, "" // by GitHub, with the same tree
	}
	r.out.Commit = commit
	target, err := r.m.target(r.out.Repo)
	var found pushbroker.Found
	if err == nil {
		var warnings []string
		found, warnings, err = pushbroker.Lookup(ctx, target, branch, r.k.Journal.Intend)
		r.out.Notes = append(r.out.Notes, warnings...)
	}
	there := "with other work"
	if err == nil && signed != "" && found.Commit != "" {
		commit, there, err = r.settleSigned(ctx, target, branch, found.Commit, signed)
	}
	var e *pushbroker.PublishError
	switch {
	case err != nil:
		r.out.Unsettled = !errors.As(err, &e) || e.Reason.Temporary()
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("%s whether the push to %s arrived: %v", unsettledNote, branch, err))
		return
	case found.Commit == old && (found.Number == 0 || old != ""): // it did not arrive, or somebody took it away
		return
	case found.Commit == "" && old != "":
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("the branch %s is gone; it was at %s", branch, old))
		return
	case found.Commit != "" && found.Commit != commit:
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("the branch %s is on the remote %s, at %s", branch, there, found.Commit))
		return
	}
	r.out.Commit = commit
	// It arrived: a pull request outlives its branch.
	r.out.Branch, r.out.PullRequest = branch, found.URL
	recorded, wanted := field(entries, "proposal", "proposal")
	if _, done := field(entries, "published", "branch"); wanted && !done && (found.Number == 0 || found.State == "open") {
		if err := r.finishPullRequest(ctx, target, recorded); err != nil {
			r.publishFailed(ctx, branch, err)
			return
		}
	}
	if found.State == "closed" {
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("pull request #%d was closed meanwhile", found.Number))
	}
	r.fail(Published, nil)
}

// settleSigned asks what a branch has that GitHub makes the commits of. It
// returns the commit that counts as the work's, which is head if all of them are
// there, and otherwise what the branch has in words.
func (r *run) settleSigned(ctx context.Context, target pushbroker.Target, branch, head, recorded string) (commit, there string, err error) {
	chain, err := pushbroker.ParseSignedChain(recorded)
	if err != nil {
		return "", "", err
	}
	made, is, warnings, err := pushbroker.FindSigned(ctx, target, head, chain, r.k.Journal.Intend)
	r.out.Notes = append(r.out.Notes, warnings...)
	switch all := len(chain.Commits); {
	case err != nil || !is:
		return "", "with other work", err
	case made < all:
		return "", fmt.Sprintf("with %d of the %s that GitHub was making of this work; delete it or complete it from the kept work", made, count(all, "commit")), nil
	}
	return head, "", r.k.Journal.Note("signed", map[string]string{"branch": branch, "commit": head})
}

// finishPullRequest opens the pull request that was decided before the push.
func (r *run) finishPullRequest(ctx context.Context, target pushbroker.Target, recorded string) error {
	proposal, err := pushbroker.ParseProposal(recorded)
	if err != nil {
		return err
	}
	pub, err := pushbroker.Finish(ctx, target, proposal, r.out.Commit, r.k.Journal.Intend)
	r.out.Notes = append(r.out.Notes, pub.Warnings...)
	if err != nil {
		return err
	}
	r.out.PullRequest, r.out.Draft = pub.URL, pub.Draft
	r.noteIssue(pub)
	return r.k.Journal.Note("published", map[string]string{"branch": pub.Branch, "commit": pub.Commit, "pull-request": pub.URL})
}

// target is where a dead kick's work went.
func (m *Manager) target(repo string) (pushbroker.Target, error) {
	if m.Target != nil {
		return m.Target(repo)
	}
	return pushbroker.NewTarget(repo, pushbroker.Access{})
}
