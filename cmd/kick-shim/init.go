package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// killGrace is how long the command has between SIGTERM and SIGKILL when its
// time is up or the host says stop.
const killGrace = 2 * time.Second

// initProcess is process 1 of a finished sandbox: it tells the host that it is
// ready, waits for its word and does what the mode says.
func initProcess() error {
	// With this, a write to a host that is gone is an error and not a signal.
	signal.Notify(make(chan os.Signal, 1))
	if err := ignoreSignals(); err != nil {
		return err
	}
	if os.Getpid() != 1 {
		leaveNothing()
	}
	// What the caller left open. The Go runtime's own descriptors do not exist
	// yet, since nothing has been polled. gVisor takes no more than a signed number.
	if err := unix.CloseRange(3, math.MaxInt32, 0); err != nil {
		return failed("descriptors", "close inherited descriptors", err)
	}
	in := frame.NewReader(os.Stdin)
	cfg, err := in.ReadConfig()
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	cfg.Env = withInherited(cfg)
	w := frame.NewWriter(os.Stdout)
	if err := w.WriteJSON(frame.Ready, frame.Readiness{Probes: probe(cfg)}); err != nil {
		return err
	}
	if err := awaitGo(in); err != nil {
		return err
	}
	// From here on code of the repository runs beside this process, under the
	// same user: it must not be able to attach, or to open this process's
	// descriptors and memory through /proc.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become not dumpable: %w", err)
	}
	if cfg.Sent {
		if err := receive(in, cfg); err != nil {
			return fmt.Errorf("take the workspace: %w", err)
		}
	}
	orders, ended := make(chan order), make(chan struct{})
	go listen(in, orders, ended)
	if cfg.Mode != frame.CollectMode {
		if err := run(cfg, w, orders); err != nil {
			return err
		}
		if cfg.Pause {
			awaitAck(orders)
		}
	}
	close(ended)
	if cfg.Mode != frame.RunMode {
		if cfg.Sent {
			openUp(cfg.WorkDir)
		}
		if err := collect(cfg, w); err != nil {
			return fmt.Errorf("collect the work: %w", err)
		}
	}
	return w.Write(frame.Goodbye, nil)
}

// ignoreSignals keeps the agent from ending its own process 1. The kernel gives
// process 1 only those signals that it has handlers for, and Go's runtime has
// handlers for all, which take one that was sent with the look of a fault
// (rt_sigqueueinfo) for a fault of this program. So there are none, not even that
// by which the runtime interrupts its own threads: while the main thread is in a
// handler it blocks all signals, and the next one that comes ends the process (see
// onAnotherThread). Goroutines here give way by themselves. A true fault ends the
// process all the same.
func ignoreSignals() error {
	if os.Getpid() != 1 {
		return nil // the default would end any other process
	}
	const setSize = 8      // bytes of the kernel's signal set
	var byDefault [64]byte // struct sigaction of the kernel, all zero: SIG_DFL
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if sig == syscall.SIGKILL || sig == syscall.SIGSTOP {
			continue
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), 0, setSize, 0, 0)
		if errno != 0 {
			return fmt.Errorf("ignore signal %d: %w", sig, errno)
		}
	}
	return nil
}

func awaitGo(in *frame.Reader) error {
	t, _, err := in.Read()
	switch {
	case errors.Is(err, io.EOF) || t == frame.Stop:
		os.Exit(0) // the host changed its mind; nothing has run
	case err != nil:
		return fmt.Errorf("wait for the host: %w", err)
	case t != frame.Go:
		return fmt.Errorf("frame %q where the word to go was due", t)
	}
	return nil
}

// awaitAck waits until the host has looked at what the command left. If the
// host is gone, listen ends this process.
func awaitAck(orders <-chan order) {
	for o := range orders {
		if o.ack {
			return
		}
	}
}

// order is what the host wants of a running command: a signal for it, that it
// ends, or that the rest is killed, which the host has looked at.
type order struct {
	signal syscall.Signal
	stop   bool
	ack    bool
}

// listen passes the host's frames on until the command has ended. When the
// host is gone, this process ends and the kernel ends everything else with it.
func listen(in *frame.Reader, orders chan<- order, ended <-chan struct{}) {
	for {
		var o order
		t, p, err := in.Read()
		switch {
		case err != nil:
			leave(0)
		case t == frame.Signal && len(p) == 1:
			o.signal = syscall.Signal(p[0])
		case t == frame.Stop:
			o.stop = true
		case t == frame.Ack:
			o.ack = true
		default:
			continue
		}
		select {
		case orders <- o:
		case <-ended:
		}
	}
}

// probe tries what must fail in a locked-down sandbox and cannot be read from
// outside. A probe that finds nothing wrong is an empty string.
func probe(cfg frame.Config) map[string]string {
	probes := map[string]string{}
	deny := func(name string, want syscall.Errno, trap uintptr, args ...uintptr) {
		var a [4]uintptr
		copy(a[:], args)
		_, _, errno := unix.Syscall6(trap, a[0], a[1], a[2], a[3], 0, 0)
		probes[name] = ""
		if errno != want {
			probes[name] = fmt.Sprintf("system call %d: %s, want %s", trap, describe(errno), want)
		}
	}
	// Each of these has arguments that would fail otherwise, or do nothing:
	// only the filter answers with exactly this error.
	deny("seccomp-user-namespace", unix.EPERM, unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	deny("seccomp-mount", unix.EPERM, unix.SYS_FSOPEN, 0, ^uintptr(0))
	deny("seccomp-bpf", unix.EPERM, unix.SYS_BPF, ^uintptr(0))
	deny("seccomp-keyrings", unix.EPERM, unix.SYS_KEYCTL, ^uintptr(0))
	deny("seccomp-io-uring", unix.EPERM, unix.SYS_IO_URING_SETUP, 0, 0)
	deny("seccomp-userfaultfd", unix.EPERM, unix.SYS_USERFAULTFD, ^uintptr(0))
	deny("seccomp-perf", unix.EPERM, unix.SYS_PERF_EVENT_OPEN)
	deny("seccomp-ptrace", unix.EPERM, unix.SYS_PTRACE, unix.PTRACE_ATTACH, 0)
	deny("seccomp-vsock", unix.EPERM, unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM)
	deny("seccomp-clone3", unix.ENOSYS, unix.SYS_CLONE3)
	if os.Getpid() != 1 {
		probeGuest(probes)
	}
	if w := cfg.Witness; w != "" {
		probes["landlock"] = ""
		// Not os.Open, which would leave the poller's descriptors behind for the
		// host to wonder about.
		fd, err := unix.Open(w, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EACCES) {
			probes["landlock"] = fmt.Sprintf("open %s: %v, want %v", w, err, unix.EACCES)
		}
		unix.Close(fd)
	}
	return probes
}

func describe(errno syscall.Errno) string {
	if errno == 0 {
		return "was allowed"
	}
	return errno.Error()
}
