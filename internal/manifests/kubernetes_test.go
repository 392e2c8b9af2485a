package manifests

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kickhq/kick/sandbox"
)

var update = flag.Bool("update", false, "write the expected files anew")

// outside is kick on a host beside the cluster, with everything that can be said.
func outside() Kubernetes {
	k := Default()
	k.Sandboxes, k.Gateway, k.Account = "boxes", "agents", "launcher"
	k.Addresses = []netip.Prefix{netip.MustParsePrefix("10.1.2.3/32"), netip.MustParsePrefix("fd00::3/128")}
	k.Port = 9000
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
		got, err := k.YAML()
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
}

// TestKubernetesRights: the one role has the launcher's rules and nothing else,
// and nothing is bound for the whole cluster.
func TestKubernetesRights(t *testing.T) {
	t.Parallel()
	file, err := outside().YAML()
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
			if len(o.Rules) != len(sandbox.KubernetesRules) {
				t.Errorf("the role has %d rules, the launcher %d", len(o.Rules), len(sandbox.KubernetesRules))
			}
			for i, want := range sandbox.KubernetesRules {
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

func TestKubernetesErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*Kubernetes)
		want   string
	}{
		{func(k *Kubernetes) { k.Sandboxes = "a b" }, `"a b" is no name in Kubernetes`},
		{func(k *Kubernetes) { k.Sandboxes = k.Gateway }, "share the namespace kick-gateway"},
		{func(k *Kubernetes) { k.Account = "x\ny" }, "is no name"},
		{func(k *Kubernetes) { k.PullSecrets = []string{"-"} }, "is no name"},
		{func(k *Kubernetes) { k.Image = "A B" }, "image"},
		{func(k *Kubernetes) { k.Port = 0 }, "port 0"},
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
