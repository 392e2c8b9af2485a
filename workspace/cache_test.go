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
	"time"

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
	for i := range 30 {
		git(t, repo, "branch", "feature-"+string(rune('a'+i%26))+strings.Repeat("x", i))
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

func TestFetchRebuildsDamagedMirror(t *testing.T) {
	t.Parallel()
	pack := func(t *testing.T, b *Base) string { return packs(t, b)[0] }
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, b *Base) error
	}{
		{"truncated pack", func(t *testing.T, b *Base) error {
			return errors.Join(os.Chmod(pack(t, b), 0o644), os.Truncate(pack(t, b), 100))
		}},
		{"pack that ends in zeros", func(t *testing.T, b *Base) error {
			info, err := os.Stat(pack(t, b))
			return errors.Join(err, os.Chmod(pack(t, b), 0o644), os.Truncate(pack(t, b), info.Size()-30), os.Truncate(pack(t, b), info.Size()))
		}},
		{"missing pack", func(t *testing.T, b *Base) error { return os.Remove(pack(t, b)) }},
		{"missing index", func(t *testing.T, b *Base) error { return os.Remove(strings.TrimSuffix(pack(t, b), "pack") + "idx") }},
		{"missing objects", func(t *testing.T, b *Base) error { return os.RemoveAll(b.Objects()) }},
		{"garbage HEAD", func(t *testing.T, b *Base) error { return os.WriteFile(b.Mirror+"/HEAD", []byte("\x00garbage"), 0o644) }},
		{"HEAD elsewhere", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Mirror+"/HEAD", []byte("ref: refs/heads/x\n"), 0o644)
		}},
		{"missing HEAD", func(t *testing.T, b *Base) error { return os.Remove(b.Mirror + "/HEAD") }},
		{"garbage ref", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Mirror+"/refs/heads/main", []byte("zzz"), 0o644)
		}},
		{"missing ref", func(t *testing.T, b *Base) error { return os.Remove(b.Mirror + "/refs/heads/main") }},
		{"altered config", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Mirror+"/config", []byte("[core]\n\tfsmonitor = touch /tmp/x\n"), 0o644)
		}},
		{"alternates", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Objects()+"/info/alternates", []byte("/x\n"), 0o644)
		}},
		{"shallow", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Mirror+"/shallow", []byte(b.OID+"\n"), 0o644)
		}},
		{"garbage manifest", func(t *testing.T, b *Base) error { return os.WriteFile(b.Mirror+"/kick.json", []byte("{"), 0o600) }},
		{"manifest as a FIFO", func(t *testing.T, b *Base) error {
			return errors.Join(os.Remove(b.Mirror+"/kick.json"), unix.Mkfifo(b.Mirror+"/kick.json", 0o600))
		}},
		{"missing manifest", func(t *testing.T, b *Base) error { return os.Remove(b.Mirror + "/kick.json") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			repo, cache := newRepo(t), newCache(t)
			src := Source{Repo: repo, Base: "main"}
			b, err := cache.Fetch(t.Context(), src)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Release(); err != nil {
				t.Fatal(err)
			}
			if err := c.damage(t, b); err != nil {
				t.Fatal(err)
			}
			again := fetch(t, cache, src)
			if again.Mirror == b.Mirror || again.OID != b.OID {
				t.Errorf("got %+v", again)
			}
			git(t, again.Mirror, "fsck", "--strict")
			if _, err := os.Stat(b.Mirror); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("damaged generation is still there: %v", err)
			}
		})
	}
}

// Damage within a pack is not seen cheaply. It shows when git needs the object,
// here as the base of a delta, and when Verify reads everything.
func TestDamageWithinPack(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 100<<10)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		find func(t *testing.T, c Cache, repo string)
	}{
		{"found by fetch", func(t *testing.T, c Cache, repo string) { commit(t, repo, "noise", string(noise)+"more") }},
		{"found by verify", func(t *testing.T, c Cache, repo string) {
			problems, err := c.Verify(t.Context())
			if err != nil || len(problems) != 1 || !strings.Contains(problems[0], "built anew") {
				t.Errorf("verify: %q, %v", problems, err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			repo, cache := newRepo(t), newCache(t)
			src := Source{Repo: repo, Base: "main"}
			commit(t, repo, "noise", string(noise))
			b := fetch(t, cache, src)
			if problems, err := cache.Verify(t.Context()); err != nil || problems != nil {
				t.Fatalf("verify of a sound mirror: %q, %v", problems, err)
			}
			pack := packs(t, b)[0]
			if err := os.Chmod(pack, 0o644); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(pack, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.WriteAt(make([]byte, 1000), 50<<10)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			if again := fetch(t, cache, src); again.Mirror != b.Mirror {
				t.Error("the damage was seen at once: this test is void")
			}
			c.find(t, cache, repo)
			again := fetch(t, cache, src)
			if again.Mirror == b.Mirror {
				t.Errorf("damaged generation is used on")
			}
			git(t, again.Mirror, "fsck", "--strict")
			if problems, err := cache.Verify(t.Context()); err != nil || problems != nil {
				t.Errorf("verify after the rebuild: %q, %v", problems, err)
			}
		})
	}
}

// A process killed between manifest and ref leaves the ref behind.
func TestFetchFinishesUpdateOfKilledProcess(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	src := Source{Repo: repo, Base: "main"}
	before := fetch(t, c, src)
	commit(t, repo, "a", "a")
	b := fetch(t, c, src)
	if err := os.WriteFile(b.Mirror+"/refs/heads/main", []byte(before.OID+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	again := fetch(t, c, src)
	if again.Mirror != b.Mirror || git(t, again.Mirror, "rev-parse", "main") != b.OID {
		t.Errorf("got %+v", again)
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
