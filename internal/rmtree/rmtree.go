// Package rmtree removes directories that an agent could write. It is for the host,
// and for the shim where a sandbox's workspace is in a volume that no host sees.
package rmtree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Remove deletes a directory and all in it. It follows no link but in the path of
// the directory's parent, crosses into no other mount, opens up directories that
// their owner closed, and needs the same few descriptors however deep the tree
// is. The caller is the owner, or root. A directory that does not exist is no
// error.
func Remove(dir string) error {
	parent, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return nil
	case err != nil:
		return err
	}
	defer unix.Close(parent)
	return removeTree(parent, filepath.Base(dir))
}

// removeTree empties a directory by moving each directory below it up into it,
// so that none is ever deeper than one level, and then removes it.
func removeTree(parent int, name string) error {
	top, err := openDir(parent, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR):
		return errors.New("it is not a directory")
	case err != nil:
		return err
	}
	defer top.Close()
	h := &hoist{top: top}
	for {
		dirs, err := unlinkFiles(top)
		if err != nil {
			return err
		}
		for len(dirs) > 0 {
			last := len(dirs) - 1
			more, err := h.flatten(dirs[last])
			if err != nil {
				return err
			}
			dirs = append(dirs[:last], more...)
		}
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		if !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		if err := h.again(); err != nil {
			return err
		}
	}
}

type hoist struct {
	top    *os.File
	n      int // directories moved so far
	rounds int // how often one was not empty after it had been emptied
}

// again counts a directory that filled up while it was emptied. A file system
// may skip a name when others go, but not for long.
func (h *hoist) again() error {
	if h.rounds++; h.rounds > 1000 {
		return errors.New("something keeps writing to it: end that process first")
	}
	return nil
}

// flatten removes the directory name of top after moving its directories to
// top, and returns the names in top that are still to be removed.
func (h *hoist) flatten(name string) ([]string, error) {
	d, err := openDir(int(h.top.Fd()), name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	dirs, err := unlinkFiles(d)
	if err != nil {
		return nil, err
	}
	todo := make([]string, 0, len(dirs)+1)
	for _, sub := range dirs {
		to, err := h.move(int(d.Fd()), sub)
		if err != nil {
			return nil, err
		}
		todo = append(todo, to)
	}
	err = unix.Unlinkat(int(h.top.Fd()), name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) {
		return append(todo, name), h.again()
	}
	return todo, err
}

// move moves a directory up to top under a name that is free there.
func (h *hoist) move(from int, name string) (string, error) {
	for opened := false; ; {
		h.n++
		to := ".removing-" + strconv.Itoa(h.n)
		err := unix.Renameat2(from, name, int(h.top.Fd()), to, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) { // by NFS, which knows no such flag
			err = renameNew(from, name, int(h.top.Fd()), to)
		}
		switch {
		case errors.Is(err, unix.EEXIST):
		case err == nil || opened:
			return to, err
		default: // moving a directory needs it to be writable, and no mount point
			sub, err := openDir(from, name)
			if err != nil {
				return "", err
			}
			sub.Close()
			opened = true
		}
	}
}

// renameNew is a rename to a name that is free. Nobody else writes there.
func renameNew(from int, name string, to int, newName string) error {
	var stat unix.Stat_t
	err := unix.Fstatat(to, newName, &stat, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil:
		return unix.EEXIST
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	return unix.Renameat(from, name, to, newName)
}

// unlinkFiles removes all but directories from d and returns those.
func unlinkFiles(d *os.File) (dirs []string, err error) {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			err := unix.Unlinkat(int(d.Fd()), name, 0)
			switch {
			case errors.Is(err, unix.EISDIR):
				dirs = append(dirs, name)
			case err != nil && !errors.Is(err, unix.ENOENT):
				return nil, fmt.Errorf("%.200q: %w", name, err)
			}
		}
		if errors.Is(err, io.EOF) {
			return dirs, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// openDir opens a directory for reading after giving its owner all rights to
// it. The mode is changed through a descriptor, so it is no other file's.
func openDir(parent int, name string) (*os.File, error) {
	const flags = unix.O_NOFOLLOW | unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|flags, 0)
	if errors.Is(err, unix.EACCES) { // its owner may not even read it
		var path int
		if path, err = unix.Openat(parent, name, unix.O_PATH|flags, 0); err != nil {
			return nil, err
		}
		defer unix.Close(path)
		if err = unlock(path, name); err == nil {
			fd, err = unix.Openat(path, ".", unix.O_RDONLY|flags, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := unlock(fd, name); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// unlock gives the owner of a directory all rights to it, and refuses one that
// is a mount point.
func unlock(fd int, name string) error {
	var stat unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MODE, &stat); err != nil {
		return err
	}
	if stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return fmt.Errorf("%.200q is a mount point: unmount it first", name)
	}
	if stat.Mode&0o700 == 0o700 {
		return nil
	}
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700)
}
