package egress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/policy"
)

// TestModelRefusals sends what reaches out, remembers, or is not known. None of
// it gets to the provider, and the answer has the rule in the provider's form.
func TestModelRefusals(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{}`))
	g, a := openModels(t, p, defaultLimits, modelRoute(policy.Anthropic), modelRoute(policy.OpenAI), modelRoute(policy.Gemini))
	const (
		messages = "/model/anthropic/v1/messages"
		resp     = "/model/openai/v1/responses"
		chat     = "/model/openai/v1/chat/completions"
		gem      = "/model/gemini/v1beta/models/g:generateContent"
	)
	tests := []struct{ path, body, rule string }{
		{messages, `{"model":"m","tools":[{"type":"web_search_20250305","name":"web_search"}]}`, "model-web-search"},
		{messages, `{"model":"m","tools":[{"type":"web_\u0073earch_20250305","name":"x"}]}`, "model-web-search"},
		{messages, `{"model":"m","tools":[{"type":"web_fetch_20250910"}]}`, "model-web-fetch"},
		{messages, `{"model":"m","tools":[{"type":"code_execution_20250825"}]}`, "model-code-execution"},
		{messages, `{"model":"m","tools":[{"type":"tomorrows_tool"}]}`, "model-unknown-tool"},
		{messages, `{"model":"m","mcp_servers":[{"type":"url","url":"https://x"}]}`, "model-mcp"},
		{messages, `{"model":"m","\u006dcp_servers":[]}`, "model-mcp"},
		{messages, `{"model":"m","container":"c"}`, "model-code-execution"},
		{messages, `{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}]}`, "model-remote-files"},
		{messages, `{"model":"m","messages":[{"role":"user","content":[{"type":"document","source":{"file_id":"f","type":"file"}}]}]}`, "model-file-store"},
		{messages, `{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"url":"https://x"}}]}]}]}`, "model-remote-files"},
		{messages, `{"model":"m","messages":[{"role":"user","content":[{"type":"container_upload","file_id":"f"}]}]}`, "model-file-store"},
		{messages, `{"model":"m","Tools":[]}`, "model-unknown-field"},
		{messages, `{"model":"m","speed":"fast"}`, "model-unknown-field"},
		{messages, `{"model":"m","service_tier":"priority"}`, "model-unknown-part"},
		{resp, `{"model":"m","store":true}`, "model-stored"},
		{resp, `{"model":"m","store":"yes"}`, "model-stored"},
		{resp, `{"model":"m","previous_response_id":"r"}`, "model-stored"},
		{resp, `{"model":"m","conversation":{"id":"c"}}`, "model-stored"},
		{resp, `{"model":"m","prompt":{"id":"p"}}`, "model-stored"},
		{resp, `{"model":"m","background":true}`, "model-background"},
		{resp, `{"model":"m","tools":[{"type":"web_search"}]}`, "model-web-search"},
		{resp, `{"model":"m","tools":[{"type":"web_search_preview_2025_03_11"}]}`, "model-web-search"},
		{resp, `{"model":"m","tools":[{"type":"file_search","vector_store_ids":["v"]}]}`, "model-file-store"},
		{resp, `{"model":"m","tools":[{"type":"code_interpreter","container":{"type":"auto"}}]}`, "model-code-execution"},
		{resp, `{"model":"m","tools":[{"type":"mcp","server_url":"https://x"}]}`, "model-mcp"},
		{resp, `{"model":"m","tools":[{"type":"image_generation"}]}`, "model-image-generation"},
		{resp, `{"model":"m","tools":[{"type":"namespace","name":"n","tools":[{"type":"mcp"}]}]}`, "model-mcp"},
		{resp, `{"model":"m","input":[{"type":"item_reference","id":"i"}]}`, "model-stored"},
		{resp, `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"https://x"}]}]}`, "model-remote-files"},
		{resp, `{"model":"m","input":[{"role":"user","content":[{"type":"input_file","file_url":"https://x"}]}]}`, "model-remote-files"},
		{resp, `{"model":"m","input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]}`, "model-file-store"},
		{resp, `{"model":"m","input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"http://x"}]}]}`, "model-remote-files"},
		{resp, `{"model":"m","input":[{"id":"rs_1"}]}`, "model-stored"},
		{resp, `{"model":"m","input":[{"id":"rs_1","type":null,"role":"user","content":null}]}`, "model-stored"},
		{resp, `{"model":"m","input":[{"role":"user","content":[{"type":"input_file","file_data":"https://x"}]}]}`, "model-remote-files"},
		{resp, `{"model":"m","input":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"https://x","format":"mp3"}}]}]}`, "model-remote-files"},
		{resp, `{"model":"o3-deep-research"}`, "model-web-search"},
		{chat, `{"model":"any/thing:online"}`, "model-web-search"},
		{chat, `{"model":"GPT-4o-Search-Preview-2025-03-11"}`, "model-web-search"},
		{chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"https://x","format":"mp3"}}]}]}`, "model-remote-files"},
		{chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"url":"https://x"}}]}]}`, "model-unknown-field"},
		{chat, `{"model":"m","chat_template_kwargs":{"chat_template":"{% for x in range(9999999) %}{% endfor %}"}}`, "model-unknown-field"},
		{chat, `{"model":"m","store":true}`, "model-stored"},
		{chat, `{"model":"m","web_search_options":{}}`, "model-web-search"},
		{chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x"}}]}]}`, "model-remote-files"},
		{chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":"https://x"}]}]}`, "model-remote-files"},
		{chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]}`, "model-file-store"},
		{chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"video_url"}]}]}`, "model-unknown-part"},
		{gem, `{"tools":[{"googleSearch":{}}]}`, "model-web-search"},
		{gem, `{"tools":[{"google_search":{}}]}`, "model-web-search"},
		{gem, `{"tools":{"urlContext":{}}}`, "model-web-fetch"},
		{gem, `{"tools":[{"codeExecution":{}}]}`, "model-code-execution"},
		{gem, `{"cachedContent":"cachedContents/x"}`, "model-stored"},
		{gem, `{"contents":[{"parts":[{"fileData":{"fileUri":"https://x"}}]}]}`, "model-remote-files"},
		{gem, `{"contents":{"parts":{"file_data":{"file_uri":"https://x"}}}}`, "model-remote-files"},
		{gem, `{"generation_config":{"maxOutputTokens":1}}`, "model-unknown-field"},
		{"/model/anthropic/v1/files", `{}`, "model-path"},
		{"/model/anthropic/v1/messages/batches", `{}`, "model-path"},
		{"/model/anthropic/v1/messages/", `{}`, "model-path"},
		{"/model/anthropic//v1/messages", `{}`, "model-path"},
		{"/model/anthropic/v1/%6dessages", `{}`, "model-path"},
		{"/model/anthropic/v1/x/../messages", `{}`, "model-path"},
		{"/model/gemini/v1beta/models/..%2f..%2fx:generateContent", `{}`, "model-path"},
		{"/model/gemini/v1beta/models/a/b:generateContent", `{}`, "model-path"},
		{"/model/gemini/v1beta/cachedContents", `{}`, "model-path"},
		{messages + "?beta=true&x=y", `{"model":"m"}`, "model-query"},
		{"/model/nobody/v1/messages", `{"model":"m"}`, "model-no-route"},
	}
	for i, tt := range tests {
		res, got := post(t, g, tt.path, tt.body)
		var answer struct {
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal([]byte(got), &answer); err != nil || res.StatusCode != 403 || !strings.Contains(got, tt.rule) {
			t.Errorf("%s %s: answer %d %s, want rule %s", tt.path, tt.body, res.StatusCode, got, tt.rule)
		}
		recs := a.records(t)
		if len(recs) != i+1 || recs[i].Rule != tt.rule || recs[i].Verdict != Denied {
			t.Fatalf("%s %s: audit is %+v", tt.path, tt.body, recs[i:])
		}
	}
	for _, body := range []string{
		``, `{`, `[]`, `{"model":"m"`, `{"model":"m"}x`, `{"model":"m"}{}`, `{"model":"a","model":"b"}`, `{"tools":[],"tools":[{"type":"mcp"}],"model":"m"}`,
		"{\"model\":\"\xff\"}", `{"model":7}`, `{"model":""}`, `{"model":"a b"}`, `{"model":null}`, `{}`, `{"model":"m","max_tokens":1e3}`, `{"model":"m","max_tokens":-1}`,
		`{"model":"m","messages":7}`, `{"model":"m","messages":[[]]}`, `{"model":"m","tools":"x"}`, strings.Repeat(`[`, 100_000),
	} {
		if res, got := post(t, g, messages, body); res.StatusCode != 400 || !strings.Contains(got, "invalid_request_error") {
			t.Errorf("body %.50q: answer %d %s", body, res.StatusCode, got)
		}
	}
	if n := len(p.asked()); n != 0 {
		t.Errorf("%d requests got to the provider: %+v", n, p.asked())
	}
}

// TestModelAllow lets the same pass by name.
func TestModelAllow(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{}`))
	an, oa := modelRoute(policy.Anthropic), modelRoute(policy.OpenAI)
	an.Allow = []string{"web-search", "field:speed", "tool:tomorrows_tool", "part:audio"}
	oa.Allow = []string{"stored", "remote-files"}
	oa.Names = []string{"m", "*", "gpt-search-preview"}
	g, _ := openModels(t, p, defaultLimits, an, oa)
	for path, bodies := range map[string][]string{
		"/model/anthropic/v1/messages": {
			`{"model":"m","tools":[{"type":"web_search_20250305","name":"web_search","max_uses":3}]}`, `{"model":"m","speed":{"a":[1]}}`,
			`{"model":"m","tools":[{"type":"tomorrows_tool"}]}`, `{"model":"m","messages":[{"role":"user","content":[{"type":"audio"}]}]}`,
		},
		"/model/openai/v1/chat/completions": {
			`{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}]}],"chat_template_kwargs":{"enable_thinking":false}}`,
		},
		"/model/openai/v1/responses": {
			`{"model":"m","store":true,"input":[{"id":"rs_1"}]}`, `{"model":"gpt-search-preview","store":true}`,
			`{"model":"m","store":true,"previous_response_id":"r"}`, `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"https://x"}]}]}`,
		},
	} {
		for _, body := range bodies {
			if res, got := post(t, g, path, body); res.StatusCode != 200 || p.last(t).body != body {
				t.Errorf("%s: answer %d %s; sent %s", body, res.StatusCode, got, p.last(t).body)
			}
		}
	}
}

// TestModelEdits covers what the gateway changes in a body: nothing else is
// touched, and it stays JSON with each name once.
func TestModelEdits(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{}`))
	forced := modelRoute(policy.OpenAI)
	forced.Route, forced.Force = "forced", "gpt-small"
	limited := func(p policy.Provider) policy.Model {
		m := modelRoute(p)
		m.Route, m.Tokens, m.MaxOutput = "limited-"+string(p), 1<<40, 123
		return m
	}
	g, _ := openModels(t, p, defaultLimits, modelRoute(policy.OpenAI), forced, limited(policy.OpenAI), limited(policy.Anthropic), limited(policy.Gemini))
	for _, tt := range []struct{ path, body, want string }{
		{"openai/v1/responses", `{"model":"m"}`, `{"store":false,"model":"m"}`},
		{"openai/v1/responses", `{"model":"m","store":null}`, `{"model":"m","store":false}`},
		{"openai/v1/responses", ` { "store" : false , "model" : "m" } `, ` { "store" : false , "model" : "m" } `},
		{"openai/v1/chat/completions", `{"model":"m","stream":true}`, `{"stream_options":{"include_usage":true},"model":"m","stream":true}`},
		{"openai/v1/chat/completions", `{"model":"m","stream":true,"stream_options":null}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`},
		{"openai/v1/chat/completions", `{"model":"m","stream":true,"stream_options":{}}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`},
		{"openai/v1/chat/completions", `{"stream_options":{"include_usage":false},"model":"m","stream":true}`, `{"stream_options":{"include_usage":true},"model":"m","stream":true}`},
		{"openai/v1/chat/completions", `{"model":"m","stream":false}`, `{"model":"m","stream":false}`},
		{"forced/v1/chat/completions", `{"messages":[],"model":"gpt-large"}`, `{"messages":[],"model":"gpt-small"}`},
		{"limited-openai/v1/responses", `{"model":"m"}`, `{"max_output_tokens":123,"store":false,"model":"m"}`},
		{"limited-openai/v1/responses", `{"max_output_tokens":null,"model":"m","store":false}`, `{"max_output_tokens":123,"model":"m","store":false}`},
		{"limited-openai/v1/chat/completions", `{"model":"m","max_completion_tokens":7}`, `{"model":"m","max_completion_tokens":7}`},
		{"limited-anthropic/v1/messages", `{"model":"m"}`, `{"max_tokens":123,"model":"m"}`},
		{"limited-anthropic/v1/messages", `{"model":"m","max_tokens":0}`, `{"model":"m","max_tokens":123}`},
		{"limited-gemini/v1beta/models/g:generateContent", `{}`, `{"generationConfig":{"maxOutputTokens":123}}`},
		{"limited-gemini/v1beta/models/g:generateContent", `{"generationConfig":{}}`, `{"generationConfig":{"maxOutputTokens":123}}`},
		{"limited-gemini/v1beta/models/g:generateContent", `{"generationConfig":{"topP":1}}`, `{"generationConfig":{"maxOutputTokens":123,"topP":1}}`},
		{"limited-gemini/v1beta/models/g:generateContent", `{"generationConfig":{"maxOutputTokens":5}}`, `{"generationConfig":{"maxOutputTokens":5}}`},
	} {
		res, got := post(t, g, "/model/"+tt.path, tt.body)
		if sent := p.last(t).body; res.StatusCode != 200 || sent != tt.want {
			t.Errorf("%s %s: sent %s, want %s; answer %d %s", tt.path, tt.body, sent, tt.want, res.StatusCode, got)
		}
	}
}

func TestModelNames(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{}`))
	m, ge := modelRoute(policy.Anthropic), modelRoute(policy.Gemini)
	m.Names = []string{"claude-*-small", "exact"}
	ge.Force = "gemini-small"
	g, a := openModels(t, p, defaultLimits, m, ge)
	for name, want := range map[string]int{"claude-9-small": 200, "exact": 200, "claude-9-large": 403, "exact2": 403, "claude-small": 403} {
		if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"`+name+`"}`); res.StatusCode != want {
			t.Errorf("%s: %d %s", name, res.StatusCode, got)
		}
	}
	if recs := a.records(t); !slices.ContainsFunc(recs, func(r Record) bool { return r.Rule == "model-name" }) {
		t.Errorf("audit is %+v", recs)
	}
	post(t, g, "/model/gemini/v1beta/models/gemini-large:generateContent", `{}`)
	if uri := p.last(t).uri; uri != "/v1beta/models/gemini-small:generateContent" {
		t.Errorf("forced: the provider was asked for %s", uri)
	}
}

// FuzzModelBody has any bytes checked: nothing that is accepted leads to a body
// that is no JSON, and what JSON readers may take in two ways is refused.
func FuzzModelBody(f *testing.F) {
	for _, w := range wires {
		f.Add([]byte(fmt.Sprintf(w.body, `"stream":true,`)))
	}
	f.Add([]byte(`{"model":"m","stream_options":{"include_usage":false}}`))
	shapes := []*shape{anthropicBody, responsesBody, chatBody, geminiBody}
	formats := []*format{anthropicFormat, responsesFormat, chatFormat, geminiFormat}
	rt := &route{Model: policy.Model{Provider: policy.OpenAI, Force: "forced", Budget: policy.Budget{Tokens: 1}}.Filled()}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for i, sh := range shapes {
			b, err := checkBody(raw, sh, nil)
			if err != nil {
				continue
			}
			c := &call{route: rt, format: formats[i], body: b, op: operation{spends: true}}
			if err := c.settings("m"); err != nil {
				continue
			}
			out := bytes.Join(b.parts(), nil)
			if !json.Valid(out) {
				t.Errorf("%q became %q", raw, out)
			}
			again, err := checkBody(out, sh, nil)
			if err != nil {
				t.Errorf("%q became %q: %v", raw, out, err)
				continue
			}
			if again.maxOutput != b.maxOutput || again.maxOutput == 0 {
				t.Errorf("%q became %q, of up to %d tokens, not %d", raw, out, again.maxOutput, b.maxOutput)
			}
		}
	})
}
