package workspace

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/sandbox"
)

func task() Task {
	return Task{ID: "k0000000000001", Agent: "claude", Prompt: "Fix the bug.\n", Identity: Identity{Name: "kick", Email: "kick@example.org"}}
}

func prepare(t testing.TB, b *Base, task Task) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ws")
	if err := Prepare(t.Context(), dir, b, task); err != nil {
		t.Fatal(err)
	}
	return dir
}

// In the sandbox the base's objects are mounted read-only at
// sandbox.BaseObjectsPath. The same is done here, and then git does what agents
// do.
func TestPreparedWorkspaceWorks(t *testing.T) {
	t.Parallel()
	for _, branch := range []string{"main", "feature/ümläut"} {
		t.Run(branch, func(t *testing.T) {
			t.Parallel()
			repo := newRepo(t)
			git(t, repo, "checkout", "-q", "-B", branch)
			commit(t, repo, "dir/file", "one\n")
			commit(t, repo, ".hive/tracked", "a repository may have this\n")
			b := fetch(t, newCache(t), Source{Repo: repo, Base: branch})
			k := task()
			k.Identity.Name = `Kick "the" \bot #1; x`
			dir := prepare(t, b, k)
			before := digest(t, b.Mirror)
			script := `set -eu
mount -t tmpfs tmpfs /run
mkdir -p ` + sandbox.BaseObjectsPath + `
mount -o bind,ro "$OBJECTS" ` + sandbox.BaseObjectsPath + `
cd "$WS"
git reset -q --hard "$OID"
same() { test "$1" = "$2" || { echo "got $1, want $2" >&2; exit 1; }; }
same "$(git status --porcelain)" ""
same "$(git symbolic-ref HEAD)" "refs/heads/$BRANCH"
same "$(git rev-parse "origin/$BRANCH" origin/HEAD HEAD | uniq)" "$OID"
same "$(git rev-list --count HEAD)" 3
same "$(git remote)" ""
git diff --exit-code "origin/$BRANCH"
git checkout -q -b work
echo two >dir/file
same "$(git diff --name-only)" dir/file
git stash -q
same "$(git status --porcelain)" ""
git stash pop -q
echo new >new
git add -A
same "$(git diff --cached --name-only | tr '\n' ' ')" "dir/file new "
git commit -qm change
same "$(git log -1 --format='%an <%ae> %cn')" "$WHO"
same "$(git rev-list --count "origin/$BRANCH"..HEAD)" 1
git worktree add -q --detach /run/other && git worktree remove /run/other
git tag -a -m t v1
git rebase -q "$BRANCH"
git merge -q --no-ff -m merge "$BRANCH"
git fsck --strict --full --no-dangling
git bundle create -q /run/b "$OID"..HEAD
cat .hive/kick-prompt.txt
`
			cmd := inNamespaces(exec.Command("sh", "-c", script))
			cmd.Env = []string{
				"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C",
				"OBJECTS=" + b.Objects(), "WS=" + dir, "OID=" + b.OID, "BRANCH=" + branch,
				"WHO=" + k.Identity.Name + " <" + k.Identity.Email + "> " + k.Identity.Name,
			}
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != k.Prompt {
				t.Errorf("%v\n%s", err, out)
			}
			if digest(t, b.Mirror) != before {
				t.Error("the mirror changed")
			}
		})
	}
}

// digest names the content of a tree and its modes.
func digest(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	walk(t, dir, func(path string, info fs.FileInfo) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(h, "%s %v %x\n", path, info.Mode(), sha256.Sum256(b))
	})
	return hex.EncodeToString(h.Sum(nil))
}

func TestPrepareWritesNothingElse(t *testing.T) {
	t.Parallel()
	dir := prepare(t, fetch(t, newCache(t), Source{Repo: newRepo(t), Base: "main"}), task())
	var got []string
	walk(t, dir, func(path string, info fs.FileInfo) {
		got = append(got, strings.TrimPrefix(path, dir+"/"))
		if info.Mode() != 0o644 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	})
	want := ".git/HEAD .git/config .git/info/exclude .git/objects/info/alternates .git/packed-refs .git/refs/remotes/origin/HEAD .hive/kick-prompt.txt"
	if strings.Join(got, " ") != want {
		t.Errorf("files: %s\nwant   %s", got, want)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("workspace: %v, %v", info.Mode(), err)
	}
	config, err := os.ReadFile(dir + "/.git/config")
	if err != nil || strings.Contains(string(config), "remote") || strings.Contains(string(config), "url") {
		t.Errorf("configuration names a remote: %s %v", config, err)
	}
}

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	b := fetch(t, newCache(t), Source{Repo: newRepo(t), Base: "main"})
	taken := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(t.TempDir(), "target"), link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir string
		change    func(b *Base, k *Task)
		says      string
	}{
		{"existing directory", taken, func(*Base, *Task) {}, "exists"},
		{"dangling link", link, func(*Base, *Task) {}, "exists"},
		{"relative directory", "ws", func(*Base, *Task) {}, "absolute"},
		{"no commit", "", func(b *Base, _ *Task) { b.OID = "main" }, "not a full commit id"},
		{"bad branch", "", func(b *Base, _ *Task) { b.Branch = "../../x" }, "base branch"},
		{"id that is a path", "", func(_ *Base, k *Task) { k.ID = "../k" }, "kick id"},
		{"long prompt", "", func(_ *Base, k *Task) { k.Prompt = strings.Repeat("x", MaxPrompt+1) }, "1 MiB"},
		{"no name", "", func(_ *Base, k *Task) { k.Identity.Name = " " }, "no name"},
		{"name that adds configuration", "", func(_ *Base, k *Task) { k.Identity.Name = "x\n[core]\n\tfsmonitor = y" }, "control character"},
		{"e-mail with brackets", "", func(_ *Base, k *Task) { k.Identity.Email = "a@b> <c@d" }, "< or >"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, base, k := c.dir, *b, task()
			if dir == "" {
				dir = filepath.Join(t.TempDir(), "ws")
			}
			c.change(&base, &k)
			wantError(t, Prepare(t.Context(), dir, &base, k), ErrSource, c.says)
			if _, err := os.Lstat(dir); c.dir == "" && err == nil {
				t.Error("something was left behind")
			}
		})
	}
}

func BenchmarkPrepare(b *testing.B) {
	base := fetch(b, newCache(b), Source{Repo: newRepo(b), Base: "main"})
	root := b.TempDir()
	n := 0
	for b.Loop() {
		n++
		if err := Prepare(b.Context(), filepath.Join(root, fmt.Sprint(n)), base, task()); err != nil {
			b.Fatal(err)
		}
	}
}
