package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
	"github.com/kickhq/kick/internal/lazyregexp"
)

// Kubernetes is the runtime that runs every kick as a Job of one pod, in a
// namespace that grants nothing. The shim is the pod's first process; kick speaks
// with it through the API server, by pods/exec, and needs no volume in common.
type Kubernetes struct {
	config       KubernetesConfig
	clusters     *kubeClusters
	*kubeCluster // once open has gone well
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
	KubernetesChoice
	// Image is what Preflight runs.
	Image string
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

// KubernetesChoice is what an operator chooses for an agent. The zero value of
// each field is the default.
type KubernetesChoice struct {
	// Kubeconfig is the path of a kubeconfig. Empty: $KUBECONFIG, ~/.kube/config,
	// or the account of the pod that kick runs in.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Context is a context of the kubeconfig. Empty: its current one.
	Context string `json:"context,omitempty"`
	// Namespace is where the Jobs are. Empty: that of the context.
	Namespace string `json:"namespace,omitempty"`
	// ShimImage is an image that has the shim at /kick-shim, which an init
	// container puts into the pod. Empty: the agent's image has it at
	// /usr/libexec/kick/kick-shim.
	ShimImage string `json:"shimImage,omitempty"`
	// Claim is a PersistentVolumeClaim of the namespace, in which each kick has a
	// directory for its workspace: work is there when its pod is not any more, and the
	// base's objects are sent once for all kicks. ShimImage must be set, and Pool not.
	// Empty: a workspace goes with its pod.
	Claim string `json:"claim,omitempty"`
	// ClaimPath is the directory of the claim in which kick has its own, relative to
	// the claim's root. Empty: that.
	ClaimPath string `json:"claimPath,omitempty"`
	// ServiceAccount is the pod's account, whose token it does not get. Empty:
	// default.
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// NodeSelector, Tolerations, Affinity, RuntimeClass, PriorityClass and PullSecrets
	// are as in a pod.
	NodeSelector  map[string]string `json:"nodeSelector,omitempty"`
	Tolerations   []Toleration      `json:"tolerations,omitempty"`
	Affinity      *corev1.Affinity  `json:"affinity,omitempty"`
	RuntimeClass  string            `json:"runtimeClass,omitempty"`
	PriorityClass string            `json:"priorityClass,omitempty"`
	PullSecrets   []string          `json:"pullSecrets,omitempty"`
	// Queue is a LocalQueue of Kueue, which then starts the Jobs.
	Queue string `json:"queue,omitempty"`
	// Pool is the name of a pool of pods that stand by (NewStandbyDeployment). A kick
	// whose pod would be made as those are takes one of them, and else has a Job.
	// Empty: every kick has a Job.
	Pool string `json:"pool,omitempty"`
	// WarmPool is the name of a SandboxWarmPool of agent-sandbox
	// (NewSandboxWarmPool), in the cluster where that is installed. Every kick then
	// claims a sandbox of it and none has a Job: one whose pod would be made as
	// another fails. Empty: kicks have Jobs.
	WarmPool string `json:"warmPool,omitempty"`
	// PoolWait is how long a kick waits for a pod of the pool when none is ready,
	// before it has a Job. Default: not at all.
	PoolWait time.Duration `json:"poolWait,omitempty"`
	// HostUsers leaves the pod's users those of the node, where user namespaces
	// cannot be had. The property user-namespace is missing then.
	HostUsers bool `json:"hostUsers,omitempty"`
	// Canaries are addresses, HOST:PORT, which a pod reaches unless a NetworkPolicy
	// keeps it from that; it must not. They are numeric, and not of loopback. Empty: the
	// API server's.
	Canaries []string `json:"canaries,omitempty"`
	// Gateway is where pods reach kick's egress gateway, as ADDRESS:PORT or
	// ADDRESS:PORT-PORT; of these ports each process of kick listens on the first
	// that is free. The launcher itself does not use it.
	Gateway string `json:"gateway,omitempty"`
}

// KubernetesNameForm is a regular expression of the names of objects, where there may
// be none.
const KubernetesNameForm = `^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$`

var kubeName = lazyregexp.New(KubernetesNameForm)

// Toleration is a taint of nodes that a pod tolerates. An empty Value tolerates
// any, an empty Effect all.
type Toleration struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect,omitempty"`
}

// NewKubernetes returns a launcher that is good for any number of runs. It does
// not ask the API server anything yet.
func NewKubernetes(c KubernetesConfig) (*Kubernetes, error) {
	if c.Shim == nil {
		return nil, noShim()
	}
	c.setDefaults()
	return &Kubernetes{config: c, clusters: &kubeClusters{}}, nil
}

func (c *KubernetesConfig) setDefaults() {
	c.Pending, c.Alone = cmp.Or(c.Pending, 5*time.Minute), cmp.Or(c.Alone, 10*time.Minute)
}

// With returns the same launcher with another choice. What is wrong with it, Run
// says.
func (l *Kubernetes) With(choice KubernetesChoice) *Kubernetes {
	c := l.config
	c.KubernetesChoice = choice
	return &Kubernetes{config: c, clusters: l.clusters}
}

// Close ends the watches and frees the connections. No run may be going on.
func (l *Kubernetes) Close() error {
	l.clusters.mu.Lock()
	defer l.clusters.mu.Unlock()
	for _, c := range l.clusters.open {
		c.watch.end()
		c.client.Close()
	}
	return nil
}

// Calls is how many requests the API servers got from this launcher.
func (l *Kubernetes) Calls() (n int64) {
	l.clusters.mu.Lock()
	defer l.clusters.mu.Unlock()
	for _, c := range l.clusters.open {
		n += c.client.Calls()
	}
	return n
}

// Run implements Launcher. Without a Command it takes the work out of the pod that
// a dead process has left under this ID.
func (l *Kubernetes) Run(ctx context.Context, spec LaunchSpec) (Result, error) {
	res, err := runKick(ctx, l, spec)
	if len(spec.Command) == 0 && (errors.Is(err, errPodGone) || errors.Is(err, errNothingRan)) {
		// That is no failure which another attempt could mend.
		res.Reason, err = ReasonLost, nil
	}
	return res, err
}

// What became of an orphan of which there is no work.
var (
	errPodGone    = fmt.Errorf("its pod is gone, and %w", errGone)
	errNothingRan = errors.New("kick had not come to its pod, so that nothing has run in it")
)

func (l *Kubernetes) isolation() Isolation { return Isolation{Runtime: "kubernetes"} }

func (l *Kubernetes) check(spec *LaunchSpec) error {
	if err := l.config.checkClaim(); err != nil {
		return err
	}
	if err := checkWhere(l.config.Namespace, l.config.Canaries); err != nil {
		return err
	}
	return checkKube(spec)
}

// checkWhere looks at a choice's namespace and canaries.
func checkWhere(namespace string, canaries []string) error {
	if !kubeName.MatchString(namespace) {
		return specError("namespace", fmt.Errorf("%q", namespace), "Use lower-case letters, digits, - and .")
	}
	for _, c := range canaries {
		if err := checkCanary(c); err != nil {
			return specError("canary", err, "Name what a pod would reach without NetworkPolicies, as the API server's address in the cluster")
		}
	}
	return nil
}

// together: nothing but the pod has the work.
func (l *Kubernetes) together() bool { return true }

// sends: the node is not this host.
func (l *Kubernetes) sends() bool { return true }

func (l *Kubernetes) instead() Launcher { return nil }

// kubeClusters are the namespaces that a launcher and those of With have used. All
// kicks of one namespace share its connections and watches.
type kubeClusters struct {
	mu   sync.Mutex
	open map[string]*kubeCluster
}

// kubeCluster is one namespace of one cluster.
type kubeCluster struct {
	client    *kube.Client
	watch     *kubeWatch
	namespace string
	server    []string      // the API server's addresses, as HOST:PORT, once somebody wanted them
	digest    string        // of the shim
	key       []byte        // from which those of lines are derived
	making    chan struct{} // has one for each Job that is being made
}

// kubeMaking is how many Jobs a launcher makes at once, as many as it may have calls
// under way. Others wait before they have written theirs, which is large.
const kubeMaking = 64

// open finds the cluster. It asks it nothing but where it is, if it is reached at
// loopback and there are no canaries.
func (l *Kubernetes) open() (*Kubernetes, error) {
	all := l.clusters
	all.mu.Lock()
	defer all.mu.Unlock()
	name := strings.Join([]string{l.config.Kubeconfig, l.config.Context, l.config.Namespace, l.owner().Name}, "\x00")
	c := all.open[name]
	if c == nil {
		var err error
		if c, err = l.find(); err != nil {
			return nil, err
		}
		if all.open == nil {
			all.open = map[string]*kubeCluster{}
		}
		all.open[name] = c
	}
	// Each time: a reaper may have forgotten it meanwhile.
	if err := l.remember(); err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "note the cluster for the reaper", Err: err, Remedy: "kick needs a directory of its own that it can write, see --state-dir"}
	}
	opened := &Kubernetes{config: l.config, clusters: all, kubeCluster: c}
	opened.config.Namespace = c.namespace
	if len(opened.config.Canaries) > 0 {
		return opened, nil
	}
	if len(c.server) == 0 {
		server, err := apiServer(c.client)
		if err != nil {
			return nil, &Error{Kind: ErrRuntime, Op: "find an address that sandboxes must not reach", Err: err,
				Remedy: "See whether the API server works: kubectl get --raw /api; or name addresses that a pod would reach without NetworkPolicies as canaries in kick.yaml"}
		}
		c.server = server // and what proves nothing is not remembered for the next
	}
	opened.config.Canaries = c.server
	return opened, nil
}

func (l *Kubernetes) find() (*kubeCluster, error) {
	fail := func(op string, err error, remedy string) (*kubeCluster, error) {
		return nil, &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: remedy}
	}
	config, namespace, err := kube.Load(kube.Where{Kubeconfig: l.config.Kubeconfig, Context: l.config.Context})
	if err != nil {
		return fail("find a Kubernetes cluster", err, "Set kubeconfig in the runtime's block of kick.yaml, --kubeconfig or KUBECONFIG, or run kick in a pod with an account")
	}
	c := &kubeCluster{namespace: cmp.Or(l.config.Namespace, namespace), making: make(chan struct{}, kubeMaking)}
	if c.client, err = kube.New(config); err != nil {
		return fail("speak with the cluster", err, "See the kubeconfig")
	}
	if c.digest, err = l.shimDigest(); err != nil {
		return fail("read the shim", err, "")
	}
	if c.key, err = lineKey(l.config.Dir); err != nil {
		return fail("read the key of lines to pods", err, "kick needs a directory of its own that it can write, see --state-dir")
	}
	run := make([]byte, 8)
	_, _ = rand.Read(run) // never fails on Linux
	c.watch = &kubeWatch{client: c.client, namespace: c.namespace, labels: labelLauncher + "=" + hex.EncodeToString(run), claims: l.owner() == kube.SandboxClaims}
	return c, nil
}

// owner is the kind of what has a kick's pod.
func (l *Kubernetes) owner() kube.Resource {
	if l.config.WarmPool != "" {
		return kube.SandboxClaims
	}
	return kube.Jobs
}

// labelLauncher tells which launcher follows a Job.
const labelLauncher = "kick.launcher"

// apiServer is what a pod could reach for certain, if nothing kept it from that. An
// address of loopback, as by a tunnel or on a cluster in containers, is kick's own and
// says nothing of pods; the API server knows another one of itself.
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
	at := net.JoinHostPort(addresses[0], port)
	if checkCanary(at) == nil {
		return []string{at}, nil
	}
	if at, err = c.Advertised(ctx); err == nil {
		err = checkCanary(at)
	}
	return []string{at}, err
}

// checkCanary wants an address that is the same one for a pod as for everybody else.
func checkCanary(address string) error {
	at, err := numeric(address)
	if ip := at.Addr().Unmap(); err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		err = fmt.Errorf("%s is each pod's own, so that it tells nothing of the network", address)
	}
	return err
}

// numeric reads an address for a pod.
func numeric(address string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil || at.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is no ADDRESS:PORT with a numeric address, and a pod resolves no names", address)
	}
	return at, nil
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

func (l *Kubernetes) newBox(ctx context.Context, spec LaunchSpec, mode frame.Mode) (box, error) {
	if (l.config.Pool != "" || l.config.Claim != "") && l.config.WarmPool != "" {
		return nil, specError("pool", fmt.Errorf("%s, and warm pool %s", cmp.Or(l.config.Pool, l.config.Claim), l.config.WarmPool), "Name one of them")
	}
	l, err := l.open()
	if err != nil {
		return nil, err
	}
	b := &kubeBox{launcher: l, client: l.client, spec: spec, mode: mode, kubeLine: kubeLine{gonech: make(chan struct{})}}
	switch {
	case mode == frame.CollectMode && l.config.Claim != "":
		return b, b.findKept()
	case mode == frame.CollectMode:
		return b, b.find(ctx)
	}
	return b, nil
}

// noRoom tells the refusal of an object for which a quota has no room, or has not been
// counted yet, as right after it was made.
func noRoom(err error) bool {
	_, forbidden := kube.Forbidden(err)
	return forbidden && (strings.Contains(err.Error(), "exceeded quota") || strings.Contains(err.Error(), "status unknown for quota"))
}

// manifestsOf is what `kick manifests` calls the runtime that uses a resource. Pods'
// use no Secrets.
func manifestsOf(resource string) string {
	if resource == kube.Secrets.Name || strings.HasSuffix(resource, kubevirtapi.Group) {
		return "kubevirt"
	}
	return "kubernetes"
}

// kubeError says what may help where the API server did not do what was asked.
func kubeError(op string, err error) error {
	if noRoom(err) {
		return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: remedyQuota}
	}
	if f, ok := kube.Forbidden(err); ok {
		return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: fmt.Sprintf("kick's account may not %s %s in namespace %s: give it a Role with that verb there (`kick manifests %s` prints it), or name the namespace where it has one", f.Verb, f.Resource, f.Namespace, manifestsOf(f.Resource))}
	}
	remedy := ""
	if kube.Transient(err) {
		remedy = "See whether the API server works: kubectl get --raw /readyz"
	}
	if apierrors.IsUnauthorized(err) {
		remedy = "The token or certificate in the kubeconfig does not hold, or no more: make another, as by kubectl create token"
	}
	if strings.Contains(err.Error(), "not found") && strings.Contains(err.Error(), "namespaces") {
		remedy = "Make the namespace: `kick manifests kubernetes` prints it"
	}
	return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: remedy}
}
