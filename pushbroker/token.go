package pushbroker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/githubapp"
)

// withToken mints a token for one purpose, calls use with it, and revokes it,
// whatever use returns. A failed revocation is a warning of the publication: it
// does not undo what was done.
func (p *publisher) withToken(ctx context.Context, purpose string, perms githubapp.Permissions, use func(githubapp.Token) error) (err error) {
	t := p.req.Target
	if !t.HasPullRequests() {
		return use(githubapp.Token{})
	}
	if t.access.App == nil {
		return use(t.access.Token)
	}
	op := fmt.Sprintf("mint token to %s on %s", purpose, t)
	var token githubapp.Token
	err = p.retry(ctx, func() error {
		if err := p.journal("mint", map[string]string{"repository": t.String(), "purpose": purpose, "permissions": permissionList(perms)}); err != nil {
			return err
		}
		var err error
		token, err = t.access.App.Mint(ctx, githubapp.Request{Owner: t.Owner, Repo: t.Name, Permissions: perms})
		if err != nil {
			return classifyAPI(ctx, op, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() {
		// The work of the token is done or failed: neither a cancelled context
		// nor a broken journal keeps it alive. But who cancelled does not wait
		// until the server takes requests again.
		if ctx.Err() != nil {
			p.waited = maxLimitWait
		}
		jerr := p.journal("revoke", map[string]string{"repository": t.String(), "purpose": purpose})
		rerr := p.retry(context.WithoutCancel(ctx), func() error {
			if err := t.access.App.Revoke(ctx, token); err != nil {
				return classifyAPI(context.WithoutCancel(ctx), "revoke token to "+purpose, err)
			}
			return nil
		})
		var e *PublishError
		if errors.As(rerr, &e) && e.Reason == ReasonAuthentication {
			rerr = nil // the server knows it no longer
		}
		if rerr != nil {
			p.warn("the token to %s could not be revoked and lives until %s: %v", purpose, token.Expires.Format("15:04 MST"), rerr)
		}
		if jerr != nil {
			p.warn("%v", jerr)
		}
	}()
	if token.Archived {
		return publishError(ReasonReadOnly, "publish to "+t.String(), "the repository is archived")
	}
	return use(token)
}

func permissionList(perms githubapp.Permissions) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(perms)) {
		out = append(out, name+":"+perms[name])
	}
	return strings.Join(out, ",")
}

// NoCoreDumps keeps this process, and the children that it starts from now on,
// from writing core dumps. A program that holds keys and tokens calls it first.
//
// The limit is one byte, not zero: both make no core file, and one byte also
// stops the kernel from piping the dump to a handler, which a limit of zero
// does not (core(5)). The process is not made undumpable: that would take the
// ownership of the /proc entries of sandboxes that start meanwhile from an
// ordinary user, and their user namespaces could not be set up.
func NoCoreDumps() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return fmt.Errorf("read the limit of core dumps: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: min(1, l.Max), Max: l.Max}); err != nil {
		return fmt.Errorf("switch core dumps off: %w", err)
	}
	return nil
}
