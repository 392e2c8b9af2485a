package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/sandbox"
)

// kubeKick is one run in a namespace of a real cluster.
type kubeKick struct {
	n    *kubetest.Namespace
	l    *sandbox.Kubernetes
	spec sandbox.LaunchSpec
	sink *artifactSink
	out  *waitFor // its output; seen is closed when it said "ready"
	end  chan kubeEnd
}

type kubeEnd struct {
	res sandbox.Result
	err error
}

// newKubeKick makes one that runs a script. change may change how the launcher is
// configured.
func newKubeKick(t *testing.T, n *kubetest.Namespace, script string, change ...func(*sandbox.KubernetesConfig)) *kubeKick {
	t.Helper()
	config := sandbox.KubernetesConfig{
		Shim: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(sandbox.Shim())), nil },
		Dir:  t.TempDir(), Image: n.Image,
		KubernetesChoice: sandbox.KubernetesChoice{Kubeconfig: n.Kubeconfig, Namespace: n.Name, ShimImage: n.ShimImage(t, sandbox.Shim())},
	}
	for _, f := range change {
		f(&config)
	}
	l, err := sandbox.NewKubernetes(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(t.TempDir(), "workspace")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	k := &kubeKick{n: n, l: l, sink: &artifactSink{}, out: &waitFor{text: "ready", seen: make(chan struct{})}, end: make(chan kubeEnd, 1)}
	k.spec = sandbox.LaunchSpec{
		ID: kickid.New(), Agent: "test", Image: n.Image, Command: []string{"sh", "-c", script}, Stdout: k.out,
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}, Workspace: sandbox.Workspace{Dir: dir, Sink: k.sink},
		Limits: sandbox.Limits{Memory: 512 << 20, Disk: 64 << 20, Wall: 5 * time.Minute},
	}
	return k
}

// start runs it beside the test, which gets its end from wait.
func (k *kubeKick) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		res, err := k.l.Run(ctx, k.spec)
		k.end <- kubeEnd{res, err}
	}()
	t.Cleanup(cancel)
}

// ready waits until the agent has said so, for which the kick may not end.
func (k *kubeKick) ready(t *testing.T) {
	t.Helper()
	select {
	case <-k.out.seen:
	case e := <-k.end:
		t.Fatalf("the run ended too early: %s %s, %v", e.res.Reason, e.res.Detail, e.err)
	}
}

// wait waits for the end, and holds the namespace to having nothing of the kick.
func (k *kubeKick) wait(t *testing.T) kubeEnd {
	t.Helper()
	e := <-k.end
	if left := k.n.Kubectl(t, "get", "jobs,pods", "--namespace", k.n.Name, "--selector", "kick.id="+k.spec.ID, "--output", "name"); left != "" {
		t.Errorf("left: %s", left)
	}
	return e
}

// run starts it and waits.
func (k *kubeKick) run(t *testing.T) kubeEnd {
	t.Helper()
	k.start(t)
	return k.wait(t)
}

// says checks how a run ended: the reason, and a word of the error (of the
// detail, if there is none).
func (e kubeEnd) says(t *testing.T, reason sandbox.Reason, words ...string) {
	t.Helper()
	said := e.res.Detail
	if e.err != nil {
		said += " " + e.err.Error()
	}
	if e.res.Reason != reason {
		t.Errorf("the reason is %s, want %s: %s", e.res.Reason, reason, said)
	}
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("%q is not in: %s", w, said)
		}
	}
}

// shortly is for what is not to start.
func shortly(c *sandbox.KubernetesConfig) { c.Pending = 10 * time.Second }

// TestKubeFaultsBefore: what keeps a sandbox from starting is named, with what to
// do, and nothing has run.
func TestKubeFaultsBefore(t *testing.T) {
	t.Parallel()
	c := kubetest.Open(t)
	bare := c.ShimImage(t, sandbox.Shim()) // has the shim where an agent's image has none
	for name, f := range map[string]struct {
		manifests func(*manifests.Kubernetes)
		objects   string // for the namespace
		config    func(*sandbox.KubernetesConfig)
		spec      func(*sandbox.LaunchSpec)
		want      []string
	}{
		"image absent": {
			spec: func(s *sandbox.LaunchSpec) { s.Image = "localhost/absent@sha256:" + strings.Repeat("0", 64) },
			want: []string{"localhost/absent", "pull"},
		},
		"no shim in the image": {
			config: func(c *sandbox.KubernetesConfig) { c.ShimImage = "" },
			spec:   func(s *sandbox.LaunchSpec) { s.Image = bare },
			want:   []string{"does not start", "no such file or directory", "set shim_image"},
		},
		"quota full": {
			manifests: func(m *manifests.Kubernetes) { m.Tiers = []manifests.Tier{{Name: manifests.NoTier}} },
			config:    shortly,
			want:      []string{"exceeded quota: kick-none", "raise the ResourceQuota"},
		},
		"unschedulable": {
			config: func(c *sandbox.KubernetesConfig) { shortly(c); c.NodeSelector = map[string]string{"no": "such"} },
			want:   []string{"no node takes the pod", "node affinity/selector"},
		},
		"pod refused by admission": {
			objects: "apiVersion: v1\nkind: LimitRange\nmetadata: {name: small}\nspec: {limits: [{type: Container, max: {memory: 1Mi}}]}\n",
			want:    []string{"the pod was refused", "maximum memory usage"},
		},
		"priority class absent": {
			config: func(c *sandbox.KubernetesConfig) { c.PriorityClass = "no-such-class" },
			want:   []string{"no-such-class"},
		},
		"namespace absent": {
			config: func(c *sandbox.KubernetesConfig) { c.Namespace = "no-such-namespace" },
			want:   []string{"no-such-namespace"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := c.Namespace(t, func(m *manifests.Kubernetes) {
				if f.manifests != nil {
					f.manifests(m)
				}
			})
			if f.objects != "" {
				n.Apply(t, strings.Replace(f.objects, "metadata: {", "metadata: {namespace: "+n.Name+", ", 1))
			}
			k := newKubeKick(t, n, "echo ran", func(c *sandbox.KubernetesConfig) {
				if f.config != nil {
					f.config(c)
				}
			})
			if f.spec != nil {
				f.spec(&k.spec)
			}
			e := k.run(t)
			if e.err == nil || k.out.b.Len() > 0 {
				t.Errorf("it ran: %v, %q", e.err, k.out.b.String())
			}
			e.says(t, sandbox.ReasonStartFailed, f.want...)
		})
	}
}

// TestKubeFaultsWithin: what ends a running sandbox has its reason, and the work is
// kept where there is still a pod that has it.
func TestKubeFaultsWithin(t *testing.T) {
	t.Parallel()
	c := kubetest.Open(t)
	const work = "echo unfinished >work.txt; echo ready; "
	for name, f := range map[string]struct {
		script string
		fault  func(*testing.T, *kubeKick)
		reason sandbox.Reason
		words  []string
		saved  bool
	}{
		"memory limit":  {script: work + "head -c 1000m /dev/zero | tail >/dev/null", reason: sandbox.ReasonOutOfMemory, saved: true},
		"storage limit": {script: work + "head -c 200m /dev/zero >big; sleep 600", reason: sandbox.ReasonDiskLimit},
		"pod deleted": {
			script: work + "sleep 600", reason: sandbox.ReasonLost, words: []string{"deleted"},
			fault: func(t *testing.T, k *kubeKick) {
				k.n.Kubectl(t, "delete", "pod", "--namespace", k.n.Name, "--selector", "kick.id="+k.spec.ID, "--wait=false")
			},
		},
		"pod deleted by force": {
			script: work + "sleep 600", reason: sandbox.ReasonLost, words: []string{"deleted"},
			fault: func(t *testing.T, k *kubeKick) {
				k.n.Kubectl(t, "delete", "pod", "--namespace", k.n.Name, "--selector", "kick.id="+k.spec.ID, "--force", "--grace-period=0")
			},
		},
		"job deleted": {
			script: work + "sleep 600", reason: sandbox.ReasonLost, words: []string{"deleted"},
			fault: func(t *testing.T, k *kubeKick) {
				k.n.Kubectl(t, "delete", "job", "--namespace", k.n.Name, "kick-"+k.spec.ID, "--wait=false")
			},
		},
		"namespace deleted": {
			script: work + "sleep 600", reason: sandbox.ReasonLost, words: []string{"deleted"},
			fault: func(t *testing.T, k *kubeKick) {
				k.n.Kubectl(t, "delete", "namespace", k.n.Name, "--wait=false")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKubeKick(t, c.Namespace(t), f.script)
			k.start(t)
			k.ready(t)
			if f.fault != nil {
				f.fault(t, k)
			}
			e := k.wait(t)
			e.says(t, f.reason, f.words...)
			switch saved := slices.Contains(e.res.Artifacts, sandbox.DirtyArchive); {
			case f.saved && (!saved || !strings.Contains(k.sink.content(sandbox.DirtyArchive), "unfinished")):
				t.Errorf("the work is not saved: artifacts %v, missing %q", e.res.Artifacts, e.res.Missing)
			case !saved && len(e.res.Missing) == 0:
				t.Error("the work is neither saved nor said to be missing")
			}
		})
	}
}

// counting prints numbers for twelve seconds, on whose order and number a test
// sees what was lost or came twice.
const counting = `echo unfinished >work.txt; echo ready; i=0; while [ $i -lt 120 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 3`

// counted checks that a run of it went on to its end, with every byte once.
func (k *kubeKick) counted(t *testing.T, e kubeEnd) {
	t.Helper()
	want := "ready\n"
	for i := 1; i <= 120; i++ {
		want += fmt.Sprintln(i)
	}
	if got := k.out.b.String(); got != want {
		t.Errorf("the output has %d bytes of %d: %q", len(got), len(want), got)
	}
	if e.err != nil || e.res.Reason != sandbox.ReasonExited || e.res.ExitCode != 3 {
		t.Errorf("it ended with %s, code %d, %s: %v", e.res.Reason, e.res.ExitCode, e.res.Detail, e.err)
	}
	if !strings.Contains(k.sink.content(sandbox.DirtyArchive), "unfinished") {
		t.Errorf("the work is not there: artifacts %v, missing %q", e.res.Artifacts, e.res.Missing)
	}
}

// TestKubeFaultsCut: watches and streams that are cut are taken up again, whatever
// the instant.
func TestKubeFaultsCut(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	p := n.Proxy(t)
	k := newKubeKick(t, n, counting, throughProxy(t, n, p))
	k.start(t)
	k.ready(t)
	before := p.Connections()
	every := time.NewTicker(700 * time.Millisecond)
	defer every.Stop()
	cuts := 0
	for running := true; running; {
		select {
		case <-every.C:
			p.Cut()
			cuts++
		case e := <-k.end:
			running = false
			k.end <- e
		}
	}
	k.counted(t, k.wait(t))
	if cuts < 5 || p.Connections()-before < cuts {
		t.Errorf("%d cuts, %d connections since", cuts, p.Connections()-before)
	}
}

// TestKubeFaultsAPIServer: an API server that dies in mid-run and comes back costs
// nothing.
func TestKubeFaultsAPIServer(t *testing.T) {
	c := kubetest.OpenAlone(t)
	k := newKubeKick(t, c.Namespace(t), counting)
	k.start(t)
	k.ready(t)
	c.Kill(t, kubetest.APIServer)
	c.Start(t, kubetest.APIServer)
	k.counted(t, k.wait(t))
}

// TestKubeFaultsKubelet: the agent goes on while the kubelet is away, and all that
// it said comes when the kubelet is back.
func TestKubeFaultsKubelet(t *testing.T) {
	c := kubetest.OpenAlone(t)
	k := newKubeKick(t, c.Namespace(t), counting)
	k.start(t)
	k.ready(t)
	c.Stop(t, kubetest.Kubelet)
	c.Start(t, kubetest.Kubelet)
	k.counted(t, k.wait(t))
}

// alone is for what nobody comes to.
func alone(c *sandbox.KubernetesConfig) { c.Alone = 15 * time.Second }

// TestKubeFaultsAPIServerLong: an API server that is away for longer than any call is
// made again costs nothing either, as long as the pod waits.
func TestKubeFaultsAPIServerLong(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	p := n.Proxy(t)
	k := newKubeKick(t, n, counting, throughProxy(t, n, p))
	k.start(t)
	k.ready(t)
	p.Refuse(true)
	<-time.After(75 * time.Second)
	p.Refuse(false)
	k.counted(t, k.wait(t))
}

// TestKubeFaultsAPIServerLost: when the API server stays away for longer than the pod
// waits, the kick is lost and says why. The pod ends by itself, and what is left of it
// is the reaper's.
func TestKubeFaultsAPIServerLost(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	p := n.Proxy(t)
	k := newKubeKick(t, n, "echo ready; sleep 600", throughProxy(t, n, p), alone)
	k.start(t)
	k.ready(t)
	p.Refuse(true)
	e := <-k.end // it has to be there still
	e.says(t, sandbox.ReasonLost, "the line to the pod is cut", "remove the Job")
	if len(e.res.Missing) == 0 {
		t.Error("the work is neither saved nor said to be missing")
	}
	n.Kubectl(t, "wait", "--for=condition=Failed", "--timeout=120s", "--namespace", n.Name, "job/kick-"+k.spec.ID)
	p.Refuse(false)
	if removed, err := k.l.Reap(t.Context()); err != nil || !slices.Equal(removed, []string{k.spec.ID}) {
		t.Errorf("the reaper removed %v: %v", removed, err)
	}
}

// throughProxy has the launcher reach the API server by a proxy.
func throughProxy(t *testing.T, n *kubetest.Namespace, p *kubetest.Proxy) func(*sandbox.KubernetesConfig) {
	return func(c *sandbox.KubernetesConfig) {
		c.Kubeconfig = p.Kubeconfig
		c.Canaries = []string{n.APIServer(t).String()} // the proxy's own address is the pod's loopback
	}
}

// TestKubeFaultsNodeLost: a node that does not come back ends the kick as lost when the
// pod has waited in vain, if it still runs. What the API server still has of it goes
// when the node comes back after all.
func TestKubeFaultsNodeLost(t *testing.T) {
	kubetest.Soak(t)
	c := kubetest.OpenAlone(t)
	k := newKubeKick(t, c.Namespace(t), "echo ready; sleep 600", alone)
	k.start(t)
	k.ready(t)
	c.Kill(t, kubetest.Kubelet)
	e := <-k.end
	e.says(t, sandbox.ReasonLost, "the line to the pod is cut", "it or its pod is still there", "If its node is gone")
	if len(e.res.Missing) == 0 {
		t.Error("the work is neither saved nor said to be missing")
	}
	c.Start(t, kubetest.Kubelet)
	k.n.Kubectl(t, "wait", "--for=delete", "--timeout=120s", "--namespace", k.n.Name, "jobs,pods", "--selector", "kick.id="+k.spec.ID)
}

// otherwiseUsed are verbs that a run from its beginning to its end does not miss.
var otherwiseUsed = map[string]string{
	"get jobs":          "to take over what a dead kick has left",
	"get sandboxclaims": "as with Jobs",
	"create pods/exec":  "asked for by API servers of 1.35 and newer",
}

// TestKubeVerbs: without any one of the verbs that the manifests grant a run fails
// and names the verb. So the account has no verb too many.
func TestKubeVerbs(t *testing.T) {
	t.Parallel()
	c := kubetest.Open(t)
	for i, r := range sandbox.KubernetesRules {
		for j, verb := range r.Verbs {
			name := verb + " " + r.Resource
			if otherwiseUsed[name] != "" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				n := c.Namespace(t)
				n.Kubectl(t, "patch", "role", "kick", "--namespace", n.Name, "--type", "json",
					"--patch", fmt.Sprintf(`[{"op": "remove", "path": "/rules/%d/verbs/%d"}]`, i, j))
				k := newKubeKick(t, n, "true", shortly)
				k.start(t)
				e := <-k.end // what it made stays where it may not delete
				if e.err == nil || !strings.Contains(e.err.Error(), verb) || !strings.Contains(e.err.Error(), r.Resource) {
					t.Errorf("%s %s: %v", e.res.Reason, e.res.Detail, e.err)
				}
			})
		}
	}
}
