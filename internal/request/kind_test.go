package request

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/manager"
)

// kindOptions are those of an agent of a known kind that is installed and has a
// route to its model.
func kindOptions(t *testing.T) Options {
	t.Helper()
	o := options(t)
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"codex": 0o755, "claude": 0o755, "gemini": 0o755, "goose": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	o.Command, o.Kind, o.Prompt, o.ProgramDirs = nil, "codex", "fix it", []string{dir}
	t.Setenv("OPENAI_API_KEY", "a-key-of-the-operator")
	t.Setenv("GEMINI_API_KEY", "another-key-of-the-operator")
	o.PolicyPath = filepath.Join(dir, "policy.yaml")
	file := "version: 1\negress:\n  models:\n    - {provider: openai, route: own, names: [m-1]}\n    - {provider: gemini}\n"
	if err := os.WriteFile(o.PolicyPath, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestKind(t *testing.T) {
	t.Chdir(t.TempDir())
	o := kindOptions(t)
	o.Env = []string{"OPENAI_API_KEY=" + credential.DummyKey, "EXTRA=1"}
	req, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if req.Agent != "codex" || req.Command[0] != "sh" || req.Env["KICK_MODEL"] != "m-1" || req.Env["EXTRA"] != "1" ||
		req.Env["KICK_MODEL_URL"] != "http://127.0.0.1:3128/model/own" {
		t.Errorf("%s runs %q with %q", req.Agent, req.Command, req.Env)
	}
	// A variable of the user's own goes over the kind's.
	o.Kind, o.Env = "gemini", []string{"NO_UPDATE_NOTIFIER=0"}
	if req, err = Build(t.Context(), o); err != nil || req.Env["NO_UPDATE_NOTIFIER"] != "0" || req.Home[".gemini/settings.json"] == "" {
		t.Errorf("%q, home %q, %v", req.Env, req.Home, err)
	}
}

func TestKindRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, c := range map[string]struct {
		change func(*Options)
		want   string // in the error
	}{
		"unknown":        {func(o *Options) { o.Kind = "codec" }, "did you mean codex"},
		"with a command": {func(o *Options) { o.Command = []string{"true"} }, "choose one"},
		"model alone": {func(o *Options) {
			o.Kind, o.Command, o.Model, o.Set = "", []string{"true"}, "m", func(string) bool { return true }
		}, "--agent-kind"},
		"model not allowed":   {func(o *Options) { o.Model = "m-2" }, "m-1"},
		"no network":          {func(o *Options) { o.Network = "none" }, "restricted"},
		"no task":             {func(o *Options) { o.Prompt = " \n" }, "--prompt"},
		"prompt too long":     {func(o *Options) { o.Kind, o.Prompt = "gemini", strings.Repeat("x", 128<<10) }, "128 KiB"},
		"not installed":       {func(o *Options) { o.Kind = "aider" }, "--program-dir"},
		"not executable":      {func(o *Options) { o.Kind = "goose" }, "--program-dir"},
		"no policy":           {func(o *Options) { o.PolicyPath = "" }, "provider: openai\n      key_env: OPENAI_API_KEY"},
		"no key":              {func(*Options) { t.Setenv("OPENAI_API_KEY", "") }, "the variable OPENAI_API_KEY holds no key"},
		"no route of its API": {func(o *Options) { o.Kind = "claude" }, "provider: anthropic"},
	} {
		t.Run(name, func(t *testing.T) {
			o := kindOptions(t)
			c.change(&o)
			if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestKindByConfig(t *testing.T) {
	o := kindOptions(t)
	t.Chdir(t.TempDir())
	yaml := `agent_sandbox: {enabled: true, policy: ` + o.PolicyPath + `}
agents:
  fixer: {kind: gemini, model: m-9, env: {NO_UPDATE_NOTIFIER: "0"}, repo: ` + o.Repo + `, publish: none, sandbox: {enabled: true}}
`
	if err := os.WriteFile("kick.yaml", []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Repo, o.Kind, o.PolicyPath, o.Agent = "", "", "", "fixer"
	req, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if req.Agent != "fixer" || !strings.Contains(req.Command[2], "exec gemini") || req.Env["KICK_MODEL"] != "m-9" ||
		req.Env["NO_UPDATE_NOTIFIER"] != "0" || len(req.Home) != 1 || req.Publish != manager.PublishNone {
		t.Errorf("%+v", req)
	}
	// The command line's kind and model go over those of the file.
	o.Kind, o.Model = "codex", "m-1"
	if req, err = Build(t.Context(), o); err != nil || req.Agent != "fixer" || !strings.Contains(req.Command[2], "exec codex") || req.Env["KICK_MODEL"] != "m-1" {
		t.Errorf("%q, %q, %v", req.Command, req.Env, err)
	}
}

// On OpenShell, a kind calls its model at one of two places, and needs one.
func TestKindOnOpenShell(t *testing.T) {
	t.Chdir(t.TempDir())
	const own = "egress_gateway: 'kick.example:8377', egress_from: 10.0.0.0/8"
	for name, c := range map[string]struct{ kind, openshell, key, want string }{
		"a route":                       {"codex", "inference: true", "", ""},
		"kick's gateway":                {"gemini", own, "key", ""},
		"neither":                       {"codex", "", "key", "openshell.egress_gateway"},
		"both":                          {"codex", "inference: true, " + own, "key", "remove the other"},
		"a format that the route lacks": {"gemini", "inference: true", "key", "choose another kind"},
		"kick's gateway without a key":  {"codex", own, "", "OPENAI_API_KEY holds no key"},
		"no network":                    {"codex", "egress_gateway: 'kick.example:8377'", "key", "both are needed"},
	} {
		t.Run(name, func(t *testing.T) {
			o := kindOptions(t)
			t.Setenv("OPENAI_API_KEY", c.key)
			image := "registry.example/agent@sha256:" + strings.Repeat("0", 64)
			file := "agent_sandbox: {enabled: true, runtime: openshell, image: '" + image + "', openshell: {" + c.openshell + "}}\nagents:\n  a: {sandbox: {enabled: true}}\n"
			if err := os.WriteFile("kick.yaml", []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			o.ProgramDirs, o.Agent, o.Kind = nil, "a", c.kind
			if _, err := Build(t.Context(), o); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
