package pushbroker

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/githubapp"
)

// request opens the pull request or, where it may not be opened and the policy
// allows that, an issue in its place.
func (p *publisher) request(ctx context.Context) error {
	err := p.pullRequest(ctx)
	if err == nil {
		return nil
	}
	e := asPublishError("open pull request", ReasonPullRequest, err)
	e.Pushed = true
	if !p.proposal.IssueFallback || e.Reason != ReasonPermission && e.Reason != ReasonNotFound {
		return e
	}
	if ierr := p.issue(ctx, e.said()); ierr != nil {
		e.Message += "; nor an issue in its place: " + asPublishError("", ReasonRejected, ierr).said()
		return e
	}
	return nil
}

// issue finds or opens the issue. why is what the server said of the pull
// request.
func (p *publisher) issue(ctx context.Context, why string) error {
	const op = "open an issue"
	t, want := p.req.Target, p.proposal
	return p.withToken(ctx, op, githubapp.Permissions{"issues": "write"}, func(token githubapp.Token) error {
		client, err := githubapp.NewClient(t.API, token)
		if err != nil {
			return asPublishError(op, ReasonUsage, err)
		}
		body := cutTo(fmt.Sprintf("The branch %s is pushed and asks to go into %s, and a pull request could not be opened: %s.\n\n%s", code(want.Branch), code(want.Base), code(why), want.Body), maxBody)
		return p.retry(ctx, func() error {
			// The attempt before may have arrived.
			have, _, err := client.Issues.ListByRepo(ctx, t.Owner, t.Name, &github.IssueListByRepoOptions{State: "all", ListOptions: github.ListOptions{PerPage: 100}})
			if err != nil {
				return classifyAPI(ctx, op, err)
			}
			for _, i := range have {
				if !i.IsPullRequest() && i.GetTitle() == want.Title && says(i.GetBody(), want.Body, want.Commit) {
					p.pub.Issue, p.pub.Existing = escape.String(i.GetHTMLURL()), true
					return nil
				}
			}
			if err := p.journal("issue", map[string]string{"repository": t.String(), "branch": want.Branch, "commit": want.Commit}); err != nil {
				return err
			}
			i, _, err := client.Issues.Create(ctx, t.Owner, t.Name, &github.IssueRequest{Title: &want.Title, Body: &body, Labels: &want.Labels, Assignees: &want.Assignees})
			if err != nil {
				return classifyAPI(ctx, op, err)
			}
			p.pub.Issue = escape.String(i.GetHTMLURL())
			return nil
		})
	})
}

// says reports whether a text on the server is kick's own for a commit. The
// commit alone does not tell: everybody sees it on the branch, and could write a
// text with it in the place of kick's.
func says(there, ours, commit string) bool {
	const enough = 4096 // bytes; the rest may have been cut
	there = strings.ReplaceAll(there, "\r\n", "\n")
	return strings.Contains(there, commit) && strings.Contains(there, ours[:min(len(ours), enough)])
}
