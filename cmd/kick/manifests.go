package main

import (
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/manifests"
)

func newManifests() *cobra.Command {
	c := &cobra.Command{
		Use:   "manifests",
		Short: "Write what a cluster needs before kick runs there",
		Args:  args(known),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newManifestsKubernetes())
	return c
}

type kubernetesOptions struct {
	manifests.Kubernetes
	addresses, tiers []string
	config, agent    string
}

func newManifestsKubernetes() *cobra.Command {
	o := &kubernetesOptions{Kubernetes: manifests.Default()}
	c := &cobra.Command{
		Use:   "kubernetes",
		Short: "Write the objects that an administrator applies to a Kubernetes cluster",
		Long: `Write the objects of a Kubernetes cluster in which sandboxes run as Jobs: a
namespace for them with restricted Pod Security, kick's account with the verbs
that it uses and no other, NetworkPolicies by which a sandbox reaches kick's
gateway and nothing else, priority classes with a quota for each, with --image
a DaemonSet that keeps an image on every node, and with --pool pods that stand
by, for kicks that begin at once: a Deployment, or a SandboxWarmPool if the agent
has kubernetes.warm_pool. Nothing is sent: apply it as a cluster administrator,
which kick need not be.

Without --gateway-address, kick runs in the cluster: in a pod with the label
app.kubernetes.io/name=kick-gateway in the gateway's namespace.`,
		Example: `  kick manifests kubernetes | kubectl apply -f -
  kick manifests kubernetes --sandbox-namespace agents --gateway-address 10.1.2.3/32
  kick manifests kubernetes --image registry.example/agent@sha256:... --tier normal=16,32,64Gi --tier none=0
  kick manifests kubernetes --agent scanner --pool 5`,
		Args: args(none),
		RunE: func(_ *cobra.Command, _ []string) error { return manifestsKubernetesRun(o) },
	}
	f := c.Flags()
	f.StringVar(&o.Sandboxes, "sandbox-namespace", o.Sandboxes, "`namespace` of the sandboxes, and of nothing else")
	f.StringVar(&o.Gateway, "gateway-namespace", o.Gateway, "`namespace` of kick's account and, in the cluster, of kick")
	f.StringArrayVar(&o.addresses, "gateway-address", nil, "`network` of a gateway outside the cluster, as 10.1.2.3/32; may be repeated")
	f.Var(&o.Ports, "gateway-port", "`ports` of the gateways, one for each process of kick at the address: the first and the last, or one")
	f.StringVar(&o.Account, "account", o.Account, "`name` of kick's service account")
	f.StringArrayVar(&o.tiers, "tier", nil, "quota of a priority, as NAME=PODS[,CPU[,MEMORY]] with NAME high, normal, low, or none for sandboxes without a class; may be repeated (default 4, 16, 16 and 16 pods)")
	f.StringVar(&o.Image, "image", "", "`image` that every node is to hold")
	f.BoolVar(&o.Claim, "claim", false, "let kick's account look at claims, for workspaces on one; an --agent whose kubernetes block has a claim needs no flag")
	f.IntVar(&o.Pool, "pool", 0, "`number` of pods that stand by for kicks, from which kick's account may claim; needs --agent")
	f.StringVar(&o.agent, "agent", "", "agent's `name` in kick.yaml, for whose kicks the pool and the rights are: its image, limits and kubernetes block")
	f.StringVar(&o.config, "config", "", "kick.yaml `file` (default: found from here upward)")
	f.StringSliceVar(&o.PullSecrets, "pull-secret", nil, "`name` of a secret for pulling it, in the sandboxes' namespace; may be repeated")
	return c
}

func manifestsKubernetesRun(o *kubernetesOptions) error {
	for _, a := range o.addresses {
		p, err := netip.ParsePrefix(a)
		if err != nil {
			return usagef("--gateway-address %q: write a network, as 10.1.2.3/32", a)
		}
		o.Addresses = append(o.Addresses, p)
	}
	if len(o.tiers) > 0 {
		o.Tiers = nil
	}
	for _, s := range o.tiers {
		t, err := manifests.ParseTier(s)
		if err != nil {
			return usageError{err}
		}
		o.Tiers = append(o.Tiers, t)
	}
	if err := o.forAgent(); err != nil {
		return err
	}
	out, err := o.YAML()
	if err != nil {
		return usageError{err}
	}
	_, err = os.Stdout.Write(out)
	return err
}

// forAgent takes from kick.yaml what an agent's pods are made as.
func (o *kubernetesOptions) forAgent() error {
	switch {
	case o.agent == "" && o.Pool != 0:
		return usagef("--pool: for which agent? pass --agent NAME, with one of kick.yaml")
	case o.agent == "":
		return nil
	case o.Image != "":
		return usagef("--image and --agent: the agent has an image, leave --image out")
	}
	c, err := loadConfig(o.config)
	if err != nil {
		return err
	}
	r, err := c.Agent(o.agent)
	if err != nil {
		return usageError{err}
	}
	if k := r.Kubernetes.Value; o.Pool != 0 && k.Pool == "" && k.WarmPool == "" {
		return usagef("--pool: agent %s takes its pods from none: set kubernetes.pool or kubernetes.warm_pool to its name in kick.yaml", o.agent)
	}
	o.Image, o.Limits = r.Image.Value, r.Limits()
	o.Standby.KubernetesChoice = r.Kubernetes.Value
	o.Claim = o.Claim || r.Kubernetes.Value.Claim != ""
	o.PullSecrets = append(o.PullSecrets, r.Kubernetes.Value.PullSecrets...)
	return nil
}
