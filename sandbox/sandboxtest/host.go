package sandboxtest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// marked returns the processes of this host whose command line has mark. The
// launcher's own child processes have it in their environment alone.
func marked(mark string) []string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, d := range dirs {
		b, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err == nil && bytes.Contains(b, []byte(mark)) {
			found = append(found, filepath.Base(d)+" "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

// cgroups returns the control groups of this host whose name has mark.
func cgroups(mark string) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), mark) {
			found = append(found, p)
		}
		return nil // what cannot be read is not ours
	})
	return found
}

// mounts returns the mounts of this process.
func mounts(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	list := strings.Split(string(b), "\n")
	slices.Sort(list)
	return list
}

// wantNothing fails if the host still has a process, a control group or a mount
// with mark. It does not wait: a launcher returns when nothing is left.
func (s *suite) wantNothing(t *testing.T, mark string) {
	t.Helper()
	for what, list := range map[string][]string{"processes": marked(mark), "control groups": cgroups(mark)} {
		if len(list) > 0 {
			t.Errorf("%s are left: %q", what, list)
		}
	}
	for _, m := range mounts(t) {
		if strings.Contains(m, mark) {
			t.Errorf("a mount is left: %s", m)
		}
	}
}

// eventually looks until the list is empty, for what a dead launcher cannot
// wait for.
func eventually(t *testing.T, what string, list func() []string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		left := list()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s are left after %v: %q", what, patience, left)
		}
		time.Sleep(10 * time.Millisecond) // there is no event to wait for
	}
}

// temporary makes a directory with a short path, for sockets, and of a mode for
// the sandbox's user; it is removed with the test.
func temporary(t *testing.T, prefix string, mode os.FileMode) string {
	t.Helper()
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

// remove removes what a test left on the host.
func remove(t *testing.T, path string) {
	if err := os.RemoveAll(path); err != nil {
		t.Error(err)
	}
}
