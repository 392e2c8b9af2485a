package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// kubernetesFields are the keys of a kubernetes block, which is read as a whole: an
// agent's replaces the global one.
var kubernetesFields = []field[sandbox.KubernetesChoice]{
	{"kubeconfig", "Absolute path of a kubeconfig. Default: KUBECONFIG, ~/.kube/config, or the account of the pod that kick runs in.",
		object{"type": "string", "pattern": "^(/.*)?$"}, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.Kubeconfig }, readDirectory)},
	{"context", "A context of the kubeconfig. Default: its current one.",
		object{"type": "string"}, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.Context }, readWord)},
	{"namespace", "Where the Jobs are made; kick manifests kubernetes prints one that is fit for them. Default: the context's.",
		kubeNameSchema, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.Namespace }, readKubeName)},
	{"gateway", "Where pods reach kick's egress gateway, as ADDRESS:PORT or ADDRESS:PORT-PORT with a numeric address; each process of kick listens on the first of these ports that is free. It is needed unless network_mode is none.",
		object{"type": "string"}, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.Gateway }, readGateway)},
	{"shim_image", "An image with kick's shim at /kick-shim, which an init container puts into the pod. Default: the agent's image has it at /usr/libexec/kick/kick-shim.",
		object{"type": "string"}, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.ShimImage }, readWord)},
	{"claim", "A PersistentVolumeClaim of the namespace in which each kick has a directory for its workspace, so that its work outlives its pod and the base is sent once. It needs shim_image, and no pool. Default: a workspace goes with its pod.",
		kubeNameSchema, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.Claim }, readKubeName)},
	{"claim_path", "The directory of the claim in which kick has its own. Default: the claim's root.",
		object{"type": "string", "pattern": sandbox.ClaimPathForm}, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.ClaimPath }, readClaimPath)},
	{"service_account", "The pod's account, whose token it does not get. Default: default.",
		kubeNameSchema, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.ServiceAccount }, readKubeName)},
	{"node_selector", "Labels that the pod's node must have.",
		labelsSchema, func(d *decoder, p place, c *sandbox.KubernetesChoice) { c.NodeSelector = readLabels(d, p) }},
	{"tolerations", "Taints of nodes that the pod tolerates: key, and value and effect if they matter.",
		tolerationsSchema, func(d *decoder, p place, c *sandbox.KubernetesChoice) { c.Tolerations = readTolerations(d, p) }},
	{"affinity", "The pod's affinity, as in a pod: nodeAffinity, podAffinity and podAntiAffinity.",
		object{"type": []string{"object", "null"}}, decodeAffinity},
	{"runtime_class", "The pod's RuntimeClass. Default: the cluster's.",
		kubeNameSchema, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.RuntimeClass }, readKubeName)},
	{"priority_class", "The pod's PriorityClass. Default: the cluster's.",
		kubeNameSchema, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.PriorityClass }, readKubeName)},
	{"pull_secrets", "Secrets of the namespace by which the node pulls the image. The sandbox does not see them.",
		object{"type": "array", "items": kubeNameSchema}, kubeList(func(c *sandbox.KubernetesChoice) *[]string { return &c.PullSecrets }, readKubeName)},
	{"queue", "A LocalQueue of Kueue, which then starts the Jobs. Default: none.",
		kubeNameSchema, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.Queue }, readKubeName)},
	{"pool", "A pool of pods that stand by, as kick manifests kubernetes --pool writes it, from which a kick takes one if its own would be made the same. Default: every kick has a Job.",
		kubeNameSchema, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.Pool }, readKubeName)},
	{"warm_pool", "A SandboxWarmPool of agent-sandbox, as kick manifests kubernetes --agent writes it, from which every kick claims its pod. Default: every kick has a Job.",
		kubeNameSchema, kubeText(func(c *sandbox.KubernetesChoice) *string { return &c.WarmPool }, readKubeName)},
	{"pool_wait_s", "Seconds that a kick waits for a pod of the pool when none is ready, before it has a Job. Default: not at all.",
		object{"type": "integer", "minimum": 0, "maximum": maxTimeout}, func(d *decoder, p place, c *sandbox.KubernetesChoice) {
			if v, ok := readTimeout(d, p); ok {
				c.PoolWait = v
			}
		}},
	{"host_users", "Leave the pod's users those of the node, where the cluster has no user namespaces. The properties user-namespace and process-limit are missing then, and must be accepted. Default: false.",
		object{"type": "boolean"}, func(d *decoder, p place, c *sandbox.KubernetesChoice) {
			if v, ok := d.boolean(p); ok {
				c.HostUsers = v
			}
		}},
	{"canaries", "Addresses, numeric as ADDRESS:PORT and none of loopback, that a pod reaches unless a NetworkPolicy keeps it from that. No kick starts before they are closed to it. Default: the API server's.",
		object{"type": "array", "items": object{"type": "string"}}, kubeList(func(c *sandbox.KubernetesChoice) *[]string { return &c.Canaries }, readCanary)},
}

var (
	labelsSchema      = object{"type": []string{"object", "null"}, "additionalProperties": object{"type": "string"}}
	tolerationsSchema = object{"type": "array", "items": mappingSchema(tolerationFields)}
)

var tolerationFields = []field[sandbox.Toleration]{
	{"key", "The taint's key.", object{"type": "string"}, func(d *decoder, p place, t *sandbox.Toleration) { setText(d, p, &t.Key, readWord) }},
	{"value", "Its value. Default: any.", object{"type": "string"}, func(d *decoder, p place, t *sandbox.Toleration) { setText(d, p, &t.Value, readWord) }},
	{"effect", "Its effect. Default: all.", enumSchema(taintEffects), func(d *decoder, p place, t *sandbox.Toleration) {
		setText(d, p, &t.Effect, func(d *decoder, p place) (string, bool) { return oneOf(d, p, taintEffects, nil) })
	}},
}

var taintEffects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

func setText(d *decoder, p place, dst *string, read func(*decoder, place) (string, bool)) {
	if v, ok := read(d, p); ok {
		*dst = v
	}
}

// kubeText reads text into a field.
func kubeText[T any](of func(*T) *string, read func(*decoder, place) (string, bool)) func(*decoder, place, *T) {
	return func(d *decoder, p place, c *T) { setText(d, p, of(c), read) }
}

// kubeList reads a list of texts into a field.
func kubeList[T any](of func(*T) *[]string, read func(*decoder, place) (string, bool)) func(*decoder, place, *T) {
	return func(d *decoder, p place, c *T) {
		items, _ := d.list(p, "a list of texts")
		for _, it := range items {
			if v, ok := read(d, it); ok {
				*of(c) = append(*of(c), v)
			}
		}
	}
}

func readTolerations(d *decoder, p place) (list []sandbox.Toleration) {
	items, _ := d.list(p, "a list of tolerations")
	for _, it := range items {
		var t sandbox.Toleration
		decodeMapping(d, it, &t, tolerationFields)
		list = append(list, t)
	}
	return list
}

// decodeAffinity reads what Kubernetes has a type for. What that does not know is
// refused here, and not dropped by the API server.
func decodeAffinity(d *decoder, p place, c *sandbox.KubernetesChoice) {
	b, err := json.Marshal(plain(d, p))
	if err == nil {
		strict := json.NewDecoder(bytes.NewReader(b))
		strict.DisallowUnknownFields()
		c.Affinity = &corev1.Affinity{}
		err = strict.Decode(c.Affinity)
	}
	if err != nil {
		d.problem(p, "is no affinity of a pod: "+strings.TrimPrefix(err.Error(), "json: "), "write it as in a pod: kubectl explain pod.spec.affinity")
	}
}

// plain is a value of any kind as JSON has it.
func plain(d *decoder, p place) any {
	n := d.visit(p)
	switch {
	case n == nil || isNull(n):
		return nil
	case n.Kind == yaml.MappingNode:
		m := map[string]any{}
		for _, e := range d.mapping(p) {
			m[e.key] = plain(d, e.place)
		}
		return m
	case n.Kind == yaml.SequenceNode:
		items, _ := d.list(p, "a list")
		list := make([]any, len(items))
		for i, it := range items {
			list[i] = plain(d, it)
		}
		return list
	}
	var v any
	if n, ok := d.scalar(p, "a value"); ok {
		if err := n.Decode(&v); err != nil {
			d.problem(p, "cannot be read: "+err.Error(), "write text, a number, true or false")
		}
	}
	return v
}

// kubeName is the name of an object: a DNS subdomain.
var kubeName = lazyregexp.New(sandbox.KubernetesNameForm)

var kubeNameSchema = object{"type": "string", "pattern": kubeName.String()}

func readKubeName(d *decoder, p place) (string, bool) {
	v, ok := readWord(d, p)
	if ok && !kubeName.MatchString(v) {
		d.problem(p, shown(v)+" cannot be the name of an object of Kubernetes", "use lower-case letters, digits, - and .")
		return "", false
	}
	return v, ok
}

var claimPath = lazyregexp.New(sandbox.ClaimPathForm)

func readClaimPath(d *decoder, p place) (string, bool) {
	v, ok := readWord(d, p)
	if ok && !claimPath.MatchString(v) {
		d.problem(p, shown(v)+" is no path in a claim", "write one relative to its root, of names that begin with a letter, a digit, - or _")
		return "", false
	}
	return v, ok
}

// readCanary wants an address that is the same one for a sandbox as for everybody else.
func readCanary(d *decoder, p place) (string, bool) {
	v, ok := readWord(d, p)
	if !ok {
		return "", false
	}
	at, err := netip.ParseAddrPort(v)
	if ip := at.Addr().Unmap(); err != nil || at.Port() == 0 || ip.IsLoopback() || ip.IsUnspecified() {
		d.problem(p, shown(v)+" is no numeric ADDRESS:PORT beyond the sandbox itself", "write it like 192.0.2.1:443")
		return "", false
	}
	return v, true
}

// readGateway wants a numeric address, since no name is resolved in a pod.
func readGateway(d *decoder, p place) (string, bool) {
	v, ok := readWord(d, p)
	if !ok || v == "" {
		return "", ok
	}
	host, port, err := net.SplitHostPort(v)
	_, err2 := netip.ParseAddr(host)
	if ports, err3 := policy.ParsePorts(port); errors.Join(err, err2, err3) != nil || ports.First == 0 {
		d.problem(p, shown(v)+" is not ADDRESS:PORT", "write it like 192.0.2.1:8377 or 192.0.2.1:8377-8392, with a numeric address")
		return "", false
	}
	return v, true
}

func readLabels(d *decoder, p place) map[string]string {
	labels := map[string]string{}
	for _, e := range d.mapping(p) {
		if v, ok := d.text(e.place, "the value of a label"); ok {
			labels[e.key] = v
		}
	}
	return labels
}

func decodeKubernetes(d *decoder, p place, b *sandboxBlock) {
	v := Value[sandbox.KubernetesChoice]{Source: d.source(p)}
	decodeMapping(d, p, &v.Value, kubernetesFields)
	switch c := v.Value; {
	case c.Pool != "" && c.WarmPool != "":
		d.problem(p, "has both pool and warm_pool", "remove one of the two")
	case c.Claim != "" && c.WarmPool != "":
		d.problem(p, "has both claim and warm_pool", "remove one of the two: a sandbox that stands by was made before its kick has a directory in the claim")
	case c.Claim != "" && c.Pool != "":
		d.problem(p, "has both claim and pool", "remove one of the two: a pod that stands by was made before its kick has a directory in the claim")
	case c.Claim == "" && c.ClaimPath != "":
		d.problem(p, "has a claim_path and no claim", "add claim, or remove claim_path")
	}
	b.kubernetes = &v
}

// usesImage tells of one of the Runtimes.
func usesImage(runtime string) bool { return slices.Contains(Runtimes[1:], runtime) }
