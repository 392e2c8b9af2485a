package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/rmtree"
)

// In a virtual machine this program is a command of an ordinary user, whom kick has
// come in as. What it makes there for the agent is what the embedded runtime makes
// on a host: the machine is a wall around that.

// look tells the host what the machine has.
func look() error {
	var want frame.Question
	if err := readJSON(&want); err != nil {
		return err
	}
	m := frame.Machine{UID: os.Geteuid(), GID: os.Getegid(), Shown: show(want.Show), Network: confinement(want.Canaries)}
	if abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno == 0 {
		m.Landlock = int(abi)
	}
	for _, pattern := range want.Paths {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("find %s: %w", pattern, err)
		}
		for _, p := range found {
			if f, ok := find(p); ok {
				m.Found = append(m.Found, f)
			}
		}
	}
	for _, p := range ownProcesses() {
		m.Processes = append(m.Processes, p.Process)
	}
	return json.NewEncoder(os.Stdout).Encode(m)
}

func find(p string) (frame.Found, bool) {
	fi, err := os.Lstat(p)
	if err != nil {
		return frame.Found{}, false
	}
	f := frame.Found{Path: p, Dir: fi.IsDir()}
	if fi.Mode()&os.ModeSymlink != 0 {
		f.Link, err = os.Readlink(p)
	}
	return f, err == nil
}

// readJSON reads all of standard input.
func readJSON(v any) error {
	b, err := io.ReadAll(io.LimitReader(os.Stdin, frame.MaxConfig))
	if err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	return nil
}

// enclose starts the sandbox, which goes on without this process, and ends when that
// waits for its host at the socket that is its argument. What went wrong is said as
// by every other role.
func enclose() error {
	if len(os.Args) != 3 {
		return errors.New("enclose takes one argument, the path of a socket to make")
	}
	var e frame.Enclosure
	if err := readJSON(&e); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: os.Args[2], Net: "unix"})
	if err != nil {
		return fmt.Errorf("make the socket for the host: %w", err)
	}
	l.SetUnlinkOnClose(false)
	listener, err := l.File()
	if err != nil {
		return err
	}
	e.Wait.Inherited = true
	wait, err := json.Marshal(e.Wait)
	if err != nil {
		return err
	}
	in, toChild, err := os.Pipe()
	if err != nil {
		return err
	}
	fromChild, out, err := os.Pipe()
	if err != nil {
		return err
	}
	self, err := ownCopy()
	if err != nil {
		return fmt.Errorf("copy the shim: %w", err)
	}
	child, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", frame.ListenerFD+1), []string{"kick-shim", "enclosed"}, &os.ProcAttr{
		Dir: "/", Env: frame.JailEnv, Files: []*os.File{in, out, out, listener, self},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  e.Clone,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: e.User, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: e.User, HostID: os.Getegid(), Size: 1}},
			Credential:  &syscall.Credential{Uid: uint32(e.User), Gid: uint32(e.User), NoSetGroups: true},
			AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP},
			Setsid:      true,
		},
	})
	if err != nil {
		return failed("user-namespace", "start the sandbox", err)
	}
	err = errors.Join(in.Close(), out.Close())
	if _, writeErr := toChild.Write(wait); writeErr != nil {
		err = errors.Join(err, writeErr)
	}
	err = errors.Join(err, toChild.Close())
	said, readErr := io.ReadAll(io.LimitReader(fromChild, frame.MaxPayload))
	if len(said) > 0 { // a frame of its own, or what Go's runtime says
		_, err := os.Stdout.Write(said)
		return errors.Join(err, child.Kill(), errSaid)
	}
	return errors.Join(err, readErr)
}

// ownCopy is this program in a file without a name: Landlock allows the sandbox no
// program that lies outside of it.
func ownCopy() (*os.File, error) {
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer in.Close()
	fd, err := unix.MemfdCreate("kick-shim", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 every memfd could be executed
		fd, err = unix.MemfdCreate("kick-shim", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	w := os.NewFile(uintptr(fd), "kick-shim")
	defer w.Close() // nobody executes what is open for writing
	if _, err := io.Copy(w, in); err != nil {
		return nil, err
	}
	if err := w.Chmod(0o555); err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// errSaid is an error of which the host was told.
var errSaid = errors.New("the sandbox did not begin to wait")

// enclosed is process 1 of the sandbox: the jail of the embedded runtime, and then
// serve. When it has nothing more to say its standard streams lead nowhere, by which
// the process outside knows.
func enclosed() error {
	runtime.LockOSThread() // what is given up belongs to the thread
	var w waiting
	if err := readJSON(&w.Wait); err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := shutIn(w.Jail); err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return err
		}
	}
	return w.become("serve", secondStageEnv())
}

// leaveMachine removes what a kick had in the machine. What is still there of the
// user's, and was not before the kick, has come out of its sandbox.
func leaveMachine() error {
	var l frame.Leave
	if err := readJSON(&l); err != nil {
		return err
	}
	if !filepath.IsAbs(l.Dir) {
		return fmt.Errorf("leave wants the whole path of a directory, not %q", l.Dir)
	}
	for deadline := time.Now().Add(time.Duration(l.PatienceMS) * time.Millisecond); ; {
		left := strangers(l.Before)
		if len(left) == 0 {
			return rmtree.Remove(l.Dir)
		}
		if err := awaitEnd(left[0].PID, time.Until(deadline)); err != nil {
			return fmt.Errorf("a process is left, %d %s: %w", left[0].PID, left[0].name, err)
		}
	}
}

// ownProcesses are those of this process's user that live. It has them by the kernel's
// word of who they are, and not by whose their files in /proc are.
func ownProcesses() []process {
	uid := strconv.Itoa(os.Geteuid())
	return slices.DeleteFunc(living(), func(p process) bool {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID)) // nothing of one that has gone
		for line := range strings.Lines(string(status)) {
			if users, ok := strings.CutPrefix(line, "Uid:"); ok {
				return !slices.Contains(strings.Fields(users), uid)
			}
		}
		return true
	})
}

// strangers are the user's processes, but for those that were there before, this one
// and those that it descends from.
func strangers(before []frame.Process) []process {
	all := ownProcesses()
	known := map[int]bool{}
	for pid := os.Getpid(); pid != 0; {
		known[pid] = true
		i := slices.IndexFunc(all, func(p process) bool { return p.PID == pid })
		if pid = 0; i >= 0 {
			pid = all[i].parent
		}
	}
	return slices.DeleteFunc(all, func(p process) bool { return known[p.PID] || slices.Contains(before, p.Process) })
}

// awaitEnd waits until a process has ended.
func awaitEnd(pid int, patience time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for end := time.Now().Add(patience); ; {
		wait := time.Until(end)
		if wait <= 0 {
			return errors.New("it does not end")
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(wait.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
}
