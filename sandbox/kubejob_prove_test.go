package sandbox

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// kubeTable is the mount table of a pod of Kubernetes 1.34 with containerd 2, runc,
// a user namespace and control groups of version 1, shortened.
const kubeTable = `1379 1269 0:273 / / ro,relatime - overlay overlay rw
1382 1379 0:376 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1407 1379 0:379 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
1409 1407 0:380 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw,mode=620,ptmxmode=666
1412 1407 0:406 / /dev/mqueue rw,nosuid,nodev,noexec,relatime - mqueue mqueue rw
1413 1379 0:421 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
1414 1413 0:381 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,mode=755
1418 1414 0:32 /kubepods/pod1 /sys/fs/cgroup/memory ro,nosuid,nodev,noexec,relatime master:78 - cgroup cgroup rw,memory
1449 1379 254:0 /pods/1/volumes/w /workspace rw,relatime,idmapped - ext4 /dev/vda rw,discard
1450 1379 0:360 / /tmp rw,relatime,idmapped - tmpfs tmpfs rw,size=1024k,noswap
1451 1379 254:0 /pods/1/etc-hosts /etc/hosts rw,relatime,idmapped - ext4 /dev/vda rw,discard
1452 1407 254:0 /pods/1/containers/agent/1 /dev/termination-log rw,relatime,idmapped - ext4 /dev/vda rw,discard
1453 1379 254:0 /sandboxes/1/hostname /etc/hostname ro,relatime,idmapped - ext4 /dev/vda rw,discard
1455 1379 254:0 /sandboxes/1/resolv.conf /etc/resolv.conf ro,relatime,idmapped - ext4 /dev/vda rw,discard
1456 1407 0:330 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw,size=65536k
1457 1379 254:0 /pods/1/volumes/s /run/kick/bin ro,relatime,idmapped - ext4 /dev/vda rw,discard
1458 1407 0:6 /null /dev/null rw,relatime master:116 - devtmpfs devtmpfs rw,mode=755
1273 1382 0:376 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
1279 1382 0:390 / /proc/acpi ro,relatime - tmpfs tmpfs ro,size=4k,nr_inodes=1
1281 1382 0:6 /null /proc/keys rw,relatime master:116 - devtmpfs devtmpfs rw,mode=755
1283 1413 0:390 / /sys/firmware ro,relatime - tmpfs tmpfs ro,size=4k,nr_inodes=1
`

// TestKubeMounts changes one line of a pod's mount table at a time.
func TestKubeMounts(t *testing.T) {
	t.Parallel()
	planned := []corev1.VolumeMount{{Name: "workspace", MountPath: "/workspace"}, {Name: "tmp", MountPath: "/tmp"}, {Name: "shim", MountPath: kubeShimDir, ReadOnly: true}}
	look := func(table string) (problems []string) {
		t.Helper()
		got, err := parseMountinfo(table)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range compareKube(got, planned) {
			problems = append(problems, p.property+": "+p.text)
		}
		return problems
	}
	if bad := look(kubeTable); len(bad) > 0 {
		t.Fatalf("the table as it should be: %q", bad)
	}
	const token = "1460 1379 0:500 / /var/run/secrets/kubernetes.io/serviceaccount ro,relatime - tmpfs tmpfs rw\n"
	for _, tt := range []struct{ name, old, changed, want string }{
		{"a writable root", "/ / ro,", "/ / rw,", "read-only-mounts: /"},
		{"another file system as proc", "- proc proc rw\n1407", "- tmpfs tmpfs rw\n1407", "proc: /proc"},
		{"a program in proc", "/proc rw,nosuid,nodev,noexec,", "/proc rw,nosuid,nodev,", "noexec-mounts: /proc"},
		{"a writable /proc/sys", "/proc/sys ro,", "/proc/sys rw,", "read-only-mounts: /proc/sys"},
		{"a writable /sys", "/ /sys ro,", "/ /sys rw,", "read-only-mounts: /sys"},
		{"a writable control group", "cgroup/memory ro,", "cgroup/memory rw,", "read-only-mounts: /sys/fs/cgroup/memory"},
		{"a set-user-id program in /dev", "/dev rw,nosuid -", "/dev rw -", "nosuid-mounts: /dev"},
		{"another device", "/null /dev/null", "/vda /dev/null", "mounts: /dev/null"},
		{"a device of the node", "/null /dev/null", "/vda /dev/vda", "mounts: /dev/vda"},
		{"a writable name server", "/etc/resolv.conf ro,", "/etc/resolv.conf rw,", "read-only-mounts: /etc/resolv.conf"},
		{"a writable host name", "/etc/hostname ro,", "/etc/hostname rw,", "read-only-mounts: /etc/hostname"},
		{"a writable shim", "/run/kick/bin ro,", "/run/kick/bin rw,", "read-only-mounts: " + kubeShimDir},
		{"no shim", "/run/kick/bin", "/tmp/elsewhere", "mounts: " + kubeShimDir + " should be mounted"},
		{"no workspace", "/pods/1/volumes/w /workspace", "/pods/1/volumes/w /work", "mounts: /workspace should be mounted"},
		{"no proc", "/ /proc rw", "/ /prog rw", "mounts: /proc should be mounted"},
		{"a directory of the node", "/pods/1/volumes/w /workspace", "/pods/1/volumes/w /mnt", "mounts: /mnt"},
		{"a token", "1458 1407", token + "1458 1407", "mounts: /var/run/secrets/kubernetes.io/serviceaccount"},
		{"a mount over another", "1458 1407", "1460 1379 254:0 /x /workspace rw,relatime - ext4 /dev/vda rw\n1458 1407", "mounts: /workspace is mounted twice"},
	} {
		table := strings.Replace(kubeTable, tt.old, tt.changed, 1)
		if table == kubeTable {
			t.Fatalf("%s: nothing was changed", tt.name)
		}
		if bad := look(table); !slices.ContainsFunc(bad, func(s string) bool { return strings.HasPrefix(s, tt.want) }) {
			t.Errorf("%s: %q, want %s", tt.name, bad, tt.want)
		}
	}
}
