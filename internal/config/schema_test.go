package config

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/pb33f/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// TestSchemaIsPublished keeps the published file in step with the reader, from
// whose rows it is made.
func TestSchemaIsPublished(t *testing.T) {
	t.Parallel()
	golden(t, "../../docs/kick.schema.json", Schema())
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("kick.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("kick.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

func TestSchemaAcceptsWhatLoads(t *testing.T) {
	t.Parallel()
	s := compileSchema(t)
	texts := map[string]string{"layered": layered}
	for name, text := range accepted {
		texts[name] = text
	}
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[f] = string(b)
	}
	for name, text := range texts {
		if err := validate(t, s, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	s := compileSchema(t)
	for name, text := range map[string]string{
		"unknown key":       "agent_sandbox: {timout_s: 5}",
		"unknown agent key": "agents: {a: {token: x}}",
		"wrong type":        "agent_sandbox: {enabled: 1}",
		"runtime":           "agent_sandbox: {runtime: docker}",
		"network mode":      "agents: {a: {sandbox: {network_mode: host}}}",
		"negative timeout":  "agent_sandbox: {timeout_s: -1}",
		"size without unit": "agent_sandbox: {limits: {memory: 512}}",
		"short unit":        "agent_sandbox: {limits: {memory: 512m}}",
		"no cpus":           "agent_sandbox: {limits: {cpus: 0}}",
		"agent's name":      "agents: {../x: {}}",
		"kind and command":  "agents: {a: {kind: claude, command: x}}",
		"variable's name":   "agents: {a: {env: {A-B: c}}}",
		"allowlist twice":   "agent_sandbox: {env_allowlist: [A, A]}",
		"relative dir":      "agent_sandbox: {workspace_dir: x}",
		"empty command":     "agents: {a: {command: []}}",
	} {
		if validate(t, s, text) == nil {
			t.Errorf("%s: the schema accepts %s", name, text)
		}
		if _, err := Parse("kick.yaml", []byte(text)); err == nil {
			t.Errorf("%s: the reader accepts %s", name, text)
		}
	}
}
