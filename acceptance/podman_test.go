package acceptance

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/internal/modeltest"
	"github.com/kickhq/kick/internal/podmantest"
	"github.com/kickhq/kick/manager"
)

// TestPodman runs the same kicks in the embedded sandbox and on each Podman
// service that KICK_TEST_PODMAN names, as the service's user, and compares what
// came of them.
func TestPodman(t *testing.T) {
	for _, s := range podmantest.Services(t) {
		t.Run(s.Name(), func(t *testing.T) { podmanLikeEmbedded(t, s) })
	}
}

// podmanCases are agents, one for each way in which a kick can end.
var podmanCases = []struct {
	name, script string
	flags        []string
	want         manager.Code
}{
	{"a commit", "echo hi >f; git add f; git commit -qm f", nil, manager.Published},
	{"two commits and a file left", "for i in 1 2; do echo $i >f; git add f; git commit -qm $i; done; echo left >g", nil, manager.Published},
	{"no network", "echo hi >f; git add f; git commit -qm f", []string{"--network", "none"}, manager.Published},
	{"nothing", "true", nil, manager.Nothing},
	{"only uncommitted work", "echo left >g", nil, manager.Nothing},
	{"another branch and a stash", "git checkout -qb other; echo o >o; git add o; git commit -qm o; git checkout -q -; echo s >README.md; git stash -q", nil, manager.Nothing},
	{"a failure", "echo hi >f; git add f; git commit -qm f; exit 3", nil, manager.AgentFailed},
	{"a signal", "kill -KILL $$", nil, manager.AgentFailed},
	{"no such command", "", nil, manager.RuntimeError},
	{"a time limit", "echo hi >f; git add f; git commit -qm f; sleep 60", []string{"--timeout", "3s"}, manager.TimedOut},
	{"too much memory", "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}", []string{"--memory", "64MiB"}, manager.AgentFailed},
	{"a key in an intermediate commit", "printf 'id = AKIA%s\\n' V6NQ2RSTW4XYZ7LM >c; git add c; git commit -qm one; echo >c; git commit -qam two", nil, manager.Refused},
	{"a workflow", "mkdir -p .github/workflows; echo 'on: push' >.github/workflows/x.yml; git add -A; git commit -qm ci", nil, manager.Refused},
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

func podmanLikeEmbedded(t *testing.T, s podmantest.Service) {
	u := newServiceUser(t, s)
	dir := u.dir
	asUser := func(t *testing.T, bare string, args ...string) map[string]any {
		cmd := u.command(append([]string{"run", "-o", "json", "--repo", bare, "--publish", "branch"}, args...)...)
		return objectOf(t, cmd)
	}
	for _, c := range podmanCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			command := []string{"--", "sh", "-c", c.script}
			if c.script == "" {
				command = []string{"--", "no-such-command"}
			}
			outcomes := map[string]map[string]any{}
			for runtime, flags := range map[string][]string{"embedded": nil, "podman": {"--runtime", "podman", "--image", os.Getenv(podmantest.ImageEnv)}} {
				bare := filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-")+"-"+runtime+".git")
				run(t, "", "cp", "-rp", filepath.Join(dir, "base.git"), bare)
				outcomes[runtime] = asUser(t, bare, slices.Concat(c.flags, flags, command)...)
			}
			e, p := outcomes["embedded"], outcomes["podman"]
			if p["outcome"] != string(c.want) {
				t.Errorf("podman: %v, want %s: %v", p["outcome"], c.want, p["error"])
			}
			for _, field := range []string{"outcome", "exitCode", "agent", "base", "baseCommit", "commits", "files", "reason", "agentExit", "unpublished", "missing", "egress"} {
				if !reflect.DeepEqual(e[field], p[field]) {
					t.Errorf("%s: embedded %v, podman %v", field, e[field], p[field])
				}
			}
			delete(p, "image")
			if names, want := slices.Sorted(maps.Keys(p)), slices.Sorted(maps.Keys(e)); !slices.Equal(names, want) {
				t.Errorf("podman's object has %q, embedded's %q", names, want)
			}
			if isolation := p["isolation"].(map[string]any); isolation["runtime"] != "podman" || c.want != manager.RuntimeError && len(isolation["properties"].([]any)) == 0 {
				t.Errorf("isolation %v", isolation)
			}
		})
	}
}

// TestPodmanCrash kills kick in mid-run. The container ends with it, the next kick
// says so, and `kick gc` takes the work out as it was then: a commit, and what was
// not committed.
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
			next, err := podmanRun("true").CombinedOutput()
			if !strings.Contains(string(next), "kick gc") {
				t.Errorf("the next kick does not tell of the dead one: %v\n%s", err, next)
			}
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
