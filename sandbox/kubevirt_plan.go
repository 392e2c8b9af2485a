package sandbox

import (
	"cmp"
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// kubeVirtPlan is one machine, decided before anything is made: the launch
// specification translated into what the API server is to have.
type kubeVirtPlan struct {
	config   KubeVirtConfig
	spec     LaunchSpec
	limits   Limits // resolved: 0 means none
	mode     frame.Mode
	instance *kubevirtapi.Instance
	standby  string // the Secret of its pool; empty: the machine is made for the kick
}

const (
	// machineKeys is the serial of the disk from which the image's start takes who may
	// come in, who it is, and how long it may live. The files on it follow.
	machineKeys     = "kick-keys"
	fileAuthorized  = "authorized_keys"
	fileHostKey     = "ssh_host_ed25519_key"
	fileLifetime    = "lifetime" // in seconds, from the machine's start
	machineSSH      = 22         // the port of sshd
	defaultMemory   = 2 << 30    // bytes, of a machine without a limit
	machineDisk     = "disk"
	machineNetwork  = "default"
	machineKeysDisk = "keys"
)

// newKubeVirtPlan translates a specification, which was checked.
func newKubeVirtPlan(config KubeVirtConfig, spec LaunchSpec, mode frame.Mode, owner, start string) *kubeVirtPlan {
	p := &kubeVirtPlan{config: config, spec: spec, limits: resolveLimits(spec.Limits), mode: mode}
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	// The agent's way out is within kick's way in, so the machine itself has none
	// whatever the kick has.
	labels[labelID], labels[labelAgent], labels[labelOwner], labels[labelNetwork] = spec.ID, spec.Agent, owner, string(NetworkNone)
	p.instance = &kubevirtapi.Instance{
		TypeMeta: kubevirtapi.InstanceType,
		ObjectMeta: metav1.ObjectMeta{
			Name: "kick-" + spec.ID, Namespace: config.Namespace, Labels: labels,
			Annotations: map[string]string{jobLifetime: p.lifetime().String(), jobStart: start},
		},
		Spec: p.machine(),
	}
	if p.lingers() {
		p.instance.Annotations[machineLife] = p.life().String()
	}
	return p
}

// lifetime is how long the machine can take at most, all told. Its own start ends it
// then, whatever has become of kick.
func (p *kubeVirtPlan) lifetime() time.Duration {
	return p.config.Pending + startTimeout + checkoutTimeout + p.limits.Wall + 2*wallGrace + collectTimeout + time.Minute
}

func (p *kubeVirtPlan) machine() kubevirtapi.InstanceSpec {
	c := p.config
	disk := kubevirtapi.Disk{Name: machineKeysDisk, Serial: machineKeys, Disk: kubevirtapi.DiskTarget{Bus: "virtio", ReadOnly: true}}
	keys := kubevirtapi.Volume{Name: machineKeysDisk, Secret: &kubevirtapi.SecretVolume{SecretName: p.secretName()}}
	if c.Keys == cloudInitKeys {
		disk.Serial = ""
		keys = kubevirtapi.Volume{Name: machineKeysDisk, CloudInit: &kubevirtapi.CloudInit{Secret: corev1.LocalObjectReference{Name: p.secretName()}}}
	}
	spec := kubevirtapi.InstanceSpec{
		Domain: kubevirtapi.Domain{
			CPU:    kubevirtapi.CPU{Cores: uint32(p.cores())},
			Memory: kubevirtapi.Memory{Guest: *bytesOf(p.memory())},
			Devices: kubevirtapi.Devices{
				Disks: []kubevirtapi.Disk{
					{Name: machineDisk, Disk: kubevirtapi.DiskTarget{Bus: "virtio"}},
					disk,
				},
				// The guest's connections seem to come from its pod, and kick's to it
				// from the node: nothing of the pod's network is the guest's own.
				Interfaces:               []kubevirtapi.Interface{{Name: machineNetwork, Masquerade: &struct{}{}}},
				Rng:                      &struct{}{},
				AutoattachGraphicsDevice: new(false), AutoattachSerialConsole: new(false), AutoattachMemBalloon: new(false),
			},
		},
		Networks: []kubevirtapi.Network{{Name: machineNetwork, Pod: &struct{}{}}},
		Volumes: []kubevirtapi.Volume{
			{Name: machineDisk, ContainerDisk: &kubevirtapi.ContainerDisk{Image: p.spec.Image, ImagePullPolicy: corev1.PullIfNotPresent, ImagePullSecret: c.PullSecret}},
			keys,
		},
		NodeSelector: c.NodeSelector, PriorityClassName: c.PriorityClass, Tolerations: tolerations(c.Tolerations),
		// There is nothing to migrate to, and no goodbye that a machine would say.
		EvictionStrategy: "None", TerminationGracePeriodSeconds: new(int64(0)),
	}
	if p.standby != "" {
		// A pool's machine is ready when it lets somebody in, and not before.
		spec.ReadinessProbe = &kubevirtapi.Probe{TCPSocket: kubevirtapi.Port{Port: machineSSH}, PeriodSeconds: 2}
	}
	return spec
}

func (p *kubeVirtPlan) secretName() string { return cmp.Or(p.standby, "kick-"+p.spec.ID) }

func (p *kubeVirtPlan) cores() int {
	if p.limits.CPUs > 0 {
		return int(p.limits.CPUs)
	}
	return p.config.Cores
}

// memory is the limit, in whole mebibytes.
func (p *kubeVirtPlan) memory() int64 {
	if p.limits.Memory > 0 {
		return max(p.limits.Memory&^(1<<20-1), 1<<20)
	}
	return defaultMemory
}

// machineKeyPairs are the two keys of one machine's SSH: kick's own and that of the
// machine. They are derived from the key of the state, so that a later process of it
// can come to what a dead one has left, and nobody else.
type machineKeyPairs struct{ client, host ed25519.PrivateKey }

// keyPairs derives them from the key of the state, for the instance with a UID or for
// all of a pool.
func keyPairs(key []byte, of string) machineKeyPairs {
	return machineKeyPairs{
		client: ed25519.NewKeyFromSeed(deriveKey(key, "ssh client of "+of)),
		host:   ed25519.NewKeyFromSeed(deriveKey(key, "ssh host of "+of)),
	}
}

// secret is what the machine starts with, and goes with it.
func (p *kubeVirtPlan) secret(uid string, keys machineKeyPairs) (*corev1.Secret, error) {
	m := p.instance.ObjectMeta
	labels := maps.Clone(m.Labels)
	if p.lingers() {
		labels = nil // it may stay for longer than the kick, and nobody can change it
	}
	return machineSecret(metav1.ObjectMeta{
		Name: p.secretName(), Namespace: m.Namespace, Labels: labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: kubevirtapi.InstanceType.APIVersion, Kind: kubevirtapi.InstanceType.Kind, Name: m.Name, UID: types.UID(uid)}},
	}, p.config, keys, p.life())
}

// machineSecret says whom a machine lets in, who it is, and how long it lives. Of
// kick's own it has a public key alone.
func machineSecret(m metav1.ObjectMeta, config KubeVirtConfig, keys machineKeyPairs, lifetime time.Duration) (*corev1.Secret, error) {
	client, err := ssh.NewPublicKey(keys.client.Public())
	if err != nil {
		return nil, err
	}
	host, err := ssh.MarshalPrivateKey(keys.host, "")
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{
		fileAuthorized: fmt.Appendf(nil, "restrict,port-forwarding %s", ssh.MarshalAuthorizedKey(client)),
		fileHostKey:    pem.EncodeToMemory(host),
		fileLifetime:   fmt.Appendf(nil, "%d\n", int64(math.Ceil(lifetime.Seconds()))),
	}
	if config.Keys == cloudInitKeys {
		user, err := cloudConfig(config.User, keys, data, lifetime)
		if err != nil {
			return nil, err
		}
		data = map[string][]byte{"userdata": user}
	}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: m,
		Immutable:  new(true),
		Data:       data,
	}, nil
}

// machineSystem is the system of a machine, as the shim has found it.
type machineSystem struct{ m frame.Machine }

func (s machineSystem) find(pattern string) (found []frame.Found, err error) {
	for _, f := range s.m.Found {
		if ok, err := path.Match(pattern, f.Path); err != nil {
			return nil, err
		} else if ok {
			found = append(found, f)
		}
	}
	return found, nil
}

// tokens: whoever made the image has put in it what is in it.
func (machineSystem) tokens([]string) []cover { return nil }

// machineShown are what the host wants to see of the machine, outside of the sandbox
// in it.
var machineShown = append([]string{"/proc/self/mountinfo", "/proc/meminfo", "/sys/devices/system/cpu/online", "/proc/sys/kernel/osrelease"}, namespaceLinks()...)

// enclosedShown are what it wants to see of the sandbox.
var enclosedShown = append([]string{
	frame.ShownShim, "/proc/self/status", "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/mountinfo", "/proc/self/limits", "/proc/self/environ", "/proc/self/net/dev",
}, namespaceLinks()...)

func namespaceLinks() (links []string) {
	for _, ns := range namespaces {
		links = append(links, "/proc/self/ns/"+ns.link)
	}
	return links
}

// enclosure is the sandbox in a machine: that of the embedded runtime, made of what
// the machine has. dir is the directory of this kick's in it.
type enclosure struct {
	root rootSpec
	wait frame.Enclosure
}

func (p *kubeVirtPlan) enclosure(m frame.Machine, dir string) (*enclosure, error) {
	filter, err := systemCallFilter()
	if err != nil {
		return nil, &Error{Kind: ErrIsolation, Op: "seccomp", Err: err, Remedy: remedyOf("seccomp")}
	}
	e := &enclosure{root: rootSpec{
		system: machineSystem{m}, hostname: p.spec.ID,
		workspace: path.Join(dir, "workspace"), mountPath: p.spec.Workspace.MountPath,
		baseDir: path.Join(dir, "base"), tmpSize: p.limits.tmpSize(),
	}}
	if p.spec.Egress.Socket != "" {
		e.root.egressDir = path.Join(dir, "egress")
	}
	if err := e.root.build(); err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "plan the root file system", Err: err}
	}
	jail := frame.Jail{
		Unshare: unix.CLONE_NEWCGROUP, Hostname: p.spec.ID, Entries: slices.Clone(e.root.entries),
		Rlimits: p.rlimits(), NoNewPrivs: true, Filter: filter,
	}
	if m.Landlock > 0 {
		jail.Landlock = &frame.Landlock{ABI: m.Landlock, Rules: e.root.landlockRules}
	}
	e.wait = frame.Enclosure{
		Clone: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		User:  insideUID,
		Wait:  frame.Wait{Jail: jail, AloneMS: p.config.Alone.Milliseconds()},
	}
	return e, nil
}

func (p *kubeVirtPlan) rlimits() []frame.Rlimit {
	list := commonRlimits(p.limits)
	if p.limits.Processes > 0 {
		list = append(list, processRlimit(p.limits))
	}
	return list
}

// shimConfig is what the shim is told.
func (p *kubeVirtPlan) shimConfig() frame.Config {
	c := shimConfig(p.spec, p.limits, p.mode)
	c.Sent, c.Pause = p.spec.Workspace.Dir != "", p.mode != frame.CollectMode
	c.Show, c.CheckpointMS = enclosedShown, p.spec.Workspace.checkpointMS()
	if p.mode != frame.CollectMode {
		c.Witness = witnessFile
		c.Watch = &frame.Watch{Disk: p.limits.Disk, Processes: p.limits.Processes, Kernel: true}
	}
	return c
}

// meminfoTotal is how much memory a machine has by its /proc/meminfo, in bytes; -1 if
// that does not say.
func meminfoTotal(text string) int64 {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" && f[2] == "kB" {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				return n << 10
			}
		}
	}
	return -1
}

// cpusOnline counts a list as in /sys/devices/system/cpu/online: "0-1,3"; -1 if it is
// none.
func cpusOnline(text string) int {
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil || b < a {
			return -1
		}
		n += b - a + 1
	}
	return n
}
