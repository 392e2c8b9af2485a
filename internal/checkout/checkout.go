// Package checkout finds out about the git checkout that a person stands in:
// its top, its branch and its origin. It runs the host's git there, as the
// person would; that is for the person's own checkouts, never for a workspace
// that an agent could write.
package checkout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
)

// Checkout is a git checkout of the user's.
type Checkout struct {
	Top    string // absolute path of its top directory
	Branch string // checked-out branch; empty when HEAD is detached
	Origin string // URL or path of the remote "origin"; empty without one
	Dirty  bool   // tracked files have uncommitted changes
	Ahead  string // number of commits that origin did not have when it was last asked; empty for none or unknown
}

var ownedByAnother = regexp.MustCompile(`repository at '([^']*)'`)

// ErrNone is a directory that is in no checkout.
var ErrNone = errors.New("not in a git checkout")

// Find looks at the checkout that dir is in.
func Find(ctx context.Context, dir string) (*Checkout, error) {
	c, err := Locate(ctx, dir)
	if err != nil {
		return nil, err
	}
	out, err := git(ctx, dir, "-c", "core.fsmonitor=false", "status", "--porcelain", "--untracked-files=no")
	c.Dirty = err == nil && out != ""
	if c.Origin != "" && c.Branch != "" {
		n, err := git(ctx, dir, "rev-list", "--count", "refs/remotes/origin/"+c.Branch+"..HEAD")
		if err == nil && n != "0" {
			c.Ahead = n
		}
	}
	return c, nil
}

// Locate is Find without a look at the files, which can run filters of the
// user's: Dirty and Ahead stay empty.
func Locate(ctx context.Context, dir string) (*Checkout, error) {
	top, err := git(ctx, dir, "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, notFound(dir, err)
	}
	if top == "" {
		return nil, ErrNone // a bare repository
	}
	c := &Checkout{Top: top}
	if c.Branch, err = git(ctx, dir, "symbolic-ref", "--quiet", "--short", "HEAD"); err != nil {
		c.Branch = ""
	}
	if c.Origin, err = git(ctx, dir, "config", "--get", "remote.origin.url"); err != nil {
		c.Origin = ""
	}
	if head, _, _ := strings.Cut(c.Origin, "/"); c.Origin != "" && !strings.Contains(head, ":") && !filepath.IsAbs(c.Origin) {
		c.Origin = filepath.Join(top, c.Origin) // a relative path is relative to the checkout
	}
	return c, nil
}

// GitDir returns the git directory of the repository that dir is in, which may
// be a bare one, as an absolute path.
func GitDir(ctx context.Context, dir string) (string, error) {
	gitDir, err := git(ctx, dir, "rev-parse", "--absolute-git-dir")
	if err != nil {
		return "", notFound(dir, err)
	}
	return gitDir, nil
}

// notFound says why git found no repository in dir.
func notFound(dir string, err error) error {
	if errors.Is(err, gitcmd.ErrMissing) {
		return err
	}
	if !strings.Contains(err.Error(), "dubious ownership") {
		return ErrNone
	}
	where := dir
	if m := ownedByAnother.FindStringSubmatch(err.Error()); m != nil {
		where = m[1]
	}
	return fmt.Errorf("%s belongs to another user, so git refuses it: run kick as its owner or, if you trust its owner, run: git config --global --add safe.directory '%s'", where, where)
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	path, err := gitcmd.Path()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"-C", dir}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "GIT_OPTIONAL_LOCKS=0")
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}
