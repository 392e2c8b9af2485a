// Package repoaddr reads the address of a git repository, for fetch and push
// alike. Nothing that it lets through is an option to git or ssh, holds a
// password, or can be read and altered on the way.
package repoaddr

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/lazyregexp"
)

// Address is where a repository is.
type Address struct {
	// URL is what git is given: the absolute path of a directory that is there,
	// a URL without a password, or user@host:path. All spellings of one address
	// that are certain to be the same have the same URL.
	URL string
	// Protocol is the one transport that it needs: "file", "ssh", "https", or
	// "http" to this machine.
	Protocol string
	// Host is the host in lower case, with its port unless that is the
	// protocol's own. Empty: a local path.
	Host string
	// Path is what follows the host, without slashes at its ends; on GitHub it is
	// owner/name. Empty: a local path.
	Path string
}

// Error is an address that cannot be used. It repeats nothing that may be a
// credential.
type Error struct {
	What   string // what is wrong
	Remedy string // what to do
}

func (e *Error) Error() string { return e.What + ": " + e.Remedy }

func refuse(remedy, format string, args ...any) error {
	return &Error{What: escape.String(fmt.Sprintf(format, args...)), Remedy: remedy}
}

// forms says what an address may be.
const forms = "give an https:// or ssh:// URL, user@host:path, or the absolute path of a repository"

// maxLength is the longest address that is read: PATH_MAX.
const maxLength = 4096

var (
	// scpForm is [user@]host:path. A second "@" is refused: in
	// user:password@host:path the password would be taken for a path.
	scpForm = lazyregexp.New(`^(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):([^:@-][^@]*)$`)
	// hostName leaves out what git, ssh or curl might read in another way than we
	// do; an international name is written in its xn-- form.
	hostName = lazyregexp.New(`^[a-z0-9][a-z0-9._-]*$`)
)

// Parse reads an address. An error is an *Error.
func Parse(repo string) (Address, error) {
	scheme, rest, isURL := strings.Cut(repo, "://")
	switch {
	case repo == "":
		return Address{}, refuse(forms, "no repository given")
	case len(repo) > maxLength || strings.ContainsFunc(repo, func(r rune) bool { return escape.Control(r) || escape.Invisible(r) }):
		return Address{}, refuse(forms, "the repository's address is longer than %d bytes or holds control characters", maxLength)
	case filepath.IsAbs(repo):
		return local(repo)
	case isURL:
		return parseURL(strings.ToLower(scheme), rest)
	}
	if m := scpForm.FindStringSubmatch(repo); m != nil {
		return Address{URL: repo, Protocol: "ssh", Host: strings.ToLower(m[1]), Path: strings.Trim(m[2], "/")}, nil
	}
	if strings.Contains(repo, "@") { // may be user:password@host
		return Address{}, refuse(forms, "the repository's address is neither a git URL nor an absolute path")
	}
	return Address{}, refuse(forms, "repository %q is neither a git URL nor an absolute path", repo)
}

func local(path string) (Address, error) {
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	switch {
	case os.IsNotExist(err):
		return Address{}, refuse("check the path", "no repository at %q", path)
	case err != nil:
		return Address{}, refuse("make the path readable for the user who runs kick", "look at the repository: %v", err)
	case !info.IsDir():
		return Address{}, refuse("give the directory of a repository", "repository %q is not a directory", path)
	}
	return Address{URL: path, Protocol: "file"}, nil
}

func parseURL(scheme, rest string) (Address, error) {
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
	}
	user, host, hasUser := strings.Cut(authority, "@")
	if hasUser && (scheme != "ssh" || strings.ContainsAny(user, ":%") || strings.Contains(host, "@")) {
		return Address{}, refuse("give it without; credentials are configured apart from it", "the repository's URL holds a user name or password")
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil { // the error repeats the URL
		return Address{}, refuse("check its spelling", "the repository's URL cannot be parsed")
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return Address{}, refuse("give the URL without them", "the repository's URL holds a query or a fragment")
	}
	if scheme == "file" {
		if u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) || strings.ContainsRune(u.Path, 0) {
			return Address{}, refuse("write file:///absolute/path", "the file URL names another host or no absolute path")
		}
		return local(u.Path)
	}
	defaultPort, known := map[string]string{"https": "443", "http": "80", "ssh": "22"}[scheme]
	if !known {
		return Address{}, refuse("use https, ssh, file, or http to this machine", "the repository's URL has the scheme %q, which kick does not use", scheme)
	}
	name, port, path := strings.ToLower(u.Hostname()), u.Port(), strings.Trim(u.Path, "/")
	if !hostName.MatchString(name) && !isAddr(name) || strings.HasPrefix(user, "-") || path == "" {
		return Address{}, refuse("write "+scheme+"://host/owner/name", "the repository's URL has no valid host or no path")
	}
	if _, err := strconv.ParseUint(port, 10, 16); port != "" && err != nil {
		return Address{}, refuse("check its spelling", "the repository's URL has no valid port")
	}
	if scheme == "http" && !onLoopback(name) {
		return Address{}, refuse("use https", "the repository's URL uses http to %q, which others could read and alter on the way", name)
	}
	switch {
	case port != "" && port != defaultPort:
		u.Host = net.JoinHostPort(name, port)
	case strings.Contains(name, ":"):
		u.Host = "[" + name + "]"
	default:
		u.Host = name
	}
	u.Path = "/" + path
	if u.RawPath != "" {
		u.RawPath = "/" + strings.Trim(u.RawPath, "/")
	}
	a := Address{URL: u.String(), Protocol: scheme, Host: u.Host, Path: path}
	if len(a.URL) > maxLength {
		return Address{}, refuse("check its spelling", "the repository's URL is longer than %d bytes once its characters are escaped", maxLength)
	}
	return a, nil
}

func isAddr(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Zone() == ""
}

func onLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
