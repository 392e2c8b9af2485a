package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// guestEnv makes this test program something else than a run of its tests.
const guestEnv = "KICK_TEST_GUEST"

func init() {
	if os.Getenv(guestEnv) != "leaderless" {
		return
	}
	// A process whose first thread has ended, and which lives on in its others.
	go func() {
		for {
			time.Sleep(time.Hour)
		}
	}()
	time.Sleep(50 * time.Millisecond) // until another thread is there
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

// The shim that is not process 1 ends all that it has started: what left the
// session, what lost its parent, what forks on, and what hides behind a dead first
// thread.
func TestKillDescendants(t *testing.T) {
	if os.Getenv(guestEnv) == "guest" {
		killTheRest(t)
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKillDescendants$", "-test.v")
	cmd.Env = append(os.Environ(), guestEnv+"=guest")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestKillDescendants") {
		t.Errorf("%v\n%s", err, out)
	}
}

func killTheRest(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	const script = `sleep 1001 & setsid sleep 1002 & (setsid sh -c 'sleep 1003 & sleep 1004' &)
(while :; do sleep 0.01; done) & wait`
	start := func(name string, argv, env []string) {
		if _, err := syscall.ForkExec(name, argv, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}}); err != nil {
			t.Fatal(err)
		}
	}
	start("/bin/sh", []string{"sh", "-c", script}, os.Environ())
	start(os.Args[0], []string{"leaderless"}, append(os.Environ(), guestEnv+"=leaderless"))
	for len(descendants()) < 8 || !leaderless() {
		time.Sleep(5 * time.Millisecond) // nobody tells when they are all there
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		for {
			if _, err := syscall.Wait4(-1, nil, syscall.WALL, nil); err == syscall.ECHILD { //nolint:errorlint // a system call's own error
				return
			}
		}
	}()
	killDescendants(syscall.SIGKILL)
	if left := descendants(); len(left) > 0 {
		t.Errorf("%d processes are left", len(left))
	}
	select {
	case <-reaped:
	case <-time.After(time.Minute):
		t.Error("not all could be waited for")
	}
}

// leaderless reports whether a descendant has lost its first thread.
func leaderless() bool {
	for _, pid := range descendants() {
		if b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); strings.Contains(string(b), ") Z ") {
			return true
		}
	}
	return false
}

func TestInherited(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://10.0.0.1:3128")
	t.Setenv("SECRET", "x")
	cfg := frame.Config{Env: []string{"HTTPS_PROXY=http://mine", "A=b", "NO_PROXY=c"}, Inherit: []string{"HTTPS_PROXY", "NO_PROXY_2"}}
	if got := strings.Join(withInherited(cfg), " "); got != "A=b NO_PROXY=c HTTPS_PROXY=http://10.0.0.1:3128" {
		t.Errorf("%q", got)
	}
	cfg.Inherit = nil
	if got := strings.Join(withInherited(cfg), " "); got != "HTTPS_PROXY=http://mine A=b NO_PROXY=c" {
		t.Errorf("%q", got)
	}
}
