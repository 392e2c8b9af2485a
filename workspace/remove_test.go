package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const strangerID = 12345

// hostileTree makes what an agent may leave, and a file outside that links in
// it name.
func hostileTree(t *testing.T) (dir, outside string) {
	t.Helper()
	parent := t.TempDir()
	dir, outside = filepath.Join(parent, "ws"), filepath.Join(parent, "outside")
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o755),
		os.MkdirAll(filepath.Join(outside, "precious"), 0o755),
		os.WriteFile(filepath.Join(outside, "precious/file"), []byte("keep"), 0o600),
		os.Symlink(outside, filepath.Join(dir, "a/link")),
		os.Symlink("../outside", filepath.Join(dir, "link")),
		os.Symlink("/", filepath.Join(dir, "a/b/root")),
		os.WriteFile(filepath.Join(dir, "a/b/c/-rf"), nil, 0),
		os.WriteFile(filepath.Join(dir, "a/\x1b[31m\n"), nil, 0o600),
		unix.Mkfifo(filepath.Join(dir, "a/fifo"), 0),
		os.Mkdir(filepath.Join(dir, ".removing-1"), 0o755), // names that Remove uses itself
		os.WriteFile(filepath.Join(dir, ".removing-2"), nil, 0o600),
		os.Mkdir(filepath.Join(dir, ".removing-1/.removing-3"), 0o755),
	)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 { // more than one read of a directory gives
		if err := os.WriteFile(filepath.Join(dir, "a/b", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	deep := filepath.Join(dir, "deep")
	if err := os.Mkdir(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(deep, unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 { // far beyond PATH_MAX and the descriptor limit
		if err := unix.Mkdirat(fd, "dddd", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "dddd", unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	for _, closed := range []string{"a/b/c", "a/b", "a", ""} {
		if err := os.Chmod(filepath.Join(dir, closed), 0); err != nil {
			t.Fatal(err)
		}
	}
	return dir, outside
}

func checkGone(t *testing.T, dir, outside string) {
	t.Helper()
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(outside, "precious/file")); err != nil || string(b) != "keep" {
		t.Errorf("outside: %q, %v", b, err)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir, outside := hostileTree(t)
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	checkGone(t, dir, outside)
	if err := Remove(dir); err != nil {
		t.Errorf("removing nothing: %v", err)
	}
	if err := Remove(dir + "/below/nothing"); err != nil {
		t.Errorf("removing nothing in nothing: %v", err)
	}
}

// Root removes a tree of another user, and that user, whom closed directories
// do stop, removes one too.
func TestRemoveOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return // TestRemove was the ordinary user's case already
	}
	give := func(dir string) {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if len(path) > 3000 { // chown of the deep part by path is not possible
				return filepath.SkipAll
			}
			return errors.Join(err, os.Lchown(path, strangerID, strangerID))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, outside := hostileTree(t)
	give(dir)
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	checkGone(t, dir, outside)

	top := t.TempDir()
	for d := top; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(top, "own")
	if err := errors.Join(os.MkdirAll(filepath.Join(own, "ws/a/b"), 0o755), os.WriteFile(filepath.Join(own, "ws/a/b/f"), nil, 0)); err != nil {
		t.Fatal(err)
	}
	give(own)
	for _, closed := range []string{"ws/a/b", "ws/a", "ws"} {
		if err := os.Chmod(filepath.Join(own, closed), 0); err != nil {
			t.Fatal(err)
		}
	}
	cmd := fetcher{Remove: filepath.Join(own, "ws")}.command(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: strangerID, Gid: strangerID, Groups: []uint32{}}}
	if err := cmd.Run(); err != nil {
		t.Errorf("as an ordinary user: %v", err)
	}
	if got := ls(t, own); got != "" {
		t.Errorf("left %s", got)
	}
}

func TestRemoveRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "/", "//", "/..", "relative", file, link} {
		if err := Remove(path); err == nil {
			t.Errorf("Remove(%q) passed", path)
		}
	}
	if got := ls(t, dir); got != "file link" {
		t.Errorf("left %s", got)
	}
}

// A mount that was left in a workspace leads to files that are not the kick's.
func TestRemoveStopsAtMounts(t *testing.T) {
	t.Parallel()
	for _, below := range []string{"", "m", "a/m"} {
		t.Run("mount at /"+below, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			dir, outside := filepath.Join(parent, "ws"), filepath.Join(parent, "outside")
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, below), 0o755), os.Mkdir(outside, 0o755), os.WriteFile(outside+"/precious", nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			again := fetcher{Remove: dir}.command(t)
			cmd := inNamespaces(exec.Command("sh", "-c", `mount --bind "$1" "$2" && exec "$3"`, "sh", outside, filepath.Join(dir, below), must(os.Executable())))
			cmd.Env = again.Env
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "unmount it first") {
				t.Errorf("%v %s", err, out)
			}
			if got := ls(t, outside); got != "precious" {
				t.Errorf("outside holds %q", got)
			}
		})
	}
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}
