package sandboxtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/sandbox"
)

// The command is nobody special: not root, no capability, no way to gain one.
func (s *suite) identity(t *testing.T) {
	status := map[string][]string{}
	for line := range strings.Lines(s.succeed(t, s.spec(t, "cat", "/proc/self/status")).stdout) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		status[name] = words(value)
	}
	for _, name := range []string{"Uid", "Gid"} {
		if len(status[name]) != 4 {
			t.Errorf("%s: %q", name, status[name])
		}
		for _, id := range status[name] {
			if id == "0" {
				t.Errorf("%s: %q", name, status[name])
			}
		}
	}
	for _, name := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if strings.Trim(strings.Join(status[name], ""), "0") != "" || len(status[name]) != 1 {
			t.Errorf("%s: %q", name, status[name])
		}
	}
	for _, group := range status["Groups"] {
		if group == "0" {
			t.Errorf("groups %q", status["Groups"])
		}
	}
	if got := strings.Join(status["NoNewPrivs"], ""); got != "1" {
		t.Errorf("no_new_privs is %q", got)
	}
	if got := strings.Join(status["Seccomp"], ""); got != "2" {
		t.Errorf("seccomp mode is %q", got)
	}
}

// System calls that open ways out are refused.
func (s *suite) systemCalls(t *testing.T) {
	answers := s.ask(t, s.probing(t, "calls"))
	if len(answers) < 40 {
		t.Errorf("only %d answers", len(answers))
	}
	for call, answer := range answers {
		if answer == "allowed" {
			t.Errorf("%s is allowed", call)
		}
	}
}

// The sandbox has its own processes and sees no other.
func (s *suite) hostProcesses(t *testing.T) {
	spec := s.probing(t, "processes", itoa(os.Getpid()), itoa(os.Getppid()))
	answers := s.ask(t, spec)
	seen := 0
	for question, answer := range answers {
		if !strings.HasPrefix(question, "signal ") {
			seen++
			if strings.Contains(answer, filepath.Base(os.Args[0])) {
				t.Errorf("a process of the host is seen: %s %s", question, answer)
			}
		} else if answer == "allowed" {
			t.Errorf("%s is allowed", question)
		}
	}
	// The command and process 1, which some runtimes have beside it.
	if seen == 0 || seen > 3+s.h.Beside {
		t.Errorf("%d processes are seen: %q", seen, answers)
	}
}

// No file of the caller is seen: not from its home, its temporary directory,
// its working directory or its environment.
func (s *suite) hostFiles(t *testing.T) {
	planted := 0
	plant := func(dir string) {
		f, err := os.CreateTemp(dir, "sandboxtest-*-"+s.canary)
		if err != nil {
			return // not ours to write
		}
		t.Cleanup(func() { remove(t, f.Name()) })
		if err := f.Chmod(0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("a secret: " + s.canary + "\n"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		planted++
	}
	home, _ := os.UserHomeDir()
	work, _ := os.Getwd()
	dirs := []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm", t.TempDir(), work, home, "/run", "/opt", "/srv", "/mnt", "/media", "/var/lib", "/var/log"}
	for _, dir := range dirs {
		if dir != "" {
			plant(dir)
		}
	}
	if planted < 3 {
		t.Fatalf("only %d files could be planted", planted)
	}
	spec := s.probing(t, "search", s.canary)
	// The neighbour of the workspace, too.
	plant(filepath.Dir(spec.Workspace.Dir))
	answers := s.ask(t, spec)
	if answers["files"] == "0" {
		t.Errorf("the probe could read nothing at all")
	}
	delete(answers, "files")
	for path, what := range answers {
		t.Errorf("the %s of %s shows a file or the environment of the caller", what, path)
	}
}

// The system is read-only; the workspace, the home and /tmp are not.
func (s *suite) readOnlySystem(t *testing.T) {
	refused := []string{"/", "/usr/", "/usr/bin/", "/usr/local/", "/etc/", "/bin/", "/lib/", "/dev/", "/proc/", "/sys/", "/run/", "/home/", "/var/",
		"/etc/passwd", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches", "/proc/1/mem", sandbox.BaseObjectsPath + "/"}
	writable := []string{"/tmp/", sandbox.HomeDir + "/", sandbox.DefaultMountPath + "/", "/dev/null"}
	answers := s.ask(t, s.probing(t, append(append([]string{"write"}, refused...), writable...)...))
	for _, p := range refused {
		if answers[p] == "allowed" || answers[p] == "" {
			t.Errorf("writing to %s: %q", p, answers[p])
		}
	}
	for _, p := range writable {
		if answers[p] != "allowed" {
			t.Errorf("writing to %s: %q", p, answers[p])
		}
	}
	// What belongs to the command can be replaced and removed.
	s.succeed(t, s.script(t, "set -e; mkdir a; echo >a/b; mv a/b c; rm -r a; ln c d; echo >/tmp/x; rm /tmp/x; cd /tmp; echo >y"))
}

// Nothing of process 1 can be read, stopped or changed.
func (s *suite) firstProcess(t *testing.T) {
	var files []string
	for _, f := range []string{"environ", "mem", "maps", "auxv", "fd", "fdinfo", "root", "cwd", "exe", "io", "stack", "syscall", "map_files", "pagemap"} {
		files = append(files, "/proc/1/"+f)
	}
	answers := s.ask(t, s.probing(t, append([]string{"read"}, files...)...))
	for _, f := range files {
		if answers[f] == "allowed" || answers[f] == "" {
			t.Errorf("reading %s: %q", f, answers[f])
		}
	}
	o := s.run(t, s.script(t, "for sig in KILL STOP TERM HUP INT ABRT SEGV USR1; do kill -$sig 1 2>/dev/null; done; echo alive; exit 5"))
	if o.Reason != sandbox.ReasonExited || o.ExitCode != 5 || o.stdout != "alive\n" {
		t.Errorf("after signals to process 1: %s, exit code %d, stdout %q, %s", o.Reason, o.ExitCode, o.stdout, o.Detail)
	}
	// Nor does it take a signal for a fault of its own: it would end, and with
	// it the sandbox, as if the runtime had failed.
	spec := s.probing(t)
	spec.Command = []string{"sh", "-c", "./probe faults && exit 5"}
	if o := s.run(t, spec); o.Reason != sandbox.ReasonExited || o.ExitCode != 5 {
		t.Errorf("after signals that look like faults: %s, exit code %d, stdout %q, stderr %q, %s", o.Reason, o.ExitCode, o.stdout, o.stderr, o.Detail)
	}
}

// A set-user-id program gains nothing: one of the command's own, and, where the
// suite can make one, one of root's in a directory of programs.
func (s *suite) setuid(t *testing.T) {
	spec := s.probing(t)
	spec.Command = []string{"sh", "-c", "cp probe mine && chmod 6755 mine && exec ./mine ids"}
	wantOneUser(t, s.ask(t, spec))
	if os.Getuid() != 0 || s.h.Image != "" {
		return
	}
	dir, err := os.MkdirTemp("/opt", "sandboxtest") // not below /tmp, which is the sandbox's own
	if errors.Is(err, os.ErrNotExist) {
		dir, err = os.MkdirTemp("/srv", "sandboxtest")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	b, err := os.ReadFile(s.probe)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "setuid")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, b, 0o755), os.Chmod(program, 0o755|os.ModeSetuid|os.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	// On the host it does gain something, or this shows nothing.
	cmd := exec.Command(program, "ids")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 60_903, Gid: 60_903}}
	if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), `"euid":"0"`) {
		t.Fatalf("on the host, the program of root gains nothing: %v, %s", err, out)
	}
	spec = s.spec(t, program, "ids")
	spec.ProgramDirs = []string{dir}
	wantOneUser(t, s.ask(t, spec))
}

func wantOneUser(t *testing.T, ids map[string]string) {
	t.Helper()
	if ids["uid"] == "" || ids["uid"] == "0" || ids["euid"] != ids["uid"] || ids["gid"] == "0" || ids["egid"] != ids["gid"] {
		t.Errorf("ids %v", ids)
	}
}
