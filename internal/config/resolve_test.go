package config

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

func parse(t *testing.T, yaml string) *Config {
	t.Helper()
	c, err := Parse("/srv/acme/kick.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func agent(t *testing.T, yaml, name string) Resolved {
	t.Helper()
	r, err := parse(t, yaml).Agent(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const layered = `agent_sandbox:
  enabled: true
  timeout_s: 60
  network_mode: none
  env_allowlist: [LANG, TZ]
  limits: {memory: 1GiB, processes: 64}
agents:
  own:
    command: [make, test]
    repo: /srv/git/api.git
    base: main
    publish: none
    env: {A: b}
    sandbox:
      enabled: true
      timeout_s: 30
      network_mode: restricted
      env_allowlist: []
      limits: {memory: 2GiB}
  inherits:
    command: make test
    sandbox: {enabled: true, timeout_s: 0}
  closed: {}
  kind: {kind: codex}
`

// TestPrecedence is agent over global over default, with the sources.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	own, inherits, closed := agent(t, layered, "own"), agent(t, layered, "inherits"), agent(t, layered, "closed")
	tests := []struct {
		name      string
		got, want any
	}{
		{"agent over global", own.Timeout, Value[time.Duration]{30 * time.Second, "kick.yaml:16 agents.own.sandbox.timeout_s"}},
		{"global over default", closed.Timeout, Value[time.Duration]{time.Minute, "kick.yaml:3 agent_sandbox.timeout_s"}},
		{"0 is not set", inherits.Timeout, Value[time.Duration]{time.Minute, "kick.yaml:3 agent_sandbox.timeout_s"}},
		{"default", own.Runtime, Value[string]{"embedded", "default"}},
		{"network mode", own.NetworkMode, Value[sandbox.NetworkMode]{sandbox.NetworkRestricted, "kick.yaml:17 agents.own.sandbox.network_mode"}},
		{"global network mode", inherits.NetworkMode, Value[sandbox.NetworkMode]{sandbox.NetworkNone, "kick.yaml:4 agent_sandbox.network_mode"}},
		{"an empty list replaces", own.EnvAllowlist, Value[[]string]{[]string{}, "kick.yaml:18 agents.own.sandbox.env_allowlist"}},
		{"global list", inherits.EnvAllowlist, Value[[]string]{[]string{"LANG", "TZ"}, "kick.yaml:5 agent_sandbox.env_allowlist"}},
		{"limits go key by key, agent's", own.Memory, Value[int64]{2 << 30, "kick.yaml:19 agents.own.sandbox.limits.memory"}},
		{"limits go key by key, global", own.Processes, Value[int]{64, "kick.yaml:6 agent_sandbox.limits.processes"}},
		{"limits go key by key, default", own.Disk, Value[int64]{sandbox.DefaultLimits().Disk, "default"}},
		{"limits for the launcher", own.Limits(), sandbox.Limits{Memory: 2 << 30, Processes: 64, Wall: 30 * time.Second}},
		{"command as a list", own.Command, Value[[]string]{[]string{"make", "test"}, "kick.yaml:9 agents.own.command"}},
		{"command as a string", inherits.Command.Value, []string{"sh", "-c", "make test"}},
		{"publish", own.Publish, Value[string]{PublishNone, "kick.yaml:12 agents.own.publish"}},
		{"policy by default", closed.Policy, Value[string]{"", "default"}},
		{"publish by default", closed.Publish, Value[string]{"", "default"}},
		{"kind by default", closed.Kind, Value[string]{"claude", "default"}},
		{"kind's command", closed.Command.Source, "kind claude"},
		{"both gates", own.Enabled, Value[bool]{true, "kick.yaml:15 agents.own.sandbox.enabled"}},
		{"agent's gate is not set", closed.Enabled, Value[bool]{false, "default"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if !reflect.DeepEqual(tt.got, tt.want) {
				t.Errorf("got %+v, want %+v", tt.got, tt.want)
			}
		})
	}
}

func TestGates(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, global, own string
		runs              bool
	}{
		{"both", "true", "true", true},
		{"global only", "true", "false", false},
		{"agent only", "false", "true", false},
		{"none", "false", "false", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := agent(t, "agent_sandbox: {enabled: "+tt.global+"}\nagents: {a: {sandbox: {enabled: "+tt.own+"}}}", "a")
			err := r.Runnable()
			if (err == nil) != tt.runs || r.Enabled.Value != tt.runs {
				t.Errorf("Runnable = %v, Enabled = %+v, want %v", err, r.Enabled, tt.runs)
			}
			if err != nil && !strings.Contains(err.Error(), "set agent_sandbox.enabled and agents.a.sandbox.enabled to true") {
				t.Errorf("%q does not say what to do", err)
			}
		})
	}
}

func TestHiveExample(t *testing.T) {
	t.Parallel()
	c, err := Load("../../examples/hive.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Agent("scanner")
	if err != nil || r.Runnable() != nil {
		t.Fatalf("scanner does not run: %v, %v", err, r.Runnable())
	}
	if cmd := strings.Join(r.Command.Value, " "); !strings.Contains(cmd, "claude -p ") || !strings.Contains(cmd, ".hive/kick-prompt.txt") {
		t.Errorf("command is %q, want Hive's default, claude", cmd)
	}
	if r.Timeout.Value != 45*time.Minute || r.NetworkMode.Value != sandbox.NetworkRestricted {
		t.Errorf("timeout %v, network %v", r.Timeout, r.NetworkMode)
	}
	if r.Image.Value != "" || !strings.Contains(r.Image.Source, "hive.yaml:5 agent_sandbox.image, not used by runtime embedded") {
		t.Errorf("image is %+v; the embedded runtime has none", r.Image)
	}
	if ws := c.Warnings(); len(ws) != 1 || !strings.Contains(ws[0], "image is not used by the embedded runtime") {
		t.Errorf("warnings are %q", ws)
	}
}

func TestUnknownAgent(t *testing.T) {
	t.Parallel()
	c := parse(t, layered)
	for name, want := range map[string]string{"inherit": "did you mean inherits?", "zzz": "it has own, inherits, closed, kind"} {
		if _, err := c.Agent(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Agent(%q): %v, want %q", name, err, want)
		}
	}
	if _, err := parse(t, "").Agent("a"); err == nil || !strings.Contains(err.Error(), "add one below agents") {
		t.Errorf("in an empty file: %v", err)
	}
}

func TestEnv(t *testing.T) {
	t.Parallel()
	host := map[string]string{
		"LANG": "C.UTF-8", "HOME": "/root", "GITHUB_TOKEN": token, "LEAK": token, "PROXY": "http://u:" + "p@proxy:1", "MODE": "host",
	}
	lookup := func(n string) (string, bool) { v, ok := host[n]; return v, ok }
	tests := []struct {
		name, agent string
		want        map[string]string
		err         string
	}{
		{"nothing is inherited", "command: x", map[string]string{}, ""},
		{"allowlisted", "command: x, sandbox: {env_allowlist: [LANG, UNSET]}", map[string]string{"LANG": "C.UTF-8"}, ""},
		{"explicit over allowlisted", "command: x, env: {MODE: own}, sandbox: {env_allowlist: [MODE]}", map[string]string{"MODE": "own"}, ""},
		{"a dummy key", "command: x, env: {OPENAI_API_KEY: kick-dummy-key}", map[string]string{"OPENAI_API_KEY": "kick-dummy-key"}, ""},
		{"a token as the value", "command: x, sandbox: {env_allowlist: [LANG, LEAK]}", nil, "the value of LEAK, allowed by kick.yaml:1 agents.a.sandbox.env_allowlist, looks like a GitHub token; remove it"},
		{"a password in a proxy's URL", "command: x, sandbox: {env_allowlist: [PROXY]}", nil, "the value of PROXY"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := agent(t, "agents: {a: {"+tt.agent+"}}", "a").Env(lookup)
			if tt.err == "" {
				if err != nil || !maps.Equal(got, tt.want) {
					t.Errorf("Env = %v, %v; want %v", got, err, tt.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error is %v, want %q", err, tt.err)
			}
			if strings.Contains(err.Error(), token) || strings.Contains(err.Error(), "u:p") {
				t.Error("the error repeats the credential")
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, yaml string
		want       []string
	}{
		{"no agents", "", []string{"kick.yaml has no agents"}},
		{"none opted in", "agent_sandbox: {enabled: true}\nagents: {a: }", []string{"no agent is opted in"}},
		{"global gate closed", "agents: {a: {sandbox: {enabled: true}}}", []string{"opted in, but agent_sandbox.enabled is not true: a"}},
		{"only some", "agent_sandbox: {enabled: true}\nagents: {a: {sandbox: {enabled: true}}, b: , c: {sandbox: {enabled: false}}}", []string{"only some agents are opted in, these are not and do not run: b, c"}},
		{"image", "agent_sandbox: {enabled: true, image: x}\nagents: {a: {sandbox: {enabled: true}}}", []string{"image is not used by the embedded runtime, which runs the host's programs: a"}},
		{"all well", "agent_sandbox: {enabled: true}\nagents: {a: {sandbox: {enabled: true}}}", nil},
		{"sandbox not in use", "agents: {a: }", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := parse(t, tt.yaml).Warnings(); !slices.EqualFunc(got, tt.want, strings.Contains) {
				t.Errorf("warnings are %q, want %q", got, tt.want)
			}
		})
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	r := agent(t, layered+"  shown:\n    env: {TEXT: \"two\\nlines \\e[31m\", N: 1}\n    sandbox: {limits: {cpus: 0.5, memory: 1500MB}}\n", "shown")
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/show.txt", table.Bytes())
	compact, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, compact, "", "  "); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/show.json", append(indented.Bytes(), '\n'))
}

// golden compares with a file that go test -update rewrites.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		var g, w string
		if i < len(gotLines) {
			g = gotLines[i]
		}
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if g != w {
			t.Fatalf("%s differs in line %d: got %q, want %q; if that is right, run go test -update", path, i+1, g, w)
		}
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int64{"1B": 1, "512MiB": 512 << 20, "2 GiB": 2 << 30, "1.5GiB": 3 << 29, "1kB": 1000, "2MB": 2e6, "0B": 0} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "1", "-1B", "1 g", "1Gi", "GiB", "1e9B", "9999999999999999TiB", "1GiB\n", "0x1B", "∞B"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", s, got)
		}
	}
}

// A policy file lies beside kick.yaml, wherever kick is started.
func TestPolicyPath(t *testing.T) {
	t.Parallel()
	c, err := Parse("/etc/kick/kick.yaml", []byte("agent_sandbox: {policy: rules/policy.yaml}\nagents: {a: {}, b: {sandbox: {policy: /srv/strict.yaml}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "/etc/kick/rules/policy.yaml", "b": "/srv/strict.yaml"} {
		r, err := c.Agent(name)
		if err != nil || r.Policy.Value != want {
			t.Errorf("%s: policy %q, %v, want %q", name, r.Policy.Value, err, want)
		}
	}
}
