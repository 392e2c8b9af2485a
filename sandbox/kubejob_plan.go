package sandbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/frame"
)

// kubePlan is one Job, decided before anything is made: the launch specification
// translated into what the API server is to have, and into what the host then
// checks.
type kubePlan struct {
	config  KubernetesConfig
	spec    LaunchSpec
	limits  Limits // resolved: 0 means none
	mode    frame.Mode
	filter  []byte
	rlimits []frame.Rlimit
	base    kubeBase     // where the workspace is on a claim, and there is a base
	job     *batchv1.Job // without the template of its pod, which is large
	standby *kubePlan    // by which the pod was made, where that stood by
	stands  bool         // it is such a plan
	clears  bool         // of a pod that removes the kick's directory from a claim
}

const (
	// kubeContainer is the name of a pod's one container, and kubeInit that of what
	// prepares the pod.
	kubeContainer = "agent"
	kubeInit      = "shim"
	// kubeShim is where an image has the shim, if it has it.
	kubeShim = "/usr/libexec/kick/kick-shim"
	// kubeOwnShim is where kick's own image has it.
	kubeOwnShim = "/kick-shim"
	// kubeShimDir is where a pod has the shim if another image brings it.
	kubeShimDir = "/run/kick/bin"
	// kubeVolume is where the init container sees the volume of the workspace, and
	// kubeWork the directory in it that it makes.
	kubeVolume = "/run/kick/volume"
	kubeWork   = "work"
	// lineProcesses is what the host's connections take of a limit of processes: two
	// at once, while one replaces the other, of six to nine threads.
	lineProcesses = 20
)

// What a pod asks its node for, since its limits are for the worst case and not
// for the usual one: the largest measured agent uses 540 MB resident.
const (
	kubeRequestCPU    = 0.1
	kubeRequestMemory = 512 << 20
	kubeRequestDisk   = 1 << 30
)

// Annotations of a Job.
const (
	jobLifetime = "kick.lifetime" // from its making on, as "1h5m0s"; nothing of ours runs longer
	jobStart    = "kick.start"    // which attempt has made it
)

// labelNetwork tells what a pod may reach, for NetworkPolicies (see package
// policy): with networkRestricted the gateway, else nothing.
const (
	labelNetwork      = "kick.network"
	networkRestricted = "restricted"
)

// newKubePlan translates a specification, which was checked.
func newKubePlan(config KubernetesConfig, spec LaunchSpec, mode frame.Mode, base kubeBase, owner, start string) (*kubePlan, error) {
	filter, err := systemCallFilter()
	if err != nil {
		return nil, &Error{Kind: ErrIsolation, Op: "seccomp", Err: err, Remedy: remedyOf("seccomp")}
	}
	p := &kubePlan{config: config, spec: spec, limits: resolveLimits(spec.Limits), mode: mode, filter: filter, base: base}
	p.rlimits = p.kubeRlimits()
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[labelID], labels[labelAgent], labels[labelOwner], labels[labelNetwork] = spec.ID, spec.Agent, owner, string(spec.Network)
	p.job = &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "kick-" + spec.ID, Namespace: config.Namespace, Labels: maps.Clone(labels),
			Annotations: map[string]string{jobLifetime: p.lifetime().String(), jobStart: start},
		},
		Spec: batchv1.JobSpec{
			Parallelism: new(int32(1)), Completions: new(int32(1)), BackoffLimit: new(int32(0)),
			ActiveDeadlineSeconds:   new(int64(p.lifetime().Seconds())),
			TTLSecondsAfterFinished: new(int32(600)),
			// An agent is never started twice, whatever has ended its pod.
			PodReplacementPolicy: new(batchv1.Failed),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
				{Action: batchv1.PodFailurePolicyActionFailJob, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
				{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{0}}},
			}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}},
		},
	}
	if config.Queue != "" {
		p.job.Labels["kueue.x-k8s.io/queue-name"] = config.Queue
	}
	return p, nil
}

func (p *kubePlan) kubeRlimits() []frame.Rlimit {
	list := commonRlimits(p.limits)
	if p.limits.Processes > 0 && !p.config.HostUsers {
		// Where users are the node's, this would count other pods' processes too.
		r := processRlimit(p.limits)
		r.Value += lineProcesses
		list = append(list, r)
	}
	return list
}

// lifetime is how long the Job can take at most, all told. The Job's controller
// ends it then, whatever has become of kick.
func (p *kubePlan) lifetime() time.Duration {
	d := p.config.Pending + startTimeout + checkoutTimeout + p.limits.Wall + 2*wallGrace + collectTimeout + time.Minute
	if p.base != (kubeBase{}) {
		d += checkoutTimeout // for the base, before that
	}
	return d
}

// whole is the Job as the API server is to have it.
func (p *kubePlan) whole() *batchv1.Job {
	j := *p.job
	j.Spec.Template.Spec = p.pod()
	return &j
}

// pod is the kick's pod. Two calls make the same.
func (p *kubePlan) pod() corev1.PodSpec {
	if p.standby != nil {
		return p.standby.pod()
	}
	c := p.config
	shim := kubeShim
	var init []corev1.Container
	if c.ShimImage != "" {
		shim = kubeShimDir + "/kick-shim"
		init = []corev1.Container{{
			Name: kubeInit, Image: c.ShimImage, ImagePullPolicy: corev1.PullIfNotPresent,
			Command: []string{kubeOwnShim, "install", p.install(shim)}, SecurityContext: kubeSecurity(), Resources: p.resources(),
			VolumeMounts: []corev1.VolumeMount{{Name: "shim", MountPath: kubeShimDir}, {Name: "workspace", MountPath: kubeVolume}},
		}}
	}
	volumes, mounts := p.volumes()
	pod := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		ServiceAccountName:            c.ServiceAccount,
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		ShareProcessNamespace:         new(false),
		TerminationGracePeriodSeconds: new(int64(1)), // process 1 takes no signal
		// No name is resolved: the gateway does that outside.
		DNSPolicy: corev1.DNSNone,
		DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}},
		Hostname:  p.spec.ID,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(containerUID)), RunAsGroup: new(int64(containerGID)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		InitContainers: init,
		Containers: []corev1.Container{{
			Name: kubeContainer, Image: p.spec.Image, ImagePullPolicy: corev1.PullIfNotPresent, WorkingDir: "/",
			Command: []string{shim, "wait", p.wait()}, SecurityContext: kubeSecurity(), Resources: p.resources(), VolumeMounts: mounts,
		}},
		Volumes:           volumes,
		NodeSelector:      c.NodeSelector,
		Affinity:          c.Affinity,
		PriorityClassName: c.PriorityClass,
	}
	if c.Claim != "" {
		// Whoever made the volume, this group may write there.
		pod.SecurityContext.FSGroup, pod.SecurityContext.FSGroupChangePolicy = new(int64(containerGID)), new(corev1.FSGroupChangeOnRootMismatch)
	}
	if !c.HostUsers {
		pod.HostUsers = new(false)
	}
	if c.RuntimeClass != "" {
		pod.RuntimeClassName = new(c.RuntimeClass)
	}
	for _, s := range c.PullSecrets {
		pod.ImagePullSecrets = append(pod.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	pod.Tolerations = tolerations(c.Tolerations)
	if p.clears {
		p.clearing(&pod)
	}
	return pod
}

// wait tells the shim what holds before anybody has come to it.
func (p *kubePlan) wait() string {
	w := frame.Wait{Jail: frame.Jail{NoNewPrivs: true, Filter: p.filter, Rlimits: p.rlimits}, AloneMS: p.config.Alone.Milliseconds(), Canaries: p.config.Canaries, Standby: p.stands}
	if p.stands {
		w.Canaries = nil // its kick names them
	}
	b, err := json.Marshal(w)
	if err != nil {
		panic(err) // it is bytes, text and numbers
	}
	return string(b)
}

func tolerations(list []Toleration) (made []corev1.Toleration) {
	for _, t := range list {
		op := corev1.TolerationOpEqual
		if t.Value == "" {
			op = corev1.TolerationOpExists
		}
		made = append(made, corev1.Toleration{Key: t.Key, Operator: op, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	return made
}

// install tells the init container what to prepare.
func (p *kubePlan) install(shim string) string {
	i := frame.Install{Shim: shim, Work: kubeVolume + "/" + kubeWork}
	if p.config.Claim != "" {
		i.Work, i.Kept = path.Join(kubeVolume, p.config.workOf(p.spec.ID)), p.mode == frame.CollectMode
	}
	if p.base != (kubeBase{}) && p.mode != frame.CollectMode {
		i.Base, i.Objects, i.WaitMS = path.Join(kubeVolume, p.base.Dir), p.base.Objects, p.config.Alone.Milliseconds()
	}
	b, err := json.Marshal(i)
	if err != nil {
		panic(err) // it is text and numbers
	}
	return string(b)
}

// kubeSecurity is what the Pod Security level "restricted" wants of a container,
// and a root file system that is read-only.
func kubeSecurity() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Privileged: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// volumes are all that can be written. The workspace and the base's objects are on
// the node's disk; what other runtimes have in memory is in memory here too.
func (p *kubePlan) volumes() ([]corev1.Volume, []corev1.VolumeMount) {
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	claimed := p.config.Claim != ""
	add := func(name, at string, readOnly bool, source corev1.EmptyDirVolumeSource) {
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &source}})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: readOnly})
	}
	disk := corev1.EmptyDirVolumeSource{}
	if l := p.limits.Disk; l > 0 {
		// The shim ends the command at the limit; the node, which takes the work
		// with it, comes after that.
		disk.SizeLimit = bytesOf(l + l/4 + 64<<20)
	}
	memory := corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: bytesOf(p.limits.tmpSize())}
	add("workspace", p.spec.Workspace.MountPath, false, disk)
	switch {
	case claimed:
		volumes[0].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.config.Claim}}
		mounts[0].SubPath = p.config.workOf(p.spec.ID)
		if p.base != (kubeBase{}) {
			mounts = append(mounts, corev1.VolumeMount{Name: "workspace", MountPath: path.Dir(BaseObjectsPath), SubPath: p.base.Dir, ReadOnly: true})
		}
	case p.config.ShimImage != "":
		mounts[0].SubPath = kubeWork
	}
	if p.spec.Workspace.BaseOID != "" && !claimed {
		add("base", path.Dir(BaseObjectsPath), false, disk)
	}
	add("tmp", "/tmp", false, memory)
	add("home", HomeDir, false, memory)
	if p.config.HostUsers {
		// What the container runtime mounts there has neither nosuid nor nodev then.
		add("devshm", "/dev/shm", false, memory)
	}
	if p.spec.Egress.Port != 0 {
		add("egress", path.Dir(EgressSocketPath), false, corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: bytesOf(1 << 20)})
	}
	if p.config.ShimImage != "" {
		add("shim", kubeShimDir, true, corev1.EmptyDirVolumeSource{SizeLimit: bytesOf(64 << 20)})
	}
	return volumes, mounts
}

func bytesOf(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

func (p *kubePlan) resources() corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	set := func(name corev1.ResourceName, limit, request resource.Quantity) {
		if !limit.IsZero() {
			r.Limits[name] = limit
			if limit.Cmp(request) < 0 {
				request = limit
			}
		}
		r.Requests[name] = request
	}
	cores := func(n float64) resource.Quantity {
		return *resource.NewMilliQuantity(int64(n*1000), resource.DecimalSI)
	}
	set(corev1.ResourceCPU, cores(p.limits.CPUs), cores(cmp.Or(p.config.RequestCPU, kubeRequestCPU)))
	set(corev1.ResourceMemory, *bytesOf(p.limits.Memory), *bytesOf(cmp.Or(p.config.RequestMemory, kubeRequestMemory)))
	disk := int64(0)
	if l := p.limits.Disk; l > 0 {
		disk = 2*(l+l/4+64<<20) + 64<<20 // both volumes on disk, and the shim's
		if p.config.Claim != "" {
			disk = 128 << 20 // the shim's, and what the node counts itself
		}
	}
	set(corev1.ResourceEphemeralStorage, *bytesOf(disk), *bytesOf(cmp.Or(p.config.RequestDisk, kubeRequestDisk)))
	return r
}

// shown are the files that the host wants to see of the sandbox.
var kubeShown = []string{
	frame.ShownShim, "/proc/self/status", "/proc/self/uid_map", "/proc/self/mountinfo", "/proc/self/limits", "/proc/self/environ", "/proc/self/cgroup",
	"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max",
	"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "/sys/fs/cgroup/cpu.max",
	"/var/run/secrets/kubernetes.io/serviceaccount/token",
}

// shimConfig is what the shim is told.
func (p *kubePlan) shimConfig() frame.Config {
	c := shimConfig(p.spec, p.limits, p.mode)
	c.Sent, c.Pause = p.spec.Workspace.Dir != "", p.mode != frame.CollectMode
	if p.config.Claim == "" { // what is in a claim is not the pod's alone
		c.CheckpointMS = p.spec.Workspace.checkpointMS()
	}
	c.Show, c.Canaries = kubeShown, p.config.Canaries
	if p.mode != frame.CollectMode {
		c.Watch = &frame.Watch{Disk: p.limits.Disk, Processes: p.limits.Processes, Memory: p.limits.Memory - kubeBesides(p.limits.Memory)}
	}
	return c
}

// kubeBesides is how much of a pod's memory limit, in bytes, is left to the shim and to
// the files of programs. An agent that takes that too leaves the kernel nothing but
// programs' pages to take back, which it does for minutes, over and over, before it
// kills. So the shim ends the agent before that.
func kubeBesides(limit int64) int64 { return min(limit/8, 64<<20) }

// checkKube looks for what a pod in particular cannot be.
func checkKube(s *LaunchSpec) error {
	if s.Image == "" {
		return specError("image", errors.New("there is none"), "Name an image that the cluster can pull or has, by digest (NAME@sha256:...)")
	}
	if len(s.ProgramDirs) > 0 {
		return specError("program directory", fmt.Errorf("%q", s.ProgramDirs[0]), "A pod has the image's programs and no others: put the tool into the image")
	}
	if s.Egress.Socket != "" && s.Egress.TCP == nil {
		return specError("egress socket", fmt.Errorf("%s: a pod has no socket of this host", s.Egress.Socket), "Give the gateway's TCP address")
	}
	if t := s.Egress.TCP; t != nil {
		if _, err := numeric(t.Address); err != nil {
			return specError("egress address", err, "Write it like 192.0.2.1:8377")
		}
	}
	return nil
}
