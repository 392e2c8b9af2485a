package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// Where a gateway runs commands in its sandboxes, this program is one of them and
// not process 1. It comes in two processes: guest is what the gateway knows and
// kills, and guestInit, in a session that the gateway does not, is what speaks with
// the host. When the first dies the second ends what it has started, which nobody
// else would.

// guest starts guestInit and ends as it does.
func guest() error {
	runtime.LockOSThread() // whose death is what the child is told
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"kick-shim", "guest-init"}, &syscall.ProcAttr{
		Env:   os.Environ(), // some of which is passed on, see inherited
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM},
	})
	if err != nil {
		return fmt.Errorf("start the second process: %w", err)
	}
	var ws syscall.WaitStatus
	for {
		if _, err = syscall.Wait4(pid, &ws, 0, nil); err != syscall.EINTR { //nolint:errorlint // a system call's own error
			break
		}
	}
	if err != nil {
		return fmt.Errorf("wait for the second process: %w", err)
	}
	if ws.Signaled() {
		os.Exit(128 + int(ws.Signal()))
	}
	os.Exit(ws.ExitStatus())
	return nil
}

// guestInit gives up what it has, takes what its descendants leave behind, and
// becomes init. Its Landlock domain allows every path, since the gateway's own
// holds those: it is there so that nothing in it can reach into other processes.
func guestInit() error {
	cfg, err := frame.NewReader(os.Stdin).ReadConfig()
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	var j frame.Jail
	if err := json.Unmarshal(cfg.Jail, &j); err != nil {
		return fmt.Errorf("read the lock-down: %w", err)
	}
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return failed("landlock", "ask the kernel for its version", errno)
	}
	for i := range j.Rlimits {
		if j.Rlimits[i].Resource == unix.RLIMIT_NPROC {
			j.Rlimits[i].Value += uint64(beside())
		}
	}
	j.Landlock = &frame.Landlock{ABI: int(abi), Rules: []frame.LandlockRule{{Path: "/", Access: frame.AccessWrite}}}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	if err := lockDown(j); err != nil {
		return err
	}
	err = unix.Exec("/proc/self/exe", []string{"kick-shim", "init"}, inherited(cfg))
	return fmt.Errorf("execute the next stage: %w", err)
}

// beside is how many threads the sandbox's other processes have, which the kernel
// counts with those of the command.
func beside() (n int) {
	for _, dir := range glob("/proc/[0-9]*") {
		if b, err := os.ReadFile(dir + "/stat"); err == nil && dir != "/proc/"+strconv.Itoa(os.Getpid()) {
			n += threads(b)
		}
	}
	return n
}

// inherited are the variables that cfg names, as this process has them.
func inherited(cfg frame.Config) (env []string) {
	for _, name := range cfg.Inherit {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// withInherited is env with the variables that are inherited instead of its own.
func withInherited(cfg frame.Config) []string {
	own := slices.DeleteFunc(slices.Clone(cfg.Env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ok := os.LookupEnv(name)
		return ok && slices.Contains(cfg.Inherit, name)
	})
	return append(own, inherited(cfg)...)
}

// leaveNothing makes this process end all that it has started when guest dies.
func leaveNothing() {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		leave(1)
	}()
}

// leave ends this process and everything in the sandbox that it has started. The
// kernel does the latter for process 1.
func leave(code int) {
	if os.Getpid() != 1 {
		killDescendants(syscall.SIGKILL)
	}
	os.Exit(code)
}

// killAll sends a signal to every process of the sandbox but this one.
func killAll(sig syscall.Signal) {
	if os.Getpid() == 1 {
		// From process 1 this reaches all at once, also one that is being forked.
		_ = syscall.Kill(-1, sig)
		return
	}
	killDescendants(sig)
}

// killPasses bounds how often descendants are looked for; a process limit that
// lets them fork on while they are killed would be needed to reach it.
const killPasses = 1000

// killDescendants sends a signal to all that descend from this process. Before
// SIGKILL all are stopped, so that none forks meanwhile.
func killDescendants(sig syscall.Signal) {
	if sig != syscall.SIGKILL {
		for _, pid := range descendants() {
			_ = syscall.Kill(pid, sig)
		}
		return
	}
	stopped := map[int]bool{}
	for range killPasses {
		more := false
		for _, pid := range descendants() {
			if !stopped[pid] {
				stopped[pid], more = true, true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if !more {
			break
		}
	}
	for range killPasses {
		list := descendants()
		if len(list) == 0 {
			return
		}
		for _, pid := range list {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(time.Millisecond) // the kernel tells nobody but the reaper
	}
}

// descendants are the living processes below this one.
func descendants() []int {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/stat")
		end := bytes.LastIndexByte(b, ')') // a name may hold anything
		if err != nil || end < 0 {
			continue
		}
		f := strings.Fields(string(b[end+1:]))
		const threads = 17 // where stat has their number
		if len(f) <= threads || f[0] == "X" || f[0] == "Z" && f[threads] <= "1" {
			continue // dead to the last thread: it has no children any more
		}
		pid, err := strconv.Atoi(filepath.Base(d))
		parent, err2 := strconv.Atoi(f[1])
		if err == nil && err2 == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	var found []int
	next := []int{os.Getpid()}
	for len(next) > 0 {
		below := children[next[0]]
		found, next = append(found, below...), append(next[1:], below...)
	}
	return found
}

// canary is an address outside of every sandbox. What answers there does not
// matter: nothing may be reached without the gateway's proxy.
const (
	canary     = "1.1.1.1:443"
	canaryTime = time.Second
)

// probeGuest tries what must fail for a command of a gateway's sandbox, where
// nobody on the host can look.
func probeGuest(probes map[string]string) {
	said := func(bad bool, format string, args ...any) string {
		if !bad {
			return ""
		}
		return fmt.Sprintf(format, args...)
	}
	probes["unprivileged-user"] = said(os.Getuid() == 0 || os.Geteuid() == 0, "it runs as root")
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		probes["capabilities"] = err.Error()
	} else {
		probes["capabilities"] = wantLines(string(status), "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1")
	}
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	_, err = os.Lstat(account)
	probes["service-account"] = said(err == nil, "%s is there", account)
	c, err := net.DialTimeout("tcp", canary, canaryTime)
	if err == nil {
		c.Close()
	}
	probes["no-direct-network"] = said(err == nil, "%s was reached", canary)
}

// wantLines says which of the lines a text lacks.
func wantLines(text string, lines ...string) string {
	for _, l := range lines {
		if !strings.Contains(text, "\n"+l+"\n") {
			return "status lacks " + l
		}
	}
	return ""
}
