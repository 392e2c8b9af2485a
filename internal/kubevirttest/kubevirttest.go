// Package kubevirttest stands in for KubeVirt's control plane on the cluster of
// package kubetest. What is real: the API server, the schemas that KubeVirt's operator
// installs, the aggregation of the API with its authentication and authorization, and
// the machines, which QEMU boots from what an instance says. What is emulated, here:
// virt-controller, virt-handler and virt-api, as far as a launcher sees them. What is
// not covered: virt-launcher and libvirt, the network of a pod (a machine reaches
// nothing, whatever policies there are), admission webhooks, scheduling, KVM.
package kubevirttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/kubevirtapi"
	"github.com/kickhq/kick/sandbox"
)

// What scripts/kubevirt.sh tells the tests, beside what scripts/kube.sh does.
const (
	ImageEnv       = "KICK_TEST_KUBEVIRT_IMAGE" // the directory of an image, of hack/kubevirt.sh
	DefinitionsEnv = "KICK_TEST_KUBEVIRT_CRDS"  // a file with the definitions, of the same
)

// Image is the container image whose disk is that of ImageEnv, and NoImage one that
// no node can pull.
const (
	Image   = "localhost/kick-machine@sha256:" + "00000000000000000000000000000000000000000000000000000000000000aa"
	NoImage = "localhost/kick-machine@sha256:" + "00000000000000000000000000000000000000000000000000000000000000bb"
)

// KubeVirt is the stand-in, in one cluster.
type KubeVirt struct {
	cluster *kubetest.Cluster
	client  *kube.Client
	image   string // directory
	dir     string // of all machines
	ctx     context.Context

	changed chan struct{} // wakes who looks at replica sets

	running sync.WaitGroup
	mu      sync.Mutex
	nodes   map[string]*machine // by the instance's uid
}

// shared is the stand-in of this process: a cluster has one KubeVirt.
var shared struct {
	sync.Mutex
	k     *KubeVirt
	end   func(t testing.TB)
	users int
}

// Open gives a test the cluster, and what stands in for KubeVirt in it, which is there
// while a test of this process uses it. Without a machine's image the test is skipped.
func Open(t testing.TB) (*KubeVirt, *kubetest.Cluster) {
	t.Helper()
	image, crds := os.Getenv(ImageEnv), os.Getenv(DefinitionsEnv)
	if image == "" || crds == "" {
		t.Skip(ImageEnv + " names no machine: scripts/kubevirt.sh makes one")
	}
	c := kubetest.Open(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.users == 0 {
		shared.k, shared.end = start(t, c, image, crds)
	}
	shared.users++
	t.Cleanup(func() {
		shared.Lock()
		defer shared.Unlock()
		if shared.users--; shared.users == 0 {
			shared.end(t)
		}
	})
	return shared.k, c
}

// start puts KubeVirt's definitions into the cluster and stands in for what acts on
// them, until end, and in no other process meanwhile.
func start(t testing.TB, c *kubetest.Cluster, image, crds string) (k *KubeVirt, end func(testing.TB)) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lock := c.Lock(t, "kubevirt.lock", unix.LOCK_EX)
	config, _, err := kube.Load(kube.Where{Kubeconfig: c.Kubeconfig})
	must(err)
	client, err := kube.New(config)
	must(err)
	// A short path, for sockets.
	dir, err := os.MkdirTemp("", "kick-vm-")
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	k = &KubeVirt{cluster: c, client: client, image: image, dir: dir, ctx: ctx, nodes: map[string]*machine{}, changed: make(chan struct{}, 1)}
	c.Kubectl(t, "apply", "--server-side", "--force-conflicts", "--filename", crds)
	c.Kubectl(t, "wait", "--for=condition=Established", "--timeout=60s", "crd/virtualmachineinstances.kubevirt.io", "crd/virtualmachineinstancereplicasets.kubevirt.io")
	k.serve(t)
	k.running.Go(k.control)
	k.running.Go(k.replicate)
	return k, func(t testing.TB) {
		c.Kubectl(t, "delete", "apiservice", subresources, "--ignore-not-found")
		cancel()
		k.running.Wait()
		client.Close()
		if err := errors.Join(os.RemoveAll(dir), lock.Close()); err != nil {
			t.Error(err)
		}
	}
}

// control follows the instances of all namespaces, and has a node for each.
func (k *KubeVirt) control() {
	var nodes sync.WaitGroup
	defer nodes.Wait()
	tell := func(i *kubevirtapi.Instance) {
		defer k.poke()
		k.mu.Lock()
		defer k.mu.Unlock()
		m := k.nodes[string(i.UID)]
		if m == nil {
			if i.DeletionTimestamp != nil && len(i.Finalizers) == 0 {
				return
			}
			m = &machine{plane: k, namespace: i.Namespace, name: i.Name, uid: string(i.UID), spec: i.Spec, deleted: make(chan struct{}), ended: make(chan struct{})}
			k.nodes[m.uid] = m
			nodes.Go(func() { m.run(k.ctx) })
		}
		if i.DeletionTimestamp != nil {
			m.delete.Do(func() { close(m.deleted) })
		}
	}
	err := kube.Follow(k.ctx, k.client, kube.Selection{Resource: kubevirtapi.Instances}, kube.Follower[kubevirtapi.Instance]{
		All: func(list []kubevirtapi.Instance) {
			for i := range list {
				tell(&list[i])
			}
		},
		Changed: tell,
		Gone:    tell,
	})
	if err != nil && k.ctx.Err() == nil {
		panic(fmt.Sprintf("follow the instances: %v", err)) // no test would go on sensibly
	}
}

// Machine is the machine of an instance; nil if there is none.
func (k *KubeVirt) machine(namespace, name string) *machine {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.nodes {
		if m.namespace == namespace && m.name == name && !m.over() {
			return m
		}
	}
	return nil
}

// set changes what is known of an instance, as a merge patch. That it is gone is no
// error.
func (k *KubeVirt) set(namespace, name string, patch any) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), time.Minute)
	defer cancel()
	_, _ = kube.Patch[kubevirtapi.Instance](ctx, k.client, kubevirtapi.Instances, namespace, name, patch)
}

// Account gives the account of a namespace the rights of a launcher of machines, and
// takes those of a launcher of Jobs from it.
func (k *KubeVirt) Account(t testing.TB, n *kubetest.Namespace, rules []sandbox.KubernetesRule) {
	t.Helper()
	var list []map[string]any
	for _, r := range rules {
		list = append(list, map[string]any{"apiGroups": []string{r.Group}, "resources": []string{r.Resource}, "verbs": r.Verbs})
	}
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	k.cluster.Kubectl(t, "delete", "rolebinding", "kick", "--namespace", n.Name, "--ignore-not-found")
	account := strings.TrimSpace(k.cluster.Kubectl(t, "--kubeconfig", n.Kubeconfig, "auth", "whoami", "--output", "jsonpath={.status.userInfo.username}"))
	k.cluster.Apply(t, fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: kick-machines, namespace: %[1]s}
rules: %[2]s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: kick-machines, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: kick-machines}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: %[3]q}]
`, n.Name, b, account))
}
