package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/gitcmd"
)

func TestFetchHoldsTheBranchAlone(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	base := git(t, repo, "rev-parse", "main")
	git(t, repo, "tag", "-a", "-m", "v1", "v1")
	git(t, repo, "checkout", "-q", "-b", "other")
	private := commit(t, repo, "private", "not for others\n")
	git(t, repo, "update-ref", "refs/pull/1/head", private)
	git(t, repo, "update-ref", "refs/heads/x/refs/heads/main", private) // what a tail match would take
	git(t, repo, "checkout", "-q", "main")

	b := fetch(t, newCache(t), Source{Repo: repo, Base: "main"})
	if b.OID != base || b.Branch != "main" || b.Repo != repo || len(b.Notes) != 0 {
		t.Errorf("got %+v", b)
	}
	if got := git(t, b.Mirror, "for-each-ref"); got != base+" commit\trefs/heads/main" {
		t.Errorf("refs of the mirror: %s", got)
	}
	if got, want := git(t, b.Mirror, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"), git(t, repo, "rev-list", "--objects", "--no-object-names", "main"); sorted(got) != sorted(want) {
		t.Errorf("objects of the mirror:\n%s\nwant\n%s", got, want)
	}
	git(t, b.Mirror, "fsck", "--strict")
}

func sorted(lines string) string {
	l := strings.Fields(lines)
	slices.Sort(l)
	return strings.Join(l, "\n")
}

func TestFetchFollowsTheBranch(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	src := Source{Repo: repo, Base: "main"}
	first := fetch(t, c, src)
	if again := fetch(t, c, src); again.Mirror != first.Mirror || again.OID != first.OID {
		t.Errorf("unchanged branch: %+v after %+v", again, first)
	}
	tip := commit(t, repo, "a", "a")
	second := fetch(t, c, src)
	if second.Mirror != first.Mirror || second.OID != tip {
		t.Errorf("forwarded branch: %+v after %+v", second, first)
	}
	if first.OID == tip {
		t.Error("a pinned base moved")
	}
	if n := len(packs(t, second)); n != 2 {
		t.Errorf("%d packs after an incremental fetch, want 2", n)
	}
	git(t, second.Mirror, "fsck", "--strict")
}

func packs(t *testing.T, b *Base) []string {
	t.Helper()
	p, err := filepath.Glob(filepath.Join(b.Objects(), "pack", "*.pack"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A rewritten branch may have been purged of something: the new generation
// must not hold it, and a kick that runs must not lose it.
func TestFetchRewrittenBranch(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	src := Source{Repo: repo, Base: "main"}
	purged := commit(t, repo, "secret", "purge me\n")
	old, err := c.Fetch(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	git(t, repo, "reset", "-q", "--hard", "HEAD~1")
	tip := commit(t, repo, "b", "b")
	now := fetch(t, c, src)
	if now.Mirror == old.Mirror || now.OID != tip {
		t.Fatalf("%+v after %+v", now, old)
	}
	if out, err := tryGit(now.Mirror, nil, "cat-file", "-e", purged); err == nil {
		t.Errorf("new generation holds the purged commit %s", out)
	}
	git(t, now.Mirror, "fsck", "--strict")
	git(t, old.Mirror, "cat-file", "-e", purged)

	// A prepared workspace keeps it beyond the pin, and then it goes.
	ws := filepath.Join(t.TempDir(), "ws")
	if err := Prepare(t.Context(), ws, old, task()); err != nil {
		t.Fatal(err)
	}
	if err := old.Release(); err != nil {
		t.Fatal(err)
	}
	commit(t, repo, "c", "c")
	fetch(t, c, src)
	git(t, old.Mirror, "cat-file", "-e", purged)
	if err := Remove(ws); err != nil {
		t.Fatal(err)
	}
	commit(t, repo, "d", "d")
	fetch(t, c, src)
	if _, err := os.Stat(old.Mirror); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("superseded generation that nobody uses is still there: %v", err)
	}
}

// A branch that was only taken back is rewritten too: what it had before may
// have been taken back for a reason.
func TestFetchBranchTakenBack(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	src := Source{Repo: repo, Base: "main"}
	dropped := commit(t, repo, "a", "a")
	before := fetch(t, c, src)
	git(t, repo, "reset", "-q", "--hard", "HEAD~1")
	after := fetch(t, c, src)
	if after.Mirror == before.Mirror || after.OID == dropped {
		t.Errorf("%+v after %+v", after, before)
	}
	if out, err := tryGit(after.Mirror, nil, "cat-file", "-e", dropped); err == nil {
		t.Errorf("new generation holds the dropped commit %s", out)
	}
}

func TestFetchConsolidatesPacks(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	for i := range maxPacks {
		if err := os.WriteFile(filepath.Join(repo, fmt.Sprint("f", i)), []byte{byte(i)}, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, repo, "last", "last")
	git(t, repo, "add", ".")
	git(t, repo, "commit", "-qm", "files")
	src := Source{Repo: repo, Base: "main"}
	first := fetch(t, c, src)
	// As after many fetches: one pack more for each file.
	for i := range maxPacks - 1 {
		pack := exec.Command("git", "--git-dir="+first.Mirror, "pack-objects", "-q", first.Objects()+"/pack/pack")
		pack.Stdin = strings.NewReader(git(t, repo, "rev-parse", fmt.Sprintf("main:f%d", i)) + "\n")
		if out, err := pack.CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	g, err := load(first.Mirror)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.seal(); err != nil {
		t.Fatal(err)
	}
	if again := fetch(t, c, src); again.Mirror != first.Mirror || len(packs(t, again)) != maxPacks {
		t.Fatalf("%d packs in %s, want %d in %s", len(packs(t, again)), again.Mirror, maxPacks, first.Mirror)
	}
	commit(t, repo, "one", "more")
	last := fetch(t, c, src)
	if last.Mirror == first.Mirror || len(packs(t, last)) != 1 {
		t.Errorf("%s with %d packs after %s", last.Mirror, len(packs(t, last)), first.Mirror)
	}
	git(t, last.Mirror, "fsck", "--strict")
}

// What happens in the source later does not reach the mirror, nor the other
// way round, and sources that borrow themselves work.
func TestMirrorSharesNothingWithTheSource(t *testing.T) {
	t.Parallel()
	origin := newRepo(t)
	repo := filepath.Join(t.TempDir(), "borrower")
	git(t, "/", "clone", "-q", "--shared", origin, repo)
	git(t, repo, "repack", "-adq")
	b := fetch(t, newCache(t), Source{Repo: repo, Base: "main"})
	inodes := map[uint64]bool{}
	for _, dir := range []string{origin, repo} {
		walk(t, dir, func(path string, info fs.FileInfo) { inodes[info.Sys().(*syscall.Stat_t).Ino] = true })
	}
	walk(t, b.Mirror, func(path string, info fs.FileInfo) {
		if inodes[info.Sys().(*syscall.Stat_t).Ino] {
			t.Errorf("%s is a hard link to the source", path)
		}
	})
	if err := errors.Join(os.RemoveAll(origin), os.RemoveAll(repo)); err != nil {
		t.Fatal(err)
	}
	git(t, b.Mirror, "fsck", "--strict")
}

func walk(t *testing.T, dir string, visit func(path string, info fs.FileInfo)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() {
			visit(path, info)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCacheDirIsPrivate(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, dir, says string }{
		{"open to others", open, "chmod 700"},
		{"a link", link, "not a directory"},
		{"relative", "mirrors", "absolute"},
	} {
		_, err := Cache{Dir: c.dir}.Fetch(t.Context(), Source{Repo: repo, Base: "main"})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// The sandbox's uid reads objects through a mount, whatever kick's umask is.
func TestMirrorIsReadableInside(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	repo := newRepo(t)
	f := fetcher{Cache: c.Dir, Repo: repo, Base: "main", Umask: 0o077}
	f.run(t)
	commit(t, repo, "a", "a")
	got := f.run(t)[0]
	if got.Error != "" {
		t.Fatal(got.Error)
	}
	if info, err := os.Stat(c.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("cache directory: %v %v", info.Mode(), err)
	}
	objects := 0
	err := filepath.WalkDir(filepath.Join(got.Mirror, "objects"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o444)
		if d.IsDir() {
			want = 0o555
		} else {
			objects++
		}
		if info.Mode().Perm()&want != want || info.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil || objects < 4 {
		t.Errorf("%d files, %v", objects, err)
	}
}

func TestFetchWithDiskFull(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	noise := make([]byte, 4<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	commit(t, repo, "noise", string(noise))
	cmd := inNamespaces(fetcher{Cache: t.TempDir(), Repo: repo, Base: "main", Tmpfs: "1m"}.command(t))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("in a user namespace: %v", err)
	}
	got := parseFetched(t, out)[0]
	if !got.Host || !strings.Contains(got.Error, "No space left") || !strings.Contains(got.Error, "free disk space") {
		t.Errorf("got %+v", got)
	}
}

func TestFetchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	b := fetch(t, c, Source{Repo: repo, Base: "main"})
	l, err := lock(t.Context(), filepath.Join(filepath.Dir(b.Mirror), "lock"), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Fetch(ctx, Source{Repo: repo, Base: "main"})
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	fetch(t, c, Source{Repo: repo, Base: "main"})
}

// An up-to-date mirror costs one ls-remote: no other process, and its time.
func TestWarmFetchRunsOneCommand(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	fetch(t, c, Source{Repo: repo, Base: "main"})
	real, err := gitcmd.Path()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := "#!/bin/sh\nfor a; do case $a in -c|--git-dir*|*=*) ;; *) echo \"$a\" >>" + bin + "/log; break;; esac; done\nexec " + real + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "git"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"main", ""} {
		cmd := fetcher{Cache: c.Dir, Repo: repo, Base: base}.command(t)
		cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := cmd.Output()
		if err != nil || parseFetched(t, out)[0].Error != "" {
			t.Fatalf("%v %s", err, out)
		}
	}
	// The fetcher's own check is a rev-list.
	log, err := os.ReadFile(bin + "/log")
	if got := strings.Join(strings.Fields(string(log)), " "); err != nil || got != "ls-remote rev-list ls-remote rev-list" {
		t.Errorf("ran %q, %v", got, err)
	}
}

// Compare the two: fetch is to take at most twice the time of ls-remote.
func BenchmarkWarmFetch(b *testing.B) {
	repo, c := newRepo(b), newCache(b)
	src := Source{Repo: repo, Base: "main"}
	fetch(b, c, src)
	b.Run("ls-remote", func(b *testing.B) {
		for b.Loop() {
			git(b, "/", "ls-remote", repo, "refs/heads/main")
		}
	})
	b.Run("fetch", func(b *testing.B) {
		for b.Loop() {
			base, err := c.Fetch(b.Context(), src)
			if err != nil {
				b.Fatal(err)
			}
			if err := base.Release(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
