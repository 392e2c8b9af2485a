package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/internal/podman"
	"github.com/kickhq/kick/internal/podmantest"
	"github.com/kickhq/kick/sandbox"
)

// repetitions is how often a test of chance is repeated: few times here, often
// in `make soak`.
func repetitions(t *testing.T, few int) int {
	t.Helper()
	s := os.Getenv("KICK_TEST_REPEAT")
	if s == "" {
		return few
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("KICK_TEST_REPEAT is %q, want a number", s)
	}
	return n
}

func podmanClient(t *testing.T) *podman.Client {
	t.Helper()
	socket, err := podman.Socket(os.Getenv("CONTAINER_HOST"))
	if err != nil {
		t.Fatal(err)
	}
	c := podman.New(socket)
	t.Cleanup(c.Close)
	return c
}

// podmanSpec is a run in a directory of its own.
func podmanSpec(t *testing.T, script string) sandbox.LaunchSpec {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "workspace")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	id := kickid.New()
	return sandbox.LaunchSpec{
		ID: id, Agent: "test", Image: os.Getenv(podmantest.ImageEnv), Command: []string{"sh", "-c", script, id},
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}, Workspace: sandbox.Workspace{Dir: dir},
	}
}

// A command that ends at once loses no byte of its output.
func TestOnPodmanFastExit(t *testing.T) {
	sandbox.OnService(t)
	l, err := newPodman()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i := range repetitions(t, 10) {
		want := strings.Repeat("0123456789", i*37%3000)
		var out, errs bytes.Buffer
		spec := podmanSpec(t, `printf %s "$1"; printf err >&2; exit 7`)
		spec.Command = append(spec.Command, want)
		spec.Stdout, spec.Stderr = &out, &errs
		res, err := l.Run(t.Context(), spec)
		if err != nil || res.ExitCode != 7 || out.String() != want || errs.String() != "err" {
			t.Fatalf("run %d: %v, exit code %d, %d bytes of %d, stderr %q", i, err, res.ExitCode, out.Len(), len(want), errs.String())
		}
	}
}

// runOneEnv makes TestOnPodmanRunOne run a sandbox of that id that does not end.
const runOneEnv = "KICK_TEST_PODMAN_ID"

func TestOnPodmanRunOne(t *testing.T) {
	id := os.Getenv(runOneEnv)
	if id == "" {
		t.Skip("TestOnPodmanKilled runs this")
	}
	l, err := newPodman()
	if err != nil {
		t.Fatal(err)
	}
	spec := podmanSpec(t, "sleep 600")
	spec.ID, spec.Command[3], spec.Stdout = id, id, os.Stdout
	_, err = l.Run(t.Context(), spec)
	t.Fatal("the run has ended", err)
}

// A kick that is killed, at whatever instant, leaves nothing that a reaper does
// not remove, and a reaper removes nothing of others.
func TestOnPodmanKilled(t *testing.T) {
	sandbox.OnService(t)
	c := podmanClient(t)
	ctx := t.Context()
	// Of others: a name like ours, and a label like ours under another name.
	var others []string
	for name, labels := range map[string]map[string]string{"kick-bystander": {"app": "kick"}, "bystander": {"kick.id": "k1"}} {
		created, err := c.Create(ctx, podman.Spec{Name: name, Image: os.Getenv(podmantest.ImageEnv), Entrypoint: []string{"sleep"}, Command: []string{"600"}, Labels: labels,
			NetNS: podman.Namespace{Mode: "none"}, Log: podman.LogConfig{Driver: "none"}, Rlimits: []podman.Rlimit{{Type: "nofile", Soft: 1024, Hard: 1024}, {Type: "nproc", Soft: 1024, Hard: 1024}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Remove(context.Background(), created.ID); err != nil {
				t.Error(err)
			}
		})
		if err := c.Start(ctx, created.ID); err != nil {
			t.Fatal(err)
		}
		others = append(others, created.ID)
	}
	l, err := newPodman()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i := range repetitions(t, 6) {
		id := kickid.New()
		cmd := exec.Command(exe, "-test.run=^TestOnPodmanRunOne$", "-test.v")
		cmd.Env = append(os.Environ(), runOneEnv+"="+id)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(1200 * time.Millisecond)) // any instant will do
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		// Podman itself removes a container whose input has ended, in its time;
		// what was made and never started is the reaper's.
		for deadline := time.Now().Add(time.Minute); ; {
			if _, err := l.Reap(ctx); err != nil {
				t.Fatalf("run %d: reap: %v", i, err)
			}
			left := leftOf(t, c, id)
			if len(left) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("run %d: left: %q", i, left)
			}
		}
	}
	for _, id := range others {
		if got, err := c.Inspect(ctx, id); err != nil || got.State.Status != "running" {
			t.Errorf("a container of others: %+v, %v", got.State, err)
		}
	}
}

// leftOf is what is left of a kick: containers, processes, mounts.
func leftOf(t *testing.T, c *podman.Client, id string) (left []string) {
	t.Helper()
	list, err := c.List(t.Context(), "kick.id="+id)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		left = append(left, l.Names...)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte(id)) {
			left = append(left, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), id) {
		left = append(left, "a mount")
	}
	return left
}

// A container that a dead kick has left under its name does not keep the same
// kick from running again.
func TestOnPodmanLeftover(t *testing.T) {
	sandbox.OnService(t)
	c := podmanClient(t)
	l, err := newPodman()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spec := podmanSpec(t, "echo ran")
	old := podman.Spec{Name: "kick-" + spec.ID, Image: os.Getenv(podmantest.ImageEnv), Entrypoint: []string{"sleep"}, Command: []string{"1"}, Labels: map[string]string{"kick.id": spec.ID}, NetNS: podman.Namespace{Mode: "none"}}
	if _, err := c.Create(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	spec.Stdout = &out
	if res, err := l.Run(t.Context(), spec); err != nil || out.String() != "ran\n" {
		t.Errorf("%v, %s, stdout %q", err, res.Detail, out.String())
	}
	// One that is not kick's stays.
	old.Labels = nil
	created, err := c.Create(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := l.Run(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "not kick's") {
		t.Errorf("%v, %s", err, res.Reason)
	}
	if _, err := c.Inspect(t.Context(), created.ID); err != nil {
		t.Errorf("the container of others: %v", err)
	}
	if err := c.Remove(t.Context(), created.ID); err != nil {
		t.Error(err)
	}
}

// The reaper asks every service that kicks have used, whatever is its own, and does
// not wait for one that says nothing.
func TestOnPodmanReapElsewhere(t *testing.T) {
	sandbox.OnService(t)
	c := podmanClient(t)
	config := sandbox.PodmanTestConfig()
	config.Dir = t.TempDir()
	l, err := sandbox.NewPodman(config)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spec := podmanSpec(t, "true")
	if res, err := l.Run(t.Context(), spec); err != nil {
		t.Fatalf("%v, %s", err, res.Detail)
	}
	old := podman.Spec{Name: "kick-" + spec.ID, Image: os.Getenv(podmantest.ImageEnv), Entrypoint: []string{"true"}, NetNS: podman.Namespace{Mode: "none"},
		Labels: map[string]string{"kick.id": spec.ID, "kick.deadline": "2020-01-01T00:00:00Z"}}
	left, err := c.Create(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	defer sandbox.SetAskTimeout(5 * time.Second)()
	config.Socket = filepath.Join(t.TempDir(), "silent.sock")
	silent, err := net.Listen("unix", config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	elsewhere, err := sandbox.NewPodman(config)
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	removed, err := elsewhere.Reap(t.Context())
	if !slices.Contains(removed, spec.ID) || err == nil || !strings.Contains(err.Error(), config.Socket) || !strings.Contains(err.Error(), "not answered") {
		t.Errorf("removed %q, %v", removed, err)
	}
	if _, err := c.Inspect(t.Context(), left.ID); !podman.IsStatus(err, http.StatusNotFound) {
		t.Errorf("the container is left: %v", err)
	}
}

// A service that dies or stands still in mid-run loses the sandbox, not the
// work.
func TestOnPodmanServiceLost(t *testing.T) {
	sandbox.OnService(t)
	defer sandbox.SetAskTimeout(5 * time.Second)()
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			socket := startService(t)
			host, err := sandbox.NewEmbedded(sandbox.EmbeddedConfig{Shim: bytes.NewReader(sandbox.Shim())})
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			config := sandbox.PodmanTestConfig()
			config.Socket, config.Fallback = socket.path, host
			l, err := sandbox.NewPodman(config)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			sink := &artifactSink{}
			spec := podmanSpec(t, "echo unfinished >work.txt; echo ready; sleep 600")
			spec.Workspace.Sink = sink
			ready := &waitFor{text: "ready", seen: make(chan struct{})}
			spec.Stdout = ready
			go func() {
				<-ready.seen
				_ = syscall.Kill(socket.pid, signal) // if it fails, the run goes on for ten minutes
			}()
			res, err := l.Run(t.Context(), spec)
			if err == nil || res.Reason != sandbox.ReasonLost || name == "stopped" && !strings.Contains(err.Error(), "start it again") {
				t.Errorf("%v, %s, %s", err, res.Reason, res.Detail)
			}
			if !slices.Contains(res.Artifacts, sandbox.DirtyArchive) || !strings.Contains(sink.content(sandbox.DirtyArchive), "unfinished") {
				t.Errorf("artifacts %v, missing %q", res.Artifacts, res.Missing)
			}
			// One that stands still may hold a lock of the storage, for which every other
			// service waits, and the program that removes the container too: which does so
			// as soon as the lock is free.
			socket.end()
			c := podmanClient(t)
			left := leftOf(t, c, spec.ID)
			for deadline := time.Now().Add(time.Minute); len(left) > 0 && name == "stopped" && time.Now().Before(deadline); {
				left = leftOf(t, c, spec.ID)
			}
			for _, p := range left {
				t.Errorf("left: %s", p)
			}
		})
	}
}

// A container that somebody pauses is given up, ended and removed, and its work
// kept.
func TestOnPodmanPaused(t *testing.T) {
	sandbox.OnService(t)
	l, err := newPodman()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sink := &artifactSink{}
	spec := podmanSpec(t, "echo unfinished >work.txt; echo ready; sleep 600")
	spec.Workspace.Sink = sink
	ready := &waitFor{text: "ready", seen: make(chan struct{})}
	spec.Stdout = ready
	paused := make(chan error, 1)
	c := podmanClient(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-ready.seen
		err := c.Pause(context.Background(), "kick-"+spec.ID)
		if paused <- err; err != nil {
			cancel()
		}
	}()
	res, err := l.Run(ctx, spec)
	if podman.IsStatus(<-paused, 500) && os.Geteuid() != 0 {
		t.Skip("rootless Podman cannot pause on control groups of version 1")
	}
	if err == nil || res.Reason != sandbox.ReasonLost || !strings.Contains(res.Detail, "paused") {
		t.Errorf("%v, %s, %s", err, res.Reason, res.Detail)
	}
	if !slices.Contains(res.Artifacts, sandbox.DirtyArchive) || !strings.Contains(sink.content(sandbox.DirtyArchive), "unfinished") {
		t.Errorf("artifacts %v, missing %q", res.Artifacts, res.Missing)
	}
	for _, p := range leftOf(t, c, spec.ID) {
		t.Errorf("left: %s", p)
	}
}

// apiService is a further service on the same storage.
type apiService struct {
	path string
	cmd  *exec.Cmd
	pid  int // of the process that listens, which is another one for rootless Podman

	ended sync.Once
}

func startService(t *testing.T) *apiService {
	t.Helper()
	dir, err := os.MkdirTemp("", "svc") // the path of a socket has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	s := &apiService{path: filepath.Join(dir, "s")}
	s.cmd = exec.Command(os.Getenv("KICK_PODMAN"), "system", "service", "--time=0", "unix://"+s.path)
	s.cmd.Dir = "/"
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CONTAINER_HOST=") {
			s.cmd.Env = append(s.cmd.Env, kv)
		}
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		os.RemoveAll(dir)
	})
	c := podman.New(s.path)
	defer c.Close()
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := c.Ping(t.Context()); err == nil {
			s.pid = listener(t, s.path)
			return s
		} else if time.Now().After(deadline) {
			t.Fatalf("the service does not answer: %v", err)
		}
		time.Sleep(20 * time.Millisecond) // there is no event to wait for
	}
}

// end kills the service, which may be gone.
func (s *apiService) end() {
	s.ended.Do(func() {
		if s.pid > 0 {
			_ = syscall.Kill(s.pid, syscall.SIGKILL)
		}
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
}

// listener is the process that listens on a Unix socket.
func listener(t *testing.T, path string) int {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var cred *syscall.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return int(cred.Pid)
}

// waitFor is a writer that tells when a text came.
type waitFor struct {
	text string
	b    bytes.Buffer
	once sync.Once
	seen chan struct{}
}

func (w *waitFor) Write(p []byte) (int, error) {
	w.b.Write(p)
	if strings.Contains(w.b.String(), w.text) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(p), nil
}

// artifactSink keeps artifacts in memory.
type artifactSink struct {
	mu   sync.Mutex
	kept map[sandbox.Artifact]*bytes.Buffer
}

func (s *artifactSink) Create(a sandbox.Artifact, _ string) (sandbox.SinkWriter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		s.kept = map[sandbox.Artifact]*bytes.Buffer{}
	}
	if s.kept[a] != nil {
		return nil, fmt.Errorf("%s came twice", a)
	}
	s.kept[a] = &bytes.Buffer{}
	return kept{s.kept[a]}, nil
}

func (s *artifactSink) content(a sandbox.Artifact) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept[a] == nil {
		return ""
	}
	return s.kept[a].String()
}

type kept struct{ *bytes.Buffer }

func (kept) Close() error { return nil }
func (kept) Abort() error { return nil }
