package main

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// lockDown gives up, on the calling thread, everything that the rest of the
// shim and the agent must not have. An execve on the same thread follows.
func lockDown(j frame.Jail) error {
	// A session keyring is inherited, and with it what the caller's login put
	// there. Kernels without keyrings have nothing to leave (gVisor says EACCES),
	// and where an engine's filter refuses the call already, none can be reached.
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return failed("keyring", "join a new session keyring", err)
	}
	for _, r := range j.Rlimits {
		if err := lowerRlimit(r); err != nil {
			return failed("rlimits", fmt.Sprintf("set resource limit %d to %d", r.Resource, r.Value), err)
		}
	}
	if err := dropCapabilities(j.Capabilities); err != nil {
		return failed("capabilities", "drop capabilities", err)
	}
	if j.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return failed("no-new-privileges", "prctl", err)
		}
	}
	if j.Landlock != nil {
		if err := restrict(*j.Landlock); err != nil {
			return failed("landlock", "restrict the file system", err)
		}
	}
	if len(j.Filter) > 0 {
		if err := loadFilter(j.Filter); err != nil {
			return failed("seccomp", "load the system call filter", err)
		}
	}
	return nil
}

// lowerRlimit never raises a limit, since that takes a capability that even
// root may lack.
func lowerRlimit(r frame.Rlimit) error {
	var cur unix.Rlimit
	if err := unix.Getrlimit(r.Resource, &cur); err != nil {
		return err
	}
	v := min(r.Value, cur.Max)
	return unix.Prlimit(0, r.Resource, &unix.Rlimit{Cur: v, Max: v}, nil)
}

func dropCapabilities(keep []int) error {
	for c := 0; c <= unix.CAP_LAST_CAP+16; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // past the last capability of this kernel
		}
		if err == nil && has == 0 {
			continue // an engine has dropped it, and the right to drop with it
		}
		err = unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err != nil {
			return fmt.Errorf("capability %d from the bounding set: %w", c, err)
		}
	}
	// gVisor has no ambient set (EINVAL).
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("ambient set: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for _, c := range keep {
		d := &data[c/32]
		d.Effective |= 1 << (c % 32)
		d.Permitted |= 1 << (c % 32)
		d.Inheritable |= 1 << (c % 32)
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("permitted set: %w", err)
	}
	for _, c := range keep {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("ambient capability %d: %w", c, err)
		}
	}
	return nil
}

const (
	rightsRead = landlock.AccessFSSet(ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSReadDir)
	// A rule on something that is not a directory must not hold rights that
	// only directories have.
	rightsDevices = rightsRead | landlock.AccessFSSet(ll.AccessFSWriteFile|ll.AccessFSTruncate|ll.AccessFSIoctlDev)
	rightsWrite   = rightsDevices | landlock.AccessFSSet(ll.AccessFSRemoveDir|ll.AccessFSRemoveFile|ll.AccessFSMakeDir|
		ll.AccessFSMakeReg|ll.AccessFSMakeSock|ll.AccessFSMakeFifo|ll.AccessFSMakeSym|ll.AccessFSRefer)
)

// restrict enforces the strongest rules that the kernel's Landlock knows.
func restrict(l frame.Landlock) error {
	handled := landlock.V9.HandledAccessFS
	if l.ABI < 2 {
		// The first version denies moves between directories and knows no
		// right that would allow them.
		handled &^= landlock.AccessFSSet(ll.AccessFSRefer)
	}
	var rules []landlock.Rule
	for _, r := range l.Rules {
		var rights landlock.AccessFSSet
		switch r.Access {
		case frame.AccessList:
			rights = landlock.AccessFSSet(ll.AccessFSReadDir)
		case frame.AccessRead:
			rights = rightsRead | landlock.AccessFSSet(ll.AccessFSResolveUnix)
		case frame.AccessDevices:
			rights = rightsDevices
		case frame.AccessWrite:
			rights = rightsWrite | landlock.AccessFSSet(ll.AccessFSResolveUnix)
		default:
			return fmt.Errorf("unknown access %q for %s", r.Access, r.Path)
		}
		rules = append(rules, landlock.PathAccess(rights&handled, r.Path))
	}
	fd, flags, err := landlock.Config{HandledAccessFS: handled}.BestEffort().NewRulesetFD(rules...)
	if err != nil {
		return err
	}
	if fd < 0 {
		return errors.New("the kernel has no Landlock")
	}
	defer unix.Close(fd)
	return ll.LandlockRestrictSelf(fd, flags)
}

// loadFilter loads raw instructions as the calling thread's system call filter.
func loadFilter(raw []byte) error {
	const size = int(unsafe.Sizeof(unix.SockFilter{}))
	if len(raw)%size != 0 || len(raw)/size > unix.BPF_MAXINSNS {
		return fmt.Errorf("a program of %d bytes", len(raw))
	}
	program := make([]unix.SockFilter, len(raw)/size)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&program[0])), len(raw)), raw)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}
