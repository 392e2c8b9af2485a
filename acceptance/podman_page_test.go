package acceptance

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/podmantest"
)

// TestPodmanPage does what docs/podman.md says, its sh blocks one after the other,
// on each service that scripts/podman.sh started, as the service's user.
func TestPodmanPage(t *testing.T) {
	services := podmantest.Services(t)
	script := "set -eu\n" + strings.Join(pageBlocks(t, "podman.md", 3), "")
	for _, s := range services {
		t.Run(s.Name(), func(t *testing.T) {
			out := asServiceUser(t, s, script)
			if lines := strings.Split(strings.TrimSpace(out), "\n"); lines[len(lines)-1] != "hello" {
				t.Errorf("the page ends with:\n%s", out)
			}
		})
	}
}

// asServiceUser runs a script as the user of a service, with kick and the
// service's podman in its PATH, in a new directory, and returns what it says.
func asServiceUser(t *testing.T, s podmantest.Service, script string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "kick-page-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, sub := range []string{"bin", "home", "cache"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "", "cp", kick, filepath.Join(dir, "bin/kick"))
	run(t, "", "ln", "-s", s.Settings["KICK_PODMAN"], filepath.Join(dir, "bin/podman"))
	if apt := filepath.Join(cacheDir(t), "apt"); exists(apt) {
		run(t, "", "cp", "-r", apt, filepath.Join(dir, "cache")) // spares the downloads
	}
	run(t, "", "chown", "-hR", fmt.Sprint(s.UID, ":", s.GID), dir)

	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = filepath.Join(dir, "home")
	cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "TMPDIR=" + dir, "KICK_CACHE=" + filepath.Join(dir, "cache"), "PODMAN_IGNORE_CGROUPSV1_WARNING=1"}
	for name, value := range s.Settings {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Env = append(cmd.Env, "HOME="+cmd.Dir)
	s.As(cmd)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("as %s: %v\n%s", s.User, err, out.String())
	}
	return out.String()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
