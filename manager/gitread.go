package manager

import (
	"context"
	"strings"
	"sync"
	"time"
)

// readCredential lets the egress gateway fetch from the kick's own repository
// with the credential that read its base. Other repositories are read without.
type readCredential struct {
	host, repo string // of the own one; empty: there is no credential
	mint       func(ctx context.Context) (user, password string, err error)
	end        func(ctx context.Context) error // revokes what was minted; may be nil

	mu             sync.Mutex // guards what follows
	user, password string
	at             time.Time
}

// readAgain is how long a credential is used. GitHub's tokens of an App live
// for an hour.
const readAgain = 50 * time.Minute

func newReadCredential(req Request) *readCredential {
	if req.Source.Credential == nil || !req.Target.HasPullRequests() {
		return &readCredential{}
	}
	return &readCredential{host: req.Target.Host, repo: req.Target.Owner + "/" + req.Target.Name, mint: req.Source.Credential, end: req.AfterFetch}
}

// get is egress.Config's GitCredential.
func (c *readCredential) get(ctx context.Context, host, repo string) (string, string, error) {
	if c.host == "" || !strings.EqualFold(host, c.host) || !strings.EqualFold(repo, c.repo) {
		return "", "", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.password == "" || time.Since(c.at) > readAgain {
		user, password, err := c.mint(ctx)
		if err != nil {
			return "", "", err
		}
		c.user, c.password, c.at = user, password, time.Now()
	}
	return c.user, c.password, nil
}

// revoke ends what was minted. The gateway is closed before.
func (c *readCredential) revoke(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	minted := c.password != ""
	c.password = ""
	if !minted || c.end == nil {
		return nil
	}
	return c.end(ctx)
}
