package sandbox

import (
	"reflect"
	"slices"
	"testing"

	"github.com/kickhq/kick/internal/frame"
)

const goodTable = `30 1 0:40 / / ro,nosuid,nodev,relatime - tmpfs kick rw,size=4096k
31 30 254:0 /usr /usr ro,nosuid,nodev,relatime - ext4 /dev/vda rw
32 31 0:50 / /usr/share/with\040space ro,nosuid,nodev,relatime shared:3 master:1 - nfs server:/x rw
33 30 0:60 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
34 30 254:0 /w /workspace rw,nosuid,nodev,relatime - ext4 /dev/vda rw
`

const hostTable = `20 1 254:0 / / rw,relatime - ext4 /dev/vda rw
21 20 0:5 / /proc rw,relatime - proc proc rw
22 20 0:50 / /usr/share/with\040space rw,relatime - nfs server:/x rw
`

func TestCompareMounts(t *testing.T) {
	t.Parallel()
	entries := []frame.Entry{
		{Kind: frame.DirEntry, Path: "/etc"},
		{Kind: frame.BindEntry, Path: "/usr", Source: "/usr", Recursive: true, ReadOnly: true, NoSuid: true, NoDev: true},
		{Kind: frame.ProcEntry, Path: "/proc", NoSuid: true, NoDev: true, NoExec: true},
		{Kind: frame.BindEntry, Path: "/workspace", Source: "/w", NoSuid: true, NoDev: true},
	}
	tests := []struct {
		name string
		edit func([]mount) []mount
		want []string
	}{
		{"as planned", func(m []mount) []mount { return m }, nil},
		{"one more", func(m []mount) []mount { return append(m, mount{target: "/old", fstype: "ext4"}) }, []string{"mounts"}},
		{"one twice", func(m []mount) []mount { return append(m, m[1]) }, []string{"mounts"}},
		{"one less", func(m []mount) []mount { return m[:4] }, []string{"mounts"}},
		{"writable", func(m []mount) []mount { m[1].options = []string{"rw", "nosuid", "nodev"}; return m }, []string{"read-only-mounts"}},
		{"writable below", func(m []mount) []mount { m[2].options = []string{"rw", "nosuid", "nodev"}; return m }, []string{"read-only-mounts"}},
		{"root writable", func(m []mount) []mount { m[0].options = []string{"rw", "nosuid", "nodev"}; return m }, []string{"read-only-mounts"}},
		{"devices", func(m []mount) []mount { m[4].options = []string{"rw", "nosuid"}; return m }, []string{"nodev-mounts"}},
		{"set-user-ID", func(m []mount) []mount { m[4].options = []string{"rw", "nodev"}; return m }, []string{"nosuid-mounts"}},
		{"the host's proc", func(m []mount) []mount { m[3].device = "0:5"; return m }, []string{"proc"}},
		{"no proc at all", func(m []mount) []mount { m[3].fstype = "tmpfs"; return m }, []string{"proc"}},
		{"another root", func(m []mount) []mount { m[0].fstype = "ext4"; return m }, []string{"mounts"}},
	}
	host, err := parseMountinfo(hostTable)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseMountinfo(goodTable)
			if err != nil {
				t.Fatal(err)
			}
			var properties []string
			for _, p := range compareMounts(tt.edit(got), expectedMounts(entries, host), host) {
				properties = append(properties, p.property)
			}
			if !reflect.DeepEqual(properties, tt.want) {
				t.Errorf("missing %q, want %q", properties, tt.want)
			}
		})
	}
}

func TestParseMountinfoRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"x\n", "30 1 0:40 / / ro\n", "30 1 0:40 / - tmpfs kick rw\n", "\n"} {
		if m, err := parseMountinfo(text); err == nil {
			t.Errorf("%q gives %+v", text, m)
		}
	}
}

func TestFindHierarchies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, mounts, self string
		want               []hierarchy
	}{
		{
			"version 1 with an empty version 2",
			"30 1 0:1 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n31 1 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n32 1 0:3 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n33 1 0:4 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"4:memory:/user/a\n3:cpu,cpuacct:/\n2:freezer:/\n0::/\n",
			[]hierarchy{
				{version: 1, mount: "/sys/fs/cgroup/cpu,cpuacct", own: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{"cpu"}},
				{version: 1, mount: "/sys/fs/cgroup/memory", own: "/sys/fs/cgroup/memory/user/a", controllers: []string{"memory"}},
				{version: 2, mount: "/sys/fs/cgroup/unified", own: "/sys/fs/cgroup/unified"},
			},
		},
		{
			"version 2 in a container", "30 1 0:1 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "0::/docker/x/y\n",
			[]hierarchy{{version: 2, mount: "/sys/fs/cgroup", own: "/sys/fs/cgroup/y"}},
		},
		{"outside of what is mounted", "30 1 0:1 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "0::/docker/z\n", nil},
		{"none", "30 1 0:1 / / ro - ext4 /dev/vda rw\n", "0::/\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			mounts, err := parseMountinfo(tt.mounts)
			if err != nil {
				t.Fatal(err)
			}
			if got := findHierarchies(mounts, tt.self); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestFreshUID(t *testing.T) {
	t.Parallel()
	whole := "0 0 4294967295\n"
	a, err := freshUID("ka", whole)
	if again, err2 := freshUID("ka", whole); err != nil || err2 != nil || a != again || a < uidFirst || a >= uidFirst+uidCount {
		t.Errorf("%d, then %d; %v, %v", a, again, err, err2)
	}
	if b, _ := freshUID("kb", whole); a == b {
		t.Error("two kicks have one user")
	}
	if c, err := freshUID("ka", "0 1000 1\n1 100000 65536\n"); err != nil || c < 32769 || c > 65536 {
		t.Errorf("in a container: %d, %v", c, err)
	}
	for _, m := range []string{"0 1000 1\n", "", "nonsense\n"} {
		if uid, err := freshUID("ka", m); err == nil {
			t.Errorf("of %q: %d", m, uid)
		}
	}
}

func TestParseStatusAndLimits(t *testing.T) {
	t.Parallel()
	f := parseStatus("Name:\tx: y\nUid:\t1\t2\t3\t4\nGroups:\t \n")
	if f["Name"] != "x: y" || f["Uid"] != "1\t2\t3\t4" || f["Groups"] != "" {
		t.Errorf("%q", f)
	}
	text := "Limit                     Soft Limit           Hard Limit           Units     \nMax core file size        0                    unlimited            bytes     \nMax processes             7                    8                    processes \n"
	if soft, hard, ok := parseLimit(text, "Max core file size"); !ok || soft != 0 || hard != 1<<64-1 {
		t.Error(soft, hard, ok)
	}
	if soft, hard, ok := parseLimit(text, "Max processes"); !ok || soft != 7 || hard != 8 {
		t.Error(soft, hard, ok)
	}
	for _, name := range []string{"Max", "Max nothing", ""} {
		if _, _, ok := parseLimit(text, name); ok {
			t.Errorf("%q was found", name)
		}
	}
	if !slices.Contains([]int64{5 << 10}, kilobytes("5 kB")) || kilobytes("") != 0 {
		t.Error("kilobytes")
	}
}
