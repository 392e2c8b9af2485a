package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/frame"
)

// repo runs git for tests, as a developer's git would run.
type repo struct {
	t   testing.TB
	dir string
}

func (r repo) git(args ...string) string {
	r.t.Helper()
	out, err := r.try(args...)
	if err != nil {
		r.t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

func (r repo) try(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + r.t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C", "GIT_ALLOW_PROTOCOL=file",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
	}
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		out = append(out, exit.Stderr...)
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

// copy copies a workspace, which costs less than to make another.
func (r repo) copy(t testing.TB) repo {
	t.Helper()
	c := repo{t, t.TempDir()}
	if err := os.CopyFS(c.dir, os.DirFS(r.dir)); err != nil {
		t.Fatal(err)
	}
	return c
}

func (r repo) write(name, content string) {
	r.t.Helper()
	p := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r repo) read(name string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

func (r repo) commit(message string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "-m", message)
	return r.git("rev-parse", "HEAD")
}

// newBase makes a repository with one commit, which fill may add files to.
func newBase(t testing.TB, fill func(repo), initArgs ...string) (base repo, oid string) {
	t.Helper()
	base = repo{t, t.TempDir()}
	base.git(append([]string{"init", "-q", "--template=", "-b", "main"}, initArgs...)...)
	base.write("README.md", "hello\n")
	base.write("src/a.txt", "a\n")
	base.write("src/b.txt", "b\n")
	base.write(".gitignore", "ignored/\n")
	if fill != nil {
		fill(base)
	}
	return base, base.commit("base")
}

const prompt = "do the task\n"

// skeleton makes what the host hands over: a repository without a work tree
// whose base objects lie elsewhere. unborn leaves the branch without a commit.
func skeleton(t testing.TB, base repo, oid string, unborn bool) repo {
	t.Helper()
	ws := repo{t, t.TempDir()}
	format := ""
	if len(oid) == 64 {
		format = "[extensions]\n\tobjectformat = sha256\n"
	}
	version := "0"
	if format != "" {
		version = "1"
	}
	ws.write(".git/config", "[core]\n\trepositoryformatversion = "+version+"\n\tbare = false\n\tfilemode = true\n\tlogallrefupdates = true\n"+
		"[user]\n\tname = Agent\n\temail = agent@example.com\n"+format)
	ws.write(".git/HEAD", "ref: refs/heads/main\n")
	ws.write(".git/objects/info/alternates", filepath.Join(base.dir, ".git/objects")+"\n")
	ws.write(".git/info/exclude", "/.hive/\n")
	ws.write(".hive/kick-prompt.txt", prompt)
	if err := os.MkdirAll(filepath.Join(ws.dir, ".git/refs/heads"), 0o755); err != nil {
		t.Fatal(err)
	}
	if !unborn {
		ws.write(".git/packed-refs", "# pack-refs with: peeled fully-peeled sorted \n"+oid+" refs/heads/main\n"+oid+" refs/remotes/origin/main\n")
	}
	return ws
}

// newWorkspace is a checked out workspace.
func newWorkspace(t testing.TB, fill func(repo), initArgs ...string) (ws, base repo, oid string) {
	t.Helper()
	base, oid = newBase(t, fill, initArgs...)
	ws = skeleton(t, base, oid, false)
	if err := checkout(frame.Config{WorkDir: ws.dir, BaseOID: oid}); err != nil {
		t.Fatal(err)
	}
	return ws, base, oid
}

func TestCheckout(t *testing.T) {
	t.Parallel()
	for _, unborn := range []bool{false, true} {
		name := map[bool]string{false: "branch at the base", true: "unborn branch"}[unborn]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, oid := newBase(t, nil)
			objects := base.git("count-objects")
			ws := skeleton(t, base, oid, unborn)
			if err := checkout(frame.Config{WorkDir: ws.dir, BaseOID: oid}); err != nil {
				t.Fatal(err)
			}
			if got := ws.git("status", "--porcelain"); got != "" {
				t.Errorf("status is not clean: %q", got)
			}
			if got := ws.git("rev-parse", "HEAD", "main"); got != oid+"\n"+oid {
				t.Errorf("HEAD and main are %q, want %s", got, oid)
			}
			if got := ws.git("log", "--format=%s"); got != "base" {
				t.Errorf("log = %q", got)
			}
			ws.write("src/a.txt", "changed\n")
			if got := ws.git("diff", "--stat", "HEAD"); !strings.Contains(got, "src/a.txt") {
				t.Errorf("diff = %q", got)
			}
			ws.git("stash")
			ws.git("checkout", "-q", "-b", "feature")
			ws.git("stash", "pop")
			ws.git("commit", "-q", "-a", "-m", "change")
			if got := ws.git("fsck", "--strict"); strings.Contains(got, "error") {
				t.Errorf("fsck: %s", got)
			}
			if got := ws.read(".hive/kick-prompt.txt"); got != prompt {
				t.Errorf("the task is %q", got)
			}
			if got := base.git("count-objects"); got != objects {
				t.Errorf("the base had %s, and now %s", objects, got)
			}
		})
	}
}

func TestCheckoutOfHostileContent(t *testing.T) {
	t.Parallel()
	link := func(r repo, target, name string) {
		if err := os.Symlink(target, filepath.Join(r.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		fill  func(repo)
		check func(*testing.T, repo)
	}{
		{"filter that is not configured", func(r repo) {
			r.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n*.txt filter=evil\n")
			r.write("x.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
		}, func(t *testing.T, ws repo) {
			if got := ws.read("x.bin"); !strings.HasPrefix(got, "version https://git-lfs") {
				t.Errorf("the pointer became %q", got)
			}
		}},
		{"encoding that does not exist", func(r repo) {
			r.write("enc.txt", "text\n")
			r.commit("before the attribute")
			r.write(".gitattributes", "enc.txt working-tree-encoding=no-such\n")
			r.git("update-index", "--assume-unchanged", "enc.txt") // or git add would refuse the encoding
		}, func(t *testing.T, ws repo) {
			if got := ws.read("enc.txt"); got != "text\n" {
				t.Errorf("enc.txt is %q", got)
			}
		}},
		{"links", func(r repo) {
			link(r, "/etc/passwd", "abs")
			link(r, "../../..", "up")
			link(r, ".git/hooks", "hooks")
			link(r, "nowhere", "dangling")
		}, func(t *testing.T, ws repo) {
			if got, err := os.Readlink(filepath.Join(ws.dir, "abs")); got != "/etc/passwd" {
				t.Errorf("link is %q, %v", got, err)
			}
		}},
		{"names that differ in case, odd names", func(r repo) {
			r.write("Case", "1")
			r.write("case", "2")
			r.write("new\nline", "3")
			r.write("bad\xffutf8", "4")
			r.write("-option", "5")
			r.write("\x1b[31m", "6")
		}, func(t *testing.T, ws repo) {
			if ws.read("Case")+ws.read("case") != "12" {
				t.Error("names of different case are mixed up")
			}
		}},
		{"submodule", func(r repo) {
			r.write(".gitmodules", "[submodule \"s\"]\n\tpath = s\n\turl = https://example.invalid/s\n")
			sub := repo{r.t, filepath.Join(r.dir, "s")}
			sub.write("x", "x")
			sub.git("init", "-q")
			sub.commit("in the submodule")
		}, func(t *testing.T, ws repo) {
			if info, err := os.Stat(filepath.Join(ws.dir, "s")); err != nil || !info.IsDir() {
				t.Errorf("submodule directory: %v", err)
			}
		}},
		{"tracked task", func(r repo) {
			r.write(".hive/kick-prompt.txt", "an older task\n")
			r.write(".hive/notes.txt", "notes\n")
		}, func(t *testing.T, ws repo) {
			if got := ws.read(".hive/notes.txt"); got != "notes\n" {
				t.Errorf("notes are %q", got)
			}
		}},
		{"tracked task that is a link", func(r repo) {
			r.write(".hive/x", "")
			link(r, "../README.md", ".hive/kick-prompt.txt")
		}, func(t *testing.T, ws repo) {
			if got := ws.read("README.md"); got != "hello\n" {
				t.Errorf("the task was written through the link: %q", got)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ws, _, _ := newWorkspace(t, tt.fill)
			if got := ws.read(".hive/kick-prompt.txt"); got != prompt {
				t.Errorf("the task is %q", got)
			}
			if got := ws.git("status", "--porcelain"); got != "" {
				t.Errorf("status is not clean: %q", got)
			}
			if tt.check != nil {
				tt.check(t, ws)
			}
		})
	}
}

func TestCheckoutErrors(t *testing.T) {
	t.Parallel()
	evilTree := func(t *testing.T, base repo, entry string) string {
		cmd := exec.Command("git", "mktree", "--missing")
		cmd.Dir = base.dir
		cmd.Stdin = strings.NewReader(entry)
		tree, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return base.git("commit-tree", "-m", "evil", strings.TrimSpace(string(tree)))
	}
	for _, tt := range []struct {
		name string
		oid  func(*testing.T, repo, string) string
		want string
	}{
		{"missing base", func(*testing.T, repo, string) string { return strings.Repeat("1", 40) }, "Could not parse object"},
		{"branch name for an id", func(*testing.T, repo, string) string { return "main" }, "not a full commit id"},
		{"option for an id", func(*testing.T, repo, string) string { return "--help" }, "not a full commit id"},
		{"tree with a .git", func(t *testing.T, base repo, oid string) string {
			blob := base.git("rev-parse", "HEAD:README.md")
			sub := exec.Command("git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally")
			sub.Dir = base.dir
			raw, err := os.ReadFile(filepath.Join(base.dir, "README.md"))
			if err != nil || len(raw) == 0 {
				t.Fatal(err)
			}
			var id [20]byte
			for i := range id {
				var b byte
				for _, c := range blob[2*i : 2*i+2] {
					b = b<<4 | byte(strings.IndexRune("0123456789abcdef", c))
				}
				id[i] = b
			}
			sub.Stdin = strings.NewReader("100644 .git\x00" + string(id[:]))
			tree, err := sub.Output()
			if err != nil {
				t.Fatal(err)
			}
			return base.git("commit-tree", "-m", "evil", strings.TrimSpace(string(tree)))
		}, "invalid path '.git'"},
		{"tracked .hive that is a link", func(t *testing.T, base repo, oid string) string {
			if err := os.Symlink("src", filepath.Join(base.dir, ".hive")); err != nil {
				t.Fatal(err)
			}
			return base.commit("link")
		}, "kick keeps the task there"},
		{"tracked .hive that is a file", func(t *testing.T, base repo, oid string) string {
			base.write(".hive", "x")
			return base.commit("file")
		}, "kick keeps the task there"},
		{"tracked task that is a directory", func(t *testing.T, base repo, oid string) string {
			base.write(".hive/kick-prompt.txt/x", "x")
			return base.commit("directory")
		}, "kick keeps the task there"},
		{"missing blob", func(t *testing.T, base repo, oid string) string {
			return evilTree(t, base, "100644 blob "+strings.Repeat("2", 40)+"\tx\n")
		}, strings.Repeat("2", 40)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base, oid := newBase(t, nil)
			ws := skeleton(t, base, oid, false)
			err := checkout(frame.Config{WorkDir: ws.dir, BaseOID: tt.oid(t, base, oid)})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
	t.Run("no directory", func(t *testing.T) {
		t.Parallel()
		err := checkout(frame.Config{WorkDir: filepath.Join(t.TempDir(), "none"), BaseOID: strings.Repeat("1", 40)})
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	})
}
