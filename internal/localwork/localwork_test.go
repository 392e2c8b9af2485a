package localwork

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/pushbroker"
)

const seedScript = `
git init -q -b main r; cd r; git config user.name a; git config user.email a@example.com
echo 1 > a; git add a; git commit -qm one; echo 2 > a; git commit -qam two
git checkout -qb work; echo x > x; git add x; git commit -qm x
git checkout -q main; echo 3 > a; git commit -qam three
git checkout -q --orphan other; git commit -qm other; git checkout -q main
git bundle create -q ../work.bundle main~1..work; git bundle create -q ../whole.bundle work
printf 'no bundle\n' > ../text
`

// seed makes a repository r: main has gone on since the branch work left it.
func seed(t *testing.T) (dir string, sh func(script string) string) {
	t.Helper()
	dir = t.TempDir()
	sh = func(script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-euc", script)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	sh(seedScript)
	return dir, sh
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	dir, sh := seed(t)
	sh(`cd r; git worktree add -q ../tree work; git clone -q --bare . ../bare.git; git remote add origin https://github.com/acme/r
		git update-ref refs/remotes/origin/trunk main; git symbolic-ref refs/remotes/origin/HEAD refs/remotes/origin/trunk`)
	want := sh("cd r; git rev-parse main~1")
	for _, tc := range []struct {
		name   string
		source Source
		into   string
		repo   string
	}{
		{"range", Source{Dir: "r", Work: "main..work"}, "main", "https://github.com/acme/r"},
		{"branch and base", Source{Dir: "r", Work: "work", Base: "main"}, "main", "https://github.com/acme/r"},
		{"default branch of origin", Source{Dir: "r", Work: "work"}, "trunk", "https://github.com/acme/r"},
		{"up to HEAD of a work tree", Source{Dir: "tree", Work: "main.."}, "main", "https://github.com/acme/r"},
		{"below the top", Source{Dir: "r/.git/refs", Work: "work~1..work^0"}, "trunk", ""},
		{"bare repository", Source{Dir: "bare.git", Work: "main~1..work"}, "main", filepath.Join(dir, "bare.git")},
		{"bundle", Source{Dir: "r", Work: "work.bundle"}, "trunk", "https://github.com/acme/r"},
		{"bundle and base that went on", Source{Dir: "r", Work: "work.bundle", Base: "main"}, "main", "https://github.com/acme/r"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := tc.source
			s.Dir = filepath.Join(dir, s.Dir)
			if strings.HasSuffix(s.Work, ".bundle") {
				s.Work = filepath.Join(dir, s.Work)
			}
			tmp := t.TempDir()
			w, err := Prepare(t.Context(), s, tmp)
			if err != nil {
				t.Fatal(err)
			}
			if w.BaseOID != want || w.Destination.Base != tc.into || tc.repo != "" && w.Repo != tc.repo {
				t.Errorf("work %+v, base %s", w, want)
			}
			q, err := pushbroker.Ingest(t.Context(), filepath.Join(tmp, "q"), w, pushbroker.IngestLimits{})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if len(q.Commits) != 1 || q.Tip != q.Commits[0] {
				t.Errorf("new commits %v", q.Commits)
			}
		})
	}
}

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	dir, sh := seed(t)
	sh(`git clone -q --depth 1 file://$PWD/r shallow; git -C r config uploadpack.allowFilter true; git clone -q --filter=blob:none --bare file://$PWD/r partial; git init -q empty; git init -q --object-format=sha256 -b main big; cd big; git config user.name a; git config user.email a@x; git commit -q --allow-empty -m a; git commit -q --allow-empty -m b`)
	for _, tc := range []struct {
		name   string
		source Source
		want   string
	}{
		{"no repository", Source{Dir: ".", Work: "a..b"}, "no git repository"},
		{"no such directory", Source{Dir: "nowhere", Work: "a..b"}, "no git repository"},
		{"unknown base", Source{Dir: "r", Work: "nope..work"}, `"nope" is neither`},
		{"unknown tip", Source{Dir: "r", Work: "main..nope"}, `"nope" is neither`},
		{"option", Source{Dir: "r", Work: "main..--all"}, "option"},
		{"three dots", Source{Dir: "r", Work: "main...work"}, "three dots"},
		{"two bases", Source{Dir: "r", Work: "main..work", Base: "main"}, "leave out --base"},
		{"no base", Source{Dir: "r", Work: "work"}, "--base"},
		{"nothing in common", Source{Dir: "r", Work: "main..other"}, "no commit in common"},
		{"shallow clone", Source{Dir: "shallow", Work: "HEAD~1..HEAD"}, "fetch-depth: 0"},
		{"partial clone", Source{Dir: "partial", Work: "main..work"}, "without --filter"},
		{"SHA-256 ids", Source{Dir: "big", Work: "HEAD~1..HEAD"}, "SHA-1 ids alone"},
		{"bundle that is not there", Source{Dir: "r", Work: "../nope.bundle"}, `no bundle at`},
		{"path that is not there", Source{Dir: "r", Work: "../nope"}, `no bundle at "../nope"`},
		{"directory", Source{Dir: "r", Work: "../"}, `"../" is no regular file`},
		{"device", Source{Dir: "r", Work: "/dev/zero"}, `"/dev/zero" is no regular file`},
		{"bundle of a whole history", Source{Dir: "r", Work: "whole.bundle"}, "--base"},
		{"bundle on an unknown commit", Source{Dir: "empty", Work: "work.bundle"}, "does not hold"},
		{"bundle made for another branch", Source{Dir: "r", Work: "work.bundle", Base: "other"}, "not in the history of other"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := tc.source
			s.Dir = filepath.Join(dir, s.Dir)
			if strings.HasSuffix(s.Work, ".bundle") {
				s.Work = filepath.Join(dir, s.Work)
			}
			_, err := Prepare(t.Context(), s, t.TempDir())
			var input *InputError
			if !errors.As(err, &input) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q for the caller to mend", err, tc.want)
			}
		})
	}
	t.Run("nothing new", func(t *testing.T) {
		t.Parallel()
		if _, err := Prepare(t.Context(), Source{Dir: filepath.Join(dir, "r"), Work: "work..main~1"}, t.TempDir()); !errors.Is(err, pushbroker.ErrNothing) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("no bundle", func(t *testing.T) {
		t.Parallel()
		_, err := Prepare(t.Context(), Source{Dir: filepath.Join(dir, "r"), Work: filepath.Join(dir, "text")}, t.TempDir())
		var r *pushbroker.Refusal
		if !errors.As(err, &r) || r.Findings[0].Rule != "bundle-format" {
			t.Errorf("error %v", err)
		}
	})
}

// What the repository's configuration names does not run, and the repository
// stays as it is.
func TestPrepareRunsNothing(t *testing.T) {
	t.Parallel()
	dir, sh := seed(t)
	sh(`cd r; printf '#!/bin/sh\necho ran >> '"$PWD"'/../mark\n' > ../program; chmod +x ../program
		for h in reference-transaction post-index-change post-checkout pre-push; do cp ../program .git/hooks/$h; done
		git config uploadpack.packObjectsHook "$PWD/../program"; git config alias.rev-parse "!$PWD/../program"
		git config filter.x.clean "$PWD/../program"; git config filter.x.smudge "$PWD/../program"; git config core.pager "$PWD/../program"
		echo '* filter=x' > .git/info/attributes; rm -f ../mark; git config core.fsmonitor "$PWD/../program"`)
	listing := `cd r; find .git -type f ! -name index | sort | xargs sha256sum`
	before := sh(listing)
	for _, work := range []string{"main..work", filepath.Join(dir, "work.bundle")} {
		if _, err := Prepare(t.Context(), Source{Dir: filepath.Join(dir, "r"), Work: work}, t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "mark")); !os.IsNotExist(err) {
		t.Error("a program of the repository's configuration ran")
	}
	if after := sh(listing); after != before {
		t.Errorf("the repository has changed:\n%s\n%s", before, after)
	}
}
