package pushbroker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/lazyregexp"
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

// forms says what a repository may be.
const forms = "give an https:// or ssh:// URL, user@host:path, or the absolute path of a repository"

var (
	// scpForm is [user@]host:path, without a second "@": a password would hide
	// in it.
	scpForm  = lazyregexp.New(`^(?:([A-Za-z0-9_][A-Za-z0-9._-]*)@)?([A-Za-z0-9][A-Za-z0-9.-]*):([^:@-][^:@]*)$`)
	hostForm = lazyregexp.New(`^(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:]+\])(?::[0-9]{1,5})?$`)
	// GitHub's own rules for names are narrower.
	ownerForm = lazyregexp.New(`^[A-Za-z0-9](?:[A-Za-z0-9_-]{0,98}[A-Za-z0-9])?$`)
	nameForm  = lazyregexp.New(`^[A-Za-z0-9._-]{1,100}$`)
)

// NewTarget reads a repository's address and says how it will be written to.
// With an Access, the address must be one of a GitHub host, and the push goes
// by HTTPS whatever its form; the credential is never sent to another host. No
// error repeats an address that may hold a password.
func NewTarget(repo string, a Access) (Target, error) {
	t, path, err := parseTarget(repo)
	if err != nil {
		return Target{}, fmt.Errorf("target repository: %w", err)
	}
	if a.App == nil && a.Token.IsZero() {
		return t, nil
	}
	if a.App != nil && !a.Token.IsZero() {
		return Target{}, errors.New("target repository: both a GitHub App and a token are given: choose one")
	}
	if t.Host == "" {
		return Target{}, fmt.Errorf("target repository: %q is a local path, and a GitHub credential is given: give the URL on GitHub, or no credential", escape.String(t.URL))
	}
	owner, name, ok := strings.Cut(strings.TrimSuffix(path, ".git"), "/")
	if !ok || !ownerForm.MatchString(owner) || !nameForm.MatchString(name) || name == "." || name == ".." {
		return Target{}, fmt.Errorf("target repository: %q is not OWNER/NAME: give the address of a repository on GitHub", escape.String(path))
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

// parseTarget reads an address; path is the part after the host.
func parseTarget(repo string) (t Target, path string, err error) {
	switch {
	case repo == "":
		return t, "", errors.New("none given: " + forms)
	case len(repo) > 4096 || strings.ContainsFunc(repo, func(r rune) bool { return escape.Control(r) || escape.Invisible(r) }):
		return t, "", errors.New("address is too long or holds control characters: " + forms)
	case filepath.IsAbs(repo):
		return localTarget(repo)
	case strings.Contains(repo, "://"):
		return urlTarget(repo)
	}
	m := scpForm.FindStringSubmatch(repo)
	if m == nil {
		return t, "", errors.New("address is neither a git URL nor an absolute path: " + forms)
	}
	return Target{URL: repo, Protocol: "ssh", Host: strings.ToLower(m[2])}, strings.Trim(m[3], "/"), nil
}

func localTarget(path string) (Target, string, error) {
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return Target{}, "", fmt.Errorf("no repository at %q: check the path and its permissions", escape.String(path))
	}
	return Target{URL: path, Protocol: "file"}, "", nil
}

func urlTarget(repo string) (t Target, path string, err error) {
	scheme, rest, _ := strings.Cut(repo, "://")
	scheme = strings.ToLower(scheme)
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
	}
	user, _, hasUser := strings.Cut(authority, "@")
	if hasUser && (scheme != "ssh" || strings.ContainsAny(user, ":%") || strings.Count(authority, "@") > 1) {
		return t, "", errors.New("address holds a user name or a password: give it without; credentials are configured apart from it")
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return t, "", errors.New("address is no plain URL: " + forms)
	}
	if scheme == "file" {
		if u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) {
			return t, "", errors.New("file URL names another host or no absolute path: write file:///absolute/path")
		}
		return localTarget(u.Path)
	}
	host := strings.ToLower(u.Host)
	defaultPort, known := map[string]string{"https": ":443", "http": ":80", "ssh": ":22"}[scheme]
	path = strings.Trim(u.Path, "/")
	switch {
	case !known:
		return t, "", fmt.Errorf("scheme %q is not used: take https, ssh, file, or http to this machine", escape.String(scheme))
	case !hostForm.MatchString(host) || path == "" || strings.HasPrefix(user, "-"):
		return t, "", errors.New("URL has no usable host or no path: write " + scheme + "://host/owner/name")
	case scheme == "http" && !onLoopback(u.Hostname()):
		return t, "", errors.New("http to another machine can be read and altered on the way: use https")
	}
	host = strings.TrimSuffix(host, defaultPort)
	u.Host, u.Path, u.RawPath = host, "/"+path, ""
	return Target{URL: u.String(), Protocol: scheme, Host: host}, path, nil
}

func hostOnly(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		return h
	}
	return hostport
}

func onLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
