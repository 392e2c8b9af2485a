package sandbox

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/internal/podman"
)

// TestPodmanNetworkNames refuses what is no network of the operator's own.
func TestPodmanNetworkNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"": true, "kick": true, "kick-proxy_1.x": true, "hosts": true, "bridge2": true,
		"host": false, "bridge": false, "podman": false, "none": false, "private": false, "default": false, "slirp4netns": false, "pasta": false,
		"slirp4netns:allow_host_loopback=true": false, "pasta:-T,auto": false, "container:db": false, "ns:/proc/1/ns/net": false, "bridge:ip=10.0.0.2": false, "pod:x": false,
		"kick:mac=1": false, "../x": false, "a b": false, "-x": false, "a,b": false, strings.Repeat("n", 129): false,
	} {
		if err := CheckPodmanNetwork(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestPodmanEngine compares the chosen OCI runtime with the service's.
func TestPodmanEngine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		chosen, engine, want string // want: in the error; "": there is none
	}{
		{"", "crun", ""}, {"", "/usr/bin/runc", ""}, {"crun", "crun", ""}, {"runc", "/usr/sbin/runc", ""},
		{"runsc", "/opt/runsc-for-kick", ""}, {"krun", "krun", ""}, {"kata", "kata-runtime", ""},
		{"crun", "runc", "starts containers with runc. Give the service that runtime"},
		{"runsc", "crun", "podman --runtime runsc system service"},
		{"crun", "runsc", "starts containers with runsc"},
		{"", "/opt/runsc", "podman_oci_runtime: runsc"}, {"", "krun", "podman_oci_runtime: krun"}, {"", "kata-qemu", "podman_oci_runtime: kata"},
	} {
		err := checkEngine(tt.chosen, tt.engine)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !errors.Is(err, ErrSpec)) {
			t.Errorf("chosen %q, the service's %q: %v, want %q", tt.chosen, tt.engine, err, tt.want)
		}
	}
}

// TestPodmanChoice translates what an operator chooses.
func TestPodmanChoice(t *testing.T) {
	t.Parallel()
	spec := LaunchSpec{ID: "k1", Image: "localhost/agent:1", Command: []string{"true"}, Limits: Limits{Processes: 10}}
	if err := checkSpec(&spec); err != nil {
		t.Fatal(err)
	}
	plan := func(ociRuntime string, network *podman.Network) *podmanPlan {
		t.Helper()
		p, err := newPodmanPlan(spec, frame.RunMode, &rootfulService, podmanImage{}, &installed{}, ociRuntime, network)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := plan("crun", nil); p.create.OCIRuntime != "crun" || p.create.Resources.Pids.Limit != 10+shimThreads || p.create.NetNS.Mode != "none" || p.create.Networks != nil {
		t.Errorf("crun: %+v", p.create)
	}
	// A guest's kernel has threads of its own, and hangs without them.
	if p := plan("runsc", nil); p.create.OCIRuntime != "runsc" || p.create.Resources.Pids.Limit != 10+shimThreads+guestTasks {
		t.Errorf("runsc: %+v", p.create.Resources.Pids)
	}
	p := plan("", &podman.Network{Name: "kick-db", Driver: "bridge", Internal: true})
	if p.create.NetNS != (podman.Namespace{Mode: "bridge"}) || len(p.create.Networks) != 1 || *p.create.UseImageResolv || !*p.create.UseImageHosts {
		t.Errorf("a network: %+v", p.create)
	}
	if _, there := p.create.Networks["kick-db"]; !there || !strings.Contains(p.network, "kick-db (bridge) is internal") {
		t.Errorf("a network: %+v, %q", p.create.Networks, p.network)
	}
	if open := describeNetwork(podman.Network{Name: "n", Driver: "macvlan"}); !strings.Contains(open, "n (macvlan) has a way to the host and beyond it") {
		t.Errorf("a network with a way out: %q", open)
	}
}

// TestPodmanWith keeps what is not chosen.
func TestPodmanWith(t *testing.T) {
	t.Parallel()
	c := PodmanTestConfig()
	c.PodmanChoice = PodmanChoice{Socket: "/a", OCIRuntime: "crun", Network: "n"}
	l, err := NewPodman(c)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.With(PodmanChoice{}).config.PodmanChoice; got != c.PodmanChoice {
		t.Errorf("nothing chosen: %+v", got)
	}
	other := PodmanChoice{Socket: "/b", OCIRuntime: "runc", Network: "m"}
	if got := l.With(PodmanChoice{"unix://" + other.Socket, other.OCIRuntime, other.Network}).config.PodmanChoice; got != other {
		t.Errorf("all chosen: %+v", got)
	}
	for _, bad := range []PodmanChoice{{Socket: "tcp://x"}, {OCIRuntime: "lxc"}, {Network: "host"}} {
		res, err := l.With(bad).Run(t.Context(), LaunchSpec{ID: kickid.New(), Image: "x", Command: []string{"true"}})
		if !errors.Is(err, ErrSpec) || res.Reason != ReasonStartFailed {
			t.Errorf("%+v: %v, %s", bad, err, res.Reason)
		}
	}
}

// TestPodmanForgetsWhatIsNoService: a reaper that asked such a socket ever after would fail every time.
func TestPodmanForgetsWhatIsNoService(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "other.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	other := &http.Server{Handler: http.NotFoundHandler()}
	go func() { _ = other.Serve(listener) }() // until it is closed
	t.Cleanup(func() { other.Close() })
	l, err := NewPodman(PodmanConfig{Dir: dir, PodmanChoice: PodmanChoice{Socket: socket}, Shim: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("shim")), nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Run(t.Context(), LaunchSpec{ID: kickid.New(), Image: "x", Command: []string{"true"}}); err == nil || !strings.Contains(err.Error(), socket) {
		t.Fatalf("error %v, want one of the socket", err)
	}
	if notes, err := remembered[PodmanChoice](filepath.Join(dir, "services")); err != nil || len(notes) > 0 {
		t.Errorf("remembered %v, %v", notes, err)
	}
}

// TestPodmanGuestStatus judges the process that is a guest's kernel.
func TestPodmanGuestStatus(t *testing.T) {
	t.Parallel()
	good := "Uid:\t65534\t65534\t65534\t65534\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	for _, tt := range []struct{ name, old, changed, missing string }{
		{"as gVisor is", "", "", ""},
		{"the host's root", "65534\t65534\t65534\t65534", "65534\t0\t65534\t65534", "unprivileged-user"},
		{"may gain privileges", "NoNewPrivs:\t1", "NoNewPrivs:\t0", "no-new-privileges"},
		{"no filter", "Seccomp:\t2", "Seccomp:\t0", "seccomp"},
		{"nothing to read", good, "", "unprivileged-user no-new-privileges seccomp"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/status", []byte(strings.Replace(good, tt.old, tt.changed, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		p := &prover{s: subject{proc: dir}}
		p.guestStatus("runsc")
		var missing []string
		for _, prop := range p.props {
			if prop.Status == Missing {
				missing = append(missing, prop.Name)
			}
		}
		if strings.Join(missing, " ") != tt.missing {
			t.Errorf("%s: missing are %q, want %q", tt.name, missing, tt.missing)
		}
	}
}

// A service that starts containers with another runtime than the chosen one is
// told apart, whatever it answered.
func TestOnPodmanOtherRuntime(t *testing.T) {
	l := newTestPodman(t)
	r := launch(t, l, LaunchSpec{Image: l.config.Image, Command: []string{"true"}, Env: map[string]string{"PATH": testPath}})
	_, engine, _ := strings.Cut(r.Isolation.Engine, "less, ")
	if engine == "" {
		_, engine, _ = strings.Cut(r.Isolation.Engine, "ful, ")
	}
	if r.err != nil || !slices.Contains([]string{"crun", "runc"}, engine) {
		t.Fatalf("%v, engine %q", r.err, r.Isolation.Engine)
	}
	other := map[string]string{"crun": "runc", "runc": "crun"}[engine]
	for chosen, ok := range map[string]bool{engine: true, other: false, "runsc": false} {
		r := launch(t, l.With(PodmanChoice{OCIRuntime: chosen}), LaunchSpec{Image: l.config.Image, Command: []string{"echo", "it ran"}, Env: map[string]string{"PATH": testPath}})
		switch {
		case ok && (r.err != nil || r.stdout != "it ran\n"):
			t.Errorf("%s, which the service has: %v, stdout %q", chosen, r.err, r.stdout)
		case !ok && (!errors.Is(r.err, ErrSpec) || r.stdout != "" || !strings.Contains(r.err.Error(), "starts containers with "+engine)):
			t.Errorf("%s, which the service has not: %v, stdout %q", chosen, r.err, r.stdout)
		}
	}
}

// TestOnPodmanNetwork puts the agent into a network of the operator's.
func TestOnPodmanNetwork(t *testing.T) {
	l := newTestPodman(t)
	if os.Geteuid() != 0 && unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK) != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("rootless networks need /dev/net/tun, which scripts/podman.sh opens")
		}
		t.Skip("rootless networks need /dev/net/tun, which this host keeps to root")
	}
	const name = "kick-test"
	servicePodman(t, "network", "create", "--internal", name)
	defer servicePodman(t, "network", "rm", name)
	spec := LaunchSpec{Image: l.config.Image, Command: []string{"sh", "-c", "grep -o '[a-z0-9]*:' /proc/net/dev | tr -d '\n'"}, Env: map[string]string{"PATH": testPath}}
	inside := l.With(PodmanChoice{Network: name})

	r := launch(t, inside, spec)
	i := slices.IndexFunc(r.Isolation.Properties, func(p Property) bool { return p.Name == "no-network" })
	if r.err != nil || i < 0 || !strings.Contains(r.stdout, "eth0:") {
		t.Fatalf("%v, stdout %q, properties %+v", r.err, r.stdout, r.Isolation.Properties)
	}
	if p := r.Isolation.Properties[i]; p.Status != Accepted || !strings.Contains(p.Evidence, name+" (bridge) is internal") {
		t.Errorf("%+v", p)
	}
	if iso, err := inside.Preflight(t.Context()); err != nil {
		t.Errorf("preflight: %v, %+v", err, iso.Missing())
	}

	none := spec
	none.Network = NetworkNone
	if r := launch(t, inside, none); r.err != nil || r.stdout != "lo:" {
		t.Errorf("network mode none: %v, stdout %q", r.err, r.stdout)
	}
	for _, l := range []*Podman{l.With(PodmanChoice{Network: name + "-other"}), l.With(PodmanChoice{Network: "host"})} {
		if r := launch(t, l, spec); !errors.Is(r.err, ErrSpec) || r.stdout != "" {
			t.Errorf("%s: %v, stdout %q", l.config.Network, r.err, r.stdout)
		}
		if _, err := l.Preflight(t.Context()); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: preflight: %v", l.config.Network, err)
		}
	}
}
