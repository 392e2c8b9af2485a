package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// jail is the first stage of the embedded runtime: process 1 of new
// namespaces, with the capabilities that their owner has. It builds the root
// that the launcher described, gives everything up and becomes init.
func jail() error {
	// Mounts belong to the process, but capabilities, no_new_privs, Landlock
	// and seccomp belong to the thread: all of it happens on one.
	runtime.LockOSThread()
	cfg, err := frame.NewReader(os.Stdin).ReadConfig()
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	var j frame.Jail
	if err := json.Unmarshal(cfg.Jail, &j); err != nil {
		return fmt.Errorf("read the jail's configuration: %w", err)
	}
	if err := shutIn(j); err != nil {
		return err
	}
	env := secondStageEnv()
	err = unix.Exec("/proc/self/exe", []string{"kick-shim", "init"}, env)
	return fmt.Errorf("execute the second stage: %w", err)
}

// secondStageEnv is what of the environment the next stage gets.
func secondStageEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return slices.Contains(frame.JailEnv, kv) })
}

// shutIn builds the root around the calling thread, and gives everything else up.
func shutIn(j frame.Jail) error {
	if j.Unshare != 0 {
		if err := unix.Unshare(j.Unshare); err != nil {
			return failed("cgroup-namespace", "unshare", err)
		}
	}
	if err := buildRoot(j.Entries); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(j.Hostname)); err != nil {
		return failed("uts-namespace", "set the host name", err)
	}
	if err := loopbackUp(); err != nil {
		return failed("network-namespace", "bring the loopback interface up", err)
	}
	return lockDown(j)
}

// mountPoints are host directories, one of which exists everywhere and can
// carry the new root until it is pivoted to.
var mountPoints = []string{"/tmp", "/mnt", "/var", "/usr"}

// buildRoot makes the new root and moves into it.
func buildRoot(entries []frame.Entry) error {
	// Nothing that is mounted here may reach the host's mount namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failed("mount-namespace", "make mounts private", err)
	}
	trees, err := openTrees(entries)
	if err != nil {
		return err
	}
	var root string
	for _, p := range mountPoints {
		if fi, err := os.Lstat(p); err == nil && fi.IsDir() {
			root = p
			break
		}
	}
	if root == "" {
		return failed("mounts", "find a mount point", errors.New("the host has none of "+strings.Join(mountPoints, " ")))
	}
	if err := unix.Mount("kick", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=4m,nr_inodes=4096"); err != nil {
		return failed("mounts", "mount the root", err)
	}
	for i, e := range entries {
		if err := place(root, e, trees[i]); err != nil {
			name := "mounts"
			if e.Kind == frame.ProcEntry {
				name = "proc"
			}
			return failed(name, "make "+e.Path, err)
		}
	}
	// The new root is stacked on the old one, which then is the upper of the
	// two and leaves with everything below it.
	if err := unix.Chdir(root); err != nil {
		return failed("mounts", "enter the root", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return failed("mounts", "pivot to the root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return failed("mounts", "detach the host's root", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return failed("mounts", "enter the root", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &attr); err != nil {
		return failed("mounts", "make the root read-only", err)
	}
	unix.Umask(0o022)
	return nil
}

// openTrees clones what is bound from the host, before the new root hides a
// part of it. The launcher has done so already where it runs as root, since
// the sandbox's user could not reach every source.
func openTrees(entries []frame.Entry) ([]int, error) {
	trees := make([]int, len(entries))
	for i, e := range entries {
		trees[i] = -1
		if e.Kind != frame.BindEntry || e.Inside != "" {
			continue
		}
		if e.FD != 0 {
			trees[i] = e.FD
			continue
		}
		flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
		if e.Recursive {
			flags |= unix.AT_RECURSIVE
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, e.Source, flags)
		if err != nil {
			return nil, failed("mounts", "open "+e.Source, err)
		}
		trees[i] = fd
	}
	return trees, nil
}

// place makes one entry under the directory root.
func place(root string, e frame.Entry, tree int) error {
	target := path.Join(root, e.Path)
	if err := os.MkdirAll(path.Dir(target), 0o755); err != nil {
		return err
	}
	switch e.Kind {
	case frame.DirEntry:
		return makeDir(target, os.FileMode(e.Mode))
	case frame.FileEntry:
		return makeFile(target, e.Content, os.FileMode(e.Mode))
	case frame.SymlinkEntry:
		return os.Symlink(e.Content, target)
	case frame.BindEntry:
		return bind(root, target, e, tree)
	case frame.TmpfsEntry, frame.ProcEntry, frame.DevptsEntry:
		if err := makeDir(target, 0o755); err != nil {
			return err
		}
		return unix.Mount(string(e.Kind), target, string(e.Kind), mountFlags(e), e.Options)
	}
	return fmt.Errorf("unknown kind %q", e.Kind)
}

func makeDir(target string, mode os.FileMode) error {
	err := os.Mkdir(target, mode)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

func makeFile(target, content string, mode os.FileMode) error {
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

func bind(root, target string, e frame.Entry, tree int) error {
	if e.Inside != "" {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path.Join(root, e.Inside), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return err
		}
		tree = fd
	}
	defer unix.Close(tree)
	var err error
	if _, missing := os.Lstat(target); missing != nil {
		if e.File {
			err = makeFile(target, "", 0o644)
		} else {
			err = makeDir(target, 0o755)
		}
	}
	if err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: mountAttr(e)}
	flags := uint(unix.AT_EMPTY_PATH)
	if e.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	if attr.Attr_set != 0 {
		if err := unix.MountSetattr(tree, "", flags, &attr); err != nil {
			return fmt.Errorf("set mount attributes: %w", err)
		}
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func mountAttr(e frame.Entry) uint64 {
	var a uint64
	set := func(on bool, bit uint64) {
		if on {
			a |= bit
		}
	}
	set(e.ReadOnly, unix.MOUNT_ATTR_RDONLY)
	set(e.NoSuid, unix.MOUNT_ATTR_NOSUID)
	set(e.NoDev, unix.MOUNT_ATTR_NODEV)
	set(e.NoExec, unix.MOUNT_ATTR_NOEXEC)
	return a
}

func mountFlags(e frame.Entry) uintptr {
	var f uintptr
	set := func(on bool, bit uintptr) {
		if on {
			f |= bit
		}
	}
	set(e.ReadOnly, unix.MS_RDONLY)
	set(e.NoSuid, unix.MS_NOSUID)
	set(e.NoDev, unix.MS_NODEV)
	set(e.NoExec, unix.MS_NOEXEC)
	return f
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return err
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
