package sandbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// kubeVirtCases are specifications whose machines are held against testdata/kubevirt.
var kubeVirtCases = map[string]struct {
	config KubeVirtConfig
	spec   LaunchSpec
}{
	"plain": {
		KubeVirtConfig{KubeVirtChoice: KubeVirtChoice{Namespace: "machines"}},
		LaunchSpec{Command: []string{"true"}, Network: NetworkNone},
	},
	"everything": {
		KubeVirtConfig{KubeVirtChoice: KubeVirtChoice{
			Namespace: "machines", User: "worker", NodeSelector: map[string]string{"kvm": "yes"},
			Tolerations: []Toleration{{Key: "agents", Value: "only", Effect: "NoSchedule"}}, PriorityClass: "kick-low", PullSecret: "registry", Keys: cloudInitKeys,
		}},
		LaunchSpec{
			Command: []string{"agent", "--secret-looking", "argument"}, Env: map[string]string{"HIDDEN_NAME": "hidden-content"}, Labels: map[string]string{"kick.dev/id": "k1"},
			Workspace: Workspace{MountPath: "/src", BaseOID: "1111111111111111111111111111111111111111"},
			Network:   NetworkRestricted, Egress: Egress{Port: 3128, Socket: "/hidden/gateway.sock"},
			Limits: Limits{CPUs: 4, Memory: 4<<30 + 12345, Processes: 100, Disk: 1 << 30, Wall: 10 * time.Minute},
		},
	},
	"linger": {
		KubeVirtConfig{KubeVirtChoice: KubeVirtChoice{Namespace: "machines", Linger: KubeVirtLinger{Machines: 1, For: 20 * time.Minute}}},
		LaunchSpec{Command: []string{"true"}, Network: NetworkNone, Trust: "hidden-trust"},
	},
	"no-limits": {
		KubeVirtConfig{KubeVirtChoice: KubeVirtChoice{Namespace: "machines", Cores: 8}},
		LaunchSpec{Command: []string{"true"}, Network: NetworkNone, Limits: Limits{Memory: -1, Processes: -1, Disk: -1}},
	},
}

// kubeVirtCase translates one of them.
func kubeVirtCase(name string) *kubeVirtPlan {
	c := kubeVirtCases[name]
	c.spec.ID, c.spec.Agent, c.spec.Image = "k0123456789abc", "scanner", "registry.example/machine@sha256:4444444444444444444444444444444444444444444444444444444444444444"
	c.spec.Workspace.MountPath = cmp.Or(c.spec.Workspace.MountPath, DefaultMountPath)
	c.config.setDefaults()
	return newKubeVirtPlan(c.config, c.spec, frame.RunAndCollectMode, "1000.4026531840.abcdef01", "0123456789abcdef")
}

// The translation is pure: the same specification is the same machine, which is in
// testdata for people to read.
func TestKubeVirtPlan(t *testing.T) {
	t.Parallel()
	for name := range kubeVirtCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := json.MarshalIndent(kubeVirtCase(name).instance, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata/kubevirt", name+".json")
			if *updateGolden {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v: the machine is not that of %s (-update-kube writes it):\n%s", err, file, got)
			}
			// What the command is, and what it is given, is for the shim alone.
			for _, private := range []string{"secret-looking", "HIDDEN_NAME", "hidden", "3128"} {
				if bytes.Contains(got, []byte(private)) {
					t.Errorf("the machine names %q", private)
				}
			}
		})
	}
}

// Of kick's own, a machine is given a public key alone.
func TestKubeVirtSecret(t *testing.T) {
	t.Parallel()
	keys := newPair(t)
	s, err := kubeVirtCase("plain").secret("the-uid", keys)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Data) != 3 || !strings.HasPrefix(string(s.Data[fileAuthorized]), "restrict,port-forwarding ssh-ed25519 ") || !bytes.Contains(s.Data[fileHostKey], []byte("OPENSSH PRIVATE KEY")) || string(s.Data[fileLifetime]) != "4150\n" {
		t.Errorf("the machine is given %q", s.Data)
	}
	for name, content := range s.Data {
		if bytes.Contains(content, keys.client.Seed()) {
			t.Errorf("%s has kick's private key", name)
		}
	}
	if o := s.OwnerReferences; len(o) != 1 || o[0].UID != "the-uid" || o[0].Name != "kick-k0123456789abc" || o[0].Kind != "VirtualMachineInstance" {
		t.Errorf("it belongs to %+v", o)
	}
}

// What cloud-init is told says the same, of a lifetime in minutes.
func TestKubeVirtCloudConfig(t *testing.T) {
	t.Parallel()
	keys := newPair(t)
	s, err := kubeVirtCase("everything").secret("the-uid", keys)
	if err != nil {
		t.Fatal(err)
	}
	said, isConfig := bytes.CutPrefix(s.Data["userdata"], []byte("#cloud-config\n"))
	var c struct {
		Users []struct {
			Name string
			Keys []string `json:"ssh_authorized_keys"`
			Lock bool     `json:"lock_passwd"`
			Hash string   `json:"hashed_passwd"`
		}
		Host map[string]string   `json:"ssh_keys"`
		Off  struct{ Delay int } `json:"power_state"`
	}
	if err := json.Unmarshal(said, &c); err != nil || !isConfig || len(s.Data) != 1 {
		t.Fatalf("%v: %s", err, s.Data)
	}
	if len(c.Users) != 1 || c.Users[0].Name != "worker" || c.Users[0].Lock || c.Users[0].Hash != "*" || len(c.Users[0].Keys) != 1 || !strings.HasPrefix(c.Users[0].Keys[0], "restrict,port-forwarding ssh-ed25519 ") ||
		!strings.Contains(c.Host["ed25519_private"], "OPENSSH PRIVATE KEY") || !strings.HasPrefix(c.Host["ed25519_public"], "ssh-ed25519 ") || c.Off.Delay != 35 {
		t.Errorf("%+v", c)
	}
	if bytes.Contains(said, keys.client.Seed()) {
		t.Error("it has kick's private key")
	}
}

// A pool's machines are made as a kick's own, but for the Secret that all of them have,
// and for the probe by which one is ready. Another state's have other keys, and so
// another shape.
func TestKubeVirtStandbys(t *testing.T) {
	t.Parallel()
	shape := map[string]bool{}
	image := kubeVirtCase("plain").spec.Image
	for _, limits := range []Limits{{}, {}, {Memory: 1 << 30}} {
		l, err := NewKubeVirt(KubeVirtConfig{Shim: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("shim")), nil }, Dir: t.TempDir(), KubeVirtChoice: KubeVirtChoice{Namespace: "machines", Pool: "agents"}})
		if err != nil {
			t.Fatal(err)
		}
		secret, set, err := l.Standbys(image, limits, 2)
		if err != nil {
			t.Fatal(err)
		}
		labels := set.Spec.Template.Labels
		shape[labels[labelShape]] = true
		for k, v := range set.Spec.Selector.MatchLabels {
			if labels[k] != v {
				t.Errorf("the machines lack %s=%s, by which they are known", k, v)
			}
		}
		m := set.Spec.Template.Spec
		if set.Spec.Replicas != 2 || set.Name != "kick-pool-agents" || m.Volumes[1].Secret.SecretName != secret.Name || m.ReadinessProbe == nil || labels[labelNetwork] != string(NetworkNone) || string(secret.Data[fileLifetime]) != "172800\n" {
			t.Errorf("%+v, %+v", set, secret)
		}
	}
	if len(shape) != 3 {
		t.Errorf("of three states there are %d shapes", len(shape))
	}
}

// machineSaid is an instance with a status.
func machineSaid(t *testing.T, text string) *kubevirtapi.Instance {
	t.Helper()
	m := &kubevirtapi.Instance{}
	if err := json.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestKubeVirtNews reads statuses as KubeVirt 1.5 gives them.
func TestKubeVirtNews(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text  string
		phase kubePhase
		why   string // a part
		hint  string // a part of the remedy
	}{
		"nothing yet": {`{}`, kubePending, "not seen by KubeVirt yet", "kubectl get kubevirt"},
		"pending":     {`{"status": {"phase": "Pending"}}`, kubePending, "it is Pending", ""},
		"no KVM": {
			`{"status": {"phase": "Scheduling", "conditions": [{"type": "Ready", "status": "False", "reason": "GuestNotRunning"}, {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient devices.kubevirt.io/kvm."}]}}`,
			kubePending, "Insufficient devices.kubevirt.io/kvm", "KVM",
		},
		"no room": {
			`{"status": {"phase": "Scheduling", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient memory."}]}}`,
			kubePending, "Insufficient memory", "room",
		},
		"image pull": {
			`{"status": {"phase": "Scheduling", "conditions": [{"type": "Synchronized", "status": "False", "reason": "ImagePullBackOff", "message": "Back-off pulling image"}]}}`,
			kubePending, "ImagePullBackOff: Back-off", "pull_secret",
		},
		"quota": {
			`{"status": {"phase": "Pending", "conditions": [{"type": "Synchronized", "status": "False", "reason": "FailedCreate", "message": "pods is forbidden: exceeded quota: q"}]}}`,
			kubePending, "exceeded quota", "ResourceQuota",
		},
		"bad disk": {
			`{"status": {"phase": "Scheduled", "nodeName": "n", "conditions": [{"type": "Synchronized", "status": "False", "reason": "Synchronizing with the Domain failed.", "message": "server error. no disk in /disk"}]}}`,
			kubePending, "no disk in /disk", "/disk",
		},
		"scheduled, and the guest answers": {
			`{"status": {"phase": "Scheduled", "interfaces": [{"ipAddress": "10.0.2.2"}]}}`, kubeRunning, "lets nobody in yet", machineKeys,
		},
		"no address": {`{"status": {"phase": "Running"}}`, kubePending, "no address", ""},
		"running":    {`{"status": {"phase": "Running", "interfaces": [{"ipAddress": "10.0.2.2"}]}}`, kubeRunning, "it runs", ""},
		"went off":   {`{"status": {"phase": "Succeeded"}}`, kubeEnded, "gone off", ""},
		"failed":     {`{"status": {"phase": "Failed", "reason": "Crashed"}}`, kubeEnded, "failed: Crashed", "describe vmi"},
		"deleted":    {`{"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}, "status": {"phase": "Running"}}`, kubeEnded, "deleted by somebody", "events"},
		"of a later KubeVirt": {
			`{"status": {"phase": "WaitingForSync"}}`, kubePending, "it is WaitingForSync", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := machineNews(machineSaid(t, tt.text))
			if n.phase != tt.phase || !strings.Contains(n.why, tt.why) || !strings.Contains(n.remedy, tt.hint) {
				t.Errorf("%+v", n)
			}
		})
	}
}

func TestKubeVirtMachineFiles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"0\n": 1, "0-3": 4, "0-1,4,6-7\n": 5, "": -1, "x": -1, "3-1": -1, "0-": -1} {
		if got := cpusOnline(text); got != want {
			t.Errorf("%q has %d processors, want %d", text, got, want)
		}
	}
	for text, want := range map[string]int64{"MemTotal:         737296 kB\nMemFree: 1 kB\n": 737296 << 10, "": -1, "MemTotal: much kB\n": -1, "MemTotal: 5 MB\n": -1} {
		if got := meminfoTotal(text); got != want {
			t.Errorf("%q is %d bytes, want %d", text, got, want)
		}
	}
}

// What a kind of machine or cluster is missing has a remedy, and nothing else has one.
func TestKubeVirtRemedies(t *testing.T) {
	t.Parallel()
	for name := range kubeVirtRemedies {
		found := false
		for _, p := range KubeVirtProperties {
			found = found || p == name
		}
		if !found {
			t.Errorf("there is a remedy for %s, which is no property", name)
		}
	}
}

// What proves nothing of a machine's network is refused, and so is no name of a
// namespace, before anything is asked for.
func TestKubeVirtChoiceRefused(t *testing.T) {
	t.Parallel()
	spec := LaunchSpec{Image: "registry.example/machine@sha256:" + strings.Repeat("0", 64), Command: []string{"true"}}
	for op, choices := range map[string][]KubeVirtChoice{
		"": {{}, {Namespace: "machines", Canaries: []string{"192.0.2.1:443", "[2001:db8::1]:443"}}},
		"canary": {
			{Canaries: []string{"192.0.2.1:443", "127.0.0.1:443"}}, {Canaries: []string{"[::ffff:127.0.0.2]:443"}}, {Canaries: []string{"0.0.0.0:443"}},
			{Canaries: []string{"kubernetes.example:443"}}, {Canaries: []string{"192.0.2.1"}}, {Canaries: []string{"192.0.2.1:0"}},
		},
		"namespace": {{Namespace: "Machines_1"}},
	} {
		for _, choice := range choices {
			err := (&KubeVirt{config: KubeVirtConfig{KubeVirtChoice: choice}}).check(&spec)
			var said *Error
			if op == "" && err != nil || op != "" && (!errors.Is(err, ErrSpec) || !errors.As(err, &said) || said.Op != op || said.Remedy == "") {
				t.Errorf("%+v: %v, want %q", choice, err, op)
			}
		}
	}
}
