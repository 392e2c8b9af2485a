package sandbox

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// plan is one sandbox, decided before anything is started: the launch
// specification translated into what the shim is to build, and into what the
// host then checks.
type plan struct {
	spec    LaunchSpec
	limits  Limits // resolved: 0 means none
	mode    frame.Mode
	hostUID int
	hostGID int
	asRoot  bool
	clone   uintptr // namespaces that the shim starts in
	root    rootSpec
	jail    frame.Jail
	config  frame.Config
}

// newPlan translates a specification, which was checked, for this host.
func newPlan(spec LaunchSpec, mode frame.Mode) (*plan, error) {
	p := &plan{spec: spec, mode: mode, limits: resolveLimits(spec.Limits)}
	p.clone = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if err := p.identity(); err != nil {
		return nil, err
	}
	if err := p.layout(); err != nil {
		return nil, err
	}
	return p, p.lockdown()
}

// identity decides who the sandbox is on the host. As root it is a user that
// owns nothing else, the same one for the same kick, so that work can be
// salvaged later; otherwise it is the caller.
func (p *plan) identity() error {
	if os.Geteuid() != 0 {
		p.hostUID, p.hostGID = os.Geteuid(), os.Getegid()
		return nil
	}
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "find a free user id", Err: err}
	}
	id, err := freshUID(p.spec.ID, string(text))
	if err != nil {
		return &Error{Kind: ErrIsolation, Op: "uid-mapping", Err: err, Remedy: remedyOf("uid-mapping")}
	}
	p.asRoot, p.hostUID, p.hostGID = true, id, id
	return nil
}

// The range of user ids for sandboxes of root: above what systemd
// (systemd.io/UIDS-GIDS) and subuid allocations use, below 2^31.
const (
	uidFirst = 1_900_000_000
	uidCount = 100_000_000
)

// freshUID derives a user id from a kick's id. Inside a container that maps
// only some ids, it takes one from the upper half of the largest range there.
func freshUID(id, uidMap string) (int, error) {
	h := fnv.New64a()
	h.Write([]byte(id))
	sum := h.Sum64()
	var best [2]uint64 // first, count
	for line := range strings.Lines(uidMap) {
		var first, outside, count uint64
		if _, err := fmt.Sscan(line, &first, &outside, &count); err != nil {
			return 0, fmt.Errorf("uid_map has the line %q", line)
		}
		if first <= uidFirst && first+count >= uidFirst+uidCount {
			return int(uidFirst + sum%uidCount), nil
		}
		if count > best[1] {
			best = [2]uint64{first, count}
		}
	}
	half := best[1] / 2
	if half < 1000 {
		return 0, fmt.Errorf("only %d user ids are mapped here", best[1])
	}
	return int(best[0] + half + sum%half), nil
}

// layout decides the root file system.
func (p *plan) layout() error {
	s := p.spec
	p.root = rootSpec{
		system:      thisHost{},
		hostname:    s.ID,
		programDirs: s.ProgramDirs,
		workspace:   s.Workspace.Dir,
		mountPath:   s.Workspace.MountPath,
		readOnly:    p.mode == frame.CollectMode,
		baseObjects: s.Workspace.Objects,
		tmpSize:     p.limits.tmpSize(),
	}
	if p.mode == frame.RunMode && s.Egress.Socket != "" {
		p.root.egressDir = path.Dir(s.Egress.Socket)
	}
	if err := p.root.build(); err != nil {
		return &Error{Kind: ErrRuntime, Op: "plan the root file system", Err: err}
	}
	return nil
}

// lockdown decides the rest.
func (p *plan) lockdown() error {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 && !slices.Contains(p.spec.AcceptWeaker, "landlock") {
		return &Error{Kind: ErrIsolation, Op: "landlock", Err: errno, Remedy: remedyOf("landlock")}
	}
	filter, err := systemCallFilter()
	if err != nil {
		return &Error{Kind: ErrIsolation, Op: "seccomp", Err: err, Remedy: remedyOf("seccomp")}
	}
	p.jail = frame.Jail{
		Unshare:    unix.CLONE_NEWCGROUP,
		Hostname:   p.spec.ID,
		Entries:    slices.Clone(p.root.entries),
		NoNewPrivs: true,
		Filter:     filter,
	}
	if errno == 0 {
		p.jail.Landlock = &frame.Landlock{ABI: int(abi), Rules: p.root.landlockRules}
	}
	p.jail.Rlimits = commonRlimits(p.limits)
	p.config = shimConfig(p.spec, p.limits, p.mode)
	p.config.Witness = witnessFile
	return nil
}

// limitProcesses adds the resource limit that stands in for a control group.
func (p *plan) limitProcesses() {
	if p.limits.Processes > 0 {
		p.jail.Rlimits = append(p.jail.Rlimits, processRlimit(p.limits))
	}
}

// sysProcAttr is how the shim is started.
func (p *plan) sysProcAttr() *syscall.SysProcAttr {
	one := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: insideUID, HostID: id, Size: 1}}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  p.clone,
		UidMappings: one(p.hostUID),
		GidMappings: one(p.hostGID),
		// Root can, and must, leave its supplementary groups; nobody else may.
		GidMappingsEnableSetgroups: p.asRoot,
		Credential:                 &syscall.Credential{Uid: insideUID, Gid: insideUID, NoSetGroups: !p.asRoot},
		AmbientCaps:                []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP},
		Setsid:                     true,
		Pdeathsig:                  syscall.SIGKILL,
	}
}

// jailConfig is the first configuration, for the shim's first stage.
func (p *plan) jailConfig() (frame.Config, error) {
	raw, err := json.Marshal(p.jail)
	return frame.Config{Mode: p.mode, Jail: raw}, err
}
