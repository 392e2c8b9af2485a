package sandbox

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kickhq/kick/internal/frame"
)

// The host cannot look into a pod. Two others have: the API server, whose object of
// the pod says what the node was told to make, and the shim, which is the pod's
// first process, has not yet let anything else run, and sends what /proc and the
// control groups say. The evidence says whose word it is.

// KubernetesProperties are the names of what the Kubernetes launcher proves of
// every sandbox, in the order of Isolation.Properties.
var KubernetesProperties = []string{
	"pod", "no-service-account-token", "user-namespace", "unprivileged-user", "capabilities", "no-new-privileges",
	"seccomp", "mounts", "read-only-mounts", "nosuid-mounts", "nodev-mounts", "noexec-mounts", "proc", "no-network",
	"environment", "shim", "rlimits", "seccomp-rules", "memory-limit", "process-limit", "cpu-limit", "disk-limit",
}

// kubeRemedies say what to do about a property that this cluster does not give.
var kubeRemedies = map[string]string{
	"pod":                      "See which admission webhook of the namespace changes pods, and exempt it",
	"no-service-account-token": "See what mounts a token into the pod: a webhook, or the image",
	"user-namespace":           "Use nodes with user namespaces for pods (Kubernetes 1.33, containerd 2 and Linux 6.3 or newer), or set kubernetes.host_users and accept user-namespace and process-limit as weaker",
	"no-network":               "Make sure that the cluster's network plugin enforces NetworkPolicies, and that the namespace has those that `kick manifests kubernetes` prints",
	"shim":                     "Build the image that has the shim with this very kick (`kick image build`)",
	"mounts":                   "See what adds it: a webhook, the container runtime's configuration, or a volume of the image",
	"memory-limit":             "See whether the node's control groups have the memory controller",
	"cpu-limit":                "See whether the node's control groups have the cpu controller",
	"process-limit":            "Without user namespaces a limit of processes would count other pods' too: use them, or accept process-limit as weaker",
}

func (b *kubeBox) prove(r frame.Readiness) ([]Property, error) {
	if err := b.admit(); err != nil {
		return nil, err
	}
	plan := b.plan
	if plan == nil { // an orphan's: what it was to be, its pod says
		plan = &kubePlan{config: b.launcher.config, spec: b.spec, limits: resolveLimits(Limits{Memory: -1, Processes: -1, Disk: -1}), mode: b.mode}
	}
	seen, _, _ := b.eye.look()
	p := &kubeProver{prover: prover{s: subject{readiness: r, rlimits: plan.rlimits, shown: r.Shown}}, plan: plan, pod: seen.pod, differs: seen.podDiffers, digest: b.launcher.digest}
	if b.adopted {
		p.orphan()
	} else {
		p.all()
	}
	p.advise(kubeRemedies)
	return p.props, nil
}

// kubeProver collects properties of a pod.
type kubeProver struct {
	prover
	plan    *kubePlan
	pod     *corev1.Pod
	differs []string // in what it is not as asked for
	digest  string
}

func (p *kubeProver) all() {
	p.object()
	p.token()
	p.userNamespace()
	p.identity()
	p.kubeMounts()
	p.kubeNetwork()
	p.environment()
	p.kubeShim()
	p.limits()
	p.probes()
	p.kubeLimits()
}

// orphan is what counts of a pod whose command is dead: that it is the shim that
// speaks, which the key of the line has shown, and that it is this kick's.
func (p *kubeProver) orphan() {
	p.kubeShim()
	p.add("no-network", p.s.readiness.Probes["no-network"], "the shim: no canary was reached")
}

// object wants the pod that was asked for, as admission has left it.
func (p *kubeProver) object() {
	p.add("pod", strings.Join(p.differs, "; "), fmt.Sprintf("API server: pod %s as asked for, on node %s: restricted, one container, no namespace of the node, no other volume", p.pod.Name, p.pod.Spec.NodeName))
}

// differs tells in what a pod is not as asked for.
func (p *kubePlan) differs(got *corev1.PodSpec) (wrong []string) {
	want := p.pod()
	differ := func(name string, differs bool) {
		if differs {
			wrong = append(wrong, name)
		}
	}
	differ("it has more or other containers than asked for", len(got.Containers) != 1 || len(got.InitContainers) != len(want.InitContainers) || len(got.EphemeralContainers) > 0)
	differ("it shares namespaces of the node", got.HostNetwork || got.HostPID || got.HostIPC || got.ShareProcessNamespace != nil && *got.ShareProcessNamespace)
	for _, v := range got.Volumes {
		differ("volume "+v.Name+" is not as asked for", !slices.ContainsFunc(want.Volumes, func(w corev1.Volume) bool { return w.Name == v.Name && sameSource(w, v) }))
	}
	for i, c := range append(slices.Clone(got.InitContainers), got.Containers...) {
		s := c.SecurityContext
		differ("container "+c.Name+" is not restricted", s == nil || s.Privileged != nil && *s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
			s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.Capabilities == nil || len(s.Capabilities.Add) > 0 || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}))
		differ("container "+c.Name+" has an environment", len(c.Env) > 0 || len(c.EnvFrom) > 0)
		if w := append(slices.Clone(want.InitContainers), want.Containers...); i < len(w) {
			differ("container "+c.Name+" runs another program or image", !slices.Equal(c.Command, w[i].Command) || len(c.Args) > 0 || c.Image != w[i].Image)
		}
	}
	return wrong
}

// sameSource tells whether a volume is of the kind, and of the claim, that was asked
// for. Which mounts of it there are, the mount table tells.
func sameSource(want, got corev1.Volume) bool {
	if c := want.PersistentVolumeClaim; c != nil {
		return got.PersistentVolumeClaim != nil && got.PersistentVolumeClaim.ClaimName == c.ClaimName
	}
	return got.EmptyDir != nil
}

func (p *kubeProver) token() {
	problem := ""
	if a := p.pod.Spec.AutomountServiceAccountToken; a == nil || *a {
		problem = "the pod object asks for one"
	}
	if _, there := p.s.shown["/var/run/secrets/kubernetes.io/serviceaccount/token"]; there {
		problem = "the shim finds one in /var/run/secrets"
	}
	p.add("no-service-account-token", problem, "API server: none is mounted; the shim finds none")
}

// wholeMap is the map of the node's own user namespace.
const wholeMap = "0 0 4294967295"

func (p *kubeProver) userNamespace() {
	text, problem := p.read("uid_map")
	got := strings.Join(strings.Fields(text), " ")
	if problem == "" && (got == wholeMap || got == "") {
		problem = "uid_map is the node's own"
	}
	p.add("user-namespace", problem, "the shim: uid_map "+got)
}

// identity is as in other containers; how many filters the container runtime has
// put before the shim's is its own.
func (p *kubeProver) identity() {
	text, problem := p.read("status")
	f := parseStatus(text)
	n, _ := strconv.Atoi(f["Seccomp_filters"])
	p.s.hostUID, p.s.hostGID, p.s.filters = containerUID, containerGID, max(n, 2)
	for _, g := range strings.Fields(f["Groups"]) {
		if id, err := strconv.Atoi(g); err == nil && id == containerGID {
			p.s.groups = append(p.s.groups, id)
		}
	}
	if problem != "" {
		p.s.filters = 0
	}
	p.status()
}

func (p *kubeProver) kubeMounts() {
	p.mountTable("all as planned or a container's own", func(got, host []mount) []mountProblem {
		return compareKube(got, p.plan.pod().Containers[0].VolumeMounts)
	})
}

// kubeFiles are the files that the node mounts into every container.
var kubeFiles = []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log"}

// compareKube compares a pod's mounts with those that were asked for.
func compareKube(got []mount, want []corev1.VolumeMount) (problems []mountProblem) {
	report := func(property, format string, args ...any) {
		problems = append(problems, mountProblem{property, fmt.Sprintf(format, args...)})
	}
	planned := map[string]bool{}
	for _, m := range want {
		planned[m.MountPath] = m.ReadOnly
	}
	seen := map[string]bool{}
	for _, m := range got {
		if seen[m.target] && !covered(m) {
			report("mounts", "%s is mounted twice", m.target)
		}
		seen[m.target] = true
		readOnly, ours := planned[m.target]
		switch {
		case ours:
			if readOnly && !m.has("ro") {
				report("read-only-mounts", "%s is mounted without ro", m.target)
			}
		case m.target == "/dev/termination-log", m.target == "/etc/hosts":
			// Mounted with write, but the second is the node's root's, whom the pod's
			// users are not.
		case slices.Contains(kubeFiles, m.target):
			if !m.has("ro") {
				report("read-only-mounts", "%s is mounted without ro", m.target)
			}
		default:
			compareOwn(m, nil, report)
		}
	}
	for target := range planned {
		if !seen[target] {
			report("mounts", "%s should be mounted and is not", target)
		}
	}
	for _, target := range []string{"/", "/proc", "/dev"} {
		if !seen[target] {
			report("mounts", "%s should be mounted and is not", target)
		}
	}
	return problems
}

func (p *kubeProver) kubeNetwork() {
	said, tried := p.s.readiness.Probes["no-network"]
	if !tried {
		said = "the shim did not try"
	}
	p.add("no-network", said, fmt.Sprintf("the shim: %s cannot be reached; the pod is labelled %s=%s for the NetworkPolicies", strings.Join(p.plan.config.Canaries, ", "), labelNetwork, p.pod.Labels[labelNetwork]))
}

func (p *kubeProver) kubeShim() {
	said := p.s.shown[frame.ShownShim]
	problem := ""
	if said != p.digest {
		problem = fmt.Sprintf("the shim in the pod has the digest %.64q, this kick's has %s", said, p.digest)
	}
	p.add("shim", problem, "the shim: its SHA-256 is that of this kick's, "+p.digest)
}

// kubeLimits tells how each limit is held.
func (p *kubeProver) kubeLimits() {
	l := p.plan.limits
	limit := func(name string, none bool, evidence string, ok bool) {
		prop := Property{Name: name, Status: Enforced, Evidence: evidence}
		switch {
		case none:
			prop = Property{Name: name, Status: NotRequested}
		case !ok:
			prop.Status, prop.Remedy = Missing, kubeRemedies[name]
		}
		p.props = append(p.props, prop)
	}
	number := func(names ...string) float64 {
		for _, n := range names {
			f := strings.Fields(p.s.shown[n])
			if len(f) == 0 {
				continue
			}
			v, err := strconv.ParseFloat(f[0], 64)
			if err != nil || v < 0 {
				return -1 // "max"
			}
			if len(f) == 2 { // cpu.max
				period, err := strconv.ParseFloat(f[1], 64)
				if err != nil || period <= 0 {
					return -1
				}
				v /= period
			}
			return v
		}
		return -1
	}
	memory := number("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
	limit("memory-limit", l.Memory == 0, fmt.Sprintf("the shim: its control group holds memory to %.0f bytes", memory), memory >= 0 && memory <= float64(l.Memory))
	limit("process-limit", l.Processes == 0, fmt.Sprintf("RLIMIT_NPROC in the pod's user namespace is %d; %d of it for the shim's threads and connections", l.Processes+shimThreads+lineProcesses, shimThreads+lineProcesses), !p.plan.config.HostUsers)
	cpus := number("/sys/fs/cgroup/cpu.max")
	if quota := number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); cpus < 0 && quota > 0 {
		cpus = quota / number("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
	}
	limit("cpu-limit", l.CPUs == 0, fmt.Sprintf("the shim: its control group holds it to %.2f cores", cpus), cpus > 0 && cpus <= l.CPUs+0.01)
	node := "the node evicts at a quarter more"
	if p.plan.config.Claim != "" {
		node = "the claim itself holds no kick to it"
	}
	limit("disk-limit", l.Disk == 0, fmt.Sprintf("poller of the shim: at most %d bytes in the workspace, measured at least every 5s; %s; sizes of file systems in memory for the rest", l.Disk, node), true)
}

// shownFile is a file of process 1 that the shim has read.
func (p *prover) shownFile(name string) (string, string) {
	b, ok := p.s.shown[path.Join("/proc/self", name)]
	if !ok {
		return "", cmp.Or(name, "a file") + ": the shim did not show it"
	}
	return b, ""
}
