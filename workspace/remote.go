package workspace

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/repoaddr"
	"github.com/kickhq/kick/internal/spelling"
)

// session is one Fetch's talk with one remote.
type session struct {
	url   string // what git is given
	scope string // see scopeOf
	git   gitcmd.Remote
}

func newSession(a repoaddr.Address) *session {
	s := &session{url: a.URL, scope: scopeOf(a), git: gitcmd.Remote{Protocol: a.Protocol, Origin: scopeOf(a)}}
	if a.Protocol == "file" {
		s.git.Path = a.URL
	}
	return s
}

func open(ctx context.Context, src Source) (*session, error) {
	a, err := parseRepo(src.Repo)
	if err != nil {
		return nil, err
	}
	s := newSession(a)
	if s.scope == "" || src.Credential == nil {
		return s, nil
	}
	s.git.User, s.git.Password, err = src.Credential(ctx)
	if err != nil {
		return nil, fmt.Errorf("get credential for %s: %w", s.scope, err)
	}
	if err := gitcmd.CheckCredential(s.git.User, s.git.Password); err != nil {
		return nil, unusable("check how it is configured", "credential for %s: %v", s.scope, err)
	}
	return s, nil
}

// run runs git for the repository in dir, or for none.
func (s *session) run(ctx context.Context, dir string, args ...string) ([]byte, error) {
	out, err := s.git.Output(ctx, dir, 0, args...)
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	return out, nil
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
			return nil, &Error{Kind: ErrRemote, Op: fmt.Sprintf("list refs of %s: unexpected line %q", s.url, line)}
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
		return "", "", unusable("convert it to SHA-1, the format that GitHub uses", "repository %s uses SHA-256 object ids, which kick does not support", s.url)
	case !gitcmd.IsOID(oid):
		return "", "", &Error{Kind: ErrRemote, Op: fmt.Sprintf("list refs of %s: %q is not an object id", s.url, oid)}
	}
	return branch, oid, nil
}

// head returns what HEAD names. Other refs may end in /HEAD, and a HEAD
// without a branch has no "ref:" line.
func (s *session) head(ctx context.Context) (branch, oid string, err error) {
	refs, err := s.list(ctx, "--symref", "--", s.url, "HEAD")
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
	return "", "", unusable("pass --base with one of its branches: "+strings.Join(names, ", "), "HEAD of %s %s, and kick does not guess a base", s.url, why)
}

// branch returns the commit that a branch is at.
func (s *session) branch(ctx context.Context, name string) (string, error) {
	want := "refs/heads/" + name
	refs, err := s.list(ctx, "--heads", "--", s.url, want)
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
	return "", &Error{Kind: ErrNoBranch, Op: fmt.Sprintf("%s has no branch %q", s.url, name), Remedy: "pass one that it has with --base: " + strings.Join(nearest(name, names, 10), ", ")}
}

// branches lists all branches; a repository without any is an error.
func (s *session) branches(ctx context.Context) ([]string, error) {
	refs, err := s.list(ctx, "--heads", "--", s.url)
	if err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		return nil, unusable("push a first commit to it", "repository %s has no branch", s.url)
	}
	names := make([]string, len(refs))
	for i, r := range refs {
		names[i] = printable(strings.TrimPrefix(r.name, "refs/heads/"))
	}
	return names, nil
}

// nearest returns the n names that take the fewest edits to become want.
func nearest(want string, names []string, n int) []string {
	spelling.Sort(strings.TrimPrefix(strings.TrimPrefix(want, "refs/heads/"), "origin/"), names)
	return names[:min(n, len(names))]
}
