package egress

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/kickhq/kick/policy"
)

// TestAttackModelPaths asks for more than an operation by its path and query.
func TestAttackModelPaths(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{"data":[]}`))
	g, _ := openModels(t, p, defaultLimits, modelRoute(policy.Anthropic), modelRoute(policy.OpenAI), modelRoute(policy.Gemini))
	const body = `{"model":"m","max_tokens":1,"messages":[]}`
	for _, target := range []string{
		"POST /model/anthropic/v1/messages/", "POST /model/anthropic//v1/messages", "POST /model/anthropic/v1/messages/batches", "POST /model/anthropic/v1/./messages",
		"POST /model/anthropic/../openai/v1/responses", "POST /model/anthropic/v1/%6dessages", "POST /model/Anthropic/v1/messages", "POST /model/anthropic/v1/complete",
		"POST /model/anthropic/v1/messages?beta=true&beta=true", "POST /model/anthropic/v1/messages?beta=true&x=1", "POST /model/anthropic/v1/messages?beta=true;x=1",
		"POST /model/anthropic/v1/messages?beta=false", "POST /model/anthropic/v1/messages?Beta=true", "POST /model/anthropic/v1/messages?beta=true%26x=1",
		"PUT /model/anthropic/v1/messages", "post /model/anthropic/v1/messages", "POST /model/openai/v1/files", "POST /model/openai/v1/responses/resp_1/cancel",
		"POST /model/openai/v1/models", "DELETE /model/openai/v1/models/m", "POST /model/openai/v1/fine_tuning/jobs", "POST /model/openai/v1/embeddings",
		"POST /model/gemini/v1beta/models/m:generateContent?alt=sse&key=x&$fields=a", "POST /model/gemini/v1beta/models/m:batchGenerateContent", "POST /model/gemini/v1beta/models/a/b:generateContent",
		"POST /model/gemini/v1beta/models/%2e%2e:generateContent", "POST /model/gemini/v1beta/models/m%3AgenerateContent", "POST /model/gemini/v1beta/models/m:predict:generateContent",
		"POST /model/gemini/v1beta/cachedContents", "POST /model/gemini/upload/v1beta/files", "POST /model/gemini/v1beta/tunedModels/m:generateContent", "POST /model/gemini/v1/models/m:generateContent",
	} {
		method, path, _ := strings.Cut(target, " ")
		got := exchange(t, g, method+" "+path+" HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\nConnection: close\r\n\r\n"+body)
		if !strings.HasPrefix(got, "HTTP/1.1 4") {
			t.Errorf("%s: %.200q", target, got)
		}
	}
	if n := len(p.asked()); n != 0 {
		t.Errorf("the provider was asked %d times: %+v", n, p.asked())
	}
}

// TestAttackModelHeaders sends headers by which an agent could choose another
// key, account, project or feature, or carry something out.
func TestAttackModelHeaders(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{}`))
	g, _ := openModels(t, p, defaultLimits, modelRoute(policy.Anthropic), modelRoute(policy.OpenAI), modelRoute(policy.Gemini))
	c := agentClient(t, g)
	sent := map[string]string{
		"Authorization": "Bearer stolen", "X-Api-Key": "stolen", "X-Goog-Api-Key": "stolen", "Api-Key": "stolen", "Cookie": "stolen=1", "Proxy-Authorization": "Basic stolen",
		"Openai-Organization": "stolen", "Openai-Project": "stolen", "Openai-Beta": "assistants=v2", "X-Goog-User-Project": "stolen", "Anthropic-Workspace-Id": "stolen",
		"Idempotency-Key": "stolen", "X-Stainless-Retry-Count": "stolen", "X-Forwarded-For": "1.2.3.4", "Forwarded": "for=1.2.3.4", "Via": "1.1 stolen", "Referer": "stolen", "Origin": "stolen",
		"Traceparent": "00-stolen", "Baggage": "stolen=1", "Content-Language": "stolen", "Content-Md5": "stolen", "Range": "bytes=0-1", "If-None-Match": "stolen", "Accept-Encoding": "gzip", "Te": "trailers",
		"User-Agent": strings.Repeat("stolen", 100), "Anthropic-Version": strings.Repeat("stolen", 100),
		"Anthropic-Beta": "mcp-client-2025-04-04, MCP-Client-2025-04-04,files-api-2025-04-14,\tCode-Execution-2025-08-25, context-1m-2025-08-07,CONTEXT-1M-2025-08-07,context-2m-2026-01-01, " + strings.Repeat("x", 65) + ",interleaved-thinking-2025-05-14",
	}
	allowed := map[string]bool{"Accept": true, "Accept-Encoding": true, "Content-Length": true, "Content-Type": true, "User-Agent": true, "Anthropic-Beta": true, "X-Api-Key": true, "X-Goog-Api-Key": true, "Authorization": true}
	for _, path := range []string{"/model/anthropic/v1/messages", "/model/openai/v1/chat/completions", "/model/gemini/v1beta/models/m:generateContent"} {
		req, err := http.NewRequest("POST", "http://gateway"+path, strings.NewReader(map[bool]string{true: `{}`, false: `{"model":"m"}`}[strings.Contains(path, "gemini")]))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "text/x-stolen")
		for k, v := range sent {
			req.Header.Set(k, v)
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Fatalf("%s: %d %s", path, res.StatusCode, got)
		}
		for name, values := range p.last(t).header {
			text := strings.Join(values, ",")
			if !allowed[name] || strings.Contains(text, "stolen") || name == "Accept-Encoding" && text != "identity" || name == "Anthropic-Beta" && text != "interleaved-thinking-2025-05-14" {
				t.Errorf("%s: the provider got %s: %q", path, name, text)
			}
		}
	}
}

// TestAttackModelBudgets asks for an answer that costs more than it seems to.
func TestAttackModelBudgets(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{}`))
	m := modelRoute(policy.OpenAI)
	m.Tokens = 20_000
	gm := modelRoute(policy.Gemini)
	gm.Tokens = 20_000
	an := modelRoute(policy.Anthropic)
	an.Tokens = 20_000
	g, _ := openModels(t, p, defaultLimits, m, gm, an)
	for name, c := range map[string][2]string{
		"many answers":                    {"/model/openai/v1/chat/completions", `{"model":"m","max_tokens":1000,"n":100,"messages":[]}`},
		"the larger of two":               {"/model/openai/v1/chat/completions", `{"model":"m","max_tokens":1,"max_completion_tokens":100000,"messages":[]}`},
		"the larger first":                {"/model/openai/v1/chat/completions", `{"model":"m","max_completion_tokens":100000,"max_tokens":1,"messages":[]}`},
		"no bound":                        {"/model/openai/v1/responses", `{"model":"m","input":"x"}`},
		"no bound, said":                  {"/model/openai/v1/responses", `{"model":"m","input":"x","max_output_tokens":null}`},
		"a bound as text":                 {"/model/openai/v1/responses", `{"model":"m","input":"x","max_output_tokens":"1"}`},
		"a bound with an exponent":        {"/model/openai/v1/responses", `{"model":"m","input":"x","max_output_tokens":1e6}`},
		"a bound of nothing":              {"/model/anthropic/v1/messages", `{"model":"m","max_tokens":0,"messages":[]}`},
		"candidates":                      {"/model/gemini/v1beta/models/m:generateContent", `{"generationConfig":{"maxOutputTokens":1000,"candidateCount":100}}`},
		"a bound in the other spelling":   {"/model/gemini/v1beta/models/m:generateContent", `{"generation_config":{"max_output_tokens":1}}`},
		"a document":                      {"/model/anthropic/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AA=="}}]}]}`},
		"a document that says it is less": {"/model/gemini/v1beta/models/m:generateContent", `{"contents":[{"parts":[{"inlineData":{"mimeType":"IMAGE/png","data":"AA=="}}]}],"generationConfig":{"maxOutputTokens":1}}`},
		"a dearer tier":                   {"/model/openai/v1/responses", `{"model":"m","input":"x","max_output_tokens":1,"service_tier":"priority"}`},
		"the provider's own shortening":   {"/model/anthropic/v1/messages", `{"model":"m","max_tokens":9500,"messages":[],"context_management":{"edits":[{"type":"c\u006fmpact_20260112"}]}}`},
	} {
		res, got := post(t, g, c[0], c[1])
		if res.StatusCode/100 != 4 {
			t.Errorf("%s: %d %s", name, res.StatusCode, got)
		}
	}
	if n := len(p.asked()); n != 0 {
		t.Errorf("the provider was asked %d times: %+v", n, p.asked())
	}
}
