package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/gitcmd"
)

// session is one Fetch's talk with one remote.
type session struct {
	remote
	user, password string
	trusted        []string // directories whose owner the user told git to trust
}

// credentialHelper answers git's one question from descriptor 3.
const credentialHelper = `!f() { test "$1" = get && cat <&3; }; f`

// maxCredential is far above any token (GitHub's longest is about 520 bytes)
// and lets a pipe take user name and password at once.
const maxCredential = 8 << 10

func open(ctx context.Context, src Source) (*session, error) {
	r, err := parseRepo(src.Repo)
	if err != nil {
		return nil, err
	}
	s := &session{remote: r}
	if r.scope == "" || src.Credential == nil {
		return s, nil
	}
	s.user, s.password, err = src.Credential(ctx)
	if err != nil {
		return nil, fmt.Errorf("get credential for %s: %w", r.scope, err)
	}
	if strings.ContainsAny(s.user+s.password, "\n\r\x00") || len(s.user)+len(s.password) > maxCredential {
		return nil, unusable("check how it is configured", "credential for %s holds a line break or is longer than 8 KiB", r.scope)
	}
	return s, nil
}

// git returns a runner for the remote; dir is the repository to fetch into, or
// empty.
func (s *session) git(dir string) gitcmd.Git {
	g := gitcmd.Git{Dir: dir, Protocols: s.protocol}
	if dir == "" { // no repository around the working directory has a say
		g.Env = append(g.Env, "GIT_DIR=/nonexistent")
	}
	switch s.protocol {
	case "https":
		// A proxy and a private certificate authority are the host's matter,
		// as for any other program of this user.
		g.Env = append(g.Env, inherited("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO")...)
		fallthrough
	case "http":
		// A remote that sends nothing for two minutes is dead. While it prepares
		// a pack it sends five bytes every five seconds (uploadpack.keepAlive).
		g.Config = append(g.Config, "http.lowSpeedLimit=1", "http.lowSpeedTime=120")
		if s.user != "" || s.password != "" {
			g.Config = append(g.Config, "credential."+s.scope+".helper="+credentialHelper)
		}
	case "ssh":
		g.Env = append(append(g.Env, inherited("SSH_AUTH_SOCK")...), "GIT_SSH_COMMAND=ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15")
	}
	return g
}

func inherited(names ...string) []string {
	var env []string
	for _, n := range names {
		if v, ok := os.LookupEnv(n); ok {
			env = append(env, n+"="+v)
		}
	}
	return env
}

// run runs git, with what it may need on descriptor 3.
func (s *session) run(ctx context.Context, dir string, args ...string) ([]byte, error) {
	out, err := s.runOnce(ctx, dir, args)
	if doubted := dubious(err); s.path != "" && s.trusted == nil && doubted != "" {
		if dirs := []string{s.path, s.path + "/.git", doubted}; userTrusts(ctx, dirs) {
			s.trusted = dirs
			out, err = s.runOnce(ctx, dir, args)
		}
	}
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	return out, nil
}

func (s *session) runOnce(ctx context.Context, dir string, args []string) ([]byte, error) {
	g := s.git(dir)
	var fd3 *os.File
	var err error
	switch {
	case s.trusted != nil:
		fd3, err = trustFile(s.trusted)
		g.Env = append(g.Env, "GIT_CONFIG_GLOBAL=/proc/self/fd/3")
	case s.user != "" || s.password != "":
		fd3, err = filledPipe("username=" + s.user + "\npassword=" + s.password + "\n")
	}
	if err != nil {
		return nil, hostError("make descriptor for git", err)
	}
	if fd3 != nil {
		defer fd3.Close()
		g.ExtraFiles = []*os.File{fd3}
	}
	return g.Output(ctx, nil, args...)
}

// filledPipe returns the read end of a pipe that holds content, which must fit
// into it (64 KiB).
func filledPipe(content string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.WriteString(content)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// trustFile returns a git configuration that trusts dirs. A file it must be:
// git takes safe.directory from no -c of a parent process.
func trustFile(dirs []string) (*os.File, error) {
	fd, err := unix.MemfdCreate("gitconfig", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "gitconfig")
	content := "[safe]\n"
	for _, d := range dirs {
		content += "\tdirectory = " + configValue(d) + "\n"
	}
	if _, err := f.WriteString(content); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// userTrusts reports whether the user's or the system's own git configuration
// names one of dirs, which are one repository, as safe.directory.
func userTrusts(ctx context.Context, dirs []string) bool {
	trusts := false
	for _, scope := range []string{"--system", "--global"} {
		cmd, err := gitcmd.Git{}.Command(ctx, "config", scope, "--null", "--get-all", "safe.directory")
		if err != nil {
			return false
		}
		// Both scopes are read from where git finds them by itself.
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, inherited("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")...)
		out, err := cmd.Output()
		if err != nil {
			continue // nothing is set
		}
		for v := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if v == "" { // forgets what was set before
				trusts = false
			}
			trusts = trusts || v == "*" || slices.ContainsFunc(dirs, func(dir string) bool {
				parent, all := strings.CutSuffix(v, "/*")
				return v == dir || all && strings.HasPrefix(dir, parent+"/")
			})
		}
	}
	return trusts
}

// ref is one line of ls-remote.
type ref struct{ oid, name string }

// list runs ls-remote and returns its refs; symrefs come as "ref: <target>".
func (s *session) list(ctx context.Context, args ...string) ([]ref, error) {
	out, err := s.run(ctx, "", append([]string{"ls-remote"}, args...)...)
	if err != nil {
		return nil, err
	}
	var refs []ref
	for line := range bytes.SplitSeq(bytes.TrimSuffix(out, []byte("\n")), []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		oid, name, ok := strings.Cut(string(line), "\t")
		if !ok {
			return nil, &Error{Kind: ErrRemote, Op: fmt.Sprintf("list refs of %s: unexpected line %q", s.arg, line)}
		}
		refs = append(refs, ref{oid, name})
	}
	return refs, nil
}

// resolve returns the base branch and the commit that it is at.
func (s *session) resolve(ctx context.Context, base string) (branch, oid string, err error) {
	if base == "" {
		branch, oid, err = s.head(ctx)
	} else if err = checkBranch(base); err == nil {
		branch = base
		oid, err = s.branch(ctx, base)
	}
	switch {
	case err != nil:
		return "", "", err
	case len(oid) == 64:
		return "", "", unusable("convert it to SHA-1, the format that GitHub uses", "repository %s uses SHA-256 object ids, which kick does not support", s.arg)
	case !isOID(oid):
		return "", "", &Error{Kind: ErrRemote, Op: fmt.Sprintf("list refs of %s: %q is not an object id", s.arg, oid)}
	}
	return branch, oid, nil
}

// head returns what HEAD names. Other refs may end in /HEAD, and a HEAD
// without a branch has no "ref:" line.
func (s *session) head(ctx context.Context) (branch, oid string, err error) {
	refs, err := s.list(ctx, "--symref", "--", s.arg, "HEAD")
	if err != nil {
		return "", "", err
	}
	for _, r := range refs {
		if target, ok := strings.CutPrefix(r.oid, "ref: "); ok && r.name == "HEAD" {
			branch, _ = strings.CutPrefix(target, "refs/heads/")
			if branch == target {
				branch = ""
			}
		} else if r.name == "HEAD" {
			oid = r.oid
		}
	}
	if branch != "" && oid != "" {
		return branch, oid, checkBranch(branch)
	}
	why := "is detached"
	if oid == "" {
		why = "names no branch that exists"
	}
	names, err := s.branches(ctx)
	if err != nil {
		return "", "", err
	}
	if len(names) > 10 {
		names = append(names[:10], "...")
	}
	return "", "", unusable("pass --base with one of its branches: "+strings.Join(names, ", "), "HEAD of %s %s, and kick does not guess a base", s.arg, why)
}

// branch returns the commit that a branch is at.
func (s *session) branch(ctx context.Context, name string) (string, error) {
	want := "refs/heads/" + name
	refs, err := s.list(ctx, "--heads", "--", s.arg, want)
	if err != nil {
		return "", err
	}
	for _, r := range refs {
		if r.name == want {
			return r.oid, nil
		}
	}
	names, err := s.branches(ctx)
	if err != nil {
		return "", err
	}
	return "", unusable("pass one that it has with --base: "+strings.Join(nearest(name, names, 10), ", "), "%s has no branch %q", s.arg, name)
}

// branches lists all branches; a repository without any is an error.
func (s *session) branches(ctx context.Context) ([]string, error) {
	refs, err := s.list(ctx, "--heads", "--", s.arg)
	if err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		return nil, unusable("push a first commit to it", "repository %s has no branch", s.arg)
	}
	names := make([]string, len(refs))
	for i, r := range refs {
		names[i] = printable(strings.TrimPrefix(r.name, "refs/heads/"))
	}
	return names, nil
}

// nearest returns the n names that take the fewest edits to become want.
func nearest(want string, names []string, n int) []string {
	want = strings.TrimPrefix(strings.TrimPrefix(want, "refs/heads/"), "origin/")
	dist := make(map[string]int, len(names))
	for _, name := range names {
		dist[name] = edits(want, name)
	}
	slices.SortStableFunc(names, func(a, b string) int { return dist[a] - dist[b] })
	return names[:min(n, len(names))]
}

// edits is the Levenshtein distance of two strings in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
