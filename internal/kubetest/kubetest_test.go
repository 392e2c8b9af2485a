package kubetest_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/sandbox"
)

// pod is one that restricted Pod Security admits, with what a test adds to its
// labels, its specification and its container.
func pod(n *kubetest.Namespace, name, labels, spec, container, script string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {%s}}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
%s
  containers:
    - name: main
      image: %s
      imagePullPolicy: Never
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
%s
      command: ["/bin/bash", "-c", %q]
`, name, n.Name, labels, spec, n.Image, container, script)
}

// ended waits for the end of a pod and returns what it said.
func ended(t *testing.T, n *kubetest.Namespace, name string) string {
	t.Helper()
	n.Kubectl(t, "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s", "--namespace", n.Name, "pod/"+name)
	return strings.TrimSpace(n.Kubectl(t, "logs", "--namespace", n.Name, name))
}

// TestKubePod: what a sandbox needs of a node is there: user namespaces, limits,
// a claim of which a pod sees one directory, and no route to anywhere.
func TestKubePod(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	claim, dir := n.Claim(t, "ReadWriteMany")
	if err := os.Mkdir(filepath.Join(dir, "mine"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "mine"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.Apply(t, pod(n, "pod", "", fmt.Sprintf("  hostUsers: false\n  volumes: [{name: work, persistentVolumeClaim: {claimName: %s}}]", claim),
		"      volumeMounts: [{name: work, mountPath: /workspace, subPath: mine}]\n      resources: {limits: {memory: 64Mi, cpu: 500m}, requests: {memory: 16Mi, cpu: 10m}}",
		`id -u; awk '$1 == 0 && $2 > 0 && $3 == 65536 { print "own users" }' /proc/self/uid_map; ls /workspace | wc -l; echo made >/workspace/made; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; true`))
	said := ended(t, n, "pod")
	if want := "65532\nown users\n0\n67108864"; said != want {
		t.Errorf("the pod says %q, want %q", said, want)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "mine/made")); err != nil || string(b) != "made\n" {
		t.Errorf("what the pod wrote is %q, %v", b, err)
	}
}

// TestKubeSecurity: the namespace admits no pod that restricted Pod Security
// refuses.
func TestKubeSecurity(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	for name, spec := range map[string]string{
		"privileged":   "    securityContext: {privileged: true}",
		"root":         "    securityContext: {runAsUser: 0}",
		"host network": "  hostNetwork: true",
		"host path":    "  volumes: [{name: host, hostPath: {path: /}}]",
	} {
		said, err := try(n, n.Cluster.Kubeconfig, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: %s}\nspec:\n  containers:\n  - name: c\n    image: x\n%s\n", n.Name, spec), "apply", "--dry-run=server", "--filename", "-")
		if err == nil || !strings.Contains(said, "violates PodSecurity") {
			t.Errorf("%s: %v, %s", name, err, said)
		}
	}
}

// try runs kubectl as whom a kubeconfig says, and returns all that it says.
func try(n *kubetest.Namespace, kubeconfig, stdin string, args ...string) (string, error) {
	cmd := n.KubectlCommand(kubeconfig, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestKubeAccount: kick's account may do what the launcher's rules say in the
// namespace of the sandboxes, and nothing else, and nothing elsewhere.
func TestKubeAccount(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	rules := map[string]string{}
	for _, r := range sandbox.KubernetesRules {
		resource := r.Resource
		if r.Group != "" {
			resource += "." + r.Group
		}
		rules[resource] = strings.Join(r.Verbs, " ")
	}
	for namespace, want := range map[string]map[string]string{n.Name: rules, n.Gateway: {}, "default": {}} {
		got, err := rights(n, namespace)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, want) {
			t.Errorf("in %s the account may %v, want %v", namespace, got, want)
		}
	}
}

// rights are the verbs that kick's account has for each resource, but for what
// everybody has: to ask about itself, and for the API's own description.
func rights(n *kubetest.Namespace, namespace string) (map[string]string, error) {
	out, err := try(n, n.Kubeconfig, "", "auth", "can-i", "--list", "--no-headers", "--namespace", namespace)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	found := map[string]string{}
	for line := range strings.Lines(out) {
		// RESOURCE [URLS] [NAMES] [VERBS]
		resource, rest, _ := strings.Cut(line, "[")
		resource = strings.TrimSpace(resource)
		lists := strings.Split(rest, "[")
		if resource == "" || strings.HasSuffix(resource, ".authorization.k8s.io") || strings.HasSuffix(resource, ".authentication.k8s.io") {
			continue
		}
		found[resource] = strings.Trim(lists[len(lists)-1], "] \n")
	}
	return found, nil
}

// TestKubeNetwork: a pod with a restricted network reaches the gateway's port at
// this host and nothing else, one without a network reaches nothing. Without the
// policies everything would be open.
func TestKubeNetwork(t *testing.T) {
	t.Parallel()
	c := kubetest.Open(t)
	closed := c.Namespace(t)
	open := c.Namespace(t)
	open.Kubectl(t, "delete", "networkpolicy", "--all", "--namespace", open.Name)
	gateway, other := serve(t, netip.AddrPortFrom(c.Host, uint16(closed.Ports.Last))), serve(t, netip.AddrPortFrom(c.Host, 0))

	// A pod is open at first, and closed a moment later: it says when it knows.
	script := fmt.Sprintf(`try() { timeout 3 bash -c "</dev/tcp/$1/$2" 2>/dev/null && echo "$3 open" || echo "$3 closed"; }
for i in {1..200}; do [ "$WANT" = open ] || ! timeout 1 bash -c '</dev/tcp/%[1]s/%[3]d' 2>/dev/null && break; sleep 0.1; done
try %[1]s %[2]d gateway; try %[1]s %[3]d host; try %[4]s 6443 server`, c.Host, gateway.Port(), other.Port(), c.APIServer(t).Addr())
	pods := []struct {
		n           *kubetest.Namespace
		name, label string
		others      string // what is not the gateway
		want        string
	}{
		{open, "open", "kick.network: none", "open", "gateway open\nhost open\nserver open"},
		{closed, "restricted", "kick.network: restricted", "closed", "gateway open\nhost closed\nserver closed"},
		{closed, "none", "kick.network: none", "closed", "gateway closed\nhost closed\nserver closed"},
		{closed, "unlabelled", "", "closed", "gateway closed\nhost closed\nserver closed"},
	}
	for _, p := range pods {
		p.n.Apply(t, pod(p.n, p.name, p.label, "", fmt.Sprintf("      env: [{name: WANT, value: %s}]", p.others), script))
	}
	for _, p := range pods {
		if said := ended(t, p.n, p.name); said != p.want {
			t.Errorf("%s: the pod says %q, want %q", p.name, said, p.want)
		}
	}
}

// serve accepts connections, and closes them, until the test ends.
func serve(t *testing.T, at netip.AddrPort) netip.AddrPort {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// TestKubeManifests: the API server takes what is written for every setting, with
// strict validation, also a second time, and the image-holding pods run.
func TestKubeManifests(t *testing.T) {
	t.Parallel()
	c := kubetest.Open(t)
	n := c.Namespace(t, func(m *manifests.Kubernetes) {
		m.Image = c.Image
		m.Tiers = []manifests.Tier{{Name: "normal", Pods: 8, CPU: "16", Memory: "64Gi"}, {Name: manifests.NoTier, Pods: 1}}
	})
	n.Kubectl(t, "rollout", "status", "daemonset/kick-images", "--namespace", n.Name, "--timeout=120s")

	m := manifests.Default()
	m.Sandboxes, m.Gateway = n.Name, n.Gateway
	usual, err := m.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if said, err := try(n, n.Cluster.Kubeconfig, string(usual), "apply", "--dry-run=server", "--validate=strict", "--filename", "-"); err != nil || strings.Contains(said, "Warning") {
		t.Errorf("%v: %s", err, said)
	}

	// The quota of pods without a class is 1, and the pods of the DaemonSet have one.
	n.Apply(t, pod(n, "one", "", "", "", "sleep 1000"))
	if said, err := try(n, n.Cluster.Kubeconfig, pod(n, "two", "", "", "", "sleep 1000"), "apply", "--filename", "-"); err == nil || !strings.Contains(said, "exceeded quota: kick-none") {
		t.Errorf("%v: %s", err, said)
	}
}

// TestKubeFaults: programs of the cluster end and come back, and a proxy cuts.
func TestKubeFaults(t *testing.T) {
	c := kubetest.OpenAlone(t)
	n := c.Namespace(t)
	p := n.Proxy(t)
	pods := func(kubeconfig string) error {
		out, err := try(n, kubeconfig, "", "get", "pods", "--namespace", n.Name, "--request-timeout=5s")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := pods(p.Kubeconfig); err != nil || p.Connections() == 0 {
		t.Errorf("through the proxy: %v, %d connections", err, p.Connections())
	}
	p.Refuse(true)
	if err := pods(p.Kubeconfig); err == nil {
		t.Error("a proxy that refuses lets pass")
	}
	p.Refuse(false)

	// A watch ends when it is cut.
	cmd := n.KubectlCommand(p.Kubeconfig, "get", "pods", "--namespace", n.Name, "--watch-only", "--output=name")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n.Apply(t, pod(n, "watched", "", "", "", "sleep 1000"))
	first := make([]byte, 1)
	if _, err := io.ReadFull(out, first); err != nil {
		t.Errorf("the watch sees nothing: %v", err)
	}
	p.Cut()
	_, _ = io.Copy(io.Discard, out)
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Error(err)
	}

	c.Kill(t, kubetest.APIServer)
	if err := pods(n.Kubeconfig); err == nil {
		t.Error("an API server that was killed answers")
	}
	c.Start(t, kubetest.APIServer)
	if err := pods(n.Kubeconfig); err != nil {
		t.Errorf("after a restart of the API server: %v", err)
	}

	// A container goes on without a kubelet, and the kubelet finds it.
	c.Kubectl(t, "wait", "--for=condition=Ready", "--timeout=60s", "--namespace", n.Name, "pod/watched")
	c.Stop(t, kubetest.Kubelet)
	c.Kubectl(t, "delete", "pod", "watched", "--namespace", n.Name, "--wait=false")
	c.Start(t, kubetest.Kubelet)
	c.Kubectl(t, "wait", "--for=delete", "--timeout=60s", "--namespace", n.Name, "pod/watched")
}
