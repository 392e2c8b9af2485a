package sandbox_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/internal/podman"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

// The tests of the Podman runtime run on real services, which hack/podman.sh
// starts. KICK_TEST_PODMAN names the directories of one or several, and
// KICK_TEST_IMAGE an image that all of them have, with sh, git and coreutils.
const (
	servicesEnv = "KICK_TEST_PODMAN"
	imageEnv    = "KICK_TEST_IMAGE"
	// podmanChildEnv marks the process that runs the tests on one service, as
	// the service's user.
	podmanChildEnv = "KICK_TEST_PODMAN_CHILD"
)

// TestPodman runs every test of one service on each of them.
func TestPodman(t *testing.T) {
	services := strings.Fields(os.Getenv(servicesEnv))
	if len(services) == 0 {
		t.Skipf("%s names no Podman service: scripts/test.sh starts some", servicesEnv)
	}
	for _, dir := range services {
		t.Run(filepath.Base(dir), func(t *testing.T) { asServiceUser(t, dir) })
	}
}

// asServiceUser runs this program's tests of one service in another process.
func asServiceUser(t *testing.T, service string) {
	b, err := os.ReadFile(filepath.Join(service, "env"))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[name] = value
	}
	account, err := user.Lookup(env["KICK_PODMAN_USER"])
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	dir, err := os.MkdirTemp("", "kick-podman")
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
	pattern := os.Getenv("KICK_TEST_PODMAN_RUN")
	if pattern == "" {
		pattern = "^TestOnPodman"
	}
	cmd := exec.Command(path("sandbox.test"), "-test.run="+pattern, "-test.count=1", "-test.v", "-test.timeout=20m")
	cmd.Dir = path("home")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + path("home"), "TMPDIR=" + path("tmp"), "CI=" + os.Getenv("CI"),
		"KICK_TEST_SHIM=" + path("shim"), sandboxtest.ProbeEnv + "=" + path("probe"),
		"CONTAINER_HOST=" + env["CONTAINER_HOST"], imageEnv + "=" + os.Getenv(imageEnv), podmanChildEnv + "=" + service,
	}
	for _, name := range []string{"CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "XDG_RUNTIME_DIR", "KICK_PODMAN"} {
		cmd.Env = append(cmd.Env, name+"="+env[name])
	}
	cmd.Env = append(cmd.Env, "KICK_TEST_REPEAT="+os.Getenv("KICK_TEST_REPEAT"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if uid != os.Getuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	out, err := cmd.CombinedOutput()
	t.Logf("as user %s:\n%s", account.Username, out)
	if err != nil {
		t.Errorf("on %s: %v", service, err)
	}
}

// onService skips a test that is not in a process of asServiceUser.
func onService(t *testing.T) {
	t.Helper()
	if os.Getenv(podmanChildEnv) == "" {
		t.Skip("TestPodman runs this on each service")
	}
}

func newPodman() (*sandbox.Podman, error) { return sandbox.NewPodman(podmanConfig()) }

func podmanConfig() sandbox.PodmanConfig {
	return sandbox.PodmanConfig{
		Shim:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(sandbox.Shim())), nil },
		Dir:   filepath.Join(os.Getenv("HOME"), "podman"),
		Image: os.Getenv(imageEnv),
	}
}

// TestOnPodmanContract holds the Podman runtime to the launcher contract.
func TestOnPodmanContract(t *testing.T) {
	onService(t)
	sandboxtest.TestLauncher(t, sandboxtest.Harness{
		New:     func() (sandbox.Launcher, error) { return newPodman() },
		Image:   os.Getenv(imageEnv),
		Remains: ourContainers,
	})
}

// ourContainers lists what of kick the service has.
func ourContainers() ([]string, error) {
	socket, err := podman.Socket(os.Getenv("CONTAINER_HOST"))
	if err != nil {
		return nil, err
	}
	c := podman.New(socket)
	defer c.Close()
	list, err := c.List(context.Background(), "kick.id")
	var names []string
	for _, l := range list {
		names = append(names, l.Names...)
	}
	return names, err
}
