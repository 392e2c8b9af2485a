package acceptance

import (
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

// onKubeVirt stands in for KubeVirt in a namespace, and returns the flags by which
// kicks run there.
func onKubeVirt(t *testing.T) (*kubetest.Namespace, []string) {
	t.Helper()
	c := kubetest.OpenAlone(t)
	k := kubevirttest.Start(t, c)
	n := c.Namespace(t)
	k.Account(t, n, sandbox.KubeVirtRules)
	return n, []string{"--runtime", "kubevirt", "--image", kubevirttest.Image, "--kubeconfig", n.Kubeconfig, "--namespace", n.Name, "--memory", "768MiB"}
}

// TestKubeVirtLikeEmbedded runs the same kicks in the embedded sandbox and in machines,
// and compares what came of them.
func TestKubeVirtLikeEmbedded(t *testing.T) {
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

// TestKubeVirtDoctor looks at the cluster, and proves a machine's properties.
func TestKubeVirtDoctor(t *testing.T) {
	n, flags := onKubeVirt(t)
	state := filepath.Join(t.TempDir(), "state")
	doctor := func(flags ...string) string {
		out, _ := exec.Command(kick, slices.Concat([]string{"doctor", "--state-dir", state}, flags)...).CombinedOutput()
		return string(out)
	}
	out := doctor(flags[:len(flags)-2]...)
	for _, want := range []string{"KubeVirt v1.5.0", "all that a kick needs", "machine-network", "disk-limit"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "is not ready") {
		t.Errorf("it says:\n%s", out)
	}
	n.Kubectl(t, "delete", "apiservice", "v1.subresources.kubevirt.io")
	if out := doctor(flags[:len(flags)-2]...); !strings.Contains(out, "Install KubeVirt") {
		t.Errorf("without KubeVirt it says:\n%s", out)
	}
}
