package sandbox_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

// TestEmbeddedContract holds the embedded runtime to the launcher contract, as
// the user that runs the test.
func TestEmbeddedContract(t *testing.T) {
	// For the suite's child processes, which would build the shim again.
	shim := filepath.Join(t.TempDir(), "shim")
	if err := os.WriteFile(shim, sandbox.Shim(), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KICK_TEST_SHIM", shim)
	sandboxtest.TestLauncher(t, sandboxtest.Harness{New: func() (sandbox.Launcher, error) {
		return sandbox.NewEmbedded(sandbox.EmbeddedConfig{Shim: bytes.NewReader(sandbox.Shim())})
	}})
}

// ordinaryUser is a user id that no system gives to anybody: above those of
// people and below those of containers (systemd.io/UIDS-GIDS).
const ordinaryUser = 60_900

// TestEmbeddedContractAsUser does the same as an ordinary user, where the test
// is run as root. As an ordinary user, TestEmbeddedContract has done it.
func TestEmbeddedContractAsUser(t *testing.T) {
	if os.Getuid() != 0 {
		return
	}
	cmd := testsOf(t, ordinaryUser, ordinaryUser, "-test.run=^TestEmbeddedContract$")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("as user %d:\n%s", ordinaryUser, out)
	if err != nil {
		t.Errorf("the contract as user %d: %v", ordinaryUser, err)
	}
}

// testsOf is a run of this program's tests for a user, who has all that they need
// in a directory of its own. Who runs it as that user is the caller's to say.
func testsOf(t *testing.T, uid, gid int, flags ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "kick-contract")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := func(name string) string { return filepath.Join(dir, name) }
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copyProgram(t, exe, path("sandbox.test"))
	if err := os.WriteFile(path("shim"), sandbox.Shim(), 0o755); err != nil {
		t.Fatal(err)
	}
	probe := exec.Command("go", "build", "-trimpath", "-o", path("probe"), "github.com/kickhq/kick/sandbox/sandboxtest/probe")
	probe.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	for _, sub := range []string{"home", "tmp"} {
		if err := os.Mkdir(path(sub), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path(sub), uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path("sandbox.test"), append([]string{"-test.count=1", "-test.v"}, flags...)...)
	cmd.Dir = path("home")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + path("home"), "TMPDIR=" + path("tmp"), "CI=" + os.Getenv("CI"),
		"KICK_TEST_SHIM=" + path("shim"), sandboxtest.ProbeEnv + "=" + path("probe"),
	}
	return cmd
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
