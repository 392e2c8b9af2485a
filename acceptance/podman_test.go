package acceptance

import (
	"bytes"
	"encoding/json"
	"fmt"
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

func podmanLikeEmbedded(t *testing.T, s podmantest.Service) {
	dir, err := os.MkdirTemp("", "kick-podman-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "kick")
	run(t, "", "cp", kick, program)
	run(t, "", "cp", "-r", seedBare(t), filepath.Join(dir, "base.git"))
	run(t, "", "chmod", "755", dir)
	run(t, "", "chown", "-R", fmt.Sprint(s.UID, ":", s.GID), dir)

	asUser := func(t *testing.T, bare string, args ...string) map[string]any {
		cmd := exec.Command(program, append([]string{"run", "--state-dir", filepath.Join(dir, "state"), "-o", "json", "--repo", bare, "--publish", "branch"}, args...)...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "CONTAINER_HOST=" + s.Settings["CONTAINER_HOST"]}
		s.As(cmd)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // the object has the exit code
		var o map[string]any
		if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
			t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
		}
		if got := float64(cmd.ProcessState.ExitCode()); got != o["exitCode"] {
			t.Errorf("exit code %v, the object says %v", got, o["exitCode"])
		}
		return o
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
