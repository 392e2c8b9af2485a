package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

// flawEnv names a flaw of the launcher that TestFlawedLauncher tests.
const flawEnv = "KICK_SANDBOXTEST_FLAW"

// flawed is a launcher that breaks one rule of the contract.
type flawed struct {
	*sandbox.Embedded
	run func(*flawed, context.Context, sandbox.LaunchSpec) (sandbox.Result, error)
}

func (f *flawed) Run(ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
	return f.run(f, ctx, spec)
}

// before is a flaw in what is launched.
func before(change func(*sandbox.LaunchSpec)) func(*flawed, context.Context, sandbox.LaunchSpec) (sandbox.Result, error) {
	return func(f *flawed, ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
		change(&spec)
		return f.Embedded.Run(ctx, spec)
	}
}

// after is a flaw in what is said of it.
func after(change func(sandbox.LaunchSpec, *sandbox.Result)) func(*flawed, context.Context, sandbox.LaunchSpec) (sandbox.Result, error) {
	return func(f *flawed, ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
		res, err := f.Embedded.Run(ctx, spec)
		change(spec, &res)
		return res, err
	}
}

// flaws name the subtest that must notice each.
var flaws = []struct {
	name, subtest string
	run           func(*flawed, context.Context, sandbox.LaunchSpec) (sandbox.Result, error)
}{
	{"adds a variable", "Environment", before(func(s *sandbox.LaunchSpec) {
		env := map[string]string{"EXTRA": "1"}
		for k, v := range s.Env {
			env[k] = v
		}
		s.Env = env
	})},
	{"passes the caller's environment", "HostFiles", before(func(s *sandbox.LaunchSpec) {
		s.Env = map[string]string{"PATH": s.Env["PATH"], "KICK_SANDBOXTEST_CANARY": os.Getenv("KICK_SANDBOXTEST_CANARY")}
	})},
	{"shows the caller's working directory", "HostFiles", before(func(s *sandbox.LaunchSpec) {
		dir, err := os.Getwd()
		if err != nil {
			panic(err)
		}
		s.ProgramDirs = append(s.ProgramDirs, dir)
	})},
	{"mixes the outputs", "Stderr", before(func(s *sandbox.LaunchSpec) { s.Stderr = s.Stdout })},
	{"gives the output at the end", "Streaming", func(f *flawed, ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
		stdout, held := spec.Stdout, newWatched()
		spec.Stdout = held
		res, err := f.Embedded.Run(ctx, spec)
		_, _ = io.WriteString(stdout, held.String())
		return res, err
	}},
	{"loses the exit code", "ExitCode", after(func(_ sandbox.LaunchSpec, r *sandbox.Result) { r.ExitCode = min(r.ExitCode, 1) })},
	{"takes signals for exits", "Signal", after(func(_ sandbox.LaunchSpec, r *sandbox.Result) { r.Reason = sandbox.ReasonExited })},
	{"says nothing of the isolation", "Result", after(func(_ sandbox.LaunchSpec, r *sandbox.Result) { r.Isolation.Properties = nil })},
	{"has a property missing", "Result", after(func(_ sandbox.LaunchSpec, r *sandbox.Result) { r.Isolation.Properties[0].Status = sandbox.Missing })},
	{"says nothing of its steps", "Result", before(func(s *sandbox.LaunchSpec) { s.OnEvent = nil })},
	{"repairs ids", "BadSpec", before(func(s *sandbox.LaunchSpec) {
		if s.ID == "" {
			s.ID = "t" + random(6)
		}
	})},
	{"returns before the end", "Cancel", func(f *flawed, ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
		go func() { _, _ = f.Embedded.Run(context.WithoutCancel(ctx), spec) }()
		<-ctx.Done()
		return sandbox.Result{Reason: sandbox.ReasonCancelled, ExitCode: -1}, nil
	}},
	{"leaves a process", "NothingLeft", func(f *flawed, ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
		res, err := f.Embedded.Run(ctx, spec)
		return res, errors.Join(err, exec.Command("sh", "-c", "sleep 5", spec.ID).Start())
	}},
	{"leaves a file", "NothingLeft", func(f *flawed, ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
		if err := os.WriteFile(filepath.Join(os.TempDir(), "left"), nil, 0o600); err != nil {
			return sandbox.Result{}, err
		}
		return f.Embedded.Run(ctx, spec)
	}},
	{"has no memory limit", "MemoryLimit", before(func(s *sandbox.LaunchSpec) { s.Limits.Memory, s.Limits.Wall = -1, 2*time.Second })},
	{"has no process limit", "ProcessLimit", before(func(s *sandbox.LaunchSpec) { s.Limits.Processes, s.Limits.Wall = -1, 10*time.Second })},
	{"has no disk limit", "DiskLimit", before(func(s *sandbox.LaunchSpec) { s.Limits.Disk, s.Limits.Wall = -1, 2*time.Second })},
	{"has no output limit", "OutputLimit", before(func(s *sandbox.LaunchSpec) { s.Limits.Output = -1 })},
	{"miscounts the output", "OutputLimit", after(func(s sandbox.LaunchSpec, r *sandbox.Result) { r.StdoutBytes = min(r.StdoutBytes, 1<<20) })},
	{"lets an id run twice", "SameID", before(func(s *sandbox.LaunchSpec) { s.ID = "t" + random(6) })},
	{"runs one at a time", "EightAtOnce", before(func(s *sandbox.LaunchSpec) { s.ID = "one" })},
	{"forgets the port", "Egress", before(func(s *sandbox.LaunchSpec) { s.Egress.Port = 0 })},
	{"keeps the gateway in mode none", "NetworkNone", before(func(s *sandbox.LaunchSpec) { s.Network = sandbox.NetworkRestricted })},
	{"forgets the work", "Work", before(func(s *sandbox.LaunchSpec) { s.Workspace.Sink = nil })},
	{"forgets the work of a command that was killed", "WorkAfterTimeout", func(f *flawed, ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
		spec.Workspace.Sink = nil
		return f.Embedded.Run(ctx, spec)
	}},
	{"writes while it salvages", "WorkOnly", func(f *flawed, ctx context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
		if len(spec.Command) == 0 {
			if err := os.WriteFile(filepath.Join(spec.Workspace.Dir, ".git/x"), nil, 0o600); err != nil {
				return sandbox.Result{}, err
			}
		}
		return f.Embedded.Run(ctx, spec)
	}},
	{"takes broken artifacts for whole ones", "WorkTooLarge", before(func(s *sandbox.LaunchSpec) { s.Workspace.Sink = closingSink{s.Workspace.Sink} })},
	{"hides what is missing", "WorkTooLarge", after(func(_ sandbox.LaunchSpec, r *sandbox.Result) { r.Missing = nil })},
}

// closingSink closes where it should abort.
type closingSink struct{ sandbox.Sink }

func (c closingSink) Create(a sandbox.Artifact, name string) (sandbox.SinkWriter, error) {
	w, err := c.Sink.Create(a, name)
	return closingWriter{w}, err
}

type closingWriter struct{ sandbox.SinkWriter }

func (c closingWriter) Abort() error { return c.Close() }

// TestFlawedLauncher is the suite on a launcher with a flaw. It is run by
// TestSuiteNoticesFlaws alone, and fails there.
func TestFlawedLauncher(t *testing.T) {
	name := os.Getenv(flawEnv)
	if name == "" {
		return
	}
	for _, f := range flaws {
		if f.name != name {
			continue
		}
		shim, err := os.ReadFile(os.Getenv("KICK_TEST_SHIM"))
		if err != nil {
			t.Fatal(err)
		}
		patience = 4 * time.Second // so long waits what must not come
		TestLauncher(t, Harness{New: func() (sandbox.Launcher, error) {
			e, err := sandbox.NewEmbedded(sandbox.EmbeddedConfig{Shim: bytes.NewReader(shim)})
			return &flawed{e, f.run}, err
		}})
	}
}

// TestSuiteNoticesFlaws shows that the contract's subtests can fail: each flaw
// of a launcher is noticed by the subtest that is there for it.
func TestSuiteNoticesFlaws(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shim := filepath.Join(dir, "shim")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", shim, "github.com/kickhq/kick/cmd/kick-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the shim: %v\n%s", err, out)
	}
	probe := buildProbe(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flaws {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(exe, "-test.run=^TestFlawedLauncher$/^"+f.subtest+"$", "-test.v", "-test.count=1")
			cmd.Env = append(os.Environ(), flawEnv+"="+f.name, "KICK_TEST_SHIM="+shim, ProbeEnv+"="+probe)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestFlawedLauncher/"+f.subtest) || strings.Contains(string(out), "panic:") {
				t.Errorf("a launcher that %s passes %s, or breaks the suite: %v\n%s", f.name, f.subtest, err, clip(string(out)))
			}
		})
	}
}

// TestProbeOnTheHost shows that the probe's answers are not always no: outside
// of a sandbox it reaches what it must not reach inside.
func TestProbeOnTheHost(t *testing.T) {
	t.Parallel()
	probe := buildProbe(t)
	ask := func(args ...string) string {
		out, err := exec.Command(probe, args...).Output()
		if err != nil {
			t.Fatalf("probe %s: %v", args, err)
		}
		return string(out)
	}
	socket, served := gateway(t)
	if got := ask("connect", "unix:"+socket); !strings.Contains(got, `"unix:`+socket+`":"allowed"`) {
		t.Errorf("connect: %s", got)
	}
	if got := ask("get", "unix:"+socket); !strings.Contains(got, "/unix 300000") || served.Load() != 10 {
		t.Errorf("get: %s", got)
	}
	if got := ask("read", "/proc/self/environ", "/"); strings.Count(got, "allowed") != 2 {
		t.Errorf("read: %s", got)
	}
	if got := ask("write", t.TempDir()+"/"); !strings.Contains(got, "allowed") {
		t.Errorf("write: %s", got)
	}
	if got := ask("processes", itoa(os.Getpid())); !strings.Contains(got, filepath.Base(os.Args[0])) {
		t.Errorf("processes: %s", got)
	}
}

// TestProbeWithoutFilter shows that the system calls are tried in earnest: as
// root of new namespaces, but with no capability over the host, many of them
// are allowed. As root of the host, none is tried.
func TestProbeWithoutFilter(t *testing.T) {
	t.Parallel()
	dir := temporary(t, "probe", 0o755)
	b, err := os.ReadFile(buildProbe(t))
	if err != nil {
		t.Fatal(err)
	}
	probe := filepath.Join(dir, "probe")
	if err := os.WriteFile(probe, b, 0o755); err != nil {
		t.Fatal(err)
	}
	before := mounts(t)
	uid := os.Getuid()
	if uid == 0 {
		uid = 60_901 // nobody's
	}
	cmd := exec.Command(probe, "calls")
	id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		UidMappings: id, GidMappings: id,
		Credential: &syscall.Credential{NoSetGroups: true},
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("probe in new namespaces: %v", err)
	}
	for _, call := range []string{"mount", "chroot", "sethostname", "unshare mount", "unshare network", "clone user", "clone pid", "packet socket"} {
		if !strings.Contains(string(out), `"`+call+`":"allowed"`) {
			t.Errorf("%s is not allowed: %s", call, out)
		}
	}
	after := mounts(t)
	for _, m := range before {
		if !slices.Contains(after, m) {
			t.Errorf("the host lost a mount: %s", m)
		}
	}
}
