package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kickid"
)

var shimBytes []byte

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		if path := os.Getenv("KICK_TEST_SHIM"); path != "" {
			var err error
			if shimBytes, err = os.ReadFile(path); err != nil {
				return 1, err
			}
			return m.Run(), nil
		}
		dir, err := os.MkdirTemp("", "kick-shim")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "kick-shim")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../cmd/kick-shim")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build the shim: %w\n%s", err, out)
		}
		if shimBytes, err = os.ReadFile(path); err != nil {
			return 1, err
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func newEmbedded(t testing.TB) *Embedded {
	t.Helper()
	e, err := NewEmbedded(EmbeddedConfig{Shim: bytes.NewReader(shimBytes)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// testPath is the PATH of commands in tests.
const testPath = "/usr/local/bin:/usr/bin:/bin"

// ran is a finished run with what it said.
type ran struct {
	Result
	err            error
	stdout, stderr string
}

// launch runs a specification with an id of its own and a PATH.
func launch(t testing.TB, e Launcher, spec LaunchSpec) ran {
	t.Helper()
	if spec.ID == "" {
		spec.ID = kickid.New()
	}
	if spec.Env == nil {
		spec.Env = map[string]string{"PATH": testPath}
	}
	var out, errs bytes.Buffer
	if spec.Stdout == nil {
		spec.Stdout = &out
	}
	if spec.Stderr == nil {
		spec.Stderr = &errs
	}
	r := ran{}
	r.Result, r.err = e.Run(t.Context(), spec)
	r.stdout, r.stderr = out.String(), errs.String()
	return r
}

// shell is launch for a script that must succeed.
func shell(t testing.TB, e *Embedded, script string) string {
	t.Helper()
	r := launch(t, e, LaunchSpec{Command: []string{"/bin/sh", "-c", script}})
	if r.err != nil || r.ExitCode != 0 {
		t.Fatalf("%s: reason %s, exit code %d, %v, %s\n%s%s", script, r.Reason, r.ExitCode, r.err, r.Detail, r.stdout, r.stderr)
	}
	return r.stdout
}

// workspaceDir makes a workspace that the sandbox's user can get at.
func workspaceDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAsOrdinaryUser runs the tests of this package once more as a user without
// privilege, so that a run as root covers both. The contract suite does so by
// itself.
func TestAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		return // this is the run as an ordinary user
	}
	const uid = 54321 // needs no entry in /etc/passwd
	dir, err := os.MkdirTemp("", "kick-user")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	bin, shim, home := filepath.Join(dir, "sandbox.test"), filepath.Join(dir, "shim"), filepath.Join(dir, "home")
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(bin, program, 0o755), os.WriteFile(shim, shimBytes, 0o755),
		os.Mkdir(home, 0o700), os.Chown(home, uid, uid))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, "-test.v", "-test.timeout=5m", "-test.skip=^Test(EmbeddedContract|OpenShell|Kube|Podman|OnPodman)")
	if testing.Short() {
		cmd.Args = append(cmd.Args, "-test.short")
	}
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "KICK_TEST_SHIM=" + shim, "CI=" + os.Getenv("CI")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as uid %d: %v\n%s", uid, err, out)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	tests := []struct {
		name    string
		spec    LaunchSpec
		reason  Reason
		code    int
		signal  int
		stdout  string
		stderr  string
		errKind error
	}{
		{name: "output and exit code", spec: LaunchSpec{Command: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}}, reason: ReasonExited, code: 7, stdout: "out\n", stderr: "err\n"},
		{name: "signal", spec: LaunchSpec{Command: []string{"sh", "-c", "kill -SEGV $$"}}, reason: ReasonSignaled, code: 139, signal: 11},
		{name: "environment is exact", spec: LaunchSpec{Command: []string{"/usr/bin/env"}, Env: map[string]string{"B": "2", "A": "1 x"}}, reason: ReasonExited, stdout: "A=1 x\nB=2\n"},
		{name: "no environment", spec: LaunchSpec{Command: []string{"/usr/bin/env"}, Env: map[string]string{}}, reason: ReasonExited},
		{name: "standard input is at its end", spec: LaunchSpec{Command: []string{"wc", "-c"}}, reason: ReasonExited, stdout: "0\n"},
		{name: "three descriptors", spec: LaunchSpec{Command: []string{"sh", "-c", "ls /proc/$$/fd; true"}}, reason: ReasonExited, stdout: "0\n1\n2\n"},
		{name: "working directory", spec: LaunchSpec{Command: []string{"pwd"}, Workspace: Workspace{MountPath: "/work/here"}}, reason: ReasonExited, stdout: "/work/here\n"},
		{name: "no such program", spec: LaunchSpec{Command: []string{"no-such-program"}}, reason: ReasonStartFailed, code: -1},
		{name: "background processes end with the command", spec: LaunchSpec{Command: []string{"sh", "-c", "setsid sleep 1000 & echo started"}}, reason: ReasonExited, stdout: "started\n"},
		{name: "an image", spec: LaunchSpec{Command: []string{"true"}, Image: "debian"}, reason: ReasonStartFailed, code: -1, errKind: ErrSpec},
		{name: "no command and no sink", spec: LaunchSpec{}, reason: ReasonStartFailed, code: -1, errKind: ErrSpec},
		{name: "a workspace over the programs", spec: LaunchSpec{Command: []string{"true"}, Workspace: Workspace{MountPath: "/usr/share"}}, reason: ReasonStartFailed, code: -1, errKind: ErrSpec},
		{name: "an impossible variable", spec: LaunchSpec{Command: []string{"true"}, Env: map[string]string{"A=B": ""}}, reason: ReasonStartFailed, code: -1, errKind: ErrSpec},
		{name: "a bad id", spec: LaunchSpec{ID: "../up", Command: []string{"true"}}, reason: ReasonStartFailed, code: -1, errKind: ErrSpec},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := launch(t, e, tt.spec)
			if !errors.Is(r.err, tt.errKind) || tt.errKind == nil && r.err != nil {
				t.Fatalf("error %v, want %v", r.err, tt.errKind)
			}
			if r.Reason != tt.reason || r.ExitCode != tt.code || r.Signal != tt.signal {
				t.Errorf("reason %s, exit code %d, signal %d (%s); want %s, %d, %d", r.Reason, r.ExitCode, r.Signal, r.Detail, tt.reason, tt.code, tt.signal)
			}
			if r.stdout != tt.stdout || r.stderr != tt.stderr {
				t.Errorf("stdout %q, stderr %q; want %q, %q", r.stdout, r.stderr, tt.stdout, tt.stderr)
			}
		})
	}
}

func TestInside(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	tests := []struct{ name, script, want string }{
		{"user", "id -u; id -g; id -G", "1000\n1000\n1000\n"},
		{"no process of the host", "ls -d /proc/[0-9]* | wc -l | xargs -I{} test {} -lt 6 && echo few", "few\n"},
		{"no directory of the host", "ls -A /root /home /opt /run /mnt /srv /boot 2>/dev/null | grep -v '^/'|grep -v '^$' | tr '\\n' ' '", "agent kick "},
		{"programs cannot be changed", "touch /usr/x 2>/dev/null || echo refused", "refused\n"},
		{"the root cannot be changed", "mkdir /x 2>/dev/null || echo refused", "refused\n"},
		{"home and tmp can", "echo a >~/f && echo b >/tmp/f && echo c >/dev/shm/f && echo d >f && cat ~/f /tmp/f /dev/shm/f f", "a\nb\nc\nd\n"},
		{"only loopback", "grep -c : /proc/net/dev; grep -c lo: /proc/net/dev", "1\n1\n"},
		{"no new namespace", "unshare -U true 2>/dev/null || echo refused", "refused\n"},
		{"no way to the first process", "for f in environ mem maps fd/0 exe cwd root/etc; do head -c1 /proc/1/$f >/dev/null 2>&1 && echo $f; done; ls /proc/1/fd 2>/dev/null; echo done", "done\n"},
		{"the first process survives its children", "for s in 1 2 3 6 11 14 15 31 34; do kill -$s 1 2>/dev/null; done; kill -9 1; kill -STOP 1; echo alive", "alive\n"},
		{"set-user-ID does nothing", "grep NoNewPrivs /proc/self/status | tr -d '\\t'", "NoNewPrivs:1\n"},
		{"no resolver, no host names", "cat /etc/resolv.conf; grep -c . /etc/hosts", "2\n"},
		{"devices", "echo x >/dev/null && head -c3 /dev/zero | wc -c && test -c /dev/urandom && ls /dev | wc -l", "3\n13\n"},
		{"terminals", "script -qec 'tty; stty size' /dev/null </dev/null | tr -d '\\r' | head -1", "/dev/pts/0\n"},
		{"kernel command line", "wc -c </proc/cmdline", "0\n"},
		{"git", "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m m && git log --format=%s", "m\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := launch(t, e, LaunchSpec{
				Command: []string{"/bin/sh", "-c", tt.script},
				Env:     map[string]string{"PATH": testPath, "HOME": HomeDir},
			})
			if r.err != nil || r.stdout != tt.want {
				t.Errorf("stdout %q, stderr %q, %s, %v; want %q", r.stdout, r.stderr, r.Reason, r.err, tt.want)
			}
		})
	}
}

// BenchmarkTrue compares the embedded runtime with bubblewrap, which does less:
// no first process that reaps, no check from outside, no filters. Wall time
// depends on what else the machine does; processor time does not.
func BenchmarkTrue(b *testing.B) {
	e := newEmbedded(b)
	measure := func(name string, one func(i int) error) {
		b.Run(name, func(b *testing.B) {
			own, children := processorTime()
			for i := range b.N {
				if err := one(i); err != nil {
					b.Fatal(err)
				}
			}
			own2, children2 := processorTime()
			b.ReportMetric((own2-own).Seconds()*1000/float64(b.N), "own-cpu-ms/op")
			b.ReportMetric((children2-children).Seconds()*1000/float64(b.N), "child-cpu-ms/op")
		})
	}
	measure("kick", func(i int) error {
		res, err := e.Run(context.Background(), LaunchSpec{ID: fmt.Sprintf("kbench%d", i), Command: []string{"/bin/true"}})
		if err == nil && res.ExitCode != 0 {
			err = errors.New(res.Detail)
		}
		return err
	})
	measure("bwrap", func(int) error {
		return exec.Command("bwrap", "--unshare-all", "--ro-bind", "/", "/", "true").Run()
	})
}

func processorTime() (own, children time.Duration) {
	of := func(who int) time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			panic(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return of(syscall.RUSAGE_SELF), of(syscall.RUSAGE_CHILDREN)
}

// TestNoDescriptorLeaks runs alone: the tests that run side by side come later.
func TestNoDescriptorLeaks(t *testing.T) {
	e := newEmbedded(t)
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	shell(t, e, "true") // opens what the runtime keeps
	before := count()
	for range 3 {
		shell(t, e, "true")
		launch(t, e, LaunchSpec{Command: []string{"no-such-program"}})
		launch(t, e, LaunchSpec{Command: []string{"true"}, Image: "refused"})
	}
	e.weak.box = func(b *embeddedBox) { b.plan.jail.Landlock = nil }
	launch(t, e, LaunchSpec{Command: []string{"true"}})
	if after := count(); after != before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}
