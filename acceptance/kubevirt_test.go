package acceptance

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/kubevirttest"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/sandbox"
)

// machineEnds are some of ends, or with KICK_SOAK=1 all: each takes the start of a
// machine, on whose software CPU a commit takes seconds.
func machineEnds() (cases []agentCase) {
	few := []string{"two commits and a file left", "a failure", "a time limit", "a key in an intermediate commit"}
	for _, c := range ends {
		if c.name == "a time limit" {
			c.flags, c.script = []string{"--timeout", "30s"}, strings.Replace(c.script, "sleep 60", "sleep 300", 1)
		}
		if os.Getenv("KICK_SOAK") == "1" || slices.Contains(few, c.name) {
			cases = append(cases, c)
		}
	}
	return cases
}

// onKubeVirt has KubeVirt stood in for in a namespace, whose account has the launcher's
// rights and more, and returns the flags by which kicks run there.
func onKubeVirt(t *testing.T, more ...sandbox.KubernetesRule) (*kubetest.Namespace, []string) {
	t.Helper()
	k, c := kubevirttest.Open(t)
	n := c.Namespace(t)
	k.Account(t, n, slices.Concat(sandbox.KubeVirtRules, more))
	return n, machineFlags(n)
}

func machineFlags(n *kubetest.Namespace) []string {
	return []string{"--runtime", "kubevirt", "--image", kubevirttest.Image, "--kubeconfig", n.Kubeconfig, "--namespace", n.Name, "--memory", "768MiB"}
}

// TestKubeVirtLikeEmbedded runs the same kicks in the embedded sandbox and in machines,
// and compares what came of them.
func TestKubeVirtLikeEmbedded(t *testing.T) {
	t.Parallel()
	n, flags := onKubeVirt(t)
	dir := t.TempDir()
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(kick, slices.Insert(args, 1, "--state-dir", filepath.Join(dir, "state"))...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
		return cmd
	}
	t.Run("kicks", func(t *testing.T) { // which are at once, and have all ended after that
		asEmbedded{runtime: "kubevirt", flags: flags, dir: t.TempDir(), seed: seedBare(t), command: command}.run(t, machineEnds())
	})
	if left := n.Kubectl(t, "get", "virtualmachineinstances,secrets", "--namespace", n.Name, "--output", "name"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind: %s", left)
	}
}

// TestKubeVirtKilled kills kick with SIGKILL when its agent has ended. `kick gc` comes
// to the shim that waits in the machine, takes the work, and leaves nothing.
func TestKubeVirtKilled(t *testing.T) {
	t.Parallel()
	n, flags := onKubeVirt(t)
	bare, state := seedBare(t), filepath.Join(t.TempDir(), "kick")
	cmd := exec.Command(buildCrashing(t), slices.Concat([]string{"run", "--state-dir", state, "--repo", bare, "--publish", "branch"}, flags,
		[]string{"--", "sh", "-c", "echo precious >work; git add work; git commit -qm precious; echo dirt >dirt"})...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "KICK_TEST_CRASH_AT=agent-exited")
	out, _ := cmd.CombinedOutput()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("kick was not killed: %v\n%s", cmd.ProcessState, out)
	}
	gc := exec.Command(kick, "gc", "--state-dir", state)
	gc.Env = append(os.Environ(), "KUBECONFIG="+n.Kubeconfig)
	said, err := gc.CombinedOutput()
	o := onlyOutcome(t, state)
	if o.Outcome != manager.Interrupted || err != nil || o.KeptAt == "" || len(o.Missing) > 0 {
		t.Fatalf("the work is lost: %+v, %v\n%s", o, err, said)
	}
	if left := n.Kubectl(t, "get", "virtualmachineinstances,secrets", "--namespace", n.Name, "--output", "name"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind: %s\n%s", left, said)
	}
	wantKept(t, bare, o)
}

// TestKubeVirtLingers: the machine of an agent of kick.yaml lingers, and its next kick
// for the repository has it. When that kick is killed with SIGKILL, kick gc takes the
// work, and leaves nothing.
func TestKubeVirtLingers(t *testing.T) {
	t.Parallel()
	n, _ := onKubeVirt(t, sandbox.KubeVirtPoolRules...)
	dir, bare := t.TempDir(), seedBare(t)
	state := filepath.Join(dir, "state")
	text := fmt.Sprintf(`
agent_sandbox:
  enabled: true
  runtime: kubevirt
  image: %s
  limits: {memory: 768MiB, cpus: 1}
  kubevirt: {kubeconfig: %s, namespace: %s, linger: {machines: 1, seconds: 600}}
agents:
  scanner: {command: [sh, -c, "echo precious >work; git add work; git commit -qm precious"], sandbox: {enabled: true}}
`, kubevirttest.Image, n.Kubeconfig, n.Name)
	if err := os.WriteFile(filepath.Join(dir, "kick.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	kicked := func(program string) *exec.Cmd {
		cmd := exec.Command(program, "run", "--agent", "scanner", "--state-dir", state, "-o", "json", "--repo", bare, "--publish", "branch")
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "KICK_TEST_CRASH_AT=agent-exited"}
		return cmd
	}
	// whose are the machines and the kicks that have them.
	whose := func() string {
		return n.Kubectl(t, "get", "virtualmachineinstances", "--namespace", n.Name, "--output", `jsonpath={range .items[*]}{.metadata.uid} {.metadata.labels.kick\.id}{"\n"}{end}`)
	}
	got, _ := objectOf(t, kicked(kick))
	isolation, _ := got["isolation"].(map[string]any)
	if engine, _ := isolation["engine"].(string); got["outcome"] != "published" || !strings.Contains(engine, "; it lingers until ") {
		t.Fatalf("%v, %q: %v", got["outcome"], engine, got["error"])
	}
	lingers := strings.Fields(whose())
	if len(lingers) != 1 {
		t.Fatalf("there are %q, want one machine and no kick", lingers)
	}
	cmd := kicked(buildCrashing(t))
	out, _ := cmd.CombinedOutput()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("kick was not killed: %v\n%s", cmd.ProcessState, out)
	}
	taken := strings.Fields(whose())
	if len(taken) != 2 || taken[0] != lingers[0] {
		t.Fatalf("there are %q, want %s with a kick", taken, lingers)
	}
	said, err := exec.Command(kick, "gc", "--state-dir", state).CombinedOutput()
	b, readErr := os.ReadFile(filepath.Join(state, "kicks", taken[1], "result.json"))
	var o manager.Outcome
	if err := errors.Join(err, readErr, json.Unmarshal(b, &o)); err != nil || o.Outcome != manager.Interrupted || len(o.Missing) > 0 {
		t.Fatalf("%v, %+v\n%s", err, o, said)
	}
	wantKept(t, bare, o)
	if left := n.Kubectl(t, "get", "virtualmachineinstances,secrets", "--namespace", n.Name, "--output", "name"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind: %s\n%s", left, said)
	}
}

// TestKubeVirtDoctor looks at the cluster, and proves a machine's properties.
func TestKubeVirtDoctor(t *testing.T) {
	t.Parallel()
	_, flags := onKubeVirt(t)
	out := onDoctor(t, flags)
	for _, want := range []string{"KubeVirt v1.5.0", "all that a kick needs", "machine-network", "disk-limit"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "is not ready") {
		t.Errorf("it says:\n%s", out)
	}
}

// TestKubeVirtDoctorWithout: where KubeVirt does not run, that is said.
func TestKubeVirtDoctorWithout(t *testing.T) {
	n := kubetest.OpenAlone(t).Namespace(t)
	if out := onDoctor(t, machineFlags(n)); !strings.Contains(out, "Install KubeVirt") {
		t.Errorf("without KubeVirt it says:\n%s", out)
	}
}

// onDoctor is what kick doctor says with the flags of a kick, less its limits.
func onDoctor(t *testing.T, flags []string) string {
	t.Helper()
	args := slices.Concat([]string{"doctor", "--state-dir", filepath.Join(t.TempDir(), "state")}, flags[:len(flags)-2])
	out, _ := exec.Command(kick, args...).CombinedOutput() // its answer is looked at
	return string(out)
}
