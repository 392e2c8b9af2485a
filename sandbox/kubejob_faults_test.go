package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
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
		waits     string // said while it waits
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
			waits:     "exceeded quota: kick-none",
		},
		"unschedulable": {
			config: func(c *sandbox.KubernetesConfig) { shortly(c); c.NodeSelector = map[string]string{"no": "such"} },
			want:   []string{"no node takes the pod", "node affinity/selector"},
			waits:  "no node takes the pod",
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
			var waited string
			k.spec.OnEvent = func(e sandbox.Event) { waited += e.Why + "\n" }
			e := k.run(t)
			if e.err == nil || k.out.b.Len() > 0 {
				t.Errorf("it ran: %v, %q", e.err, k.out.b.String())
			}
			if !strings.Contains(waited, f.waits) {
				t.Errorf("while it waited it said %q, not %q", waited, f.waits)
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
		"memory limit": {script: work + "head -c 1000m /dev/zero | tail >/dev/null", reason: sandbox.ReasonOutOfMemory, saved: true},
		"memory limit neared": { // what is left is too little for programs to run in
			script: work + "{ head -c 470m /dev/zero; sleep 600; } | tail >/dev/null", reason: sandbox.ReasonOutOfMemory, saved: true,
		},
		"disk limit": {script: work + "for i in 1 2; do head -c 50m /dev/zero >$i; done; sleep 600", reason: sandbox.ReasonDiskLimit, saved: true},
		"disk limit, of files without a name": {
			script: work + "for i in 3 4; do eval \"exec $i>u\"; rm u; head -c 50m /dev/zero >&$i; done; sleep 600", reason: sandbox.ReasonDiskLimit, saved: true,
		},
		"ephemeral storage exceeded": { // where the shim does not look
			script: work + "for i in 1 2 3 4; do head -c 60m /dev/zero >" + path.Dir(sandbox.BaseObjectsPath) + "/$i; done; sleep 600",
			reason: sandbox.ReasonDiskLimit, words: []string{"the node evicted the pod", "exceeds the limit"},
		},
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
			k.onBase(t)
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
	k := newKubeKick(t, n, counting, throughProxy(p))
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

// TestKubeFaultsCutOutput: of much output, too, nothing is lost and nothing comes twice
// where its stream is cut.
func TestKubeFaultsCutOutput(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	p := n.Proxy(t)
	const lines, format = 100_000, "%0104d\n" // 10.5 MB
	k := newKubeKick(t, n, fmt.Sprintf(`echo ready; awk 'BEGIN { for (i = 1; i <= %d; i++) printf "%s", i }'`, lines, strings.ReplaceAll(format, "\n", `\n`)), throughProxy(p))
	var want strings.Builder
	want.WriteString("ready\n")
	for i := range lines {
		fmt.Fprintf(&want, format, i+1)
	}
	out, cuts := &awaited{want: want.String()}, 0
	out.every, out.then = 1<<20, func() { p.Cut(); cuts++ }
	k.spec.Stdout = out
	e := k.run(t)
	if e.err != nil || e.res.Reason != sandbox.ReasonExited || e.res.ExitCode != 0 || out.wrong != "" || out.got != len(out.want) {
		t.Errorf("%v, %s %s, %d bytes of %d, %s", e.err, e.res.Reason, e.res.Detail, out.got, len(out.want), out.wrong)
	}
	if cuts < 10 {
		t.Errorf("%d cuts", cuts)
	}
}

// awaited is an output of which is known what it must be. After every so many bytes
// something happens.
type awaited struct {
	want  string
	every int
	then  func()
	got   int
	wrong string
}

func (a *awaited) Write(p []byte) (int, error) {
	if rest := a.want[min(a.got, len(a.want)):]; a.wrong == "" && !strings.HasPrefix(rest, string(p)) {
		a.wrong = fmt.Sprintf("at byte %d came %.100q, want %.100q", a.got, p, rest)
	}
	before := a.got / a.every
	a.got += len(p)
	if a.got/a.every > before {
		a.then()
	}
	return len(p), nil
}

// TestKubeFaultsTakenAway: a pod that the cluster takes away before anything has run in
// it is made again, and not for ever.
func TestKubeFaultsTakenAway(t *testing.T) {
	t.Parallel()
	c := kubetest.Open(t)
	for name, f := range map[string]struct {
		times int // that it is taken away
		end   func(*testing.T, *kubeKick, kubeEnd)
	}{
		"twice": {2, func(t *testing.T, k *kubeKick, e kubeEnd) {
			if e.err != nil || e.res.ExitCode != 0 || k.out.b.String() != "ready\n" {
				t.Errorf("%v, %s %s, said %q", e.err, e.res.Reason, e.res.Detail, k.out.b.String())
			}
		}},
		"each time": {3, func(t *testing.T, k *kubeKick, e kubeEnd) {
			e.says(t, sandbox.ReasonStartFailed, "the pod was deleted")
			if k.out.b.Len() > 0 {
				t.Errorf("it ran: %q", k.out.b.String())
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := c.Namespace(t)
			const held = "kick.test/held"
			k := newKubeKick(t, n, "echo ready", func(c *sandbox.KubernetesConfig) { c.NodeSelector = map[string]string{held: n.Name} })
			k.start(t)
			seen := map[string]bool{}
			for deadline := time.Now().Add(3 * time.Minute); len(seen) < f.times; {
				if time.Now().After(deadline) {
					t.Fatalf("%d pods were made", len(seen))
				}
				for _, pod := range strings.Fields(n.Kubectl(t, "get", "pods", "--namespace", n.Name, "--selector", "kick.id="+k.spec.ID, "--output", "name")) {
					if !seen[pod] {
						seen[pod] = true
						n.Kubectl(t, "delete", pod, "--namespace", n.Name, "--ignore-not-found")
					}
				}
			}
			n.Kubectl(t, "label", "node", n.Node, "--overwrite", held+"="+n.Name)
			f.end(t, k, k.wait(t))
		})
	}
}

// TestKubeFaultsPreempted: a pod that makes room for one of a higher priority says so.
func TestKubeFaultsPreempted(t *testing.T) {
	c := kubetest.OpenAlone(t)
	n := c.Namespace(t)
	cpus, err := strconv.Atoi(n.Kubectl(t, "get", "node", n.Node, "--output", "jsonpath={.status.allocatable.cpu}"))
	if err != nil {
		t.Fatal(err)
	}
	most := float64(cpus) - 0.4
	k := newKubeKick(t, n, "echo ready; sleep 600", func(c *sandbox.KubernetesConfig) { c.PriorityClass, c.RequestCPU = "kick-low", most })
	k.start(t)
	k.ready(t)
	n.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: urgent, namespace: %s}
spec:
  priorityClassName: kick-high
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: urgent
      image: %s
      command: [sleep, "600"]
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      resources: {requests: {cpu: %q, memory: 32Mi, ephemeral-storage: 32Mi}, limits: {cpu: %[3]q, memory: 32Mi, ephemeral-storage: 32Mi}}
`, n.Name, n.Image, fmt.Sprint(most)))
	k.wait(t).says(t, sandbox.ReasonLost, "the pod was preempted", "priority_class")
}

// TestKubeHostUsers: without a user namespace no agent runs, unless that is accepted by
// name, with what depends on it.
func TestKubeHostUsers(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	for name, f := range map[string]struct {
		accept []string
		want   string // in the error; empty: it runs
	}{
		"not accepted":  {nil, "user-namespace"},
		"one is missed": {[]string{"user-namespace"}, "process-limit"},
		"accepted":      {[]string{"user-namespace", "process-limit"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKubeKick(t, n, "echo ready; cat /proc/self/uid_map; id -u; touch made", func(c *sandbox.KubernetesConfig) { c.HostUsers = true })
			k.spec.AcceptWeaker = f.accept
			e := k.run(t)
			if f.want != "" {
				if !errors.Is(e.err, sandbox.ErrIsolation) || !strings.Contains(e.err.Error(), f.want) || k.out.b.Len() > 0 {
					t.Errorf("%v, said %q", e.err, k.out.b.String())
				}
				return
			}
			if said := strings.Join(strings.Fields(k.out.b.String()), " "); e.err != nil || said != "ready 0 0 4294967295 65532" {
				t.Errorf("%v, %s %s, said %q", e.err, e.res.Reason, e.res.Detail, said)
			}
			for _, name := range f.accept {
				if !slices.ContainsFunc(e.res.Isolation.Properties, func(p sandbox.Property) bool { return p.Name == name && p.Status == sandbox.Accepted }) {
					t.Errorf("%s is not accepted: %+v", name, e.res.Isolation.Properties)
				}
			}
		})
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
	k := newKubeKick(t, n, counting, throughProxy(p))
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
	k := newKubeKick(t, n, "echo ready; sleep 600", throughProxy(p), alone)
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
func throughProxy(p *kubetest.Proxy) func(*sandbox.KubernetesConfig) {
	return func(c *sandbox.KubernetesConfig) { c.Kubeconfig = p.Kubeconfig }
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

// TestKubeClocks: a host whose clock is a day ahead of the cluster's takes nothing of a
// living kick for what is past its time.
func TestKubeClocks(t *testing.T) {
	t.Parallel()
	k := newKubeKick(t, kubetest.Open(t).Namespace(t), "echo ready; sleep 2; exit 3")
	k.start(t)
	k.ready(t)
	other := newKubeKick(t, k.n, "true").l
	if err := sandbox.SetClock(other, func() time.Time { return time.Now().Add(24 * time.Hour) }); err != nil {
		t.Fatal(err)
	}
	if removed, err := other.Reap(t.Context()); err != nil || len(removed) > 0 {
		t.Errorf("%v, %v", removed, err)
	}
	if e := k.wait(t); e.err != nil || e.res.ExitCode != 3 {
		t.Errorf("%s %s: %v", e.res.Reason, e.res.Detail, e.err)
	}
}
