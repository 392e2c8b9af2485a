package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pause waits for the kernel to finish what cannot be waited for.
func pause() { time.Sleep(2 * time.Millisecond) }

// watchdog holds a sandbox to the limits that the kernel does not enforce for
// this user: it looks, and says when a limit is reached.
type watchdog struct {
	mu        sync.Mutex // held while looking
	pid       int
	memory    int64  // bytes; 0: the kernel does it, or there is no limit
	processes int    // as memory
	disk      int64  // bytes; 0: no limit
	workspace string // host path, empty: none on disk
	peak      Usage
	// reserve is the memory in bytes that the host must have left; 0: whatever.
	reserve int64
	// diskReserve is what the workspace's file system must have left, if that
	// is more than it must have anyway.
	diskReserve int64
	// lost says when the runtime has lost the sandbox, or sight of it.
	lost <-chan loss
	// full tells that the process limit was seen reached.
	full bool
	// why says more of the limit that was reached or of the loss, where there is
	// more to say, and remedy what to do about a loss.
	why, remedy string
}

// loss is how a runtime has lost a sandbox, and what to do about it.
type loss struct {
	reason      Reason
	why, remedy string
}

// Each watcher looks at most so often, and seldom enough to cost no more than
// the fraction 1/watchShare of one core.
const (
	watchMin       = 50 * time.Millisecond
	watchMaxMemory = 500 * time.Millisecond
	watchMaxDisk   = 5 * time.Second
	watchShare     = 20
)

// run looks until ctx ends, and calls exceeded at most once.
func (w *watchdog) run(ctx context.Context, exceeded func(Reason)) {
	var memory, disk, host <-chan time.Time
	if w.memory > 0 || w.processes > 0 {
		memory = time.After(watchMin)
	}
	if w.disk > 0 && w.workspace != "" {
		disk = time.After(0)
	}
	if w.reserve > 0 {
		t := time.NewTicker(watchMin)
		defer t.Stop()
		host = t.C
	}
	var pace diskPace
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-w.lost:
			w.say(l.why)
			w.remedy = l.remedy
			exceeded(l.reason)
			return
		case <-memory:
			begin := time.Now()
			if w.lookAtProcesses() {
				exceeded(ReasonOutOfMemory)
				return
			}
			memory = time.After(interval(time.Since(begin), watchMaxMemory))
		case <-host:
			if left, ok := hostMemory("MemAvailable"); ok && left < w.reserve {
				w.say(fmt.Sprintf("the host had %d bytes of memory left, less than the %d that are kept for others", left, w.reserve))
				exceeded(ReasonOutOfMemory)
				return
			}
		case <-disk:
			if w.diskExceeded(ctx, &pace) {
				exceeded(ReasonDiskLimit)
				return
			}
			disk = time.After(watchMin)
		}
	}
}

// diskExceeded looks at the file system of the workspace, which costs one call,
// and measures the workspace where pace says so.
func (w *watchdog) diskExceeded(ctx context.Context, pace *diskPace) bool {
	space, err := spaceOf(w.workspace)
	if err != nil {
		return false // the directory is gone
	}
	if reserve := max(space.reserve, w.diskReserve); space.left < reserve {
		w.say(fmt.Sprintf("the file system of the workspace had %d bytes left, less than the %d that are kept for others", space.left, reserve))
		return true
	}
	begin := time.Now()
	if !pace.due(begin, space.used, w.disk) {
		return false
	}
	total, exceeded := w.lookAtDisk(ctx)
	*pace = diskPace{next: begin.Add(interval(time.Since(begin), watchMaxDisk)), last: begin.Add(watchMaxDisk), total: total, used: space.used}
	return exceeded
}

// diskPace decides when a workspace is measured again, which takes a walk
// through all of it: when its file system has filled by half of what the
// workspace may still take, and after watchMaxDisk at the latest, since others
// may have freed meanwhile what it took.
type diskPace struct {
	next, last  time.Time // not before, and not after; zero: at once
	total, used int64     // bytes of the workspace and of its file system, when it was measured
}

func (p *diskPace) due(now time.Time, used, limit int64) bool {
	return now.After(p.last) || now.After(p.next) && used-p.used > (limit-p.total)/2
}

func (w *watchdog) say(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why = why
}

// limitMemory has the watchdog hold a memory limit, in bytes, since the kernel
// does not. 0: there is none.
func (w *watchdog) limitMemory(limit int64) {
	if w.memory = limit; limit > 0 {
		w.reserve = hostReserve()
	}
}

// memoryEvidence and diskEvidence say how the watchdog holds a limit.
func memoryEvidence(l Limits, reserve int64) string {
	return fmt.Sprintf("watchdog: at most %d bytes of resident and shared memory, looked at at least every %v; %d bytes are left to the host", l.Memory, watchMaxMemory, reserve)
}

func diskEvidence(s LaunchSpec, l Limits) string {
	if s.Workspace.Dir == "" {
		return "tmpfs sizes"
	}
	return fmt.Sprintf("poller: at most %d bytes in the workspace, measured at least every %v and when its file system fills; tmpfs sizes for the rest", l.Disk, watchMaxDisk)
}

// hostReserve is how much memory is kept free for the rest of the host. What a
// process holds without having it mapped (files in memory, segments of System
// V, buffers of sockets) is no process's in /proc, so an agent can take more
// than its limit unseen. It shall not be the kernel that then looks for a
// victim: the agent looks small to it.
func hostReserve() int64 {
	total, _ := hostMemory("MemTotal")
	return min(max(total/32, 64<<20), 1<<30)
}

// hostMemory reads a line of /proc/meminfo, in bytes.
func hostMemory(name string) (int64, bool) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return kilobytes(strings.TrimSpace(value)), true
		}
	}
	return 0, false
}

// space is that of a file system, in bytes. A file that is open and has no name
// any more takes space that no walk finds, so the sum over a workspace is not
// all that an agent can take.
type space struct {
	used    int64 // with inodeCost for each file
	left    int64
	reserve int64 // of what is left, kept for others
}

func spaceOf(dir string) (space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return space{}, err
	}
	return space{
		used:    int64(s.Blocks-s.Bfree)*s.Bsize + int64(s.Files-s.Ffree)*inodeCost,
		left:    int64(s.Bavail) * s.Bsize,
		reserve: min(int64(s.Blocks)*s.Bsize/50, 1<<30),
	}, nil
}

func interval(cost, longest time.Duration) time.Duration {
	return min(max(cost*watchShare, watchMin), longest)
}

// lookAtProcesses sums up what the sandbox's processes hold, and reports
// whether it is more than the memory limit.
func (w *watchdog) lookAtProcesses() bool {
	if w.pid == 0 {
		return false // the sandbox is on another host
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	u := processUsage(w.pid)
	for _, dir := range []string{"/tmp", HomeDir, "/dev/shm"} {
		u.Memory += tmpfsUsage(filepath.Join("/proc", strconv.Itoa(w.pid), "root", dir))
	}
	w.peak.Memory = max(w.peak.Memory, u.Memory)
	w.peak.Processes = max(w.peak.Processes, u.Processes)
	if w.processes > 0 && u.Processes >= w.processes {
		w.full = true
	}
	return w.memory > 0 && u.Memory > w.memory
}

// lookAtDisk measures the workspace, in bytes, and reports whether that is more
// than allowed.
func (w *watchdog) lookAtDisk(ctx context.Context) (total int64, exceeded bool) {
	if w.workspace == "" {
		return 0, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	total, err := diskUsage(ctx, w.workspace)
	if errors.Is(err, errTooDeep) {
		w.why = err.Error() + " in the workspace, which cannot be measured"
		return total, true // what cannot be measured is over the limit
	}
	if err != nil {
		return total, false // the time is up, or the directory is gone
	}
	w.peak.Disk = max(w.peak.Disk, total)
	return total, w.disk > 0 && total > w.disk
}

// processUsage sums the resident private and shared memory, and the threads, of
// all processes that descend from pid, without pid itself.
func processUsage(pid int) Usage {
	parents := map[int]int{}
	d, err := os.Open("/proc")
	if err != nil {
		return Usage{}
	}
	names, _ := d.Readdirnames(-1)
	d.Close()
	for _, name := range names {
		p, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if parent, ok := parentOf(p); ok {
			parents[p] = parent
		}
	}
	var u Usage
	for p := range parents {
		if p == pid || !descends(p, pid, parents) {
			continue
		}
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/status")
		if err != nil {
			continue // it has ended
		}
		f := parseStatus(string(b))
		u.Memory += kilobytes(f["RssAnon"]) + kilobytes(f["RssShmem"])
		threads, _ := strconv.Atoi(f["Threads"])
		u.Processes += threads
	}
	return u
}

func descends(p, ancestor int, parents map[int]int) bool {
	for range len(parents) { // a table read while it changes may have a loop
		if p == ancestor {
			return true
		}
		next, ok := parents[p]
		if !ok || next == 0 {
			return false
		}
		p = next
	}
	return false
}

// parentOf reads the fourth field of /proc/PID/stat, after the name in
// parentheses, which may hold anything.
func parentOf(pid int) (int, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 2 {
		return 0, false
	}
	n, err := strconv.Atoi(f[1])
	return n, err == nil
}

// kilobytes parses "123 kB".
func kilobytes(s string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(s, " kB"), 10, 64)
	return n << 10
}

// tmpfsUsage is what a tmpfs holds, in bytes. It must be a mount point: the
// agent can replace no part of the path to one.
func tmpfsUsage(dir string) int64 {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil || s.Type != unix.TMPFS_MAGIC {
		return 0
	}
	return int64(s.Blocks-s.Bfree)*s.Bsize + int64(s.Files-s.Ffree)*tmpfsInode
}

// tmpfsInode is the kernel memory of an empty file in a tmpfs: its inode and
// its name (struct shmem_inode_info and dentry, 64-bit, rounded).
const tmpfsInode = 1 << 10

// inodeCost is what is counted for a file beside its blocks, so that very many
// empty files count too. It is the size of an inode on ext4 and XFS.
const inodeCost = 512

// diskUsage sums what the files below dir occupy. Directories are opened one
// from another without following any link, since what is below belongs to an
// agent that may be moving it around; hard links count each time.
func diskUsage(ctx context.Context, dir string) (int64, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var total int64
	err = walkNoFollow(ctx, os.NewFile(uintptr(fd), dir), 0, func(parent int, name string, st *unix.Stat_t) error {
		total += st.Blocks*512 + inodeCost
		return nil
	})
	return total, err
}

// maxDepth is how deep a tree is walked. Every level holds a descriptor; paths
// in a git repository are at most 4096 bytes.
const maxDepth = 256

var errTooDeep = errors.New("directories are nested more than 256 deep")

// walkNoFollow visits everything below the open directory d, which it closes,
// and nothing outside of it. Entries that vanish are left out.
func walkNoFollow(ctx context.Context, d *os.File, depth int, visit func(parent int, name string, st *unix.Stat_t) error) error {
	defer d.Close()
	if depth > maxDepth {
		return errTooDeep
	}
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		names, err := d.Readdirnames(512)
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			if err := visit(int(d.Fd()), name, &st); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			fd, lock, err := openBelow(int(d.Fd()), name, &st)
			if err != nil {
				continue
			}
			err = walkNoFollow(ctx, os.NewFile(uintptr(fd), name), depth+1, visit)
			lock()
			if err != nil {
				return err
			}
		}
		if err != nil || len(names) == 0 {
			return nil // io.EOF, or a directory that went away
		}
	}
}

// openBelow opens a directory. One that its owner may not enter shall hide
// nothing: its mode is another until lock is called.
func openBelow(parent int, name string, st *unix.Stat_t) (fd int, lock func(), err error) {
	if st.Mode&0o500 == 0o500 {
		fd, err = unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		return fd, func() {}, err
	}
	path, err := unix.Openat(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	self := "/proc/self/fd/" + strconv.Itoa(path)
	if err := unix.Chmod(self, st.Mode&0o7777|0o500); err != nil {
		unix.Close(path)
		return -1, nil, err
	}
	lock = func() {
		_ = unix.Chmod(self, st.Mode&0o7777) // it may be gone
		unix.Close(path)
	}
	fd, err = unix.Openat(path, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		lock()
	}
	return fd, lock, err
}

// openUp lets the owner of a tree read it, where an agent took that right away:
// what its owner cannot read cannot be collected, and would be lost. It is for
// a tree that nobody writes to any more. What it cannot change it leaves; the
// collector says what it cannot read.
func openUp(ctx context.Context, dir string) {
	open := func(parent int, name string, st *unix.Stat_t) error {
		need := uint32(0o400)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			need = 0o700
		}
		if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFDIR && kind != unix.S_IFREG || st.Mode&need == need {
			return nil
		}
		// Through a descriptor, so that it is this very file's mode and no
		// other's that a link leads to.
		fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		defer unix.Close(fd)
		var now unix.Stat_t
		if unix.Fstat(fd, &now) == nil && now.Ino == st.Ino && now.Mode == st.Mode {
			if unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), now.Mode&0o7777|need) == nil {
				st.Mode |= need // so that the walk does not undo it
			}
		}
		return nil
	}
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	_ = open(unix.AT_FDCWD, dir, &st)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	_ = walkNoFollow(ctx, os.NewFile(uintptr(fd), dir), 0, open)
}

// chownTree gives a directory and what is in it to a user, links themselves
// and not what they point to.
func chownTree(ctx context.Context, dir string, uid, gid int) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	d := os.NewFile(uintptr(fd), dir)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) == uid && int(st.Gid) == gid {
		d.Close()
		return err
	}
	root, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		d.Close()
		return err
	}
	defer unix.Close(root)
	err = walkNoFollow(ctx, d, 0, func(parent int, name string, st *unix.Stat_t) error {
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
			return &os.PathError{Op: "chown", Path: filepath.Join(dir, name), Err: errors.New("the file has other names outside or inside of the workspace (hard links)")}
		}
		return unix.Fchownat(parent, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return err
	}
	// Last, so that a tree that was left half done is done again.
	return unix.Fchown(root, uid, gid)
}
