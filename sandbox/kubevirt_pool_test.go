package sandbox_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubevirttest"
	"github.com/kickhq/kick/sandbox"
)

// pool makes a pool of machines of an image, and a launcher that claims from it.
func (m *machines) pool(t *testing.T, image string, machines int) *sandbox.KubeVirt {
	t.Helper()
	m.Account(t, m.n, slices.Concat(sandbox.KubeVirtRules, sandbox.KubeVirtPoolRules))
	l := m.launcher(t, func(c *sandbox.KubeVirtConfig) { c.Pool, c.PoolWait = "agents", 10*time.Minute })
	secret, set, err := l.Standbys(image, m.kick(t, l, "").spec.Limits, machines)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{secret, set}})
	if err != nil {
		t.Fatal(err)
	}
	m.n.Apply(t, string(b))
	return l
}

// TestKubeVirtPool: two kicks at once have the two machines of a pool, a third one waits
// and has a fresh one. None of them had another kick before.
func TestKubeVirtPool(t *testing.T) {
	m := newMachines(t)
	l := m.pool(t, kubevirttest.Image, 2)
	m.n.Kubectl(t, "wait", "--for=jsonpath={.status.readyReplicas}=2", "--timeout=600s", "--namespace", m.n.Name, "virtualmachineinstancereplicaset/kick-pool-agents")
	const script = "cat /proc/sys/kernel/random/boot_id; echo ready; sleep 900"
	first, second, third := m.kick(t, l, script), m.kick(t, l, script), m.kick(t, l, script)
	kicks := []*machineKick{first, second, third}
	cancels := []func(){first.begin(t), second.begin(t)}
	first.await(t)
	second.await(t)
	began := time.Now()
	cancels = append(cancels, third.begin(t))
	third.await(t)
	t.Logf("the third kick's command began after %v", time.Since(began))
	boots := map[string]bool{}
	for i, k := range kicks {
		boots[strings.TrimSpace(k.out.b.String())] = true
		cancels[i]()
		e := k.wait(t)
		e.says(t, sandbox.ReasonCancelled)
		if !strings.HasSuffix(e.res.Isolation.Engine, ", of pool agents") || len(e.res.Isolation.Missing()) > 0 {
			t.Errorf("%s, %v", e.res.Isolation.Engine, e.res.Isolation.Missing())
		}
	}
	if len(boots) != len(kicks) {
		t.Errorf("%d kicks had %d machines", len(kicks), len(boots))
	}
}

// TestKubeVirtVerbs: each verb of the rules is needed. Without it the rights are not
// whole, and a kick says what it may not.
func TestKubeVirtVerbs(t *testing.T) {
	m := newMachines(t)
	all := slices.Concat(sandbox.KubeVirtRules, sandbox.KubeVirtPoolRules)
	pool := m.pool(t, kubevirttest.NoImage, 1)
	own := m.launcher(t, func(c *sandbox.KubeVirtConfig) { c.Pending = 3 * time.Second })
	run := func(l *sandbox.KubeVirt, before func(name string)) string {
		t.Helper()
		k := m.kick(t, l, "true")
		k.spec.Image = kubevirttest.NoImage
		before(k.name())
		_, err := l.Run(t.Context(), k.spec)
		m.n.Kubectl(t, "delete", "virtualmachineinstances,secrets", "--namespace", m.n.Name, "--selector", "kick.id="+k.spec.ID)
		return fmt.Sprint(err)
	}
	// running has the pool's machine seem ready.
	running := func(string) {
		m.n.Kubectl(t, "wait", "--for=jsonpath={.status.replicas}=1", "--timeout=120s", "--namespace", m.n.Name, "virtualmachineinstancereplicaset/kick-pool-agents")
		names := strings.Fields(m.n.Kubectl(t, "get", "virtualmachineinstances", "--namespace", m.n.Name, "--selector", "kick.standby=true", "--output", "name"))
		m.n.Kubectl(t, "patch", names[0], "--namespace", m.n.Name, "--type=merge", "--patch",
			`{"status": {"phase": "Running", "interfaces": [{"ipAddress": "192.0.2.1"}], "conditions": [{"type": "Ready", "status": "True"}]}}`)
	}
	for _, rule := range all {
		for _, verb := range rule.Verbs {
			t.Run(verb+" "+rule.Resource, func(t *testing.T) {
				var less []sandbox.KubernetesRule
				for _, r := range all {
					if r.Resource == rule.Resource {
						r.Verbs = slices.DeleteFunc(slices.Clone(r.Verbs), func(v string) bool { return v == verb })
					}
					if len(r.Verbs) > 0 {
						less = append(less, r)
					}
				}
				m.Account(t, m.n, less)
				// The API server learns of it by a watch of its own.
				for deadline := time.Now().Add(time.Minute); ; {
					err := pool.Rights(t.Context())
					if err != nil && strings.Contains(err.Error(), verb+" "+rule.Resource) {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("the rights: %v", err)
					}
				}
				l, before, want := own, func(string) {}, fmt.Sprintf("may not %s %s", verb, rule.Resource)
				switch verb + " " + rule.Resource {
				case "get virtualmachineinstances":
					before = func(name string) {
						m.n.Apply(t, fmt.Sprintf("{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: %s, namespace: %s, labels: {kick.id: %s}}, spec: {domain: {devices: {}}}}", name, m.n.Name, strings.TrimPrefix(name, "kick-")))
					}
				case "patch virtualmachineinstances":
					l, before = pool, running
				case "get virtualmachineinstances/portforward":
					l, before, want = pool, running, "no way into it"
				case "list events":
					// Nothing fails without: it is what is said of a machine that does not start.
					event := func(name string) {
						m.n.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Event, metadata: {name: %[1]s, namespace: %[2]s}, type: Warning, reason: Hint, message: what the node saw, involvedObject: {kind: VirtualMachineInstance, name: %[1]s, namespace: %[2]s}}", name, m.n.Name))
					}
					if said := run(own, event); strings.Contains(said, "what the node saw") {
						t.Errorf("it knows of the event: %s", said)
					}
					m.Account(t, m.n, all)
					for deadline := time.Now().Add(time.Minute); pool.Rights(t.Context()) != nil && time.Now().Before(deadline); {
					}
					before, want = event, "Hint: what the node saw"
				}
				if said := run(l, before); !strings.Contains(said, want) {
					t.Errorf("want %q: %s", want, said)
				}
			})
		}
	}
}
