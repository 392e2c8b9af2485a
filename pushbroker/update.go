package pushbroker

import (
	"context"
	"fmt"

	"github.com/google/go-github/v66/github"
)

// Updated says how an update changed its branch.
type Updated string

const (
	// FastForward adds commits to those that the branch has.
	FastForward Updated = "fast-forward"
	// Rewritten replaces the commits that the branch had.
	Rewritten Updated = "rewritten"
)

// updated says which of both the work is; empty: the branch is new.
func (r Refs) updated(q *Quarantine) Updated {
	switch r.Old {
	case "":
		return ""
	case q.BaseOID: // which the work descends from
		return FastForward
	}
	return Rewritten
}

// into is the branch that the pull request asks to go into.
func (r Refs) into() string {
	if r.Into != "" {
		return r.Into
	}
	return r.Base
}

// taken is the reason why the branch, at another commit than expected, is left
// alone.
func (r Refs) taken(op, there string) *PublishError {
	switch {
	case r.Old == "":
		return publishError(ReasonBranchExists, op, "the branch is there already, at %s", there)
	case there == "":
		return publishError(ReasonBranchMoved, op, "the branch is gone; it was at %s", r.Old)
	}
	return publishError(ReasonBranchMoved, op, "the branch is at %s, no longer at %s", there, r.Old)
}

// maxComments is how many of the newest comments are looked through for one that
// an attempt before left.
const maxComments = 100

// comment tells the reviewers of a pull request that was there what the update
// brought. Without it the update is as good, so what fails is a warning.
func (p *publisher) comment(ctx context.Context, client *github.Client, pr *github.PullRequest) {
	t, n, want := p.req.Target, pr.GetNumber(), p.proposal
	sort, direction := "created", "desc"
	have, _, err := client.Issues.ListComments(ctx, t.Owner, t.Name, n, &github.IssueListCommentsOptions{
		Sort: &sort, Direction: &direction, ListOptions: github.ListOptions{PerPage: maxComments},
	})
	for _, c := range have {
		if says(c.GetBody(), want.Comment, want.Commit) {
			return
		}
	}
	if err == nil {
		if err = p.journal("comment", map[string]string{"repository": t.String(), "number": fmt.Sprint(n), "commit": want.Commit}); err == nil {
			_, _, err = client.Issues.CreateComment(ctx, t.Owner, t.Name, n, &github.IssueComment{Body: &want.Comment})
		}
	}
	if err != nil {
		p.warn("comment on pull request #%d: %s", n, classifyAPI(ctx, "", err).said())
	}
}
