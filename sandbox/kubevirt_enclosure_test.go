package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/resume"
)

// hostAsMachine is an engine whose machine is this host, where an ordinary user does
// what the user of a machine would: everything is as with KubeVirt but for the machine
// and the way to it.
type hostAsMachine struct {
	*KubeVirt
	t   *testing.T
	dir string
	uid int
	// cut is called with each line, and may close it.
	cut func(io.Closer)
}

func (e *hostAsMachine) newBox(_ context.Context, spec LaunchSpec, mode frame.Mode) (box, error) {
	b := &kubeVirtBox{launcher: e.KubeVirt, spec: spec, mode: mode, kubeLine: kubeLine{gonech: make(chan struct{})}}
	b.plan = newKubeVirtPlan(e.config, spec, mode, "owner", "start")
	b.eye = &machineEye{seen: b.plan.instance, changed: make(chan struct{})}
	return &hostBox{b, e}, nil
}

type hostBox struct {
	*kubeVirtBox
	e *hostAsMachine
}

// as makes a command one of the user.
func (e *hostAsMachine) as(args ...string) *exec.Cmd {
	cmd := exec.Command(e.dir+"/kick-shim", args...)
	cmd.Dir, cmd.Env = e.dir, []string{}
	if e.uid != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(e.uid), Gid: uint32(e.uid)}}
	}
	return cmd
}

func (e *hostAsMachine) do(in any, args ...string) []byte {
	e.t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		e.t.Fatal(err)
	}
	cmd := e.as(args...)
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if err != nil {
		e.t.Fatalf("%s: %v: %s", args, err, out)
	}
	return out
}

func (b *hostBox) start(_ context.Context, _ *watchdog) (line, error) {
	e := b.e
	b.words.max, b.dir = 4<<10, e.dir
	if err := json.Unmarshal(e.do(frame.Question{Paths: systemPatterns(), Show: machineShown}, "look"), &b.machine); err != nil {
		return line{}, err
	}
	var err error
	if b.enclosure, err = b.plan.enclosure(b.machine, e.dir); err != nil {
		return line{}, err
	}
	e.do(b.enclosure.wait, "enclose", e.dir+"/line")
	b.line = resume.NewClient([]byte(strings.Repeat("k", resume.KeySize)), true)
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(context.Background())
	b.carried.Go(func() {
		for ctx.Err() == nil {
			cmd := e.as("line", e.dir+"/line")
			cmd.Stderr = &b.words
			in, err := cmd.StdinPipe()
			if err != nil {
				return
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				return
			}
			if cmd.Start() != nil {
				return
			}
			s := processStream{out, in, cmd}
			if e.cut != nil {
				e.cut(s)
			}
			_ = b.line.Carry(s) // it is begun anew
			_ = s.Close()
			_ = cmd.Wait()
		}
	})
	return line{to: b.line, from: b.line}, nil
}

// processStream is a process's standard input and output. Its end is the process's.
type processStream struct {
	io.Reader
	io.Writer
	cmd *exec.Cmd
}

func (s processStream) Close() error { return s.cmd.Process.Kill() }

func (b *hostBox) kill() { b.line.End() }

func (b *hostBox) end() (boxUsage, error) {
	if b.fine && !b.line.Part(10*time.Second) {
		b.e.t.Error("the sandbox does not end")
	}
	b.cancel()
	b.line.End()
	b.carried.Wait()
	return boxUsage{}, nil
}

// newHostAsMachine makes one for a user who is not root. The test is skipped where
// ordinary users may make no user namespaces, as in some containers.
func newHostAsMachine(t *testing.T) *hostAsMachine {
	t.Helper()
	e := &hostAsMachine{t: t, uid: os.Getuid(), KubeVirt: &KubeVirt{cluster: &Kubernetes{kubeCluster: &kubeCluster{}}}}
	if e.uid == 0 {
		e.uid = 60000 + os.Getpid()%5000 // whose processes are this test's
	}
	e.config.Namespace, e.config.Alone = "machines", 5*time.Second
	e.config.setDefaults()
	e.config.Shim = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(shimBytes)), nil }
	var err error
	if e.cluster.digest, err = (&Kubernetes{config: KubernetesConfig{Shim: e.config.Shim}}).shimDigest(); err != nil {
		t.Fatal(err)
	}
	if e.dir, err = os.MkdirTemp("", "kick-machine-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(e.dir); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{"workspace", "base", "egress"} {
		if err := os.Mkdir(filepath.Join(e.dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(e.dir+"/kick-shim", shimBytes, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"", "workspace", "base", "egress", "kick-shim"} {
		if err := os.Chown(filepath.Join(e.dir, p), e.uid, e.uid); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func (e *hostAsMachine) spec(script string) LaunchSpec {
	return LaunchSpec{
		ID: "k0123456789abc", Agent: "test", Image: "localhost/machine@sha256:" + strings.Repeat("0", 64), Command: []string{"sh", "-c", script},
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}, Network: NetworkNone, Workspace: Workspace{Dir: e.t.TempDir(), MountPath: DefaultMountPath},
		// What of a machine this host has not, is not what these tests are about.
		AcceptWeaker: []string{"memory-limit", "machine"},
		Limits:       Limits{Processes: 200, Disk: 64 << 20, Wall: time.Minute},
	}
}

// TestKubeVirtEnclosure: the sandbox in a machine has every property that is promised
// of it, the agent's command runs in it, and its output comes back.
func TestKubeVirtEnclosure(t *testing.T) {
	e := newHostAsMachine(t)
	var out bytes.Buffer
	spec := e.spec(`id -u; cat /proc/net/dev | grep -c :; ls /home/agent /run/kick; touch /workspace/made && echo made; ls ` + e.dir + ` 2>&1; kill -9 1; exit 3`)
	spec.Stdout = &out
	res, err := runKick(t.Context(), e, spec)
	if err != nil || res.Reason != ReasonExited || res.ExitCode != 3 {
		t.Fatalf("%v, %s %d %s\n%s", err, res.Reason, res.ExitCode, res.Detail, out.String())
	}
	if said := out.String(); !strings.HasPrefix(said, "1000\n1\n") || !strings.Contains(said, "\nmade\n") || !strings.Contains(said, "No such file") {
		t.Errorf("it said:\n%s", said)
	}
	var names []string
	for _, p := range res.Isolation.Properties {
		names = append(names, p.Name)
		if p.Status == Missing || p.Status == Accepted && p.Name != "memory-limit" && p.Name != "machine" {
			t.Errorf("%s is %s: %s", p.Name, p.Status, p.Evidence)
		}
	}
	if got, want := fmt.Sprint(names), fmt.Sprint(KubeVirtProperties); got != want {
		t.Errorf("the properties are\n%s, want\n%s", got, want)
	}
}

// TestKubeVirtEnclosureCut: a line that breaks again and again loses nothing.
func TestKubeVirtEnclosureCut(t *testing.T) {
	e := newHostAsMachine(t)
	cuts := 0
	e.cut = func(c io.Closer) {
		if cuts++; cuts <= 5 {
			time.AfterFunc(300*time.Millisecond, func() { _ = c.Close() })
		}
	}
	var out bytes.Buffer
	spec := e.spec(`i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; sleep 2; echo last`)
	spec.Stdout = &out
	res, err := runKick(t.Context(), e, spec)
	if err != nil || res.Reason != ReasonExited || res.ExitCode != 0 {
		t.Fatalf("%v, %s %d %s", err, res.Reason, res.ExitCode, res.Detail)
	}
	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 20001 || lines[20000] != "last" || cuts < 5 {
		t.Errorf("%d lines came, with %d lines cut", len(lines), cuts)
	}
}

// The sandbox has no other file system than its own, whatever the machine has.
func TestKubeVirtEnclosureOfMachine(t *testing.T) {
	t.Parallel()
	p := kubeVirtCase("everything")
	e, err := p.enclosure(frame.Machine{UID: 1001, GID: 1001, Landlock: 2, Found: []frame.Found{
		{Path: "/usr", Dir: true}, {Path: "/bin", Link: "usr/bin"}, {Path: "/etc/os-release"}, {Path: "/proc/kcore"}, {Path: "/home", Dir: true},
	}}, "/home/worker/k0123456789abc")
	if err != nil {
		t.Fatal(err)
	}
	bound := map[string]string{}
	for _, entry := range e.root.entries {
		if entry.Kind == frame.BindEntry && entry.Source != "" && !strings.HasPrefix(entry.Source, "/dev/") {
			bound[entry.Path] = fmt.Sprintf("%s %v", entry.Source, entry.ReadOnly)
		}
	}
	want := map[string]string{
		"/usr": "/usr true", "/etc/os-release": "/etc/os-release true", "/src": "/home/worker/k0123456789abc/workspace false",
		"/run/kick/base": "/home/worker/k0123456789abc/base false", "/run/kick/egress": "/home/worker/k0123456789abc/egress true",
	}
	if fmt.Sprint(bound) != fmt.Sprint(want) {
		t.Errorf("bound are %v, want %v", bound, want)
	}
	if e.wait.Wait.Jail.Landlock.ABI != 2 || !e.wait.Wait.Jail.NoNewPrivs || len(e.wait.Wait.Jail.Filter) == 0 {
		t.Error("it is not locked down")
	}
}
