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

// NetworkPort is a port.
type NetworkPort struct {
	Protocol string `yaml:"protocol"`
	Port     int    `yaml:"port"`
}

// Cluster says where sandboxes and gateway run in a cluster.
type Cluster struct {
	Sandboxes string // namespace of the sandboxes, and of nothing else
	Gateway   string // namespace of the gateway
	Port      int    // of the gateway
}

// DefaultCluster is what `kick policy compile` writes if nobody says otherwise.
func DefaultCluster() Cluster {
	return Cluster{Sandboxes: "kick-sandboxes", Gateway: "kick-gateway", Port: 8377}
}

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
		out[i] = NetworkPort{"TCP", p}
	}
	return out
}

// NetworkPolicies makes two policies: sandboxes reach the gateway and nothing
// else, not even a resolver; the gateway reaches the ports and addresses that
// e may need. Hosts, methods and paths are the gateway's to decide: a
// NetworkPolicy knows none.
func (e Egress) NetworkPolicies(c Cluster) ([]NetworkPolicy, error) {
	r, err := e.Compile()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{c.Sandboxes, c.Gateway} {
		if checkWord(name) != nil {
			return nil, fmt.Errorf("namespace %w", checkWord(name))
		}
	}
	if c.Sandboxes == c.Gateway {
		return nil, fmt.Errorf("sandboxes and gateway share the namespace %s: give the gateway one of its own", c.Gateway)
	}
	if c.Port < 1 || c.Port > 65535 {
		return nil, fmt.Errorf("port %d of the gateway: write 1 to 65535", c.Port)
	}
	gateway := map[string]string{nameLabel: gatewayName}
	return []NetworkPolicy{
		{
			"networking.k8s.io/v1", "NetworkPolicy", objectMeta{"kick-sandboxes", c.Sandboxes},
			NetworkPolicySpec{
				PolicyTypes: []string{"Ingress", "Egress"},
				Egress:      []EgressRule{{[]NetworkPeer{pods(c.Gateway, gateway)}, tcp(c.Port)}},
			},
		},
		{
			"networking.k8s.io/v1", "NetworkPolicy", objectMeta{"kick-gateway", c.Gateway},
			NetworkPolicySpec{
				PodSelector: labelSelector{gateway},
				PolicyTypes: []string{"Ingress", "Egress"},
				Ingress:     []IngressRule{{[]NetworkPeer{pods(c.Sandboxes, nil)}, tcp(c.Port)}},
				Egress:      append([]EgressRule{resolver()}, r.outside()...),
			},
		},
	}, nil
}

func resolver() EgressRule {
	return EgressRule{
		[]NetworkPeer{pods("kube-system", map[string]string{"k8s-app": "kube-dns"})},
		[]NetworkPort{{"UDP", 53}, {"TCP", 53}},
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
		rule := EgressRule{Ports: tcp(ports...)}
		for _, a := range addresses {
			rule.To = append(rule.To, NetworkPeer{IPBlock: &IPBlock{CIDR: a}})
		}
		listed = append(listed, rule)
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
