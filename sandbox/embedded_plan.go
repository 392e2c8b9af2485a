package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// shimThreads is what the shim itself takes of a process limit: its runtime has
// six to nine threads, and it holds twelve more in reserve.
const shimThreads = 32

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

var idForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,18}$`)

// newPlan checks a specification and translates it for this host.
func newPlan(spec LaunchSpec, mode frame.Mode) (*plan, error) {
	p := &plan{spec: spec, mode: mode, limits: resolveLimits(spec.Limits)}
	p.clone = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if err := p.checkSpec(); err != nil {
		return nil, err
	}
	if err := p.identity(); err != nil {
		return nil, err
	}
	if err := p.layout(); err != nil {
		return nil, err
	}
	return p, p.lockdown()
}

func resolveLimits(l Limits) Limits {
	d := DefaultLimits()
	pick := func(v, def int64) int64 { return max(0, map[bool]int64{true: def, false: v}[v == 0]) }
	l.Memory = pick(l.Memory, d.Memory)
	l.Processes = int(pick(int64(l.Processes), int64(d.Processes)))
	l.Disk = pick(l.Disk, d.Disk)
	l.Wall = max(0, l.Wall)
	if l.Wall == 0 {
		l.Wall = d.Wall
	}
	l.Output = pick(l.Output, d.Output)
	l.Bundle = pick(l.Bundle, d.Bundle)
	l.CPUs = max(0, l.CPUs)
	return l
}

func specError(op string, err error, remedy string) error {
	return &Error{Kind: ErrSpec, Op: op, Err: err, Remedy: remedy}
}

var oidForm = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

func (p *plan) checkSpec() error {
	s := &p.spec
	if !idForm.MatchString(s.ID) {
		return specError("id", fmt.Errorf("%q", s.ID), "Use 1 to 19 lower-case letters, digits and -, beginning with a letter")
	}
	if s.Image != "" {
		return specError("image", fmt.Errorf("%q", s.Image), "The embedded runtime runs the host's programs and takes no image: leave it out or choose another runtime")
	}
	switch s.Network {
	case "":
		s.Network = NetworkRestricted
	case NetworkRestricted, NetworkNone:
	default:
		return specError("network mode", fmt.Errorf("%q", s.Network), "Use restricted or none")
	}
	if s.Network == NetworkNone && s.Egress != (Egress{}) {
		return specError("egress", errors.New("there is one in network mode none"), "Leave it out or use network mode restricted")
	}
	if s.Egress.Port < 0 || s.Egress.Port > 65535 || s.Egress.Port != 0 && s.Egress.Socket == "" {
		return specError("egress port", fmt.Errorf("%d", s.Egress.Port), "Use a port between 1 and 65535 and name the gateway's socket")
	}
	if len(s.Command) > 0 && s.Command[0] == "" {
		return specError("command", errors.New("its first word is empty"), "Name a program")
	}
	for _, a := range s.Command {
		if strings.ContainsRune(a, 0) || !utf8.ValidString(a) {
			return specError("command", fmt.Errorf("%q holds a NUL byte or is not UTF-8", a), "Pass such data in a file of the workspace")
		}
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) || !utf8.ValidString(k+v) {
			return specError("environment", fmt.Errorf("the variable %q is impossible", k), "Names must not be empty or hold =, and neither they nor values may hold NUL or be anything but UTF-8")
		}
	}
	if err := checkHome(s.Home); err != nil {
		return err
	}
	w := &s.Workspace
	if w.BaseOID != "" && !oidForm.MatchString(w.BaseOID) {
		return specError("base", fmt.Errorf("%q is no full lower-case commit id", w.BaseOID), "Resolve it first")
	}
	if w.BaseOID != "" && w.Dir == "" {
		return specError("workspace", errors.New("there is a base and no directory"), "Name the prepared workspace")
	}
	if w.MountPath == "" {
		w.MountPath = DefaultMountPath
	}
	return p.checkPaths()
}

// Limits of LaunchSpec.Home.
const (
	maxHomeFiles = 64
	maxHomeBytes = 1 << 20
)

func checkHome(files map[string]string) error {
	size := 0
	for name, content := range files {
		size += len(content)
		if !filepath.IsLocal(name) || path.Clean(name) != name || name == "." || strings.ContainsRune(name, 0) || !utf8.ValidString(name+content) {
			return specError("home file", fmt.Errorf("%q", name), "Use a clean path relative to the home directory and text in UTF-8")
		}
	}
	if len(files) > maxHomeFiles || size > maxHomeBytes {
		return specError("home files", fmt.Errorf("%d files with %d bytes", len(files), size), "Use at most 64 files of 1 MiB together")
	}
	return nil
}

func (p *plan) checkPaths() error {
	s := &p.spec
	m := s.Workspace.MountPath
	taken := append(slices.Clone(reservedPaths), s.ProgramDirs...)
	if !path.IsAbs(m) || path.Clean(m) != m || m == "/" || m == "/tmp" || m == "/home" || m == HomeDir || within(m, taken) {
		return specError("mount path", fmt.Errorf("%q", m), "Use a clean absolute path outside of the system's and the program directories, such as "+DefaultMountPath)
	}
	for _, d := range s.ProgramDirs {
		if !filepath.IsAbs(d) || filepath.Clean(d) != d || d == "/" {
			return specError("program directory", fmt.Errorf("%q", d), "Use a clean absolute path")
		}
		if within(d, []string{"/etc", "/proc", "/dev", "/sys", "/run"}) || slices.Contains([]string{"/home", "/root", "/var", "/tmp", HomeDir, insideDir}, d) {
			return specError("program directory", fmt.Errorf("%q would bring the host's own state into the sandbox", d), "Name the tool's own directory, or install it under /usr/local or /opt")
		}
		if err := wantDir(d); err != nil {
			return specError("program directory", err, "Name an existing directory")
		}
	}
	for name, d := range map[string]string{"workspace": s.Workspace.Dir, "base objects": s.Workspace.Objects} {
		if d == "" {
			continue
		}
		if !filepath.IsAbs(d) || strings.ContainsRune(d, 0) {
			return specError(name, fmt.Errorf("%q is not an absolute path", d), "Use one")
		}
		if err := wantDir(d); err != nil {
			return specError(name, err, "Name an existing directory")
		}
	}
	if sock := s.Egress.Socket; sock != "" {
		fi, err := os.Lstat(sock)
		switch {
		case err == nil && fi.Mode().Type() != os.ModeSocket:
			err = fmt.Errorf("%s is not a socket", sock)
		case err == nil && path.Base(sock) != path.Base(EgressSocketPath):
			err = fmt.Errorf("%s is not named %s", sock, path.Base(EgressSocketPath))
		}
		if err != nil {
			return specError("egress socket", err, "Start the gateway first, in a directory of its own, with a socket of that name")
		}
		list, err := os.ReadDir(path.Dir(sock))
		for _, e := range list {
			if trust := e.Name() == path.Base(EgressTrustPath) && e.Type().IsRegular(); !trust && e.Name() != path.Base(sock) {
				err = errors.Join(err, fmt.Errorf("its directory holds %q, want the socket and its certificates alone", e.Name()))
			}
		}
		if err != nil {
			return specError("egress socket", err, "Give the socket a directory of its own")
		}
	}
	return nil
}

func wantDir(d string) error {
	fi, err := os.Lstat(d)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a directory", d)
	}
	return nil
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
		hostname:    s.ID,
		programDirs: s.ProgramDirs,
		workspace:   s.Workspace.Dir,
		mountPath:   s.Workspace.MountPath,
		readOnly:    p.mode == frame.CollectMode,
		baseObjects: s.Workspace.Objects,
		tmpSize:     p.tmpSize(),
	}
	if p.mode == frame.RunMode && s.Egress.Socket != "" {
		p.root.egressDir = path.Dir(s.Egress.Socket)
	}
	if err := p.root.build(); err != nil {
		return &Error{Kind: ErrRuntime, Op: "plan the root file system", Err: err}
	}
	return nil
}

// tmpSize is the size of each tmpfs: the disk limit, as Limits says, but no more
// than the memory that it would take.
func (p *plan) tmpSize() int64 {
	size := int64(math.MaxInt64)
	for _, l := range []int64{p.limits.Disk, p.limits.Memory} {
		if l > 0 {
			size = min(size, l)
		}
	}
	if size == math.MaxInt64 {
		size = DefaultLimits().Memory
	}
	return size
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
	p.jail.Rlimits = []frame.Rlimit{{Resource: unix.RLIMIT_CORE, Value: 0}}
	if p.limits.Disk > 0 {
		// A little more than the whole, so that the disk poller sees who is over.
		p.jail.Rlimits = append(p.jail.Rlimits, frame.Rlimit{Resource: unix.RLIMIT_FSIZE, Value: uint64(p.limits.Disk) + 1<<20})
	}
	p.config = frame.Config{
		Mode:        p.mode,
		WorkDir:     p.spec.Workspace.MountPath,
		BaseOID:     p.spec.Workspace.BaseOID,
		Witness:     witnessFile,
		ArtifactMax: p.limits.Bundle,
	}
	if p.mode == frame.RunMode {
		p.config.Command = p.spec.Command
		p.config.Env = environ(p.spec.Env)
		p.config.Files = map[string]string{}
		for name, content := range p.spec.Home {
			p.config.Files[path.Join(HomeDir, name)] = content
		}
		p.config.WallMS = (p.limits.Wall + wallGrace).Milliseconds()
		if p.root.egressDir != "" {
			p.config.EgressSocket, p.config.EgressPort = EgressSocketPath, p.spec.Egress.Port
		}
	}
	return nil
}

func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	return list
}

// limitProcesses adds the resource limit that stands in for a control group.
func (p *plan) limitProcesses() {
	if p.limits.Processes > 0 {
		p.jail.Rlimits = append(p.jail.Rlimits, frame.Rlimit{Resource: unix.RLIMIT_NPROC, Value: uint64(p.limits.Processes + shimThreads)})
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
