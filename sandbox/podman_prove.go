package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// The host's proof of a container's isolation. Podman is believed in nothing:
// everything is read from the live first process, as for the embedded runtime,
// and a property of the same name means the same.

// PodmanProperties are the names of what the Podman launcher proves of every
// sandbox, in the order of Isolation.Properties.
var PodmanProperties = []string{
	"user-namespace", "mount-namespace", "pid-namespace", "network-namespace", "ipc-namespace", "uts-namespace",
	"cgroup-namespace", "uid-mapping", "unprivileged-user", "supplementary-groups", "capabilities",
	"no-new-privileges", "seccomp", "mounts", "read-only-mounts", "nosuid-mounts", "nodev-mounts", "noexec-mounts",
	"proc", "no-network", "descriptors", "environment", "shim", "rlimits", "seccomp-rules",
	"memory-limit", "process-limit", "cpu-limit", "disk-limit",
}

func (b *podmanBox) prove(r frame.Readiness) ([]Property, error) {
	if _, guest := guestRuntime(b.engine); guest {
		return b.proveGuest(r), nil
	}
	proc := "/proc/" + strconv.Itoa(b.pid)
	if err := unwritable(path.Join(proc, "root"), b.plan); err != nil {
		return nil, err
	}
	p := &prover{s: subject{
		proc:    proc,
		hostUID: b.plan.hostUID,
		hostGID: b.plan.hostGID,
		groups:  []int{b.plan.hostGID},
		shim:    b.plan.shim,
		rlimits: b.plan.rlimits,
		// Those that the service itself is under, Podman's and the shim's.
		filters:   conmonFilters(proc) + 2,
		readiness: r,
	}}
	p.namespaces()
	p.podmanMapping()
	p.status()
	p.podmanMounts(b.plan)
	p.podmanNetwork(b.plan)
	p.podmanDescriptors()
	p.environment()
	p.executable()
	p.limits()
	p.probes()
	p.advise(podmanRemedies)
	return append(p.props, b.limitProperties()...), nil
}

// unwritable finds a file system in memory that the agent could not write to.
// runc 1.1 gives it the mode of the image's directory below it, whatever mode
// was asked for.
func unwritable(root string, plan *podmanPlan) error {
	for _, m := range plan.create.Mounts {
		if m.Type != "tmpfs" {
			continue
		}
		st, err := statInside(root, m.Destination)
		if errors.Is(err, unix.ELOOP) {
			return &Error{Kind: ErrRuntime, Op: "use the image " + plan.image.pinned, Err: fmt.Errorf("its %s, or a directory above that, is a link", m.Destination), Remedy: "Make it a directory in the image, or leave it out"}
		}
		if err != nil {
			return &Error{Kind: ErrRuntime, Op: "look at " + m.Destination + " in the container", Err: err}
		}
		if mode := st.Mode & 0o7777; mode&0o002 == 0 {
			return &Error{Kind: ErrRuntime, Op: "use the image " + plan.image.pinned, Err: fmt.Errorf("its directory %s has mode %04o, and the OCI runtime gives that to what is mounted there: the agent could not write to it", m.Destination, mode),
				Remedy: "Give the directory mode 1777 in the image, or leave it out"}
		}
	}
	return nil
}

// statInside looks at a path of a container by its root, and follows no link: an
// absolute one of the image would lead to the host's own files.
func statInside(root, name string) (st unix.Stat_t, err error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return st, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, strings.TrimPrefix(name, "/"), &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return st, &os.PathError{Op: "open", Path: path.Join(root, name), Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return st, &os.PathError{Op: "stat", Path: path.Join(root, name), Err: err}
	}
	return st, nil
}

// conmonOf is the process that Podman has put beside the container: its parent.
func conmonOf(proc string) string {
	b, err := os.ReadFile(path.Join(proc, "status"))
	if err != nil {
		return ""
	}
	return "/proc/" + parseStatus(string(b))["PPid"]
}

func conmonFilters(proc string) int {
	b, err := os.ReadFile(path.Join(conmonOf(proc), "status"))
	if err != nil {
		return 0 // then the count is not as it should be
	}
	n, _ := strconv.Atoi(parseStatus(string(b))["Seccomp_filters"])
	return n
}

// podmanMapping wants the sandbox's user to be the one that the workspace
// belongs to, and no id of the container to be the host's root.
func (p *prover) podmanMapping() {
	var seen []string
	problem := ""
	for _, m := range []struct {
		file         string
		inside, host int
	}{{"uid_map", containerUID, p.s.hostUID}, {"gid_map", containerGID, p.s.hostGID}} {
		text, bad := p.read(m.file)
		problem += bad
		found := -1
		for line := range strings.Lines(text) {
			var inside, host, count int
			if _, err := fmt.Sscan(line, &inside, &host, &count); err != nil {
				problem = fmt.Sprintf("%s has the line %q", m.file, line)
			}
			if host == 0 {
				problem = fmt.Sprintf("%s maps the host's root: %q", m.file, line)
			}
			if m.inside >= inside && m.inside < inside+count {
				found = host + m.inside - inside
			}
		}
		if problem == "" && found != m.host {
			problem = fmt.Sprintf("%s maps %d to %d, want %d", m.file, m.inside, found, m.host)
		}
		seen = append(seen, fmt.Sprintf("%s maps %d to %d", m.file, m.inside, found))
	}
	p.add("uid-mapping", problem, strings.Join(seen, ", ")+"; the host's root is not mapped")
}

// podmanDescriptors wants nothing open but three pipes, whose other ends are
// those of the process that Podman has put beside the container.
func (p *prover) podmanDescriptors() {
	list, err := os.ReadDir(path.Join(p.s.proc, "fd"))
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem == "" && len(list) != 3 {
		problem = fmt.Sprintf("%d descriptors are open, want 3", len(list))
	}
	theirs := map[string]bool{}
	for _, fd := range globbed(path.Join(conmonOf(p.s.proc), "fd", "*")) {
		theirs[readLink(fd)] = true
	}
	for i := range 3 {
		l := readLink(path.Join(p.s.proc, "fd", strconv.Itoa(i)))
		if problem == "" && (!strings.HasPrefix(l, "pipe:[") || !theirs[l]) {
			problem = fmt.Sprintf("descriptor %d is %q, want a pipe to Podman's process", i, l)
		}
	}
	p.add("descriptors", problem, "fd: three pipes to Podman's process and nothing else")
}

func globbed(pattern string) []string {
	found, _ := filepath.Glob(pattern) // the patterns are ours and well formed
	return found
}

func readLink(p string) string {
	to, err := os.Readlink(p)
	if err != nil {
		return err.Error()
	}
	return to
}

// podmanFiles are the files that Podman makes for a container and mounts into
// it, read-only.
var podmanFiles = []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/etc/group", "/run/.containerenv"}

// podmanMounts wants the mounts of the plan, what a container has of its own,
// and no other.
func (p *prover) podmanMounts(plan *podmanPlan) {
	p.mountTable("all as planned or a container's own", func(got, host []mount) []mountProblem {
		return compareContainer(got, host, plan, path.Join(p.s.proc, "root"))
	})
}

// compareContainer compares a container's mounts with the plan.
func compareContainer(got, host []mount, plan *podmanPlan, root string) (problems []mountProblem) {
	report := func(property, format string, args ...any) {
		problems = append(problems, mountProblem{property, fmt.Sprintf(format, args...)})
	}
	planned := map[string]frame.Entry{}
	for _, m := range plan.create.Mounts {
		e := frame.Entry{Kind: frame.EntryKind(m.Type), Path: m.Destination, Source: m.Source, NoSuid: true, NoDev: true,
			ReadOnly: slices.Contains(m.Options, "ro"), NoExec: slices.Contains(m.Options, "noexec")}
		planned[m.Destination] = e
	}
	seen := map[string]bool{}
	for _, m := range got {
		if seen[m.target] && !covered(m) { // Podman covers some of the plan's by itself too
			report("mounts", "%s is mounted twice", m.target)
		}
		seen[m.target] = true
		if e, ok := planned[m.target]; ok {
			compareMount(m, e, report)
			if e.Kind == frame.BindEntry && !sameFile(e.Source, root, m.target) {
				report("mounts", "%s is not %s", m.target, e.Source)
			}
			continue
		}
		compareOwn(m, host, report)
	}
	for target := range planned {
		if !seen[target] {
			report("mounts", "%s should be mounted and is not", target)
		}
	}
	for _, f := range plan.create.Mask {
		if !seen[f] {
			report("proc", "%s is not covered", f)
		}
	}
	for _, f := range []string{"/", "/proc", "/dev"} {
		if !seen[f] {
			report("mounts", "%s should be mounted and is not", f)
		}
	}
	return problems
}

// compareOwn looks at a mount that the OCI runtime makes in every container.
func compareOwn(m mount, host []mount, report func(property, format string, args ...any)) {
	masked := covered(m)
	readOnly := func() {
		if !m.has("ro") {
			report("read-only-mounts", "%s is mounted without ro", m.target)
		}
	}
	is := func(fstype string) {
		if m.fstype != fstype {
			report("mounts", "%s is a %s, want a %s", m.target, m.fstype, fstype)
		}
	}
	noSuid := func() {
		if !m.has("nosuid") {
			report("nosuid-mounts", "%s is mounted without nosuid", m.target)
		}
	}
	switch t := m.target; {
	case t == "/":
		readOnly()
	case t == "/proc":
		if m.fstype != "proc" || m.root != "/" || slices.ContainsFunc(host, func(h mount) bool { return h.fstype == "proc" && h.device == m.device }) {
			report("proc", "%s is not the container's own", t)
		}
		if !m.has("noexec") {
			report("noexec-mounts", "%s is mounted without noexec", t)
		}
		noSuid()
	case strings.HasPrefix(t, "/proc/") && masked:
	case strings.HasPrefix(t, "/proc/"):
		if m.fstype != "proc" {
			report("proc", "%s is a %s", t, m.fstype)
		}
		readOnly()
	case t == "/dev":
		is("tmpfs")
		noSuid()
	case t == "/dev/pts":
		is("devpts")
		noSuid()
	case t == "/dev/mqueue":
		is("mqueue")
		noSuid()
	case t == "/dev/shm":
		is("tmpfs")
		noSuid()
		if !m.has("nodev") {
			report("nodev-mounts", "%s is mounted without nodev", t)
		}
	case slices.Contains(devices, strings.TrimPrefix(t, "/dev/")):
		// In a user namespace devices cannot be made, so the host's are bound.
		if m.root != strings.TrimPrefix(t, "/dev") {
			report("mounts", "%s is the host's %s", t, m.root)
		}
	case t == "/sys":
		is("sysfs")
		readOnly()
	case t == "/sys/fs/cgroup" && m.fstype == "tmpfs":
		// The directory of the hierarchies on version 1; it is user 0's.
		noSuid()
	case strings.HasPrefix(t, "/sys/fs/cgroup"):
		if !strings.HasPrefix(m.fstype, "cgroup") {
			report("mounts", "%s is a %s", t, m.fstype)
		}
		readOnly()
	case strings.HasPrefix(t, "/sys/") && masked:
	case slices.Contains(podmanFiles, t):
		readOnly()
	case t == "/run/secrets":
		report("mounts", "%s shows secrets of the host (mounts.conf of containers)", t)
	default:
		report("mounts", "%s (%s, %s of device %s) is mounted and should not be", t, m.fstype, m.root, m.device)
	}
}

// covered tells a mount that hides what is below: an empty directory or
// /dev/null.
func covered(m mount) bool {
	return m.fstype == "tmpfs" && m.has("ro") && (strings.HasPrefix(m.target, "/proc/") || strings.HasPrefix(m.target, "/sys/")) || m.root == "/null"
}

// sameFile tells whether a path of a container is that file of the host.
func sameFile(source, root, target string) bool {
	var x unix.Stat_t
	if unix.Stat(source, &x) != nil {
		return false
	}
	y, err := statInside(root, target)
	return err == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// limitProperties tells how each limit is enforced: by a control group that the
// container is in, Podman's or one above it, else by the watchdog.
func (b *podmanBox) limitProperties() []Property {
	l, g := b.plan.limits, groupsOf(b.pid) // as it is now
	limit := func(name string, none bool, most float64, otherwise string) Property {
		if none {
			return Property{Name: name, Status: NotRequested}
		}
		if evidence, ok := g.holds(name, most); ok {
			return Property{Name: name, Status: Enforced, Evidence: evidence}
		}
		if b.plan.service.limits[name] || otherwise == "" {
			return Property{Name: name, Status: Missing, Evidence: fmt.Sprintf("no control group of the container holds it to %v", most), Remedy: podmanRemedies[name]}
		}
		return Property{Name: name, Status: Enforced, Evidence: otherwise}
	}
	memory := memoryEvidence(l, b.dog.reserve)
	processes := fmt.Sprintf("RLIMIT_NPROC in the container's user namespace is %d; %d of it for the shim's threads", l.Processes+shimThreads, shimThreads)
	if _, guest := guestRuntime(b.engine); guest {
		memory, processes = "", "" // what is in it is no process of the host's
	}
	disk := Property{Name: "disk-limit", Status: Enforced, Evidence: diskEvidence(b.plan.spec, l)}
	if l.Disk == 0 {
		disk = Property{Name: "disk-limit", Status: NotRequested}
	}
	return []Property{
		limit("memory-limit", l.Memory == 0, float64(l.Memory), memory),
		limit("process-limit", l.Processes == 0, float64(b.plan.processLimit(b.engine)), processes),
		limit("cpu-limit", l.CPUs == 0, l.CPUs, ""),
		disk,
	}
}

// podmanRemedies say what to do about limits that this Podman cannot set, and about
// what its configuration or the image adds to every container.
var podmanRemedies = map[string]string{
	"supplementary-groups": "Look for users and groups named 65532 or agent in the image's /etc/passwd and /etc/group, and take them out",
	"nosuid-mounts":        "crun 1.8, Debian 12's, loses this on writable mounts: use runc or a newer crun, or name a workspace_dir on a file system that is mounted with nosuid and nodev",
	"nodev-mounts":         "crun 1.8, Debian 12's, loses this on writable mounts: use runc or a newer crun, or name a workspace_dir on a file system that is mounted with nosuid and nodev",
	"mounts":               "See what adds it: volumes, devices or mounts in containers.conf, a mounts.conf, a hook of the OCI runtime, or a link in the image where something is to be mounted",
	"memory-limit":         "Delegate the memory controller to the service (Delegate=yes in its unit), or run it rootful",
	"process-limit":        "Delegate the pids controller to the service (Delegate=yes in its unit), or run it rootful",
	"cpu-limit":            "Rootless Podman cannot limit processors on control groups of version 1: start the service in a control group that is limited, run it rootful, or set no CPU limit",
}

// holds finds a control group that holds a limit to most, at or above the
// process's own.
func (g groups) holds(name string, most float64) (evidence string, ok bool) {
	for _, dir := range g.dirs[limitControllers[name]] {
		for _, f := range limitFiles[name] {
			v, text := readLimit(filepath.Join(dir, f))
			if v >= 0 && v <= most {
				return fmt.Sprintf("cgroup: %s is %s, and the container is in it", filepath.Join(dir, f), text), true
			}
		}
	}
	return "", false
}

// limitFiles hold the limits, on version 1 and 2.
var limitFiles = map[string][]string{
	"memory-limit":  {"memory.limit_in_bytes", "memory.max"},
	"process-limit": {"pids.max"},
	"cpu-limit":     {"cpu.cfs_quota_us", "cpu.max"},
}

// readLimit reads a limit; -1 if there is none. That of processors is a quota in
// a period, on version 1 in a file of its own.
func readLimit(file string) (v float64, text string) {
	f := readFields(file)
	if strings.HasSuffix(file, "cpu.cfs_quota_us") {
		f = append(f, readFields(filepath.Join(filepath.Dir(file), "cpu.cfs_period_us"))...)
	}
	if len(f) == 0 || len(f) > 2 {
		return -1, ""
	}
	v, err := strconv.ParseFloat(f[0], 64)
	if err != nil || v < 0 {
		return -1, "" // "max"
	}
	if len(f) == 2 {
		period, err := strconv.ParseFloat(f[1], 64)
		if err != nil || period <= 0 {
			return -1, ""
		}
		v /= period
	}
	return v, strings.Join(f, " of ")
}
