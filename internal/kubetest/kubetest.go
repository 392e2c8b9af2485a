// Package kubetest gives tests the Kubernetes cluster that hack/kube.sh starts:
// namespaces with kick's own manifests and its own account in them, images,
// claims, and the faults of a cluster.
package kubetest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/policy"
)

// What scripts/kube.sh tells the tests.
const (
	ClusterEnv = "KICK_TEST_KUBE"       // directory of a cluster of hack/kube.sh
	ImageEnv   = "KICK_TEST_KUBE_IMAGE" // an image with git that the node has, as NAME@DIGEST
)

// Cluster is a cluster that hack/kube.sh has started.
type Cluster struct {
	Dir        string
	Kubeconfig string       // of the administrator
	Node       string       // its one node
	Host       netip.Addr   // this host, as pods see it
	Pods       netip.Prefix // the pods, which this host reaches
	Image      string       // an image with git and a shell that the node has, by digest
	Script     string       // hack/kube.sh
	Bin        string       // directory of the cluster's programs, kubectl among them
}

// Open returns the cluster to test on. Without one the test is skipped, in CI
// too: there scripts/kube.sh, which fails if it cannot start one, runs these
// tests in a lane of their own. Until the test ends, no other one disturbs the
// cluster.
func Open(t testing.TB) *Cluster {
	t.Helper()
	c := find(t)
	c.lock(t, unix.LOCK_SH)
	return c
}

// Soak leaves a test that takes minutes to `make soak`.
func Soak(t testing.TB) {
	t.Helper()
	if os.Getenv("KICK_SOAK") != "1" {
		t.Skip("it takes minutes: make soak runs it, with KICK_SOAK=1")
	}
}

// OpenAlone is Open for a test that disturbs the cluster: it waits until no other
// test uses it, in any package, and none does until it ends. Such a test is not
// parallel.
func OpenAlone(t testing.TB) *Cluster {
	t.Helper()
	c := find(t)
	c.lock(t, unix.LOCK_EX)
	return c
}

func find(t testing.TB) *Cluster {
	t.Helper()
	dir, set := os.LookupEnv(ClusterEnv)
	if !set {
		t.Skip(ClusterEnv + " names no cluster: scripts/kube.sh starts one")
	}
	b, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatalf("%s is no cluster of hack/kube.sh: %v", ClusterEnv, err)
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		settings[name] = value
	}
	c := &Cluster{
		Dir: dir, Kubeconfig: settings["KUBECONFIG"], Node: settings["KICK_KUBE_NODE"],
		Script: settings["KICK_KUBE"], Bin: settings["KICK_KUBE_BIN"], Image: os.Getenv(ImageEnv),
	}
	if c.Host, err = netip.ParseAddr(settings["KICK_KUBE_HOST"]); err != nil {
		t.Fatal(err)
	}
	if c.Pods, err = netip.ParsePrefix(settings["KICK_KUBE_PODS"]); err != nil {
		t.Fatal(err)
	}
	if c.Image == "" {
		t.Fatal(ImageEnv + " is empty: it names an image that the cluster has")
	}
	return c
}

// lock holds the cluster's lock until the test ends.
func (c *Cluster) lock(t testing.TB, how int) {
	t.Helper()
	f := c.Lock(t, "tests.lock", how)
	t.Cleanup(func() { _ = f.Close() })
}

// Lock holds a lock of the cluster, by its file's name, until that is closed.
func (c *Cluster) Lock(t testing.TB, name string, how int) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(c.Dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		t.Fatalf("lock the cluster: %v", err)
	}
	return f
}

// Kubectl runs kubectl as the administrator and returns what it prints.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return output(t, c.KubectlCommand(c.Kubeconfig, args...))
}

// Apply gives the cluster objects, as YAML.
func (c *Cluster) Apply(t testing.TB, objects string) {
	t.Helper()
	cmd := c.KubectlCommand(c.Kubeconfig, "apply", "--filename", "-")
	cmd.Stdin = strings.NewReader(objects)
	output(t, cmd)
}

// KubectlCommand is kubectl as whom a kubeconfig says. It ends with the test at
// the latest.
func (c *Cluster) KubectlCommand(kubeconfig string, args ...string) *exec.Cmd {
	return command(filepath.Join(c.Bin, "kubectl"), append([]string{"--kubeconfig", kubeconfig}, args...)...)
}

// Load gives the node the image of an OCI layout in a tar file, and returns its
// name with its digest.
func (c *Cluster) Load(t testing.TB, tar string) string {
	t.Helper()
	return strings.TrimSpace(output(t, command(c.Script, "load", c.Dir, tar)))
}

// AgentSandbox installs agent-sandbox, the real one: its kinds and its controller,
// which is a program of the cluster. Where it is there already, nothing changes.
func (c *Cluster) AgentSandbox(t testing.TB) {
	t.Helper()
	output(t, command(c.Script, "agent-sandbox", c.Dir))
}

// APIServer is where the API server listens.
func (c *Cluster) APIServer(t testing.TB) netip.AddrPort {
	t.Helper()
	url := c.Kubectl(t, "config", "view", "--output", "jsonpath={.clusters[0].cluster.server}")
	at, err := netip.ParseAddrPort(strings.TrimPrefix(strings.TrimSpace(url), "https://"))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// output runs a command that does not fail and returns what it prints.
func output(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, said.String())
	}
	return out.String()
}

// Namespace is where the sandboxes of one test run, as an operator would have it
// by `kick manifests kubernetes`.
type Namespace struct {
	*Cluster
	Name       string       // of the namespace
	Gateway    string       // the namespace of kick's account
	Ports      policy.Ports // where sandboxes with a restricted network reach this host; two
	Kubeconfig string       // of kick's account, which has the rights of the manifests and no other
	token      string
}

// Namespace makes one, in which sandboxes reach this host alone. change may
// change what the manifests say. It is gone after the test.
func (c *Cluster) Namespace(t testing.TB, change ...func(*manifests.Kubernetes)) *Namespace {
	t.Helper()
	id := kickid.New()
	m := manifests.Default()
	m.Sandboxes, m.Gateway, m.Ports = "sandboxes-"+id, "kick-"+id, c.freePorts(t)
	m.Addresses = []netip.Prefix{netip.PrefixFrom(c.Host, c.Host.BitLen())}
	for _, f := range change {
		f(&m)
	}
	objects, err := m.YAML()
	if err != nil {
		t.Fatal(err)
	}
	n := &Namespace{Cluster: c, Name: m.Sandboxes, Gateway: m.Gateway, Ports: m.Ports}
	t.Cleanup(func() {
		c.Kubectl(t, "delete", "namespace", n.Name, n.Gateway, "--wait=false", "--ignore-not-found")
	})
	c.Apply(t, string(objects))
	n.token = strings.TrimSpace(c.Kubectl(t, "create", "token", m.Account, "--namespace", n.Gateway, "--duration", "24h"))
	n.Kubeconfig = c.kubeconfig(t, n.token, "")
	return n
}

// freePorts are two at which nobody listened a moment ago.
func (c *Cluster) freePorts(t testing.TB) policy.Ports {
	t.Helper()
	for {
		first, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.Host, 0)))
		if err != nil {
			t.Fatal(err)
		}
		port := first.Addr().(*net.TCPAddr).Port
		next, err := net.Listen("tcp", net.JoinHostPort(c.Host.String(), strconv.Itoa(port+1)))
		_ = first.Close() // nobody has connected
		if err == nil {
			_ = next.Close()
			return policy.Ports{First: port, Last: port + 1}
		}
	}
}

var (
	server    = regexp.MustCompile(`server: "(https://([0-9.]+):[0-9]+)"`)
	authority = regexp.MustCompile(`certificate-authority-data: ([A-Za-z0-9+/=]+)`)
)

// kubeconfig writes a kubeconfig for who holds a token. at is another address
// for the API server, as HOST:PORT; empty is its own.
func (c *Cluster) kubeconfig(t testing.TB, token, at string) string {
	t.Helper()
	admin, err := os.ReadFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	own, ca := server.FindSubmatch(admin), authority.FindSubmatch(admin)
	if own == nil || ca == nil {
		t.Fatalf("%s names no API server", c.Kubeconfig)
	}
	url := string(own[1])
	if at != "" {
		url = "https://" + at
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: kick
contexts: [{name: kick, context: {cluster: kick, user: kick}}]
clusters: [{name: kick, cluster: {server: %q, tls-server-name: %q, certificate-authority-data: %s}}]
users: [{name: kick, user: {token: %s}}]
`, url, own[2], ca[1], token)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Claim makes a claim that is bound to a directory of the node, with any access
// mode that Kubernetes knows, as "ReadWriteMany". It returns its name and the
// directory, which is gone with the cluster.
func (n *Namespace) Claim(t testing.TB, mode string) (name, dir string) {
	t.Helper()
	name = "claim-" + kickid.New()
	dir = n.Volume(t, n.Name, name, mode)
	n.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: %s}
spec: {accessModes: [%s], resources: {requests: {storage: 1Gi}}, storageClassName: ""}
`, name, n.Name, mode))
	n.Kubectl(t, "wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=60s", "--namespace", n.Name, "persistentvolumeclaim/"+name)
	return name, dir
}

// Narrow leaves a claim's directory so much room, as "8m": a file system in memory. What
// was there is out of sight.
func (c *Cluster) Narrow(t testing.TB, dir, size string) {
	t.Helper()
	output(t, command(c.Script, "enter", c.Dir, "mount", "-t", "tmpfs", "-o", "mode=777,size="+size, "narrow", dir))
	t.Cleanup(func() { output(t, command(c.Script, "enter", c.Dir, "umount", "--lazy", dir)) })
}

// Volume makes a directory of the node and a volume of it for a claim that is yet to
// be made, as a provisioner would. It is gone after the test, and the directory with
// the cluster.
func (c *Cluster) Volume(t testing.TB, namespace, claim, mode string) (dir string) {
	t.Helper()
	name := "volume-" + kickid.New()
	dir = filepath.Join(c.Dir, "volumes", name)
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil { // whatever the umask
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Kubectl(t, "delete", "persistentvolume", name, "--wait=false") })
	c.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [%s]
  claimRef: {namespace: %s, name: %s}
  local: {path: %s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}]}}
`, name, mode, namespace, claim, dir, c.Node))
	return dir
}
