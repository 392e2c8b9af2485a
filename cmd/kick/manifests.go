package main

import (
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/config"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/manager"
)

func newManifests(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "manifests",
		Short: "Write what a cluster needs before kick runs there",
		Args:  args(known),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newManifestsKubernetes(), newManifestsKubeVirt(g))
	return c
}

type kubernetesOptions struct {
	manifests.Kubernetes
	addresses, tiers []string
	config, agent    string
	named            bool // Sandboxes is, by a flag
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
		RunE: func(c *cobra.Command, _ []string) error {
			o.named = c.Flags().Changed("sandbox-namespace")
			return manifestsKubernetesRun(o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Sandboxes, "sandbox-namespace", o.Sandboxes, "`namespace` of the sandboxes, and of nothing else; with --agent, that of its kubernetes block")
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
	return writeManifests(o.YAML())
}

// writeManifests writes what became of the flags.
func writeManifests(out []byte, err error) error {
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
	r, err := resolved(o.config, o.agent)
	if err != nil {
		return err
	}
	if k := r.Kubernetes.Value; o.Pool != 0 && k.Pool == "" && k.WarmPool == "" {
		return usagef("--pool: agent %s takes its pods from none: set kubernetes.pool or kubernetes.warm_pool to its name in kick.yaml", o.agent)
	}
	if k := r.Kubernetes.Value; k.Namespace != "" && k.Namespace != o.Sandboxes {
		if o.named {
			return usagef("--sandbox-namespace %s: agent %s has its sandboxes in %s, as kick.yaml says: name that, or leave the flag out", o.Sandboxes, o.agent, k.Namespace)
		}
		o.Sandboxes = k.Namespace
	}
	o.Image, o.Limits = r.Image.Value, r.Limits()
	o.Standby.KubernetesChoice = r.Kubernetes.Value
	o.Claim = o.Claim || r.Kubernetes.Value.Claim != ""
	o.PullSecrets = append(o.PullSecrets, r.Kubernetes.Value.PullSecrets...)
	return nil
}

// resolved is what kick.yaml says of an agent.
func resolved(file, agent string) (config.Resolved, error) {
	c, err := loadConfig(file)
	if err != nil {
		return config.Resolved{}, err
	}
	r, err := c.Agent(agent)
	if err != nil {
		return r, usageError{err}
	}
	return r, nil
}

type kubeVirtOptions struct {
	manifests.KubeVirt
	state         func() (*manager.State, error)
	config, agent string
}

func newManifestsKubeVirt(g *globals) *cobra.Command {
	o := &kubeVirtOptions{KubeVirt: manifests.DefaultKubeVirt()}
	c := &cobra.Command{
		Use:   "kubevirt",
		Short: "Write the objects that an administrator applies to a cluster with KubeVirt",
		Long: `Write the objects of a cluster with KubeVirt in which sandboxes run in virtual
machines: a namespace for them, kick's account with the verbs that it uses and no
other, a NetworkPolicy by which a machine reaches nothing and KubeVirt alone reaches
its sshd, a quota, and with --pool machines that stand by, for kicks that begin at
once. Those know this kick by the key in its state directory: kicks of another one
have machines of their own made. Nothing is sent: apply it as a cluster
administrator, which kick need not be.`,
		Example: `  kick manifests kubevirt | kubectl apply -f -
  kick manifests kubevirt --sandbox-namespace machines --machines 8 --memory 64Gi
  kick manifests kubevirt --agent scanner --pool 2`,
		Args: args(none),
		RunE: func(*cobra.Command, []string) error {
			o.state = g.state
			return manifestsKubeVirtRun(o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Sandboxes, "sandbox-namespace", o.Sandboxes, "`namespace` of the machines, and of nothing else")
	f.StringVar(&o.Gateway, "gateway-namespace", o.Gateway, "`namespace` of kick's account and, in the cluster, of kick")
	f.StringVar(&o.System, "kubevirt-namespace", o.System, "`namespace` that KubeVirt itself runs in")
	f.StringVar(&o.Account, "account", o.Account, "`name` of kick's service account")
	f.IntVar(&o.Count, "machines", o.Count, "`number` of machines that there may be at a time")
	f.StringVar(&o.Memory, "memory", "", "what all machines may reserve on their nodes together, e.g. `64Gi` (default: not bounded)")
	f.IntVar(&o.Pool, "pool", 0, "`number` of machines that stand by for kicks, from which kick's account may claim; needs --agent")
	f.StringVar(&o.agent, "agent", "", "agent's `name` in kick.yaml, for whose kicks the pool and the rights are: its image, limits and kubevirt block")
	f.StringVar(&o.config, "config", "", "kick.yaml `file` (default: found from here upward)")
	return c
}

func manifestsKubeVirtRun(o *kubeVirtOptions) error {
	if err := o.forAgent(); err != nil {
		return err
	}
	return writeManifests(o.YAML())
}

// forAgent takes from kick.yaml what an agent's machines are made as, and from the
// state what they are known by.
func (o *kubeVirtOptions) forAgent() error {
	switch {
	case o.agent == "" && o.Pool != 0:
		return usagef("--pool: for which agent? pass --agent NAME, with one of kick.yaml")
	case o.agent == "":
		return nil
	}
	r, err := resolved(o.config, o.agent)
	if err != nil {
		return err
	}
	if o.Pool != 0 && r.KubeVirt.Value.Pool == "" {
		return usagef("--pool: agent %s takes its machines from none: set kubevirt.pool to its name in kick.yaml", o.agent)
	}
	o.Image, o.Limits, o.Choice = r.Image.Value, r.Limits(), r.KubeVirt.Value
	if o.Pool == 0 {
		return nil
	}
	state, err := o.state()
	if err != nil {
		return err
	}
	shim, err := openShim()
	if err != nil {
		return err
	}
	defer func() { _ = shim.Close() }() // only read
	embedded, err := manager.NewEmbedded(shim)
	if err != nil {
		return err
	}
	o.Launcher, err = manager.NewKubeVirt(state, embedded, o.Image, o.Choice)
	return err
}
