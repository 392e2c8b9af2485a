package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/internal/frame"
)

func TestCollectUsualWork(t *testing.T) {
	t.Parallel()
	ws, base, oid := newWorkspace(t, nil)
	cfg := frame.Config{WorkDir: ws.dir, BaseOID: oid}

	r := collectIn(t, cfg)
	r.want(workSummary)
	if w := r.work; w.Head != oid || w.Branch != "main" || w.Commits != 0 || w.DirtyCount != 0 {
		t.Errorf("untouched workspace: %+v", w)
	}

	ws.git("checkout", "-q", "-b", "feature")
	ws.write("src/new.txt", "new\n")
	ws.commit("one")
	ws.write("src/a.txt", "changed\n")
	tip := ws.commit("two")
	r = collectIn(t, cfg)
	r.want(workSummary, finalBundle)
	if w := r.work; w.Head != tip || w.Branch != "feature" || w.Commits != 2 || len(w.Unpublished) != 0 {
		t.Errorf("two commits: %+v", w)
	}
	clone, refs := r.fetch(finalBundle, base)
	equal(t, "refs", keys(refs), []string{"HEAD"})
	if refs["HEAD"] != tip {
		t.Errorf("the bundle's HEAD is %s, want %s", refs["HEAD"], tip)
	}
	if got := clone.git("rev-list", "--count", oid+".."+tip); got != "2" {
		t.Errorf("%s commits in the bundle", got)
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "kick-collect-*")); err != nil || slices.ContainsFunc(left, func(p string) bool {
		b, _ := os.ReadFile(filepath.Join(p, "objects/info/alternates"))
		return strings.HasPrefix(string(b), ws.dir+"/")
	}) {
		t.Errorf("temporary directories are left: %v, %v", left, err)
	}
}

func TestCollectUncommitted(t *testing.T) {
	t.Parallel()
	ws, base, oid := newWorkspace(t, func(r repo) {
		r.write("gone.txt", "gone\n")
		r.write("dir/f", "f\n")
		r.write("mode.sh", "#!/bin/sh\n")
		r.write("removed/x/y", "y\n")
		r.write("tofile/y", "y\n")
		r.write("todir", "y\n")
	})
	must(t, os.RemoveAll(filepath.Join(ws.dir, "removed")))
	must(t, os.RemoveAll(filepath.Join(ws.dir, "tofile")))
	must(t, os.RemoveAll(filepath.Join(ws.dir, "todir")))
	ws.write("tofile", "file\n")
	ws.write("todir/y", "dir\n")
	ws.write("src/a.txt", "changed\n")
	ws.write("staged.txt", "staged\n")
	ws.git("add", "staged.txt")
	ws.write("staged.txt", "staged, then changed\n")
	ws.write("new/deep/x.txt", "x\n")
	ws.write("ignored/y.txt", "y\n")
	ws.write("-odd\n\xffname", "odd\n")
	ws.write(".hive/notes.txt", "not work\n")
	must(t, os.Remove(filepath.Join(ws.dir, "gone.txt")))
	must(t, os.Chmod(filepath.Join(ws.dir, "mode.sh"), 0o755))
	must(t, os.Symlink("/etc/passwd", filepath.Join(ws.dir, "link")))
	// A directory that became a link: what the link shows is not the work tree's.
	must(t, os.RemoveAll(filepath.Join(ws.dir, "dir")))
	must(t, os.Symlink("src", filepath.Join(ws.dir, "dir")))
	ws.write("src/f", "another f\n")

	r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	r.want(workSummary, restBundle, dirtyArchive)
	if r.work.DirtyCount != 15 || len(r.work.Dirty) != 15 {
		t.Errorf("dirty paths: %d %q", r.work.DirtyCount, r.work.Dirty)
	}
	names, content := r.tar()
	equal(t, "archive", names, []string{"-odd\n\xffname", "dir", "link", "mode.sh", "new/deep/x.txt", "src/a.txt", "src/f", "staged.txt", "todir/y", "tofile"})
	if content["link"] != "-> /etc/passwd" || content["staged.txt"] != "staged, then changed\n" {
		t.Errorf("content of the archive: %q", content)
	}
	clone, refs := r.fetch(restBundle, base)
	equal(t, "refs", keys(refs), []string{"refs/kick/uncommitted"})
	u := refs["refs/kick/uncommitted"]
	if got := clone.git("rev-parse", u+"^"); got != oid {
		t.Errorf("the parent of the uncommitted changes is %s", got)
	}
	equal(t, "changes", strings.Split(strings.TrimSuffix(clone.git("diff-tree", "-r", "-z", "--name-status", "--no-renames", oid, u), "\x00"), "\x00"), []string{
		"A", "-odd\n\xffname", "A", "dir", "D", "dir/f", "D", "gone.txt", "A", "link", "M", "mode.sh", "A", "new/deep/x.txt",
		"D", "removed/x/y", "M", "src/a.txt", "A", "src/f", "A", "staged.txt", "D", "todir", "A", "todir/y", "A", "tofile", "D", "tofile/y"})
	if got := clone.git("show", u+":staged.txt"); got != "staged, then changed" {
		t.Errorf("staged.txt is %q", got)
	}
	if got := ws.git("status", "--porcelain", "staged.txt"); got != "AM staged.txt" {
		t.Errorf("the workspace's index changed: %q", got)
	}
}

func TestCollectRest(t *testing.T) {
	t.Parallel()
	ws, base, oid := newWorkspace(t, nil)
	ws.write("src/a.txt", "first version\n")
	amended := ws.commit("to be amended")
	ws.write("src/a.txt", "second version\n")
	ws.git("commit", "-q", "-a", "--amend", "-m", "amended")
	head := ws.git("rev-parse", "HEAD")
	ws.git("tag", "light")
	ws.git("tag", "-a", "-m", "note", "annotated", oid)
	ws.git("tag", "-a", "-m", "of a blob", "blobtag", "HEAD:src/a.txt")
	ws.git("branch", "at-base", oid)
	ws.git("checkout", "-q", "-b", "other", oid)
	ws.write("other.txt", "other\n")
	other := ws.commit("other")
	ws.git("update-ref", "refs/kick/uncommitted", "HEAD")
	ws.git("checkout", "-q", "--detach", oid)
	ws.write("detached.txt", "d\n")
	ws.commit("detached one")
	ws.write("detached.txt", "dd\n")
	detached := ws.commit("detached two")
	ws.git("checkout", "-q", "main")
	ws.write("src/b.txt", "stash one\n")
	ws.git("stash")
	ws.write("untracked.txt", "stash two\n")
	ws.git("stash", "-u")
	wt := filepath.Join(t.TempDir(), "wt")
	ws.git("worktree", "add", "-q", "--detach", wt, oid)
	linked := repo{t, wt}
	linked.write("linked.txt", "linked\n")
	inLinked := linked.commit("in a linked work tree")
	ws.write(".git/refs/heads/broken", strings.Repeat("3", 40)+"\n")
	ws.write(".git/refs/heads/garbage", "garbage\n")

	r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	if got := r.kinds(); got != "work.json final.bundle rest.bundle" {
		t.Errorf("artifacts %s", got)
	}
	if w := r.work; w.Head != head || w.Commits != 1 || w.Stashes != 2 {
		t.Errorf("summary %+v", w)
	}
	equal(t, "unpublished", r.work.Unpublished, []string{"refs/heads/other", "refs/kick/uncommitted"})
	problems := strings.Join(r.work.Problems, "\n")
	if len(r.work.Problems) != 2 || !strings.Contains(problems, "refs/heads/broken names "+strings.Repeat("3", 40)) || !strings.Contains(problems, "refs/heads/garbage holds no commit id") {
		t.Errorf("problems %q", r.work.Problems)
	}
	clone, refs := r.fetch(restBundle, base)
	byOID := map[string]bool{}
	for _, o := range refs {
		byOID[o] = true
	}
	var names []string
	for _, n := range keys(refs) {
		if !strings.HasPrefix(n, "refs/kick/reflog/") {
			names = append(names, n)
		}
	}
	equal(t, "refs", names, []string{"refs/heads/other", "refs/kick/other/uncommitted", "refs/kick/stash/0", "refs/kick/stash/1",
		"refs/kick/worktree/0", "refs/tags/annotated", "refs/tags/blobtag", "refs/tags/light"})
	for what, oid := range map[string]string{"amended": amended, "detached": detached, "other": other, "linked work tree": inLinked} {
		if !byOID[oid] {
			t.Errorf("%s commit %s is not in the bundle's refs %v", what, oid, refs)
		}
	}
	if n := len(refs) - len(names); n != 2 {
		t.Errorf("%d commits of the reflog, want the two that nothing else reaches: %v", n, refs)
	}
	if got := clone.git("show", refs["refs/kick/stash/0"]+"^3:untracked.txt"); got != "stash two" {
		t.Errorf("untracked file in the stash: %q", got)
	}
	if got := clone.git("show", refs["refs/kick/stash/1"]+":src/b.txt"); got != "stash one" {
		t.Errorf("older stash: %q", got)
	}
	if got := clone.git("cat-file", "-p", "refs/got/refs/tags/blobtag^{}"); got != "second version" {
		t.Errorf("tagged blob: %q", got)
	}
}

func TestCollectHeads(t *testing.T) {
	t.Parallel()
	model, base, oid := newWorkspace(t, func(r repo) {
		r.commit("older")
		r.write("second", "2")
	})
	for _, tt := range []struct {
		name    string
		make    func(ws repo)
		kinds   string
		commits int
		check   func(t *testing.T, r received, base repo)
	}{
		{"detached", func(ws repo) {
			ws.git("checkout", "-q", "--detach")
			ws.write("x", "x")
			ws.commit("x")
		}, "work.json final.bundle", 1, nil},
		{"behind the base", func(ws repo) {
			ws.git("reset", "-q", "--hard", "HEAD^")
		}, "work.json", 0, nil},
		{"unrelated", func(ws repo) {
			ws.git("checkout", "-q", "--orphan", "new")
			ws.commit("root")
			ws.git("branch", "-q", "-D", "main")
		}, "work.json final.bundle", 1, func(t *testing.T, r received, base repo) {
			clone, refs := r.fetch(finalBundle, base)
			if got := clone.git("rev-list", "--count", refs["HEAD"]); got != "1" {
				t.Errorf("%s commits", got)
			}
		}},
		{"beside the base", func(ws repo) {
			ws.git("reset", "-q", "--hard", "HEAD^")
			ws.write("x", "x")
			ws.commit("x")
		}, "work.json final.bundle", 1, nil},
		{"unborn", func(ws repo) {
			ws.git("checkout", "-q", "--orphan", "new")
		}, "work.json rest.bundle dirty.tar", 0, func(t *testing.T, r received, base repo) {
			if r.work.Branch != "new" || r.work.Head != "" {
				t.Errorf("summary %+v", r.work)
			}
		}},
		{"merge", func(ws repo) {
			ws.git("checkout", "-q", "-b", "side")
			ws.write("s", "s")
			ws.commit("s")
			ws.git("checkout", "-q", "main")
			ws.write("m", "m")
			ws.commit("m")
			ws.git("merge", "-q", "--no-ff", "-m", "merge", "side")
			ws.git("branch", "-q", "-d", "side")
		}, "work.json final.bundle", 3, nil},
		{"conflict in the tree", func(ws repo) {
			ws.git("checkout", "-q", "-b", "side")
			ws.write("README.md", "side\n")
			ws.commit("side")
			ws.git("checkout", "-q", "main")
			ws.write("README.md", "main\n")
			ws.commit("main")
			if out, err := ws.try("merge", "side"); err == nil {
				ws.t.Fatalf("no conflict: %s", out)
			}
		}, "work.json final.bundle rest.bundle dirty.tar", 1, func(t *testing.T, r received, base repo) {
			clone, refs := r.fetch(restBundle, base)
			equal(t, "refs", keys(refs), []string{"refs/heads/side", "refs/kick/uncommitted"})
			if got := clone.git("show", refs["refs/kick/uncommitted"]+":README.md"); !strings.Contains(got, "<<<<<<<") {
				t.Errorf("conflicted file: %q", got)
			}
		}},
		{"split index", func(ws repo) {
			ws.git("update-index", "--split-index")
			ws.write("src/a.txt", "changed\n")
		}, "work.json rest.bundle dirty.tar", 0, nil},
		{"packed and without alternates", func(ws repo) {
			ws.write("x", "x")
			ws.commit("x")
			ws.git("repack", "-a", "-d", "-q")
			ws.git("pack-refs", "--all")
			must(ws.t, os.Remove(filepath.Join(ws.dir, ".git/objects/info/alternates")))
		}, "work.json final.bundle", 1, nil},
		{"index is missing", func(ws repo) {
			must(ws.t, os.Remove(filepath.Join(ws.dir, ".git/index")))
		}, "work.json rest.bundle dirty.tar", 0, func(t *testing.T, r received, base repo) {
			_, refs := r.fetch(restBundle, base)
			if got, want := base.git("rev-parse", "HEAD^{tree}"), base.git("rev-parse", "HEAD^{tree}"); got != want || len(refs) != 1 {
				t.Errorf("refs %v", refs)
			}
		}},
		{"nested repository", func(ws repo) {
			nested := repo{ws.t, filepath.Join(ws.dir, "nested")}
			nested.write("in.txt", "in\n")
			nested.git("init", "-q", "--template=")
			ws.write("beside.txt", "beside\n")
		}, "work.json rest.bundle dirty.tar", 0, func(t *testing.T, r received, base repo) {
			_, content := r.tar()
			if content["nested/in.txt"] != "in\n" || content["nested/.git/HEAD"] == "" || content["beside.txt"] == "" {
				t.Errorf("archive: %q", keys(content))
			}
		}},
		{"submodule with changes", func(ws repo) {
			sub := repo{ws.t, filepath.Join(ws.dir, "sub")}
			sub.write("in.txt", "in\n")
			sub.git("init", "-q", "--template=")
			sub.commit("in the submodule")
			ws.write(".gitmodules", "[submodule \"sub\"]\n\tpath = sub\n\turl = ./sub\n")
			ws.commit("add it")
			sub.write("in.txt", "changed\n")
		}, "work.json final.bundle dirty.tar", 1, func(t *testing.T, r received, base repo) {
			if _, content := r.tar(); content["sub/in.txt"] != "changed\n" {
				t.Errorf("archive: %q", content)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ws := model.copy(t)
			tt.make(ws)
			r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
			r.want(strings.Fields(tt.kinds)...)
			if r.work.Commits != tt.commits {
				t.Errorf("%d commits, want %d", r.work.Commits, tt.commits)
			}
			if tt.commits > 0 {
				if _, refs := r.fetch(finalBundle, base); refs["HEAD"] != ws.git("rev-parse", "HEAD") {
					t.Errorf("refs %v", refs)
				}
			}
			if tt.check != nil {
				tt.check(t, r, base)
			}
		})
	}
}

func TestCollectSHA256(t *testing.T) {
	t.Parallel()
	ws, base, oid := newWorkspace(t, nil, "--object-format=sha256")
	ws.write("x", "x")
	tip := ws.commit("x")
	ws.write("y", "y")
	r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	r.want(workSummary, finalBundle, restBundle, dirtyArchive)
	if _, refs := r.fetch(finalBundle, base); refs["HEAD"] != tip {
		t.Errorf("refs %v", refs)
	}
	r.fetch(restBundle, base)
}

func TestCollectTooManyFiles(t *testing.T) {
	t.Parallel()
	ws, _, oid := newWorkspace(t, nil)
	for f := range 300 {
		ws.write(fmt.Sprintf("many/%d", f), "x")
	}
	var out bytes.Buffer
	c := &collector{cfg: frame.Config{WorkDir: ws.dir, BaseOID: oid, ArtifactMax: 10 << 20}, out: frame.NewWriter(&out), maxDirty: 250, patience: questionMax}
	defer c.close()
	must(t, c.run())
	r := parseFrames(t, &out)
	if r.work.DirtyCount != 300 || len(r.work.Dirty) != maxListed {
		t.Errorf("%d dirty paths, %d listed", r.work.DirtyCount, len(r.work.Dirty))
	}
	if got := r.kinds(); got != "work.json dirty.tar" {
		t.Errorf("artifacts %s", got)
	}
	if names, _ := r.tar(); len(names) != 300+1+4+1 { // with two directories
		t.Errorf("archive has %d names", len(names))
	}
	if got := strings.Join(r.work.Problems, ""); !strings.Contains(got, "300 uncommitted paths are too many") {
		t.Errorf("problems %q", got)
	}
}

func TestCollectCaps(t *testing.T) {
	t.Parallel()
	ws, _, oid := newWorkspace(t, nil)
	ws.write("big.bin", noise(300<<10))
	ws.commit("big")
	ws.write("dirt.bin", noise(300<<10))
	ws.write("small.txt", "small\n")
	r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid, ArtifactMax: 100 << 10})
	for _, kind := range []string{finalBundle, restBundle} {
		if a := r.get(kind); len(a.data) != 100<<10 || a.broken != "larger than the limit of 102400 bytes" {
			t.Errorf("%s of %d bytes: %q", kind, len(a.data), a.broken)
		}
	}
	if _, content := r.tar(); content["small.txt"] != "small\n" || content["dirt.bin"] != "" {
		t.Errorf("archive has %q", keys(content))
	}
	if broken := r.get(dirtyArchive).broken; !strings.Contains(broken, `1 paths are left out, the first is "dirt.bin"`) {
		t.Errorf("archive: %q", broken)
	}
}

func TestCollectReports(t *testing.T) {
	t.Parallel()
	ws, _, oid := newWorkspace(t, nil)
	ws.write(".git/info/exclude", "/.hive/\nagent-report*\n")
	ws.write("agent-report.json", "top")
	ws.write("agent-report-2.json", "two")
	ws.write(".hive/agent-report.json", "hive")
	ws.write("src/agent-report.json", "elsewhere")
	ws.write("agent-report\n.json", "name")
	ws.write("agent-report-large.json", strings.Repeat("x", frame.MaxReportSize+1))
	must(t, os.Symlink("/etc/passwd", filepath.Join(ws.dir, "agent-report-link.json")))
	must(t, syscall.Mkfifo(filepath.Join(ws.dir, "agent-report-fifo.json"), 0o600))
	r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	got := map[string]string{}
	for _, a := range r.all[1:] {
		if a.kind != reportKind {
			t.Errorf("artifact %s", a.kind)
		}
		got[a.name] = string(a.data)
		if a.broken != "" {
			got[a.name] = "broken: " + a.broken
		}
	}
	equal(t, "reports", keys(got), []string{"agent-report-2.json", "agent-report-large.json", "agent-report.json"})
	if got["agent-report.json"] != "hive" || got["agent-report-2.json"] != "two" || !strings.HasPrefix(got["agent-report-large.json"], "broken: ") {
		t.Errorf("reports %q", got)
	}

	must(t, os.RemoveAll(filepath.Join(ws.dir, ".hive")))
	must(t, os.Symlink("src", filepath.Join(ws.dir, ".hive")))
	for i := range 20 {
		ws.write(fmt.Sprintf("agent-report-%d.json", i), "{}")
	}
	r = collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	if n := len(r.all) - 1; n != maxReports || len(r.work.Problems) != 1 {
		t.Errorf("%d reports, problems %q", n, r.work.Problems)
	}
}

func TestCollectPlainDirectory(t *testing.T) {
	t.Parallel()
	ws := repo{t, t.TempDir()}
	ws.write("a.txt", "a\n")
	ws.write("agent-report.json", "{}")
	r := collectIn(t, frame.Config{WorkDir: ws.dir})
	r.want(workSummary, dirtyArchive, reportKind)

	r = collectIn(t, frame.Config{WorkDir: filepath.Join(ws.dir, "none"), BaseOID: strings.Repeat("1", 40)})
	if r.kinds() != workSummary || len(r.work.Problems) != 1 {
		t.Errorf("artifacts %s, problems %q", r.kinds(), r.work.Problems)
	}
}

// When the host is gone, collect ends.
func TestCollectWithoutHost(t *testing.T) {
	t.Parallel()
	ws, _, oid := newWorkspace(t, nil)
	ws.write("big.bin", noise(300<<10))
	ws.commit("big")
	gone := errors.New("gone")
	for _, after := range []int{0, 1, 3, 5} {
		if err := collect(frame.Config{WorkDir: ws.dir, BaseOID: oid}, frame.NewWriter(&failing{after, gone})); !errors.Is(err, gone) {
			t.Errorf("after %d writes: error %v", after, err)
		}
	}
}

type failing struct {
	after int
	err   error
}

func (f *failing) Write(p []byte) (int, error) {
	if f.after--; f.after < 0 {
		return 0, f.err
	}
	return len(p), nil
}

// noise is text that does not compress to much less than half.
func noise(n int) string {
	b := make([]byte, n)
	x := uint32(2463534242)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x >> 8)
	}
	return string(b)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
