package sandbox_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/kubevirtapi"
	"github.com/kickhq/kick/internal/kubevirttest"
	"github.com/kickhq/kick/sandbox"
)

// machines is where a test's machines run.
type machines struct {
	*kubevirttest.KubeVirt
	n   *kubetest.Namespace
	dir string // of the launchers' state
}

// newMachines has KubeVirt stood in for in a namespace, whose account has the launcher's
// rights and no other. The test is parallel: most of what it does is to wait for one
// processor of one machine.
func newMachines(t *testing.T) *machines {
	t.Helper()
	t.Parallel()
	k, c := kubevirttest.Open(t)
	n := c.Namespace(t)
	k.Account(t, n, sandbox.KubeVirtRules)
	return &machines{k, n, t.TempDir()}
}

func (m *machines) launcher(t *testing.T, change ...func(*sandbox.KubeVirtConfig)) *sandbox.KubeVirt {
	t.Helper()
	c := sandbox.KubeVirtConfig{
		Shim: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(sandbox.Shim())), nil },
		Dir:  m.dir, Image: kubevirttest.Image,
		KubeVirtChoice: sandbox.KubeVirtChoice{Kubeconfig: m.n.Kubeconfig, Namespace: m.n.Name},
	}
	for _, f := range change {
		f(&c)
	}
	l, err := sandbox.NewKubeVirt(c)
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

// kick makes a run of a script that says "ready" when a test may go on.
func (m *machines) kick(t *testing.T, l *sandbox.KubeVirt, script string) *machineKick {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "workspace")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	k := &machineKick{m: m, l: l, sink: &artifactSink{}, out: &waitFor{text: "ready", seen: make(chan struct{})}, end: make(chan kubeEnd, 1)}
	k.spec = sandbox.LaunchSpec{
		ID: kickid.New(), Agent: "test", Image: kubevirttest.Image, Command: []string{"sh", "-c", script}, Stdout: k.out, Network: sandbox.NetworkNone,
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}, Workspace: sandbox.Workspace{Dir: dir, Sink: k.sink},
		Limits: sandbox.Limits{Memory: 768 << 20, Disk: 256 << 20, Wall: 10 * time.Minute, CPUs: 1},
	}
	return k
}

type machineKick struct {
	m    *machines
	l    *sandbox.KubeVirt
	spec sandbox.LaunchSpec
	sink *artifactSink
	out  *waitFor
	end  chan kubeEnd
}

func (k *machineKick) name() string { return "kick-" + k.spec.ID }

// start runs it beside the test, and returns when it has said "ready".
func (k *machineKick) start(t *testing.T) (cancel func()) {
	t.Helper()
	cancel = k.begin(t)
	k.await(t)
	return cancel
}

func (k *machineKick) begin(t *testing.T) (cancel func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		res, err := k.l.Run(ctx, k.spec)
		k.end <- kubeEnd{res, err}
	}()
	return cancel
}

func (k *machineKick) await(t *testing.T) {
	t.Helper()
	select {
	case <-k.out.seen:
	case e := <-k.end:
		t.Fatalf("the run ended too early: %s %s, %v\n%s", e.res.Reason, e.res.Detail, e.err, k.m.Console(k.m.n.Name, k.name()))
	}
}

// wait waits for the end, and holds the namespace to having nothing of the kick.
func (k *machineKick) wait(t *testing.T) kubeEnd {
	t.Helper()
	e := <-k.end
	k.left(t)
	return e
}

func (k *machineKick) left(t *testing.T) {
	t.Helper()
	if left := k.m.n.Kubectl(t, "get", "virtualmachineinstances,secrets", "--namespace", k.m.n.Name, "--selector", "kick.id="+k.spec.ID, "--output", "name"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestKubeVirtRun: a real machine boots from an instance; every property of the
// sandbox in it is proved; the work comes back, also over connections that are cut; and
// the gateway is reached, and nothing else.
func TestKubeVirtRun(t *testing.T) {
	m := newMachines(t)
	l := m.launcher(t)
	gateway := filepath.Join(t.TempDir(), "gateway.sock")
	listener, err := net.Listen("unix", gateway)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the gateway")) }), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	k := m.kick(t, l, `id -u; uname -r
		perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new("/run/kick/egress/gateway.sock") or die $!; print $s "GET / HTTP/1.0\r\n\r\n"; local $/; print <$s>' | tail -n 1
		echo; echo ready
		i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; sleep 5
		echo changed >file && touch agent-report.json; echo end; exit 3`)
	k.spec.Limits.CPUs = 2
	k.spec.Network, k.spec.Egress = sandbox.NetworkRestricted, sandbox.Egress{Socket: gateway}
	var events []string
	began := time.Now()
	k.spec.OnEvent = func(e sandbox.Event) {
		events = append(events, string(e.Kind)+" "+e.Time.Sub(began).Round(100*time.Millisecond).String())
	}
	k.start(t)
	if n := m.Cut(m.n.Name, k.name()); n == 0 {
		t.Error("there was no connection to cut")
	}
	e := k.wait(t)
	t.Log(events, e.res.Isolation.Engine)
	if e.err != nil || e.res.Reason != sandbox.ReasonExited || e.res.ExitCode != 3 {
		t.Fatalf("%v, %s %d %s", e.err, e.res.Reason, e.res.ExitCode, e.res.Detail)
	}
	said := k.out.b.String()
	if !strings.HasPrefix(said, "1000\n6.1") || !strings.Contains(said, "the gateway\nready\nline 0\n") || !strings.HasSuffix(said, "line 2999\nend\n") {
		t.Errorf("it said %.300s … %s", said, said[max(0, len(said)-100):])
	}
	var names []string
	for _, p := range e.res.Isolation.Properties {
		names = append(names, p.Name)
		if p.Status != sandbox.Enforced {
			t.Errorf("%s is %s: %s", p.Name, p.Status, p.Evidence)
		}
	}
	if strings.Join(names, " ") != strings.Join(sandbox.KubeVirtProperties, " ") {
		t.Errorf("the properties are %v", names)
	}
}

// TestKubeVirtEnds: however a machine or what runs in it ends, the result says how, and
// nothing is left.
func TestKubeVirtEnds(t *testing.T) {
	m := newMachines(t)
	l := m.launcher(t)
	const sleep = "echo ready; sleep 900"
	for name, tt := range map[string]struct {
		script string // empty: sleep
		do     func(t *testing.T, k *machineKick, cancel func())
		change func(*sandbox.LaunchSpec)
		reason sandbox.Reason
		words  string
		kept   string // what of the work comes back
	}{
		"panic": {
			do:     func(t *testing.T, k *machineKick, _ func()) { m.Panic(t, m.n.Name, k.name()) },
			reason: sandbox.ReasonLost, words: "the machine has failed",
		},
		"power-off": {
			do:     func(t *testing.T, k *machineKick, _ func()) { m.PowerOff(t, m.n.Name, k.name()) },
			reason: sandbox.ReasonLost, words: "the machine has gone off",
		},
		"cancel": {
			do:     func(_ *testing.T, _ *machineKick, cancel func()) { cancel() },
			reason: sandbox.ReasonCancelled,
		},
		"timeout": {
			script: "echo precious >kept; echo ready; sleep 900",
			change: func(s *sandbox.LaunchSpec) { s.Limits.Wall = 15 * time.Second },
			reason: sandbox.ReasonTimeout, kept: "precious",
		},
		"deleted": {
			do: func(t *testing.T, k *machineKick, _ func()) {
				m.n.Kubectl(t, "delete", "vmi", k.name(), "--namespace", m.n.Name, "--wait=false")
			},
			reason: sandbox.ReasonLost, words: "deleted by somebody else",
		},
		// Who answers in the machine's place gets nothing.
		"impostor": {
			do: func(t *testing.T, k *machineKick, _ func()) {
				m.Replace(t, m.n.Name, k.name(), impostor(t))
			},
			reason: sandbox.ReasonLost, words: "has not the key that the machine was given",
		},
		"disk limit": {
			// What is there is taken out, which a software CPU takes two minutes for at 256 MB.
			script: "echo ready; head -c 100M /dev/zero >big; sleep 900",
			change: func(s *sandbox.LaunchSpec) { s.Limits.Disk = 48 << 20 },
			reason: sandbox.ReasonDiskLimit,
		},
		"memory limit": {
			script: `echo ready; perl -e 'push @x, "x" x (1 << 20) while 1'`,
			reason: sandbox.ReasonOutOfMemory,
		},
		// The machine's own disk is full before the command has reached its limit. The
		// kernel tells the command, and its work comes back all the same.
		"full disk": {
			script: "echo precious >kept; echo ready; n=0; while fallocate -l 32M full$n; do n=$((n+1)); done; cat /dev/zero >rest; rm rest full*; exit 3",
			change: func(s *sandbox.LaunchSpec) { s.Limits.Disk = 8 << 30 },
			reason: sandbox.ReasonExited, kept: "precious",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := m.kick(t, l, cmp.Or(tt.script, sleep))
			if tt.change != nil {
				tt.change(&k.spec)
			}
			cancel := k.start(t)
			if tt.do != nil {
				tt.do(t, k, cancel)
			}
			e := k.wait(t)
			if e.says(t, tt.reason, tt.words); e.res.Gone != (tt.reason == sandbox.ReasonLost) {
				t.Errorf("gone: %v, missing: %q", e.res.Gone, e.res.Missing)
			}
			if tt.kept != "" && !strings.Contains(k.sink.content(sandbox.DirtyArchive), tt.kept) {
				t.Errorf("%q has not come back", tt.kept)
			}
		})
	}
}

// impostor answers in place of a machine: without an end, with a packet of four
// gigabytes, not at all, and at last as an sshd whose key is another.
func impostor(t *testing.T) func(net.Conn) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	endless := func(c net.Conn, first string) {
		for b := []byte(first); ; b = make([]byte, 1<<16) {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
	var came atomic.Int32
	return func(c net.Conn) {
		defer c.Close()
		switch came.Add(1) {
		case 1:
			endless(c, "")
		case 2:
			endless(c, "SSH-2.0-impostor\r\n\xff\xff\xff\xff")
		case 3:
			_, _ = io.Copy(io.Discard, c) // until kick gives up
		default:
			_, _, _, _ = ssh.NewServerConn(c, config) // kick ends it
		}
	}
}

// TestKubeVirtCloudInit: cloud-init in the machine gives it its keys and a lifetime.
func TestKubeVirtCloudInit(t *testing.T) {
	m := newMachines(t)
	k := m.kick(t, m.launcher(t, func(c *sandbox.KubeVirtConfig) { c.Keys = "cloud-init" }), "echo ready; sleep 900")
	cancel := k.start(t)
	// cloud-init has said that it powers off when all else is done.
	for deadline := time.Now().Add(5 * time.Minute); !strings.Contains(m.Console(m.n.Name, k.name()), "off in 35 minutes"); kube.Pause(t.Context(), time.Second) {
		if time.Now().After(deadline) {
			t.Errorf("it does not power off: %s", m.Console(m.n.Name, k.name()))
			break
		}
	}
	cancel()
	e := k.wait(t)
	e.says(t, sandbox.ReasonCancelled)
	if missing := e.res.Isolation.Missing(); len(missing) > 0 {
		t.Errorf("%v", missing)
	}
}

// TestKubeVirtNoStart: what keeps a machine from starting is named, and what to do.
func TestKubeVirtNoStart(t *testing.T) {
	m := newMachines(t)
	l := m.launcher(t, func(c *sandbox.KubeVirtConfig) { c.Pending = 10 * time.Second })
	k := m.kick(t, l, "true")
	k.spec.Image = kubevirttest.NoImage
	res, err := l.Run(t.Context(), k.spec)
	kubeEnd{res, err}.says(t, sandbox.ReasonStartFailed, "ErrImagePull", "pull_secret")

	if err := l.Rights(t.Context()); err != nil {
		t.Error(err)
	}
	// Without the right to come to a machine, it ends at once.
	var less []sandbox.KubernetesRule
	for _, r := range sandbox.KubeVirtRules {
		if r.Resource != "virtualmachineinstances/portforward" {
			less = append(less, r)
		}
	}
	m.Account(t, m.n, less)
	if err := l.Rights(t.Context()); err == nil || !strings.Contains(err.Error(), "virtualmachineinstances/portforward") {
		t.Errorf("the rights: %v", err)
	}
	k = m.kick(t, m.launcher(t), "true")
	res, err = k.l.Run(t.Context(), k.spec)
	kubeEnd{res, err}.says(t, sandbox.ReasonStartFailed, "no way into it", "portforward")
}

// TestKubeVirtDryRun: the schemas that KubeVirt's operator installs take the machines
// of testdata/kubevirt, strictly, and drop no field of them.
func TestKubeVirtDryRun(t *testing.T) {
	m := newMachines(t)
	config, _, err := kube.Load(kube.Where{Kubeconfig: m.n.Cluster.Kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	c, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	golden, err := filepath.Glob("testdata/kubevirt/*.json")
	if err != nil || len(golden) == 0 {
		t.Fatalf("%v, %d machines", err, len(golden))
	}
	for _, file := range golden {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		i := &kubevirtapi.Instance{}
		if err := json.Unmarshal(b, i); err != nil {
			t.Fatal(err)
		}
		i.Namespace = m.n.Name
		made, err := kube.Create(t.Context(), c, kubevirtapi.Instances, m.n.Name, i, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, lost := range notIn("", fields(t, i), fields(t, made)) {
			t.Errorf("%s: the API server does not keep %s", file, lost)
		}
		wrong := map[string]any{"apiVersion": i.APIVersion, "kind": i.Kind, "metadata": map[string]any{"name": "wrong"}, "spec": map[string]any{"domain": map[string]any{"devices": map[string]any{"disks": "none"}}}}
		if _, err := kube.Create(t.Context(), c, kubevirtapi.Instances, m.n.Name, &wrong, true); !apierrors.IsInvalid(err) {
			t.Errorf("a machine that is not valid: %v", err)
		}
	}
}

// machineOrphanEnv has the state directory, the namespace, its kubeconfig and the
// workspace of a process that is to be killed.
const machineOrphanEnv = "KICK_TEST_KUBEVIRT_ORPHAN"

// TestKubeVirtOrphan: what a process leaves that is killed, another one of the same
// state takes the work out of, and removes. One of another state cannot, and the reaper
// leaves it alone while it may live.
func TestKubeVirtOrphan(t *testing.T) {
	if where := strings.Fields(os.Getenv(machineOrphanEnv)); len(where) == 5 {
		m := &machines{n: &kubetest.Namespace{Name: where[1], Kubeconfig: where[2]}, dir: where[0]}
		k := m.kick(t, m.launcher(t), "echo kept >kept; echo ready; sleep 600")
		k.spec.ID, k.spec.Workspace.Dir, k.spec.Image, k.spec.Stdout = "machine-orphan", where[3], where[4], os.Stdout
		_, err := k.l.Run(context.Background(), k.spec)
		t.Fatal("it was to be killed", err)
	}
	m := newMachines(t)
	k := m.kick(t, m.launcher(t), "")
	k.spec.ID, k.spec.Command, k.spec.Stdout = "machine-orphan", nil, nil
	killed := func(image string, when func(said io.Reader)) {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), machineOrphanEnv+"="+strings.Join([]string{m.dir, m.n.Name, m.n.Kubeconfig, k.spec.Workspace.Dir, image}, " "))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		when(out)
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	// Nothing has run in a machine that has not started, so nobody waits for it.
	killed(kubevirttest.NoImage, func(io.Reader) {
		for _, made := range []string{"virtualmachineinstance/", "secret/"} {
			m.n.Kubectl(t, "wait", "--for=create", "--timeout=120s", "--namespace", m.n.Name, made+k.name())
		}
	})
	began := time.Now()
	res, err := k.l.Run(t.Context(), k.spec)
	if took := time.Since(began); err != nil || res.Reason != sandbox.ReasonLost || took > time.Minute {
		t.Errorf("after %v: %v, %+v", took, err, res)
	}
	k.left(t)

	killed(kubevirttest.Image, func(out io.Reader) {
		said := bufio.NewScanner(out)
		for said.Scan() && said.Text() != "ready" {
			t.Log(said.Text())
		}
	})
	if removed, err := k.l.Reap(t.Context()); err != nil || len(removed) > 0 {
		t.Errorf("the reaper removed %v, %v", removed, err)
	}
	other := m.launcher(t, func(c *sandbox.KubeVirtConfig) { c.Dir, c.Alone = t.TempDir(), 5*time.Second })
	spec := k.spec
	spec.Workspace.Sink = &artifactSink{}
	if res, err := other.Run(t.Context(), spec); err == nil || len(res.Artifacts) > 0 {
		t.Errorf("a process of another state took %v", res.Artifacts)
	}
	res, err = k.l.Run(t.Context(), k.spec)
	if err != nil || !strings.Contains(k.sink.content(sandbox.DirtyArchive), "kept") {
		t.Errorf("%v, %+v", err, res)
	}
	k.left(t)
}
