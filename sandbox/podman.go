package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

	// silent tells that the service did not answer when it was asked last.
	silent atomic.Bool

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
	// PodmanChoice is what holds unless With says otherwise.
	PodmanChoice
	// Dir is a directory of the caller's own on this host. What all containers
	// mount lies there: the shim, and the system call profile.
	Dir string
	// Image is what Preflight runs.
	Image string
	// Fallback, if set, makes the artifacts of a workspace when the service
	// does not answer any more.
	Fallback Launcher
}

// PodmanChoice is what an operator chooses for an agent. Empty fields leave the
// launcher's own.
type PodmanChoice struct {
	// Socket is the service's address, a path or unix:///path. Default:
	// DefaultPodmanSocket.
	Socket string
	// OCIRuntime is one of OCIRuntimes, which the service must start containers
	// with. Default: crun or runc, whichever the service has.
	OCIRuntime string
	// Network is a network of the service that the operator has made, by name.
	// The command's sandbox is in it besides what Egress gives, and lacks the
	// property no-network, which whoever names a network accepts thereby. A spec
	// of NetworkNone, and the artifacts' sandbox, have no network all the same.
	// Default: none.
	Network string
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

// NewPodman returns a launcher that is good for any number of runs. It does not
// ask the service anything yet.
func NewPodman(c PodmanConfig) (*Podman, error) {
	if c.Shim == nil {
		return nil, noShim()
	}
	l := &Podman{config: c}
	return l.With(PodmanChoice{Socket: cmp.Or(c.Socket, DefaultPodmanSocket())}), nil
}

// With returns the same launcher with another choice. What is wrong with it, Run
// says.
func (l *Podman) With(c PodmanChoice) *Podman {
	other := &Podman{config: l.config}
	other.config.PodmanChoice = PodmanChoice{
		Socket: cmp.Or(c.Socket, l.config.Socket), OCIRuntime: cmp.Or(c.OCIRuntime, l.config.OCIRuntime), Network: cmp.Or(c.Network, l.config.Network),
	}
	var path string
	path, other.address = podman.Socket(other.config.Socket)
	if other.address == nil {
		other.config.Socket = path
	}
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
	if err := l.config.checkOCIRuntime(); err != nil {
		return err
	}
	if err := CheckPodmanNetwork(l.config.Network); err != nil {
		return specError("podman network", err, "Name a network that was made for kicks (podman network create --internal NAME), or none")
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
	if err := l.remember(); err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "note the service for a later kick gc", Err: err, Remedy: "kick needs a directory of its own that it can write, see --state-dir"}
	}
	image, err := l.image(ctx, spec.Image)
	if err != nil {
		return nil, err
	}
	var network *podman.Network
	if l.config.Network != "" && mode != frame.CollectMode && spec.Network != NetworkNone {
		n, err := l.network(ctx)
		if err != nil {
			return nil, err
		}
		network = &n
	}
	p, err := newPodmanPlan(spec, mode, svc, image, files, l.config.OCIRuntime, network)
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

// remember notes for a later reaper which service this is. What is not a service of
// this user's has no container of kick's, and a reaper could never ask it.
func (l *Podman) remember() error {
	return remember(filepath.Join(l.config.Dir, "services"), PodmanChoice{Socket: l.config.Socket})
}

// services are the sockets of this launcher's service and of all that were
// remembered.
func (l *Podman) services() ([]string, error) {
	used, err := remembered[PodmanChoice](filepath.Join(l.config.Dir, "services"))
	sockets := []string{l.config.Socket}
	for _, c := range used {
		if !slices.Contains(sockets, c.Socket) {
			sockets = append(sockets, c.Socket)
		}
	}
	return sockets, err
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
	// uids and gids are how many ids an ordinary user's service can map.
	uids, gids int
	// silent is set when it did not answer any more.
	silent *atomic.Bool
}

// The versions that the contract is run on are 4.3 and 5.8.
const firstVersion = "4.3"

// service asks the service what it is. It must belong to this user: root's would
// give an ordinary user root's powers, and another user's sandboxes are not ours
// to look into.
func (l *Podman) service(ctx context.Context) (*service, error) {
	patience := askTimeout
	if l.silent.Load() { // for a last try, before the fallback
		patience = min(patience, pingEvery)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	listener, err := socketOwner(ctx, l.config.Socket)
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "reach Podman at " + l.config.Socket, Err: err,
			Remedy: "Start its service (systemctl --user start podman.socket; without systemd: podman system service --time=0), or set podman_socket or CONTAINER_HOST to its socket"}
	}
	owner := int(listener.Uid)
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
	l.silent.Store(false)
	s := &service{version: version, rootful: owner == 0, limits: map[string]bool{}, silent: &l.silent}
	controllers := controllers
	if !s.rootful {
		if controllers, err = l.askRootless(ctx, s, int(listener.Pid)); err != nil {
			return nil, err
		}
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

// askRootless fills in what differs between ordinary users' services: which
// controllers they may use for containers, on version 1 none and on version 2
// those that were delegated, and how many ids they have. Podman is slow to tell,
// so it is asked only for what cannot be seen.
func (l *Podman) askRootless(ctx context.Context, s *service, pid int) (controllers []string, err error) {
	var fs unix.Statfs_t
	grouped := unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
	// Where systemd listens in the service's place, its ids are the host's.
	s.uids, s.gids = mappedTo(pid, "uid_map", os.Geteuid()), mappedTo(pid, "gid_map", os.Getegid())
	if grouped || s.uids == 0 || s.gids == 0 {
		info, err := l.client.Info(ctx)
		if err != nil {
			return nil, &Error{Kind: ErrRuntime, Op: "ask Podman which limits and ids it has", Err: err}
		}
		if grouped {
			controllers = info.Host.CgroupControllers
		}
		s.uids, s.gids = podman.CountIDs(info.Host.IDMappings.UIDMap), podman.CountIDs(info.Host.IDMappings.GIDMap)
	}
	if least := min(s.uids, s.gids); least <= containerUID+1 {
		return nil, &Error{Kind: ErrRuntime, Op: "use Podman at " + l.config.Socket, Err: fmt.Errorf("its user has %d ids for containers, and an image needs some 65536", least),
			Remedy: "Give this user ranges in /etc/subuid and /etc/subgid: usermod --add-subuids 165536-231071 --add-subgids 165536-231071 USER, and then podman system migrate"}
	}
	return controllers, nil
}

// mappedTo counts the ids of a process's user namespace, if its root is that
// user of the host's, or else is 0.
func mappedTo(pid int, file string, user int) (count int) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		return 0
	}
	first := true
	for line := range strings.Lines(string(b)) {
		var inside, host, size int
		if _, err := fmt.Sscan(line, &inside, &host, &size); err != nil || first && (inside != 0 || host != user || size != 1) {
			return 0
		}
		first = false
		count += size
	}
	return count
}

// olderThan compares two versions of the form 1.2.3.
func olderThan(version, than string) bool {
	var a, b [2]int
	// What cannot be read counts as 0, the oldest.
	_, _ = fmt.Sscanf(version, "%d.%d", &a[0], &a[1])
	_, _ = fmt.Sscanf(than, "%d.%d", &b[0], &b[1])
	return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
}

// socketOwner is the process that listens on a Unix socket, and its user.
func socketOwner(ctx context.Context, path string) (*unix.Ucred, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, err
	}
	return cred, credErr
}

// image resolves a name to what runs: the image's id, and the name by digest
// under which the Result has it.
func (l *Podman) image(ctx context.Context, name string) (podmanImage, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	i, err := l.client.Image(ctx, name)
	if podman.IsStatus(err, 404) {
		return podmanImage{}, l.noImage(ctx, name, err)
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

// noImage says why there is no image of that name: Podman says 404 of everything.
func (l *Podman) noImage(ctx context.Context, name string, refused error) error {
	var said *podman.Error
	if errors.As(refused, &said) && said.Cause != "" && said.Cause != "image not known" {
		return &Error{Kind: ErrSpec, Op: fmt.Sprintf("image %q", name), Err: errors.New("it is no name of an image: " + said.Cause),
			Remedy: "Name it as HOST/NAME:TAG in lower case, or by digest as HOST/NAME@sha256:DIGEST, or by its id: podman images --digests"}
	}
	if tagged, _, byDigest := strings.Cut(name, "@"); byDigest {
		if i, err := l.client.Image(ctx, tagged); err == nil {
			return &Error{Kind: ErrSpec, Op: "image " + name, Err: fmt.Errorf("Podman has %s with another digest, %s", tagged, i.Digest),
				Remedy: "Name that digest if it is the image that you mean, or pull the other: podman pull " + name}
		}
	}
	return &Error{Kind: ErrSpec, Op: "image " + name, Err: errors.New("Podman does not have it, and kick pulls none"), Remedy: "Pull or load it first: podman pull " + name + ", or kick image build"}
}

// podmanImage is an image that was found.
type podmanImage struct{ id, pinned string }
