package githubapp

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// minted is the server's answer to a mint.
type minted struct {
	Token        string      `json:"token"`
	Expires      time.Time   `json:"expires_at"`
	Permissions  Permissions `json:"permissions"`
	Selection    string      `json:"repository_selection"`
	Repositories []struct {
		FullName      string `json:"full_name"`
		DefaultBranch string `json:"default_branch"`
		Archived      bool   `json:"archived"`
	} `json:"repositories"`
}

func (m minted) token() Token {
	value := m.Token
	t := Token{value: func() string { return value }, Expires: m.Expires, Permissions: m.Permissions}
	if len(m.Repositories) == 1 {
		r := m.Repositories[0]
		t.Repository, t.DefaultBranch, t.Archived = r.FullName, r.DefaultBranch, r.Archived
	}
	return t
}

// maxLife is GitHub's one hour for an installation token, and five minutes for
// clocks that differ.
const maxLife = time.Hour + 5*time.Minute

var levels = map[string]int{"read": 1, "write": 2, "admin": 3}

// check holds the answer against what was asked for.
func (m minted) check(req Request, now time.Time) error {
	full := req.Owner + "/" + req.Repo
	switch {
	case m.Selection == "all" || len(m.Repositories) != 1:
		return fmt.Errorf("%w: it reaches %d repositories (selection %q), not %s alone", ErrTooWide, len(m.Repositories), m.Selection, full)
	case !strings.EqualFold(m.Repositories[0].FullName, full):
		return fmt.Errorf("%w: it reaches %s in place of %s", ErrTooWide, m.Repositories[0].FullName, full)
	case !m.Expires.After(now):
		return fmt.Errorf("token expired at %s, before it came: set this machine's clock", m.Expires.Format(time.RFC3339))
	case m.Expires.After(now.Add(maxLife)):
		return fmt.Errorf("%w: it lives until %s, longer than an hour", ErrTooWide, m.Expires.Format(time.RFC3339))
	}
	for name, level := range m.Permissions {
		asked := levels[req.Permissions[name]]
		if name == "metadata" { // comes with every token
			asked = max(asked, levels["read"])
		}
		if got, ok := levels[level]; !ok || got > asked {
			return fmt.Errorf("%w: it has %s:%s", ErrTooWide, name, level)
		}
	}
	for name, level := range req.Permissions {
		if levels[m.Permissions[name]] < levels[level] {
			return fmt.Errorf("token lacks %s:%s: grant it in the App's settings and accept it for the installation", name, level)
		}
	}
	return nil
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
