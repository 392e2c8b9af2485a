package sandboxtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/sandbox"
)

// The command gets the environment of the specification and nothing else.
func (s *suite) environment(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"several": {
			"PATH": s.h.Path, "EMPTY": "", "SPACES": " a  b ", "LINES": "a\nb", "EQUALS": "a=b", "UTF8": "Größe",
			"CONTROL": "\x01\x1b", "lower": "1", "LD_LIBRARY_PATH": "", "HOME": "/elsewhere", "QUOTES": `"'$x` + "`",
		},
		"one":  {"PATH": s.h.Path},
		"none": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Not through a shell, which has variables of its own.
			spec := s.spec(t, "cat", "/proc/self/environ")
			if env == nil {
				spec.Command[0] = "/bin/cat"
			}
			spec.Env = env
			got := strings.Split(strings.TrimSuffix(s.succeed(t, spec).stdout, "\x00"), "\x00")
			slices.Sort(got)
			want := sorted(env)
			if len(want) == 0 {
				want = []string{""}
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("environment %q, want %q", got, want)
			}
		})
	}
}

// The home directory holds the files of the specification and nothing else, and
// they are the command's own.
func (s *suite) home(t *testing.T) {
	spec := s.script(t, `cd `+sandbox.HomeDir+`; find . -type f; cat .config/a/b; cat c; echo more >>c; tail -n 1 c`)
	spec.Home = map[string]string{".config/a/b": "Größe\n", "c": ""}
	got := strings.Split(strings.TrimSpace(s.succeed(t, spec).stdout), "\n")
	slices.Sort(got[:min(2, len(got))])
	if want := []string{"./.config/a/b", "./c", "Größe", "more"}; !slices.Equal(got, want) {
		t.Errorf("in the home directory %q, want %q", got, want)
	}
}

// The command has three descriptors, whatever the caller left open.
func (s *suite) descriptors(t *testing.T) {
	var p [2]int
	if err := syscall.Pipe(p[:]); err != nil { // without close-on-exec
		t.Fatal(err)
	}
	defer syscall.Close(p[0])
	defer syscall.Close(p[1])
	root, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	high, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD, 200)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(high)
	got := sorted(s.ask(t, s.probing(t, "descriptors")))
	if want := []string{"0=/dev/null", "1=pipe", "2=pipe"}; !slices.Equal(got, want) {
		t.Errorf("descriptors %q, want %q", got, want)
	}
}

func (s *suite) stdin(t *testing.T) {
	if o := s.succeed(t, s.spec(t, "cat")); o.stdout != "" {
		t.Errorf("read %q from stdin", o.stdout)
	}
}

func (s *suite) arguments(t *testing.T) {
	args := []string{"", " a  b ", "$HOME", "*", "-n", "line\nline", `"'\`, "Größe", "\x1b"}
	spec := s.spec(t, append([]string{"sh", "-c", `for a; do printf '%s|' "$a"; done`, "x"}, args...)...)
	if got, want := s.succeed(t, spec).stdout, strings.Join(args, "|")+"|"; got != want {
		t.Errorf("arguments %q, want %q", got, want)
	}
}

func (s *suite) workingDirectory(t *testing.T) {
	for _, mount := range []string{"", "/src/github.com/acme/api"} {
		if mount != "" && s.h.OneMountPath {
			continue
		}
		spec := s.spec(t, "sh", "-c", `pwd; cat in.txt; echo from the sandbox >out.txt; mkdir d; echo >d/f; ln -s /etc l; chmod 700 d`)
		dir := spec.Workspace.Dir
		if err := os.WriteFile(filepath.Join(dir, "in.txt"), []byte("from the host\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		spec.Workspace.MountPath = mount
		want := mount
		if mount == "" {
			want = sandbox.DefaultMountPath
		}
		if got := s.succeed(t, spec).stdout; got != want+"\nfrom the host\n" {
			t.Errorf("in %s: %q", want, got)
		}
		if s.h.Sent {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, "out.txt")); string(b) != "from the sandbox\n" {
			t.Errorf("on the host: %q, %v", b, err)
		}
	}
}

func (s *suite) stderr(t *testing.T) {
	o := s.succeed(t, s.spec(t, "sh", "-c", "echo out; echo err >&2; printf x; printf y >&2"))
	if o.stdout != "out\nx" || o.stderr != "err\ny" || o.StdoutBytes != 5 || o.StderrBytes != 5 || o.OutputCut {
		t.Errorf("stdout %q of %d bytes, stderr %q of %d bytes, cut %v", o.stdout, o.StdoutBytes, o.stderr, o.StderrBytes, o.OutputCut)
	}
}

// Output arrives while the command runs: it waits for an answer to it.
func (s *suite) streaming(t *testing.T) {
	if s.h.Sent {
		s.streamingUntilCancel(t)
		return
	}
	spec := s.script(t, `echo question; read answer <fifo; echo "got $answer"; echo more >&2; read answer <fifo; echo "got $answer"`)
	answer := fifo(t, spec, "fifo")
	r := s.start(t, spec)
	r.waitFor("question\n")
	select {
	case <-r.started:
	default:
		t.Error("output came before the event that the command has started")
	}
	answer("one")
	r.waitFor("got one\n")
	answer("two")
	if o := r.wait(); o.err != nil || o.stdout != "question\ngot one\ngot two\n" || o.stderr != "more\n" {
		t.Errorf("%v, stdout %q, stderr %q", o.err, o.stdout, o.stderr)
	}
}

// streamingUntilCancel is for a command that cannot be answered: its output comes
// though it never ends by itself.
func (s *suite) streamingUntilCancel(t *testing.T) {
	r := s.start(t, s.script(t, "echo question; echo more >&2; sleep 1; echo again; exec sleep 1000"))
	r.waitFor("question\n")
	select {
	case <-r.started:
	default:
		t.Error("output came before the event that the command has started")
	}
	r.waitFor("again\n")
	r.cancel()
	if o := r.wait(); o.err != nil || o.Reason != sandbox.ReasonCancelled || o.stdout != "question\nagain\n" || o.stderr != "more\n" {
		t.Errorf("%v, %s, stdout %q, stderr %q", o.err, o.Reason, o.stdout, o.stderr)
	}
}

// waits is a run of script whose command then waits for the host. The function
// lets it go on, and goes into then; where nothing can be said to it, it is
// cancelled.
func (s *suite) waits(t *testing.T, script, then string) (spec sandbox.LaunchSpec, goOn func(*launched)) {
	t.Helper()
	if s.h.Sent {
		return s.script(t, script+"\nexec sleep 1000"), func(r *launched) { r.cancel() }
	}
	spec = s.script(t, script+"\nread x <fifo\n"+then)
	say := fifo(t, spec, "fifo")
	return spec, func(*launched) { say("go on") }
}

// fifo makes a FIFO in the workspace and returns a function that writes a line
// to it.
func fifo(t *testing.T, spec sandbox.LaunchSpec, name string) (say func(string)) {
	t.Helper()
	p := filepath.Join(spec.Workspace.Dir, name)
	if err := syscall.Mkfifo(p, 0o600); err != nil {
		t.Fatal(err)
	}
	// Open for both, so that nobody has to be at the other end.
	f, err := os.OpenFile(p, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return func(line string) {
		t.Helper()
		if _, err := f.WriteString(line + "\n"); err != nil {
			t.Fatal(err)
		}
	}
}

// A writer that fails stops the copying, not the agent.
func (s *suite) brokenWriter(t *testing.T) {
	spec := s.spec(t, "sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; i=$((i+1)); done; echo fine >&2")
	spec.Stdout = failingWriter{}
	if o := s.succeed(t, spec); o.StdoutBytes != 2000*71 || o.stderr != "fine\n" {
		t.Errorf("%d bytes of stdout, stderr %q", o.StdoutBytes, o.stderr)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on the host") }

func (s *suite) exitCode(t *testing.T) {
	for _, code := range []string{"0", "1", "7", "126", "137", "255"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			o := s.run(t, s.spec(t, "sh", "-c", "exit "+code))
			if o.Reason != sandbox.ReasonExited || strings.TrimSpace(code) != itoa(o.ExitCode) || o.Signal != 0 {
				t.Errorf("%s, exit code %d, signal %d", o.Reason, o.ExitCode, o.Signal)
			}
		})
	}
}

func (s *suite) signal(t *testing.T) {
	for name, number := range map[string]int{"KILL": 9, "SEGV": 11, "TERM": 15, "USR1": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := s.run(t, s.spec(t, "sh", "-c", "echo before; kill -"+name+" $$"))
			if o.Reason != sandbox.ReasonSignaled || o.Signal != number || o.ExitCode != 128+number || o.stdout != "before\n" {
				t.Errorf("%s, signal %d, exit code %d, stdout %q", o.Reason, o.Signal, o.ExitCode, o.stdout)
			}
		})
	}
}

func (s *suite) noSuchCommand(t *testing.T) {
	for name, command := range map[string]string{"in the path": "no-such-command", "absolute": "/no/such/command", "directory": "/tmp", "not executable": "/etc/passwd"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := s.start(t, s.spec(t, command)).wait()
			if o.Reason != sandbox.ReasonStartFailed || o.ExitCode != -1 || !o.Started.IsZero() || !strings.Contains(o.Detail, command) {
				t.Errorf("%s, exit code %d, started %v, detail %q, error %v", o.Reason, o.ExitCode, o.Started, o.Detail, o.err)
			}
		})
	}
}

// The result says what happened, when, and what was enforced.
func (s *suite) result(t *testing.T) {
	before := time.Now()
	r := s.start(t, s.spec(t, "sh", "-c", "echo x"))
	o := r.wait()
	after := time.Now()
	if o.err != nil {
		t.Fatal(o.err)
	}
	if o.Started.Before(before) || o.Finished.Before(o.Started) || after.Before(o.Finished) {
		t.Errorf("began %v, started %v, finished %v, ended %v", before, o.Started, o.Finished, after)
	}
	if o.Isolation.Runtime == "" || len(o.Isolation.Properties) == 0 {
		t.Errorf("isolation %+v", o.Isolation)
	}
	if m := o.Isolation.Missing(); len(m) > 0 {
		t.Errorf("missing properties %+v", m)
	}
	seen := map[string]bool{}
	for _, p := range o.Isolation.Properties {
		if p.Name == "" || seen[p.Name] || p.Status != sandbox.NotRequested && p.Evidence == "" {
			t.Errorf("property without a name, without evidence, or twice: %+v", p)
		}
		seen[p.Name] = true
	}
	want := []sandbox.EventKind{sandbox.EventProved, sandbox.EventStarted, sandbox.EventExited, sandbox.EventFinished}
	if !slices.Equal(o.events, want) {
		t.Errorf("events %v, want %v", o.events, want)
	}
}

// A wrong specification is refused in words, and nothing is started.
func (s *suite) badSpec(t *testing.T) {
	type change = func(*sandbox.LaunchSpec)
	cases := map[string]change{
		"no id":                      func(l *sandbox.LaunchSpec) { l.ID = "" },
		"id of 20 characters":        func(l *sandbox.LaunchSpec) { l.ID = strings.Repeat("a", 20) },
		"id with a slash":            func(l *sandbox.LaunchSpec) { l.ID = "../x" },
		"id in upper case":           func(l *sandbox.LaunchSpec) { l.ID = "Kick" },
		"id that begins with -":      func(l *sandbox.LaunchSpec) { l.ID = "-kick" },
		"unknown network mode":       func(l *sandbox.LaunchSpec) { l.Network = "bridge" },
		"egress without a network":   func(l *sandbox.LaunchSpec) { l.Network, l.Egress.Port = sandbox.NetworkNone, 8080 },
		"negative port":              func(l *sandbox.LaunchSpec) { l.Egress.Port = -1 },
		"port above 65535":           func(l *sandbox.LaunchSpec) { l.Egress.Port = 65536 },
		"egress socket is missing":   func(l *sandbox.LaunchSpec) { l.Egress.Socket = filepath.Join(l.Workspace.Dir, "none", "gateway.sock") },
		"relative directory":         func(l *sandbox.LaunchSpec) { l.Workspace.Dir = "workspace" },
		"missing directory":          func(l *sandbox.LaunchSpec) { l.Workspace.Dir += "/none" },
		"relative objects":           func(l *sandbox.LaunchSpec) { l.Workspace.Objects = "objects" },
		"relative mount path":        func(l *sandbox.LaunchSpec) { l.Workspace.MountPath = "workspace" },
		"mount path over the system": func(l *sandbox.LaunchSpec) { l.Workspace.MountPath = "/usr/lib" },
		"mount path that climbs":     func(l *sandbox.LaunchSpec) { l.Workspace.MountPath = "/workspace/../etc" },
		"branch for a base":          func(l *sandbox.LaunchSpec) { l.Workspace.BaseOID = "main" },
		"empty command":              func(l *sandbox.LaunchSpec) { l.Command = []string{""} },
		"NUL in the command":         func(l *sandbox.LaunchSpec) { l.Command = append(l.Command, "a\x00b") },
		"impossible variable":        func(l *sandbox.LaunchSpec) { l.Env = map[string]string{"A=B": "c"} },
		"NUL in a variable":          func(l *sandbox.LaunchSpec) { l.Env = map[string]string{"A": "b\x00c"} },
		"command that is not UTF-8":  func(l *sandbox.LaunchSpec) { l.Command = append(l.Command, "\xff") },
		"variable that is not UTF-8": func(l *sandbox.LaunchSpec) { l.Env = map[string]string{"A": "\xff"} },
		"home file that climbs":      func(l *sandbox.LaunchSpec) { l.Home = map[string]string{"../x": "y"} },
		"absolute home file":         func(l *sandbox.LaunchSpec) { l.Home = map[string]string{"/etc/x": "y"} },
		"home files too large":       func(l *sandbox.LaunchSpec) { l.Home = map[string]string{"x": strings.Repeat("y", 1<<20+1)} },
		"nothing to do":              func(l *sandbox.LaunchSpec) { l.Command = nil },
	}
	if s.h.Image == "" {
		cases["image"] = func(l *sandbox.LaunchSpec) { l.Image = "docker.io/library/debian" }
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := s.script(t, "echo ran >ran")
			dir := spec.Workspace.Dir
			change(&spec)
			o := s.start(t, spec).wait()
			var e *sandbox.Error
			if !errors.Is(o.err, sandbox.ErrSpec) || !errors.As(o.err, &e) || e.Remedy == "" || len(words(o.err.Error())) < 4 {
				t.Errorf("error %v, want one of kind ErrSpec, with a remedy", o.err)
			}
			if o.Reason != sandbox.ReasonStartFailed || o.ExitCode != -1 || !o.Started.IsZero() {
				t.Errorf("result %+v", o.Result)
			}
			if _, err := os.Lstat(filepath.Join(dir, "ran")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the command ran: %v", err)
			}
		})
	}
}

// A launcher that can say beforehand what it would enforce says the truth.
func (s *suite) preflight(t *testing.T) {
	p, ok := s.launcher.(sandbox.Preflighter)
	if !ok {
		t.Log("the launcher is no Preflighter")
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	promised, err := p.Preflight(ctx)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]sandbox.Status{}
	for _, q := range s.succeed(t, s.spec(t, "true")).Isolation.Properties {
		found[q.Name] = q.Status
	}
	for _, q := range promised.Properties {
		if found[q.Name] != q.Status {
			t.Errorf("%s: promised %q, found %q", q.Name, q.Status, found[q.Name])
		}
	}
	if len(promised.Properties) == 0 {
		t.Error("no properties are promised")
	}
}
