package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/podman"
)

// podmanPlan is one container, decided before anything is started: the launch
// specification translated into what Podman is to make, and into what the host
// then checks.
type podmanPlan struct {
	spec    LaunchSpec
	limits  Limits // resolved: 0 means none
	mode    frame.Mode
	service *service
	image   podmanImage
	network string // what the operator's network is; empty: none
	shim    os.FileInfo
	hostUID int
	hostGID int
	rlimits []frame.Rlimit
	filter  []byte
	config  frame.Config
	create  podman.Spec
}

const (
	// containerUID and containerGID are who the sandbox is in the container:
	// "nonroot", as in images that have no other user than root.
	containerUID = 65532
	containerGID = 65532
	// shimPath is where the container sees the shim.
	shimPath = "/run/kick/shim"
	// mappedIDs is how many user ids a container of root has.
	mappedIDs = 65536
	// firstMapped is the host's id for user 0 in the containers of root: just
	// below those of the embedded runtime's sandboxes. It is the same for all
	// containers, since Podman makes a copy of the image for each mapping.
	firstMapped = uidFirst - mappedIDs
)

// Labels of our containers, by which a reaper finds them.
const (
	labelID       = "kick.id"
	labelAgent    = "kick.agent"
	labelOwner    = "kick.owner"    // where the claim on the id is held, see claimOwner
	labelDeadline = "kick.deadline" // RFC 3339; nothing of ours runs longer
)

// containerName is the name of a kick's container. A second one, for the
// artifacts alone, may be there beside the first one.
func containerName(id string, mode frame.Mode) string {
	if mode == frame.CollectMode {
		return "kick-" + id + collectorGroup
	}
	return "kick-" + id
}

// newPodmanPlan translates a specification, which was checked.
// network is the operator's, if the sandbox is to be in one.
func newPodmanPlan(spec LaunchSpec, mode frame.Mode, svc *service, image podmanImage, files *installed, ociRuntime string, network *podman.Network) (*podmanPlan, error) {
	filter, err := systemCallFilter()
	if err != nil {
		return nil, &Error{Kind: ErrIsolation, Op: "seccomp", Err: err, Remedy: remedyOf("seccomp")}
	}
	p := &podmanPlan{spec: spec, limits: resolveLimits(spec.Limits), mode: mode, service: svc, image: image, shim: files.info, filter: filter,
		hostUID: os.Geteuid(), hostGID: os.Getegid()}
	if svc.rootful {
		p.hostUID, p.hostGID = firstMapped+containerUID, firstMapped+containerGID
	}
	p.rlimits = commonRlimits(p.limits)
	if !svc.limits["process-limit"] && p.limits.Processes > 0 {
		p.rlimits = append(p.rlimits, processRlimit(p.limits))
	}
	p.config = shimConfig(spec, p.limits, mode)
	p.config.Pause = mode != frame.CollectMode
	if p.create, err = p.container(files, ociRuntime); err == nil && network != nil {
		p.join(*network)
	}
	return p, err
}

// lifetime is how long the container can take at most, all told. Podman ends it
// then, whatever has become of kick.
func (p *podmanPlan) lifetime() time.Duration {
	return startTimeout + checkoutTimeout + p.limits.Wall + 2*wallGrace + collectTimeout + time.Minute
}

// container is what Podman is to make. It relies on no default.
func (p *podmanPlan) container(files *installed, ociRuntime string) (podman.Spec, error) {
	yes, no := new(true), new(false)
	private := podman.Namespace{Mode: "private"}
	s := podman.Spec{
		Name:        containerName(p.spec.ID, p.mode),
		Image:       p.image.id,
		VolumeMode:  "ignore",
		Entrypoint:  []string{shimPath},
		Command:     []string{"lock"},
		Env:         map[string]string{},
		EnvHost:     no,
		HTTPProxy:   no,
		UnsetEnvAll: yes,
		Terminal:    no,
		Stdin:       yes,
		Init:        no,
		Labels:      map[string]string{},
		Timeout:     uint(p.lifetime().Seconds()),
		Log:         podman.LogConfig{Driver: "none"},
		OCIRuntime:  ociRuntime,
		Remove:      yes, // also if kick is dead by then
		Volatile:    yes, // as with podman run --rm; the workspace is a mount of its own
		Restart:     "no",
		Systemd:     "false",
		SdNotify:    "ignore",
		Hostname:    p.spec.ID,
		Health:      podman.HealthConfig{Test: []string{"NONE"}},
		WorkDir:     "/",
		Umask:       "0022",

		PidNS: private, UtsNS: private, IpcNS: private, CgroupNS: private,
		NetNS: podman.Namespace{Mode: "none"}, // one with loopback alone

		User:            fmt.Sprintf("%d:%d", containerUID, containerGID),
		Groups:          []string{},
		Passwd:          yes,
		PasswdEntry:     fmt.Sprintf("agent:x:%d:%d:agent:%s:/bin/sh", containerUID, containerGID, HomeDir),
		GroupEntry:      fmt.Sprintf("agent:x:%d:", containerGID),
		Privileged:      no,
		CapDrop:         []string{"ALL"},
		NoNewPrivileges: yes,
		SeccompPolicy:   "default", // which means the profile
		SeccompProfile:  files.profile,
		ReadOnly:        yes,
		ReadWriteTmpfs:  no,
		UseImageHosts:   yes, // Podman's own would name the host's addresses
		UseImageResolv:  yes,
		Mask:            presentFiles(hiddenProc),

		ShmSize: p.limits.tmpSize(),
	}
	for k, v := range p.spec.Labels {
		s.Labels[k] = v
	}
	owner, err := claimOwner()
	if err != nil {
		return s, err
	}
	s.Labels[labelID], s.Labels[labelAgent], s.Labels[labelOwner] = p.spec.ID, p.spec.Agent, owner
	s.Labels[labelDeadline] = time.Now().Add(p.lifetime()).UTC().Format(time.RFC3339)
	p.user(&s)
	p.mounts(&s, files)
	p.resources(&s)
	return s, p.ulimits(&s)
}

// join puts the container into the operator's network. Names in it are found by
// the resolv.conf that Podman writes for it.
func (p *podmanPlan) join(n podman.Network) {
	p.network = describeNetwork(n)
	p.create.NetNS = podman.Namespace{Mode: "bridge"}
	p.create.Networks = map[string]struct{}{n.Name: {}}
	p.create.UseImageResolv = new(false)
}

// user maps the container's ids. The sandbox's user is the caller where that is
// not root, so that the workspace stays the caller's.
func (p *podmanPlan) user(s *podman.Spec) {
	if !p.service.rootful {
		s.UserNS = podman.Namespace{Mode: "private"}
		s.IDMap = &podman.IDMappings{UIDMap: keepID(containerUID, p.service.uids), GIDMap: keepID(containerGID, p.service.gids)}
		return
	}
	if name, _ := guestRuntime(s.OCIRuntime); name == "runsc" {
		// gVisor's file server is root in the container's user namespace, and could
		// not get at the caller's closed directories from one of its own. What it
		// serves is chosen by mounts, and the guest is a user of its own all the same.
		s.UserNS = podman.Namespace{Mode: "host"}
		s.User = fmt.Sprintf("%d:%d", p.hostUID, p.hostGID)
		s.PasswdEntry = fmt.Sprintf("agent:x:%d:%d:agent:%s:/bin/sh", p.hostUID, p.hostGID, HomeDir)
		s.GroupEntry = fmt.Sprintf("agent:x:%d:", p.hostGID)
		return
	}
	s.UserNS = podman.Namespace{Mode: "private"}
	m := []podman.IDMap{{ContainerID: 0, HostID: firstMapped, Size: mappedIDs}}
	s.IDMap = &podman.IDMappings{UIDMap: m, GIDMap: m}
}

// keepID is what Podman's own mode keep-id makes of that id: the caller, who is
// root in the service's user namespace, is id in the container, and the others
// follow one another. Podman 4.3 as Debian builds it crashes now and then when two
// containers ask for keep-id at once: it reads /etc/subuid with libsubid, which
// keeps its place in the file in one variable for all threads.
func keepID(id, count int) []podman.IDMap {
	return []podman.IDMap{{ContainerID: 0, HostID: 1, Size: id}, {ContainerID: id, HostID: 0, Size: 1}, {ContainerID: id + 1, HostID: id + 1, Size: count - id - 1}}
}

func (p *podmanPlan) mounts(s *podman.Spec, files *installed) {
	bind := func(source, target string, options ...string) {
		options = append(options, "bind", "rprivate", "nosuid", "nodev")
		if selinux() {
			// A label of the container's own on what is its alone, and one that
			// all containers may read on the rest.
			options = append(options, map[bool]string{true: "Z", false: "z"}[target == p.spec.Workspace.MountPath])
		}
		s.Mounts = append(s.Mounts, podman.Mount{Type: "bind", Source: source, Destination: target, Options: options})
	}
	tmpfs := func(target string, mode uint32) {
		s.Mounts = append(s.Mounts, podman.Mount{Type: "tmpfs", Source: "tmpfs", Destination: target,
			Options: []string{"rw", "nosuid", "nodev", "notmpcopyup", fmt.Sprintf("mode=%04o", mode), fmt.Sprintf("size=%d", p.limits.tmpSize())}})
	}
	bind(files.shim, shimPath, "ro")
	// Podman 4 takes no owner of a tmpfs; the container has one user.
	tmpfs("/tmp", 0o1777)
	tmpfs(HomeDir, 0o1777)
	w := p.spec.Workspace
	switch {
	case w.Dir == "":
		tmpfs(w.MountPath, 0o1777)
	case p.mode == frame.CollectMode:
		bind(w.Dir, w.MountPath, "ro")
	default:
		bind(w.Dir, w.MountPath, "rw")
	}
	if w.Objects != "" {
		bind(w.Objects, BaseObjectsPath, "ro", "noexec")
	}
	if p.mode != frame.CollectMode && p.spec.Egress.Socket != "" {
		bind(path.Dir(p.spec.Egress.Socket), path.Dir(EgressSocketPath), "ro", "noexec")
	}
}

// resources asks for those limits that the service can set.
func (p *podmanPlan) resources(s *podman.Spec) {
	const period = 100000 // microseconds, the kernel's own default
	r := &podman.Resources{}
	if l := p.limits.Memory; l > 0 && p.service.limits["memory-limit"] {
		r.Memory = &podman.Memory{Limit: l, Swap: l} // swap would double the limit
	}
	if p.limits.Processes > 0 && p.service.limits["process-limit"] {
		r.Pids = &podman.Pids{Limit: int64(p.processLimit(s.OCIRuntime))}
	}
	if l := p.limits.CPUs; l > 0 && p.service.limits["cpu-limit"] {
		r.CPU = &podman.CPU{Quota: max(1000, int64(l*period)), Period: period}
	}
	if *r != (podman.Resources{}) {
		s.Resources = r
	}
}

// processLimit is what a control group holds the container to.
func (p *podmanPlan) processLimit(ociRuntime string) int {
	n := p.limits.Processes + shimThreads
	if _, guest := guestRuntime(ociRuntime); guest {
		n += guestTasks
	}
	return n
}

// ulimits are those that Podman sets by itself otherwise, higher than a root
// without CAP_SYS_RESOURCE may. The service may be under lower limits than this
// process, so they are no higher than containers need.
func (p *podmanPlan) ulimits(s *podman.Spec) error {
	processes := uint64(1 << 15) // the highest number of processes that Podman's own service allows itself
	if p.limits.Processes > 0 {
		processes = min(processes, uint64(2*p.processLimit(s.OCIRuntime))) // the real limit is reached first
	}
	for _, l := range []struct {
		name     string
		resource int
		most     uint64
	}{{"nofile", unix.RLIMIT_NOFILE, 1 << 16}, {"nproc", unix.RLIMIT_NPROC, processes}} {
		var own unix.Rlimit
		if err := unix.Getrlimit(l.resource, &own); err != nil {
			return &Error{Kind: ErrRuntime, Op: "look at this process's limits", Err: err}
		}
		v := min(own.Max, l.most)
		s.Rlimits = append(s.Rlimits, podman.Rlimit{Type: l.name, Soft: v, Hard: v})
	}
	return nil
}

// configs are what the shim is told: how to lock itself down, then the rest.
func (p *podmanPlan) configs() ([]frame.Config, error) {
	raw, err := json.Marshal(frame.Jail{NoNewPrivs: true, Filter: p.filter, Rlimits: p.rlimits})
	return []frame.Config{{Mode: p.mode, Jail: raw}, p.config}, err
}

// presentFiles are those of a list that this kernel has.
func presentFiles(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(f string) bool {
		_, err := os.Lstat(f)
		return err != nil
	})
}

// selinux reports whether files need a label for containers to use them.
func selinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

// claimOwner names the place where claims on ids are held: abstract sockets, of
// this user in this network namespace.
func claimOwner() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return "", &Error{Kind: ErrRuntime, Op: "look at this process's network namespace", Err: err}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || len(boot) < 8 {
		return "", &Error{Kind: ErrRuntime, Op: "read the boot id", Err: errors.Join(err, errors.New("it is too short"))}
	}
	return strconv.Itoa(os.Geteuid()) + "." + strconv.FormatUint(st.Ino, 10) + "." + string(boot[:8]), nil
}
