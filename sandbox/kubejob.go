package sandbox

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/resume"
)

// Kubernetes is the runtime that runs every kick as a Job of one pod, in a
// namespace that grants nothing. The shim is the pod's first process; kick speaks
// with it through the API server, by pods/exec, and needs no volume in common.
type Kubernetes struct {
	config KubernetesConfig

	mu     sync.Mutex
	client *kube.Client
	watch  *kubeWatch
	digest string // of the shim
	key    []byte
}

var (
	_ Launcher    = (*Kubernetes)(nil)
	_ Preflighter = (*Kubernetes)(nil)
	_ Reaper      = (*Kubernetes)(nil)
)

// KubernetesConfig configures the Kubernetes runtime. The zero value of every
// optional field is the default.
type KubernetesConfig struct {
	// Shim opens the program cmd/kick-shim, which the pod must have too.
	Shim func() (io.ReadCloser, error)
	// Dir is a directory of the caller's own on this host, for the key by which a
	// later process may take over what a dead one has left.
	Dir string
	// Kubeconfig is the path of a kubeconfig. Empty: $KUBECONFIG, ~/.kube/config,
	// or the account of the pod that kick runs in.
	Kubeconfig string
	// Context is a context of the kubeconfig. Empty: its current one.
	Context string
	// Namespace is where the Jobs are. Empty: that of the context.
	Namespace string
	// Image is what Preflight runs.
	Image string
	// ShimImage is an image that has the shim at /kick-shim, which an init
	// container puts into the pod. Empty: the agent's image has it at
	// /usr/libexec/kick/kick-shim.
	ShimImage string
	// ServiceAccount is the pod's account, whose token it does not get. Empty:
	// default.
	ServiceAccount string
	// NodeSelector, Tolerations, RuntimeClass, PriorityClass and PullSecrets are as
	// in a pod.
	NodeSelector  map[string]string
	Tolerations   []Toleration
	RuntimeClass  string
	PriorityClass string
	PullSecrets   []string
	// Queue is a LocalQueue of Kueue, which then starts the Jobs.
	Queue string
	// HostUsers leaves the pod's users those of the node, where user namespaces
	// cannot be had. The property user-namespace is missing then.
	HostUsers bool
	// Canaries are addresses, HOST:PORT, which a pod reaches unless a NetworkPolicy
	// keeps it from that; it must not. Empty: the API server's.
	Canaries []string
	// RequestCPU (cores), RequestMemory and RequestDisk (bytes) are what the pod
	// reserves on its node, at most its limits. Defaults: 0.1, 512 MiB, 1 GiB.
	RequestCPU    float64
	RequestMemory int64
	RequestDisk   int64
	// Pending is how long a pod may wait for a queue, a quota, a node and its
	// image. Default: 5 minutes.
	Pending time.Duration
	// Alone is how long a pod goes on when nobody is connected with it: then it
	// stops the command, and after as long again it ends. Default: 10 minutes.
	Alone time.Duration
}

// Toleration is a taint of nodes that a pod tolerates. An empty Value tolerates
// any, an empty Effect all.
type Toleration struct{ Key, Value, Effect string }

// NewKubernetes returns a launcher that is good for any number of runs. It does
// not ask the API server anything yet.
func NewKubernetes(c KubernetesConfig) (*Kubernetes, error) {
	if c.Shim == nil {
		return nil, noShim()
	}
	c.Pending, c.Alone = or(c.Pending, 5*time.Minute), or(c.Alone, 10*time.Minute)
	return &Kubernetes{config: c}, nil
}

// With returns a launcher whose configuration is changed.
func (l *Kubernetes) With(change func(*KubernetesConfig)) *Kubernetes {
	c := l.config
	change(&c)
	return &Kubernetes{config: c}
}

// Close frees the connections. No run may be going on.
func (l *Kubernetes) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		l.client.Close()
	}
	return nil
}

// Calls is how many requests the API server got from this launcher.
func (l *Kubernetes) Calls() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil {
		return 0
	}
	return l.client.Calls()
}

// Run implements Launcher. Without a Command it takes the work out of the pod that
// a dead process has left under this ID.
func (l *Kubernetes) Run(ctx context.Context, spec LaunchSpec) (Result, error) {
	return runKick(ctx, l, spec)
}

func (l *Kubernetes) isolation() Isolation { return Isolation{Runtime: "kubernetes"} }

func (l *Kubernetes) check(spec *LaunchSpec) error { return checkKube(spec) }

// together: nothing but the pod has the work.
func (l *Kubernetes) together() bool { return true }

// sends: the node is not this host.
func (l *Kubernetes) sends() bool { return true }

func (l *Kubernetes) instead() Launcher { return nil }

// open makes the client, once.
func (l *Kubernetes) open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		return nil
	}
	fail := func(op string, err error, remedy string) error {
		return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: remedy}
	}
	config, namespace, err := kube.Load(kube.Where{Kubeconfig: l.config.Kubeconfig, Context: l.config.Context})
	if err != nil {
		return fail("find a Kubernetes cluster", err, "Set kubernetes.kubeconfig in kick.yaml or KUBECONFIG, or run kick in a pod with an account")
	}
	client, err := kube.New(config)
	if err != nil {
		return fail("speak with the cluster", err, "See the kubeconfig")
	}
	if l.config.Namespace == "" {
		l.config.Namespace = namespace
	}
	if len(l.config.Canaries) == 0 {
		if l.config.Canaries, err = apiServer(client); err != nil {
			return fail("find the API server's address", err, "Set kubernetes.canaries to addresses that no sandbox may reach")
		}
	}
	if l.digest, err = l.shimDigest(); err != nil {
		return fail("read the shim", err, "")
	}
	if l.key, err = l.lineKey(); err != nil {
		return fail("read the key of lines to pods", err, "kick needs a directory of its own that it can write, see --state-dir")
	}
	run := make([]byte, 8)
	_, _ = rand.Read(run) // never fails on Linux
	l.client = client
	l.watch = &kubeWatch{client: client, namespace: l.config.Namespace, labels: labelLauncher + "=" + hex.EncodeToString(run)}
	return nil
}

// labelLauncher tells which launcher follows a Job.
const labelLauncher = "kick.launcher"

// apiServer is what a pod could reach for certain, if nothing kept it from that.
func apiServer(c *kube.Client) ([]string, error) {
	port := c.Server.Port()
	if port == "" {
		port = "443"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, c.Server.Hostname())
	if err != nil {
		return nil, err
	}
	return []string{net.JoinHostPort(addresses[0], port)}, nil
}

func (l *Kubernetes) shimDigest() (string, error) {
	r, err := l.config.Shim()
	if err != nil {
		return "", err
	}
	defer r.Close()
	h := sha256.New()
	if n, err := io.Copy(h, r); err != nil || n == 0 {
		return "", errors.Join(err, noShim())
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// lineKey reads the key from which those of all lines are derived. Of two
// processes that make it at once, the first wins.
func (l *Kubernetes) lineKey() ([]byte, error) {
	name := filepath.Join(l.config.Dir, "line.key")
	if key, err := os.ReadFile(name); err == nil && len(key) == resume.KeySize {
		return key, nil
	}
	if err := os.MkdirAll(l.config.Dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(l.config.Dir, ".new-")
	if err != nil {
		return nil, err
	}
	key := make([]byte, resume.KeySize)
	_, _ = rand.Read(key) // never fails on Linux
	_, err = f.Write(key)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Link(f.Name(), name)
	}
	_ = os.Remove(f.Name()) // the first error says what is wrong
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.ReadFile(name)
}

// keyOf is the key of one Job's line.
func (l *Kubernetes) keyOf(uid string) []byte {
	m := hmac.New(sha256.New, l.key)
	m.Write([]byte("line of " + uid))
	return m.Sum(nil)
}

func (l *Kubernetes) newBox(ctx context.Context, spec LaunchSpec, mode frame.Mode) (box, error) {
	if err := l.open(); err != nil {
		return nil, err
	}
	b := &kubeBox{launcher: l, client: l.client, spec: spec, mode: mode, gonech: make(chan struct{})}
	if mode == frame.CollectMode {
		return b, b.find(ctx)
	}
	return b, nil
}

// kubeError says what may help where the API server did not do what was asked.
func kubeError(op string, err error) error {
	if f, ok := kube.Forbidden(err); ok {
		return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: fmt.Sprintf("kick's account may not %s %s in namespace %s: give it a Role with that verb (`kick manifests kubernetes` prints it)", f.Verb, f.Resource, f.Namespace)}
	}
	remedy := ""
	if kube.Transient(err) {
		remedy = "See whether the API server works: kubectl get --raw /readyz"
	}
	if strings.Contains(err.Error(), "not found") && strings.Contains(err.Error(), "namespaces") {
		remedy = "Make the namespace: `kick manifests kubernetes` prints it"
	}
	return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: remedy}
}
