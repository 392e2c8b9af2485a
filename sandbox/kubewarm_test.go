package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

// openWarm is kubetest.Open of a cluster with agent-sandbox.
func openWarm(t testing.TB) *kubetest.Cluster {
	t.Helper()
	c := kubetest.Open(t)
	c.AgentSandbox(t)
	return c
}

// warmNamespace makes a namespace with a warm pool of agent-sandbox, which the real
// controller serves, for agents with the default limits.
func warmNamespace(t testing.TB, c *kubetest.Cluster, sandboxes int, change ...func(*manifests.Kubernetes)) *kubetest.Namespace {
	t.Helper()
	shim := c.ShimImage(t, sandbox.Shim())
	n := c.Namespace(t, append(change, func(m *manifests.Kubernetes) {
		m.Image, m.Pool = c.Image, sandboxes
		m.Standby = poolConfig(shim)
		inWarmPool(&m.Standby)
		if m.Tiers = slices.DeleteFunc(m.Tiers, func(t manifests.Tier) bool { return t.Name != manifests.NoTier }); m.Tiers[0].Pods > 0 {
			m.Tiers[0].Pods = 50
		}
	})...)
	useNamespace(t, n, shim)
	awaitWarm(t, n, sandboxes)
	return n
}

func inWarmPool(c *sandbox.KubernetesConfig) { c.Pool, c.WarmPool = "", "agents" }

// awaitWarm waits until so many sandboxes stand by.
func awaitWarm(t testing.TB, n *kubetest.Namespace, sandboxes int) {
	t.Helper()
	if sandboxes > 0 { // of none, nothing is said
		n.Kubectl(t, "wait", "--for=jsonpath={.status.readyReplicas}="+fmt.Sprint(sandboxes), "--timeout=180s", "--namespace", n.Name, "sandboxwarmpool/agents")
	}
}

func newWarm(t testing.TB, change ...func(*sandbox.KubernetesConfig)) *sandbox.Kubernetes {
	t.Helper()
	l, err := newPool(append([]func(*sandbox.KubernetesConfig){inWarmPool}, change...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// ofKicks lists what is in the namespace beside the sandboxes that stand by.
func ofKicks(t testing.TB, n *kubetest.Namespace) []string {
	t.Helper()
	return strings.Fields(n.Kubectl(t, "get", "jobs,sandboxclaims,sandboxes,pods", "--namespace", n.Name,
		"--selector", "!agents.x-k8s.io/warm-pool-sandbox,app.kubernetes.io/name!=kick-images", "--output", "name"))
}

// More kicks at once than sandboxes stand by have one each, which no other one has
// had: some of the pool, the others made for them. The pool fills up again, and
// nothing else is left.
func TestKubeWarm(t *testing.T) {
	const kicks, warm = 8, 3
	n := warmNamespace(t, openWarm(t), warm)
	engines := kicksAtOnce(t, newWarm(t), kicks)
	if engines["a pod of warm pool agents"] < warm {
		t.Errorf("of %d kicks, with %d sandboxes that stood by, they had %v", kicks, warm, engines)
	}
	awaitWarm(t, n, warm)
	if left := ofKicks(t, n); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A kick of a warm pool takes few calls: two more each time that the controller writes
// to its pod before the kick does.
func TestKubeWarmCalls(t *testing.T) {
	warmNamespace(t, openWarm(t), 4)
	fewCalls(t, newWarm(t), "a pod of warm pool agents")
}

// warmEach makes a warm pool of none for each kick's own image and limits, so that
// any kick has a claim.
type warmEach struct {
	*sandbox.Kubernetes
	apply  func(objects string) error
	choice sandbox.KubernetesChoice
}

func (l warmEach) Run(ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
	m := manifests.Default()
	m.Sandboxes, m.Image, m.Limits = l.choice.Namespace, spec.Image, spec.Limits
	m.Standby = poolConfig(l.choice.ShimImage)
	inWarmPool(&m.Standby)
	template, _, err := sandbox.NewSandboxWarmPool(m.Standby, spec.Image, spec.Limits, 0)
	if err != nil {
		return l.Kubernetes.Run(ctx, spec) // which is to find that
	}
	choice := l.choice
	choice.WarmPool = "shape-" + template.Labels["kick.shape"]
	m.Standby.WarmPool = choice.WarmPool
	objects, err := m.YAML()
	if err != nil {
		return sandbox.Result{}, err
	}
	// Of the manifests, the last two are the template and the pool.
	docs := strings.Split(string(objects), "---\n")
	if err := l.apply(strings.Join(docs[len(docs)-2:], "---\n")); err != nil {
		return sandbox.Result{}, err
	}
	return l.With(choice).Run(ctx, spec)
}

// TestKubeWarmContract holds kicks with claims to the launcher contract.
func TestKubeWarmContract(t *testing.T) {
	kubetest.Soak(t)
	c := kubetest.Open(t)
	var remains func() ([]string, error)
	if os.Getenv(kubeConfigEnv) == "" { // the suite's other processes have it
		c.AgentSandbox(t)
		n := warmNamespace(t, c, 1)
		remains = func() ([]string, error) { return ofKicks(t, n), nil }
	}
	h := kubeHarness(remains)
	h.OneMountPath = true
	h.New = func() (sandbox.Launcher, error) {
		l, err := newPool(inWarmPool)
		if err != nil {
			return nil, err
		}
		apply := func(objects string) error {
			cmd := c.KubectlCommand(c.Kubeconfig, "apply", "--server-side", "--filename", "-")
			cmd.Stdin = strings.NewReader(objects)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
		return warmEach{l, apply, sandbox.KubernetesChoice{Kubeconfig: os.Getenv(kubeConfigEnv), Namespace: os.Getenv(kubeNamespaceEnv), ShimImage: os.Getenv(kubeShimEnv)}}, nil
	}
	sandboxtest.TestLauncher(t, h)
}

// What a process leaves that dies while it has a claim, another one of the same
// state takes the work out of, and removes; or the reaper does, when its time is
// over. Until then the node and the controller have its deadline.
func TestKubeWarmOrphan(t *testing.T) {
	const id = "warm-orphan"
	if os.Getenv(orphanEnv) != "" {
		poolOrphan(t, id, inWarmPool)
	}
	n := warmNamespace(t, openWarm(t), 1)
	dir := poolOrphan(t, id, inWarmPool)
	for _, held := range []string{
		n.Kubectl(t, "get", "pods", "--namespace", n.Name, "--selector", "kick.id="+id, "--output", "jsonpath={.items[*].spec.activeDeadlineSeconds}"),
		n.Kubectl(t, "get", "sandboxclaim", "kick-"+id, "--namespace", n.Name, "--output", "jsonpath={.spec.lifecycle.shutdownTime}"),
	} {
		if held == "" {
			t.Error("the pod or the claim has no deadline")
		}
	}
	l, sink := newWarm(t), &artifactSink{}
	spec := poolKick(t, id, nil)
	spec.Command, spec.Workspace.Dir, spec.Workspace.Sink = nil, dir, sink
	res, err := l.Run(context.Background(), spec)
	if err != nil || !strings.Contains(sink.content(sandbox.DirtyArchive), "made here") {
		t.Errorf("%v, %+v", err, res)
	}
	if left := ofKicks(t, n); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	awaitWarm(t, n, 1)
	poolOrphan(t, id, inWarmPool)
	if removed, err := l.Reap(context.Background()); err != nil || len(removed) > 0 {
		t.Errorf("%v, %v before its time", removed, err)
	}
	n.Kubectl(t, "annotate", "sandboxclaim", "kick-"+id, "--namespace", n.Name, "--overwrite", "kick.lifetime=0s")
	removed, err := l.Reap(context.Background())
	if left := ofKicks(t, n); err != nil || !slices.Equal(removed, []string{id}) || len(left) > 0 {
		t.Errorf("%v, %v, left: %v", removed, err, left)
	}
}

// A claim whose kick died before it took the pod has no work: who collects for it
// removes it at once.
func TestKubeWarmUntaken(t *testing.T) {
	const id = "warm-untaken"
	n := warmNamespace(t, openWarm(t), 1)
	n.Apply(t, fmt.Sprintf(`apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxClaim
metadata: {name: kick-%s, namespace: %s, labels: {kick.id: %[1]s}, annotations: {kick.start: "1", kick.lifetime: 1h}}
spec: {warmPoolRef: {name: agents}}
`, id, n.Name))
	n.Kubectl(t, "wait", "--for=condition=Ready", "--timeout=60s", "--namespace", n.Name, "sandboxclaim/kick-"+id)
	spec := poolKick(t, id, nil)
	spec.Command, spec.Workspace.Sink = nil, &artifactSink{}
	if res, err := newWarm(t).Run(t.Context(), spec); err != nil || res.Reason != sandbox.ReasonLost {
		t.Errorf("%v, %+v", err, res)
	}
	awaitWarm(t, n, 1)
	if left := ofKicks(t, n); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// What keeps a claim from being served is named, with what to do, and nothing of it
// is left.
func TestKubeWarmFaultsBefore(t *testing.T) {
	c := openWarm(t)
	for name, f := range map[string]struct {
		quota  int
		fault  func(*testing.T, *kubetest.Namespace)
		config func(*sandbox.KubernetesConfig)
		spec   func(*sandbox.LaunchSpec)
		want   []string
	}{
		"no such pool": {quota: 1, config: func(c *sandbox.KubernetesConfig) { c.WarmPool = "others" }, want: []string{"find warm pool others", "not found", "kick manifests kubernetes"}},
		"other limits": {quota: 1, spec: func(s *sandbox.LaunchSpec) { s.Limits.Memory = 1 << 30 }, want: []string{"another image, shim, limits or keys", "kick manifests kubernetes"}},
		"no template": {
			quota: 1, want: []string{"TemplateNotFound", "kick manifests kubernetes"},
			fault: func(t *testing.T, n *kubetest.Namespace) {
				n.Kubectl(t, "delete", "sandboxtemplate", "agents", "--namespace", n.Name)
			},
		},
		"quota full": {config: shortly, want: []string{"exceeded quota: kick-none", "raise the ResourceQuota"}},
		"pod refused by admission": {
			quota: 1, want: []string{"the pod was refused", "maximum memory usage"},
			fault: func(t *testing.T, n *kubetest.Namespace) {
				n.Apply(t, "apiVersion: v1\nkind: LimitRange\nmetadata: {name: small, namespace: "+n.Name+"}\nspec: {limits: [{type: Container, max: {memory: 1Mi}}]}\n")
			},
		},
		"both pools": {quota: 1, config: func(c *sandbox.KubernetesConfig) { c.Pool = "agents" }, want: []string{"warm pool agents", "Name one of them"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := warmNamespace(t, c, 0, func(m *manifests.Kubernetes) { m.Tiers = []manifests.Tier{{Name: manifests.NoTier, Pods: f.quota}} })
			if f.fault != nil {
				f.fault(t, n)
			}
			l := newWarm(t, func(c *sandbox.KubernetesConfig) {
				if f.config != nil {
					f.config(c)
				}
			})
			var out bytes.Buffer
			spec := poolKick(t, "warm-before", &out)
			if f.spec != nil {
				f.spec(&spec)
			}
			startFails(t, l, spec, f.want...)
			if left := ofKicks(t, n); len(left) > 0 || out.Len() > 0 {
				t.Errorf("left: %v, said: %s", left, out.String())
			}
		})
	}
}

// startFails runs a kick that does not start.
func startFails(t *testing.T, l *sandbox.Kubernetes, spec sandbox.LaunchSpec, words ...string) {
	t.Helper()
	res, err := l.Run(context.Background(), spec)
	if err == nil {
		t.Error("it ran")
	}
	kubeEnd{res, err}.says(t, sandbox.ReasonStartFailed, words...)
}

// Without agent-sandbox's controller a claim waits in vain, and without its kinds
// there is none.
func TestKubeWarmAgentSandbox(t *testing.T) {
	c := kubetest.OpenAlone(t)
	c.AgentSandbox(t)
	n := warmNamespace(t, c, 0)
	c.Stop(t, kubetest.AgentSandbox)
	startFails(t, newWarm(t, shortly), poolKick(t, "warm-alone", io.Discard), "nothing has looked at the claim", "the controller of agent-sandbox runs")
	if left := ofKicks(t, n); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	t.Cleanup(func() { c.AgentSandbox(t) })
	c.Kubectl(t, "delete", "customresourcedefinitions", "sandboxclaims.extensions.agents.x-k8s.io", "sandboxwarmpools.extensions.agents.x-k8s.io")
	l := newWarm(t)
	startFails(t, l, poolKick(t, "warm-kinds", io.Discard), "the cluster has no SandboxWarmPools", "Install agent-sandbox")
	if removed, err := l.Reap(context.Background()); err != nil || len(removed) > 0 {
		t.Errorf("%v, %v", removed, err)
	}
}

// A sandbox that somebody ends is lost, and so is the one that agent-sandbox makes
// in its place: it is not the kick's.
func TestKubeWarmFaultsWithin(t *testing.T) {
	n := warmNamespace(t, openWarm(t), 1)
	for name, what := range map[string][]string{
		"pod":   {"pods", "--selector", "kick.id=warm-within", "--wait=false"},
		"claim": {"sandboxclaim", "kick-warm-within", "--wait=false"},
	} {
		t.Run(name, func(t *testing.T) {
			awaitWarm(t, n, 1)
			out := &waitFor{text: "ready", seen: make(chan struct{})}
			spec := poolKick(t, "warm-within", out)
			spec.Command = []string{"sh", "-c", "echo ready; sleep 600"}
			l, end := newWarm(t), make(chan kubeEnd, 1)
			go func() {
				res, err := l.Run(context.Background(), spec)
				end <- kubeEnd{res, err}
			}()
			select {
			case <-out.seen:
				n.Kubectl(t, append([]string{"delete", "--namespace", n.Name}, what...)...)
			case e := <-end:
				t.Fatalf("it ended too early: %+v, %v", e.res, e.err)
			}
			(<-end).says(t, sandbox.ReasonLost, "deleted")
			if left := ofKicks(t, n); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// Without any one of the verbs that a warm pool takes a kick fails and names it. So
// the account has no verb too many, and none that makes pods.
func TestKubeWarmVerbs(t *testing.T) {
	n := warmNamespace(t, openWarm(t), 1)
	for i, r := range sandbox.KubernetesWarmRules {
		for j, verb := range r.Verbs {
			name := verb + " " + r.Resource
			if laterVerbs[name] {
				continue
			}
			t.Run(name, func(t *testing.T) {
				awaitWarm(t, n, 1)
				put := func(verb string) {
					n.Kubectl(t, "patch", "role", "kick", "--namespace", n.Name, "--type", "json", "--patch", fmt.Sprintf(`[{"op": "replace", "path": "/rules/%d/verbs/%d", "value": %q}]`, i, j, verb))
				}
				put("no-such-verb")
				defer put(verb)
				id := fmt.Sprintf("warm-verbs-%d-%d", i, j)
				spec := poolKick(t, id, io.Discard)
				if toTakeOver[name] {
					spec.Command, spec.Workspace.Sink = nil, &artifactSink{}
				}
				l := newWarm(t, shortly)
				awaitLack(t, l, name)
				_, err := l.Run(context.Background(), spec)
				if err == nil && toReap[name] {
					_, err = l.Reap(context.Background())
				}
				if err == nil || !strings.Contains(err.Error(), verb) || !strings.Contains(err.Error(), r.Resource) {
					t.Errorf("%v", err)
				}
				n.Kubectl(t, "delete", "sandboxclaims", "--all", "--cascade=foreground", "--namespace", n.Name) // what it might not
			})
		}
	}
}

// BenchmarkKubeWarm measures from the call of Run to the agent's first line, of a
// sandbox that stood by.
func BenchmarkKubeWarm(b *testing.B) {
	n := warmNamespace(b, openWarm(b), 2)
	l := newWarm(b)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		awaitWarm(b, n, 2)
		took = append(took, toFirstLine(b, l, fmt.Sprintf("bench-warm-%d", i)))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "claim-ms")
	b.ReportMetric(0, "ns/op")
}
