package doctor

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/podman"
)

// TestPodmanAnswers judges what services say of their hosts.
func TestPodmanAnswers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		info  string
		check func(podman.Info) Check
		ok    bool
		want  string // in what was found, or in the remedy
	}{
		{"overlay", `{"store": {"graphDriverName": "overlay"}}`, podmanStorage, true, "overlay"},
		{"vfs", `{"store": {"graphDriverName": "vfs"}}`, podmanStorage, false, "podman system reset"},
		{"runc", `{"host": {"ociRuntime": {"name": "runc"}}}`, podmanRuntime, true, "runc"},
		{"rootful on v1", `{"host": {"cgroupVersion": "v1"}}`, podmanGroups, true, "v1"},
		{"rootless on v1", `{"host": {"cgroupVersion": "v1", "security": {"rootless": true}}}`, podmanGroups, true, "without cpu, memory, pids"},
		{"rootless with all", `{"host": {"cgroupVersion": "v2", "cgroupControllers": ["cpu", "io", "memory", "pids"], "security": {"rootless": true}}}`, podmanGroups, true, "v2"},
		{"rootless without processors", `{"host": {"cgroupVersion": "v2", "cgroupControllers": ["memory", "pids"], "security": {"rootless": true}}}`, podmanGroups, true, "without cpu for"},
		{"as many ids as images have", `{"host": {"idMappings": {"uidmap": [{"size": 1}, {"size": 65536}], "gidmap": [{"size": 1}, {"size": 65536}]}}}`, podmanIDs, true, "65537"},
		{"one id", `{"host": {"idMappings": {"uidmap": [{"size": 1}], "gidmap": [{"size": 1}, {"size": 65536}]}}}`, podmanIDs, false, "usermod --add-subuids"},
		{"no mapping", `{}`, podmanIDs, false, "/etc/subuid"},
	} {
		var info podman.Info
		if err := json.Unmarshal([]byte(tc.info), &info); err != nil {
			t.Fatal(err)
		}
		c := tc.check(info)
		if c.OK != tc.ok || !strings.Contains(c.Found+" "+c.Remedy, tc.want) || c.OK && c.Remedy != "" {
			t.Errorf("%s: %+v, want ok %v and %q", tc.name, c, tc.ok, tc.want)
		}
	}
}
