package config

import (
	"time"

	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/sandbox"
)

// kubeVirtFields are the keys of a kubevirt block, which is read as a whole: an agent's
// replaces the global one.
var kubeVirtFields = []field[sandbox.KubeVirtChoice]{
	{"kubeconfig", "Absolute path of a kubeconfig. Default: KUBECONFIG, ~/.kube/config, or the account of the pod that kick runs in.",
		object{"type": "string", "pattern": "^(/.*)?$"}, kubeText(func(c *sandbox.KubeVirtChoice) *string { return &c.Kubeconfig }, readDirectory)},
	{"context", "A context of the kubeconfig. Default: its current one.",
		object{"type": "string"}, kubeText(func(c *sandbox.KubeVirtChoice) *string { return &c.Context }, readWord)},
	{"namespace", "Where the machines are made; kick manifests kubevirt prints one that is fit for them. Default: the context's.",
		kubeNameSchema, kubeText(func(c *sandbox.KubeVirtChoice) *string { return &c.Namespace }, readKubeName)},
	{"user", "Whom the image's sshd lets in; not root. Default: agent.",
		object{"type": "string", "pattern": guestUser.String()}, kubeText(func(c *sandbox.KubeVirtChoice) *string { return &c.User }, readGuestUser)},
	{"cores", "Processors of a machine, if limits.cpus names none. Default: 2.",
		object{"type": "integer", "minimum": 1, "maximum": maxCPUs}, func(d *decoder, p place, c *sandbox.KubeVirtChoice) {
			if v, ok := d.integer(p, 1, maxCPUs, "processors"); ok {
				c.Cores = int(v)
			}
		}},
	{"node_selector", "Labels that the machine's node must have.",
		labelsSchema, func(d *decoder, p place, c *sandbox.KubeVirtChoice) { c.NodeSelector = readLabels(d, p) }},
	{"tolerations", "Taints of nodes that the machine tolerates: key, and value and effect if they matter.",
		tolerationsSchema, func(d *decoder, p place, c *sandbox.KubeVirtChoice) { c.Tolerations = readTolerations(d, p) }},
	{"priority_class", "The machine's PriorityClass. Default: the cluster's.",
		kubeNameSchema, kubeText(func(c *sandbox.KubeVirtChoice) *string { return &c.PriorityClass }, readKubeName)},
	{"pull_secret", "A Secret of the namespace by which the node pulls the image. The machine does not see it.",
		kubeNameSchema, kubeText(func(c *sandbox.KubeVirtChoice) *string { return &c.PullSecret }, readKubeName)},
	{"keys", "How a machine learns whom it lets in: secret (a disk with the serial kick-keys, which the image's own start reads) or cloud-init (a NoCloud disk for an image that has cloud-init). Default: secret.",
		enumSchema(sandbox.KubeVirtKeys), kubeText(func(c *sandbox.KubeVirtChoice) *string { return &c.Keys }, func(d *decoder, p place) (string, bool) { return oneOf(d, p, sandbox.KubeVirtKeys, nil) })},
	{"pool", "A pool of machines that stand by, as kick manifests kubevirt --agent --pool writes it, from which a kick takes one if its own would be made the same. Default: every kick has one made.",
		kubeNameSchema, kubeText(func(c *sandbox.KubeVirtChoice) *string { return &c.Pool }, readKubeName)},
	{"pool_wait_s", "Seconds that a kick waits for a machine of the pool when none is ready, before it has one made. Default: not at all.",
		object{"type": "integer", "minimum": 0, "maximum": maxTimeout}, func(d *decoder, p place, c *sandbox.KubeVirtChoice) {
			if v, ok := readTimeout(d, p); ok {
				c.PoolWait = v
			}
		}},
	{"linger", "How many machines stay, and for how many seconds each, when their kick has ended well, for the next kick of the same agent, repository and policy. An agent that comes out of its sandbox in the machine then meets that next kick. Default: none stays.",
		lingerSchema, decodeLinger},
	{"canaries", "Addresses, numeric as ADDRESS:PORT and none of loopback, that a machine reaches unless a NetworkPolicy keeps it from that. No kick starts in one that does. Default: the API server's.",
		object{"type": "array", "items": object{"type": "string"}}, kubeList(func(c *sandbox.KubeVirtChoice) *[]string { return &c.Canaries }, readCanary)},
}

// guestUser is the name of a user, as Debian lets one be.
var guestUser = lazyregexp.New(`^([a-z_][a-z0-9_-]{0,31})?$`)

func readGuestUser(d *decoder, p place) (string, bool) {
	v, ok := readWord(d, p)
	if ok && (v == "root" || !guestUser.MatchString(v)) {
		d.problem(p, shown(v)+" cannot be whom kick comes as into a machine", "name an ordinary user of the image")
		return "", false
	}
	return v, ok
}

func decodeKubeVirt(d *decoder, p place, b *sandboxBlock) {
	v := Value[sandbox.KubeVirtChoice]{Source: d.source(p)}
	decodeMapping(d, p, &v.Value, kubeVirtFields)
	b.kubeVirt = &v
}

// lingerFields are the keys of kubevirt.linger, both of which are wanted.
var lingerFields = []field[sandbox.KubeVirtLinger]{
	{"machines", "How many machines linger at most, of one state directory in one namespace. Of more, those go whose time is over first.",
		object{"type": "integer", "minimum": 1, "maximum": sandbox.MaxLingering}, func(d *decoder, p place, l *sandbox.KubeVirtLinger) {
			if v, ok := d.integer(p, 1, sandbox.MaxLingering, "machines"); ok {
				l.Machines = int(v)
			}
		}},
	{"seconds", "How long each of them lingers.",
		object{"type": "integer", "minimum": 1, "maximum": int(sandbox.MaxLinger.Seconds())}, func(d *decoder, p place, l *sandbox.KubeVirtLinger) {
			if v, ok := d.integer(p, 1, int64(sandbox.MaxLinger.Seconds()), "seconds"); ok {
				l.For = time.Duration(v) * time.Second
			}
		}},
}

var lingerSchema = func() object {
	s := mappingSchema(lingerFields)
	s["dependentRequired"] = object{"machines": []string{"seconds"}, "seconds": []string{"machines"}}
	return s
}()

func decodeLinger(d *decoder, p place, c *sandbox.KubeVirtChoice) {
	before := len(d.problems)
	var l sandbox.KubeVirtLinger
	decodeMapping(d, p, &l, lingerFields)
	if (l.Machines == 0) != (l.For == 0) && len(d.problems) == before {
		d.problem(p, "has one of machines and seconds", "write both, or neither")
	}
	c.Linger = l
}
