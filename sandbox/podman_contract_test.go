package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/podman"
	"github.com/kickhq/kick/internal/podmantest"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

// TestPodman runs every test of one service on each of them.
func TestPodman(t *testing.T) {
	for _, s := range podmantest.Services(t) {
		t.Run(s.Name(), func(t *testing.T) { asServiceUser(t, s) })
	}
}

// asServiceUser runs this program's tests of one service in another process.
func asServiceUser(t *testing.T, s podmantest.Service) {
	pattern := os.Getenv("KICK_TEST_PODMAN_RUN")
	if pattern == "" {
		pattern = "^TestOnPodman"
	}
	cmd := testsOf(t, s.UID, s.GID, "-test.run="+pattern, fmt.Sprint("-test.timeout=", timeLeft(t)))
	cmd.Env = append(cmd.Env, sandbox.PodmanChildEnv+"="+s.Dir)
	for _, name := range []string{podmantest.ImageEnv, "KICK_TEST_REPEAT"} {
		cmd.Env = append(cmd.Env, name+"="+os.Getenv(name))
	}
	for _, name := range []string{"CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "XDG_RUNTIME_DIR", "KICK_PODMAN"} {
		cmd.Env = append(cmd.Env, name+"="+s.Settings[name])
	}
	s.As(cmd)
	out, err := cmd.CombinedOutput()
	t.Logf("as user %s:\n%s", s.User, out)
	if err != nil {
		t.Errorf("on %s: %v", s.Dir, err)
	}
}

// timeLeft is what this program may take, or 0, no limit.
func timeLeft(t *testing.T) time.Duration {
	deadline, limited := t.Deadline()
	if !limited {
		return 0
	}
	return time.Until(deadline)
}

func newPodman() (*sandbox.Podman, error) { return sandbox.NewPodman(sandbox.PodmanTestConfig()) }

// TestOnPodmanContract holds the Podman runtime to the launcher contract.
func TestOnPodmanContract(t *testing.T) {
	sandbox.OnService(t)
	sandboxtest.TestLauncher(t, sandboxtest.Harness{
		New:     func() (sandbox.Launcher, error) { return newPodman() },
		Image:   os.Getenv(podmantest.ImageEnv),
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
