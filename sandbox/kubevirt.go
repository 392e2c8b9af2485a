package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// KubeVirt is the runtime that gives every kick a virtual machine of its own, as a
// VirtualMachineInstance of KubeVirt in a cluster. kick comes to it through the API
// server alone, by SSH within the portforward subresource, and makes in it what the
// embedded runtime makes on a host: so an agent is behind a machine's wall and, in
// that, has no more than anywhere else.
type KubeVirt struct {
	config KubeVirtConfig
	// clusters knows the namespaces, and has the key of the state.
	clusters *Kubernetes
	cluster  *Kubernetes // once open has gone well
}

var (
	_ Launcher    = (*KubeVirt)(nil)
	_ Preflighter = (*KubeVirt)(nil)
	_ Reaper      = (*KubeVirt)(nil)
)

// KubeVirtConfig configures the KubeVirt runtime. The zero value of every optional
// field is the default.
type KubeVirtConfig struct {
	// Shim opens the program cmd/kick-shim, which is sent into each machine.
	Shim func() (io.ReadCloser, error)
	// Dir is a directory of the caller's own on this host, for the key from which
	// those of the machines are derived.
	Dir string
	KubeVirtChoice
	// Image is what Preflight boots.
	Image string
	// Pending is how long a machine may take until it runs and lets kick in.
	// Default: 10 minutes.
	Pending time.Duration
	// Alone is how long a sandbox goes on in its machine when nobody is connected
	// with it, and how long kick tries to come back to it. Default: 10 minutes.
	Alone time.Duration
}

// KubeVirtChoice is what an operator chooses for an agent. The zero value of each
// field is the default.
type KubeVirtChoice struct {
	// Kubeconfig, Context and Namespace are as in KubernetesChoice.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	Context    string `json:"context,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	// User is whom the image's sshd lets in, not root. Empty: agent.
	User string `json:"user,omitempty"`
	// Cores is how many processors a machine has where the limits name none.
	// Default: 2.
	Cores int `json:"cores,omitempty"`
	// NodeSelector, Tolerations, PriorityClass and PullSecret are as in a pod.
	NodeSelector  map[string]string `json:"nodeSelector,omitempty"`
	Tolerations   []Toleration      `json:"tolerations,omitempty"`
	PriorityClass string            `json:"priorityClass,omitempty"`
	PullSecret    string            `json:"pullSecret,omitempty"`
	// Keys is how a machine learns whom it lets in: one of KubeVirtKeys. Empty: the
	// first.
	Keys string `json:"keys,omitempty"`
	// Pool is the name of a pool of machines that stand by (Standbys). A kick whose
	// machine would be made as those are takes one of them, and else has one made.
	// Empty: every kick has one made.
	Pool string `json:"pool,omitempty"`
	// PoolWait is how long a kick waits for a machine of the pool when none is ready,
	// before it has one made. Default: not at all.
	PoolWait time.Duration `json:"poolWait,omitempty"`
	// Linger is how machines stay for the next kick of the same trust. Default: they
	// do not.
	Linger KubeVirtLinger `json:"linger,omitzero"`
	// Canaries are addresses, HOST:PORT, which a machine reaches unless a
	// NetworkPolicy keeps it from that; it must not. They are numeric, and not of
	// loopback. Empty: the API server's.
	Canaries []string `json:"canaries,omitempty"`
}

// NewKubeVirt returns a launcher that is good for any number of runs. It does not
// ask the API server anything yet.
func NewKubeVirt(c KubeVirtConfig) (*KubeVirt, error) {
	c.setDefaults()
	clusters, err := NewKubernetes(KubernetesConfig{Shim: c.Shim, Dir: c.Dir})
	if err != nil {
		return nil, err
	}
	return &KubeVirt{config: c, clusters: clusters}, nil
}

func (c *KubeVirtConfig) setDefaults() {
	c.Pending, c.Alone = cmp.Or(c.Pending, 10*time.Minute), cmp.Or(c.Alone, 10*time.Minute)
	c.User, c.Cores = cmp.Or(c.User, "agent"), cmp.Or(c.Cores, 2)
}

// With returns the same launcher with another choice. What is wrong with it, Run
// says.
func (l *KubeVirt) With(choice KubeVirtChoice) *KubeVirt {
	c := l.config
	c.KubeVirtChoice = choice
	c.setDefaults()
	return &KubeVirt{config: c, clusters: l.clusters}
}

// Close frees the connections. No run may be going on.
func (l *KubeVirt) Close() error { return l.clusters.Close() }

// Run implements Launcher. Without a Command it takes the work out of the machine
// that a dead process has left under this ID.
func (l *KubeVirt) Run(ctx context.Context, spec LaunchSpec) (Result, error) {
	res, err := runKick(ctx, l, spec)
	if len(spec.Command) == 0 && errors.Is(err, errMachineGone) {
		// That is no failure which another attempt could mend.
		res.Reason, err = ReasonLost, nil
	}
	return res, err
}

// errMachineGone is an orphan that is not there any more.
var errMachineGone = fmt.Errorf("its machine has no work of it, and %w", errGone)

func (l *KubeVirt) isolation() Isolation { return Isolation{Runtime: "kubevirt"} }

func (l *KubeVirt) check(s *LaunchSpec) error {
	if !pinnedImage.MatchString(s.Image) && len(s.Command) > 0 {
		return specError("image", fmt.Errorf("%q", s.Image), "Name the container image that has the machine's disk by its digest: NAME@sha256:…")
	}
	if len(s.ProgramDirs) > 0 {
		return specError("program directory", fmt.Errorf("%q", s.ProgramDirs[0]), "A machine has its image's programs and no others: put the tool into the image")
	}
	if s.Limits.CPUs != float64(int(s.Limits.CPUs)) {
		return specError("CPU limit", fmt.Errorf("%v", s.Limits.CPUs), "A machine has whole processors: use a whole number")
	}
	if l.config.Keys != "" && !slices.Contains(KubeVirtKeys, l.config.Keys) {
		return specError("keys of a machine", fmt.Errorf("%q", l.config.Keys), "Use one of "+strings.Join(KubeVirtKeys, ", "))
	}
	if err := l.config.Linger.check(); err != nil {
		return err
	}
	if err := checkWhere(l.config.Namespace, l.config.Canaries); err != nil {
		return err
	}
	return wantSocket(s.Egress)
}

// together: nothing but the machine has the work.
func (l *KubeVirt) together() bool { return true }

// sends: the machine has no directory of this host.
func (l *KubeVirt) sends() bool { return true }

func (l *KubeVirt) instead() Launcher { return nil }

// open finds the cluster, as Kubernetes does.
func (l *KubeVirt) open() (*KubeVirt, error) {
	c := l.config
	cluster, err := l.clusters.With(KubernetesChoice{Kubeconfig: c.Kubeconfig, Context: c.Context, Namespace: c.Namespace}).open()
	if err != nil {
		return nil, err
	}
	c.Namespace = cluster.namespace
	if len(c.Canaries) == 0 {
		c.Canaries = cluster.server
	}
	return &KubeVirt{config: c, clusters: l.clusters, cluster: cluster}, nil
}

func (l *KubeVirt) newBox(ctx context.Context, spec LaunchSpec, mode frame.Mode) (box, error) {
	l, err := l.open()
	if err != nil {
		return nil, err
	}
	b := &kubeVirtBox{launcher: l, client: l.cluster.client, spec: spec, mode: mode, kubeLine: kubeLine{gonech: make(chan struct{})}}
	if mode == frame.CollectMode {
		return b, b.find(ctx)
	}
	return b, nil
}
