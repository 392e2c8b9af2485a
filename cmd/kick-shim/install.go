package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/rmtree"
)

// What this program does in containers of kick's own image, beside the agent's: it
// prepares a pod, and removes what a kick has left in a claim. Nothing of an agent
// runs there, but what agents have written is there to be seen.

// terminationLog is where Kubernetes takes a container's last words from.
const terminationLog = "/dev/termination-log"

// sayLast keeps an error for who looks at the container's end.
func sayLast(err error) error {
	if err != nil {
		_ = os.WriteFile(terminationLog, []byte(clip(err.Error(), 4<<10)), 0o644) // the error is said elsewhere too
	}
	return err
}

// install prepares a pod, as an init container.
func install() error {
	if len(os.Args) != 3 {
		return errors.New("install takes one argument, what to install")
	}
	var c frame.Install
	if err := json.Unmarshal([]byte(os.Args[2]), &c); err != nil {
		return fmt.Errorf("read what to install: %w", err)
	}
	if err := copySelf(c.Shim); err != nil {
		return sayLast(fmt.Errorf("copy the shim: %w", err))
	}
	if c.Kept {
		if _, err := os.Stat(c.Work); errors.Is(err, fs.ErrNotExist) {
			os.Exit(frame.NoWork)
		} else if err != nil {
			return sayLast(fmt.Errorf("look for the workspace: %w", err))
		}
	} else if err := makeWork(c.Work); err != nil {
		return sayLast(fmt.Errorf("make the workspace: %w", err))
	}
	if c.Base == "" {
		return nil
	}
	return sayLast(haveBase(c))
}

// copySelf copies this program to where the next container starts it from.
func copySelf(to string) error {
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o555)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// makeWork makes the directory of the workspace, which then belongs to the pod's
// user: git works in none of root's. What another attempt has left goes.
func makeWork(dir string) error {
	if err := rmtree.Remove(dir); err != nil {
		return fmt.Errorf("remove what is there: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return writable(err)
	}
	return writable(os.Mkdir(dir, 0o755))
}

func writable(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: user %d and group %d may not write to the claim: its volume takes no fsGroup, so let the group write to its root", err, os.Getuid(), os.Getgid())
	}
	return err
}

// Where a base is, below its directory. Its marks are beside it: one that is there
// says that the objects on the list whose digest it bears are too.
const (
	baseDir    = "objects"
	markPrefix = "whole-"
	newPrefix  = "new-"
)

// unusedBases is how long a base stays that no kick has used, as mirrors do by
// default.
const unusedBases = 30 * 24 * time.Hour

// haveBase makes sure that the base's objects are there. The host brings those that
// are not.
func haveBase(c frame.Install) error {
	all := filepath.Dir(c.Base)
	if err := os.MkdirAll(filepath.Join(c.Base, baseDir, "pack"), 0o755); err != nil {
		return fmt.Errorf("make the directory of the base: %w", writable(err))
	}
	now := time.Now()
	if err := os.Chtimes(c.Base, now, now); err != nil {
		return fmt.Errorf("note the use of the base: %w", err)
	}
	if err := sweepBases(all, now.Add(-unusedBases)); err != nil {
		return fmt.Errorf("remove bases that are not used: %w", err)
	}
	mark := filepath.Join(c.Base, markPrefix+c.Objects)
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	dir, err := os.MkdirTemp(all, newPrefix)
	if err != nil {
		return fmt.Errorf("make room for the base: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is swept with the bases
	if err := takeFromHost(filepath.Join(c.Base, baseDir), dir, time.Duration(c.WaitMS)*time.Millisecond); err != nil {
		return fmt.Errorf("take the base: %w", err)
	}
	old, err := filepath.Glob(filepath.Join(c.Base, markPrefix+"*"))
	if err != nil {
		return err
	}
	for _, f := range old {
		_ = os.Remove(f) // another kick may do it at the same time
	}
	return os.WriteFile(mark, nil, 0o644)
}

// sweepBases removes bases, and what was to become part of one, that were not used
// since.
func sweepBases(all string, since time.Time) error {
	list, err := os.ReadDir(all)
	if err != nil {
		return err
	}
	for _, d := range list {
		if info, err := d.Info(); err == nil && info.ModTime().Before(since) {
			if err := os.RemoveAll(filepath.Join(all, d.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeFromHost lets the host connect until it has brought what objects lacks.
func takeFromHost(objects, dir string, patience time.Duration) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: linePath, Net: "unix"})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // no file is behind it
	if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("wait for the host: %w", err)
		}
		err = take(c, objects, dir)
		if err == nil {
			return nil
		}
		_ = frame.NewWriter(c).Write(frame.Problem, []byte(clip(err.Error(), 4<<10))) // if it is still there
		// It listens when it has said all; what was not read would end the line before.
		_, _ = io.Copy(io.Discard, c)
		c.Close()
	}
}

// take asks the host for what objects lacks, and puts it there.
func take(c net.Conn, objects, dir string) error {
	in, out := frame.NewReader(c), frame.NewWriter(c)
	list := &parts{in: in, kind: frame.Files}
	var want map[string]int64
	if err := json.NewDecoder(list).Decode(&want); err != nil {
		return fmt.Errorf("read the list: %w", err)
	}
	if _, err := io.Copy(io.Discard, list); err != nil {
		return err
	}
	var lacks []string
	for name, size := range want {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%q is on the list", name)
		}
		if info, err := os.Lstat(filepath.Join(objects, name)); err != nil || info.Size() != size {
			lacks = append(lacks, name)
		}
	}
	if err := json.NewEncoder(out.Stream(frame.Data)).Encode(lacks); err != nil {
		return err
	}
	if err := out.Write(frame.End, nil); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil { // of another try
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	files := &parts{in: in, kind: frame.Files}
	if err := unpack(files, dir); err != nil {
		return err
	}
	if err := adopt(dir, objects, lacks); err != nil {
		return err
	}
	return out.Write(frame.Goodbye, nil)
}

// adopt moves files from one directory to another, when they are on the disk. A pack
// comes into use with its index, so that goes last.
func adopt(from, to string, names []string) error {
	d, err := os.Open(from)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return err
	}
	slices.SortFunc(names, func(a, b string) int {
		if x, y := strings.HasSuffix(a, ".idx"), strings.HasSuffix(b, ".idx"); x != y {
			if x {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// clearWork removes the workspace of a kick from the claim.
func clearWork() error {
	if len(os.Args) != 3 || !filepath.IsAbs(os.Args[2]) {
		return errors.New("clear takes one argument, the directory to remove")
	}
	if err := rmtree.Remove(os.Args[2]); err != nil {
		return sayLast(fmt.Errorf("remove the workspace: %w", err))
	}
	return nil
}
