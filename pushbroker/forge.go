package pushbroker

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/internal/repoaddr"
)

// Access is the authority to publish on GitHub or a GitHub Enterprise host. The
// zero Access is none: the target is a plain git remote.
type Access struct {
	// App mints one token for each push and one for each pull request.
	App *githubapp.App
	// Token is a token of the operator's own, in place of an App. It is used as
	// it is and never revoked.
	Token githubapp.Token
	// API is the REST address that goes with Token. Default: what the
	// repository's host has. With an App, App.BaseURL counts.
	API string
}

// Target is where work goes: a repository, and the authority to write to it.
type Target struct {
	// URL is what git is given: an absolute path or a URL without user name
	// and password.
	URL string
	// Protocol is the one transport that git may use: "file", "ssh", "https",
	// or "http" to this machine.
	Protocol string
	// Host is the remote's host and port. Empty: a local path.
	Host string
	// Owner and Name are the repository's on GitHub. Empty on a plain remote.
	Owner, Name string
	// API is the REST address, with a trailing slash. Empty: a plain remote,
	// which has branches but no pull requests.
	API string

	access Access
}

// HasPullRequests reports whether the target is a GitHub repository that is
// accessed by its API.
func (t Target) HasPullRequests() bool { return t.API != "" }

// String names the target for people.
func (t Target) String() string {
	if t.Owner != "" {
		return t.Owner + "/" + t.Name
	}
	return t.URL
}

var (
	// GitHub's own rules for names are narrower.
	ownerForm = lazyregexp.New(`^[A-Za-z0-9](?:[A-Za-z0-9_-]{0,98}[A-Za-z0-9])?$`)
	nameForm  = lazyregexp.New(`^[A-Za-z0-9._-]{1,100}$`)
)

// NewTarget reads a repository's address and says how it will be written to.
// With an Access, the address must be one of a GitHub host, and the push goes
// by HTTPS whatever its form; the credential is never sent to another host. No
// error repeats an address that may hold a password.
func NewTarget(repo string, a Access) (Target, error) {
	addr, err := repoaddr.Parse(repo)
	if err != nil {
		return Target{}, fmt.Errorf("target repository: %w", err)
	}
	t := Target{URL: addr.URL, Protocol: addr.Protocol, Host: addr.Host}
	if a.App == nil && a.Token.IsZero() {
		return t, nil
	}
	if a.App != nil && !a.Token.IsZero() {
		return Target{}, errors.New("target repository: both a GitHub App and a token are given: choose one")
	}
	if t.Host == "" {
		return Target{}, fmt.Errorf("target repository: %q is a local path, and a GitHub credential is given: give the URL on GitHub, or no credential", escape.String(t.URL))
	}
	owner, name := ownerAndName(addr.Path)
	if owner == "" {
		return Target{}, fmt.Errorf("target repository: %q is not OWNER/NAME: give the address of a repository on GitHub", escape.String(addr.Path))
	}
	t.Owner, t.Name, t.access = owner, name, a
	scheme := "https"
	if t.Protocol == "http" {
		scheme = "http"
	}
	if t.Protocol == "ssh" { // the API and HTTPS are on their own ports
		t.Host = hostOnly(t.Host)
	}
	t.Protocol, t.URL = scheme, scheme+"://"+t.Host+"/"+owner+"/"+name+".git"
	return t, t.setAPI()
}

// setAPI finds the REST address, and refuses one on a host that is not the
// repository's.
func (t *Target) setAPI() error {
	api := t.access.API
	if t.access.App != nil {
		api = t.access.App.BaseURL
	}
	switch {
	case api != "":
	case t.Host == "github.com":
		api = githubapp.DefaultBaseURL
	case strings.HasSuffix(t.Host, ".ghe.com"): // GitHub's own hosting for enterprises
		api = "https://api." + t.Host + "/"
	default:
		api = t.Protocol + "://" + t.Host + "/api/v3/"
	}
	u, err := url.Parse(api)
	if err != nil || u.User != nil || u.Host == "" || u.Scheme != t.Protocol {
		return fmt.Errorf("target repository: the GitHub API address cannot be used with %s: want %s://HOST/, without user name or password", t.URL, t.Protocol)
	}
	if host := strings.ToLower(u.Host); host != t.Host && host != "api."+t.Host {
		return fmt.Errorf("target repository: the GitHub API is at %s and the repository at %s: a credential of one host is not sent to another; correct the address of either", escape.String(u.Host), t.Host)
	}
	t.API = strings.TrimSuffix(api, "/") + "/"
	if t.access.App != nil && t.access.App.BaseURL != t.API {
		app := *t.access.App
		app.BaseURL = t.API
		t.access.App = &app
	}
	return nil
}

// ownerAndName are those of a path on GitHub; empty if it is none.
func ownerAndName(path string) (owner, name string) {
	owner, name, ok := strings.Cut(strings.TrimSuffix(path, ".git"), "/")
	if !ok || !ownerForm.MatchString(owner) || !nameForm.MatchString(name) || name == "." || name == ".." {
		return "", ""
	}
	return owner, name
}

func hostOnly(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		return h
	}
	return hostport
}
