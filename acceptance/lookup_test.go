package acceptance

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

func lookup(ts *testscript.TestScript, text, path string) string {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		ts.Fatalf("stdout is no JSON object: %v\n%s", err, text)
	}
	for _, part := range strings.Split(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(x) {
				ts.Fatalf("%s: no element %s in %v", path, part, x)
			}
			v = x[i]
		default:
			v = nil
		}
	}
	switch x := v.(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	case string:
		return x
	}
	b, _ := json.Marshal(v)
	return string(b)
}

// leftovers names the processes, mounts and cgroups that belong to kicks of the
// state directory.
func leftovers(state string) []string {
	var left []string
	ids := map[string]bool{}
	entries, _ := os.ReadDir(filepath.Join(state, "kick", "kicks"))
	for _, e := range entries {
		ids[e.Name()] = true
	}
	mentions := func(b []byte) bool {
		if strings.Contains(string(b), state) {
			return true
		}
		for id := range ids {
			if strings.Contains(string(b), id) {
				return true
			}
		}
		return false
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		for _, f := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(filepath.Join(p, f))
			if err == nil && filepath.Base(p) != fmt.Sprint(os.Getpid()) && strings.Contains(string(b), "KICK_ID=") && mentions(b) {
				left = append(left, fmt.Sprintf("process %s: %.200q", p, b))
			}
		}
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil && mentions(b) {
		left = append(left, "a mount: "+string(b))
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/kick/*", "/sys/fs/cgroup/kick/*", "/sys/fs/cgroup/*/*/kick/*"} {
		dirs, _ := filepath.Glob(pattern)
		for _, d := range dirs {
			if ids[filepath.Base(d)] {
				left = append(left, "cgroup "+d)
			}
		}
	}
	return left
}
