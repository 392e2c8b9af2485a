package pushbroker

import (
	"context"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/githubapp"
)

// Found is what a remote has of a kick.
type Found struct {
	// Commit is the id that the branch has. Empty: there is no such branch,
	// any more or yet.
	Commit string
	// Number, URL and State ("open", "closed" or "merged") are those of the
	// branch's newest pull request; it outlives the branch. 0 and "" without
	// one.
	Number     int
	URL, State string
}

// Lookup asks the remote what it has of a branch, before anything is repeated
// that a journal says was begun. It changes nothing; with an App it mints a
// token that can only read, and journal is told of that (see PublishRequest).
// An error is a *PublishError. Warnings are as in Publication.
func Lookup(ctx context.Context, t Target, branch string, journal func(event string, fields map[string]string) error) (f Found, warnings []string, err error) {
	op := "look for " + branch + " on " + t.String()
	if err := checkBranchName(branch); err != nil {
		return f, nil, asPublishError(op, ReasonUsage, err)
	}
	p := &publisher{req: PublishRequest{Target: t, Refs: Refs{Branch: branch}, Journal: journal}}
	err = p.withToken(ctx, "look", githubapp.Permissions{"contents": "read", "pull_requests": "read"}, func(token githubapp.Token) error {
		return p.retry(ctx, func() error {
			ref := "refs/heads/" + branch
			remote, err := newRemoteGit(t, token)
			if err != nil {
				return err
			}
			have, err := remote.list(ctx, ref)
			if err != nil {
				return p.explainAuth(err, token)
			}
			f.Commit = have.refs[ref]
			if !t.HasPullRequests() {
				return nil
			}
			client, err := githubapp.NewClient(t.API, token)
			if err != nil {
				return asPublishError(op, ReasonUsage, err)
			}
			list, err := p.pulls(ctx, client)
			if err != nil || len(list) == 0 {
				return err
			}
			f.Number, f.URL, f.State = list[0].GetNumber(), escape.String(list[0].GetHTMLURL()), pullState(list[0])
			return nil
		})
	})
	return f, p.pub.Warnings, err
}
