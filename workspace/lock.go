package workspace

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A heldLock is a flock that we hold until Close or the end of the process.
type heldLock struct{ *os.File }

// Close gives the lock up at once. Closing the file alone would not: a child
// that another goroutine is starting shares it from its fork to its exec.
func (l *heldLock) Close() error {
	return errors.Join(flock(l.File, unix.LOCK_UN), l.File.Close())
}

// lock takes a flock on path, which is made if absent, waiting for other
// holders until ctx ends. how is unix.LOCK_SH or unix.LOCK_EX. If the file was
// removed while we waited, the error is fs.ErrNotExist.
func lock(ctx context.Context, path string, how int) (*heldLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, how|unix.LOCK_NB); err == nil {
		return stillThere(f, path)
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(err, f.Close())
	}
	got := make(chan struct{})
	go func() {
		defer close(got)
		err = flock(f, how)
	}()
	select {
	case <-got:
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return stillThere(f, path)
	case <-ctx.Done():
		// The system call cannot be taken back: whoever holds the lock ends
		// it, and then it is given up at once.
		go func() { <-got; _ = (&heldLock{f}).Close() }()
		return nil, context.Cause(ctx)
	}
}

// tryLock is lock that returns nil where it would have to wait.
func tryLock(path string) (*heldLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return stillThere(f, path)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = nil
	}
	return nil, errors.Join(err, f.Close())
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err != unix.EINTR {
			return err
		}
	}
}

func stillThere(f *os.File, path string) (*heldLock, error) {
	mine, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	now, err := os.Stat(path)
	if err == nil && !os.SameFile(mine, now) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &heldLock{f}, nil
}

// ownDir makes dir and its parents if absent, and refuses one that others may
// write or look into.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return hostError("make directory", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return hostError("look at directory", err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !info.IsDir():
		return &Error{Kind: ErrHost, Op: dir + " is not a directory", Remedy: "remove it, or use another state directory"}
	case int(owner) != os.Geteuid():
		return &Error{Kind: ErrHost, Op: dir + " belongs to another user", Remedy: "run kick as its owner, or use another state directory"}
	case info.Mode().Perm()&0o077 != 0:
		return &Error{Kind: ErrHost, Op: dir + " is open to other users", Remedy: "run: chmod 700 " + shellQuote(dir)}
	}
	return nil
}
