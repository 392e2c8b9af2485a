package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// watcher looks at the command where the host cannot.
type watcher struct {
	limits *frame.Watch
	over   <-chan struct{} // closed by end when the command is to be ended for a limit
	end    func()
	stop   chan struct{}

	looking sync.WaitGroup

	killed int64 // by the kernel for want of memory, before the command

	mu   sync.Mutex
	used frame.Usage
}

// The shim looks at most every watchMin, at least every watchMax, and as seldom
// as it takes to cost no more than 1/watchShare of one core.
const (
	watchMin   = 200 * time.Millisecond
	watchMax   = 5 * time.Second
	watchShare = 20
)

// watch begins to look, if the host wants it.
func watch(cfg frame.Config) *watcher {
	over := make(chan struct{})
	w := &watcher{limits: cfg.Watch, over: over, end: sync.OnceFunc(func() { close(over) }), stop: make(chan struct{})}
	if w.limits == nil {
		return w
	}
	if w.limits.Kernel {
		w.killed = kernelKills("/proc/vmstat")
	}
	if w.limits.Memory > 0 {
		keepProgram()
	}
	if w.limits.Memory > 0 || w.limits.Uncounted {
		w.looking.Go(w.watchGrowth)
	}
	w.looking.Go(func() {
		for pause := watchMin; ; {
			select {
			case <-w.stop:
				return
			case <-time.After(pause):
			}
			begin := time.Now()
			w.lookAtProcesses()
			if w.lookAtDisk(cfg.WorkDir) {
				w.end()
				return
			}
			pause = min(max(watchMin, watchShare*time.Since(begin)), watchMax)
		}
	})
	return w
}

// Memory and processes grow faster than a directory, so they are looked at more often.
const (
	growthMin = 20 * time.Millisecond
	growthMax = 500 * time.Millisecond
)

func (w *watcher) watchGrowth() {
	for pause := growthMin; ; {
		select {
		case <-w.stop:
			return
		case <-time.After(pause):
		}
		begin := time.Now()
		over := w.limits.Uncounted && w.lookAtProcesses()
		if w.limits.Memory > 0 && w.lookAtMemory() > w.limits.Memory {
			w.mu.Lock()
			w.used.OOMKills++
			w.mu.Unlock()
			over = true
		}
		if over {
			killAll(syscall.SIGKILL) // at once: it would have more each moment
			return
		}
		pause = min(max(growthMin, watchShare*time.Since(begin)), growthMax)
	}
}

// keepProgram has the kernel leave this program's pages in memory once they are read
// (5 MB at most): where memory is short it takes programs' pages first, and who looks
// must not wait for its own. Where that may not be, it looks all the same.
func keepProgram() {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[4] == "0" || strings.Contains(f[1], "w") { // not of a file, or changed and so not taken
			continue
		}
		var from, to uintptr
		if n, _ := fmt.Sscanf(f[0], "%x-%x", &from, &to); n == 2 {
			_, _, _ = unix.Syscall(unix.SYS_MLOCK2, from, to-from, unix.MLOCK_ONFAULT)
		}
	}
}

// lookAtMemory sums the resident private and shared memory of the command's
// processes, in bytes.
func (w *watcher) lookAtMemory() (total int64) {
	for _, pid := range descendants() {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			continue // it has gone
		}
		for line := range bytes.Lines(b) {
			name, value, _ := bytes.Cut(line, []byte(":"))
			if f := bytes.Fields(value); len(f) == 2 && (string(name) == "RssAnon" || string(name) == "RssShmem") {
				n, _ := strconv.ParseInt(string(f[0]), 10, 64) // the kernel's own numbers
				total += n << 10
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used.Memory = max(w.used.Memory, total)
	return total
}

// lookAtEnd takes a command that was killed, as nobody here has, while it and what is
// left of it had most of the memory that they may have, for one that the kernel has
// killed for it.
func (w *watcher) lookAtEnd(ws syscall.WaitStatus, used syscall.Rusage) {
	const byShell = 128 + int(syscall.SIGKILL)
	if w.limits == nil || w.limits.Memory == 0 || !(ws.Signaled() && ws.Signal() == syscall.SIGKILL || ws.ExitStatus() == byShell) {
		return
	}
	if had := used.Maxrss<<10 + w.lookAtMemory(); had >= w.limits.Memory/4*3 {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.used.OOMKills++
		w.used.Memory = max(w.used.Memory, min(had, w.limits.Memory))
	}
}

// finish tells all that was seen, nil where nobody asked. A command that failed may
// have done so for want of space, so the workspace is measured a last time.
func (w *watcher) finish(cfg frame.Config, failed bool) *frame.Usage {
	close(w.stop)
	w.looking.Wait()
	if w.limits == nil {
		return nil
	}
	if failed {
		w.lookAtDisk(cfg.WorkDir)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	peak, kills := memoryCounters("/sys/fs/cgroup")
	w.used.Memory, w.used.OOMKills = max(w.used.Memory, peak), w.used.OOMKills+kills
	if w.limits.Kernel {
		w.used.OOMKills += kernelKills("/proc/vmstat") - w.killed
	}
	return &w.used
}

// lookAtProcesses counts processes and threads, but for this process's, and reports
// whether they are as many as there may be.
func (w *watcher) lookAtProcesses() (full bool) {
	if w.limits == nil {
		return false
	}
	n := 0
	if os.Getpid() != 1 {
		// Others of the sandbox are no business of this command.
		for _, pid := range descendants() {
			if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil {
				n += threads(b)
			}
		}
		return w.note(n)
	}
	for _, dir := range glob("/proc/[0-9]*") {
		if dir == "/proc/1" {
			continue
		}
		if b, err := os.ReadFile(dir + "/stat"); err == nil && !fromOutside(b) {
			n += threads(b)
		}
	}
	return w.note(n)
}

// note takes how many processes and threads there are.
func (w *watcher) note(n int) (full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used.Processes = max(w.used.Processes, n)
	full = w.limits.Processes > 0 && n >= w.limits.Processes
	w.used.Full = w.used.Full || full
	return full
}

// inodeCost is what is counted for a file beside its blocks, as the host does.
const inodeCost = 512

// lookAtDisk measures the workspace, and reports whether it is over its limit. What the
// agent has locked is opened for as long as that takes, as the host does it.
func (w *watcher) lookAtDisk(dir string) bool {
	if w.limits.Disk == 0 {
		return false
	}
	if info, err := os.Lstat(dir); err == nil && locked(info) && os.Chmod(dir, info.Mode()|0o500) == nil {
		defer func() { _ = os.Chmod(dir, info.Mode()) }()
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false
	}
	defer root.Close()
	total := unnamed(root)
	deep := false
	opened := map[string]fs.FileMode{}
	_ = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it has gone, or is locked a moment ago: the next look sees it
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				total += st.Blocks*512 + inodeCost
			}
			if locked(info) && root.Chmod(name, info.Mode()|0o500) == nil {
				opened[name] = info.Mode()
			}
		}
		if deep = deep || bytes.Count([]byte(name), []byte("/")) > maxDepth; deep {
			return fs.SkipAll
		}
		return nil
	})
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(opened))) { // what is within, first
		_ = root.Chmod(name, opened[name])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used.Disk = max(w.used.Disk, total)
	w.used.DiskLimit = w.used.DiskLimit || deep || total > w.limits.Disk
	return w.used.DiskLimit
}

// locked tells a directory that its owner cannot look into.
func locked(info fs.FileInfo) bool { return info.IsDir() && info.Mode().Perm()&0o500 != 0o500 }

// unnamed is the space of files of a directory's file system that processes of the
// sandbox have open and that have no name any more, so that no walk finds them. It does
// not see those of a process that has made itself unreadable.
func unnamed(root *os.Root) (total int64) {
	info, err := root.Stat(".")
	if err != nil {
		return 0
	}
	dir, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	seen := map[uint64]bool{}
	for _, pid := range descendants() {
		for _, fd := range glob("/proc/" + strconv.Itoa(pid) + "/fd/*") {
			var st syscall.Stat_t
			if syscall.Stat(fd, &st) == nil && st.Nlink == 0 && st.Mode&syscall.S_IFMT == syscall.S_IFREG && st.Dev == dir.Dev && !seen[st.Ino] {
				seen[st.Ino] = true
				total += st.Blocks*512 + inodeCost
			}
		}
	}
	return total
}

// statFields are those of /proc/PID/stat after the name in parentheses, which may
// hold anything.
func statFields(stat []byte) [][]byte {
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
}

// fromOutside tells a process that was put into the sandbox from outside: its
// parent is in no process namespace that is seen here. What is started in the
// sandbox has a parent there, process 1 at the last.
func fromOutside(stat []byte) bool {
	f := statFields(stat)
	return len(f) > 1 && string(f[1]) == "0"
}

func threads(stat []byte) int {
	f := statFields(stat)
	if len(f) < 18 {
		return 1
	}
	n, err := strconv.Atoi(string(f[17]))
	if err != nil {
		return 1
	}
	return n
}

func glob(pattern string) []string {
	found, _ := filepath.Glob(pattern) // the patterns are ours and well formed
	return found
}

// memoryCounters reads what the control group has counted, of either version.
func memoryCounters(dir string) (peak, kills int64) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return ""
		}
		return string(bytes.TrimSpace(b))
	}
	for _, name := range []string{"memory.peak", "memory/memory.max_usage_in_bytes"} {
		if v, err := strconv.ParseInt(read(name), 10, 64); err == nil {
			peak = v
		}
	}
	for _, name := range []string{"memory.events", "memory/memory.oom_control"} {
		if n, ok := oomKills(read(name)); ok {
			kills = n
		}
	}
	return peak, kills
}

// oomKills finds the kernel's count among names and numbers.
func oomKills(text string) (n int64, ok bool) {
	f := strings.Fields(text)
	for i := 0; i+1 < len(f); i += 2 {
		if f[i] == "oom_kill" {
			n, err := strconv.ParseInt(f[i+1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// kernelKills is how many processes the kernel has killed for want of memory.
func kernelKills(vmstat string) int64 {
	b, err := os.ReadFile(vmstat)
	if err != nil {
		return 0
	}
	n, _ := oomKills(string(b)) // a kernel before 4.13 does not count
	return n
}
