package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

// TestKubeManyJobs: a launcher that follows many kicks at once stays small and asks
// little. Their node is simulated. KICK_TEST_KUBE_JOBS says how many there are.
func TestKubeManyJobs(t *testing.T) {
	jobs := 100
	if text, set := os.LookupEnv("KICK_TEST_KUBE_JOBS"); set {
		var err error
		if jobs, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getenv(kubeConfigEnv) != "" { // the launcher's process, whose memory counts
		followMany(t, jobs)
		return
	}
	c := kubetest.Open(t)
	n := c.Namespace(t, func(m *manifests.Kubernetes) { m.Tiers = []manifests.Tier{{Name: manifests.NoTier, Pods: 2 * jobs}} })
	useNamespace(t, n, c.ShimImage(t, sandbox.Shim()))
	n.Simulate(t, simulatedNode)
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=1h")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "kicks at once") {
			t.Log(line)
		}
	}
	if left := n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name"); left != "" {
		t.Errorf("left: %.1000s", left)
	}
}

const simulatedNode = "simulated"

// followMany has so many kicks' pods run at once, and ends them.
func followMany(t *testing.T, jobs int) {
	l, err := newKube(func(c *sandbox.KubernetesConfig) {
		c.NodeSelector = map[string]string{"kubernetes.io/hostname": simulatedNode}
		for _, taint := range kubetest.SimulatedTaints {
			c.Tolerations = append(c.Tolerations, sandbox.Toleration{Key: taint})
		}
		c.Pending = 30 * time.Minute
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir() // nothing is read from it
	began := time.Now()
	ends := make([]func() error, jobs)
	each := func(atOnce int, f func(i int) error) {
		var all sync.WaitGroup
		turns := make(chan struct{}, atOnce)
		for i := range jobs {
			turns <- struct{}{}
			all.Go(func() {
				defer func() { <-turns }()
				if err := f(i); err != nil {
					t.Errorf("kick %d: %v", i, err)
				}
			})
		}
		all.Wait()
	}
	each(jobs, func(i int) (err error) {
		ends[i], err = sandbox.KubePod(context.Background(), l, sandbox.LaunchSpec{
			ID: fmt.Sprintf("many-%d", i), Agent: "test", Image: os.Getenv(kubetest.ImageEnv), Command: []string{"true"}, Env: map[string]string{"PATH": sandboxtest.DefaultPath},
			Network: sandbox.NetworkNone, Workspace: sandbox.Workspace{Dir: dir},
		})
		return err
	})
	if t.Failed() {
		return
	}
	running := time.Since(began)
	// What goes with a Job the cluster's garbage collector removes, some tens a second.
	each(100, func(i int) error { return ends[i]() })
	memory, calls := peakMemory(t), float64(l.Calls())/float64(jobs)
	t.Logf("%d kicks at once: all ran after %v, all were gone %v later; memory %d MB at most, %.2f calls a kick before and after what is said to its shim",
		jobs, running.Round(time.Second), (time.Since(began) - running).Round(time.Second), memory, calls)
	if memory > 300 {
		t.Errorf("the launcher had %d MB of memory", memory)
	}
	if calls > 12 {
		t.Errorf("%.1f calls a kick", calls)
	}
}

var highWater = regexp.MustCompile(`(?m)^VmHWM:\s+([0-9]+) kB$`)

// peakMemory is the most resident memory that this process ever had, in MB.
func peakMemory(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	m := highWater.FindSubmatch(bytes.TrimSpace(status))
	if m == nil {
		t.Fatalf("no VmHWM in %s", status)
	}
	kb, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kb / 1024
}
