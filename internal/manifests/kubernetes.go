// Package manifests writes what an operator applies to a cluster before kick
// runs there. The package's templates are the one place where that is written
// down, with the reasons.
package manifests

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"text/template"

	"github.com/google/go-containerregistry/pkg/name"
	"go.yaml.in/yaml/v3"

	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

//go:embed *.yaml.tmpl
var texts embed.FS

// parsed are the templates, when they are first used: most runs of kick use none.
var parsed = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{"join": strings.Join}).ParseFS(texts, "*.yaml.tmpl"))
})

// Kubernetes says by which names kick's objects are known in a cluster.
type Kubernetes struct {
	// Cluster has the namespaces and says where the gateway is. Its namespace of
	// the gateway is also that of kick's account.
	policy.Cluster
	Account string // kick's service account
	Tiers   []Tier // of sandboxes
	// Image is one that every node is to hold. Empty: nodes get images when they
	// need them.
	Image       string
	PullSecrets []string // in the sandboxes' namespace, for Image
	// Claim gives kick's account what it needs for workspaces on a claim. The claim
	// itself is the administrator's.
	Claim bool
	// Pool is how many pods of Image are to stand by for kicks. 0: there is no pool,
	// and kick's account has no right to claim from one, unless it is a warm pool.
	Pool int
	// Standby is what the pods are made as: kick's own configuration, of which the
	// name is Pool or WarmPool, and Limits are those of the agents.
	Standby sandbox.KubernetesConfig
	Limits  sandbox.Limits
}

// Tier is sandboxes that share a priority and a quota. Their priority class is
// kick-NAME; the tier NoTier is those without a class.
type Tier struct {
	Name string
	Pods int // how many sandboxes there may be at a time
	// CPU and Memory bound the sum of the sandboxes' limits, as Kubernetes writes
	// quantities: "16", "64Gi". Empty: no bound.
	CPU, Memory string
}

// NoTier is the tier of sandboxes without a priority class.
const NoTier = "none"

// priorities are those of the tiers' classes. All are below 0 but the first, so
// that no sandbox displaces what an operator has not given a class.
var priorities = map[string]int{"high": 0, "normal": -10, "low": -20}

// Default is what `kick manifests kubernetes` writes if nobody says otherwise.
func Default() Kubernetes {
	return Kubernetes{
		Cluster: policy.DefaultCluster(), Account: "kick",
		Tiers:   []Tier{{Name: "high", Pods: 4}, {Name: "normal", Pods: 16}, {Name: "low", Pods: 16}, {Name: NoTier, Pods: 16}},
		Standby: sandbox.KubernetesConfig{KubernetesChoice: sandbox.KubernetesChoice{Pool: "agents"}},
	}
}

var (
	label    = lazyregexp.New(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`) // RFC 1123
	quantity = lazyregexp.New(`^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$`)
)

// ParseTier reads NAME=PODS[,CPU[,MEMORY]], as in "normal=16,32,64Gi".
func ParseTier(s string) (Tier, error) {
	name, rest, ok := strings.Cut(s, "=")
	parts := strings.Split(rest, ",")
	if !ok || len(parts) > 3 {
		return Tier{}, fmt.Errorf("tier %q: write NAME=PODS, NAME=PODS,CPU or NAME=PODS,CPU,MEMORY", s)
	}
	if _, known := priorities[name]; !known && name != NoTier {
		return Tier{}, fmt.Errorf("tier %q: the tiers are high, normal, low and %s", name, NoTier)
	}
	t := Tier{Name: name}
	var err error
	if t.Pods, err = strconv.Atoi(parts[0]); err != nil || t.Pods < 0 {
		return Tier{}, fmt.Errorf("tier %q: %q is no number of pods", s, parts[0])
	}
	parts = append(parts, "", "")
	t.CPU, t.Memory = parts[1], parts[2]
	for _, q := range []string{t.CPU, t.Memory} {
		if q != "" && !quantity.MatchString(q) {
			return Tier{}, fmt.Errorf("tier %q: %q is no quantity: write it as in 16, 500m or 64Gi", s, q)
		}
	}
	return t, nil
}

// class is a PriorityClass.
type class struct {
	Name, Description string
	Value             int
	Preemption        string
}

func (k Kubernetes) classes() []class {
	var list []class
	for _, t := range k.Tiers {
		if t.Name == NoTier {
			continue
		}
		c := class{"kick-" + t.Name, "Sandboxes of kick whose priority is " + t.Name + ".", priorities[t.Name], "Never"}
		if t.Name == "high" {
			c.Preemption = "PreemptLowerPriority"
		}
		list = append(list, c)
	}
	if k.Image != "" {
		list = append(list, class{"kick-images", "Pods that keep images of kick's sandboxes on nodes.", -30, "Never"})
	}
	return list
}

// checkNames wants names of objects, and a namespace for kick's account that is not
// that of the sandboxes.
func checkNames(sandboxes, gateway string, others ...string) error {
	for _, n := range append([]string{sandboxes, gateway}, others...) {
		if !label.MatchString(n) {
			return fmt.Errorf("%q is no name in Kubernetes: write 1 to 63 lower-case letters, digits and dashes", n)
		}
	}
	if sandboxes == gateway {
		return fmt.Errorf("sandboxes and kick's account share the namespace %s: give kick one of its own, since whoever may make sandboxes beside an account can use it", gateway)
	}
	return nil
}

func (k Kubernetes) check() error {
	if err := checkNames(k.Sandboxes, k.Gateway, append(k.PullSecrets, k.Account)...); err != nil {
		return err
	}
	if k.Image != "" {
		if _, err := name.ParseReference(k.Image); err != nil {
			return fmt.Errorf("image %q: %w", k.Image, err)
		}
	}
	switch {
	case k.Pool < 0:
		return fmt.Errorf("a pool of %d pods: write 0 or more", k.Pool)
	case (k.Pool > 0 || k.Standby.WarmPool != "") && k.Image == "":
		return fmt.Errorf("a pool of %d pods has no image", k.Pool)
	}
	if name := cmp.Or(k.Standby.WarmPool, k.Standby.Pool); !label.MatchString(name) && k.Pool > 0 {
		return fmt.Errorf("pool %q: write 1 to 63 lower-case letters, digits and dashes", name)
	}
	seen := map[string]bool{}
	for _, t := range k.Tiers {
		if seen[t.Name] {
			return fmt.Errorf("tier %s is there twice", t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}

// YAML writes the objects as a file for kubectl.
func (k Kubernetes) YAML() ([]byte, error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	list, err := k.SandboxPolicies()
	if err != nil {
		return nil, err
	}
	policies, err := policy.NetworkPoliciesYAML(list)
	if err != nil {
		return nil, err
	}
	choice := k.Standby.KubernetesChoice
	if k.Pool == 0 {
		choice.Pool = ""
	}
	choice.Claim = ""
	rules := choice.Rules()
	if k.Claim {
		rules = append(rules, sandbox.KubernetesClaimRules...)
	}
	pool, err := k.pool()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = parsed().ExecuteTemplate(&b, "kubernetes.yaml.tmpl", struct {
		Kubernetes
		Rules           []sandbox.KubernetesRule
		NetworkPolicies string
		Classes         []class
		Standbys        string
	}{k, rules, string(withoutComments(policies)), k.classes(), pool})
	return b.Bytes(), err
}

// pool is the Deployment of the pods that stand by, or their warm pool, as YAML.
// Empty: there is none.
func (k Kubernetes) pool() (string, error) {
	c := k.Standby
	c.Namespace = k.Sandboxes
	var objects []any
	switch {
	case c.WarmPool != "":
		template, pool, err := sandbox.NewSandboxWarmPool(c, k.Image, k.Limits, k.Pool)
		if err != nil {
			return "", err
		}
		objects = []any{template, pool}
	case k.Pool > 0:
		d, err := sandbox.NewStandbyDeployment(c, k.Image, k.Limits, k.Pool)
		if err != nil {
			return "", err
		}
		objects = []any{d}
	}
	return objectsYAML(objects)
}

// objectsYAML writes objects as people would. Of none it is empty.
func objectsYAML(objects []any) (string, error) {
	if len(objects) == 0 {
		return "", nil
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	for _, object := range objects {
		b, err := json.Marshal(object)
		if err != nil {
			return "", err
		}
		var o yaml.Node // which keeps the order
		if err := yaml.Unmarshal(b, &o); err != nil {
			return "", err
		}
		inBlocks(&o)
		if err := e.Encode(&o); err != nil {
			return "", err
		}
	}
	err := e.Close()
	return out.String(), err
}

// inBlocks has people's way of writing YAML used instead of JSON's.
func inBlocks(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		inBlocks(c)
	}
}

// withoutComments drops the lines that say who made a file.
func withoutComments(file []byte) []byte {
	for bytes.HasPrefix(file, []byte("#")) {
		_, file, _ = bytes.Cut(file, []byte("\n"))
	}
	return file
}
