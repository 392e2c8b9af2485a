package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

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
		}, "bad object", "work.json dirty.tar"},
		{"garbage in HEAD", func(ws repo) { ws.write(".git/HEAD", "\x00\xff garbage") }, "HEAD names neither a commit nor a branch", "work.json rest.bundle dirty.tar"},
		{"HEAD is a FIFO", func(ws repo) { fifo(ws, ".git/HEAD") }, ".git/HEAD is not a regular file", "work.json rest.bundle dirty.tar"},
		{"HEAD leads out", func(ws repo) { ws.write(".git/HEAD", "ref: refs/heads/../../../../etc/passwd\n") }, "HEAD names neither", "work.json rest.bundle dirty.tar"},
		{"HEAD names a missing object", func(ws repo) { ws.write(".git/HEAD", strings.Repeat("4", 40)+"\n") }, strings.Repeat("4", 40), "work.json rest.bundle dirty.tar"},
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
			if d := time.Since(start); d > questionMax { // git hung once
				t.Errorf("took %v", d)
			}
			if got := strings.Join(r.work.Problems, "\n"); !strings.Contains(got, tt.problem) || tt.problem == "" && got != "" {
				t.Errorf("problems %q, want one with %q", r.work.Problems, tt.problem)
			}
			if got := r.kinds(); got != tt.kinds {
				t.Errorf("artifacts %q, want %q; problems %q", got, tt.kinds, r.work.Problems)
			}
			names, content := r.tar()
			lacks := tt.name == "packed-refs is huge" // the archive, and it says so
			if content["dirty.txt"] != "dirty\n" || (r.get(dirtyArchive).broken != "") != lacks {
				t.Errorf("archive has %q: %s", names, r.get(dirtyArchive).broken)
			}
			if slices.ContainsFunc(names, func(n string) bool {
				return strings.HasPrefix(n, ".git/") || strings.HasPrefix(n, ".hive") && !strings.HasPrefix(n, keptRepository+"/")
			}) {
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
	if broken := r.get(dirtyArchive).broken; !strings.Contains(broken, "1 paths are left out") {
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

// Root can read everything, so it runs this test again as somebody else.
func TestCollectUnreadable(t *testing.T) {
	t.Parallel()
	if os.Getuid() == 0 {
		asOrdinaryUser(t)
		return
	}
	ws, base, oid := newWorkspace(t, nil)
	ws.write("fine.txt", "fine\n")
	ws.write("locked/x", "x\n")
	ws.write("secret.txt", "secret\n")
	ws.write("src/a.txt", "changed\n")
	for _, name := range []string{"locked", "secret.txt", "src/a.txt"} {
		must(t, os.Chmod(filepath.Join(ws.dir, name), 0))
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(ws.dir, "locked"), 0o700) })
	r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	if got := r.kinds(); got != "work.json rest.bundle dirty.tar" {
		t.Errorf("artifacts %s, problems %q", got, r.work.Problems)
	}
	if _, content := r.tar(); content["fine.txt"] != "fine\n" {
		t.Errorf("archive has %q", keys(content))
	}
	if broken := r.get(dirtyArchive).broken; !strings.Contains(broken, "are left out") {
		t.Errorf("the archive does not say what it lacks: %q", broken)
	}
	if got := strings.Join(r.work.Problems, ""); !strings.Contains(got, "cannot be read") {
		t.Errorf("problems %q", r.work.Problems)
	}
	clone, refs := r.fetch(restBundle, base)
	if got := clone.git("show", refs["refs/kick/uncommitted"]+":fine.txt"); got != "fine" {
		t.Errorf("fine.txt is %q", got)
	}

	must(t, os.RemoveAll(filepath.Join(ws.dir, ".git")))
	r = collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	if _, content := r.tar(); content["fine.txt"] != "fine\n" || !strings.Contains(r.get(dirtyArchive).broken, "3 paths are left out") {
		t.Errorf("archive has %q: %q", keys(content), r.get(dirtyArchive).broken)
	}
}

// breakObject defines what takes an object away, or writes another text over it.
const breakObject = `path() { git rev-parse "$1" | sed 's#^..#.git/objects/&/#'; }
	lose() { rm -f "$(path "$1")"; }
	spoil() { f=$(path "$1"); chmod +w "$f"; echo rubbish >"$f"; }`

// A repository that git cannot read may hold the only copy of a commit.
func TestCollectKeepsBrokenRepository(t *testing.T) {
	t.Parallel()
	for name, breakIt := range map[string]string{
		"moved":      "mv .git elsewhere && echo 'gitdir: elsewhere' >.git",
		"linked":     "mv .git elsewhere && ln -s elsewhere .git",
		"no objects": "mv .git/objects .git/things",
		"too many refs": `git checkout -q --detach HEAD~1; head=$(cat .git/HEAD); i=0
			while [ $i -lt 20001 ]; do echo "$head refs/heads/a$i"; i=$((i+1)); done >.git/packed-refs`,
		"a missing file":      breakObject + "; lose HEAD:mine.txt",
		"a missing tree":      breakObject + "; lose HEAD^{tree}",
		"a file of rubbish":   breakObject + "; spoil HEAD:mine.txt",
		"a tree of rubbish":   breakObject + "; spoil HEAD^{tree}",
		"beside HEAD, a file": "git branch -q side; git reset -q --hard HEAD~1; " + breakObject + "; lose side:mine.txt",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ws, _, oid := newWorkspace(t, nil)
			ws.write("mine.txt", "mine\n")
			ws.git("add", "mine.txt")
			ws.git("commit", "-qm", "mine")
			tip := ws.git("rev-parse", "HEAD")
			object := tip[:2] + "/" + tip[2:]
			cmd := exec.Command("sh", "-c", breakIt)
			cmd.Dir = ws.dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
			if strings.Contains(r.kinds(), finalBundle) {
				t.Errorf("a bundle that no later try can make is sent: %s", r.kinds())
			}
			_, content := r.tar()
			kept := slices.ContainsFunc(keys(content), func(n string) bool { return strings.HasSuffix(n, object) })
			if !kept && r.get(dirtyArchive).broken == "" {
				t.Errorf("the commit %s is lost, and nothing says so: %q, problems %q", tip, keys(content), r.work.Problems)
			}
			for _, n := range keys(content) {
				if n == ".git" || strings.HasPrefix(n, ".git/") {
					t.Errorf("the archive has a live repository: %q", n)
				}
			}
		})
	}
}

func asOrdinaryUser(t *testing.T) {
	const uid = 60_902 // nobody's: systemd.io/UIDS-GIDS
	dir, err := os.MkdirTemp("", "kick-shim-user")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chown(dir, uid, uid))
	must(t, os.Chmod(dir, 0o755))
	exe, err := os.Executable()
	must(t, err)
	b, err := os.ReadFile(exe)
	must(t, err)
	program := filepath.Join(dir, "shim.test")
	must(t, os.WriteFile(program, b, 0o755))
	cmd := exec.Command(program, "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as user %d: %v\n%s", uid, err, out)
	}
}
