package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/forwarder"
	"github.com/kickhq/kick/internal/frame"
)

// run checks the base out, runs the command and reports how it ended. When it
// returns, no other process is left in the sandbox.
func run(cfg frame.Config, w *frame.Writer, orders <-chan order) error {
	if err := writeFiles(cfg.Files); err != nil {
		return fmt.Errorf("write the files of the home directory: %w", err)
	}
	if cfg.BaseOID != "" {
		if err := under(orders, func() error { return checkout(cfg) }); err != nil {
			return fmt.Errorf("check out %s: %w", cfg.BaseOID, err)
		}
	}
	if way := wayOut(cfg); way.Address != "" && cfg.EgressPort != 0 {
		if way.Secret != "" {
			if err := under(orders, func() error { return reach(way) }); err != nil {
				return err
			}
		}
		l, err := forwarder.Listen(cfg.EgressPort)
		if err != nil {
			return fmt.Errorf("listen for the egress forwarder: %w", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var forwarding sync.WaitGroup
		forwarding.Go(func() { forwarder.Run(ctx, l, way) })
		defer forwarding.Wait()
		defer cancel()
	}
	holdThreads(spareThreads)
	c, err := start(cfg)
	if err != nil {
		return w.WriteJSON(frame.Exit, frame.ExitStatus{Code: -1, Error: clip(err.Error(), 1<<10)})
	}
	if err := w.Write(frame.Started, nil); err != nil {
		return err
	}
	status := c.supervise(cfg, w, orders)
	return w.WriteJSON(frame.Exit, status)
}

// writeFiles makes the files and the directories that they need.
func writeFiles(files map[string]string) error {
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// proxyVariable names the way out of a sandbox whose own gateway has put it there.
const proxyVariable = "HTTPS_PROXY"

// wayOut is how the gateway is reached; without an address there is none.
func wayOut(cfg frame.Config) forwarder.Way {
	w := forwarder.Way{Network: "unix", Address: cfg.EgressSocket, Secret: cfg.EgressSecret, Pin: cfg.EgressPin}
	if w.Address == "" {
		w.Network, w.Address = "tcp", cfg.EgressAddress
		if slices.Contains(cfg.Inherit, proxyVariable) {
			w.Through = func(ctx context.Context) (net.Conn, error) {
				return dialBeside(ctx, os.Getenv(proxyVariable), cfg.EgressAddress)
			}
		}
	}
	return w
}

// reachTime is how long a gateway may take to be there. What a network plugin
// needs to let a new pod through is a second or two.
const reachTime = 20 * time.Second

// reach makes sure that the gateway is there and takes the secret, since the
// agent would only see its calls fail.
func reach(way forwarder.Way) error {
	ctx, cancel := context.WithTimeout(context.Background(), reachTime)
	defer cancel()
	err := way.Reach(ctx)
	if err != nil && way.Network == "tcp" && way.Through == nil {
		err = fmt.Errorf("%w. See whether that is kick's host as sandboxes see it, and whether the NetworkPolicy and the firewalls on the way let them through", err)
	}
	return err
}

// under does what comes before the command, with the host's word to stop heard
// meanwhile.
func under(orders <-chan order, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	for {
		select {
		case err := <-done:
			return err
		case o := <-orders:
			if o.stop || o.gone {
				return errors.New("stopped by the host before the command started")
			}
		}
	}
}

// spareThreads is how many threads this process has before the agent starts.
// The host adds to the limit of processes for them (shimThreads there).
const spareThreads = 12

// holdThreads makes the runtime start n threads, which it keeps. It would start
// one whenever all that it has are in system calls, and end this process where
// the agent has used up the limit of processes.
func holdThreads(n int) {
	runtime.GOMAXPROCS(2) // each that could run more would want a thread more
	var held, released sync.WaitGroup
	held.Add(n)
	release := make(chan struct{})
	for range n {
		released.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			held.Done()
			<-release
		})
	}
	held.Wait()
	close(release)
	released.Wait()
}

// command is the running command of the agent.
type command struct {
	pid            int
	stdout, stderr *os.File
}

// start starts the command in a session of its own with nothing but its three
// standard descriptors and the environment it was given.
func start(cfg frame.Config) (*command, error) {
	name, err := lookPath(cfg.Command[0], cfg.Env, cfg.WorkDir)
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	stdout, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	stderr, errOut, err := os.Pipe()
	if err != nil {
		stdout.Close()
		return nil, err
	}
	defer errOut.Close()
	env := cfg.Env
	if env == nil {
		env = []string{} // nil would mean this process's own
	}
	// Not os.StartProcess, whose process would want to be waited for by itself:
	// the reaper waits for every process.
	pid, err := forkConfined(name, cfg.Command, &syscall.ProcAttr{
		Dir:   cfg.WorkDir,
		Env:   env,
		Files: []uintptr{null.Fd(), out.Fd(), errOut.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		stdout.Close()
		stderr.Close()
		return nil, &os.PathError{Op: "exec", Path: name, Err: err}
	}
	return &command{pid, stdout, stderr}, nil
}

// lookPath finds a program the way execvp does, in the command's own PATH and
// seen from its own working directory.
func lookPath(name string, env []string, dir string) (string, error) {
	if name == "" {
		return "", errors.New("the command is empty")
	}
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	if path == "" {
		return "", fmt.Errorf("%s: the command's environment has no PATH to look it up in", name)
	}
	var denied error
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		p := filepath.Join(d, name)
		err := executable(p)
		if err == nil {
			return p, nil
		}
		if errors.Is(err, os.ErrPermission) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%s: not found in PATH %s", name, path)
}

func executable(p string) error {
	fi, err := os.Stat(p)
	switch {
	case err != nil:
		return err
	case fi.IsDir():
		return &os.PathError{Op: "exec", Path: p, Err: syscall.EISDIR}
	}
	if err := unix.Access(p, unix.X_OK); err != nil {
		return &os.PathError{Op: "exec", Path: p, Err: err}
	}
	return nil
}

// supervise passes the output on and the host's orders in, reaps, and ends
// everything when the command has ended or its time is up.
func (c *command) supervise(cfg frame.Config, w *frame.Writer, orders <-chan order) frame.ExitStatus {
	var output sync.WaitGroup
	for _, s := range []struct {
		t frame.Type
		r *os.File
	}{{frame.Stdout, c.stdout}, {frame.Stderr, c.stderr}} {
		output.Go(func() {
			copyOutput(w.Stream(s.t), s.r)
			s.r.Close()
		})
	}
	exited := make(chan syscall.WaitStatus, 1)
	reaped := make(chan struct{})
	seen := make(chan struct{})
	watched := watch(cfg)
	stop := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() { checkpoints(cfg, w, stop) })
	go func() {
		reap(c.pid, exited, func(ws syscall.WaitStatus, used syscall.Rusage) {
			watched.lookAtProcesses()
			watched.lookAtEnd(ws, used)
			showProcesses(w, seen)
		})
		close(reaped)
	}()

	var wall, kill <-chan time.Time
	if cfg.WallMS > 0 {
		wall = time.After(time.Duration(cfg.WallMS) * time.Millisecond)
	}
	over := watched.over
	var ws syscall.WaitStatus
	var timeout bool
	end := func() {
		killAll(syscall.SIGTERM)
		kill = time.After(killGrace)
	}
	for running := true; running; {
		select {
		case ws = <-exited:
			running = false
		case <-wall:
			timeout, wall = true, nil
			end()
		case <-over:
			over = nil
			end()
		case o := <-orders:
			switch {
			case o.gone:
				killAll(syscall.SIGKILL)
			case o.stop:
				end()
			case o.ack:
				close(seen)
				orders = nil // the command has ended: there is nothing left to order
			default:
				_ = syscall.Kill(-c.pid, o.signal)
			}
		case <-kill:
			killAll(syscall.SIGKILL)
		}
	}
	close(stop)
	<-reaped
	output.Wait()
	sending.Wait()
	status := frame.ExitStatus{Code: ws.ExitStatus(), Timeout: timeout, Usage: watched.finish(cfg, ws != 0)}
	if ws.Signaled() {
		status.Code, status.Signal = -1, int(ws.Signal())
	}
	return status
}

// reap waits for every child there is and ever will be. When the command is
// reaped, it calls ended, tells so and kills the rest; it returns when nothing
// is left.
func reap(pid int, exited chan<- syscall.WaitStatus, ended func(syscall.WaitStatus, syscall.Rusage)) {
	var over bool
	drain := 0 // WNOHANG while there may be more that have ended
	for {
		var ws syscall.WaitStatus
		var used syscall.Rusage
		got, err := syscall.Wait4(-1, &ws, syscall.WALL|drain, &used)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return // ECHILD: all are gone
		case got == pid && (ws.Exited() || ws.Signaled()):
			over = true
			ended(ws, used)
			exited <- ws
		}
		switch {
		case over && got > 0:
			drain = syscall.WNOHANG
		case over: // once for all of them: to look for what there is takes long where that is much
			drain = 0
			killAll(syscall.SIGKILL)
		}
	}
}

// lookTimeout is how long the host may take to look.
const lookTimeout = 2 * time.Second

// showProcesses asks the host to look at the sandbox before the rest is killed,
// if the command may have ended because no more processes were allowed. Without
// a control group nothing else would tell the host: the limit has no counter,
// and a shell that cannot fork ends faster than a watchdog looks.
func showProcesses(w *frame.Writer, seen <-chan struct{}) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return
	}
	list, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	if err != nil || uint64(len(list)) < limit.Cur/2 || w.Write(frame.Look, nil) != nil {
		return
	}
	select {
	case <-seen:
	case <-time.After(lookTimeout):
	}
}

// copyOutput copies until the end of r. When the host no longer takes output it
// goes on reading, so that the command does not block on it.
func copyOutput(w io.Writer, r io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 && w != nil {
			if _, werr := w.Write(buf[:n]); werr != nil {
				w = nil
			}
		}
		if err != nil {
			return
		}
	}
}
