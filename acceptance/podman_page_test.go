package acceptance

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestPodmanPage does what docs/podman.md says, its sh blocks one after the other,
// on each service that scripts/podman.sh started, as the service's user.
func TestPodmanPage(t *testing.T) {
	services := strings.Fields(os.Getenv("KICK_TEST_PODMAN"))
	if len(services) == 0 {
		t.Skip("KICK_TEST_PODMAN names no service: scripts/podman.sh starts some")
	}
	page, err := os.ReadFile("../docs/podman.md")
	if err != nil {
		t.Fatal(err)
	}
	script := "set -eu\n"
	blocks := strings.Split(string(page), "```sh\n")[1:]
	for _, b := range blocks {
		code, _, found := strings.Cut(b, "```")
		if !found {
			t.Fatalf("a block without an end: %.40q", b)
		}
		script += code
	}
	if len(blocks) < 3 {
		t.Fatalf("the page has %d blocks", len(blocks))
	}
	for _, service := range services {
		t.Run(filepath.Base(service), func(t *testing.T) {
			out := asServiceUser(t, service, script)
			if lines := strings.Split(strings.TrimSpace(out), "\n"); lines[len(lines)-1] != "hello" {
				t.Errorf("the page ends with:\n%s", out)
			}
		})
	}
}

// asServiceUser runs a script as the user of a service, with kick and the
// service's podman in its PATH, in a new directory, and returns what it says.
func asServiceUser(t *testing.T, service, script string) string {
	t.Helper()
	env, err := os.ReadFile(filepath.Join(service, "env"))
	if err != nil {
		t.Fatal(err)
	}
	value := func(name string) string {
		_, rest, _ := strings.Cut("\n"+string(env), "\n"+name+"=")
		v, _, _ := strings.Cut(rest, "\n")
		return v
	}
	account, err := user.Lookup(value("KICK_PODMAN_USER"))
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
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
	run(t, "", "ln", "-s", value("KICK_PODMAN"), filepath.Join(dir, "bin/podman"))
	if apt := filepath.Join(cacheDir(t), "apt"); exists(apt) {
		run(t, "", "cp", "-r", apt, filepath.Join(dir, "cache")) // spares the downloads
	}
	run(t, "", "chown", "-hR", fmt.Sprint(uid, ":", gid), dir)

	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = filepath.Join(dir, "home")
	cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "TMPDIR=" + dir, "KICK_CACHE=" + filepath.Join(dir, "cache"), "PODMAN_IGNORE_CGROUPSV1_WARNING=1"}
	for line := range strings.Lines(string(env)) {
		cmd.Env = append(cmd.Env, strings.TrimSpace(line))
	}
	cmd.Env = append(cmd.Env, "HOME="+cmd.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("as %s: %v\n%s", account.Username, err, out.String())
	}
	return out.String()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
