package manifests

import (
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

// TestKubeVirtGolden holds what is written against a file.
func TestKubeVirtGolden(t *testing.T) {
	t.Parallel()
	checkGolden(t, filepath.Join("..", "..", "deploy", "kubevirt.yaml"), DefaultKubeVirt().YAML)
}

// withMachines is kick with machines that stand by.
func withMachines(t *testing.T) KubeVirt {
	t.Helper()
	k := DefaultKubeVirt()
	k.Sandboxes, k.Memory, k.Pool = "boxes", "64Gi", 3
	k.Choice = sandbox.KubeVirtChoice{Pool: "codex"}
	k.Image = "registry.example/machines/codex@sha256:" + strings.Repeat("ab", 32)
	var err error
	k.Launcher, err = sandbox.NewKubeVirt(sandbox.KubeVirtConfig{Shim: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("shim")), nil }, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestKubeVirtRights: the one role has the launcher's rules and nothing else. Only with
// a pool, or where machines linger, are they changed.
func TestKubeVirtRights(t *testing.T) {
	t.Parallel()
	checkRights(t, DefaultKubeVirt().YAML, sandbox.KubeVirtRules)
	more := slices.Concat(sandbox.KubeVirtRules, sandbox.KubeVirtPoolRules)
	checkRights(t, withMachines(t).YAML, more)
	linger := DefaultKubeVirt()
	linger.Choice.Linger = sandbox.KubeVirtLinger{Machines: 1, For: time.Minute}
	checkRights(t, linger.YAML, more)
}

// TestKubeVirtPool: the pool is a replica set in the machines' namespace, and the
// Secret that its machines start with.
func TestKubeVirtPool(t *testing.T) {
	t.Parallel()
	file, err := withMachines(t).YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"kind: Secret\n", "kind: VirtualMachineInstanceReplicaSet\n", "name: kick-pool-codex\n", "namespace: boxes\n", "replicas: 3\n", "ssh_host_ed25519_key:",
		`requests.memory: "64Gi"`, `count/virtualmachineinstances.kubevirt.io: "16"`,
	} {
		if !strings.Contains(string(file), want) {
			t.Errorf("it lacks %q", want)
		}
	}
	if strings.Contains(string(file), "status:") {
		t.Error("it says what is KubeVirt's to say")
	}
}

func TestKubeVirtErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*KubeVirt)
		want   string
	}{
		{func(k *KubeVirt) { k.Sandboxes = k.Gateway }, "share the namespace kick-gateway"},
		{func(k *KubeVirt) { k.System = "a b" }, "is no name"},
		{func(k *KubeVirt) { k.Count = 0 }, "a quota of 0 machines"},
		{func(k *KubeVirt) { k.Memory = "much" }, "is no quantity"},
		{func(k *KubeVirt) { k.Pool = 16 }, "a pool of 16 machines"},
		{func(k *KubeVirt) { k.Pool = -1 }, "a pool of -1 machines"},
		{func(k *KubeVirt) { k.Pool = 1 }, "no launcher"},
		{func(k *KubeVirt) { k.Pool, k.Choice.Linger.Machines = 6, 10 }, "6 machines that stand by and 10 that linger"},
		{func(k *KubeVirt) { *k = withMachines(t); k.Image = "registry.example/machine:latest" }, "by its digest"},
	} {
		k := DefaultKubeVirt()
		c.change(&k)
		if _, err := k.YAML(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, got %v", c.want, err)
		}
	}
}
