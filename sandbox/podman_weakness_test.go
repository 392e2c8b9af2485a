package sandbox

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/podman"
)

// newTestPodman returns a launcher for the service of this test process.
func newTestPodman(t *testing.T) *Podman {
	t.Helper()
	OnService(t)
	l, err := NewPodman(PodmanTestConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestOnPodmanWeaknesses takes one property of a container away at a time, as a
// Podman would that ignores a setting. The launcher must notice, name it, and
// run nothing.
func TestOnPodmanWeaknesses(t *testing.T) {
	newTestPodman(t) // skips
	host, no := podman.Namespace{Mode: "host"}, new(false)
	rootful := os.Geteuid() == 0
	extra := func(m podman.Mount) func(*podman.Spec) {
		return func(s *podman.Spec) { s.Mounts = append(slices.Clone(s.Mounts), m) }
	}
	mount := func(target string, change func(*podman.Mount)) func(*podman.Spec) {
		return func(s *podman.Spec) {
			s.Mounts = slices.Clone(s.Mounts)
			i := slices.IndexFunc(s.Mounts, func(m podman.Mount) bool { return m.Destination == target })
			s.Mounts[i].Options = slices.Clone(s.Mounts[i].Options)
			change(&s.Mounts[i])
		}
	}
	without := func(option string) func(*podman.Mount) {
		return func(m *podman.Mount) {
			m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == option })
		}
	}
	other := t.TempDir()
	if err := os.Chmod(other, 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		property string
		cannot   bool // this kind of service cannot even do it
		weak     func(*podman.Spec)
	}{
		{name: "host's user namespace", property: "user-namespace", cannot: !rootful, weak: func(s *podman.Spec) { s.UserNS, s.IDMap = host, nil }},
		{name: "root's ids", property: "uid-mapping", cannot: !rootful, weak: func(s *podman.Spec) {
			m := []podman.IDMap{{ContainerID: 0, HostID: 0, Size: mappedIDs}}
			s.IDMap = &podman.IDMappings{UIDMap: m, GIDMap: m}
		}},
		{name: "the user's ids as they are", property: "uid-mapping", cannot: rootful, weak: func(s *podman.Spec) { s.UserNS, s.IDMap = podman.Namespace{Mode: "keep-id"}, nil }},
		{name: "root in the container", property: "unprivileged-user", weak: func(s *podman.Spec) { s.User = "0:0" }},
		{name: "a supplementary group", property: "supplementary-groups", weak: func(s *podman.Spec) { s.Groups = []string{"4"} }},
		{name: "host's process namespace", property: "pid-namespace", weak: func(s *podman.Spec) { s.PidNS = host }},
		{name: "host's IPC namespace", property: "ipc-namespace", cannot: !exists("/dev/mqueue"), weak: func(s *podman.Spec) { s.IpcNS, s.ShmSize = host, 0 }},
		{name: "host's UTS namespace", property: "uts-namespace", weak: func(s *podman.Spec) { s.UtsNS, s.Hostname = host, "" }},
		{name: "host's cgroup namespace", property: "cgroup-namespace", weak: func(s *podman.Spec) { s.CgroupNS = host }},
		{name: "host's network namespace", property: "network-namespace", weak: func(s *podman.Spec) { s.NetNS = host }},
		{name: "no profile of system calls", property: "seccomp", weak: func(s *podman.Spec) { s.SeccompProfile = "unconfined" }},
		{name: "a writable root", property: "read-only-mounts", weak: func(s *podman.Spec) { s.ReadOnly = no }},
		{name: "a further file system in memory", property: "mounts", weak: extra(podman.Mount{Type: "tmpfs", Source: "tmpfs", Destination: "/run/more", Options: []string{"rw", "nosuid", "nodev"}})},
		{name: "a directory of the host", property: "mounts", weak: extra(podman.Mount{Type: "bind", Source: other, Destination: "/mnt", Options: []string{"ro", "bind", "rprivate", "nosuid", "nodev"}})},
		{name: "another workspace", property: "mounts", weak: mount(DefaultMountPath, func(m *podman.Mount) { m.Source = other })},
		{name: "set-user-ID programs in the workspace", property: "nosuid-mounts", weak: mount(DefaultMountPath, without("nosuid"))},
		{name: "a writable shim", property: "read-only-mounts", weak: mount(shimPath, func(m *podman.Mount) { m.Options[slices.Index(m.Options, "ro")] = "rw" })},
		{name: "files of /proc in sight", property: "proc", weak: func(s *podman.Spec) { s.Mask = nil }},
		{name: "no limit of processes", property: "process-limit", cannot: !rootful, weak: func(s *podman.Spec) { s.Resources.Pids = nil }},
		{name: "no limit of memory", property: "memory-limit", cannot: !rootful, weak: func(s *podman.Spec) { s.Resources.Memory = nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.cannot {
				return
			}
			l := newTestPodman(t)
			l.weak = tt.weak
			r := launch(t, l, LaunchSpec{Image: l.config.Image, Command: []string{"sh", "-c", "echo it ran"}, Env: map[string]string{"PATH": testPath}, Workspace: Workspace{Dir: workspaceDir(t)}})
			var failure *Error
			if !errors.As(r.err, &failure) || !errors.Is(r.err, ErrIsolation) || r.Reason != ReasonIsolation {
				t.Fatalf("reason %s, error %v, stdout %q; want %v", r.Reason, r.err, r.stdout, ErrIsolation)
			}
			if !slices.Contains(strings.Split(failure.Op, ", "), tt.property) {
				t.Errorf("the error names %q, want %q: %v", failure.Op, tt.property, failure)
			}
			if tt.property == "mounts" && !strings.Contains(failure.Remedy, "containers.conf") {
				t.Errorf("remedy %q", failure.Remedy)
			}
			if failure.Remedy == "" || r.stdout != "" || !r.Started.IsZero() {
				t.Errorf("remedy %q, stdout %q", failure.Remedy, r.stdout)
			}
		})
	}
}

// TestOnPodmanProperties compares what is proved with the names that can be
// accepted.
func TestOnPodmanProperties(t *testing.T) {
	l := newTestPodman(t)
	r := launch(t, l, LaunchSpec{Image: l.config.Image, Command: []string{"true"}, Env: map[string]string{"PATH": testPath}})
	var names []string
	for _, p := range r.Isolation.Properties {
		names = append(names, p.Name)
	}
	if r.err != nil || !slices.Equal(names, PodmanProperties) {
		t.Errorf("%v, proved are %q, want %q", r.err, names, PodmanProperties)
	}
	if !strings.HasPrefix(r.Isolation.Engine, "Podman ") || !strings.Contains(r.Image, "sha256:") {
		t.Errorf("engine %q, image %q", r.Isolation.Engine, r.Image)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
