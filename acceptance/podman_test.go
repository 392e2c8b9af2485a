package acceptance

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/internal/modeltest"
	"github.com/kickhq/kick/internal/podman"
	"github.com/kickhq/kick/internal/podmantest"
	"github.com/kickhq/kick/manager"
)

// TestPodman runs the same kicks in the embedded sandbox and on each Podman
// service that KICK_TEST_PODMAN names, as the service's user, and compares what
// came of them.
func TestPodman(t *testing.T) {
	for _, s := range podmantest.Services(t) {
		t.Run(s.Name(), func(t *testing.T) {
			u := newServiceUser(t, s)
			asEmbedded{runtime: "podman", flags: []string{"--runtime", "podman", "--image", os.Getenv(podmantest.ImageEnv)}, dir: u.dir, seed: filepath.Join(u.dir, "base.git"), command: u.command}.run(t, everyAgent())
		})
	}
}

// serviceUser is the home of a service's user, with kick and a repository.
type serviceUser struct {
	dir     string
	seed    string // what the repository is a copy of
	service podmantest.Service
}

func newServiceUser(t *testing.T, s podmantest.Service) serviceUser {
	t.Helper()
	dir, err := os.MkdirTemp("", "kick-podman-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	run(t, "", "cp", kick, filepath.Join(dir, "kick"))
	seed := seedBare(t)
	run(t, "", "cp", "-r", seed, filepath.Join(dir, "base.git"))
	run(t, "", "chmod", "755", dir)
	run(t, "", "chown", "-R", fmt.Sprint(s.UID, ":", s.GID), dir)
	return serviceUser{dir, seed, s}
}

// state is the user's state directory.
func (u serviceUser) state() string { return filepath.Join(u.dir, "state") }

// command is kick, as the user.
func (u serviceUser) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(u.dir, "kick"), append(args[:1:1], append([]string{"--state-dir", u.state()}, args[1:]...)...)...)
	cmd.Dir = u.dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + u.dir, "CONTAINER_HOST=" + u.service.Settings["CONTAINER_HOST"]}
	u.service.As(cmd)
	return cmd
}

// TestPodmanCrash kills kick in mid-run. The container ends with it, the next kick
// removes what is left of it, says that work is there, and `kick gc` takes it out as it
// was then: a commit, and what was not committed.
func TestPodmanCrash(t *testing.T) {
	for _, s := range podmantest.Services(t) {
		t.Run(s.Name(), func(t *testing.T) {
			u := newServiceUser(t, s)
			podmanRun := func(script string) *exec.Cmd {
				return u.command("run", "--runtime", "podman", "--image", os.Getenv(podmantest.ImageEnv), "--publish", "none", "--repo", filepath.Join(u.dir, "base.git"), "--", "sh", "-c", script)
			}
			dead := podmanRun("echo precious >work; git add work; git commit -qm precious; echo dirt >dirt; echo ready; sleep 600")
			said, err := dead.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := dead.Start(); err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			lines := bufio.NewScanner(io.TeeReader(said, &log))
			for lines.Scan() && !strings.HasSuffix(lines.Text(), "ready") {
			}
			if err := dead.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = dead.Wait() // it was killed
			if !strings.Contains(log.String(), "ready") {
				t.Fatalf("the agent did not run:\n%s", log.String())
			}
			left := leaveContainers(t, s)
			next, err := podmanRun("true").CombinedOutput()
			if !strings.Contains(string(next), "kick gc") {
				t.Errorf("the next kick does not tell of the dead one: %v\n%s", err, next)
			}
			left(t)
			out, err := u.command("gc", "-o", "json").Output()
			var report manager.GCReport
			if err := errors.Join(err, json.Unmarshal(out, &report)); err != nil || len(report.Recovered) != 1 || len(report.Problems) > 0 {
				t.Fatalf("%v\n%s", err, out)
			}
			o := report.Recovered[0]
			if o.Outcome != manager.Interrupted || o.KeptAt == "" || len(o.Missing) > 0 {
				t.Fatalf("the work is not all there: %+v", o)
			}
			clone := filepath.Join(t.TempDir(), "c")
			run(t, "", "git", "clone", "-q", u.seed, clone)
			run(t, clone, "git", "fetch", "-q", filepath.Join(o.KeptAt, "final.bundle"), "HEAD:kept")
			if got := run(t, clone, "git", "show", "kept:work"); got != "precious\n" {
				t.Errorf("the kept work is %q", got)
			}
			if files := run(t, "", "tar", "-tf", filepath.Join(o.KeptAt, "dirty.tar")); !strings.Contains(files, "dirt") {
				t.Errorf("of what was not committed there is %q", files)
			}
		})
	}
}

// leaveContainers waits until Podman has removed the container of a kick that was
// killed, and makes what it would have left if killed before its start: one of the
// same name and labels. Beside it is one of somebody else's. What comes back holds that
// the first is gone and the second is not.
func leaveContainers(t *testing.T, s podmantest.Service) (check func(*testing.T)) {
	t.Helper()
	socket, err := podman.Socket(s.Settings["CONTAINER_HOST"])
	if err != nil {
		t.Fatal(err)
	}
	c := podman.New(socket)
	t.Cleanup(c.Close)
	ours := func(t *testing.T) []podman.Listed {
		t.Helper()
		list, err := c.List(t.Context(), "kick.owner")
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	running := ours(t)
	if len(running) != 1 || len(running[0].Names) != 1 {
		t.Fatalf("the killed kick's container is not the only one: %+v", running)
	}
	for until := time.Now().Add(time.Minute); len(ours(t)) > 0; {
		if time.Now().After(until) {
			t.Fatalf("Podman has not removed the container: %+v", ours(t))
		}
	}
	spec := podman.Spec{Image: os.Getenv(podmantest.ImageEnv), Entrypoint: []string{"true"}, NetNS: podman.Namespace{Mode: "none"}, Log: podman.LogConfig{Driver: "none"}}
	spec.Name, spec.Labels = running[0].Names[0], running[0].Labels
	if _, err := c.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	spec.Name, spec.Labels = "kick-bystander", map[string]string{"app": "kick"}
	others, err := c.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) {
		t.Helper()
		if left := ours(t); len(left) > 0 {
			t.Errorf("the next kick has left %+v", left)
		}
		if _, err := c.Inspect(t.Context(), others.ID); err != nil {
			t.Errorf("a container of others: %v", err)
		}
		if err := c.Remove(t.Context(), others.ID); err != nil {
			t.Error(err)
		}
	}
}

// TestPodmanCodex runs a real agent of the image in a container on each service
// of this user: its model is behind the gateway, and it has no other network.
func TestPodmanCodex(t *testing.T) {
	image := os.Getenv("KICK_TEST_CODEX_IMAGE")
	if image == "" {
		t.Skip("KICK_TEST_CODEX_IMAGE names no image with codex")
	}
	for _, s := range podmantest.Services(t) {
		if s.UID != os.Getuid() {
			continue
		}
		t.Run(s.Name(), func(t *testing.T) {
			t.Setenv("CONTAINER_HOST", s.Settings["CONTAINER_HOST"])
			p, h := newProvider(t), newHub(t, githubtest.Options{})
			o, kick := p.kick(t, h, "codex", "--runtime", "podman", "--image", image)
			p.wantPullRequest(t, h, o, kick, modeltest.Responses)
			if o.Isolation.Runtime != "podman" {
				t.Errorf("isolation %+v", o.Isolation)
			}
		})
	}
}
