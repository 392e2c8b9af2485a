package pushbroker

import (
	"context"

	"github.com/kickhq/kick/internal/githubapp"
)

// Arrived asks a target whether a branch is there at a commit. It is for a push
// whose end nobody saw, since kick was killed.
func Arrived(ctx context.Context, t Target, branch, commit string) (bool, error) {
	p := &publisher{req: PublishRequest{Target: t}}
	arrived := false
	err := p.withToken(ctx, "ask", githubapp.Permissions{"contents": "read"}, func(token githubapp.Token) error {
		have, err := remoteGit{target: t, token: token}.list(ctx, "refs/heads/"+branch)
		arrived = err == nil && have.refs["refs/heads/"+branch] == commit
		return err
	})
	return arrived, err
}
