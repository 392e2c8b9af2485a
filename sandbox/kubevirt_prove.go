package sandbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// KubeVirtProperties are the names of what the KubeVirt launcher proves of every
// sandbox, in the order of Isolation.Properties. The first two are the machine's, the
// limits both's, and the rest is of the sandbox in it, as in EmbeddedProperties.
var KubeVirtProperties = []string{
	"machine", "machine-network",
	"user-namespace", "mount-namespace", "pid-namespace", "network-namespace", "ipc-namespace", "uts-namespace",
	"cgroup-namespace", "uid-mapping", "unprivileged-user", "supplementary-groups", "capabilities",
	"no-new-privileges", "seccomp", "mounts", "read-only-mounts", "nosuid-mounts", "nodev-mounts", "noexec-mounts",
	"proc", "no-network", "environment", "shim", "rlimits", "landlock", "seccomp-rules",
	"memory-limit", "process-limit", "cpu-limit", "disk-limit",
}

// kubeVirtRemedies say what to do about a property that this cluster or image does
// not give.
var kubeVirtRemedies = map[string]string{
	"machine":              "See which admission webhook of the namespace changes machines, and exempt it",
	"machine-network":      "Make sure that the cluster's network plugin enforces NetworkPolicies, and that the namespace has one that denies machines all egress",
	"supplementary-groups": "Let the image's user be in no group but its own",
	"unprivileged-user":    "Name a user of the image in kubevirt.user who is not root",
	"user-namespace":       "Use an image whose kernel lets ordinary users make user namespaces",
	"landlock":             "Use an image with Linux 5.13 or newer that has landlock in its list of security modules",
	"memory-limit":         "See what changes the machine's memory: an admission webhook, or hotplugged memory",
	"cpu-limit":            "See what changes the machine's processors: an admission webhook",
}

func (b *kubeVirtBox) prove(r frame.Readiness) ([]Property, error) {
	p := &kubeVirtProver{
		prover: prover{s: subject{readiness: r, shown: r.Shown, outside: b.machine.Shown, rlimits: b.plan.rlimits(), filters: 1, witness: true}},
		box:    b, got: b.eye.instance(),
	}
	if b.adopted != nil {
		p.digest()
		p.network()
	} else {
		p.s.entries = b.enclosure.root.entries
		p.all()
	}
	p.advise(kubeVirtRemedies)
	return p.props, nil
}

// kubeVirtProver collects properties of a machine and of the sandbox in it.
type kubeVirtProver struct {
	prover
	box *kubeVirtBox
	got *kubevirtapi.Instance
}

func (p *kubeVirtProver) all() {
	p.object()
	p.add("machine-network", p.box.machine.Network, fmt.Sprintf("the machine cannot reach %s; it is labelled %s=%s for the NetworkPolicies", strings.Join(p.box.launcher.config.Canaries, ", "), labelNetwork, NetworkNone))
	p.namespaces()
	p.identity()
	p.mounts()
	p.network()
	p.environment()
	p.digest()
	p.limits()
	p.probes()
	p.machineLimits()
}

// object wants the machine that was asked for, as admission has left it.
func (p *kubeVirtProver) object() {
	want, got := p.box.plan.instance.Spec, p.got.Spec
	var wrong []string
	differ := func(name string, differs bool) {
		if differs {
			wrong = append(wrong, name)
		}
	}
	differ("it has more or other disks than asked for", !slices.EqualFunc(want.Domain.Devices.Disks, got.Domain.Devices.Disks, func(a, b kubevirtapi.Disk) bool {
		return a.Name == b.Name && a.Serial == b.Serial
	}))
	differ("it has more or other volumes than asked for", !slices.EqualFunc(want.Volumes, got.Volumes, func(a, b kubevirtapi.Volume) bool {
		return a.Name == b.Name && (a.ContainerDisk == nil) == (b.ContainerDisk == nil) && (a.Secret == nil) == (b.Secret == nil) && (a.CloudInit == nil) == (b.CloudInit == nil) &&
			(a.ContainerDisk == nil || b.ContainerDisk == nil || a.ContainerDisk.Image == b.ContainerDisk.Image)
	}))
	one := func(s kubevirtapi.InstanceSpec) bool {
		return len(s.Networks) == 1 && s.Networks[0].Pod != nil && len(s.Domain.Devices.Interfaces) == 1 && s.Domain.Devices.Interfaces[0].Masquerade != nil
	}
	differ("it has other networks than its pod's, behind a masquerade", !one(got))
	differ("it is not labelled for the NetworkPolicies", p.got.Labels[labelNetwork] != string(NetworkNone))
	node := ""
	if s := p.got.Status; s != nil {
		node = s.NodeName
	}
	p.add("machine", strings.Join(wrong, "; "), fmt.Sprintf("API server: machine %s as asked for, on node %s: two disks, one network", p.got.Name, node))
}

// identity is as in the embedded runtime, whose user is another one outside.
func (p *kubeVirtProver) identity() {
	m := p.box.machine
	p.s.hostUID, p.s.hostGID = m.UID, m.GID
	p.mapping()
	p.s.hostUID, p.s.hostGID = insideUID, insideUID
	status, _ := p.read("status") // that it is not there, status says
	if strings.TrimSpace(parseStatus(status)["Groups"]) == strconv.Itoa(insideUID) {
		p.s.groups = []int{insideUID} // its own, which is no more than it is
	}
	p.status()
}

func (p *kubeVirtProver) digest() {
	said, want := p.s.shown[frame.ShownShim], p.box.launcher.cluster.digest
	problem := ""
	if said != want {
		problem = fmt.Sprintf("the shim in the machine has the digest %.64q, this kick's has %s", said, want)
	}
	p.add("shim", problem, "the shim: its SHA-256 is that of this kick's, "+want)
}

// machineLimits tells how each limit is held.
func (p *kubeVirtProver) machineLimits() {
	l, plan := p.box.plan.limits, p.box.plan
	limit := func(name string, none bool, problem, evidence string) {
		if none {
			p.props = append(p.props, Property{Name: name, Status: NotRequested})
			return
		}
		p.add(name, problem, evidence)
	}
	total, online := meminfoTotal(p.box.machine.Shown["/proc/meminfo"]), cpusOnline(p.box.machine.Shown["/sys/devices/system/cpu/online"])
	problem := func(bad bool, format string, args ...any) string {
		if bad {
			return fmt.Sprintf(format, args...)
		}
		return ""
	}
	limit("memory-limit", l.Memory == 0, problem(total < 0 || total > l.Memory, "the machine has %d bytes", total), fmt.Sprintf("the machine itself has %d bytes for all that is in it", total))
	limit("process-limit", l.Processes == 0, "", "RLIMIT_NPROC in the user namespace is "+strconv.Itoa(l.Processes+shimThreads)+"; "+strconv.Itoa(shimThreads)+" of it for the shim's threads")
	limit("cpu-limit", l.CPUs == 0, problem(online < 0 || online > plan.cores(), "the machine has %d processors", online), fmt.Sprintf("the machine has %d processors", online))
	limit("disk-limit", l.Disk == 0, "", fmt.Sprintf("poller of the shim: at most %d bytes in the workspace, measured at least every 5s; the machine's disk holds what is written to it and goes with it", l.Disk))
}
