package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/profiles/seccomp"
	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/podman"
)

// Podman is the runtime that runs every kick in a container of its own, on a
// Podman service of the same user on the same host, rootless or rootful. It
// speaks to the service's socket and never runs the podman program. The shim is
// the container's first process: it locks itself down, runs the command and
// makes the artifacts; everything about it is checked from outside first.
type Podman struct {
	config PodmanConfig
	client *podman.Client
	// address is what is wrong with the service's address.
	address error

	// weak changes a container so that it lacks a property, for the tests of the
	// host's checks. It is nil in earnest.
	weak func(*podman.Spec)

	mu        sync.Mutex
	installed *installed
}

var (
	_ Launcher    = (*Podman)(nil)
	_ Preflighter = (*Podman)(nil)
	_ Reaper      = (*Podman)(nil)
)

// PodmanConfig configures the Podman runtime.
type PodmanConfig struct {
	// Shim opens the program cmd/kick-shim, built static for this machine.
	Shim func() (io.ReadCloser, error)
	// Socket is the service's address, a path or unix:///path. Empty:
	// DefaultPodmanSocket.
	Socket string
	// Dir is a directory of the caller's own on this host. What all containers
	// mount lies there: the shim, and the system call profile.
	Dir string
	// Image is what Preflight runs.
	Image string
	// OCIRuntime is the program that Podman starts containers with, crun or
	// runc. Empty: the service's default.
	OCIRuntime string
	// Fallback, if set, makes the artifacts of a workspace when the service
	// does not answer any more.
	Fallback Launcher
}

// DefaultPodmanSocket is where the Podman clients look: in CONTAINER_HOST, else
// at the system's socket as root, and at the user's own otherwise.
func DefaultPodmanSocket() string {
	if h := os.Getenv("CONTAINER_HOST"); h != "" {
		return h
	}
	if os.Geteuid() == 0 {
		return "/run/podman/podman.sock"
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		dir = fmt.Sprintf("/run/user/%d", os.Geteuid())
	}
	return filepath.Join(dir, "podman/podman.sock")
}

// provedRuntimes are the OCI runtimes whose containers can be looked into from
// outside. A runtime with a kernel of its own shows the host none of what is to
// be proved.
var provedRuntimes = []string{"", "crun", "runc"}

// NewPodman returns a launcher that is good for any number of runs. It does not
// ask the service anything yet.
func NewPodman(c PodmanConfig) (*Podman, error) {
	if c.Shim == nil {
		return nil, noShim()
	}
	if c.Socket == "" {
		c.Socket = DefaultPodmanSocket()
	}
	known := false
	for _, r := range provedRuntimes {
		known = known || filepath.Base(c.OCIRuntime) == r || c.OCIRuntime == r
	}
	if !known {
		return nil, specError("OCI runtime", fmt.Errorf("%q: nothing outside can look into its containers and prove their isolation", c.OCIRuntime), "Use crun or runc")
	}
	return (&Podman{config: c}).At(c.Socket), nil
}

// At returns the same launcher for another service, by its address.
func (l *Podman) At(address string) *Podman {
	other := &Podman{config: l.config}
	other.config.Socket, other.address = podman.Socket(address)
	other.client = podman.New(other.config.Socket)
	return other
}

// Close frees the connections. No run may be going on.
func (l *Podman) Close() error {
	l.client.Close()
	return nil
}

// Run implements Launcher. Without a Workspace.Dir the working directory is a
// tmpfs, and nothing comes back but the output.
func (l *Podman) Run(ctx context.Context, spec LaunchSpec) (Result, error) {
	return runKick(ctx, l, spec)
}

func (l *Podman) isolation() Isolation { return Isolation{Runtime: "podman"} }

func (l *Podman) check(spec *LaunchSpec) error {
	if l.address != nil {
		return specError("podman socket", l.address, "Set podman_socket in kick.yaml or CONTAINER_HOST to one of this host")
	}
	if spec.Image == "" {
		return specError("image", errors.New("there is none"), "Name an image of the Podman service (`podman images` lists them; `kick image build` makes one)")
	}
	if strings.ContainsFunc(spec.Image, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'\?#%`, r) }) {
		return specError("image", fmt.Errorf("%q is no name of an image", spec.Image), "Use NAME, NAME:TAG, NAME@sha256:DIGEST or an id")
	}
	if len(spec.ProgramDirs) > 0 {
		return specError("program directory", fmt.Errorf("%q", spec.ProgramDirs[0]), "The Podman runtime has the image's programs and binds no others: put the tool into the image")
	}
	return wantSocket(spec.Egress)
}

// together: a second container would cost every kick as much as the first.
func (l *Podman) together() bool { return true }

func (l *Podman) sends() bool { return false }

// instead is another launcher for the artifacts, if there is one.
func (l *Podman) instead() Launcher { return l.config.Fallback }

// How long the service may take for what takes it milliseconds when idle.
var askTimeout = 30 * time.Second // a question; tests of a service that stands still wait less

const (
	createTimeout = 2 * time.Minute // until the shim runs; an image is mapped the first time
	removeTimeout = time.Minute
)

func (l *Podman) newBox(ctx context.Context, spec LaunchSpec, mode frame.Mode) (box, error) {
	files, err := l.install()
	if err != nil {
		return nil, err
	}
	svc, err := l.service(ctx)
	if err != nil {
		return nil, err
	}
	image, err := l.image(ctx, spec.Image)
	if err != nil {
		return nil, err
	}
	p, err := newPodmanPlan(spec, mode, svc, image, files, l.config.OCIRuntime)
	if err != nil {
		return nil, err
	}
	if svc.rootful && spec.Workspace.Dir != "" {
		if err := chownTree(ctx, spec.Workspace.Dir, p.hostUID, p.hostGID); err != nil {
			return nil, &Error{Kind: ErrRuntime, Op: "give the workspace to the sandbox's user", Err: err}
		}
	}
	return &podmanBox{plan: p, client: l.client, weak: l.weak}, nil
}

// installed are the files that every container mounts or Podman reads.
type installed struct {
	shim    string
	info    os.FileInfo
	profile string
}

// install writes them, unless they are there as they should be.
func (l *Podman) install() (*installed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.installed != nil {
		return l.installed, nil
	}
	fail := func(err error) (*installed, error) {
		return nil, &Error{Kind: ErrRuntime, Op: "write the shim for containers", Err: err, Remedy: "kick needs a directory of its own that it can write, see --state-dir"}
	}
	r, err := l.config.Shim()
	if err != nil {
		return fail(err)
	}
	shim, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return fail(err)
	}
	if len(shim) == 0 {
		return nil, noShim()
	}
	profile, err := json.Marshal(seccomp.DefaultProfile())
	if err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(l.config.Dir, 0o700); err != nil {
		return fail(err)
	}
	f := &installed{shim: filepath.Join(l.config.Dir, "kick-shim"), profile: filepath.Join(l.config.Dir, "seccomp.json")}
	if err := errors.Join(installFile(f.shim, shim, 0o555), installFile(f.profile, profile, 0o444)); err != nil {
		return fail(err)
	}
	if f.info, err = os.Lstat(f.shim); err != nil {
		return fail(err)
	}
	l.installed = f
	return f, nil
}

// installFile makes a file with that content. One that differs is replaced by
// another, since running containers have it mounted.
func installFile(path string, content []byte, mode os.FileMode) error {
	if fi, err := os.Lstat(path); err == nil && fi.Mode() == mode && fi.Size() == int64(len(content)) {
		if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, content) {
			return nil
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error says what is wrong
	}
	return err
}

// service is the Podman service that a sandbox is started on.
type service struct {
	version string
	rootful bool
	// limits tells which limits its control groups can hold.
	limits map[string]bool
}

// The versions that the contract is run on are 4.3 and 5.8.
const firstVersion = "4.3"

// service asks the service what it is. It must belong to this user: root's would
// give an ordinary user root's powers, and another user's sandboxes are not ours
// to look into.
func (l *Podman) service(ctx context.Context) (*service, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	owner, err := socketOwner(ctx, l.config.Socket)
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "reach Podman at " + l.config.Socket, Err: err,
			Remedy: "Start its service (systemctl --user start podman.socket; without systemd: podman system service --time=0), or set podman_socket or CONTAINER_HOST to its socket"}
	}
	if owner != os.Geteuid() {
		return nil, &Error{Kind: ErrRuntime, Op: "reach Podman at " + l.config.Socket, Err: fmt.Errorf("the service is user %d's, and kick runs as user %d", owner, os.Geteuid()),
			Remedy: "Use a service of your own: an ordinary user's is rootless, and root's is for a kick that root runs"}
	}
	version, err := l.client.Ping(ctx)
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "ask Podman at " + l.config.Socket, Err: err, Remedy: "See whether the service works: podman --url unix://" + l.config.Socket + " info"}
	}
	if olderThan(version, firstVersion) {
		return nil, &Error{Kind: ErrRuntime, Op: "use Podman " + version, Err: errors.New("it is older than " + firstVersion + ", the oldest that kick was tested with"), Remedy: "Install a newer one"}
	}
	s := &service{version: version, rootful: owner == 0, limits: map[string]bool{}}
	controllers, err := l.controllers(ctx, s.rootful)
	if err != nil {
		return nil, err
	}
	for name, controller := range limitControllers {
		for _, c := range controllers {
			s.limits[name] = s.limits[name] || c == controller
		}
	}
	return s, nil
}

// limitControllers are the controllers of control groups that hold limits.
var limitControllers = map[string]string{"memory-limit": "memory", "process-limit": "pids", "cpu-limit": "cpu"}

// controllers are those that the service may use for containers: as root all,
// as a user none on version 1, and on version 2 those that were delegated.
func (l *Podman) controllers(ctx context.Context, rootful bool) ([]string, error) {
	if rootful {
		return controllers, nil
	}
	var s unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &s); err != nil || s.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, nil
	}
	info, err := l.client.Info(ctx)
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "ask Podman which limits it can set", Err: err}
	}
	return info.Host.CgroupControllers, nil
}

// olderThan compares two versions of the form 1.2.3.
func olderThan(version, than string) bool {
	var a, b [2]int
	// What cannot be read counts as 0, the oldest.
	_, _ = fmt.Sscanf(version, "%d.%d", &a[0], &a[1])
	_, _ = fmt.Sscanf(than, "%d.%d", &b[0], &b[1])
	return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
}

// socketOwner is the user whose process listens on a Unix socket.
func socketOwner(ctx context.Context, path string) (int, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return int(cred.Uid), nil
}

// image resolves a name to what runs: the image's id, and the name by digest
// under which the Result has it.
func (l *Podman) image(ctx context.Context, name string) (podmanImage, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	i, err := l.client.Image(ctx, name)
	if podman.IsStatus(err, 404) {
		return podmanImage{}, &Error{Kind: ErrSpec, Op: "image " + name, Err: errors.New("Podman does not have it, and kick pulls none"), Remedy: "Pull or load it first: podman pull " + name + ", or kick image build"}
	}
	if err != nil {
		return podmanImage{}, &Error{Kind: ErrRuntime, Op: "look for the image " + name, Err: err}
	}
	image := podmanImage{id: i.ID, pinned: "sha256:" + i.ID}
	if i.Digest != "" && !strings.HasPrefix(i.ID, strings.TrimPrefix(name, "sha256:")) {
		repo, _, _ := strings.Cut(name, "@")
		if slash, colon := strings.LastIndexByte(repo, '/'), strings.LastIndexByte(repo, ':'); colon > slash {
			repo = repo[:colon]
		}
		image.pinned = repo + "@" + i.Digest
	}
	return image, nil
}

// podmanImage is an image that was found.
type podmanImage struct{ id, pinned string }
