package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// cgroupParent is the directory, in every hierarchy, that holds one directory
// for each sandbox.
const cgroupParent = "kick"

// collectorGroup ends the name of the group of a kick's second sandbox, which
// is there beside the first one.
const collectorGroup = "-collect"

func groupName(id string, mode frame.Mode) string {
	if mode == frame.CollectMode {
		return id + collectorGroup
	}
	return id
}

// controllers are those that limits need.
var controllers = []string{"memory", "pids", "cpu"}

// cgroupLimits are the limits that a control group is to hold. Zero: none.
type cgroupLimits struct {
	memory    int64
	processes int
	cpus      float64
}

// cgroup is one sandbox's control group: a directory in one hierarchy (version
// 2), or in each controller's (version 1). A lock on each directory, held for
// as long as this process lives, keeps reapers away.
type cgroup struct {
	name   string
	dirs   map[string]string // by controller; version 2 has one for all
	locks  []*os.File
	files  []limitFile
	places []cgroupPlace
}

// limitFile is a limit as it was written, to be read back.
type limitFile struct {
	property, path, value string
}

// cgroupPlace is where a hierarchy shows this group in /proc/PID/cgroup.
type cgroupPlace struct {
	controller string // "" for version 2
	dir        string
}

// hierarchy is one mounted cgroup file system.
type hierarchy struct {
	version     int
	mount       string   // mount point
	own         string   // directory of this process's own group
	controllers []string // version 1
}

// hierarchies finds what is mounted and where this process is in it.
func hierarchies() ([]hierarchy, error) {
	mounts, err := hostMounts()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return findHierarchies(mounts, string(text)), nil
}

func findHierarchies(mounts []mount, self string) []hierarchy {
	var found []hierarchy
	for _, m := range mounts {
		h := hierarchy{mount: m.target}
		switch m.fstype {
		case "cgroup":
			h.version = 1
			for _, c := range controllers {
				if slices.Contains(m.super, c) {
					h.controllers = append(h.controllers, c)
				}
			}
			if len(h.controllers) == 0 {
				continue
			}
		case "cgroup2":
			h.version = 2
		default:
			continue
		}
		own, ok := ownGroup(self, h)
		if !ok {
			continue
		}
		rel, err := filepath.Rel(m.root, own)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			continue // outside of what is mounted
		}
		h.own = filepath.Join(m.target, rel)
		found = append(found, h)
	}
	return found
}

// ownGroup finds this process's group in /proc/self/cgroup, see cgroups(7).
func ownGroup(self string, h hierarchy) (string, bool) {
	for line := range strings.Lines(self) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if h.version == 2 && f[0] == "0" && f[1] == "" {
			return f[2], true
		}
		if h.version == 1 && slices.Contains(strings.Split(f[1], ","), h.controllers[0]) {
			return f[2], true
		}
	}
	return "", false
}

// newCgroup makes a group of that name with as many of the controllers as this
// process may use, and sets the limits. It returns nil when it may use none.
func newCgroup(name string, lim cgroupLimits) (*cgroup, error) {
	hs, err := hierarchies()
	if err != nil {
		return nil, err
	}
	g := &cgroup{name: name, dirs: map[string]string{}}
	for _, h := range hs {
		var err error
		if h.version == 1 {
			err = g.makeV1(h)
		} else {
			err = g.makeV2(h)
		}
		// A hierarchy that is not ours to use leaves its limits to the
		// watchdog; what is said of them later comes from the group itself.
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
			return nil, errors.Join(err, g.remove())
		}
	}
	if len(g.dirs) == 0 {
		return nil, nil
	}
	if err := g.setLimits(lim); err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

func (g *cgroup) makeV1(h hierarchy) error {
	dir := filepath.Join(h.own, cgroupParent, g.name)
	if err := g.makeLocked(dir); err != nil {
		return err
	}
	for _, c := range h.controllers {
		if g.dirs[c] == "" {
			g.dirs[c] = dir
		}
	}
	g.places = append(g.places, cgroupPlace{h.controllers[0], dir})
	return nil
}

// makeV2 looks for the nearest group above this process's own that it may
// divide: a group with processes in it cannot have children with controllers.
func (g *cgroup) makeV2(h hierarchy) error {
	for at := h.own; within(at, []string{h.mount}); at = filepath.Dir(at) {
		isOwn := at == h.own && at != h.mount
		if isOwn || unix.Access(at, unix.W_OK) != nil {
			continue
		}
		var usable []string
		available := readFields(filepath.Join(at, "cgroup.controllers"))
		for _, c := range controllers {
			if slices.Contains(available, c) && g.dirs[c] == "" {
				usable = append(usable, c)
			}
		}
		if len(usable) == 0 {
			continue
		}
		parent := filepath.Join(at, cgroupParent)
		if enableControllers(at, usable) != nil || mkdir(parent) != nil || enableControllers(parent, usable) != nil {
			_ = os.Remove(parent) // stays if another kick uses it
			continue
		}
		dir := filepath.Join(parent, g.name)
		if err := g.makeLocked(dir); err != nil {
			return err
		}
		for _, c := range usable {
			g.dirs[c] = dir
		}
		g.places = append(g.places, cgroupPlace{"", dir})
		return nil
	}
	return nil
}

func enableControllers(dir string, names []string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	enabled := readFields(file)
	for _, c := range names {
		if slices.Contains(enabled, c) {
			continue
		}
		if err := writeFile(file, "+"+c); err != nil {
			return err
		}
	}
	return nil
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// makeLocked makes a directory and locks it. A reaper may lock and remove it
// between the two: then its end is awaited, and the directory made again.
func (g *cgroup) makeLocked(dir string) error {
	for range 100 {
		if err := mkdir(filepath.Dir(dir)); err != nil {
			return err
		}
		if err := mkdir(dir); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return err
		}
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		for until := time.Now().Add(lingers); errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(until); {
			time.Sleep(time.Millisecond)
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		if err != nil {
			f.Close()
			return fmt.Errorf("lock the control group %s: %w", dir, err)
		}
		if now, err := os.Stat(dir); err == nil {
			if mine, err := f.Stat(); err == nil && os.SameFile(now, mine) {
				g.locks = append(g.locks, f)
				return nil
			}
		}
		f.Close()
	}
	return fmt.Errorf("make the control group %s: it is removed again and again", dir)
}

func (g *cgroup) setLimits(lim cgroupLimits) error {
	set := func(property, controller, v1, v2, value string) error {
		dir := g.dirs[controller]
		if dir == "" {
			return nil
		}
		name := v1
		if _, err := os.Stat(filepath.Join(dir, v1)); err != nil {
			name = v2
		}
		file := filepath.Join(dir, name)
		if err := writeFile(file, value); err != nil {
			return fmt.Errorf("set the limit %s: %w", file, err)
		}
		g.files = append(g.files, limitFile{property, file, value})
		return nil
	}
	var errs []error
	if lim.memory > 0 {
		pages := lim.memory / int64(os.Getpagesize()) * int64(os.Getpagesize())
		errs = append(errs, set("memory-limit", "memory", "memory.limit_in_bytes", "memory.max", strconv.FormatInt(pages, 10)))
		if dir := g.dirs["memory"]; dir != "" {
			// Swap would double the limit. Kernels without swap accounting have
			// neither file.
			_ = writeFile(filepath.Join(dir, "memory.memsw.limit_in_bytes"), strconv.FormatInt(pages, 10))
			_ = writeFile(filepath.Join(dir, "memory.swap.max"), "0")
		}
	}
	if lim.processes > 0 {
		errs = append(errs, set("process-limit", "pids", "pids.max", "pids.max", strconv.Itoa(lim.processes+shimThreads)))
	}
	if lim.cpus > 0 {
		const period = 100000 // microseconds, the kernel's own default
		quota := strconv.Itoa(max(1000, int(lim.cpus*period)))
		if _, err := os.Stat(filepath.Join(g.dirs["cpu"], "cpu.max")); err == nil {
			errs = append(errs, set("cpu-limit", "cpu", "cpu.max", "cpu.max", quota+" "+strconv.Itoa(period)))
		} else {
			errs = append(errs, set("cpu-limit", "cpu", "cpu.cfs_quota_us", "cpu.cfs_quota_us", quota))
		}
	}
	return errors.Join(errs...)
}

// add places a process in the group.
func (g *cgroup) add(pid int) error {
	for _, p := range g.places {
		if err := writeFile(filepath.Join(p.dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("join the control group %s: %w", p.dir, err)
		}
	}
	return nil
}

// verify reads back, for one property, that the process is in the group and
// that the limit stands. It returns what is wrong, and the evidence.
func (g *cgroup) verify(property string, pid int) (problem, evidence string) {
	for _, f := range g.files {
		if f.property != property {
			continue
		}
		got := strings.Join(readFields(f.path), " ")
		if got != f.value {
			return fmt.Sprintf("%s is %q, want %q", f.path, got, f.value), ""
		}
		members := readFields(filepath.Join(filepath.Dir(f.path), "cgroup.procs"))
		if !slices.Contains(members, strconv.Itoa(pid)) {
			return fmt.Sprintf("the sandbox is not in the control group %s", filepath.Dir(f.path)), ""
		}
		return "", fmt.Sprintf("cgroup: %s is %s, and the sandbox is in it", f.path, got)
	}
	return "no control group holds the limit", ""
}

// limits reports whether the group holds a limit for the property.
func (g *cgroup) limits(property string) bool {
	return g != nil && slices.ContainsFunc(g.files, func(f limitFile) bool { return f.property == property })
}

// oomKills is how many processes the kernel killed for the memory limit.
func (g *cgroup) oomKills() int64 {
	if g == nil {
		return 0
	}
	return max(g.counter("memory", "memory.oom_control", "oom_kill"), g.counter("memory", "memory.events", "oom_kill"))
}

// forkFailures is how often the process limit refused a process.
func (g *cgroup) forkFailures() int64 {
	if g == nil {
		return 0
	}
	return g.counter("pids", "pids.events", "max")
}

func (g *cgroup) counter(controller, file, key string) int64 {
	f := readFields(filepath.Join(g.dirs[controller], file))
	for i := 0; i+1 < len(f); i += 2 {
		if f[i] == key {
			n, _ := strconv.ParseInt(f[i+1], 10, 64)
			return n
		}
	}
	return 0
}

// peak is what the group used at most, as far as this kernel tells.
func (g *cgroup) peak() Usage {
	var u Usage
	if g == nil {
		return u
	}
	first := func(controller string, files ...string) int64 {
		for _, file := range files {
			if f := readFields(filepath.Join(g.dirs[controller], file)); len(f) == 1 {
				if n, err := strconv.ParseInt(f[0], 10, 64); err == nil {
					return n
				}
			}
		}
		return 0
	}
	if g.dirs["memory"] != "" {
		u.Memory = first("memory", "memory.max_usage_in_bytes", "memory.peak")
	}
	if g.dirs["pids"] != "" {
		u.Processes = int(first("pids", "pids.peak"))
	}
	return u
}

// remove removes the group, which must be empty, and gives up the locks.
func (g *cgroup) remove() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, f := range g.locks {
		errs = append(errs, removeGroup(f.Name()), f.Close())
		_ = os.Remove(filepath.Dir(f.Name())) // stays while other kicks are in it
	}
	g.locks = nil
	return errors.Join(errs...)
}

// removeGroup removes a group whose last process was just waited for. The
// kernel may still be taking that process out of it.
func removeGroup(dir string) error {
	var err error
	for range 1000 {
		err = unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINTR) {
			break
		}
		pause()
	}
	return fmt.Errorf("remove the control group %s: %w", dir, err)
}

func readFields(file string) []string {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(bytes.ToValidUTF8(b, nil)))
}

// writeFile writes to a file of a kernel's file system, which exists.
func writeFile(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
