package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/podman"
)

// containerTable is the mount table of a rootful container of Podman 4.3 with
// runc on control groups of version 1, shortened.
const containerTable = `1 0 0:39 / / ro,relatime - overlay overlay rw
2 1 0:58 / /dev rw,nosuid,noexec - tmpfs tmpfs rw,size=65536k
3 1 0:67 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
4 1 0:66 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
5 2 0:68 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw
6 2 0:41 / /dev/mqueue rw,nosuid,nodev,noexec,relatime - mqueue mqueue rw
7 2 0:42 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw
8 1 254:0 /hosts /etc/hosts ro,nosuid,nodev,noexec,relatime - ext4 /dev/vda rw
9 4 0:70 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw
10 9 0:32 /x /sys/fs/cgroup/memory ro,nosuid,nodev,noexec,relatime - cgroup cgroup rw,memory
11 2 0:6 /null /dev/null rw,relatime - devtmpfs devtmpfs rw
12 3 0:67 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
13 3 0:71 / /proc/acpi ro,relatime - tmpfs tmpfs ro
14 3 0:6 /null /proc/keys rw,relatime - devtmpfs devtmpfs rw
15 4 0:72 / /sys/firmware ro,relatime - tmpfs tmpfs ro
16 1 0:65 / /tmp rw,nosuid,nodev,relatime - tmpfs tmpfs rw
17 1 254:0 /shim /shim ro,nosuid,nodev,relatime - ext4 /dev/vda rw
`

// TestPodmanMounts changes one line of a container's mount table at a time.
func TestPodmanMounts(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	shim := filepath.Join(root, "shim")
	if err := os.WriteFile(shim, nil, 0o555); err != nil {
		t.Fatal(err)
	}
	plan := &podmanPlan{create: podman.Spec{
		Mounts: []podman.Mount{
			{Type: "tmpfs", Destination: "/tmp", Options: []string{"rw"}},
			{Type: "bind", Source: shim, Destination: "/shim", Options: []string{"ro"}},
		},
		Mask: []string{"/proc/keys"},
	}}
	look := func(table string) []string {
		t.Helper()
		got, err := parseMountinfo(table)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range compareContainer(got, []mount{{fstype: "proc", device: "0:5"}}, plan, root) {
			names = append(names, p.property)
		}
		return names
	}
	if bad := look(containerTable); len(bad) > 0 {
		t.Fatalf("the table as it should be lacks %q", bad)
	}
	for _, tt := range []struct{ name, old, changed, property string }{
		{"a writable root", "/ / ro,", "/ / rw,", "read-only-mounts"},
		{"the host's proc", "0:67 / /proc", "0:5 / /proc", "proc"},
		{"a writable /proc/sys", "/sys /proc/sys ro,", "/sys /proc/sys rw,", "read-only-mounts"},
		{"a file of /proc in sight", "14 3 0:6 /null /proc/keys rw,relatime - devtmpfs devtmpfs rw\n", "", "proc"},
		{"a writable /sys", "/ /sys ro,", "/ /sys rw,", "read-only-mounts"},
		{"a writable control group", "/x /sys/fs/cgroup/memory ro,", "/x /sys/fs/cgroup/memory rw,", "read-only-mounts"},
		{"another device", "/null /dev/null", "/vda /dev/null", "mounts"},
		{"writable hosts", "/hosts /etc/hosts ro,", "/hosts /etc/hosts rw,", "read-only-mounts"},
		{"the service's secrets", "/hosts /etc/hosts", "/hosts /run/secrets", "mounts"},
		{"a directory of the host", "/hosts /etc/hosts", "/hosts /mnt", "mounts"},
		{"a device of the host", "/null /dev/null", "/vda /dev/vda", "mounts"},
		{"a mount over another", "17 1 254:0", "18 1 254:0 /x /tmp rw,nosuid,nodev,relatime - ext4 /dev/vda rw\n17 1 254:0", "mounts"},
		{"another file system", "/ /tmp rw,nosuid,nodev,relatime - tmpfs", "/ /tmp rw,nosuid,nodev,relatime - ext4", "mounts"},
		{"devices in /tmp", "/ /tmp rw,nosuid,nodev,", "/ /tmp rw,nosuid,", "nodev-mounts"},
		{"a writable shim", "/shim /shim ro,", "/shim /shim rw,", "read-only-mounts"},
		{"no shim", "17 1 254:0 /shim /shim ro,nosuid,nodev,relatime - ext4 /dev/vda rw\n", "", "mounts"},
	} {
		table := strings.Replace(containerTable, tt.old, tt.changed, 1)
		if table == containerTable {
			t.Fatalf("%s: nothing was changed", tt.name)
		}
		want := tt.property
		if bad := look(table); !slices.Contains(bad, want) {
			t.Errorf("%s: missing are %q, want %s", tt.name, bad, want)
		}
	}
	// The very file counts, not its name.
	if err := os.Rename(shim, shim+".old"); err != nil {
		t.Fatal(err)
	}
	plan.create.Mounts[1].Source = shim + ".old"
	if err := os.WriteFile(shim, nil, 0o555); err != nil {
		t.Fatal(err)
	}
	if bad := look(containerTable); !slices.Contains(bad, "mounts") {
		t.Errorf("another file in the shim's place: missing are %q", bad)
	}
}

// TestPodmanMapping reads tables of user ids.
func TestPodmanMapping(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		ok         bool
	}{
		{"rootful", "0 1899934464 65536\n", true},
		{"rootless", "0 165536 65532\n65532 1899999996 1\n65533 231068 3\n", true},
		{"another user", "0 100000 65536\n", false},
		{"the host's root", "0 0 1\n1 1899934465 65535\n", false},
		{"nobody", "0 1899934464 100\n", false},
		{"nonsense", "x\n", false},
		{"nothing", "", false},
	} {
		dir := t.TempDir()
		for _, f := range []string{"uid_map", "gid_map"} {
			if err := os.WriteFile(filepath.Join(dir, f), []byte(tt.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		p := &prover{s: subject{proc: dir, hostUID: firstMapped + containerUID, hostGID: firstMapped + containerGID, readiness: frame.Readiness{}}}
		p.podmanMapping()
		if got := p.props[0].Status == Enforced; got != tt.ok {
			t.Errorf("%s: %+v", tt.name, p.props[0])
		}
	}
}

// TestPodmanLimitFiles reads limits of both versions of control groups.
func TestPodmanLimitFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"memory.limit_in_bytes": "1048576\n", "pids.max": "max\n", "cpu.max": "150000 100000\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		most float64
		want bool
	}{
		{"memory-limit", 1 << 20, true}, {"memory-limit", 1<<20 - 1, false}, {"process-limit", 1e9, false}, {"cpu-limit", 1.5, true}, {"cpu-limit", 1.4, false},
	} {
		// A group above the container's own holds it, too.
		g := groups{map[string][]string{limitControllers[tt.name]: {t.TempDir(), dir}}}
		if evidence, ok := g.holds(tt.name, tt.most); ok != tt.want {
			t.Errorf("%s of %v: %v, %s", tt.name, tt.most, ok, evidence)
		}
	}
}

// TestPodmanFreezer finds the freezer of both versions of control groups.
func TestPodmanFreezer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct{ name, mounts, groups, file, frozen string }{
		{"version 1", "1 0 0:1 / DIR/v1 rw - cgroup cgroup rw,freezer\n", "6:freezer:/a/b\n5:memory:/c\n", "v1/a/b/freezer.state", "FROZEN"},
		{"version 2", "1 0 0:1 / DIR/v2 rw - cgroup2 cgroup2 rw\n", "0::/a/b\n", "v2/a/b/cgroup.freeze", "1"},
		{"both", "2 0 0:2 / DIR/v2 rw - cgroup2 cgroup2 rw\n1 0 0:1 / DIR/v1 rw - cgroup cgroup rw,freezer\n3 0 0:2 / DIR/v3 rw - cgroup2 cgroup2 rw\n", "6:freezer:/a\n0::/x\n", "v1/a/freezer.state", "FROZEN"},
		{"the root of version 2", "2 0 0:2 / DIR/v2 rw - cgroup2 cgroup2 rw\n", "0::/\n", "", ""},
		{"a group that is not to be seen", "1 0 0:1 /a DIR/v1 rw - cgroup cgroup rw,freezer\n", "6:freezer:/b\n", "", ""},
		{"none", "", "", "", ""},
	} {
		mounts, err := parseMountinfo(strings.ReplaceAll(tt.mounts, "DIR", dir))
		if err != nil {
			t.Fatal(err)
		}
		f := findFreezer(mounts, tt.groups)
		if tt.file == "" {
			if f.file != "" || f.isFrozen() {
				t.Errorf("%s: found %+v", tt.name, f)
			}
			f.thaw() // does nothing
			continue
		}
		if f.file != filepath.Join(dir, tt.file) {
			t.Errorf("%s: found %+v", tt.name, f)
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.file), 0o755); err != nil {
			t.Fatal(err)
		}
		for text, frozen := range map[string]bool{tt.frozen + "\n": true, f.thawed + "\n": false} {
			if err := os.WriteFile(f.file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if f.isFrozen() != frozen {
				t.Errorf("%s: %q is frozen: %v", tt.name, text, !frozen)
			}
			f.thaw()
			if b, err := os.ReadFile(f.file); err != nil || strings.TrimSpace(string(b)) != f.thawed {
				t.Errorf("%s: after a thaw the file says %q, %v", tt.name, b, err)
			}
		}
	}
}
