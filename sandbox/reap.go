package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// reapDepth is how deep below a hierarchy's mount point kick directories are
// looked for: the groups of services and sessions are at most six deep.
const reapDepth = 8

// Reap implements Reaper. Of a kick that died with its launcher only control
// groups are left: everything else goes with the processes, which the kernel
// ends. A group that is locked belongs to a living launcher.
func (e *Embedded) Reap(ctx context.Context) ([]string, error) {
	hs, err := hierarchies()
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "look for control groups", Err: err}
	}
	removed := map[string]bool{}
	var errs []error
	seen := map[string]bool{}
	for _, h := range hs {
		for _, parent := range kickParents(h.mount, reapDepth) {
			if seen[parent] {
				continue
			}
			seen[parent] = true
			if err := context.Cause(ctx); err != nil {
				return names(removed), err
			}
			errs = append(errs, reapParent(parent, removed))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return names(removed), &Error{Kind: ErrRuntime, Op: "remove control groups of dead kicks", Err: err}
	}
	return names(removed), nil
}

func names(set map[string]bool) []string {
	var list []string
	for n := range set {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

// kickParents finds the directories that hold the kicks' groups.
func kickParents(dir string, depth int) []string {
	list, err := os.ReadDir(dir)
	if err != nil || depth == 0 {
		return nil
	}
	var found []string
	for _, d := range list {
		p := filepath.Join(dir, d.Name())
		switch {
		case !d.IsDir():
		case d.Name() == cgroupParent:
			found = append(found, p)
		default:
			found = append(found, kickParents(p, depth-1)...)
		}
	}
	return found
}

func reapParent(parent string, removed map[string]bool) error {
	list, err := os.ReadDir(parent)
	if err != nil {
		return nil // another reaper was faster
	}
	var errs []error
	for _, d := range list {
		id := strings.TrimSuffix(d.Name(), collectorGroup)
		if !d.IsDir() || !idForm.MatchString(id) {
			continue
		}
		ok, err := reapGroup(filepath.Join(parent, d.Name()))
		if ok {
			removed[id] = true
		}
		errs = append(errs, err)
	}
	_ = os.Remove(parent) // stays while something is in it
	return errors.Join(errs...)
}

// reapGroup removes one group if no living launcher holds it.
func reapGroup(dir string) (removed bool, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, nil // gone, or of another user
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return false, nil // its launcher lives
	}
	if unix.Access(filepath.Dir(dir), unix.W_OK) != nil {
		return false, nil // of another user
	}
	// The launcher is dead, and its processes are dying with it. A process that
	// could not be killed by its parent's death, in the instant before it asked
	// for that, is killed here.
	for _, p := range readFields(filepath.Join(dir, "cgroup.procs")) {
		killMember(dir, p)
	}
	if err := removeGroup(dir); err != nil {
		return false, err
	}
	return true, nil
}

// killMember kills a process that is in the group. The descriptor is of one
// process whatever becomes of its number, so the look after it was opened
// decides.
func killMember(dir, pid string) {
	n, err := strconv.Atoi(pid)
	if err != nil || n <= 1 || n == os.Getpid() {
		return
	}
	fd, err := unix.PidfdOpen(n, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if slices.Contains(readFields(filepath.Join(dir, "cgroup.procs")), pid) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// remember notes in a directory for a later reaper where kicks have run: once for
// each content.
func remember[T any](dir string, where T) error {
	b, err := json.Marshal(where)
	if err != nil {
		return err
	}
	file := noteOf(dir, b)
	if _, err := os.Lstat(file); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return installFile(file, b, 0o600)
}

// forget undoes remember.
func forget[T any](dir string, where T) error {
	b, err := json.Marshal(where)
	if err != nil {
		return err
	}
	if err := os.Remove(noteOf(dir, b)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func noteOf(dir string, b []byte) string {
	return filepath.Join(dir, fmt.Sprintf("%x.json", sha256.Sum256(b)))
}

// remembered are the notes that can be read. The error says which cannot.
func remembered[T any](dir string) (notes []T, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, file := range files {
		var where T
		b, rerr := os.ReadFile(file)
		if rerr == nil {
			rerr = json.Unmarshal(b, &where)
		}
		if rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		notes = append(notes, where)
	}
	return notes, err
}
