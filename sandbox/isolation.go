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

// The host's proof of the embedded runtime's isolation: everything is read
// from the live first process of the sandbox, from outside, while it waits and
// before anything of the agent has run, and compared with the launcher's plan.
// What cannot be read counts as missing.

// namespaces are the names under /proc/PID/ns and the properties they make.
var namespaces = []struct{ link, property string }{
	{"user", "user-namespace"},
	{"mnt", "mount-namespace"},
	{"pid", "pid-namespace"},
	{"net", "network-namespace"},
	{"ipc", "ipc-namespace"},
	{"uts", "uts-namespace"},
	{"cgroup", "cgroup-namespace"},
}

// EmbeddedProperties are the names of what the embedded launcher proves of
// every sandbox, in the order of Isolation.Properties.
var EmbeddedProperties = []string{
	"user-namespace", "mount-namespace", "pid-namespace", "network-namespace", "ipc-namespace", "uts-namespace",
	"cgroup-namespace", "uid-mapping", "unprivileged-user", "supplementary-groups", "capabilities",
	"no-new-privileges", "seccomp", "mounts", "read-only-mounts", "nosuid-mounts", "nodev-mounts", "noexec-mounts",
	"proc", "no-network", "descriptors", "environment", "shim", "rlimits", "landlock", "seccomp-rules",
	"memory-limit", "process-limit", "cpu-limit", "disk-limit",
}

// remedies say what to do about a property that this host cannot give.
var remedies = map[string]string{
	"user-namespace":       "Allow user namespaces (sysctl user.max_user_namespaces above 0; on Ubuntu an AppArmor profile with userns for kick, or sysctl kernel.apparmor_restrict_unprivileged_userns=0; in a container a seccomp profile that allows them), or use another runtime",
	"mount-namespace":      "Allow mount namespaces (sysctl user.max_mnt_namespaces above 0), or use another runtime",
	"pid-namespace":        "Allow process namespaces (sysctl user.max_pid_namespaces above 0), or use another runtime",
	"network-namespace":    "Allow network namespaces (sysctl user.max_net_namespaces above 0), or use another runtime",
	"ipc-namespace":        "Allow IPC namespaces (sysctl user.max_ipc_namespaces above 0), or use another runtime",
	"uts-namespace":        "Allow UTS namespaces (sysctl user.max_uts_namespaces above 0), or use another runtime",
	"cgroup-namespace":     "Allow cgroup namespaces (sysctl user.max_cgroup_namespaces above 0), or use another runtime",
	"proc":                 "Run kick where /proc is not masked: outside a container, or in one with unmasked /proc (Docker: --security-opt systempaths=unconfined)",
	"landlock":             "Use Linux 5.13 or newer with landlock in the list of security modules (lsm= on the kernel's command line)",
	"seccomp":              "Use a kernel with CONFIG_SECCOMP_FILTER",
	"uid-mapping":          "Give kick a range of user ids that it may map, or run it as an ordinary user",
	"memory-limit":         "Run kick with a delegated cgroup (systemd-run --user --scope -p Delegate=yes kick …) or as root, or leave the limit at its default",
	"process-limit":        "Run kick with a delegated cgroup (systemd-run --user --scope -p Delegate=yes kick …) or as root, or leave the limit at its default",
	"cpu-limit":            "Run kick with a delegated cgroup that has the cpu controller (systemd-run --user --scope -p Delegate=yes kick …) or as root, or set no CPU limit",
	"supplementary-groups": "Run kick as root or as a user without supplementary groups, since they cannot be left without privilege",
}

// subject is the process to look at, with what it should be like.
type subject struct {
	proc      string // "/proc/PID"
	hostUID   int
	hostGID   int
	groups    []int      // supplementary groups that cannot be left; as root none
	pipes     []*os.File // what its descriptors 0, 1 and 2 are the other ends of
	shim      os.FileInfo
	entries   []frame.Entry
	rlimits   []frame.Rlimit
	filters   int  // system call filters that it should be under
	witness   bool // a file that only Landlock denies
	readiness frame.Readiness
	shown     map[string]string // files that the shim has read, where the host cannot; else nil
	outside   map[string]string // the same of what the sandbox is in, if that is not this host
}

// prover collects properties.
type prover struct {
	s     subject
	props []Property
}

// prove looks at a live sandbox.
func prove(s subject) []Property {
	p := &prover{s: s}
	p.namespaces()
	p.mapping()
	p.status()
	p.mounts()
	p.network()
	p.descriptors()
	p.environment()
	p.executable()
	p.limits()
	p.probes()
	return p.props
}

// add records a property; problem is empty when all is well.
func (p *prover) add(name, problem, evidence string) {
	prop := Property{Name: name, Status: Enforced, Evidence: evidence}
	if problem != "" {
		prop.Status, prop.Evidence = Missing, problem
		prop.Remedy = remedyOf(name)
	}
	p.props = append(p.props, prop)
}

// advise replaces the remedies of what is missing by a runtime's own.
func (p *prover) advise(remedies map[string]string) {
	for i, prop := range p.props {
		if remedy := remedies[prop.Name]; remedy != "" && prop.Status == Missing {
			p.props[i].Remedy = remedy
		}
	}
}

func remedyOf(name string) string {
	if r := remedies[name]; r != "" {
		return r
	}
	return "This should hold on every host that kick supports: please report it"
}

func (p *prover) read(name string) (string, string) {
	if p.s.shown != nil {
		return p.shownFile(name)
	}
	b, err := os.ReadFile(path.Join(p.s.proc, name))
	if err != nil {
		return "", err.Error()
	}
	return string(b), ""
}

// link is where a symbolic link leads.
func (p *prover) link(name string) (string, string) {
	if p.s.shown != nil {
		return p.shownFile(name)
	}
	to, err := os.Readlink(path.Join(p.s.proc, name))
	if err != nil {
		return "", err.Error()
	}
	return to, ""
}

func (p *prover) namespaces() {
	for _, ns := range namespaces {
		p.namespace(ns.link, ns.property)
	}
}

// namespace wants a namespace that is not this process's.
func (p *prover) namespace(name, property string) {
	link := "ns/" + name
	theirs, problem := p.link(link)
	ours, err := os.Readlink("/proc/self/" + link)
	if p.s.outside != nil {
		ours, err = p.s.outside["/proc/self/"+link], nil
	}
	switch {
	case problem != "":
	case err != nil:
		problem = err.Error()
	case ours == "":
		problem = link + ": the shim did not show the machine's"
	case theirs == ours:
		problem = link + " is the host's: " + ours
	}
	p.add(property, problem, link+" is "+theirs+", the host's is "+ours)
}

func (p *prover) mapping() {
	uid, e1 := p.read("uid_map")
	gid, e2 := p.read("gid_map")
	problem := e1 + e2
	wantUID := fmt.Sprintf("%d %d 1", insideUID, p.s.hostUID)
	wantGID := fmt.Sprintf("%d %d 1", insideUID, p.s.hostGID)
	uid, gid = strings.Join(strings.Fields(uid), " "), strings.Join(strings.Fields(gid), " ")
	switch {
	case problem != "":
	case uid != wantUID:
		problem = fmt.Sprintf("uid_map is %q, want %q", uid, wantUID)
	case gid != wantGID:
		problem = fmt.Sprintf("gid_map is %q, want %q", gid, wantGID)
	case p.s.hostUID == 0:
		problem = "the host's root is mapped"
	}
	p.add("uid-mapping", problem, fmt.Sprintf("uid_map is %q, gid_map %q", uid, gid))
}

// parseStatus parses /proc/PID/status into its fields.
func parseStatus(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			fields[k] = strings.TrimSpace(v)
		}
	}
	return fields
}

func (p *prover) status() {
	text, problem := p.read("status")
	f := parseStatus(text)
	want := func(property string, fields ...string) {
		bad := problem
		var seen []string
		for i := 0; i < len(fields); i += 2 {
			k, v := fields[i], fields[i+1]
			got := strings.Join(strings.Fields(f[k]), " ")
			seen = append(seen, k+" "+got)
			if bad == "" && got != v {
				bad = fmt.Sprintf("%s is %q, want %q", k, got, v)
			}
		}
		p.add(property, bad, "status: "+strings.Join(seen, ", "))
	}
	four := func(id int) string { return strings.TrimSpace(strings.Repeat(strconv.Itoa(id)+" ", 4)) }
	if problem == "" && p.s.hostUID == 0 {
		problem = "the sandbox runs as the host's root"
	}
	want("unprivileged-user", "Uid", four(p.s.hostUID), "Gid", four(p.s.hostGID))
	var groups []string
	for _, g := range p.s.groups {
		groups = append(groups, strconv.Itoa(g))
	}
	want("supplementary-groups", "Groups", strings.Join(groups, " "))
	const none = "0000000000000000"
	want("capabilities", "CapInh", none, "CapPrm", none, "CapEff", none, "CapBnd", none, "CapAmb", none)
	want("no-new-privileges", "NoNewPrivs", "1")
	seccomp := []string{"Seccomp", "2"}
	if _, ok := f["Seccomp_filters"]; ok { // since Linux 5.9
		seccomp = append(seccomp, "Seccomp_filters", strconv.Itoa(p.s.filters))
	}
	want("seccomp", seccomp...)
}

// mounts wants the plan's mounts and no other.
func (p *prover) mounts() {
	p.mountTable("all as planned", func(got, host []mount) []mountProblem {
		return compareMounts(got, expectedMounts(p.s.entries, host), host)
	})
}

// mountTable holds the sandbox's mounts against what is due, which compare
// knows and asDue says in words.
func (p *prover) mountTable(asDue string, compare func(got, host []mount) []mountProblem) {
	names := []string{"mounts", "read-only-mounts", "nosuid-mounts", "nodev-mounts", "noexec-mounts", "proc"}
	text, problem := p.read("mountinfo")
	got, err := parseMountinfo(text)
	host, err2 := p.around()
	if err := errors.Join(err, err2); err != nil && problem == "" {
		problem = err.Error()
	}
	if problem == "" && len(got) == 0 {
		problem = "the mount table is empty"
	}
	if problem != "" {
		for _, n := range names {
			p.add(n, problem, "")
		}
		return
	}
	found := map[string][]string{}
	for _, m := range compare(got, host) {
		found[m.property] = append(found[m.property], m.text)
	}
	for _, n := range names {
		list := found[n]
		if len(list) > 3 {
			list = append(list[:3], fmt.Sprintf("and %d more", len(list)-3))
		}
		p.add(n, strings.Join(list, "; "), fmt.Sprintf("mountinfo: %d mounts, %s", len(got), asDue))
	}
}

// around are the mounts of what the sandbox is in.
func (p *prover) around() ([]mount, error) {
	if p.s.outside != nil {
		return parseMountinfo(p.s.outside["/proc/self/mountinfo"])
	}
	return hostMounts()
}

func hostMounts() ([]mount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountinfo(string(b))
}

func (p *prover) network() {
	text, problem := p.read("net/dev")
	if names := interfaces(text); problem == "" && !slices.Equal(names, []string{"lo"}) {
		problem = fmt.Sprintf("the interfaces are %q, want lo alone", names)
	}
	p.add("no-network", problem, "net/dev: lo alone")
}

// interfaces are the names in a text like /proc/PID/net/dev.
func interfaces(text string) (names []string) {
	for line := range strings.Lines(text) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}

// descriptors wants nothing open but the three pipes to the launcher.
func (p *prover) descriptors() {
	dir := path.Join(p.s.proc, "fd")
	list, err := os.ReadDir(dir)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem == "" && len(list) != len(p.s.pipes) {
		problem = fmt.Sprintf("%d descriptors are open, want %d", len(list), len(p.s.pipes))
	}
	for i, f := range p.s.pipes {
		theirs, err := os.Stat(filepath.Join(dir, strconv.Itoa(i)))
		ours, err2 := f.Stat()
		switch {
		case problem != "":
		case errors.Join(err, err2) != nil:
			problem = errors.Join(err, err2).Error()
		case !os.SameFile(theirs, ours):
			problem = fmt.Sprintf("descriptor %d is not the launcher's pipe", i)
		}
	}
	p.add("descriptors", problem, fmt.Sprintf("fd: the launcher's %d pipes and nothing else", len(list)))
}

// environment wants the first process to have none: it passes on only what the
// specification names.
func (p *prover) environment() {
	env, problem := p.read("environ")
	if problem == "" && env != "" {
		problem = fmt.Sprintf("environ holds %d bytes, want none", len(env))
	}
	p.add("environment", problem, "environ: empty")
}

// executable wants the first process to be the sealed shim, so that what it
// says of its own probes is to be believed.
func (p *prover) executable() {
	fi, err := os.Stat(path.Join(p.s.proc, "exe"))
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case !os.SameFile(fi, p.s.shim):
		problem = "exe is not the launcher's shim"
	}
	p.add("shim", problem, "exe: the launcher's own copy")
}

// rlimitNames are the lines of /proc/PID/limits.
var rlimitNames = map[int]string{
	unix.RLIMIT_CORE:  "Max core file size",
	unix.RLIMIT_NPROC: "Max processes",
	unix.RLIMIT_FSIZE: "Max file size",
}

func (p *prover) limits() {
	text, problem := p.read("limits")
	var seen []string
	for _, want := range p.s.rlimits {
		name := rlimitNames[want.Resource]
		soft, hard, ok := parseLimit(text, name)
		seen = append(seen, fmt.Sprintf("%s %d", name, hard))
		if problem == "" && (!ok || soft > want.Value || hard > want.Value) {
			problem = fmt.Sprintf("%q is not limited to %d", name, want.Value)
		}
	}
	p.add("rlimits", problem, "limits: "+strings.Join(seen, ", "))
}

// parseLimit finds a line of /proc/PID/limits.
func parseLimit(text, name string) (soft, hard uint64, ok bool) {
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, name+" ")
		f := strings.Fields(rest)
		if !found || len(f) < 2 {
			continue
		}
		var errs [2]error
		value := func(i int) uint64 {
			if f[i] == "unlimited" {
				return 1<<64 - 1
			}
			v, err := strconv.ParseUint(f[i], 10, 64)
			errs[i] = err
			return v
		}
		soft, hard = value(0), value(1)
		return soft, hard, errors.Join(errs[:]...) == nil
	}
	return 0, 0, false
}

// wantedProbes are what the shim must have tried.
var wantedProbes = []string{
	"landlock", "seccomp-user-namespace", "seccomp-mount", "seccomp-bpf", "seccomp-keyrings", "seccomp-io-uring",
	"seccomp-userfaultfd", "seccomp-perf", "seccomp-ptrace", "seccomp-vsock", "seccomp-clone3",
}

// probes judges what /proc does not show.
func (p *prover) probes() {
	var rules []string
	for _, name := range wantedProbes {
		if name == "landlock" && !p.s.witness {
			continue
		}
		said, ok := p.s.readiness.Probes[name]
		if !ok {
			said = name + ": the shim did not try"
		}
		if name == "landlock" {
			p.add(name, said, "the shim could not open a file that only Landlock denies")
		} else if said != "" {
			rules = append(rules, said)
		}
	}
	p.add("seccomp-rules", strings.Join(rules, "; "), fmt.Sprintf("the shim was refused each of %d calls", len(wantedProbes)-1))
}
