package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// killGrace is how long the command has between SIGTERM and SIGKILL when its
// time is up or the host says stop.
const killGrace = 2 * time.Second

// initProcess is process 1 of a finished sandbox, whose host is at the other ends
// of its standard input and output.
func initProcess() error {
	// With this, a write to a host that is gone is an error and not a signal.
	signal.Notify(make(chan os.Signal, 1))
	if err := ignoreSignals(); err != nil {
		return err
	}
	// What the caller left open. The Go runtime's own descriptors do not exist
	// yet, since nothing has been polled. gVisor takes no more than a signed number.
	if err := unix.CloseRange(3, math.MaxInt32, 0); err != nil {
		return failed("descriptors", "close inherited descriptors", err)
	}
	h := host{in: frame.NewReader(os.Stdin), out: frame.NewWriter(os.Stdout), gone: func() { leave(0) }}
	return h.converse()
}

// host is who the shim speaks with.
type host struct {
	in  *frame.Reader
	out *frame.Writer
	// gone is called when the host has gone. Where it returns, the command is
	// killed, and what is said then is said to nobody.
	gone func()
	// collectOnly tells that the command has run, for another host.
	collectOnly bool
	// network waits until none of the canaries can be reached, and says what is wrong
	// if one can. It is nil where there can be no network.
	network func(canaries []string) string
}

// converse tells the host that the sandbox is ready, waits for its word and does
// what the mode says.
func (h host) converse() error {
	cfg, err := h.in.ReadConfig()
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	cfg.Env = withInherited(cfg)
	if cfg.Objects != "" {
		baseObjects = cfg.Objects
	}
	if h.collectOnly && cfg.Mode != frame.CollectMode {
		return errors.New("the command of this sandbox has run for another host")
	}
	probes := probe(cfg)
	if h.network != nil {
		probes["no-network"] = h.network(cfg.Canaries)
	}
	if err := h.out.WriteJSON(frame.Ready, frame.Readiness{Probes: probes, Shown: show(cfg.Show)}); err != nil {
		return err
	}
	if err := h.awaitGo(); err != nil {
		return err
	}
	// From here on code of the repository runs beside this process, under the
	// same user: it must not be able to attach, or to open this process's
	// descriptors and memory through /proc.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become not dumpable: %w", err)
	}
	if cfg.Sent && cfg.Mode != frame.CollectMode {
		if err := receive(h.in, cfg); err != nil {
			return fmt.Errorf("take the workspace: %w", err)
		}
	}
	orders, ended := make(chan order), make(chan struct{})
	go h.listen(orders, ended)
	if cfg.Mode != frame.CollectMode {
		if err := run(cfg, h.out, orders); err != nil {
			close(ended)
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
		if err := collect(cfg, h.out); err != nil {
			return fmt.Errorf("collect the work: %w", err)
		}
	}
	return h.out.Write(frame.Goodbye, nil)
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

func (h host) awaitGo() error {
	t, _, err := h.in.Read()
	switch {
	case errors.Is(err, io.EOF) || t == frame.Stop:
		h.gone() // the host changed its mind; nothing has run
		return errors.New("the host wants nothing")
	case err != nil:
		return fmt.Errorf("wait for the host: %w", err)
	case t != frame.Go:
		return fmt.Errorf("frame %q where the word to go was due", t)
	}
	return nil
}

// awaitAck waits until the host has looked at what the command left, or is gone.
func awaitAck(orders <-chan order) {
	for o := range orders {
		if o.ack || o.gone {
			return
		}
	}
}

// order is what the host wants of a running command: a signal for it, that it
// ends, or that the rest is killed, which the host has looked at. A host that is
// gone wants everything killed.
type order struct {
	signal syscall.Signal
	stop   bool
	ack    bool
	gone   bool
}

// listen passes the host's frames on until the command has ended.
func (h host) listen(orders chan<- order, ended <-chan struct{}) {
	for {
		var o order
		t, p, err := h.in.Read()
		switch {
		case err != nil:
			h.gone()
			o.gone = true
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
		if o.gone {
			return
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

// show reads files for the host, and tells where links lead. Programs are shown by
// their SHA-256.
func show(names []string) map[string]string {
	shown := map[string]string{}
	for _, name := range names {
		switch program, ok := strings.CutPrefix(name, frame.ShownProgram); {
		case name == frame.ShownShim:
			shown[name] = digestOf("/proc/self/exe")
			continue
		case name == frame.ShownLandlock:
			shown[name] = landlockVersion()
			continue
		case ok:
			if path, err := filepath.EvalSymlinks(program); err == nil {
				shown[name] = path + " " + digestOf(path)
			}
			continue
		}
		if to, err := os.Readlink(name); err == nil {
			shown[name] = to
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			continue // that it is not among them says it
		}
		if b, err := io.ReadAll(io.LimitReader(f, frame.MaxShown)); err == nil {
			shown[name] = string(b)
		}
		f.Close()
	}
	return shown
}

func landlockVersion() string {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return errno.Error()
	}
	return strconv.Itoa(int(abi))
}

func digestOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err.Error()
	}
	return hex.EncodeToString(h.Sum(nil))
}

func describe(errno syscall.Errno) string {
	if errno == 0 {
		return "was allowed"
	}
	return errno.Error()
}
