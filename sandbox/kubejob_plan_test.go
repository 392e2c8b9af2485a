package sandbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/frame"
)

var updateGolden = flag.Bool("update-kube", false, "write the golden Jobs anew")

// What the gateway tells the shim of the way in.
var kubeSecret, kubePin = strings.Repeat("5e", 32), strings.Repeat("f1", 32)

// kubeCases are specifications whose Jobs are held against testdata/kube.
var kubeCases = map[string]struct {
	config KubernetesConfig
	spec   LaunchSpec
	mode   frame.Mode // RunAndCollectMode if empty
	base   kubeBase
	clears bool
}{
	"plain": {
		config: KubernetesConfig{KubernetesChoice: KubernetesChoice{Namespace: "sandboxes"}},
		spec:   LaunchSpec{Command: []string{"true"}, Network: NetworkNone},
	},
	"claim":         {config: onClaim, spec: LaunchSpec{Command: []string{"true"}, Network: NetworkNone, Workspace: baseKnown}, base: inClaim},
	"claim-collect": {config: onClaim, spec: LaunchSpec{Network: NetworkNone, Workspace: baseKnown}, mode: frame.CollectMode, base: inClaim},
	"claim-clear":   {config: onClaim, spec: LaunchSpec{Network: NetworkNone, Limits: clearLimits}, mode: frame.CollectMode, clears: true},
	"everything": {
		config: KubernetesConfig{KubernetesChoice: KubernetesChoice{
			Namespace: "sandboxes", ShimImage: "registry.example/kick/shim@sha256:5555555555555555555555555555555555555555555555555555555555555555",
			ServiceAccount: "sandbox", NodeSelector: map[string]string{"pool": "agents"},
			Tolerations: []Toleration{{Key: "agents", Value: "only", Effect: "NoSchedule"}, {Key: "spot"}},
			Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
				{Weight: 1, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelAgent: "scanner"}}}},
			}}},
			RuntimeClass: "gvisor", PriorityClass: "kick-low", PullSecrets: []string{"registry"}, Queue: "agents", Canaries: []string{"192.0.2.1:443"},
		}, RequestCPU: 1, RequestMemory: 1 << 30, RequestDisk: 2 << 30},
		spec: LaunchSpec{
			Command: []string{"agent", "--secret-looking", "argument"}, Env: map[string]string{"HIDDEN_NAME": "hidden-content"}, Labels: map[string]string{"kick.dev/id": "k1"},
			Workspace: Workspace{MountPath: "/src", BaseOID: "1111111111111111111111111111111111111111"},
			Network:   NetworkRestricted,
			Egress:    Egress{Port: 3128, TCP: &EgressTCP{Address: "192.0.2.9:8377", Secret: kubeSecret, Pin: kubePin, Trust: "hidden-authority"}},
			Limits:    Limits{CPUs: 2, Memory: 4 << 30, Processes: 100, Disk: 1 << 30, Wall: 10 * time.Minute},
		},
	},
	"no-limits-no-user-namespace": {
		config: KubernetesConfig{KubernetesChoice: KubernetesChoice{Namespace: "sandboxes", HostUsers: true}},
		spec:   LaunchSpec{Command: []string{"true"}, Network: NetworkNone, Limits: Limits{Memory: -1, Processes: -1, Disk: -1}},
	},
}

// Parts of the cases with a claim.
var (
	onClaim = KubernetesConfig{KubernetesChoice: KubernetesChoice{
		Namespace: "sandboxes", ShimImage: "registry.example/kick/shim@sha256:5555555555555555555555555555555555555555555555555555555555555555",
		Claim: "work", ClaimPath: "team/kick",
	}}
	baseKnown = Workspace{BaseOID: "1111111111111111111111111111111111111111"}
	inClaim   = kubeBase{Dir: "team/kick/bases/0123456789abcdef0123456789abcdef", Objects: "fedcba9876543210fedcba9876543210"}
)

// kubeCase translates one of them.
func kubeCase(t *testing.T, name string) *kubePlan {
	t.Helper()
	c := kubeCases[name]
	c.spec.ID, c.spec.Agent, c.spec.Image = "k0123456789abc", "scanner", "registry.example/agent@sha256:4444444444444444444444444444444444444444444444444444444444444444"
	c.spec.Workspace.MountPath = cmp.Or(c.spec.Workspace.MountPath, DefaultMountPath)
	c.config.Pending, c.config.Alone = 5*time.Minute, 10*time.Minute
	p, err := newKubePlan(c.config, c.spec, cmp.Or(c.mode, frame.RunAndCollectMode), c.base, "1000.4026531840.abcdef01", "0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	p.clears = c.clears
	return p
}

// What no object of the cluster may have, the shim is told.
func TestKubeShimConfig(t *testing.T) {
	t.Parallel()
	c := kubeCase(t, "everything").shimConfig()
	if c.EgressAddress != "192.0.2.9:8377" || c.EgressSecret != kubeSecret || c.EgressPin != kubePin || c.Files[EgressTrustPath] != "hidden-authority" {
		t.Errorf("the shim is told %+v", c)
	}
}

// The shim ends an agent before the kernel has nothing left but programs to take back.
func TestKubeShimMemory(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]int64{128 << 20: 112 << 20, 4 << 30: 4<<30 - 64<<20} {
		p := kubeCase(t, "everything")
		p.limits.Memory = limit
		if got := p.shimConfig().Watch.Memory; got != want {
			t.Errorf("of %d bytes the agent may have %d, want %d", limit, got, want)
		}
	}
}

// A pod of two families comes to the gateway from the address that is of the
// gateway's own.
func TestPodAddress(t *testing.T) {
	t.Parallel()
	both := corev1.PodStatus{PodIP: "10.244.0.7", PodIPs: []corev1.PodIP{{IP: "10.244.0.7"}, {IP: "fd00:10:244::7"}}}
	for name, c := range map[string]struct {
		status        corev1.PodStatus
		gateway, want string
	}{
		"one address":            {corev1.PodStatus{PodIP: "10.244.0.7"}, "10.0.0.1:8377", "10.244.0.7"},
		"two, gateway IPv4":      {both, "10.0.0.1:8377", "10.244.0.7"},
		"two, gateway IPv6":      {both, "[fd00::1]:8377", "fd00:10:244::7"},
		"two, gateway mapped":    {both, "[::ffff:10.0.0.1]:8377", "10.244.0.7"},
		"two, gateway by a name": {both, "gateway.example:8377", "10.244.0.7"},
		"one of another family":  {corev1.PodStatus{PodIP: "10.244.0.7", PodIPs: []corev1.PodIP{{IP: "10.244.0.7"}}}, "[fd00::1]:8377", ""},
		"none":                   {corev1.PodStatus{}, "10.0.0.1:8377", ""},
		"no address":             {corev1.PodStatus{PodIP: "node"}, "10.0.0.1:8377", ""},
	} {
		got, err := podAddress(c.status, c.gateway)
		if (err == nil) != (c.want != "") || err == nil && got.String() != c.want {
			t.Errorf("%s: %v, %v, want %q", name, got, err, c.want)
		}
	}
}

// The translation is pure: the same specification is the same Job, which is in
// testdata for people to read.
func TestKubePlan(t *testing.T) {
	t.Parallel()
	for name := range kubeCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := kubeCase(t, name).whole()
			// The filter differs between architectures, and says nothing to people.
			if command := job.Spec.Template.Spec.Containers[0].Command; command[1] == "wait" {
				var w frame.Wait
				if err := json.Unmarshal([]byte(command[2]), &w); err != nil || len(w.Jail.Filter) == 0 {
					t.Fatalf("the lock-down %q: %v", command[2], err)
				}
				w.Jail.Filter = nil
				short, err := json.Marshal(w)
				if err != nil {
					t.Fatal(err)
				}
				command[2] = string(short)
			}
			got, err := json.MarshalIndent(job, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata/kube", name+".json")
			if *updateGolden {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v: the Job is not that of %s (-update-kube writes it):\n%s", err, file, got)
			}
			// What the command is, and what it is given, is for the shim alone.
			for _, private := range []string{"secret-looking", "HIDDEN_NAME", "hidden-content", kubeSecret, kubePin, "192.0.2.9", "hidden-authority"} {
				if bytes.Contains(got, []byte(private)) {
					t.Errorf("the Job names %q", private)
				}
			}
		})
	}
}
