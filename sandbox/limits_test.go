package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/kickid"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	tests := []struct {
		name   string
		script string
		limits Limits
		reason Reason
		within time.Duration
	}{
		{"time", "sleep 1000", Limits{Wall: 200 * time.Millisecond}, ReasonTimeout, 4 * time.Second},
		{"time, signals ignored", "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000' & sleep 1000; sleep 1000", Limits{Wall: 200 * time.Millisecond}, ReasonTimeout, 8 * time.Second},
		{"memory", "head -c 400m /dev/zero | tail", Limits{Memory: 100 << 20}, ReasonOutOfMemory, 30 * time.Second},
		{"memory in /tmp", "head -c 90m /dev/zero >/tmp/a; head -c 90m /dev/zero >/dev/shm/b; sleep 20; exit 1", Limits{Memory: 100 << 20}, ReasonOutOfMemory, 30 * time.Second},
		{"processes", "i=0; while [ $i -lt 60 ]; do sleep 100 & i=$((i+1)); done; sleep 1", Limits{Processes: 20}, ReasonProcessLimit, 30 * time.Second},
		{"disk behind a closed door", "mkdir d; exec 3>d/big; chmod 0 d; while head -c 8m /dev/zero >&3; do sleep 0.05; done; chmod 700 d; sleep 30", Limits{Disk: 20 << 20}, ReasonDiskLimit, 30 * time.Second},
		{"disk", "while head -c 8m /dev/zero >>big; do sleep 0.05; done; sleep 30", Limits{Disk: 20 << 20}, ReasonDiskLimit, 30 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := workspaceDir(t)
			t.Cleanup(func() { openUp(context.Background(), dir) }) // or it could not be removed
			r := launch(t, e, LaunchSpec{Command: []string{"/bin/sh", "-c", tt.script}, Limits: tt.limits, Workspace: Workspace{Dir: dir}})
			if r.err != nil || r.Reason != tt.reason {
				t.Errorf("reason %s (%s), exit code %d, error %v, stderr %.500q, peak %+v; want %s", r.Reason, r.Detail, r.ExitCode, r.err, r.stderr, r.Peak, tt.reason)
			}
			if took := r.Finished.Sub(r.Started); took > tt.within {
				t.Errorf("it took %v, want at most %v", took, tt.within)
			}
		})
	}
}

// An agent that takes memory where no watchdog sees it ends before the host is
// short of it.
func TestHostMemory(t *testing.T) {
	t.Parallel()
	if r := hostReserve(); r < 64<<20 || r > 1<<30 {
		t.Errorf("reserve %d", r)
	}
	e := newEmbedded(t)
	total, ok := hostMemory("MemTotal")
	if !ok || total < 64<<20 {
		t.Fatalf("the host has %d bytes of memory", total)
	}
	e.weak.box = func(b *embeddedBox) { b.dog.reserve = total + 1 } // no host has so much left
	r := launch(t, e, LaunchSpec{Command: []string{"/bin/sh", "-c", "sleep 100"}})
	if r.err != nil || r.Reason != ReasonOutOfMemory || !strings.Contains(r.Detail, "the host had") {
		t.Errorf("%v, %s, %s", r.err, r.Reason, r.Detail)
	}
	// Empty files take memory too.
	full := launch(t, newEmbedded(t), LaunchSpec{
		Command: []string{"/bin/sh", "-c", "cd /tmp; seq 60000 | xargs touch; sleep 2; exit 1"},
		Limits:  Limits{Memory: 40 << 20},
	})
	if full.err != nil || full.Reason != ReasonOutOfMemory {
		t.Errorf("60,000 empty files in memory: %v, %s, exit code %d, %s, peak %+v", full.err, full.Reason, full.ExitCode, full.Detail, full.Peak)
	}
}

// A file without a name is found by no walk; the space that is left tells.
func TestHostDisk(t *testing.T) {
	t.Parallel()
	dir := workspaceDir(t)
	is, err := spaceOf(dir)
	if err != nil || is.used <= 0 || is.reserve <= 0 || is.reserve > 1<<30 {
		t.Fatalf("space %+v: %v", is, err)
	}
	e := newEmbedded(t)
	e.weak.box = func(b *embeddedBox) { b.dog.diskReserve = is.left * 2 }
	r := launch(t, e, LaunchSpec{Command: []string{"/bin/sh", "-c", "sleep 100"}, Workspace: Workspace{Dir: dir}})
	if r.err != nil || r.Reason != ReasonDiskLimit || !strings.Contains(r.Detail, "the file system of the workspace had") {
		t.Errorf("%v, %s, %s", r.err, r.Reason, r.Detail)
	}
}

// A workspace is measured when its file system fills, and now and then anyway.
func TestDiskPace(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := diskPace{next: now.Add(time.Second), last: now.Add(watchMaxDisk), total: 40, used: 1000}
	for _, tt := range []struct {
		name  string
		pace  diskPace
		after time.Duration
		used  int64
		want  bool
	}{
		{"at the start", diskPace{}, 0, 1000, true},
		{"nothing was written", p, 2 * time.Second, 1000, false},
		{"something was freed", p, 2 * time.Second, 10, false},
		{"half of what is left", p, 2 * time.Second, 1030, false},
		{"more", p, 2 * time.Second, 1031, true},
		{"more, just after a walk", p, time.Millisecond, 1031, false},
		{"the limit was reached before", diskPace{next: now, last: p.last, total: 100, used: 1000}, time.Second, 1001, true},
		{"after a long time", p, watchMaxDisk + 1, 1000, true},
	} {
		if got := tt.pace.due(now.Add(tt.after), tt.used, 100); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// A tree that is too deep to be measured is not called too large.
func TestDeepDirectories(t *testing.T) {
	t.Parallel()
	r := launch(t, newEmbedded(t), LaunchSpec{
		Command:   []string{"/bin/sh", "-c", "i=0; while [ $i -lt 400 ]; do mkdir d && cd d; i=$((i+1)); done; exit 1"},
		Workspace: Workspace{Dir: workspaceDir(t)},
	})
	if r.err != nil || r.Reason != ReasonDiskLimit || !strings.Contains(r.Detail, "deep") {
		t.Errorf("%v, %s, %s", r.err, r.Reason, r.Detail)
	}
}

func TestCPULimit(t *testing.T) {
	t.Parallel()
	r := launch(t, newEmbedded(t), LaunchSpec{Command: []string{"true"}, Limits: Limits{CPUs: 0.5}})
	i := slices.IndexFunc(r.Isolation.Properties, func(p Property) bool { return p.Name == "cpu-limit" })
	if i < 0 {
		t.Fatalf("nothing is said of the limit: %v", r.err)
	}
	p := r.Isolation.Properties[i]
	switch {
	case p.Status == Enforced && r.err == nil && strings.Contains(p.Evidence, "cpu"):
	case p.Status == Missing && errors.Is(r.err, ErrIsolation) && p.Remedy != "":
	default:
		t.Errorf("%+v, error %v", p, r.err)
	}
	if os.Geteuid() == 0 && p.Status != Enforced {
		t.Errorf("as root it is %s", p.Status)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	res, err := newEmbedded(t).Run(ctx, LaunchSpec{
		ID: kickid.New(), Command: []string{"sh", "-c", "trap 'echo asked; exit 3' TERM; echo up; sleep 1000 & wait"}, Env: map[string]string{"PATH": testPath},
		Stdout: writerFunc(func(p []byte) (int, error) {
			cancel()
			return out.Write(p)
		}),
	})
	if err != nil || res.Reason != ReasonCancelled || out.String() != "up\nasked\n" {
		t.Errorf("reason %s, error %v, output %q", res.Reason, err, out.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestOutput(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	t.Run("streams", func(t *testing.T) {
		t.Parallel()
		// The command goes on only when its first line has been seen outside.
		dir := workspaceDir(t)
		seen := make(chan struct{})
		var once sync.Once
		go func() {
			<-seen
			if err := os.WriteFile(filepath.Join(dir, "seen"), nil, 0o666); err != nil {
				t.Error(err)
			}
		}()
		r := launch(t, e, LaunchSpec{
			Command:   []string{"sh", "-c", "echo first; until [ -e seen ]; do sleep 0.02; done"},
			Workspace: Workspace{Dir: dir},
			Limits:    Limits{Wall: 30 * time.Second},
			Stdout: writerFunc(func(p []byte) (int, error) {
				once.Do(func() { close(seen) })
				return len(p), nil
			}),
		})
		if r.err != nil || r.Reason != ReasonExited {
			t.Errorf("reason %s, %v", r.Reason, r.err)
		}
	})
	t.Run("is cut", func(t *testing.T) {
		t.Parallel()
		r := launch(t, e, LaunchSpec{Command: []string{"sh", "-c", "head -c 300000 /dev/zero | tr '\\0' a; echo the end"}, Limits: Limits{Output: 1000}})
		const total = 300008
		if r.err != nil || !r.OutputCut || r.StdoutBytes != total {
			t.Fatalf("cut %v, %d bytes, %v", r.OutputCut, r.StdoutBytes, r.err)
		}
		note := fmt.Sprintf("\n[kick: %d bytes of output cut here]\n", total-1000-outputTail)
		if len(r.stdout) != 1000+len(note)+outputTail || r.stdout[1000:1000+len(note)] != note || !strings.HasSuffix(r.stdout, "athe end\n") {
			t.Errorf("%d bytes, in the middle %q", len(r.stdout), r.stdout[990:1000+len(note)+10])
		}
	})
	t.Run("a failing writer stops nothing", func(t *testing.T) {
		t.Parallel()
		r := launch(t, e, LaunchSpec{
			Command: []string{"sh", "-c", "head -c 10m /dev/zero; exit 4"},
			Stdout:  writerFunc(func([]byte) (int, error) { return 0, errors.New("full") }),
		})
		if r.err != nil || r.ExitCode != 4 || r.StdoutBytes != 10<<20 {
			t.Errorf("exit code %d, %d bytes, %v", r.ExitCode, r.StdoutBytes, r.err)
		}
	})
}

// TestEgress reaches a gateway by its socket and by the loopback port, and
// nothing else.
func TestEgress(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(workspaceDir(t), "gw")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, filepath.Base(EgressSocketPath))
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				line, _ := bufio.NewReader(c).ReadString('\n')
				_, _ = io.WriteString(c, "gateway got "+line)
			}()
		}
	}()
	script := `
import socket
def ask(s, to):
    s.connect(to); s.sendall(b"hello\n"); s.shutdown(socket.SHUT_WR); print(s.recv(100).decode().strip())
ask(socket.socket(), ("127.0.0.1", 8377))
ask(socket.socket(socket.AF_UNIX), "` + EgressSocketPath + `")
for to in (("192.0.2.1", 80), ("127.0.0.1", 8378)):
    try: ask(socket.socket(), to)
    except OSError as e: print(type(e).__name__)
try: open("/run/kick/egress/x", "w")
except OSError as e: print(type(e).__name__)
`
	spec := LaunchSpec{Command: []string{"/usr/bin/python3", "-c", script}, Egress: Egress{Socket: socket, Port: 8377}}
	r := launch(t, newEmbedded(t), spec)
	want := "gateway got hello\ngateway got hello\nOSError\nConnectionRefusedError\n"
	if !strings.HasPrefix(r.stdout, want) || r.err != nil || r.ExitCode != 0 {
		t.Errorf("stdout %q, stderr %q, %v; want %q", r.stdout, r.stderr, r.err, want)
	}
	spec.Network = NetworkNone
	if r := launch(t, newEmbedded(t), spec); !errors.Is(r.err, ErrSpec) {
		t.Errorf("egress in network mode none: %v", r.err)
	}
}

// TestConcurrentRuns runs eight sandboxes beside a reaper that must leave them
// alone.
func TestConcurrentRuns(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	stop := make(chan struct{})
	var reaper sync.WaitGroup
	reaper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := e.Reap(t.Context()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var runs sync.WaitGroup
	for i := range 8 {
		runs.Go(func() {
			r := launch(t, e, LaunchSpec{Command: []string{"sh", "-c", fmt.Sprintf("sleep 0.2; echo %d; exit %d", i, i)}, Workspace: Workspace{Dir: workspaceDir(t)}})
			if r.err != nil || r.ExitCode != i || r.stdout != strconv.Itoa(i)+"\n" {
				t.Errorf("run %d: exit code %d, %q, %v", i, r.ExitCode, r.stdout, r.err)
			}
		})
	}
	runs.Wait()
	close(stop)
	reaper.Wait()
}

func TestOneIDOnce(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	id := kickid.New()
	first := launch(t, e, LaunchSpec{ID: id, Command: []string{"echo", "up"}, Stdout: writerFunc(func(p []byte) (int, error) {
		if r := launch(t, e, LaunchSpec{ID: id, Command: []string{"true"}}); !errors.Is(r.err, ErrSpec) {
			t.Errorf("the second of one id: %v", r.err)
		}
		return len(p), nil
	})})
	if first.err != nil {
		t.Error(first.err)
	}
	if r := launch(t, e, LaunchSpec{ID: id, Command: []string{"true"}}); r.err != nil {
		t.Errorf("the id again, later: %v", r.err)
	}
}

// TestKilledLauncher kills a launcher without warning: its sandbox must go, with
// every process in it, and a reaper clears the rest.
func TestKilledLauncher(t *testing.T) {
	t.Parallel()
	id := kickid.New()
	if child := os.Getenv("KICK_TEST_LAUNCHER"); child != "" {
		launch(t, newEmbedded(t), LaunchSpec{ID: child, Command: []string{"sh", "-c", "setsid sleep 1000 & sleep 1000 & echo up; wait"}, Stdout: os.Stdout})
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(t.TempDir(), "shim")
	if err := os.WriteFile(shim, shimBytes, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestKilledLauncher$")
	cmd.Env = append(os.Environ(), "KICK_TEST_LAUNCHER="+id, "KICK_TEST_SHIM="+shim)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	inside := descendants(t, cmd.Process.Pid)
	if len(inside) < 4 {
		t.Errorf("the launcher has %d descendants, want the shim, the shell and two more", len(inside))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, fd := range inside {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} // readable when the process has ended
		if n, err := unix.Poll(poll, 5000); n != 1 {
			t.Errorf("a process of the sandbox lives: %v", err)
		}
		unix.Close(fd)
	}
	if _, err := newEmbedded(t).Reap(t.Context()); err != nil {
		t.Error(err)
	}
	hs, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hs {
		if _, err := os.Stat(filepath.Join(h.own, cgroupParent, id)); err == nil {
			t.Errorf("a control group is left in %s", h.mount)
		}
	}
}

// descendants opens a descriptor of every process below pid.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	parents := map[int]int{}
	list, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if n, err := strconv.Atoi(filepath.Base(p)); err == nil {
			if parent, ok := parentOf(n); ok {
				parents[n] = parent
			}
		}
	}
	var fds []int
	for p := range parents {
		if p == pid || !descends(p, pid, parents) {
			continue
		}
		if fd, err := unix.PidfdOpen(p, 0); err == nil {
			fds = append(fds, fd)
		} else if !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	return fds
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	iso, err := newEmbedded(t).Preflight(t.Context())
	if err != nil || len(iso.Missing()) != 0 || len(iso.Properties) < 25 {
		t.Errorf("%d properties, missing %v, %v", len(iso.Properties), iso.Missing(), err)
	}
}
