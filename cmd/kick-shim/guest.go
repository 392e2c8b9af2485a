package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// Where a gateway runs commands in its sandboxes, this program is one of them and
// not process 1. guest starts guestInit in a session of its own, which the gateway
// does not end with a command; that becomes what process 1 is in a pod, a server that
// the host comes to over connections.

// listening is what the server says on its standard output before it lets go of it.
const listening = "listening\n"

// guest starts the server and returns when it listens.
func guest() error {
	if len(os.Args) != 3 {
		return errors.New("guest takes one argument, what to give up")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	said, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	_, err = syscall.ForkExec("/proc/self/exe", []string{"kick-shim", "guest-init", os.Args[2]}, &syscall.ProcAttr{
		Env:   os.Environ(), // some of which is passed on, see inherited
		Files: []uintptr{null.Fd(), out.Fd(), null.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	out.Close()
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	r := bufio.NewReader(said)
	if word, err := r.Peek(len(listening)); err == nil && string(word) == listening {
		return nil
	}
	_, problem, err := frame.NewReader(r).Read()
	if err != nil {
		return fmt.Errorf("the server ended without a word: %w", err)
	}
	return errors.New(string(problem))
}

// guestInit gives up what it has, takes what its descendants leave behind, and
// becomes the server. Its Landlock domain allows every path, since the gateway's own
// holds those: it is there so that nothing in it can reach into other processes.
func guestInit() error {
	runtime.LockOSThread() // what is given up belongs to the thread
	w, err := waitOf(os.Args)
	if err != nil {
		return err
	}
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return failed("landlock", "ask the kernel for its version", errno)
	}
	j := w.Jail
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
	return w.become("guest-serve", inherited(w.Inherit))
}

// serveGuest is serve where this is not process 1.
func serveGuest() error {
	return serveHosts(func() error {
		if _, err := os.Stdout.WriteString(listening); err != nil {
			return err
		}
		return unix.Dup3(0, 1, 0) // who has started this waits for its end
	})
}

// confine keeps the calling thread, and what it starts, from signals to processes
// outside and from their abstract sockets: a command must not end its own shim. Kernels
// before 6.12 cannot, and let it.
func confine() error {
	fd, flags, err := landlock.Config{Scoped: landlock.V6.Scoped}.BestEffort().NewRulesetFD()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	return ll.LandlockRestrictSelf(fd, flags)
}

// forkConfined is syscall.ForkExec for the command. Where this is not process 1, which
// the kernel protects, a thread of its own starts it, which ends with that.
func forkConfined(name string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	if os.Getpid() == 1 {
		return syscall.ForkExec(name, argv, attr)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		if err = confine(); err == nil {
			pid, err = syscall.ForkExec(name, argv, attr)
		}
	}()
	<-done
	return pid, err
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

// inherited are the variables of those names, as this process has them.
func inherited(names []string) (env []string) {
	for _, name := range names {
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
	return append(own, inherited(cfg.Inherit)...)
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

// process is a living one.
type process struct {
	frame.Process
	parent int
	name   string // in parentheses
}

// living are those that have a thread left.
func living() (list []process) {
	for _, dir := range glob("/proc/[0-9]*") {
		b, err := os.ReadFile(dir + "/stat")
		open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
		if err != nil || open < 0 || end < open {
			continue // it has gone
		}
		const state, parent, threads, start = 0, 1, 17, 19 // where stat has them
		f := statFields(b)
		if len(f) <= start || string(f[state]) == "X" || string(f[state]) == "Z" && string(f[threads]) <= "1" {
			continue // dead to the last thread: it has no children any more
		}
		p := process{name: string(b[open : end+1])}
		p.Start = string(f[start])
		var err2 error
		p.PID, err = strconv.Atoi(filepath.Base(dir))
		if p.parent, err2 = strconv.Atoi(string(f[parent])); err == nil && err2 == nil {
			list = append(list, p)
		}
	}
	return list
}

// descendants are the living processes below this one.
func descendants() []int {
	children := map[int][]int{}
	for _, p := range living() {
		children[p.parent] = append(children[p.parent], p.PID)
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
