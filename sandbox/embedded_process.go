package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// sealShim puts the shim into an anonymous file that nobody can change any
// more. It is executed from there; nothing is written to disk.
func sealShim(shim io.Reader) (*os.File, error) {
	// A child that is forked meanwhile would hold the file open for writing
	// until its exec, and executing the file would fail with "text file busy".
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.MemfdCreate("kick-shim", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 every memfd could be executed
		fd, err = unix.MemfdCreate("kick-shim", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, err
	}
	w := os.NewFile(uintptr(fd), "kick-shim")
	defer w.Close()
	// In small pieces: as one slice, it cost several times as much in memory
	// that is touched for the first time.
	switch n, err := io.Copy(w, shim); {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, io.ErrUnexpectedEOF
	}
	if err := unix.Fchmod(fd, 0o555); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		return nil, err
	}
	return os.Open("/proc/self/fd/" + strconv.Itoa(fd))
}

// firstTreeFD is the shim's number for the first tree, after the three pipes
// and itself.
const firstTreeFD = 4

// process is a running shim, process 1 of its sandbox. When it is gone, the
// kernel has ended every other process there, and Wait has seen them go.
type process struct {
	pid    int
	os     *os.Process
	stdin  *os.File // frames to the shim
	stdout *os.File // frames from it
	pipes  []*os.File
	log    *tail // what it wrote to standard error
	done   chan struct{}
	state  *os.ProcessState
	closed sync.Once
}

// startProcess starts the shim as planned. change, if not nil, may change that.
func startProcess(p *plan, shim *os.File, trees []*os.File, change func(*os.ProcAttr)) (*process, error) {
	var opened []*os.File
	pipe := func() (r, w *os.File, err error) {
		r, w, err = os.Pipe()
		if err == nil {
			opened = append(opened, r, w)
		}
		return r, w, err
	}
	fail := func(err error) (*process, error) {
		closeAll(opened)
		return nil, err
	}
	stdin, toShim, err := pipe()
	if err != nil {
		return fail(err)
	}
	fromShim, stdout, err := pipe()
	if err != nil {
		return fail(err)
	}
	log, stderr, err := pipe()
	if err != nil {
		return fail(err)
	}
	proc := &process{stdin: toShim, stdout: fromShim, pipes: []*os.File{toShim, fromShim, log}, log: &tail{max: 8 << 10}, done: make(chan struct{})}
	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   slices.Clone(frame.JailEnv),
		Files: append([]*os.File{stdin, stdout, stderr, shim}, trees...),
		Sys:   p.sysProcAttr(),
	}
	if change != nil {
		change(attr)
	}
	started := make(chan error)
	go func() {
		// The death signal comes when the thread that started the process
		// ends, not when this program does: keep the thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		proc.own(attr, started)
	}()
	err = <-started
	closeAll([]*os.File{stdin, stdout, stderr})
	if err != nil {
		closeAll([]*os.File{toShim, fromShim, log})
		return nil, err
	}
	return proc, nil
}

// own starts the process, tells so, and waits for its end.
func (p *process) own(attr *os.ProcAttr, started chan<- error) {
	proc, err := os.StartProcess("/proc/self/fd/3", []string{"kick-shim", "jail"}, attr)
	if err != nil {
		started <- err
		return
	}
	p.pid, p.os = proc.Pid, proc
	var logged sync.WaitGroup
	logged.Go(func() { _, _ = io.CopyBuffer(p.log, struct{ io.Reader }{p.pipes[2]}, make([]byte, 512)) })
	started <- nil
	p.state, _ = proc.Wait()
	logged.Wait()
	close(p.done)
}

// kill ends the sandbox at once, without waiting.
func (p *process) kill() {
	_ = p.os.Kill() // an error means that it is gone already
}

// end kills what is left, waits for it and closes the launcher's ends.
func (p *process) end() {
	p.closed.Do(func() {
		p.kill()
		<-p.done
		closeAll(p.pipes)
	})
}

// startError explains why a process could not be started in its namespaces.
func startError(err error, clone uintptr) error {
	op, kind := "start the sandbox", ErrRuntime
	remedy := ""
	switch {
	case errors.Is(err, unix.ENOSPC):
		op, kind = "user-namespace", ErrIsolation
		err = fmt.Errorf("the limit on user namespaces, or on another kind, is reached (%w)", err)
		remedy = remedyOf("user-namespace")
		for _, ns := range []string{"mnt", "pid", "net", "ipc", "uts"} {
			if strings.Join(readFields("/proc/sys/user/max_"+ns+"_namespaces"), "") == "0" {
				op = map[string]string{"mnt": "mount", "net": "network"}[ns]
				if op == "" {
					op = ns
				}
				op += "-namespace"
				remedy = remedyOf(op)
			}
		}
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL) && clone != 0, errors.Is(err, unix.ENOSYS):
		op, kind = "user-namespace", ErrIsolation
		err = fmt.Errorf("this host does not let kick make one (%w)", err)
		remedy = remedyOf("user-namespace")
	case errors.Is(err, unix.EACCES):
		remedy = "Allow memfd files to be executed (sysctl vm.memfd_noexec below 2)"
	case errors.Is(err, unix.EAGAIN):
		remedy = "The limit on processes of this user is reached: end some, or raise it (ulimit -u)"
	case errors.Is(err, unix.ENOEXEC):
		remedy = "The shim is built for another machine: rebuild kick for this one"
	}
	return &Error{Kind: kind, Op: op, Err: err, Remedy: remedy}
}

// tail keeps the last bytes that are written to it.
type tail struct {
	max int
	mu  sync.Mutex
	b   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - t.max; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// How long things may take that take milliseconds on an idle machine.
const (
	startTimeout    = time.Minute      // until the shim is ready
	checkoutTimeout = 10 * time.Minute // from there until the command runs
	wallGrace       = 5 * time.Second  // from the command's SIGTERM to the end of the sandbox
	collectTimeout  = 2 * time.Minute  // for making the artifacts
)
