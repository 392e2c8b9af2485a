package workspace

import (
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kickhq/kick/internal/lazyregexp"

	"github.com/kickhq/kick/internal/gitcmd"
)

// remote is a repository that Source.Repo names.
type remote struct {
	arg      string // what git is given
	key      string // the same for all spellings of one repository, as far as that is certain
	protocol string // the one transport that it needs, for GIT_ALLOW_PROTOCOL
	scope    string // "https://host[:port]" that a credential is bound to; empty: none can be used
	path     string // the directory, if it is a local one
}

// scpLike is user@host:path. A second "@" is refused: in user:password@host:path
// the password would be taken for a path.
var scpLike = lazyregexp.New(`^(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):[^:@-][^@]*$`)

// hostName leaves out what git or curl might read in another way than we do; an
// international name is written in its xn-- form.
var hostName = lazyregexp.New(`^[a-z0-9][a-z0-9._-]*$`)

// parseRepo reads Source.Repo. No error of it repeats what may be a credential.
func parseRepo(repo string) (remote, error) {
	const forms = "give an https:// or ssh:// URL, user@host:path, or the absolute path of a repository"
	scheme, rest, isURL := strings.Cut(repo, "://")
	switch {
	case repo == "":
		return remote{}, unusable(forms, "no repository given")
	case strings.ContainsFunc(repo, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return remote{}, unusable(forms, "repository name holds control characters")
	case filepath.IsAbs(repo):
		return parsePath(repo)
	case isURL:
		return parseURL(strings.ToLower(scheme), rest)
	case scpLike.MatchString(repo):
		return remote{arg: repo, key: repo, protocol: "ssh"}, nil
	case strings.Contains(repo, "@"): // may be user:password@host
		return remote{}, unusable(forms, "repository is neither a git URL nor an absolute path")
	}
	return remote{}, unusable(forms, "repository %q is neither a git URL nor an absolute path", repo)
}

func parsePath(path string) (remote, error) {
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	switch {
	case os.IsNotExist(err):
		return remote{}, unusable("check the path", "no repository at %q", path)
	case err != nil:
		return remote{}, &Error{Kind: ErrSource, Op: "look at repository", Err: err, Remedy: "make the path readable for the user who runs kick"}
	case !info.IsDir():
		return remote{}, unusable("give the directory of a repository", "repository %q is not a directory", path)
	}
	return remote{arg: path, key: path, protocol: "file", path: path}, nil
}

func parseURL(scheme, rest string) (remote, error) {
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
	}
	user, host, hasUser := strings.Cut(authority, "@")
	if hasUser && (scheme != "ssh" || strings.Contains(user, ":") || strings.Contains(host, "@")) {
		return remote{}, unusable("give the URL without it; credentials are configured apart from the URL", "repository URL holds a user name or password")
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil { // the error repeats the URL
		return remote{}, unusable("check its spelling", "repository URL cannot be parsed")
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return remote{}, unusable("give the URL without them", "repository URL holds a query or a fragment")
	}
	if scheme == "file" {
		if u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) || strings.ContainsRune(u.Path, 0) {
			return remote{}, unusable("write file:///absolute/path", "file URL names another host or no absolute path")
		}
		return parsePath(u.Path)
	}
	defaultPort, known := map[string]string{"https": "443", "http": "80", "ssh": "22"}[scheme]
	if !known {
		return remote{}, unusable("use https, ssh, file, or http to this machine", "repository URL has the scheme %q, which kick does not use", scheme)
	}
	name, port := strings.ToLower(u.Hostname()), u.Port()
	if !hostName.MatchString(name) && !isAddr(name) || strings.HasPrefix(user, "-") || strings.Trim(u.Path, "/") == "" {
		return remote{}, unusable("write "+scheme+"://host/owner/name", "repository URL has no valid host or no path")
	}
	if _, err := strconv.ParseUint(port, 10, 16); port != "" && err != nil {
		return remote{}, unusable("check its spelling", "repository URL has no valid port")
	}
	if scheme == "http" && !loopback(name) {
		return remote{}, unusable("use https", "repository URL uses http to %q, which others could read and alter on the way", name)
	}
	if port == defaultPort {
		port = ""
	}
	u.Host = name
	if port != "" {
		u.Host = net.JoinHostPort(name, port)
	} else if strings.Contains(name, ":") {
		u.Host = "[" + name + "]"
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	r := remote{arg: u.String(), protocol: scheme}
	r.key = r.arg
	if scheme != "ssh" {
		r.scope = scheme + "://" + u.Host
	}
	return r, nil
}

func isAddr(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Zone() == ""
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// checkBranch holds a name to git's rules for branch names.
func checkBranch(name string) error {
	if fault := gitcmd.BranchNameFault(name); fault != "" {
		return unusable("give the branch's name as git branch shows it", "base branch %.200q %s", name, fault)
	}
	return nil
}
