package workspace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFetchDefaultsToHEAD(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	git(t, repo, "checkout", "-q", "-b", "trunk")
	tip := commit(t, repo, "a", "a")
	git(t, repo, "update-ref", "refs/remotes/origin/HEAD", "main") // also ends in HEAD
	b := fetch(t, newCache(t), Source{Repo: repo})
	if b.Branch != "trunk" || b.OID != tip {
		t.Errorf("got %s at %s, want trunk at %s", b.Branch, b.OID, tip)
	}
}

func TestFetchFromEachKindOfSource(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	tip := git(t, repo, "rev-parse", "main")
	top := t.TempDir()
	bare, linked, moved := filepath.Join(top, "bare.git"), filepath.Join(top, "linked"), filepath.Join(top, "with space'")
	git(t, "/", "clone", "-q", "--bare", repo, bare)
	git(t, repo, "worktree", "add", "-q", "-b", "other", linked)
	git(t, "/", "clone", "-q", repo, moved)
	git(t, moved, "pack-refs", "--all")
	for name, src := range map[string]Source{
		"bare":            {Repo: bare},
		"with work tree":  {Repo: repo, Base: "main"},
		"linked worktree": {Repo: linked, Base: "other"},
		"file URL":        {Repo: "file://" + repo, Base: "main"},
		"odd path":        {Repo: moved, Base: "main"},
		"its .git":        {Repo: repo + "/.git", Base: "main"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if b := fetch(t, newCache(t), src); b.OID != tip {
				t.Errorf("got %+v", b)
			}
		})
	}
}

// A stand-in for ssh shows that both forms reach it, with an option that keeps
// it from asking, and that git runs on what it connects to.
func TestFetchOverSSH(t *testing.T) {
	t.Parallel()
	repo, bin := newRepo(t), t.TempDir()
	script := "#!/bin/sh\necho \"$*\" >>" + bin + "/log\nfor last; do :; done\nexec sh -c \"$last\"\n"
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"ssh://git@host.example:2222" + repo, "git@host.example:" + repo} {
		cmd := fetcher{Cache: newCache(t).Dir, Repo: url, Base: "main"}.command(t)
		cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := parseFetched(t, out)[0]; got.Error != "" || got.OID != git(t, repo, "rev-parse", "main") {
			t.Errorf("%s: %+v", url, got)
		}
	}
	log, err := os.ReadFile(bin + "/log")
	if err != nil || strings.Count(string(log), "BatchMode=yes") != 4 || !strings.Contains(string(log), "-p 2222 git@host.example") {
		t.Errorf("ssh was run as %s, %v", log, err)
	}
}

func TestFetchOddBranchNames(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	for _, name := range []string{"feature/x/y", "ümläut-☃", `quo"te'$(x);&|`, "refs/heads/main", "a=b", "#1", strings.Repeat("l", 200)} {
		git(t, repo, "update-ref", "refs/heads/"+name, "main")
		b := fetch(t, c, Source{Repo: repo, Base: name})
		if got := git(t, b.Mirror, "for-each-ref", "--format=%(refname)"); got != "refs/heads/"+name {
			t.Errorf("mirror of %q has %s", name, got)
		}
		again := fetch(t, c, Source{Repo: repo, Base: name})
		if again.Mirror != b.Mirror {
			t.Errorf("%q: second fetch made %s after %s", name, again.Mirror, b.Mirror)
		}
	}
}

func TestFetchRefuses(t *testing.T) {
	t.Parallel()
	bare := func(t *testing.T, args ...string) string {
		dir := filepath.Join(t.TempDir(), "bare")
		git(t, "/", append([]string{"init", "-q", "--bare", "-b", "main"}, append(args, dir)...)...)
		return dir
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T) string
		base string
		says []string
	}{
		{"no repository", func(t *testing.T) string { return t.TempDir() }, "main", []string{"does not appear to be a git repository"}},
		{"empty", func(t *testing.T) string { return bare(t) }, "", []string{"has no branch", "push a first commit"}},
		{"empty, base given", func(t *testing.T) string { return bare(t) }, "main", []string{"has no branch", "push a first commit"}},
		{"unborn HEAD", func(t *testing.T) string {
			repo := newRepo(t)
			git(t, repo, "symbolic-ref", "HEAD", "refs/heads/nope")
			return repo
		}, "", []string{"names no branch that exists", "--base", "main"}},
		{"detached HEAD", func(t *testing.T) string {
			repo := newRepo(t)
			git(t, repo, "checkout", "-q", "--detach")
			return repo
		}, "", []string{"is detached", "--base", "main"}},
		{"HEAD on a ref that is no branch", func(t *testing.T) string {
			repo := newRepo(t)
			git(t, repo, "update-ref", "refs/odd/x", "main")
			git(t, repo, "symbolic-ref", "HEAD", "refs/odd/x")
			return repo
		}, "", []string{"--base"}},
		{"absent base", func(t *testing.T) string {
			repo := newRepo(t)
			for _, n := range []string{"develop", "develop-2", "release/1"} {
				git(t, repo, "branch", n)
			}
			return repo
		}, "devlop", []string{`no branch "devlop"`, "develop, develop-2, main, release/1"}},
		{"base as full ref", newRepoT, "refs/heads/main", []string{"--base: main"}},
		{"option as base", newRepoT, "--output=/tmp/x", []string{"looks like an option"}},
		{"SHA-256", func(t *testing.T) string {
			dir := filepath.Join(t.TempDir(), "r")
			git(t, "/", "init", "-q", "-b", "main", "--object-format=sha256", dir)
			commit(t, dir, "a", "a")
			return dir
		}, "main", []string{"SHA-256", "convert"}},
		{"shallow", func(t *testing.T) string {
			repo := newRepo(t)
			commit(t, repo, "a", "a")
			dir := filepath.Join(t.TempDir(), "shallow")
			git(t, "/", "clone", "-q", "--depth=1", "file://"+repo, dir)
			return dir
		}, "main", []string{"shallow", "--unshallow"}},
		{"partial clone", func(t *testing.T) string {
			repo := newRepo(t)
			git(t, repo, "config", "uploadpack.allowFilter", "true")
			dir := filepath.Join(t.TempDir(), "partial")
			git(t, "/", "clone", "-q", "--no-checkout", "--filter=blob:none", "file://"+repo, dir)
			git(t, dir, "remote", "set-url", "origin", "https://nowhere.invalid/x")
			return dir
		}, "main", []string{"partial clone", "--refetch"}},
		{".hive as a file", func(t *testing.T) string {
			repo := newRepo(t)
			commit(t, repo, ".hive", "x")
			return repo
		}, "main", []string{".hive", "not a directory"}},
		{".hive as a link", func(t *testing.T) string {
			repo := newRepo(t)
			if err := os.Symlink("/etc", filepath.Join(repo, ".hive")); err != nil {
				t.Fatal(err)
			}
			git(t, repo, "add", ".hive")
			git(t, repo, "commit", "-qm", "link")
			return repo
		}, "main", []string{".hive", "not a directory"}},
		{"prompt in the repository", func(t *testing.T) string {
			repo := newRepo(t)
			commit(t, repo, PromptPath, "x")
			return repo
		}, "main", []string{"tracks " + PromptPath}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cache, src := newCache(t), Source{Repo: c.make(t), Base: c.base}
			for range 2 { // from the remote, and where the mirror remembers
				b, err := cache.Fetch(timeout(t, time.Minute), src)
				if err == nil {
					t.Fatalf("no error but %+v", b)
				}
				wantError(t, err, ErrSource, c.says...)
			}
		})
	}
}

func newRepoT(t *testing.T) string { return newRepo(t) }

func TestFetchAtMostTenNearNames(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	for i := range 12 {
		git(t, repo, "branch", "feature-"+string(rune('a'+i))+strings.Repeat("x", i))
	}
	_, err := newCache(t).Fetch(t.Context(), Source{Repo: repo, Base: "feature-a1"})
	wantError(t, err, ErrSource, "feature-a")
	if n := strings.Count(err.Error(), ", "); n != 9 {
		t.Errorf("lists %d names, want 10: %v", n+1, err)
	}
}

func TestFetchNotes(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	commit(t, repo, ".hive/notes.md", "a directory .hive is fine\n")
	commit(t, repo, ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	git(t, repo, "submodule", "--quiet", "add", "file://"+newRepo(t), "sub")
	git(t, repo, "commit", "-qm", "submodule")
	c := newCache(t)
	for range 2 { // from git, and from the manifest
		b := fetch(t, c, Source{Repo: repo, Base: "main"})
		if got := strings.Join(b.Notes, "\n"); !strings.Contains(got, "submodules") || !strings.Contains(got, "LFS") || len(b.Notes) != 2 {
			t.Errorf("notes: %s", got)
		}
	}
	if b := fetch(t, c, Source{Repo: newRepo(t), Base: "main"}); len(b.Notes) != 0 {
		t.Errorf("a plain repository has notes: %s", b.Notes)
	}
}

func TestFetchOfAnotherUsersRepository(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("only root can make another user's repository: run this package's tests as root too")
		}
		t.Skip("only root can make another user's repository")
	}
	repo := newRepo(t)
	err := filepath.WalkDir(repo, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 12345, 12345))
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = newCache(t).Fetch(t.Context(), Source{Repo: repo, Base: "main"})
	wantError(t, err, ErrSource, "dubious ownership", "git config --global --add safe.directory "+repo+"/.git")

	// Having done that, it works.
	home := t.TempDir()
	config := "[safe]\n\tdirectory = " + repo + "/.git\n"
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := fetcher{Cache: newCache(t).Dir, Repo: repo, Base: "main"}.command(t)
	cmd.Env = append(cmd.Env, "HOME="+home)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := parseFetched(t, out)[0]; got.Error != "" || got.OID == "" {
		t.Errorf("with safe.directory: %+v", got)
	}
}
