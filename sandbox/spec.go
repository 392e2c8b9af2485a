package sandbox

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

var idForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,18}$`)

// resolveLimits fills in the defaults: then 0 means that there is no limit.
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

// checkSpec checks what every runtime wants of a specification, and fills in
// its defaults.
func checkSpec(s *LaunchSpec) error {
	if !idForm.MatchString(s.ID) {
		return specError("id", fmt.Errorf("%q", s.ID), "Use 1 to 19 lower-case letters, digits and -, beginning with a letter")
	}
	switch s.Network {
	case "":
		s.Network = NetworkRestricted
	case NetworkRestricted, NetworkNone:
	default:
		return specError("network mode", fmt.Errorf("%q", s.Network), "Use restricted or none")
	}
	if s.Network == NetworkNone && !s.Egress.none() {
		return specError("egress", errors.New("there is one in network mode none"), "Leave it out or use network mode restricted")
	}
	if err := checkEgress(s.Egress); err != nil {
		return err
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
	return checkPaths(s)
}

// bits256 is the form of a gateway's secret and pin.
var bits256 = regexp.MustCompile(`^[0-9a-f]{64}$`)

// checkEgress checks what can be checked without the file system.
func checkEgress(e Egress) error {
	if e.Port < 0 || e.Port > 65535 || e.Port != 0 && e.Socket == "" && e.TCP == nil {
		return specError("egress port", fmt.Errorf("%d", e.Port), "Use a port between 1 and 65535 and name the gateway's socket or TCP address")
	}
	if e.TCP == nil {
		return nil
	}
	_, port, err := net.SplitHostPort(e.TCP.Address)
	switch {
	case err != nil || port == "":
		err = fmt.Errorf("%q has no host and port", e.TCP.Address)
	case !bits256.MatchString(e.TCP.Secret):
		err = errors.New("the secret is not 64 characters of lower-case hex")
	case !bits256.MatchString(e.TCP.Pin):
		err = errors.New("the pin is no SHA-256 in lower-case hex")
	case e.TCP.Admit == nil:
		err = errors.New("nobody would be told the sandbox's address")
	case e.Port == 0:
		err = errors.New("there is no port in the sandbox that leads there")
	}
	if err != nil {
		return specError("egress address", err, "Take all of it from the gateway, and give a port")
	}
	return nil
}

// wantSocket is the check of a runtime whose sandboxes have no interface but
// loopback.
func wantSocket(e Egress) error {
	if e.TCP != nil && e.Socket == "" {
		return specError("egress address", errors.New("a sandbox of this runtime reaches no address"), "Give the gateway's socket")
	}
	return nil
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

func checkPaths(s *LaunchSpec) error {
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

// tmpSize is the size of each tmpfs: the disk limit, as Limits says, but no more
// than the memory that it would take.
func (l Limits) tmpSize() int64 {
	size := int64(math.MaxInt64)
	for _, most := range []int64{l.Disk, l.Memory} {
		if most > 0 {
			size = min(size, most)
		}
	}
	if size == math.MaxInt64 {
		size = DefaultLimits().Memory
	}
	return size
}

// shimThreads is what the shim itself takes of a process limit: its runtime has
// six to nine threads, and it holds twelve more in reserve.
const shimThreads = 32

// commonRlimits are the resource limits of every sandbox.
func commonRlimits(l Limits) []frame.Rlimit {
	r := []frame.Rlimit{{Resource: unix.RLIMIT_CORE, Value: 0}}
	if l.Disk > 0 {
		// A little more than the whole, so that the disk poller sees who is over.
		r = append(r, frame.Rlimit{Resource: unix.RLIMIT_FSIZE, Value: uint64(l.Disk) + 1<<20})
	}
	return r
}

// processRlimit stands in for a control group's limit of processes.
func processRlimit(l Limits) frame.Rlimit {
	return frame.Rlimit{Resource: unix.RLIMIT_NPROC, Value: uint64(l.Processes + shimThreads)}
}

// shimConfig is what the shim is told of a specification, whatever the runtime.
func shimConfig(s LaunchSpec, limits Limits, mode frame.Mode) frame.Config {
	c := frame.Config{
		Mode:        mode,
		WorkDir:     s.Workspace.MountPath,
		BaseOID:     s.Workspace.BaseOID,
		ArtifactMax: limits.Bundle,
	}
	if mode == frame.CollectMode {
		return c
	}
	c.Command = s.Command
	c.Env = environ(s.Env)
	c.Files = map[string]string{}
	for name, content := range s.Home {
		c.Files[path.Join(HomeDir, name)] = content
	}
	c.WallMS = (limits.Wall + wallGrace).Milliseconds()
	if s.Egress.Socket != "" {
		c.EgressSocket = EgressSocketPath
	}
	c.EgressPort = s.Egress.Port
	if t := s.Egress.TCP; t != nil {
		c.EgressAddress, c.EgressSecret, c.EgressPin = t.Address, t.Secret, t.Pin
		if t.Trust != "" && s.Egress.Socket == "" {
			c.Files[EgressTrustPath] = t.Trust
		}
	}
	return c
}

func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	return list
}
