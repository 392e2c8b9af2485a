package pushbroker

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/githubapp"
)

// pullRequest finds or makes the pull request of the pushed branch.
func (p *publisher) pullRequest(ctx context.Context) error {
	return p.withToken(ctx, "open pull request", githubapp.Permissions{"pull_requests": "write"}, func(token githubapp.Token) error {
		if token.DefaultBranch == p.req.Refs.Branch {
			return publishError(ReasonUsage, "open pull request", "the branch is the repository's default branch")
		}
		client, err := githubapp.NewClient(p.req.Target.API, token)
		if err != nil {
			return asPublishError("open pull request", ReasonUsage, err)
		}
		var pr *github.PullRequest
		// Every attempt looks first: the one before may have arrived.
		err = p.retry(ctx, func() error {
			if pr, err = p.findPull(ctx, client); err != nil || pr != nil {
				p.pub.Existing = pr != nil
				return p.explainAuth(err, token)
			}
			pr, err = p.createPull(ctx, client)
			var e *PublishError
			if errors.As(err, &e) && strings.Contains(e.said(), "already exists") { // another broker was faster
				if pr, err = p.findPull(ctx, client); pr == nil && err == nil {
					err = e
				}
				p.pub.Existing = pr != nil
			}
			return p.explainAuth(err, token)
		})
		if err != nil {
			return err
		}
		p.pub.Number, p.pub.URL, p.pub.Draft = pr.GetNumber(), escape.String(pr.GetHTMLURL()), pr.GetDraft()
		// Of one that was there, the server may not have noticed the push yet.
		if head := pr.GetHead().GetSHA(); !p.pub.Existing && head != p.pub.Commit {
			p.warn("pull request #%d is of commit %s, and %s was inspected and pushed: somebody else changed the branch meanwhile", p.pub.Number, head, p.pub.Commit)
		}
		p.decorate(ctx, client, pr)
		return nil
	})
}

// findPull returns the branch's pull request, if it has one. One that was
// merged counts; one that somebody closed is not made again behind their back.
func (p *publisher) findPull(ctx context.Context, client *github.Client) (*github.PullRequest, error) {
	list, err := p.pulls(ctx, client)
	if err != nil {
		return nil, err
	}
	for _, pr := range list {
		if pullState(pr) != "closed" {
			return pr, nil
		}
	}
	if len(list) > 0 {
		return nil, publishError(ReasonPullClosed, "open pull request", "pull request #%d of this branch was closed", list[0].GetNumber())
	}
	return nil, nil
}

// pulls lists the branch's pull requests, newest first, closed ones too.
func (p *publisher) pulls(ctx context.Context, client *github.Client) ([]*github.PullRequest, error) {
	t := p.req.Target
	list, _, err := client.PullRequests.List(ctx, t.Owner, t.Name, &github.PullRequestListOptions{
		State: "all", Head: t.Owner + ":" + p.req.Refs.Branch, ListOptions: github.ListOptions{PerPage: 20},
	})
	if err != nil {
		return nil, classifyAPI(ctx, "look for a pull request of "+p.req.Refs.Branch, err)
	}
	// The server's filter is not trusted to have filtered.
	return slices.DeleteFunc(list, func(pr *github.PullRequest) bool {
		return pr.GetHead().GetRef() != p.req.Refs.Branch || !strings.EqualFold(pr.GetHead().GetRepo().GetFullName(), t.String())
	}), nil
}

func pullState(pr *github.PullRequest) string {
	if !pr.GetMergedAt().IsZero() {
		return "merged"
	}
	return pr.GetState()
}

func (p *publisher) createPull(ctx context.Context, client *github.Client) (*github.PullRequest, error) {
	t, want := p.req.Target, p.proposal
	if err := p.journal("pull-request", map[string]string{"repository": t.String(), "branch": want.Branch, "base": want.Base, "commit": want.Commit}); err != nil {
		return nil, err
	}
	create := func(draft bool) (*github.PullRequest, error) {
		pr, _, err := client.PullRequests.Create(ctx, t.Owner, t.Name, &github.NewPullRequest{
			Title: &want.Title, Body: &want.Body, Head: &want.Branch, Base: &want.Base, Draft: &draft, MaintainerCanModify: github.Bool(false),
		})
		return pr, err
	}
	pr, err := create(want.Draft)
	var answer *github.ErrorResponse
	if want.Draft && errors.As(err, &answer) && answer.Response.StatusCode == 422 && strings.Contains(strings.ToLower(answer.Message), "draft") {
		if want.DraftOnly {
			return nil, &PublishError{
				Reason: ReasonPullRequest, Op: "open pull request",
				Message: "the repository has no draft pull requests, and for one that is no draft CI would expose something to the agent's code",
				Remedy:  "See `kick policy ci`, keep CI off kick's branches or accept what it exposes, and run the kick again.",
			}
		}
		p.warn("the repository has no draft pull requests; this one is marked by its label alone")
		pr, err = create(false)
	}
	if err != nil {
		e := classifyAPI(ctx, "open pull request", err)
		if e.Reason == ReasonRejected {
			e.Reason = ReasonPullRequest
		}
		return nil, e
	}
	return pr, nil
}
