package acceptance

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDisk fills the file system of the state directory: the exit code is
// the one in the result, and the work is there when there is space again.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a file system of a few megabytes is mounted by root alone")
	}
	t.Parallel()
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	})
	state := filepath.Join(small, "state")
	cmd := exec.Command(kick, "run", "--state-dir", state, "--repo", seedBare(t), "--publish", "branch", "-o", "json", "--",
		"sh", "-c", "echo hi >f; git add f; git commit -qm 'add f'; head -c 6000000 /dev/urandom >big")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	var out struct {
		Outcome  string
		ExitCode int
	}
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if code := cmd.ProcessState.ExitCode(); code == 0 || code != out.ExitCode {
		t.Errorf("exit code %d, and the result says %d (%s)", code, out.ExitCode, out.Outcome)
	}
	if !strings.Contains(stderr.String(), "free disk space") {
		t.Errorf("it is not said what to do:\n%s", stderr.String())
	}
	if err := unix.Mount("", small, "", unix.MS_REMOUNT, "size=60m"); err != nil {
		t.Fatal(err)
	}
	salvaged, err := exec.Command(kick, "salvage", "--state-dir", state, "last").CombinedOutput()
	if err != nil || !strings.Contains(string(salvaged), "add f") {
		t.Errorf("the work is not back: %v\n%s", err, salvaged)
	}
}
