package sandbox

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/podman"
)

var (
	rootfulService  = service{version: "5.8.3", rootful: true, limits: map[string]bool{"memory-limit": true, "process-limit": true, "cpu-limit": true}}
	rootlessService = service{version: "4.3.1", limits: map[string]bool{}, uids: 65537, gids: 70000}
)

// planned translates a specification for a service.
func planned(t *testing.T, spec LaunchSpec, svc service, mode frame.Mode) *podmanPlan {
	t.Helper()
	if spec.ID == "" {
		spec.ID = "k1"
	}
	spec.Image = "localhost/agent:1"
	if err := checkSpec(&spec); err != nil {
		t.Fatal(err)
	}
	p, err := newPodmanPlan(spec, mode, &svc, podmanImage{id: "0123", pinned: "localhost/agent@sha256:4567"}, &installed{shim: "/state/podman/kick-shim", profile: "/state/podman/seccomp.json"}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What holds for every container, whatever is asked for.
func TestPodmanContainer(t *testing.T) {
	t.Parallel()
	dir := workspaceDir(t)
	for name, spec := range map[string]LaunchSpec{
		"nothing more":  {Command: []string{"true"}},
		"a workspace":   {Command: []string{"true"}, Workspace: Workspace{Dir: dir, Objects: dir}},
		"no limits":     {Command: []string{"true"}, Limits: Limits{Memory: -1, Processes: -1, Disk: -1, Output: -1, Bundle: -1}},
		"labels":        {Command: []string{"true"}, Labels: map[string]string{"kick.id": "other", "team": "a"}},
		"variables":     {Command: []string{"true"}, Env: map[string]string{"TOKEN": "secret-value"}, Home: map[string]string{"f": "secret-value"}},
		"only the work": {Workspace: Workspace{Dir: dir}},
	} {
		for _, svc := range []service{rootfulService, rootlessService} {
			p := planned(t, spec, svc, frame.RunMode)
			c := p.create
			if c.Image != "0123" || c.Name != "kick-k1" || !slices.Equal(c.Entrypoint, []string{shimPath}) || !slices.Equal(c.Command, []string{"lock"}) {
				t.Errorf("%s: runs %s %q %q as %s", name, c.Image, c.Entrypoint, c.Command, c.Name)
			}
			for what, on := range map[string]*bool{"no new privileges": c.NoNewPrivileges, "a read-only root": c.ReadOnly, "the image's hosts": c.UseImageHosts, "removal": c.Remove, "no sync of its layer": c.Volatile, "no default variables": c.UnsetEnvAll} {
				if on == nil || !*on {
					t.Errorf("%s: %s is not asked for", name, what)
				}
			}
			for what, off := range map[string]*bool{"privileged": c.Privileged, "the host's variables": c.EnvHost, "the host's proxy": c.HTTPProxy, "a terminal": c.Terminal, "writable file systems": c.ReadWriteTmpfs, "an init": c.Init} {
				if off == nil || *off {
					t.Errorf("%s: %s is not refused", name, what)
				}
			}
			for what, ns := range map[string]podman.Namespace{"pid": c.PidNS, "uts": c.UtsNS, "ipc": c.IpcNS, "cgroup": c.CgroupNS} {
				if ns.Mode != "private" {
					t.Errorf("%s: the %s namespace is %q", name, what, ns.Mode)
				}
			}
			if c.NetNS.Mode != "none" || c.Log.Driver != "none" || !slices.Equal(c.CapDrop, []string{"ALL"}) || c.SeccompProfile == "" || c.User != "65532:65532" {
				t.Errorf("%s: network %q, log %q, dropped %q, profile %q, user %q", name, c.NetNS.Mode, c.Log.Driver, c.CapDrop, c.SeccompProfile, c.User)
			}
			if c.Labels[labelID] != "k1" || time.Duration(c.Timeout)*time.Second <= p.limits.Wall {
				t.Errorf("%s: labels %v, ended by Podman after %d s", name, c.Labels, c.Timeout)
			}
			for _, m := range c.Mounts {
				if !slices.Contains(m.Options, "nosuid") || !slices.Contains(m.Options, "nodev") || m.Type == "tmpfs" && !strings.Contains(strings.Join(m.Options, " "), "size=") {
					t.Errorf("%s: mount %+v", name, m)
				}
			}
			// The shim is told of variables and files, Podman is not.
			if b, err := json.Marshal(c); err != nil || strings.Contains(string(b), "secret-value") {
				t.Errorf("%s: Podman is told %s, %v", name, b, err)
			}
		}
	}
}

// Each field of a specification, in what it changes.
func TestPodmanTranslation(t *testing.T) {
	t.Parallel()
	dir := workspaceDir(t)
	options := func(c podman.Spec, target string) []string {
		for _, m := range c.Mounts {
			if m.Destination == target {
				return m.Options
			}
		}
		return nil
	}
	readOnly := func(c podman.Spec, target string) bool { return slices.Contains(options(c, target), "ro") }
	tests := []struct {
		name string
		spec LaunchSpec
		svc  service
		mode frame.Mode
		want func(p *podmanPlan) bool
	}{
		{"rootless, the user's own ids", LaunchSpec{}, rootlessService, frame.RunMode, func(p *podmanPlan) bool {
			want := podman.IDMappings{
				UIDMap: []podman.IDMap{{ContainerID: 0, HostID: 1, Size: 65532}, {ContainerID: 65532, HostID: 0, Size: 1}, {ContainerID: 65533, HostID: 65533, Size: 4}},
				GIDMap: []podman.IDMap{{ContainerID: 0, HostID: 1, Size: 65532}, {ContainerID: 65532, HostID: 0, Size: 1}, {ContainerID: 65533, HostID: 65533, Size: 4467}},
			}
			return p.create.UserNS == podman.Namespace{Mode: "private"} && reflect.DeepEqual(*p.create.IDMap, want) && p.hostUID == os.Geteuid()
		}},
		{"rootful, a range of its own", LaunchSpec{}, rootfulService, frame.RunMode, func(p *podmanPlan) bool {
			return p.create.IDMap != nil && p.create.IDMap.UIDMap[0] == podman.IDMap{ContainerID: 0, HostID: firstMapped, Size: mappedIDs} && p.hostUID == firstMapped+containerUID
		}},
		{"limits of the control group", LaunchSpec{Limits: Limits{Memory: 1 << 20, Processes: 10, CPUs: 1.5}}, rootfulService, frame.RunMode, func(p *podmanPlan) bool {
			r := p.create.Resources
			return r.Memory.Limit == 1<<20 && r.Memory.Swap == 1<<20 && r.Pids.Limit == 10+shimThreads && r.CPU.Quota == 150000 && r.CPU.Period == 100000
		}},
		{"limits without control groups", LaunchSpec{Limits: Limits{Memory: 1 << 20, Processes: 10, CPUs: 1.5}}, rootlessService, frame.RunMode, func(p *podmanPlan) bool {
			return p.create.Resources == nil && slices.Contains(p.rlimits, frame.Rlimit{Resource: unix.RLIMIT_NPROC, Value: 10 + shimThreads})
		}},
		{"a workspace", LaunchSpec{Workspace: Workspace{Dir: dir, MountPath: "/src"}}, rootfulService, frame.RunMode, func(p *podmanPlan) bool {
			return options(p.create, "/src") != nil && !readOnly(p.create, "/src") && p.config.WorkDir == "/src"
		}},
		{"the work alone", LaunchSpec{Workspace: Workspace{Dir: dir}}, rootfulService, frame.CollectMode, func(p *podmanPlan) bool {
			return readOnly(p.create, DefaultMountPath) && p.create.Name == "kick-k1-collect" && !p.config.Pause
		}},
		{"base objects", LaunchSpec{Workspace: Workspace{Dir: dir, Objects: dir}}, rootfulService, frame.RunMode, func(p *podmanPlan) bool {
			return readOnly(p.create, BaseObjectsPath) && slices.Contains(options(p.create, BaseObjectsPath), "noexec")
		}},
		{"no disk limit", LaunchSpec{Limits: Limits{Disk: -1}}, rootfulService, frame.RunMode, func(p *podmanPlan) bool {
			return !slices.ContainsFunc(p.rlimits, func(r frame.Rlimit) bool { return r.Resource == unix.RLIMIT_FSIZE })
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.spec.Command = []string{"true"}
			if p := planned(t, tt.spec, tt.svc, tt.mode); !tt.want(p) {
				b, _ := json.MarshalIndent(p.create, "", "  ")
				t.Errorf("%s\n%+v", b, p.config)
			}
		})
	}
}

// Every field is set in every container: what is left out is Podman's to decide.
func TestPodmanNoDefaults(t *testing.T) {
	t.Parallel()
	optional := []string{"IDMap", "Networks", "OCIRuntime", "PasswdEntry", "GroupEntry", "Resources", "Mask"}
	c := reflect.ValueOf(planned(t, LaunchSpec{Command: []string{"true"}}, rootlessService, frame.RunMode).create)
	for i := range c.NumField() {
		if name := c.Type().Field(i).Name; c.Field(i).IsZero() && !slices.Contains(optional, name) {
			t.Errorf("%s is not set", name)
		}
	}
}

// A directory of the image that would leave the agent without a home is named.
func TestPodmanUnwritable(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p := planned(t, LaunchSpec{Command: []string{"true"}}, rootfulService, frame.RunMode)
	for _, dir := range []string{"/tmp", HomeDir, DefaultMountPath} {
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(root+dir, 0o777|os.ModeSticky); err != nil {
			t.Fatal(err)
		}
	}
	if err := unwritable(root, p); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(root+HomeDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unwritable(root, p); err == nil || !strings.Contains(err.Error(), HomeDir+" has mode 0755") {
		t.Errorf("a home of mode 0755: %v", err)
	}
}

func TestPodmanVersions(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{"4.2.9": true, "3.4": true, "": true, "x": true, "4.3.0": false, "4.10.1": false, "5.0.0-rc1": false, "10.0.0": false} {
		if olderThan(version, firstVersion) != old {
			t.Errorf("%q is older than %s: %v", version, firstVersion, !old)
		}
	}
}
