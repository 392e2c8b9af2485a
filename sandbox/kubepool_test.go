package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

const kubePoolEnv = "KICK_TEST_KUBE_POOL"

// poolNamespace makes a namespace with a pool of pods that stand by, for agents with
// the default limits.
func poolNamespace(t testing.TB, pods int) *kubetest.Namespace {
	t.Helper()
	c := kubetest.Open(t)
	shim := c.ShimImage(t, sandbox.Shim())
	n := c.Namespace(t, func(m *manifests.Kubernetes) {
		m.Image, m.Pool = c.Image, pods
		m.Standby = poolConfig(shim)
		m.Tiers = []manifests.Tier{{Name: manifests.NoTier, Pods: 50}}
	})
	useNamespace(t, n, shim)
	t.Setenv(kubePoolEnv, "agents")
	awaitStandbys(t, n, pods)
	return n
}

// poolConfig is what the pool and its launchers have in common.
func poolConfig(shim string) sandbox.KubernetesConfig {
	return sandbox.KubernetesConfig{KubernetesChoice: sandbox.KubernetesChoice{Pool: "agents", ShimImage: shim}, Alone: 15 * time.Second, RequestCPU: 0.01, RequestMemory: 32 << 20, RequestDisk: 64 << 20}
}

// awaitStandbys waits until so many pods are ready.
func awaitStandbys(t testing.TB, n *kubetest.Namespace, pods int) {
	t.Helper()
	n.Kubectl(t, "wait", "--for=jsonpath={.status.readyReplicas}="+fmt.Sprint(pods), "--timeout=180s", "--namespace", n.Name, "deployment/kick-pool-agents")
}

func newPool(change ...func(*sandbox.KubernetesConfig)) (*sandbox.Kubernetes, error) {
	c := poolConfig(os.Getenv(kubeShimEnv))
	c.Shim = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(sandbox.Shim())), nil }
	c.Dir, c.Kubeconfig, c.Namespace, c.Image = os.Getenv(kubeDirEnv), os.Getenv(kubeConfigEnv), os.Getenv(kubeNamespaceEnv), os.Getenv(kubetest.ImageEnv)
	for _, f := range change {
		f(&c)
	}
	return sandbox.NewKubernetes(c)
}

// poolKick is a kick of the pool's image and limits that marks its pod, and prints
// the marks that it finds.
func poolKick(t testing.TB, id string, out io.Writer) sandbox.LaunchSpec {
	return sandbox.LaunchSpec{
		ID: id, Agent: "test", Image: os.Getenv(kubetest.ImageEnv), Stdout: out,
		Command: []string{"sh", "-c", "cat /etc/hostname; cat /tmp/used $HOME/used used 2>/dev/null; echo used by " + id + " | tee /tmp/used $HOME/used used >/dev/null; ls -d /proc/[0-9]* | wc -l"},
		Env:     map[string]string{"PATH": sandboxtest.DefaultPath, "HOME": sandbox.HomeDir},
		Network: sandbox.NetworkNone, Workspace: sandbox.Workspace{Dir: t.TempDir()},
	}
}

// Many kicks at once have a pod each, which no other one has had, and the pool fills
// up again.
func TestKubePoolClaims(t *testing.T) {
	const kicks, pods = 20, 5
	n := poolNamespace(t, pods)
	l, err := newPool(func(c *sandbox.KubernetesConfig) { c.PoolWait = 5 * time.Minute })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if engines := kicksAtOnce(t, l, kicks); engines["a pod of pool agents"] != kicks {
		t.Errorf("%d kicks had %v", kicks, engines)
	}
	awaitStandbys(t, n, pods)
	left := n.Kubectl(t, "get", "pods", "--namespace", n.Name, "--selector", "kick.id", "--output", "name")
	if left != "" {
		t.Errorf("left: %s", left)
	}
}

// kicksAtOnce runs kicks, each of which is to have a pod that no other one has had.
// It counts what they had, as their results say.
func kicksAtOnce(t *testing.T, l *sandbox.Kubernetes, kicks int) map[string]int {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	hosts, engines := map[string]string{}, map[string]int{}
	for i := range kicks {
		id := fmt.Sprintf("claim-%d", i)
		var out bytes.Buffer
		spec := poolKick(t, id, &out)
		all.Go(func() {
			res, err := l.Run(context.Background(), spec)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || res.ExitCode != 0 {
				t.Errorf("%s: %v, %+v", id, err, res)
				return
			}
			host, rest, _ := strings.Cut(out.String(), "\n")
			if other, shared := hosts[host]; shared || strings.Contains(rest, "used by") {
				t.Errorf("%s and %s had the pod %s: %s", id, other, host, out.String())
			}
			_, engine, _ := strings.Cut(res.Isolation.Engine, "node kick-node, ")
			hosts[host] = id
			engines[engine]++
		})
	}
	all.Wait()
	return engines
}

// Two processes that claim at once have different pods: the API server decides.
func TestKubePoolProcesses(t *testing.T) {
	const processes, each = 2, 3
	if name := os.Getenv("KICK_TEST_POOL_PROCESS"); name != "" {
		l, err := newPool()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var all sync.WaitGroup
		for i := range each {
			var out bytes.Buffer
			spec := poolKick(t, fmt.Sprintf("race-%s-%d", name, i), &out)
			all.Go(func() {
				res, err := l.Run(context.Background(), spec)
				if err != nil || res.ExitCode != 0 || strings.Contains(out.String(), "used by") {
					t.Errorf("%v, %+v: %s", err, res, out.String())
				}
				host, _, _ := strings.Cut(out.String(), "\n")
				fmt.Printf("HOST %s\n", host)
			})
		}
		all.Wait()
		return
	}
	poolNamespace(t, 4) // fewer than there are kicks: some have a Job
	var all sync.WaitGroup
	var mu sync.Mutex
	hosts := map[string]bool{}
	for i := range processes {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKubePoolProcesses$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("KICK_TEST_POOL_PROCESS=%c", 'a'+i))
		all.Go(func() {
			out, err := cmd.CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if host, ok := strings.CutPrefix(strings.TrimSpace(line), "HOST "); ok {
					if hosts[host] {
						t.Errorf("two kicks had %s", host)
					}
					hosts[host] = true
				}
			}
		})
	}
	all.Wait()
	if len(hosts) != processes*each {
		t.Errorf("%d kicks had %d pods", processes*each, len(hosts))
	}
}

// A kick whose pod would be another has a Job, and the Result says why.
func TestKubePoolCold(t *testing.T) {
	n := poolNamespace(t, 1)
	l, err := newPool()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, c := range map[string]struct {
		id     string
		change func(*sandbox.LaunchSpec)
		engine string
	}{
		"limits": {"cold-limits", func(s *sandbox.LaunchSpec) { s.Limits.Memory = 1 << 30 }, "a Job, since of pool agents its sandboxes have another image, shim, limits or keys"},
		"fits":   {"cold-fits", func(*sandbox.LaunchSpec) {}, "a pod of pool agents"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			spec := poolKick(t, c.id, &out)
			c.change(&spec)
			res, err := l.Run(context.Background(), spec)
			if err != nil || res.ExitCode != 0 || !strings.HasSuffix(res.Isolation.Engine, ", "+c.engine) {
				t.Errorf("%v, %q, %+v", err, res.Isolation.Engine, res)
			}
		})
	}
	n.Kubectl(t, "scale", "--replicas=0", "--namespace", n.Name, "deployment/kick-pool-agents")
	n.Kubectl(t, "wait", "--for=delete", "--timeout=60s", "--namespace", n.Name, "pods", "--selector", "kick.standby")
	spec := poolKick(t, "cold-none", io.Discard)
	res, err := l.Run(context.Background(), spec)
	if err != nil || !strings.HasSuffix(res.Isolation.Engine, ", a Job, since of pool agents none was ready") {
		t.Errorf("%v, %q", err, res.Isolation.Engine)
	}
}

// A pod that somebody has marked as standing by once more, or has put a container into,
// is not taken, and a pool that has no other makes no kick fail.
func TestKubePoolTampered(t *testing.T) {
	n := poolNamespace(t, 3)
	pods := strings.Fields(n.Kubectl(t, "get", "pods", "--namespace", n.Name, "--selector", "kick.standby", "--output", "name"))
	if len(pods) != 3 {
		t.Fatalf("there are %q", pods)
	}
	n.Kubectl(t, "label", pods[0], "--namespace", n.Name, "kick.id=another")
	n.Kubectl(t, "patch", pods[1], "--namespace", n.Name, "--patch", `{"spec": {"activeDeadlineSeconds": 600}}`)
	n.Kubectl(t, "debug", pods[2], "--namespace", n.Name, "--profile=restricted", "--image="+n.Image, "--", "sleep", "600")
	l, err := newPool()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	res, err := l.Run(context.Background(), poolKick(t, "tampered", io.Discard))
	if err != nil || res.ExitCode != 0 || !strings.HasSuffix(res.Isolation.Engine, ", a Job, since of pool agents none was ready") {
		t.Errorf("%v, %q, %+v", err, res.Isolation.Engine, res)
	}
	if left := n.Kubectl(t, "get", "pods", "--namespace", n.Name, "--selector", "kick.standby", "--output", "name"); len(strings.Fields(left)) != 3 {
		t.Errorf("left of those that no kick has had: %q", left)
	}
}

// TestKubePoolContract holds kicks of a pool to the launcher contract. Those whose
// limits are not the pool's have a Job.
func TestKubePoolContract(t *testing.T) {
	var remains func() ([]string, error)
	if os.Getenv(kubeConfigEnv) == "" { // the suite's other processes have it
		n := poolNamespace(t, 4)
		remains = func() ([]string, error) {
			return strings.Fields(n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--selector", "!kick.standby,app.kubernetes.io/name!=kick-images", "--output", "name")), nil
		}
	}
	h := kubeHarness(remains)
	h.New = func() (sandbox.Launcher, error) {
		return newPool(func(c *sandbox.KubernetesConfig) { c.PoolWait = time.Minute })
	}
	sandboxtest.TestLauncher(t, h)
}

// orphanEnv has the directory of the workspace of a kick whose process is to die.
const orphanEnv = "KICK_TEST_KUBE_ORPHAN"

// orphan has another process die while its kick runs, and returns the directory of
// the workspace. That process is this test again, and runs the kick.
func orphan(t *testing.T, run func(dir string) error) (dir string) {
	t.Helper()
	if dir := os.Getenv(orphanEnv); dir != "" {
		t.Fatal("it was to be killed", run(dir))
	}
	dir = filepath.Join(t.TempDir(), "workspace")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), orphanEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	for said.Scan() && said.Text() != "it runs" {
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	return dir
}

// poolOrphan is an orphan that has a claimed pod.
func poolOrphan(t *testing.T, id string, change ...func(*sandbox.KubernetesConfig)) (dir string) {
	t.Helper()
	return orphan(t, func(dir string) error {
		l, err := newPool(change...)
		if err != nil {
			return err
		}
		spec := poolKick(t, id, os.Stdout)
		spec.Workspace.Dir, spec.Workspace.Sink = dir, &artifactSink{}
		spec.Command = []string{"sh", "-c", "echo made here >made; echo it runs; sleep 600"}
		_, err = l.Run(context.Background(), spec)
		return err
	})
}

// What a process leaves that dies while it has a claimed pod, another one of the
// same state takes the work out of, and removes.
func TestKubePoolOrphan(t *testing.T) {
	const id = "pool-orphan"
	if os.Getenv(orphanEnv) != "" {
		poolOrphan(t, id)
	}
	n := poolNamespace(t, 1)
	dir := poolOrphan(t, id)
	deadline := n.Kubectl(t, "get", "pods", "--namespace", n.Name, "--selector", "kick.id="+id, "--output", "jsonpath={.items[*].spec.activeDeadlineSeconds}{.items[*].metadata.ownerReferences}")
	if deadline == "" || strings.Contains(deadline, "ReplicaSet") {
		t.Errorf("the claimed pod's deadline and owners: %q", deadline)
	}
	l, err := newPool()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sink := &artifactSink{}
	spec := poolKick(t, id, nil)
	spec.Command, spec.Workspace.Dir, spec.Workspace.Sink = nil, dir, sink
	// Who is told to stop while the work comes has all of it first: it is nowhere else.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	spec.Workspace.Sink = cancellingSink{sink, cancel}
	res, err := l.Run(ctx, spec)
	if err != nil || ctx.Err() == nil || !strings.Contains(sink.content(sandbox.DirtyArchive), "made here") {
		t.Errorf("%v, %+v", err, res)
	}
	if left := n.Kubectl(t, "get", "pods", "--namespace", n.Name, "--selector", "kick.id", "--output", "name"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// cancellingSink is a sink of a run that is cancelled when the first artifact comes.
type cancellingSink struct {
	*artifactSink
	cancel context.CancelFunc
}

func (s cancellingSink) Create(a sandbox.Artifact, name string) (sandbox.SinkWriter, error) {
	s.cancel()
	return s.artifactSink.Create(a, name)
}

// A claimed pod whose kick is dead is the reaper's when its time is over, and not
// before, since it has work; a standby is not.
func TestKubePoolReap(t *testing.T) {
	const id = "pool-reap"
	if os.Getenv(orphanEnv) != "" {
		poolOrphan(t, id)
	}
	n := poolNamespace(t, 1)
	poolOrphan(t, id)
	awaitStandbys(t, n, 1)
	l, err := newPool()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if removed, err := l.Reap(context.Background()); err != nil || len(removed) > 0 {
		t.Errorf("%v, %v before its time", removed, err)
	}
	n.Kubectl(t, "annotate", "pods", "--namespace", n.Name, "--selector", "kick.id="+id, "--overwrite", "kick.lifetime=0s")
	removed, err := l.Reap(context.Background())
	if err != nil || !slices.Equal(removed, []string{id}) {
		t.Errorf("%v, %v", removed, err)
	}
	left := n.Kubectl(t, "get", "pods", "--namespace", n.Name, "--selector", "kick.pool", "--output", "jsonpath={.items[*].metadata.labels.kick\\.standby}")
	if strings.TrimSpace(left) != "true" {
		t.Errorf("left, by their label: %q", left)
	}
}

// Without any one of the verbs that a pool takes a kick fails and names it.
func TestKubePoolVerbs(t *testing.T) {
	for i, r := range sandbox.KubernetesPoolRules {
		for j, verb := range r.Verbs {
			t.Run(verb+" "+r.Resource, func(t *testing.T) {
				n := poolNamespace(t, 1)
				n.Kubectl(t, "patch", "role", "kick", "--namespace", n.Name, "--type", "json",
					"--patch", fmt.Sprintf(`[{"op": "remove", "path": "/rules/%d/verbs/%d"}]`, len(sandbox.KubernetesRules)+i, j))
				l, err := newPool()
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				_, err = l.Run(context.Background(), poolKick(t, "verbs-"+verb, io.Discard))
				if err == nil || !strings.Contains(err.Error(), verb) || !strings.Contains(err.Error(), r.Resource) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// BenchmarkKubePool measures from the call of Run to the agent's first line, of a
// pod that stood by and of a Job in turn.
func BenchmarkKubePool(b *testing.B) {
	n := poolNamespace(b, 2)
	pool, err := newPool(func(c *sandbox.KubernetesConfig) { c.PoolWait = time.Minute })
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	jobs, err := newPool(func(c *sandbox.KubernetesConfig) { c.Pool = "" })
	if err != nil {
		b.Fatal(err)
	}
	defer jobs.Close()
	took := map[*sandbox.Kubernetes][]float64{}
	for i := 0; b.Loop(); i++ {
		for name, l := range map[string]*sandbox.Kubernetes{"pool": pool, "job": jobs} {
			awaitStandbys(b, n, 2)
			took[l] = append(took[l], float64(toFirstLine(b, l, fmt.Sprintf("bench-%s-%d", name, i)).Microseconds())/1000)
		}
	}
	median := func(l *sandbox.Kubernetes) float64 { slices.Sort(took[l]); return took[l][len(took[l])/2] }
	b.ReportMetric(median(pool), "pool-ms")
	b.ReportMetric(median(jobs), "job-ms")
	b.ReportMetric(median(jobs)/median(pool), "job/pool")
	b.ReportMetric(0, "ns/op")
}

// toFirstLine runs a kick, and returns how long it took to its first line.
func toFirstLine(b *testing.B, l *sandbox.Kubernetes, id string) time.Duration {
	b.Helper()
	first := &firstLine{}
	spec, began := poolKick(b, id, first), time.Now()
	if res, err := l.Run(context.Background(), spec); err != nil || res.ExitCode != 0 || first.at.IsZero() {
		b.Fatalf("%v, %+v", err, res)
	}
	return first.at.Sub(began)
}

// firstLine notes when something was written first.
type firstLine struct{ at time.Time }

func (f *firstLine) Write(p []byte) (int, error) {
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return len(p), nil
}
