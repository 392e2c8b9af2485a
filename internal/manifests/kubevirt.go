package manifests

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// KubeVirt says by which names kick's objects are known in a cluster with KubeVirt.
type KubeVirt struct {
	Sandboxes string // namespace of the machines, and of nothing else
	Gateway   string // namespace of kick's account
	Account   string // kick's service account
	System    string // namespace of KubeVirt itself, from which machines are reached
	Count     int    // machines that there may be at a time
	// Memory bounds what all of them reserve on their nodes, as Kubernetes writes
	// quantities: "64Gi". Empty: no bound.
	Memory string
	// Pool is how many machines are to stand by for kicks of Image with Limits, as
	// Launcher claims them. 0: there is no pool.
	Pool     int
	Launcher *sandbox.KubeVirt
	Image    string
	Limits   sandbox.Limits
	// Choice is the launcher's, by which it has its rights.
	Choice sandbox.KubeVirtChoice
}

// DefaultKubeVirt is what `kick manifests kubevirt` writes if nobody says otherwise.
func DefaultKubeVirt() KubeVirt {
	return KubeVirt{Sandboxes: "kick-machines", Gateway: policy.DefaultCluster().Gateway, Account: "kick", System: "kubevirt", Count: 16}
}

// YAML writes the objects as a file for kubectl.
func (k KubeVirt) YAML() ([]byte, error) {
	if err := checkNames(k.Sandboxes, k.Gateway, k.Account, k.System); err != nil {
		return nil, err
	}
	switch {
	case k.Count < 1:
		return nil, fmt.Errorf("a quota of %d machines: write 1 or more", k.Count)
	case k.Memory != "" && !quantity.MatchString(k.Memory):
		return nil, fmt.Errorf("memory %q is no quantity: write it as in 64Gi", k.Memory)
	case k.Pool < 0 || k.Pool >= k.Count:
		return nil, fmt.Errorf("a pool of %d machines: write 0 or more, and fewer than the %d that there may be", k.Pool, k.Count)
	}
	if linger := k.Choice.Linger.Machines; k.Pool+linger >= k.Count {
		return nil, fmt.Errorf("%d machines that stand by and %d that linger: write fewer than the %d that there may be, or more of those", k.Pool, linger, k.Count)
	}
	var objects []any
	if k.Pool > 0 {
		if k.Launcher == nil {
			return nil, errors.New("a pool of machines, and no launcher to claim them")
		}
		choice := k.Choice
		choice.Namespace = k.Sandboxes
		secret, set, err := k.Launcher.With(choice).Standbys(k.Image, k.Limits, k.Pool)
		if err != nil {
			return nil, err
		}
		objects = []any{secret, set}
	}
	standbys, err := objectsYAML(objects)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = parsed().ExecuteTemplate(&b, "kubevirt.yaml.tmpl", struct {
		KubeVirt
		Rules    []sandbox.KubernetesRule
		Standbys string
	}{k, k.Choice.Rules(), standbys})
	return b.Bytes(), err
}
