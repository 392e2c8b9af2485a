package sandbox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubevirttest"
	"github.com/kickhq/kick/sandbox"
)

// leave makes an instance as a kick leaves it, whose machine never starts.
func (m *machines) leave(t *testing.T, name, lifetime string, labels ...string) {
	t.Helper()
	m.n.Apply(t, fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: kick-%s, namespace: %s, labels: {%s}, annotations: {kick.lifetime: %q}}
spec: {domain: {devices: {disks: [{name: disk, disk: {}}]}}, volumes: [{name: disk, containerDisk: {image: %q}}]}
`, name, m.n.Name, strings.Join(labels, ", "), lifetime, kubevirttest.NoImage))
}

// there are the names of all instances.
func (m *machines) there(t *testing.T) string {
	t.Helper()
	names := strings.Fields(m.n.Kubectl(t, "get", "virtualmachineinstances", "--namespace", m.n.Name, "--output", "jsonpath={.items[*].metadata.name}"))
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestKubeVirtReap: what is past its deadline is the reaper's, whatever has become of
// its kick, and so is what has lingered for its time. Of what lingers beyond the number
// that may, that goes first whose time is over first, and nothing of another state.
func TestKubeVirtReap(t *testing.T) {
	m := newMachines(t)
	l := m.launcher(t, func(c *sandbox.KubeVirtConfig) { c.Linger = sandbox.KubeVirtLinger{Machines: 2, For: time.Minute} })
	label, _, err := sandbox.LingerAs(l, m.kick(t, l, "").spec) // and it notes the namespace
	if err != nil {
		t.Fatal(err)
	}
	lingers := func(label string) []string {
		return []string{"kick.owner: elsewhere", "kick.standby: again", "kick.linger: " + label}
	}
	m.leave(t, "reap-late", "0s", "kick.id: reap-late", "kick.owner: elsewhere")
	m.leave(t, "reap-not", "100h0m0s", "kick.id: reap-not", "kick.owner: elsewhere")
	// One that was claimed again has the name of its first kick.
	m.leave(t, "reap-first", "0s", "kick.id: reap-again", "kick.owner: elsewhere", "kick.linger: "+label)
	m.leave(t, "other-name", "0s", "kick.id: reap-other", "kick.owner: elsewhere")
	m.leave(t, "linger-late", "0s", lingers(label)...)
	m.leave(t, "linger-late-other", "0s", lingers("other.trust")...)
	m.leave(t, "linger-1h", "1h0m0s", lingers(label)...)
	m.leave(t, "linger-other", "30m0s", lingers("other.trust")...)
	m.leave(t, "linger-2h", "2h0m0s", lingers(label)...)
	removed, err := l.Reap(t.Context())
	slices.Sort(removed)
	if want := "kick-linger-late kick-linger-late-other reap-again reap-late"; err != nil || strings.Join(removed, " ") != want {
		t.Errorf("removed are %v, %v, want %s", removed, err, want)
	}
	if want, left := "kick-linger-1h kick-linger-2h kick-linger-other kick-other-name kick-reap-not", m.there(t); left != want {
		t.Errorf("left are %s, want %s", left, want)
	}
	evict := func(want string) {
		t.Helper()
		if err := sandbox.Evict(t.Context(), l); err != nil {
			t.Error(err)
		}
		if left := m.there(t); left != want {
			t.Errorf("left are %s, want %s", left, want)
		}
	}
	evict("kick-linger-1h kick-linger-2h kick-linger-other kick-other-name kick-reap-not")
	m.leave(t, "linger-3h", "3h0m0s", lingers(label)...)
	m.leave(t, "linger-40m", "40m0s", lingers(label)...)
	evict("kick-linger-2h kick-linger-3h kick-linger-other kick-other-name kick-reap-not")
}
