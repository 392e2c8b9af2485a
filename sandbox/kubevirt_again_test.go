package sandbox_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/kubevirttest"
	"github.com/kickhq/kick/sandbox"
)

// marks leaves what a kick can leave, looks for what another one has left, and tells
// which machine it is.
const marks = `HOME=/home/agent; cat /proc/sys/kernel/random/boot_id
	for d in $HOME /tmp /dev/shm . ; do ls -A $d | grep marked; done; set -- /proc/[0-9]*; echo $#
	for d in $HOME /tmp /dev/shm . ; do echo marked >$d/marked; done; mkdir -p deep/er && echo marked >deep/er/file && chmod 000 deep/er deep
	(trap "" HUP TERM; exec setsid nohup sleep 900) >/dev/null 2>&1 &
	echo ready; `

// TestKubeVirtLinger: a machine lingers for the next kick of its trust, which sees
// nothing of the one before, and for no other. When there are too many, one goes that has
// less time left; and one whose agent was stopped at a limit does not linger.
func TestKubeVirtLinger(t *testing.T) {
	m := newMachines(t)
	m.Account(t, m.n, slices.Concat(sandbox.KubeVirtRules, sandbox.KubeVirtPoolRules))
	l := m.launcher(t, func(c *sandbox.KubeVirtConfig) { c.Linger = sandbox.KubeVirtLinger{Machines: 2, For: 10 * time.Minute} })
	label, shape, err := sandbox.LingerAs(l, m.kick(t, l, "").spec)
	if err != nil {
		t.Fatal(err)
	}
	m.leave(t, "earlier", "9m0s", "kick.owner: elsewhere", "kick.standby: again", "kick.linger: "+label, "kick.shape: "+shape)
	uid := func(name string) string {
		t.Helper()
		return m.n.Kubectl(t, "get", "virtualmachineinstance", name, "--namespace", m.n.Name, "--output", "jsonpath={.metadata.uid}")
	}
	begin := func(trust, then string) *machineKick {
		t.Helper()
		k := m.kick(t, l, marks+then)
		k.spec.Trust = trust
		k.begin(t)
		return k
	}
	// well waits for a kick that ends by itself, and tells what it said of its machine.
	seen := ""
	well := func(k *machineKick) (boot, engine string) {
		t.Helper()
		e := k.wait(t)
		if e.err != nil || e.res.Reason != sandbox.ReasonExited || len(e.res.Isolation.Missing()) > 0 {
			t.Fatalf("%v, %+v\n%s", e.err, e.res, m.Console(m.n.Name, k.name()))
		}
		t.Log(e.res.Isolation.Engine)
		boot, rest, _ := strings.Cut(k.out.b.String(), "\n")
		if !strings.Contains(e.res.Isolation.Engine, "; it lingers until ") {
			t.Errorf("of its machine: %s", e.res.Isolation.Engine)
		}
		if seen = cmp.Or(seen, rest); rest != seen || strings.Contains(rest, "marked") {
			t.Errorf("it found what another kick has left:\n%s", rest)
		}
		return boot, e.res.Isolation.Engine
	}
	one, two := begin("one", "exit 3"), begin("two", "")
	boot, engine := well(one)
	if strings.Contains(engine, "has had kicks") {
		t.Errorf("of the first: %s", engine)
	}
	otherBoot, _ := well(two)
	first, other := uid(one.name()), uid(two.name())

	began := time.Now()
	again := begin("one", "")
	if same, engine := well(again); same != boot || !strings.Contains(engine, "which lingered and has had kicks before (1); it lingers until ") {
		t.Errorf("the second kick: %s and not %s, %s", same, boot, engine)
	}
	t.Logf("the second kick took %v", time.Since(began))
	if uid(one.name()) != first || uid(two.name()) != other || m.there(t) != names(one, two) {
		t.Errorf("there are %s", m.there(t))
	}

	// The other's machine is not for this one's trust, and does not linger when the
	// kick in it has reached a limit.
	limited := m.kick(t, l, marks+"sleep 900")
	limited.spec.Trust, limited.spec.Limits.Wall = "two", 10*time.Second
	limited.begin(t)
	e := limited.wait(t)
	e.says(t, sandbox.ReasonTimeout)
	if said := limited.out.b.String(); !strings.HasPrefix(said, otherBoot) || strings.Contains(e.res.Isolation.Engine, "; it ") {
		t.Errorf("%s of its machine: %s", said, e.res.Isolation.Engine)
	}
	if m.there(t) != names(one) {
		t.Errorf("there are %s", m.there(t))
	}
}

// TestKubeVirtLingerBroken: a machine that lingers and is of no use any more costs a kick
// no more than the attempt. It is removed, and the kick has another one made.
func TestKubeVirtLingerBroken(t *testing.T) {
	kubetest.Soak(t)
	m := newMachines(t)
	m.Account(t, m.n, slices.Concat(sandbox.KubeVirtRules, sandbox.KubeVirtPoolRules))
	l := m.launcher(t, func(c *sandbox.KubeVirtConfig) {
		c.Pending, c.Linger = 3*time.Second, sandbox.KubeVirtLinger{Machines: 1, For: time.Minute}
	})
	k := m.kick(t, l, "true")
	k.spec.Trust, k.spec.Image = "one", kubevirttest.NoImage
	label, shape, err := sandbox.LingerAs(l, k.spec)
	if err != nil {
		t.Fatal(err)
	}
	m.leave(t, "broken", "1h0m0s", "kick.owner: elsewhere", "kick.standby: again", "kick.linger: "+label, "kick.shape: "+shape)
	m.n.Kubectl(t, "wait", "--for=jsonpath={.status.phase}=Scheduling", "--timeout=60s", "--namespace", m.n.Name, "virtualmachineinstance/kick-broken")
	m.n.Kubectl(t, "patch", "virtualmachineinstance/kick-broken", "--namespace", m.n.Name, "--type=merge", "--patch",
		`{"metadata": {"annotations": {"kick.life": "10h0m0s"}}, "status": {"phase": "Running", "interfaces": [{"ipAddress": "192.0.2.1"}]}}`)
	res, err := l.Run(t.Context(), k.spec)
	// Of the one that is made, the image is not there.
	kubeEnd{res, err}.says(t, sandbox.ReasonStartFailed, "start the machine "+k.name(), "ErrImagePull")
	if engine := res.Isolation.Engine; !strings.Contains(engine, ", not of a machine that lingered: start the machine kick-broken: ") {
		t.Errorf("of its machine: %s", engine)
	}
	if there := m.there(t); there != "" {
		t.Errorf("left are %s", there)
	}
}

// names are the instances of kicks, in order.
func names(kicks ...*machineKick) string {
	var list []string
	for _, k := range kicks {
		list = append(list, k.name())
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}
