package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/resume"
)

// linePath is where the shim listens in a pod or a gateway's sandbox: an abstract
// socket, so that no file system has to be writable.
const linePath = "@kick/line"

// wait is the first stage in a pod. Nobody speaks with it: what it gives up is in
// its arguments, which the host has written into the pod.
func wait() error {
	runtime.LockOSThread() // what is given up belongs to the thread
	w, err := waitOf(os.Args)
	if err != nil {
		return err
	}
	if err := lockDown(w.Jail); err != nil {
		return err
	}
	return w.become("serve", nil)
}

// waiting is a frame.Wait from the command line.
type waiting struct{ frame.Wait }

func waitOf(args []string) (w waiting, err error) {
	if len(args) != 3 {
		return w, errors.New("there is one argument, what to give up")
	}
	if err := json.Unmarshal([]byte(args[2]), &w); err != nil {
		return w, fmt.Errorf("read what to wait for: %w", err)
	}
	return w, nil
}

// become executes the next stage, with nothing left to give up.
func (w waiting) become(role string, env []string) error {
	w.Jail = frame.Jail{} // it is done
	rest, err := json.Marshal(w.Wait)
	if err != nil {
		return err
	}
	err = unix.Exec("/proc/self/exe", []string{"kick-shim", role, string(rest)}, env)
	return fmt.Errorf("execute the next stage: %w", err)
}

// serve is process 1 of a pod.
func serve() error {
	if os.Getpid() != 1 {
		return errors.New("this is not process 1 of its pod's container")
	}
	return serveHosts(func() error { return nil })
}

// serveHosts attends one host after the other; listens is called before the first.
// The first has it run the command. Every host after that comes for what a host that
// died has left: the command is killed, and the artifacts are made once more.
func serveHosts(listens func() error) error {
	signal.Notify(make(chan os.Signal, 1))
	if err := ignoreSignals(); err != nil {
		return err
	}
	w, err := waitOf(os.Args)
	if err != nil {
		return err
	}
	first := uint(3)
	if w.Inherited {
		first = frame.ListenerFD + 1
	}
	if err := unix.CloseRange(first, math.MaxInt32, 0); err != nil {
		return failed("descriptors", "close inherited descriptors", err)
	}
	alone := time.Duration(w.AloneMS) * time.Millisecond
	l, err := lineListener(w.Wait)
	if err != nil {
		return fmt.Errorf("listen for the host: %w", err)
	}
	if err := listens(); err != nil {
		return err
	}
	hosts := resume.NewServer()
	go accept(l, hosts)
	network := confinedFor(w.Wait)
	for first := true; ; first = false {
		patience := alone
		if first && w.Standby {
			patience = math.MaxInt64
		}
		s := hosts.Accept(patience)
		if s == nil {
			return errors.New("no host has come")
		}
		go s.EndAlone(alone)
		if attend(s, first, network) && s.Drain(alone) {
			return nil
		}
		s.End()
		killRest()
	}
}

// lineListener is where hosts come.
func lineListener(w frame.Wait) (net.Listener, error) {
	if !w.Inherited {
		return net.Listen("unix", linePath)
	}
	f := os.NewFile(frame.ListenerFD, "line")
	defer f.Close()
	return net.FileListener(f)
}

// confinedFor begins to find out whether the pod has no network. A pod that stands
// by may keep what it finds for hours, so it begins when it has its kick.
func confinedFor(w frame.Wait) func(canaries []string) string {
	if os.Getpid() != 1 {
		return nil // see probeGuest
	}
	if w.Standby {
		return confinement
	}
	confined := make(chan string, 1)
	go func() { confined <- confinement(w.Canaries) }()
	said := sync.OnceValue(func() string { return <-confined })
	return func([]string) string { return said() }
}

// attend serves one host, and reports whether all that it wanted is said.
func attend(s *resume.Stream, first bool, network func([]string) string) bool {
	h := host{in: frame.NewReader(bufio.NewReader(s)), out: frame.NewWriter(s), gone: func() {}, collectOnly: !first, network: network}
	err := h.converse()
	if err != nil {
		// If it is because the host is gone, nobody is told.
		err = h.out.Write(frame.Problem, []byte(clip(err.Error(), 4<<10)))
	}
	return err == nil
}

// killRest kills every other process of the sandbox and waits until it is gone. The
// host's own connections are among them; it comes again.
func killRest() {
	for {
		killAll(syscall.SIGKILL)
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(-1, &ws, syscall.WALL, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			return // ECHILD: all are gone
		}
	}
}

// accept takes connections. Those of the sandbox's own processes would be refused
// for want of the key; they are not even heard, so that they keep nobody waiting.
func accept(l net.Listener, hosts *resume.Server) {
	for {
		c, err := l.Accept()
		if err != nil {
			time.Sleep(10 * time.Millisecond) // the agent may have used up what a connection takes
			continue
		}
		if !isFromOutside(c.(*net.UnixConn)) {
			c.Close()
			continue
		}
		go func() { _ = hosts.Serve(c) }() // the host knows why it broke
	}
}

func isFromOutside(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || credErr != nil {
		return false
	}
	if cred.Pid == 0 {
		return true // no process that this namespace has
	}
	if os.Getpid() != 1 {
		return !slices.Contains(descendants(), int(cred.Pid))
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(int(cred.Pid)) + "/stat")
	return err == nil && fromOutside(stat)
}

// line connects its standard input and output with the server, at linePath or where
// its argument says. The engine starts it in the sandbox for the host. It is not of
// the agent's user's reading before it has
// anything to be read; what passes through it later, nobody can forge or use.
func line() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	at := linePath
	if len(os.Args) > 2 {
		at = os.Args[2]
	}
	c, err := net.Dial("unix", at)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kick-shim: reach the server:", err)
		os.Exit(frame.NoServer)
	}
	ended := make(chan error, 2)
	go func() {
		_, err := io.Copy(c, os.Stdin)
		ended <- err
	}()
	go func() {
		_, err := io.Copy(os.Stdout, c)
		ended <- err
	}()
	if err := <-ended; err != nil {
		fmt.Fprintln(os.Stderr, "kick-shim: pass the line on:", err)
		os.Exit(1)
	}
	os.Exit(0) // not by returning: there is no host to tell of a problem
	return nil
}
