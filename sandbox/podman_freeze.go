package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// freezer is where a control group is frozen and thawed, which is what `podman
// pause` does to a container. A frozen process of version 1 cannot even be killed.
type freezer struct {
	file           string // empty: there is none
	frozen, thawed string // what the file says, and what it is told
}

// freezerOf finds the freezer of a process's own group, as this process sees it.
func freezerOf(pid int) freezer {
	mounts, err := hostMounts()
	if err != nil {
		return freezer{}
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return freezer{}
	}
	return findFreezer(mounts, string(groups))
}

// findFreezer takes version 1 where both are there, as Podman does. The root of a
// hierarchy has no freezer.
func findFreezer(mounts []mount, groups string) (found freezer) {
	for _, m := range mounts {
		h := hierarchy{version: 2, mount: m.target}
		f := freezer{"cgroup.freeze", "1", "0"}
		switch {
		case m.fstype == "cgroup" && slices.Contains(m.super, "freezer"):
			h.version, h.controllers, f = 1, []string{"freezer"}, freezer{"freezer.state", "FROZEN", "THAWED"}
		case m.fstype != "cgroup2" || found.file != "":
			continue
		}
		own, ok := ownGroup(groups, h)
		if rel, err := filepath.Rel(m.root, own); ok && err == nil && rel != "." && !strings.HasPrefix(rel, "..") {
			f.file = filepath.Join(m.target, rel, f.file)
			found = f
		}
	}
	return found
}

// isFrozen reports whether the group is frozen. A group that is gone is not.
func (f freezer) isFrozen() bool {
	b, err := os.ReadFile(f.file)
	return err == nil && strings.TrimSpace(string(b)) == f.frozen
}

// thaw lets the group go on, if it is frozen and this user may.
func (f freezer) thaw() {
	if f.isFrozen() {
		_ = os.WriteFile(f.file, []byte(f.thawed), 0) // Podman itself does it on removal
	}
}
