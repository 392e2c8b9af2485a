package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// The root file system of the embedded runtime: a small tmpfs that holds what
// is made below, read-only once it is complete, with the host's program
// directories bound into it.

// The user that the agent is in the sandbox, whoever that is outside.
const insideUID = 1000

// Paths of the sandbox that only the launcher knows.
const (
	insideDir   = "/run/kick"
	emptyFile   = insideDir + "/empty"
	emptyDir    = insideDir + "/empty.d"
	witnessFile = insideDir + "/witness"
)

// baseDirs are where programs and their libraries are. Each is bound, or is
// the symbolic link that it is on the host.
var baseDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// reservedPaths are not available for the workspace or program directories.
var reservedPaths = append([]string{"/etc", "/proc", "/dev", "/sys", "/run", "/var"}, baseDirs...)

// hostConfig are the files and directories of /etc that programs need and that
// hold no secret, as patterns. Everything else in /etc is made, or absent.
var hostConfig = []string{
	"/etc/alternatives",
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
	"/etc/localtime", "/etc/timezone", "/etc/os-release", "/etc/lsb-release", "/etc/debian_version", "/etc/redhat-release",
	"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem", "/etc/ca-certificates/extracted",
	"/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted", "/etc/crypto-policies",
	"/etc/services", "/etc/protocols", "/etc/mime.types", "/etc/magic", "/etc/inputrc", "/etc/terminfo", "/etc/fonts",
	"/etc/java-*-openjdk", "/etc/maven/m2.conf", "/etc/perl",
}

// madeConfig are the files of /etc that the sandbox gets instead of the host's.
func madeConfig(hostname string) map[string]string {
	return map[string]string{
		"/etc/passwd":        fmt.Sprintf("root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nagent:x:%d:%[1]d:agent:%s:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n", insideUID, HomeDir),
		"/etc/group":         fmt.Sprintf("root:x:0:\nagent:x:%d:\nnogroup:x:65534:\n", insideUID),
		"/etc/hosts":         fmt.Sprintf("127.0.0.1 localhost %s\n::1 localhost\n", hostname),
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n",
		"/etc/resolv.conf":   "",
		"/etc/hostname":      hostname + "\n",
		"/etc/shells":        "/bin/sh\n/bin/bash\n",
	}
}

// hiddenProc are files of /proc that tell of the host, or reach into it. Each
// is covered where it exists.
var hiddenProc = []string{
	"/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/config.gz", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore",
	"/proc/key-users", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
	"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/slabinfo", "/proc/sysrq-trigger",
	"/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo",
}

// fixedProc are directories of /proc that are made read-only.
var fixedProc = []string{"/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/sys"}

var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// rootSpec is what the root of one sandbox is made of.
type rootSpec struct {
	system        system
	hostname      string
	programDirs   []string
	workspace     string // host path; empty: a tmpfs
	mountPath     string
	readOnly      bool // the workspace is
	baseObjects   string
	baseDir       string // for base objects that are sent; empty: none are
	egressDir     string
	tmpSize       int64 // bytes of /tmp, of the home and of a workspace in memory, each
	landlockRules []frame.LandlockRule
	entries       []frame.Entry
}

func (r *rootSpec) add(e frame.Entry) { r.entries = append(r.entries, e) }

func (r *rootSpec) allow(access frame.LandlockAccess, paths ...string) {
	for _, p := range paths {
		r.landlockRules = append(r.landlockRules, frame.LandlockRule{Path: p, Access: access})
	}
}

// system is whose programs a sandbox has: this host, or a virtual machine.
type system interface {
	// find returns what matches a pattern.
	find(pattern string) ([]frame.Found, error)
	// tokens are the files below some directories that hold credentials.
	tokens(bound []string) []cover
}

// thisHost is the system that kick runs on.
type thisHost struct{}

func (thisHost) tokens(bound []string) []cover { return tokenFiles(bound) }

func (thisHost) find(pattern string) ([]frame.Found, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var found []frame.Found
	for _, p := range paths {
		fi, err := os.Lstat(p)
		if err != nil {
			continue
		}
		f := frame.Found{Path: p, Dir: fi.IsDir()}
		if fi.Mode()&os.ModeSymlink != 0 {
			if f.Link, err = os.Readlink(p); err != nil {
				return nil, err
			}
		}
		found = append(found, f)
	}
	return found, nil
}

// systemPatterns are all that build looks for.
func systemPatterns() []string { return slices.Concat(baseDirs, hostConfig, hiddenProc, fixedProc) }

// build fills in the entries and the Landlock rules. It reads the system's
// directories to see what exists, and changes nothing.
func (r *rootSpec) build() error {
	r.allow(frame.AccessList, "/")
	r.add(frame.Entry{Kind: frame.DirEntry, Path: insideDir, Mode: 0o755})
	r.add(frame.Entry{Kind: frame.FileEntry, Path: emptyFile, Mode: 0o444})
	r.add(frame.Entry{Kind: frame.DirEntry, Path: emptyDir, Mode: 0o555})
	r.add(frame.Entry{Kind: frame.FileEntry, Path: witnessFile, Mode: 0o444, Content: "only Landlock denies this file\n"})
	// First what others may lie in.
	r.add(frame.Entry{Kind: frame.TmpfsEntry, Path: "/tmp", NoSuid: true, NoDev: true, Options: r.tmpfs(0o1777)})
	r.add(frame.Entry{Kind: frame.TmpfsEntry, Path: HomeDir, NoSuid: true, NoDev: true, Options: r.tmpfs(0o700)})
	r.allow(frame.AccessWrite, "/tmp", HomeDir)
	if err := r.addPrograms(); err != nil {
		return err
	}
	if err := r.addConfig(); err != nil {
		return err
	}
	r.addDevices()
	if err := r.addProc(); err != nil {
		return err
	}
	r.addWorkspace()
	return nil
}

func (r *rootSpec) addPrograms() error {
	var bound []string
	for _, d := range baseDirs {
		found, err := r.system.find(d)
		if err != nil {
			return err
		}
		for _, f := range found {
			if f.Link != "" {
				r.add(frame.Entry{Kind: frame.SymlinkEntry, Path: d, Content: f.Link})
				continue
			}
			bound = append(bound, d)
		}
	}
	for _, d := range r.programDirs {
		if !within(d, bound) {
			bound = append(bound, d)
		}
	}
	for _, d := range bound {
		r.add(frame.Entry{Kind: frame.BindEntry, Path: d, Source: d, Recursive: true, ReadOnly: true, NoSuid: true, NoDev: true})
	}
	r.allow(frame.AccessRead, bound...)
	for _, c := range r.system.tokens(bound) {
		r.cover(c.path, c.dir)
	}
	return nil
}

// cover hides a file or directory under an empty one.
func (r *rootSpec) cover(p string, dir bool) {
	e := frame.Entry{Kind: frame.BindEntry, Path: p, Inside: emptyFile, File: true, ReadOnly: true, NoSuid: true, NoDev: true}
	if dir {
		e.Inside, e.File = emptyDir, false
	}
	r.add(e)
}

func (r *rootSpec) addConfig() error {
	for p, content := range madeConfig(r.hostname) {
		r.add(frame.Entry{Kind: frame.FileEntry, Path: p, Mode: 0o644, Content: content})
	}
	r.add(frame.Entry{Kind: frame.SymlinkEntry, Path: "/etc/mtab", Content: "/proc/self/mounts"})
	r.allow(frame.AccessRead, "/etc")
	for _, pattern := range hostConfig {
		found, err := r.system.find(pattern)
		if err != nil {
			return err
		}
		for _, f := range found {
			if f.Link != "" {
				r.add(frame.Entry{Kind: frame.SymlinkEntry, Path: f.Path, Content: f.Link})
				continue
			}
			r.add(frame.Entry{Kind: frame.BindEntry, Path: f.Path, Source: f.Path, File: !f.Dir, Recursive: f.Dir,
				ReadOnly: true, NoSuid: true, NoDev: true, NoExec: true})
		}
	}
	return nil
}

func (r *rootSpec) addDevices() {
	for _, d := range devices {
		p := "/dev/" + d
		r.add(frame.Entry{Kind: frame.BindEntry, Path: p, Source: p, File: true, NoSuid: true, NoExec: true})
	}
	r.add(frame.Entry{Kind: frame.DevptsEntry, Path: "/dev/pts", NoSuid: true, NoExec: true, Options: "newinstance,ptmxmode=0666,mode=0620"})
	r.add(frame.Entry{Kind: frame.TmpfsEntry, Path: "/dev/shm", NoSuid: true, NoDev: true, Options: r.tmpfs(0o1777)})
	for name, to := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		r.add(frame.Entry{Kind: frame.SymlinkEntry, Path: "/dev/" + name, Content: to})
	}
	r.allow(frame.AccessDevices, "/dev")
	r.allow(frame.AccessWrite, "/dev/shm")
}

func (r *rootSpec) tmpfs(mode uint32) string {
	return fmt.Sprintf("mode=%04o,size=%d,nr_inodes=%d", mode, r.tmpSize, 1<<20)
}

func (r *rootSpec) addProc() error {
	r.add(frame.Entry{Kind: frame.ProcEntry, Path: "/proc", NoSuid: true, NoDev: true, NoExec: true})
	for _, p := range hiddenProc {
		found, err := r.system.find(p)
		if err != nil {
			return err
		}
		for _, f := range found {
			r.cover(p, f.Dir)
		}
	}
	for _, p := range fixedProc {
		found, err := r.system.find(p)
		if err != nil {
			return err
		}
		for range found {
			r.add(frame.Entry{Kind: frame.BindEntry, Path: p, Inside: p, ReadOnly: true, NoSuid: true, NoDev: true, NoExec: true})
		}
	}
	r.allow(frame.AccessDevices, "/proc")
	return nil
}

// addWorkspace adds what is the kick's own.
func (r *rootSpec) addWorkspace() {
	r.add(frame.Entry{Kind: frame.SymlinkEntry, Path: "/var/tmp", Content: "/tmp"})
	if r.workspace == "" {
		r.add(frame.Entry{Kind: frame.TmpfsEntry, Path: r.mountPath, NoSuid: true, NoDev: true, Options: r.tmpfs(0o755)})
	} else {
		r.add(frame.Entry{Kind: frame.BindEntry, Path: r.mountPath, Source: r.workspace, ReadOnly: r.readOnly, NoSuid: true, NoDev: true})
	}
	if r.readOnly {
		r.allow(frame.AccessRead, r.mountPath)
	} else {
		r.allow(frame.AccessWrite, r.mountPath)
	}
	if r.baseObjects != "" {
		r.add(frame.Entry{Kind: frame.BindEntry, Path: BaseObjectsPath, Source: r.baseObjects, ReadOnly: true, NoSuid: true, NoDev: true, NoExec: true})
		r.allow(frame.AccessRead, BaseObjectsPath)
	}
	if r.baseDir != "" {
		p := path.Dir(BaseObjectsPath)
		r.add(frame.Entry{Kind: frame.BindEntry, Path: p, Source: r.baseDir, NoSuid: true, NoDev: true, NoExec: true})
		r.allow(frame.AccessWrite, p)
	}
	if r.egressDir != "" {
		p := path.Dir(EgressSocketPath)
		r.add(frame.Entry{Kind: frame.BindEntry, Path: p, Source: r.egressDir, ReadOnly: true, NoSuid: true, NoDev: true, NoExec: true})
		r.allow(frame.AccessRead, p)
	}
}

// within reports whether p is one of the directories or beneath one.
func within(p string, dirs []string) bool {
	for _, d := range dirs {
		if p == d || strings.HasPrefix(p, strings.TrimSuffix(d, "/")+"/") {
			return true
		}
	}
	return false
}

// cloneTrees opens the host trees that are to be bound, for a sandbox whose
// user could not reach them: a workspace in a root-only state directory, say.
// The entries are changed to name the descriptors from firstFD on.
func cloneTrees(entries []frame.Entry, firstFD int) (trees []*os.File, err error) {
	for i := range entries {
		e := &entries[i]
		if e.Kind != frame.BindEntry || e.Source == "" {
			continue
		}
		flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
		if e.Recursive {
			flags |= unix.AT_RECURSIVE
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, e.Source, flags)
		if errors.Is(err, unix.EPERM) {
			// Root of a container, without the capability: the shim opens by
			// path, as for an ordinary user.
			closeAll(trees)
			for i := range entries {
				entries[i].FD = 0
			}
			return nil, nil
		}
		if err != nil {
			closeAll(trees)
			return nil, fmt.Errorf("open the tree %s: %w", e.Source, err)
		}
		e.FD = firstFD + len(trees)
		trees = append(trees, os.NewFile(uintptr(fd), e.Source))
	}
	return trees, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
