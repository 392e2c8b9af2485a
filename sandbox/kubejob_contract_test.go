package sandbox_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

// What tells a test's other processes where its namespace is.
const (
	kubeConfigEnv    = "KICK_TEST_KUBE_CONFIG"
	kubeNamespaceEnv = "KICK_TEST_KUBE_NAMESPACE"
	kubeShimEnv      = "KICK_TEST_KUBE_SHIM"
	kubeDirEnv       = "KICK_TEST_KUBE_DIR"
	kubeClaimEnv     = "KICK_TEST_KUBE_CLAIM" // empty: workspaces are sent
)

// kubeNamespace makes a namespace for this test's launchers.
func kubeNamespace(t *testing.T, change ...func(*manifests.Kubernetes)) *kubetest.Namespace {
	t.Helper()
	c := kubetest.Open(t)
	n := c.Namespace(t, change...)
	useNamespace(t, n, c.ShimImage(t, sandbox.Shim()))
	return n
}

// useNamespace tells this test's other processes of a namespace.
func useNamespace(t testing.TB, n *kubetest.Namespace, shimImage string) {
	t.Helper()
	t.Setenv(kubeConfigEnv, n.Kubeconfig)
	t.Setenv(kubeNamespaceEnv, n.Name)
	t.Setenv(kubeShimEnv, shimImage)
	t.Setenv(kubeDirEnv, t.TempDir())
	// They would build the shim again.
	shim := filepath.Join(t.TempDir(), "shim")
	if err := os.WriteFile(shim, sandbox.Shim(), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KICK_TEST_SHIM", shim)
}

func newKube(change ...func(*sandbox.KubernetesConfig)) (*sandbox.Kubernetes, error) {
	c := sandbox.KubernetesConfig{
		Shim:             func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(sandbox.Shim())), nil },
		Dir:              os.Getenv(kubeDirEnv),
		KubernetesChoice: sandbox.KubernetesChoice{Kubeconfig: os.Getenv(kubeConfigEnv), Namespace: os.Getenv(kubeNamespaceEnv), ShimImage: os.Getenv(kubeShimEnv), Claim: os.Getenv(kubeClaimEnv)},
		Image:            os.Getenv(kubetest.ImageEnv),
		Alone:            15 * time.Second,
	}
	for _, f := range change {
		f(&c)
	}
	return sandbox.NewKubernetes(c)
}

// TestKubeContract holds the Kubernetes runtime to the launcher contract.
func TestKubeContract(t *testing.T) {
	var remains func() ([]string, error)
	if os.Getenv(kubeConfigEnv) == "" { // the suite's other processes have it
		n := kubeNamespace(t)
		remains = func() ([]string, error) {
			return strings.Fields(n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name")), nil
		}
	}
	h := kubeHarness(remains)
	h.New = func() (sandbox.Launcher, error) { return newKube() }
	sandboxtest.TestLauncher(t, h)
}

// kubeHarness is what all pods have in common in the contract's eyes.
func kubeHarness(remains func() ([]string, error)) sandboxtest.Harness {
	const copied = "the workspace is sent, so that the directory on this host never has the work"
	return sandboxtest.Harness{
		Image: os.Getenv(kubetest.ImageEnv),
		Sent:  true, Filtered: true,
		Remains: remains,
		Cannot: map[string]string{"WorkOnly": copied, "BaseObjects": "the base's objects are sent, and the sandbox's own",
			"Egress": "a pod has no Unix socket of the host: TestKubeEgress"},
	}
}

// A kick takes few calls: with a Job, with one whose workspace is on a claim that has no
// base yet, and with a pod of a pool, where there may be two more for each other kick that
// takes the same pod.
func TestKubeCalls(t *testing.T) {
	job := func(t *testing.T, change ...func(*manifests.Kubernetes)) {
		n := kubeNamespace(t, change...)
		if len(change) > 0 {
			claim, _ := n.Claim(t, "ReadWriteMany")
			t.Setenv(kubeClaimEnv, claim)
		}
	}
	for name, c := range map[string]struct {
		launcher func(*testing.T) (*sandbox.Kubernetes, error)
		engine   string
	}{
		"job":   {func(t *testing.T) (*sandbox.Kubernetes, error) { job(t); return newKube() }, "Kubernetes, node "},
		"claim": {func(t *testing.T) (*sandbox.Kubernetes, error) { job(t, mayLook); return newKube() }, "Kubernetes, node "},
		"pool":  {func(t *testing.T) (*sandbox.Kubernetes, error) { poolNamespace(t, 4); return newPool() }, "a pod of pool agents"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := c.launcher(t)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			fewCalls(t, l, c.engine)
		})
	}
}

// fewCalls runs kicks on one base, one after the other, and counts the calls of each.
// Those after the first have its watches. One that had to claim again has two calls more,
// so the best of three tells.
func fewCalls(t *testing.T, l *sandbox.Kubernetes, engine string) {
	t.Helper()
	const most, watches = 12, 4
	base := t.TempDir()
	if err := os.WriteFile(filepath.Join(base, "README.md"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	oid := commitAll(t, base)
	first := int64(0)
	for _, id := range []string{"calls-first", "calls-second", "calls-third", "calls-fourth"} {
		spec := poolKick(t, id, io.Discard)
		spec.Workspace.BaseOID, spec.Workspace.Objects, spec.Workspace.Sink = oid, filepath.Join(base, ".git/objects"), &artifactSink{}
		skeleton(t, spec.Workspace.Dir, oid)
		before, began := l.Calls(), time.Now()
		var events []string
		spec.OnEvent = func(e sandbox.Event) {
			events = append(events, string(e.Kind)+" "+e.Time.Sub(began).Round(time.Millisecond).String())
		}
		res, err := l.Run(context.Background(), spec)
		if err != nil || res.ExitCode != 0 || !strings.Contains(res.Isolation.Engine, engine) {
			t.Fatalf("%v, %+v", err, res)
		}
		calls := l.Calls() - before
		t.Logf("%s: %d calls, %v", id, calls, events)
		if calls > most {
			t.Errorf("%s: %d calls", id, calls)
		}
		if first == 0 {
			first = calls
		} else if calls <= first-watches {
			return
		}
	}
	t.Error("none of those after the first has fewer calls, so each has watches of its own")
}
