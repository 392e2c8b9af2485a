package modeltest_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/modeltest"
)

// build builds the scripted agent under the names of the real ones.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "codex"), "./agent").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"claude", "copilot", "gemini"} {
		if err := os.Link(filepath.Join(dir, "codex"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFormats has the scripted agent speak every format to the server.
func TestFormats(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for name, wire := range map[string]modeltest.Wire{
		"codex": modeltest.Responses, "claude": modeltest.Messages, "copilot": modeltest.Chat, "gemini": modeltest.Gemini,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived := 0
			s := modeltest.Start(t, modeltest.Options{Key: "right", Command: "echo done >it", OnResult: func() { arrived++ }})
			dir := t.TempDir()
			prompt := filepath.Join(dir, "prompt")
			if err := os.WriteFile(prompt, []byte("do it"), 0o600); err != nil {
				t.Fatal(err)
			}
			agent := func(key string) error {
				cmd := exec.Command(filepath.Join(bin, name), `base_url="`+s.URL+`/v1"`)
				cmd.Dir = dir
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "KICK_PROMPT_FILE=" + prompt, "KICK_MODEL=m", "OPENAI_API_KEY=" + key,
					"ANTHROPIC_BASE_URL=" + s.URL, "ANTHROPIC_API_KEY=" + key, "COPILOT_PROVIDER_BASE_URL=" + s.URL + "/v1",
					"COPILOT_PROVIDER_API_KEY=" + key, "GOOGLE_GEMINI_BASE_URL=" + s.URL, "GEMINI_API_KEY=" + key}
				out, err := cmd.CombinedOutput()
				t.Logf("%s", out)
				return err
			}
			if agent("wrong") == nil {
				t.Error("a wrong key is taken")
			}
			if err := agent("right"); err != nil {
				t.Fatal(err)
			}
			calls := s.Calls()
			if len(calls) != 3 || arrived != 1 {
				t.Fatalf("%d calls, %d results: %+v", len(calls), arrived, calls)
			}
			for i, c := range calls[1:] {
				if c.Wire != wire || c.Key() != "right" || !c.Tool || c.Result != (i == 1) || c.Model != "m" && wire != modeltest.Gemini {
					t.Errorf("call %d: %+v", i, c)
				}
			}
			if b, err := os.ReadFile(filepath.Join(dir, "it")); err != nil || string(b) != "done\n" {
				t.Errorf("the command left %q, %v", b, err)
			}
		})
	}
}

func TestNoFormat(t *testing.T) {
	t.Parallel()
	s := modeltest.Start(t, modeltest.Options{})
	for path, want := range map[string]int{"/v1/files": 404, "/v1/responses": 400} {
		resp, err := http.Post(s.URL+path, "application/json", strings.NewReader("{"))
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != want {
			t.Errorf("POST %s: %s, %v", path, resp.Status, err)
		}
	}
	if n := len(s.Calls()); n != 1 {
		t.Errorf("%d calls are on record, want the one of no format", n)
	}
}
