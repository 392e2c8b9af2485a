package manifests

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

var update = flag.Bool("update", false, "write the expected files anew")

// outside is kick on a host beside the cluster, with everything that can be said.
func outside() Kubernetes {
	k := Default()
	k.Sandboxes, k.Gateway, k.Account = "boxes", "agents", "launcher"
	k.Addresses = []netip.Prefix{netip.MustParsePrefix("10.1.2.3/32"), netip.MustParsePrefix("fd00::3/128")}
	k.Ports = policy.Ports{First: 9000, Last: 9000}
	k.Tiers = []Tier{{Name: "normal", Pods: 8, CPU: "16", Memory: "64Gi"}, {Name: NoTier}}
	k.Image = "registry.example/agents/codex@sha256:" + strings.Repeat("ab", 32)
	k.PullSecrets = []string{"registry"}
	return k
}

// TestKubernetesGolden holds what is written against files: the usual manifests
// are deploy/kubernetes.yaml.
func TestKubernetesGolden(t *testing.T) {
	t.Parallel()
	for file, k := range map[string]Kubernetes{
		"../../deploy/kubernetes.yaml":            Default(),
		filepath.Join("testdata", "outside.yaml"): outside(),
	} {
		checkGolden(t, file, k.YAML)
	}
}

func checkGolden(t *testing.T, file string, write func() ([]byte, error)) {
	t.Helper()
	got, err := write()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs, run with -update and look at the difference:\n%s", file, got)
	}
}

// withPool is outside with pods that stand by.
func withPool() Kubernetes {
	k := outside()
	k.Pool = 3
	k.Standby.PullSecrets = k.PullSecrets
	k.Standby.Pool, k.Standby.ShimImage = "codex", "registry.example/kick/shim@sha256:"+strings.Repeat("cd", 32)
	return k
}

// TestKubernetesRights: the one role has the launcher's rules and nothing else,
// and nothing is bound for the whole cluster. Only with a pool are pods changed, and
// with a warm pool none are made.
func TestKubernetesRights(t *testing.T) {
	t.Parallel()
	checkRights(t, outside().YAML, sandbox.KubernetesRules)
	checkRights(t, withPool().YAML, slices.Concat(sandbox.KubernetesRules, sandbox.KubernetesPoolRules))
	claim := Default()
	claim.Claim = true
	checkRights(t, claim.YAML, slices.Concat(sandbox.KubernetesRules, sandbox.KubernetesClaimRules))
	checkRights(t, withWarmPool().YAML, sandbox.KubernetesWarmRules)
}

func checkRights(t *testing.T, write func() ([]byte, error), rules []sandbox.KubernetesRule) {
	t.Helper()
	file, err := write()
	if err != nil {
		t.Fatal(err)
	}
	roles := 0
	for decoder := yaml.NewDecoder(bytes.NewReader(file)); ; {
		var o struct {
			Kind  string
			Rules []struct {
				Groups    []string `yaml:"apiGroups"`
				Resources []string
				Verbs     []string
			}
		}
		if decoder.Decode(&o) != nil {
			break
		}
		switch o.Kind {
		case "ClusterRole", "ClusterRoleBinding":
			t.Errorf("a %s is written", o.Kind)
		case "Role":
			roles++
			if len(o.Rules) != len(rules) {
				t.Errorf("the role has %d rules, the launcher %d", len(o.Rules), len(rules))
			}
			for i, want := range rules {
				got := o.Rules[i]
				if len(got.Groups) != 1 || got.Groups[0] != want.Group || len(got.Resources) != 1 || got.Resources[0] != want.Resource ||
					strings.Join(got.Verbs, " ") != strings.Join(want.Verbs, " ") {
					t.Errorf("rule %d is %+v, want %+v", i, got, want)
				}
			}
		}
	}
	if roles != 1 {
		t.Errorf("there are %d roles", roles)
	}
}

// TestKubernetesPool: the pool is a Deployment whose pods are found by what a claim
// takes away from them.
func TestKubernetesPool(t *testing.T) {
	t.Parallel()
	file, err := withPool().YAML()
	if err != nil {
		t.Fatal(err)
	}
	for decoder := yaml.NewDecoder(bytes.NewReader(file)); ; {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
			Spec     struct {
				Replicas int
				Selector struct {
					MatchLabels map[string]string `yaml:"matchLabels"`
				}
				Template struct {
					Metadata struct{ Labels map[string]string }
					Spec     struct {
						ImagePullSecrets []struct{ Name string }  `yaml:"imagePullSecrets"`
						InitContainers   []struct{ Image string } `yaml:"initContainers"`
						Containers       []struct{ Image string }
					}
				}
			}
		}
		if err := decoder.Decode(&o); err != nil {
			t.Fatalf("no Deployment is written: %v", err)
		}
		if o.Kind != "Deployment" {
			continue
		}
		pod := o.Spec.Template
		if o.Metadata.Name != "kick-pool-codex" || o.Metadata.Namespace != "boxes" || o.Spec.Replicas != 3 {
			t.Errorf("%+v with %d pods", o.Metadata, o.Spec.Replicas)
		}
		if l := o.Spec.Selector.MatchLabels; l["kick.standby"] != "true" || l["kick.pool"] != "codex" || len(l) != 2 || len(pod.Metadata.Labels["kick.shape"]) != 16 {
			t.Errorf("it selects %v of %v", l, pod.Metadata.Labels)
		}
		if len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Image != withPool().Image || len(pod.Spec.InitContainers) != 1 || len(pod.Spec.ImagePullSecrets) != 1 {
			t.Errorf("its pods are %+v", pod.Spec)
		}
		return
	}
}

// withWarmPool is withPool of agent-sandbox.
func withWarmPool() Kubernetes {
	k := withPool()
	k.Standby.Pool, k.Standby.WarmPool = "", "codex"
	return k
}

// TestKubernetesWarmPool: a warm pool has the same pods as a Deployment would, which
// end where those would be started again, and gives none of an older template.
func TestKubernetesWarmPool(t *testing.T) {
	t.Parallel()
	file, err := withWarmPool().YAML()
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string][]string{
		"SandboxTemplate": {"kick.shape: ", "networkPolicyManagement: Unmanaged", "restartPolicy: Never", "automountServiceAccountToken: false", "image: " + withPool().Image},
		"SandboxWarmPool": {"kick.shape: ", "replicas: 3", "name: codex", "type: Recreate"},
	}
	for doc := range strings.SplitSeq(string(file), "\n---\n") {
		for kind, words := range wants {
			if !strings.Contains("\n"+doc, "\nkind: "+kind+"\n") {
				continue
			}
			delete(wants, kind)
			for _, w := range words {
				if !strings.Contains(doc, w) {
					t.Errorf("the %s lacks %q:\n%s", kind, w, doc)
				}
			}
		}
	}
	if len(wants) > 0 {
		t.Errorf("not written: %v", wants)
	}
}

func TestKubernetesErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*Kubernetes)
		want   string
	}{
		{func(k *Kubernetes) { k.Pool = 2 }, "a pool of 2 pods has no image"},
		{func(k *Kubernetes) { k.Pool = -1 }, "a pool of -1 pods"},
		{func(k *Kubernetes) { k.Standby.WarmPool = "codex" }, "a pool of 0 pods has no image"},
		{func(k *Kubernetes) { k.Sandboxes = "a b" }, `"a b" is no name in Kubernetes`},
		{func(k *Kubernetes) { k.Sandboxes = k.Gateway }, "share the namespace kick-gateway"},
		{func(k *Kubernetes) { k.Account = "x\ny" }, "is no name"},
		{func(k *Kubernetes) { k.PullSecrets = []string{"-"} }, "is no name"},
		{func(k *Kubernetes) { k.Image = "A B" }, "image"},
		{func(k *Kubernetes) { k.Ports = policy.Ports{} }, "ports 0"},
		{func(k *Kubernetes) { k.Tiers = append(k.Tiers, Tier{Name: "low"}) }, "tier low is there twice"},
	} {
		k := Default()
		c.change(&k)
		if _, err := k.YAML(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, got %v", c.want, err)
		}
	}
}

func TestParseTier(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want Tier
	}{
		{"high=4", Tier{Name: "high", Pods: 4}},
		{"none=0", Tier{Name: "none"}},
		{"low=16,32", Tier{Name: "low", Pods: 16, CPU: "32"}},
		{"normal=16,500m,64Gi", Tier{"normal", 16, "500m", "64Gi"}},
		{"normal=16,,1.5Ti", Tier{"normal", 16, "", "1.5Ti"}},
	} {
		if got, err := ParseTier(c.text); err != nil || got != c.want {
			t.Errorf("%q: %+v, %v", c.text, got, err)
		}
	}
	for text, want := range map[string]string{
		"normal": "write NAME=PODS", "normal=1,2,3,4": "write NAME=PODS", "urgent=1": "the tiers are",
		"low=x": "is no number", "low=-1": "is no number", "low=1,two": "is no quantity", "low=1,1,64 Gi": "is no quantity",
	} {
		if got, err := ParseTier(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}
