package policy

import (
	"bytes"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
)

// NetworkPolicy is a Kubernetes NetworkPolicy (networking.k8s.io/v1), as far
// as kick writes one.
type NetworkPolicy struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   objectMeta        `yaml:"metadata"`
	Spec       NetworkPolicySpec `yaml:"spec"`
}

type objectMeta struct {
	Name      string `yaml:"name"`
	Namespace string `yaml:"namespace"`
}

// NetworkPolicySpec selects pods and says what they may do; what no rule
// allows is denied for the types that are listed.
type NetworkPolicySpec struct {
	PodSelector labelSelector `yaml:"podSelector"`
	PolicyTypes []string      `yaml:"policyTypes,flow"`
	Ingress     []IngressRule `yaml:"ingress,omitempty"`
	Egress      []EgressRule  `yaml:"egress,omitempty"`
}

type labelSelector struct {
	MatchLabels map[string]string `yaml:"matchLabels,omitempty"`
}

// IngressRule allows connections from peers to ports.
type IngressRule struct {
	From  []NetworkPeer `yaml:"from"`
	Ports []NetworkPort `yaml:"ports"`
}

// EgressRule allows connections to peers at ports.
type EgressRule struct {
	To    []NetworkPeer `yaml:"to"`
	Ports []NetworkPort `yaml:"ports"`
}

// NetworkPeer is pods of a namespace, or a block of addresses.
type NetworkPeer struct {
	Namespace *labelSelector `yaml:"namespaceSelector,omitempty"`
	Pods      *labelSelector `yaml:"podSelector,omitempty"`
	IPBlock   *IPBlock       `yaml:"ipBlock,omitempty"`
}

// IPBlock is a network with exceptions.
type IPBlock struct {
	CIDR   netip.Prefix   `yaml:"cidr"`
	Except []netip.Prefix `yaml:"except,omitempty"`
}

// NetworkPort is a port, or with EndPort all from one to the other.
type NetworkPort struct {
	Protocol string `yaml:"protocol"`
	Port     int    `yaml:"port"`
	EndPort  int    `yaml:"endPort,omitempty"`
}

// Cluster says where sandboxes and gateway run in a cluster.
type Cluster struct {
	Sandboxes string // namespace of the sandboxes, and of nothing else
	Gateway   string // namespace of the gateway
	// Addresses are those of a gateway outside the cluster, as the gateway's host
	// has them on the way to the pods. There is then no namespace of the gateway.
	Addresses []netip.Prefix
	Ports     Ports // of the gateways: each process of kick at an address has one
}

// DefaultCluster is what `kick policy compile` writes if nobody says otherwise.
func DefaultCluster() Cluster {
	return Cluster{Sandboxes: "kick-sandboxes", Gateway: "kick-gateway", Ports: Ports{8377, 8392}}
}

// A sandbox's pod has NetworkLabel with NetworkRestricted if the gateway is its
// one way out, and with any other value if it has none.
const (
	NetworkLabel      = "kick.network"
	NetworkRestricted = "restricted"
)

const (
	namespaceLabel = "kubernetes.io/metadata.name"
	nameLabel      = "app.kubernetes.io/name"
	gatewayName    = "kick-gateway"
)

func pods(namespace string, labels map[string]string) NetworkPeer {
	p := NetworkPeer{Namespace: &labelSelector{map[string]string{namespaceLabel: namespace}}}
	if labels != nil {
		p.Pods = &labelSelector{labels}
	}
	return p
}

func tcp(ports ...int) []NetworkPort {
	out := make([]NetworkPort, len(ports))
	for i, p := range ports {
		out[i] = NetworkPort{Protocol: "TCP", Port: p}
	}
	return out
}

// gateways are the ports at which gateways listen.
func (c Cluster) gateways() []NetworkPort {
	p := NetworkPort{Protocol: "TCP", Port: c.Ports.First}
	if c.Ports.Last > c.Ports.First {
		p.EndPort = c.Ports.Last
	}
	return []NetworkPort{p}
}

// NetworkPolicies makes the policies of the sandboxes, and one for the gateway if
// it runs in the cluster: it reaches the ports and addresses that e may need.
// Hosts, methods and paths are the gateway's to decide: a NetworkPolicy knows
// none.
func (e Egress) NetworkPolicies(c Cluster) ([]NetworkPolicy, error) {
	r, err := e.Compile()
	if err != nil {
		return nil, err
	}
	list, err := c.SandboxPolicies()
	if err != nil || len(c.Addresses) > 0 {
		return list, err
	}
	return append(list, NetworkPolicy{
		"networking.k8s.io/v1", "NetworkPolicy", objectMeta{"kick-gateway", c.Gateway},
		NetworkPolicySpec{
			PodSelector: labelSelector{map[string]string{nameLabel: gatewayName}},
			PolicyTypes: []string{"Ingress", "Egress"},
			Ingress:     []IngressRule{{[]NetworkPeer{pods(c.Sandboxes, restricted)}, c.gateways()}},
			Egress:      append([]EgressRule{resolver()}, r.outside()...),
		},
	}), nil
}

var restricted = map[string]string{NetworkLabel: NetworkRestricted}

// SandboxPolicies makes two policies: no pod of the sandboxes' namespace reaches
// or is reached by anything, not even a resolver, but that those with a
// restricted network reach the gateway.
func (c Cluster) SandboxPolicies() ([]NetworkPolicy, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	gateway := []NetworkPeer{pods(c.Gateway, map[string]string{nameLabel: gatewayName})}
	if len(c.Addresses) > 0 {
		gateway = blocks(c.Addresses)
	}
	return []NetworkPolicy{
		{
			"networking.k8s.io/v1", "NetworkPolicy", objectMeta{"kick-deny-all", c.Sandboxes},
			NetworkPolicySpec{PolicyTypes: []string{"Ingress", "Egress"}},
		},
		{
			"networking.k8s.io/v1", "NetworkPolicy", objectMeta{"kick-gateway-only", c.Sandboxes},
			NetworkPolicySpec{
				PodSelector: labelSelector{restricted},
				PolicyTypes: []string{"Egress"},
				Egress:      []EgressRule{{gateway, c.gateways()}},
			},
		},
	}, nil
}

func (c Cluster) check() error {
	names := []string{c.Sandboxes, c.Gateway}
	if len(c.Addresses) > 0 {
		names = names[:1]
	}
	for _, name := range names {
		if err := checkWord(name); err != nil {
			return fmt.Errorf("namespace %w", err)
		}
	}
	if len(names) == 2 && c.Sandboxes == c.Gateway {
		return fmt.Errorf("sandboxes and gateway share the namespace %s: give the gateway one of its own", c.Gateway)
	}
	if p := c.Ports; p.First < 1 || p.Last < p.First || p.Last > 65535 {
		return fmt.Errorf("ports %s of the gateway: write 1 to 65535", p)
	}
	for _, a := range c.Addresses {
		switch {
		case !a.IsValid() || a.Bits() == 0:
			return fmt.Errorf("address %s of the gateway would be anywhere: write its address, as in 10.1.2.3/32", a)
		case a.Masked() != a:
			return fmt.Errorf("address %s of the gateway: write %s, or %s/%d for one address", a, a.Masked(), a.Addr(), a.Addr().BitLen())
		}
	}
	return nil
}

func blocks(addresses []netip.Prefix) []NetworkPeer {
	peers := make([]NetworkPeer, len(addresses))
	for i, a := range addresses {
		peers[i] = NetworkPeer{IPBlock: &IPBlock{CIDR: a}}
	}
	return peers
}

func resolver() EgressRule {
	return EgressRule{
		[]NetworkPeer{pods("kube-system", map[string]string{"k8s-app": "kube-dns"})},
		[]NetworkPort{{Protocol: "UDP", Port: 53}, {Protocol: "TCP", Port: 53}},
	}
}

// outside are the ports of public addresses, and the addresses that rules list.
func (r *Reach) outside() []EgressRule {
	var public []int
	var listed []EgressRule
	add := func(addresses []netip.Prefix, ports ...int) {
		if len(addresses) == 0 {
			public = append(public, ports...)
			return
		}
		listed = append(listed, EgressRule{blocks(addresses), tcp(ports...)})
	}
	for _, h := range r.hosts {
		add(h.Addresses, h.Ports...)
	}
	for _, host := range r.GitHosts() {
		add(r.gitAt[host], 443)
	}
	for _, m := range r.models {
		if port := endpointPort(m.Endpoint); port > 0 {
			add(m.Addresses, port)
		}
	}
	slices.Sort(public)
	if public = slices.Compact(public); len(public) == 0 {
		return listed
	}
	return append([]EgressRule{{publicPeers(), tcp(public...)}}, listed...)
}

// endpointPort is 0 for a server on the gateway's own host, which no policy of
// the network concerns.
func endpointPort(endpoint string) int {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme == "" || u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1" {
		return 0
	}
	if port, err := strconv.Atoi(u.Port()); err == nil {
		return port
	}
	if u.Scheme == SchemeHTTP {
		return 80
	}
	return 443
}

// publicPeers is all but what AllowsAddress refuses to a host without a list.
func publicPeers() []NetworkPeer {
	v4, v6 := IPBlock{CIDR: netip.MustParsePrefix("0.0.0.0/0")}, IPBlock{CIDR: netip.MustParsePrefix("::/0")}
	for _, p := range slices.Concat(neverPrefixes, privatePrefixes) {
		switch {
		case p.Addr().Is4():
			v4.Except = append(v4.Except, p)
		case !p.Addr().Is4In6(): // never on the wire, and Kubernetes takes it for IPv4
			v6.Except = append(v6.Except, p)
		}
	}
	return []NetworkPeer{{IPBlock: &v4}, {IPBlock: &v6}}
}

// NetworkPoliciesYAML writes policies as a file for kubectl.
func NetworkPoliciesYAML(list []NetworkPolicy) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# Made by kick policy compile --to networkpolicy. It needs a network plugin that enforces\n" +
		"# NetworkPolicy; hosts, methods and paths are decided by the gateway.\n")
	docs := make([]any, len(list))
	for i := range list {
		docs[i] = list[i]
	}
	if err := writeYAML(&b, docs...); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
