package config

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kickhq/kick/sandbox"
)

// Row is one line of what holds for an agent.
type Row struct {
	Key    string `json:"-"`     // as in kick.yaml below agents.NAME
	Value  any    `json:"value"` // as in kick.yaml
	Source string `json:"source"`
}

// Rows returns every setting under its key.
func (r Resolved) Rows() []Row {
	rows := []Row{
		row("kind", r.Kind), row("model", r.Model), row("command", r.Command), row("repo", r.Repo), row("base", r.Base), row("publish", r.Publish),
		row("sandbox.enabled", r.Enabled), row("sandbox.runtime", r.Runtime), row("sandbox.image", r.Image),
		row("sandbox.podman_socket", r.PodmanSocket), row("sandbox.podman_oci_runtime", r.PodmanOCIRuntime), row("sandbox.podman_network", r.PodmanNetwork),
		row("sandbox.kubernetes", r.Kubernetes), row("sandbox.kubevirt", r.KubeVirt),
		row("sandbox.env_allowlist", r.EnvAllowlist), row("sandbox.network_mode", r.NetworkMode),
		{"sandbox.timeout_s", int64(r.Timeout.Value.Seconds()), r.Timeout.Source},
		row("sandbox.workspace_dir", r.WorkspaceDir), row("sandbox.policy", r.Policy), row("sandbox.limits.cpus", r.CPUs),
		sizeRow("sandbox.limits.memory", r.Memory), row("sandbox.limits.processes", r.Processes),
		sizeRow("sandbox.limits.disk", r.Disk), sizeRow("sandbox.limits.output", r.Output),
	}
	if r.Runtime.Value == "openshell" {
		rows = append(rows, r.OpenShell.rows()...)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Variables)) {
		rows = append(rows, row("env."+name, r.Variables[name]))
	}
	return rows
}

func row[T any](key string, v Value[T]) Row { return Row{key, v.Value, v.Source} }

func sizeRow(key string, v Value[int64]) Row { return Row{key, formatSize(v.Value), v.Source} }

// maxCell is the width up to which values widen their column; a longer one
// sticks out of it and does not push everything else away.
const maxCell = 40

// WriteTable writes the settings as an aligned table: key, value, source.
func (r Resolved) WriteTable(w io.Writer) error {
	lines := [][3]string{{"KEY", "VALUE", "FROM"}}
	for _, row := range r.Rows() {
		lines = append(lines, [3]string{row.Key, cell(row.Key, row.Value), row.Source})
	}
	var keys, values int
	for _, l := range lines {
		keys = max(keys, utf8.RuneCountInString(l[0]))
		if n := utf8.RuneCountInString(l[1]); n <= maxCell {
			values = max(values, n)
		}
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%-*s  %-*s  %s\n", keys, l[0], values, l[1], l[2]); err != nil {
			return fmt.Errorf("write settings: %w", err)
		}
	}
	return nil
}

// cell writes a value in one line, quoted where it would not be read as it is.
func cell(key string, v any) string {
	switch v := v.(type) {
	case sandbox.KubernetesChoice, sandbox.KubeVirtChoice:
		b, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return string(b)
	case []string:
		words := make([]string, len(v))
		for i, w := range v {
			words[i] = strconv.Quote(w)
		}
		return "[" + strings.Join(words, ", ") + "]"
	case float64:
		if v == 0 && key == "sandbox.limits.cpus" {
			return "not limited"
		}
	}
	s := fmt.Sprint(v)
	if q := strconv.Quote(s); s == "" || q != `"`+s+`"` {
		return q
	}
	return s
}

// MarshalJSON writes {"agent": NAME, "settings": {KEY: {"value", "source"}}}.
func (r Resolved) MarshalJSON() ([]byte, error) {
	settings := map[string]Row{}
	for _, row := range r.Rows() {
		settings[row.Key] = row
	}
	return json.Marshal(map[string]any{"agent": r.Name, "settings": settings})
}
