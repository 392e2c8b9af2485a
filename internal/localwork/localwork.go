// Package localwork makes work for the push broker of what a person or a CI
// job has at hand: a bundle, or a range of commits of a repository of theirs.
//
// The repository is the caller's own and trusted like their shell; all the
// same, nothing of its configuration has a say. Names are resolved there, and
// then git runs in a directory of kick's own that borrows its objects.
package localwork

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kickhq/kick/internal/checkout"
	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/pushbroker"
)

// Source is the caller's own repository, and what of it is the work.
type Source struct {
	Dir  string // a directory in it
	Work string // path of a bundle, "base..tip", or a commit or branch
	Base string // commit or branch that the work builds on; may be empty where Work says it
}

// InputError is a mistake of the caller, who can mend it.
type InputError struct{ msg string }

func (e *InputError) Error() string { return e.msg }

func inputf(format string, args ...any) error { return &InputError{fmt.Sprintf(format, args...)} }

// Prepare makes the work ready in dir, an empty directory that is the
// caller's to remove: Bundle, Mirror, BaseOID, Repo and the Destination's Base
// are set. It
// returns pushbroker.ErrNothing if there is no new commit, a
// *pushbroker.Refusal for a file that is no bundle, and an *InputError for
// what the caller has to mend.
func Prepare(ctx context.Context, s Source, dir string) (pushbroker.Work, error) {
	r, err := open(ctx, s.Dir)
	if err != nil {
		return pushbroker.Work{}, err
	}
	w := pushbroker.Work{Repo: r.name}
	switch st, serr := os.Stat(s.Work); {
	case serr == nil && st.Mode().IsRegular():
		err = r.bundle(ctx, &w, s)
	case isPath(s.Work) && serr == nil:
		err = inputf("%q is no regular file: name a bundle, or write base..tip", s.Work)
	case isPath(s.Work):
		err = inputf("there is no bundle at %q: mend the path, or write base..tip", s.Work)
	default:
		err = r.revisions(ctx, &w, s, dir)
		var input *InputError
		if serr == nil && errors.As(err, &input) {
			err = inputf("%q is there, and is no regular file: name a bundle, or write base..tip (as a commit: %v)", s.Work, err)
		}
	}
	if err != nil {
		return w, err
	}
	// A mirror as the broker knows it: one ref, which is the base.
	w.Mirror = filepath.Join(dir, "base.git")
	return w, r.borrow(w.Mirror, "refs/heads/base", w.BaseOID)
}

// isPath reports whether work can only be a path: no name of a commit begins
// with a slash, and "../x" is no range.
func isPath(work string) bool {
	return strings.HasPrefix(work, "/") || strings.HasPrefix(work, "./") || strings.HasPrefix(work, "../") || strings.HasSuffix(work, ".bundle") && !strings.Contains(work, "..")
}

// repository is the caller's.
type repository struct {
	git    gitcmd.Git
	common string // git directory that holds the objects, also of a work tree
	name   string // what the policy's scopes name
}

func open(ctx context.Context, dir string) (*repository, error) {
	gitDir, err := checkout.GitDir(ctx, dir)
	if errors.Is(err, checkout.ErrNone) {
		return nil, inputf("%s is in no git repository: change into one that holds the base, or pass --repo DIR", dir)
	}
	if err != nil {
		return nil, &InputError{err.Error()}
	}
	r := &repository{git: gitcmd.Git{Dir: gitDir}, name: gitDir}
	if c, err := checkout.Locate(ctx, dir); err == nil {
		if r.name = c.Origin; r.name == "" {
			r.name = c.Top
		}
	}
	if r.common, err = r.git.Line(ctx, "rev-parse", "--path-format=absolute", "--git-common-dir"); err != nil {
		return nil, err
	}
	format, err := r.git.Line(ctx, "rev-parse", "--show-object-format")
	if err != nil {
		return nil, err
	}
	if format != "sha1" {
		return nil, inputf("%s has %s ids: kick takes repositories with SHA-1 ids alone", dir, format)
	}
	shallow, err := r.git.Line(ctx, "rev-parse", "--is-shallow-repository")
	if err != nil {
		return nil, err
	}
	if shallow != "false" {
		return nil, inputf("the history of %s is cut off (a shallow clone), so what is new cannot be told: run git fetch --unshallow, or have the CI check out all of it (fetch-depth: 0)", dir)
	}
	// Exit code 1 says that none is set.
	if partial, err := r.git.Line(ctx, "config", "--get-regexp", `^(extensions\.partialclone|remote\..*\.promisor)$`); err == nil && partial != "" {
		return nil, inputf("%s is a partial clone, and what it lacks would have to be fetched: clone it without --filter", dir)
	}
	return r, nil
}

// borrow makes a bare repository with the objects of r and one ref.
func (r *repository) borrow(dir, ref, id string) error {
	if err := pushbroker.Borrow(dir, r.common); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, ref), []byte(id+"\n"), 0o600)
}

// commit returns the id of the commit that name names.
func (r *repository) commit(ctx context.Context, name string) (string, error) {
	if strings.HasPrefix(name, "-") {
		return "", inputf("%q is an option, not a commit", name)
	}
	id, err := r.git.Line(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", name+"^{commit}")
	if err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", inputf("%q is neither a file nor a commit or branch of this repository: fetch it, or mend the name", name)
	}
	return id, nil
}

// into returns the branch that work on name would go into: the one that name
// is, here or at origin, or else origin's default branch, or else main.
func (r *repository) into(ctx context.Context, name string) string {
	for _, name := range []string{name, "origin/HEAD"} {
		if name == "" {
			continue
		}
		full, err := r.git.Line(ctx, "rev-parse", "--symbolic-full-name", "--verify", "--quiet", "--end-of-options", name)
		if err != nil {
			continue
		}
		for _, prefix := range []string{"refs/heads/", "refs/remotes/origin/"} {
			if short, ok := strings.CutPrefix(full, prefix); ok && short != "HEAD" {
				return short
			}
		}
	}
	return "main"
}

// bundle fills in w for a bundle. It starts from one commit that the bundle
// names, which Base must reach if it is given.
func (r *repository) bundle(ctx context.Context, w *pushbroker.Work, s Source) error {
	head, err := pushbroker.ReadBundleHeader(s.Work)
	if err != nil {
		return err
	}
	if w.Bundle, err = filepath.Abs(s.Work); err != nil {
		return err
	}
	w.Destination.Base = r.into(ctx, s.Base)
	base := ""
	if s.Base != "" {
		if base, err = r.commit(ctx, s.Base); err != nil {
			return err
		}
	}
	if len(head.Prerequisites) != 1 {
		if base == "" {
			return inputf("the bundle names %d commits that it builds on: pass --base with the one to compare with", len(head.Prerequisites))
		}
		w.BaseOID = base
		return nil
	}
	w.BaseOID = head.Prerequisites[0]
	if _, err := r.git.Line(ctx, "cat-file", "-e", w.BaseOID+"^{commit}"); err != nil {
		return inputf("the bundle builds on commit %s, which this repository does not hold: fetch it, or pass --repo with one that does", w.BaseOID)
	}
	if base == "" || base == w.BaseOID {
		return nil
	}
	if _, err := r.git.Line(ctx, "merge-base", "--is-ancestor", w.BaseOID, base); err != nil {
		return inputf("the bundle builds on commit %s, which is not in the history of %s: pass the branch that it was made for as --base", w.BaseOID, s.Base)
	}
	return nil
}

// revisions fills in w for commits of the repository, and makes their bundle.
func (r *repository) revisions(ctx context.Context, w *pushbroker.Work, s Source, dir string) error {
	baseName, tipName, isRange := strings.Cut(s.Work, "..")
	switch {
	case strings.Contains(s.Work, "..."):
		return inputf("%q has three dots: write base..tip, with two", s.Work)
	case isRange && s.Base != "":
		return inputf("%q names its base already: leave out --base", s.Work)
	case !isRange:
		baseName, tipName = s.Base, s.Work
		if baseName == "" {
			baseName = "origin/HEAD"
			if _, err := r.commit(ctx, baseName); err != nil {
				if _, err := r.commit(ctx, tipName); err != nil {
					return err
				}
				return inputf("what does %q build on? pass --base BRANCH, or write BRANCH..%s", s.Work, s.Work)
			}
		}
	}
	if baseName == "" {
		baseName = "HEAD"
	}
	if tipName == "" {
		tipName = "HEAD"
	}
	base, err := r.commit(ctx, baseName)
	if err != nil {
		return err
	}
	tip, err := r.commit(ctx, tipName)
	if err != nil {
		return err
	}
	w.Destination.Base = r.into(ctx, baseName)
	source := filepath.Join(dir, "source.git")
	if err := r.borrow(source, "refs/heads/work", tip); err != nil {
		return err
	}
	g := gitcmd.Git{Dir: source}
	// A base that went on since is no part of the work: a pull request would
	// show what came after the point where the two parted.
	if w.BaseOID, err = g.Line(ctx, "merge-base", base, tip); err != nil {
		var gerr *gitcmd.Error
		if errors.As(err, &gerr) && gerr.ExitCode == 1 && gerr.Stderr == "" {
			return inputf("%s and %s have no commit in common", baseName, tipName)
		}
		return err
	}
	if w.BaseOID == tip {
		return pushbroker.ErrNothing
	}
	w.Bundle = filepath.Join(dir, "work.bundle")
	return g.Run(ctx, nil, nil, "bundle", "create", "--quiet", "--version=2", w.Bundle, "^"+w.BaseOID, "refs/heads/work")
}
