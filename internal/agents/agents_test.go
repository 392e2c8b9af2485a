package agents

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/policy"
)

// kind finds one that must be there.
func kind(t *testing.T, name string) Kind {
	t.Helper()
	k, ok := Find(name)
	if !ok {
		t.Fatalf("there is no kind %s", name)
	}
	return k
}

func TestKinds(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(Names()) || !slices.Contains(Names(), DefaultKind) {
		t.Errorf("names %q", Names())
	}
	for _, k := range Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			if !strings.HasPrefix(k.Script, "exec "+k.Name+" ") || !strings.Contains(k.Script, ".hive/kick-prompt.txt") || k.Product == "" {
				t.Errorf("runs %q", k.Script)
			}
			if (k.MaxPrompt > 0) != strings.Contains(k.Script, "$(cat ") {
				t.Errorf("the prompt is limited to %d bytes by %q", k.MaxPrompt, k.Script)
			}
			route, err := k.Route([]policy.Model{{Provider: policy.Anthropic}, {Provider: policy.Gemini}, {Provider: policy.OpenAI, Route: "own"}})
			if err != nil {
				t.Fatal(err)
			}
			env := k.Environment(route, "provider/model-1")
			whole := strings.Join(slices.Collect(maps.Values(env)), "\n")
			if !strings.Contains(whole, "http://127.0.0.1:3128/model/"+route.Route) || strings.Contains(whole, "{url}") || strings.Contains(whole, "{model}") {
				t.Errorf("variables %q", env)
			}
			// All that is secret by its name is the one dummy.
			dummies := 0
			for name, v := range env {
				if credential.LooksLike(v) {
					t.Errorf("%s looks like a credential", name)
				}
				if credential.IsName(name) {
					dummies++
					if v != credential.DummyKey {
						t.Errorf("%s has the value %q", name, v)
					}
				}
				if name == "OPENCODE_CONFIG_CONTENT" && !json.Valid([]byte(v)) {
					t.Errorf("%s is no JSON: %s", name, v)
				}
			}
			if dummies == 0 && !strings.Contains(whole, credential.DummyKey) {
				t.Error("the agent has no key")
			}
			for name, content := range k.Home {
				if !filepath.IsLocal(name) || filepath.Ext(name) == ".json" && !json.Valid([]byte(content)) {
					t.Errorf("home file %s: %s", name, content)
				}
			}
		})
	}
}

func TestRoute(t *testing.T) {
	t.Parallel()
	own := policy.Model{Provider: policy.OpenAICompatible, Endpoint: "http://127.0.0.1:1/v1", Route: "own"}
	if m, err := kind(t, "copilot").Route([]policy.Model{{Provider: policy.Anthropic}, own}); err != nil || m.Route != "own" {
		t.Errorf("route %q, %v", m.Route, err)
	}
	_, err := kind(t, "claude").Route([]policy.Model{own})
	if err == nil {
		t.Fatal("an agent has a route that it cannot use")
	}
	// What the error tells to write is a policy, and does it.
	_, file, _ := strings.Cut(err.Error(), "\n\n")
	p, perr := policy.Parse("policy.yaml", []byte(file))
	if perr != nil {
		t.Fatalf("%v\nis the advice of: %v", perr, err)
	}
	if _, err := kind(t, "claude").Route(p.Egress.Models); err != nil {
		t.Error(err)
	}
}

func TestModel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind, asked string
		route       policy.Model
		want, err   string
	}{
		"asked":              {"codex", "m", policy.Model{}, "m", ""},
		"asked and allowed":  {"codex", "gpt-9", policy.Model{Names: []string{"gpt-*"}}, "gpt-9", ""},
		"asked, not allowed": {"codex", "o9", policy.Model{Names: []string{"gpt-*"}, Route: "own"}, "", "own route, which has gpt-*"},
		"no name":            {"codex", `a"b`, policy.Model{}, "", "no name of a model"},
		"forced":             {"copilot", "", policy.Model{Force: "f"}, "f", ""},
		"the only one":       {"copilot", "", policy.Model{Names: []string{"only"}}, "only", ""},
		"a pattern":          {"codex", "", policy.Model{Names: []string{"gpt-*"}}, "", ""},
		"the agent's choice": {"claude", "", policy.Model{}, "", ""},
		"none to choose":     {"goose", "", policy.Model{Names: []string{"a", "b"}}, "", "--model"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := kind(t, c.kind).Model(c.asked, c.route)
			if got != c.want && c.err == "" || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q, %v; want %q, %q", got, err, c.want, c.err)
			}
		})
	}
	if env := kind(t, "copilot").Environment(policy.Model{}, ""); env["COPILOT_MODEL"] != "" {
		t.Errorf("a variable names no model: %q", env["COPILOT_MODEL"])
	}
}

// TestOtherGateways: where a sandbox of OpenShell calls its models, nothing of an agent
// leads to where kick's gateway is otherwise.
func TestOtherGateways(t *testing.T) {
	t.Parallel()
	for _, k := range Kinds() {
		route, err := k.Route([]policy.Model{{Provider: policy.Anthropic}, {Provider: policy.Gemini}, {Provider: policy.OpenAI, Route: "own"}})
		if err != nil {
			t.Fatal(err)
		}
		texts := k.Environment(route, "model-1")
		maps.Copy(texts, k.Home)
		for name, text := range texts {
			if got := ForInferenceLocal(text); strings.Contains(got, "127.0.0.1") || strings.Contains(got, "model/"+route.Route) {
				t.Errorf("%s: %s has %q for inference.local", k.Name, name, got)
			}
			if got := ForGatewayAt(text, 8378); strings.Contains(got, ":3128") || strings.Count(got, "127.0.0.1:8378") != strings.Count(text, "127.0.0.1:3128") {
				t.Errorf("%s: %s has %q for another port", k.Name, name, got)
			}
		}
		if got := ForInferenceLocal(texts["KICK_MODEL_URL"]); got != "https://inference.local" {
			t.Errorf("%s: the model is at %q", k.Name, got)
		}
	}
	goose := kind(t, "goose").Environment(policy.Model{Provider: policy.OpenAI, Route: "own"}, "model-1")
	if host, path := ForInferenceLocal(goose["OPENAI_HOST"]), ForInferenceLocal(goose["OPENAI_BASE_PATH"]); host != "https://inference.local" || path != "v1/chat/completions" {
		t.Errorf("goose calls %s and %s", host, path)
	}
}
