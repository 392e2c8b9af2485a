package pushbroker

import (
	"context"
	"strings"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/githubapp"
)

// maxCompared is how many open pull requests of kicks are compared, the newest
// first: each costs a request.
const maxCompared = 30

// FindDuplicate looks for an open pull request of another kick into the same
// base that ends at the same tree: an agent that is started twice often does
// the same twice. The Found is zero if there is none. It changes nothing, and
// mints a token that can only read; see Lookup.
func FindDuplicate(ctx context.Context, t Target, refs Refs, tree string, journal func(event string, fields map[string]string) error) (f Found, warnings []string, err error) {
	const op = "look for the same change in open pull requests"
	p := &publisher{req: PublishRequest{Target: t, Refs: refs, Journal: journal}}
	err = p.withToken(ctx, "look", githubapp.Permissions{"contents": "read", "pull_requests": "read"}, func(token githubapp.Token) error {
		client, err := githubapp.NewClient(t.API, token)
		if err != nil {
			return asPublishError(op, ReasonUsage, err)
		}
		return p.retry(ctx, func() error {
			list, _, err := client.PullRequests.List(ctx, t.Owner, t.Name, &github.PullRequestListOptions{
				State: "open", Base: refs.Base, Sort: "created", Direction: "desc", ListOptions: github.ListOptions{PerPage: 100},
			})
			if err != nil {
				return classifyAPI(ctx, op, err)
			}
			compared := 0
			for _, pr := range list {
				head := pr.GetHead()
				ours := strings.HasPrefix(head.GetRef(), "kick/") && strings.EqualFold(head.GetRepo().GetFullName(), t.String())
				if !ours || head.GetRef() == refs.Branch || pr.GetBase().GetRef() != refs.Base || compared == maxCompared {
					continue
				}
				compared++
				c, _, err := client.Git.GetCommit(ctx, t.Owner, t.Name, head.GetSHA())
				if err != nil {
					return classifyAPI(ctx, op, err)
				}
				if c.GetTree().GetSHA() == tree {
					f = Found{Commit: head.GetSHA(), Number: pr.GetNumber(), URL: escape.String(pr.GetHTMLURL()), State: pullState(pr)}
					return nil
				}
			}
			return nil
		})
	})
	return f, p.pub.Warnings, err
}
