package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

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

// In a repository that hides or lies, the bundle still holds the truth.
func TestCollectIgnoresLies(t *testing.T) {
	t.Parallel()
	model, base, oid := newWorkspace(t, nil)
	model.write("one", "1")
	first := model.commit("one")
	model.write("two", "2")
	tip := model.commit("two")
	for name, lie := range map[string]func(ws repo, first, tip string){
		"replace ref": func(ws repo, first, tip string) {
			ws.git("replace", tip, first)
		},
		"graft": func(ws repo, first, tip string) {
			ws.write(".git/info/grafts", tip+"\n")
		},
		"shallow": func(ws repo, first, tip string) {
			ws.write(".git/shallow", tip+"\n")
		},
		"commit graph": func(ws repo, first, tip string) {
			ws.git("commit-graph", "write", "--reachable")
			p := filepath.Join(ws.dir, ".git/objects/info/commit-graph")
			b, err := os.ReadFile(p)
			must(ws.t, err)
			must(ws.t, os.Remove(p))
			must(ws.t, os.WriteFile(p, append(b[:len(b)/2:len(b)/2], make([]byte, len(b)/2)...), 0o600))
		},
		"another work tree": func(ws repo, first, tip string) {
			ws.git("config", "core.worktree", "/usr")
		},
		"bare": func(ws repo, first, tip string) {
			ws.git("config", "core.bare", "true")
		},
		"another common directory": func(ws repo, first, tip string) {
			ws.write(".git/commondir", "/nonexistent\n")
		},
		"unknown format": func(ws repo, first, tip string) {
			ws.write(".git/config", "[core]\n\trepositoryformatversion = 7\n[extensions]\n\tnosuch = true\n")
		},
		"broken config": func(ws repo, first, tip string) {
			ws.write(".git/config", "[[[\x00")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ws := model.copy(t)
			lie(ws, first, tip)
			r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
			if name == "replace ref" {
				// The replacement is a ref like any other, and kept as one.
				r.want(workSummary, finalBundle, restBundle)
			} else {
				r.want(workSummary, finalBundle)
			}
			clone, refs := r.fetch(finalBundle, base)
			if refs["HEAD"] != tip || r.work.Commits != 2 || clone.git("rev-list", "--count", oid+".."+tip) != "2" {
				t.Errorf("refs %v, summary %+v", refs, r.work)
			}
		})
	}
}

// No setting of the repository runs a program during the collection.
func TestCollectRunsNothing(t *testing.T) {
	t.Parallel()
	ws, _, oid := newWorkspace(t, func(r repo) { r.write("f.dat", "f\n") })
	mark := filepath.Join(t.TempDir(), "mark")
	evil := filepath.Join(t.TempDir(), "evil")
	must(t, os.WriteFile(evil, []byte("#!/bin/sh\necho \"$0 $*\" >>"+mark+"\ncat\n"), 0o755))
	ws.write(".gitattributes", "* filter=evil diff=evil merge=evil\n")
	ws.write("f.dat", "changed\n")
	ws.commit("attributes")
	for _, kv := range [][2]string{
		{"core.fsmonitor", evil}, {"core.hooksPath", filepath.Dir(evil)}, {"core.pager", evil}, {"core.editor", evil}, {"core.sshCommand", evil},
		{"filter.evil.clean", evil}, {"filter.evil.smudge", evil}, {"filter.evil.process", evil}, {"diff.external", evil}, {"diff.evil.textconv", evil},
		{"gpg.program", evil}, {"commit.gpgsign", "true"}, {"log.showSignature", "true"}, {"credential.helper", evil}, {"core.alternateRefsCommand", evil},
		{"uploadpack.packObjectsHook", evil}, {"pack.packSizeLimit", "1"}, {"gc.auto", "1"}, {"protocol.ext.allow", "always"},
		{"remote.p.url", "ext::" + evil}, {"remote.p.promisor", "true"}, {"extensions.partialClone", "p"},
	} {
		ws.git("config", kv[0], kv[1])
	}
	ws.write(".git/hooks/post-index-change", "#!/bin/sh\ntouch "+mark+"\n")
	must(t, os.Chmod(filepath.Join(ws.dir, ".git/hooks/post-index-change"), 0o755))
	ws.write("f.dat", "uncommitted\n")
	// The setting is live, or this test shows nothing.
	_, _ = ws.try("status")
	if _, err := os.Stat(mark); err != nil {
		t.Fatal("git status ran nothing in this repository")
	}
	must(t, os.Remove(mark))
	r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	if b, err := os.ReadFile(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the collection ran %s, %v", b, err)
	}
	r.want(workSummary, finalBundle, restBundle, dirtyArchive)
}

// What cannot be read is said, and the files come all the same.
func TestCollectGarbage(t *testing.T) {
	t.Parallel()
	model, base, oid := newWorkspace(t, nil)
	model.write("committed.txt", "committed\n")
	model.commit("work")
	model.git("checkout", "-q", "-b", "side", oid)
	model.write("side.txt", "side\n")
	model.commit("side")
	model.git("checkout", "-q", "main")
	model.write("dirty.txt", "dirty\n")
	fifo := func(ws repo, name string) {
		p := filepath.Join(ws.dir, name)
		must(ws.t, os.RemoveAll(p))
		must(ws.t, syscall.Mkfifo(p, 0o600))
	}
	moveGit := func(ws repo) string {
		to := filepath.Join(ws.t.TempDir(), "git")
		must(ws.t, os.Rename(filepath.Join(ws.dir, ".git"), to))
		return to
	}
	for _, tt := range []struct {
		name    string
		make    func(ws repo)
		problem string
		kinds   string
	}{
		{"no .git", func(ws repo) { moveGit(ws) }, ".git is missing", "work.json dirty.tar"},
		{".git is a file", func(ws repo) { ws.write(".git", "gitdir: "+moveGit(ws)+"\n") }, ".git is not a directory", "work.json dirty.tar"},
		{".git is a link", func(ws repo) { must(ws.t, os.Symlink(moveGit(ws), filepath.Join(ws.dir, ".git"))) }, ".git is not a directory", "work.json dirty.tar"},
		{".git is a FIFO", func(ws repo) { moveGit(ws); fifo(ws, ".git") }, ".git is not a directory", "work.json dirty.tar"},
		{".git is empty", func(ws repo) { moveGit(ws); must(ws.t, os.Mkdir(filepath.Join(ws.dir, ".git"), 0o755)) }, ".git/objects is missing", "work.json dirty.tar"},
		{"objects is a link", func(ws repo) {
			p := filepath.Join(ws.dir, ".git/objects")
			to := filepath.Join(ws.t.TempDir(), "objects")
			must(ws.t, os.Rename(p, to))
			must(ws.t, os.Symlink(to, p))
		}, ".git/objects is not a directory", "work.json dirty.tar"},
		{"objects are gone", func(ws repo) {
			must(ws.t, os.RemoveAll(filepath.Join(ws.dir, ".git/objects")))
			must(ws.t, os.Mkdir(filepath.Join(ws.dir, ".git/objects"), 0o755))
		}, "bad object", "work.json final.bundle dirty.tar"},
		{"garbage in HEAD", func(ws repo) { ws.write(".git/HEAD", "\x00\xff garbage") }, "HEAD names neither a commit nor a branch", "work.json rest.bundle dirty.tar"},
		{"HEAD is a FIFO", func(ws repo) { fifo(ws, ".git/HEAD") }, ".git/HEAD is not a regular file", "work.json rest.bundle dirty.tar"},
		{"HEAD leads out", func(ws repo) { ws.write(".git/HEAD", "ref: refs/heads/../../../../etc/passwd\n") }, "HEAD names neither", "work.json rest.bundle dirty.tar"},
		{"HEAD names a missing object", func(ws repo) { ws.write(".git/HEAD", strings.Repeat("4", 40)+"\n") }, strings.Repeat("4", 40), "work.json final.bundle rest.bundle dirty.tar"},
		{"garbage index", func(ws repo) { ws.write(".git/index", "garbage") }, "index file", "work.json final.bundle rest.bundle dirty.tar"},
		{"index is a FIFO", func(ws repo) { fifo(ws, ".git/index") }, ".git/index is not a regular file", "work.json final.bundle rest.bundle dirty.tar"},
		{"index is huge", func(ws repo) { must(ws.t, os.Truncate(filepath.Join(ws.dir, ".git/index"), 1<<40)) }, ".git/index has 1099511627776 bytes", "work.json final.bundle rest.bundle dirty.tar"},
		{"a ref is a FIFO", func(ws repo) { fifo(ws, ".git/refs/heads/fifo") }, "", "work.json final.bundle rest.bundle dirty.tar"},
		{"refs is a link", func(ws repo) {
			ws.git("pack-refs", "--all")
			must(ws.t, os.RemoveAll(filepath.Join(ws.dir, ".git/refs")))
			must(ws.t, os.Symlink("/etc", filepath.Join(ws.dir, ".git/refs")))
		}, ".git/refs is not a directory", "work.json final.bundle rest.bundle dirty.tar"},
		{"packed-refs is huge", func(ws repo) {
			must(ws.t, os.WriteFile(filepath.Join(ws.dir, ".git/packed-refs"), nil, 0o600))
			must(ws.t, os.Truncate(filepath.Join(ws.dir, ".git/packed-refs"), 1<<40))
		}, "packed-refs is larger", "work.json final.bundle rest.bundle dirty.tar"},
		{"FIFO for the reflog", func(ws repo) { fifo(ws, ".git/logs/HEAD") }, "", "work.json final.bundle rest.bundle dirty.tar"},
		{"a corrupt blob in a branch", func(ws repo) {
			ws.git("checkout", "-q", "-b", "bad")
			ws.write("bad.txt", "bad")
			ws.git("add", "bad.txt")
			ws.git("commit", "-q", "-m", "bad")
			blob := ws.git("rev-parse", "HEAD:bad.txt")
			ws.git("checkout", "-q", "main")
			must(ws.t, os.Remove(filepath.Join(ws.dir, ".git/objects", blob[:2], blob[2:])))
		}, "bundle refs/heads/bad", "work.json final.bundle rest.bundle dirty.tar"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ws := model.copy(t)
			tt.make(ws)
			start := time.Now()
			r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("took %v", d)
			}
			if got := strings.Join(r.work.Problems, "\n"); !strings.Contains(got, tt.problem) || tt.problem == "" && got != "" {
				t.Errorf("problems %q, want one with %q", r.work.Problems, tt.problem)
			}
			if got := r.kinds(); got != tt.kinds {
				t.Errorf("artifacts %q, want %q; problems %q", got, tt.kinds, r.work.Problems)
			}
			names, content := r.tar()
			if content["dirty.txt"] != "dirty\n" || r.get(dirtyArchive).broken != "" {
				t.Errorf("archive has %q: %s", names, r.get(dirtyArchive).broken)
			}
			if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, ".git/") || strings.HasPrefix(n, ".hive") }) {
				t.Errorf("archive has %q", names)
			}
			if strings.Contains(tt.kinds, restBundle) && r.get(restBundle).broken == "" {
				if _, refs := r.fetch(restBundle, base); tt.name != "refs is a link" && !slices.Contains(keys(refs), "refs/heads/side") && tt.name != "packed-refs is huge" {
					t.Errorf("refs %v", refs)
				}
			}
		})
	}
}

// Objects that are FIFOs hang git; its time is limited, see questionMax.
func TestGitIsKilledInTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	r := runner{git: "/bin/sh", env: gitEnv(), dir: dir, max: 200 * time.Millisecond}
	start := time.Now()
	_, err := r.run(context.Background(), nil, "-c", "cat fifo; true")
	if err == nil || !strings.Contains(err.Error(), errKilled.Error()) {
		t.Errorf("error %v", err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
}

// Where git hangs, the files come all the same, soon after.
func TestCollectWhereGitHangs(t *testing.T) {
	t.Parallel()
	ws, _, oid := newWorkspace(t, nil)
	ws.write("x", "x")
	tip := ws.commit("x")
	ws.git("branch", "other")
	ws.write("dirty.txt", "dirty\n")
	object := filepath.Join(ws.dir, ".git/objects", tip[:2], tip[2:])
	must(t, os.Remove(object))
	must(t, syscall.Mkfifo(object, 0o600))
	var out bytes.Buffer
	c := &collector{cfg: frame.Config{WorkDir: ws.dir, BaseOID: oid}, out: frame.NewWriter(&out), maxDirty: maxDirty, patience: 2 * time.Second}
	defer c.close()
	start := time.Now()
	must(t, c.run())
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
	r := parseFrames(t, &out)
	if got := r.kinds(); got != "work.json final.bundle dirty.tar" {
		t.Errorf("artifacts %s", got)
	}
	if a := r.get(finalBundle); !strings.Contains(a.broken, "took too long") || len(a.data) != 0 {
		t.Errorf("final bundle of %d bytes, %q", len(a.data), a.broken)
	}
	if _, content := r.tar(); content["dirty.txt"] != "dirty\n" {
		t.Errorf("archive has %q", keys(content))
	}
	if got := strings.Join(r.work.Problems, "\n"); !strings.Contains(got, "took too long") {
		t.Errorf("problems %q", r.work.Problems)
	}
}

func TestCollectOddFiles(t *testing.T) {
	t.Parallel()
	ws, base, oid := newWorkspace(t, nil)
	p := func(name string) string { return filepath.Join(ws.dir, name) }
	must(t, syscall.Mkfifo(p("fifo"), 0o600))
	must(t, os.Remove(p("src/a.txt")))
	must(t, syscall.Mkfifo(p("src/a.txt"), 0o600))
	must(t, syscall.Mknod(p("socket"), syscall.S_IFSOCK|0o600, 0))
	if os.Getuid() == 0 {
		must(t, syscall.Mknod(p("device"), syscall.S_IFCHR|0o600, 1<<8|5)) // zero
	}
	ws.write("sparse", "")
	must(t, os.Truncate(p("sparse"), 1<<40))
	ws.write("fine.txt", "fine\n")
	deep := strings.Repeat("d/", 300)
	ws.write(deep+"x", "deep\n")

	r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	if got := r.kinds(); got != "work.json rest.bundle dirty.tar" {
		t.Errorf("artifacts %s", got)
	}
	names, content := r.tar()
	if content["fine.txt"] != "fine\n" || content[deep+"x"] != "deep\n" {
		t.Errorf("archive has %q", names)
	}
	if broken := r.get(dirtyArchive).broken; !strings.Contains(broken, "2 paths are left out") {
		t.Errorf("the archive does not say what it lacks: %q", broken)
	}
	if got := strings.Join(r.work.Problems, ""); !strings.Contains(got, "2 uncommitted files cannot be read") {
		t.Errorf("problems %q", got)
	}
	clone, refs := r.fetch(restBundle, base)
	if got := clone.git("ls-tree", "--name-only", refs["refs/kick/uncommitted"]); got != ".gitignore\nREADME.md\nd\nfine.txt\nsrc" {
		t.Errorf("tree %q", got)
	}

	// The whole tree, too.
	must(t, os.RemoveAll(p(".git")))
	r = collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	if _, content := r.tar(); content["fine.txt"] != "fine\n" {
		t.Errorf("archive has %q", keys(content))
	}
	if broken := r.get(dirtyArchive).broken; !strings.Contains(broken, "are left out") {
		t.Errorf("the archive does not say what it lacks: %q", broken)
	}
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
