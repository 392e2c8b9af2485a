package egress

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
)

const testKey = "sk-test-0123456789abcdef"

// provider is a real TLS server that stands for a model provider. It keeps what
// it was asked, and answers with what the test says.
type provider struct {
	*httptest.Server
	answer func(w http.ResponseWriter, r *http.Request, body []byte)

	mu   sync.Mutex
	seen []asked
}

type asked struct {
	method, uri string
	header      http.Header
	body        string
}

func newProvider(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, body []byte)) *provider {
	t.Helper()
	p := &provider{answer: answer}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.seen = append(p.seen, asked{r.Method, r.RequestURI, r.Header.Clone(), string(body)})
		p.mu.Unlock()
		p.answer(w, r, body)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) asked() []asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

// last returns what was asked last, and fails if nothing was.
func (p *provider) last(t *testing.T) asked {
	t.Helper()
	all := p.asked()
	if len(all) == 0 {
		t.Fatal("the provider was not asked")
	}
	return all[len(all)-1]
}

// says answers with an event stream or with JSON.
func says(media, body string) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Content-Type", media)
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Openai-Organization", "the-operator")
		w.Header().Set("Request-Id", "req_1")
		_, _ = io.WriteString(w, body)
	}
}

// openModels opens a gateway whose routes lead to p, whatever their endpoint.
func openModels(t testing.TB, p *provider, lim limits, models ...policy.Model) (*Gateway, *audit) {
	t.Helper()
	return openConfig(t, lim, p.config(t, models...))
}

func (p *provider) config(t testing.TB, models ...policy.Model) Config {
	return Config{
		Kick: "k0000000000001", Agent: "fixer", Policy: policy.Egress{Models: models}, Ledgers: filepath.Join(t.TempDir(), "budgets"),
		Roots:     p.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs,
		LookupEnv: func(name string) (string, bool) { return testKey, name == "TEST_KEY" },
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != "example.com" {
				return nil, fmt.Errorf("asked for %s", host)
			}
			return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != "93.184.215.14:443" {
				return nil, fmt.Errorf("dialled %s", address)
			}
			return (&net.Dialer{}).DialContext(ctx, network, p.Listener.Addr().String())
		},
	}
}

func agentClient(t testing.TB, g *Gateway) *http.Client {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", g.Socket())
		},
		DisableCompression: true, MaxIdleConnsPerHost: 64,
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// post is an agent's call, with its dummy key in every place where agents put
// one.
func post(t testing.TB, g *Gateway, path, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("POST", "http://gateway"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true // a test makes more calls than there may be connections
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer agents-own-key")
	req.Header.Set("X-Api-Key", "agents-own-key")
	req.Header.Set("X-Goog-Api-Key", "agents-own-key")
	req.Header.Set("Cookie", "session=agents-own-key")
	req.Header.Set("Openai-Organization", "agents-own-key")
	req.Header.Set("Anthropic-Version", "2023-06-01")
	res, err := agentClient(t, g).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("after %q: %v", got, err)
	}
	return res, string(got)
}

func modelRoute(p policy.Provider) policy.Model {
	m := policy.Model{Provider: p, Endpoint: "https://example.com", KeyEnv: "TEST_KEY"}
	if p == policy.OpenAI || p == policy.OpenAICompatible {
		m.Endpoint += "/v1"
	}
	return m
}

// wires are the four formats with what a provider answers in each.
var wires = []struct {
	name         string
	provider     policy.Provider
	path, target string
	body         string
	header, key  string
	stream, json string
	tokens       Usage
}{
	{
		name: "anthropic", provider: policy.Anthropic, path: "/model/anthropic/v1/messages?beta=true", target: "/v1/messages?beta=true",
		body:   `{"model":"claude-x","max_tokens":100,%s"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"Bash","input":{"url":"x","tools":[{"type":"web_search_20250305"}]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"ok"}]}]}],"tools":[{"name":"Bash","description":"d","input_schema":{"type":"object","properties":{"url":{"type":"string"}}}}],"metadata":{"user_id":"u"}}`,
		header: "X-Api-Key", key: testKey,
		stream: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"cache_creation_input_tokens\":20,\"cache_read_input_tokens\":30,\"output_tokens\":1}}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"{\\\"usage\\\":{\\\"output_tokens\\\":9}}\"}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		json:   `{"type":"message","content":[{"type":"tool_use","input":{"usage":{"input_tokens":1,"output_tokens":1}}}],"usage":{"input_tokens":10,"cache_creation_input_tokens":20,"cache_read_input_tokens":30,"output_tokens":5}}`,
		tokens: Usage{Input: 60, Output: 5},
	},
	{
		name: "responses", provider: policy.OpenAI, path: "/model/openai/v1/responses", target: "/v1/responses",
		body:   `{"model":"gpt-x","instructions":"be brief",%s"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"function_call","name":"exec_command","arguments":"{}","call_id":"c"},{"type":"function_call_output","call_id":"c","output":"ok"},{"type":"reasoning","summary":[{"type":"summary_text","text":"x"}],"content":null,"encrypted_content":"e"}],"tools":[{"type":"function","name":"exec_command","strict":false,"parameters":{"type":"object"}},{"type":"custom","name":"apply_patch","format":{"type":"grammar"}}],"tool_choice":"auto","parallel_tool_calls":true,"reasoning":{"effort":"low"},"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","text":{"verbosity":"low"}}`,
		header: "Authorization", key: "Bearer " + testKey,
		stream: "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"usage\"}\n\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":60,\"output_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":30}}}}\n\n",
		json:   `{"object":"response","usage":{"input_tokens":60,"output_tokens":5,"input_tokens_details":null}}`,
		tokens: Usage{Input: 60, Output: 5},
	},
	{
		name: "chat", provider: policy.OpenAICompatible, path: "/model/openai-compatible/v1/chat/completions", target: "/v1/chat/completions",
		body:   `{"model":"m","max_tokens":100,%s"messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"bash","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"ok"}],"tools":[{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}}]}`,
		header: "Authorization", key: "Bearer " + testKey,
		stream: "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":60,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n",
		json:   `{"choices":[],"usage":{"prompt_tokens":60,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}`,
		tokens: Usage{Input: 60, Output: 5},
	},
	{
		name: "gemini", provider: policy.Gemini, path: "/model/gemini/v1beta/models/gemini-x:streamGenerateContent?alt=sse&key=agents-own-key", target: "/v1beta/models/gemini-x:streamGenerateContent?alt=sse",
		body:   `{%s"contents":[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{"fileData":1}},"thoughtSignature":"s"}]},{"role":"user","parts":[{"functionResponse":{"id":"1","name":"f","response":{"output":"x"}}}]}],"systemInstruction":{"role":"user","parts":[{"text":"be brief"}]},"tools":[{"functionDeclarations":[{"name":"f","parametersJsonSchema":{}}]}],"generationConfig":{"temperature":0,"topP":0.95,"thinkingConfig":{"includeThoughts":true}}}`,
		header: "X-Goog-Api-Key", key: testKey,
		stream: "data: {\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{\"args\":{\"usageMetadata\":{\"promptTokenCount\":999}}}}]}}],\"usageMetadata\":{\"promptTokenCount\":60,\"candidatesTokenCount\":1}}\r\n\r\ndata: {\"usageMetadata\":{\"promptTokenCount\":60,\"candidatesTokenCount\":2,\"thoughtsTokenCount\":3}}\r\n\r\n",
		json:   `{"usageMetadata":{"promptTokenCount":50,"toolUsePromptTokenCount":10,"candidatesTokenCount":5}}`,
		tokens: Usage{Input: 60, Output: 5},
	},
}

// TestModelWires makes a call in each wire format, as a stream and not: the
// provider sees the operator's key alone, the agent gets the answer byte for
// byte and nothing that tells of the operator, and the tokens are counted.
func TestModelWires(t *testing.T) {
	t.Parallel()
	for _, w := range wires {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stream %v", w.name, stream), func(t *testing.T) {
				t.Parallel()
				media, answer, more := "application/json", w.json, ""
				if stream {
					media, answer = "text/event-stream; charset=utf-8", w.stream
					if w.provider != policy.Gemini {
						more = `"stream":true,`
					}
				}
				p := newProvider(t, says(media, answer))
				g, a := openModels(t, p, defaultLimits, modelRoute(w.provider))
				res, got := post(t, g, w.path, fmt.Sprintf(w.body, more))
				if res.StatusCode != 200 || got != answer || res.Header.Get("Content-Type") != media || res.Header.Get("Request-Id") != "req_1" {
					t.Fatalf("answer %d %v %q", res.StatusCode, res.Header, got)
				}
				for _, name := range []string{"Set-Cookie", "Openai-Organization"} {
					if res.Header.Get(name) != "" {
						t.Errorf("the agent gets %s", name)
					}
				}
				seen := p.last(t)
				if seen.uri != w.target || seen.header.Get(w.header) != w.key {
					t.Errorf("the provider was asked for %s with %v", seen.uri, seen.header)
				}
				if all := fmt.Sprint(seen); strings.Contains(all, "agents-own-key") {
					t.Errorf("the agent's own key went out: %s", all)
				}
				if seen.header.Get("Accept-Encoding") != "identity" || seen.header.Get("Cookie") != "" {
					t.Errorf("headers are %v", seen.header)
				}
				recs := a.records(t)
				if len(recs) != 2 || recs[0].Event != Decided || recs[0].Rule != "model-route:"+string(w.provider) || recs[1].Event != Done || recs[1].End == nil {
					t.Fatalf("audit is %+v", recs)
				}
				end := recs[1].End
				if end.Status != 200 || end.Got != int64(len(answer)) || end.Usage == nil || *end.Usage != w.tokens || end.Error != "" {
					t.Errorf("end is %+v, %+v", end, end.Usage)
				}
				if s := g.Summary(); s.Tokens != 65 || s.Allowed != 1 || s.Denied != 0 {
					t.Errorf("summary is %+v", s)
				}
				if k := g.Keys(); !slices.Equal(k, []string{testKey}) {
					t.Errorf("keys are %q", k)
				}
			})
		}
	}
}

// TestModelStreamIsNotHeldBack has the provider send one event and wait until
// the agent has it.
func TestModelStreamIsNotHeldBack(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"n\":1}\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-arrived:
			_, _ = io.WriteString(w, "data: {\"n\":2}\n\n")
		case <-r.Context().Done():
		}
	})
	// The limits of requests are over long before the answer ends.
	lim := defaultLimits
	lim.requestTime, lim.headerTime = time.Second, time.Second
	g, _ := openModels(t, p, lim, modelRoute(policy.Anthropic))
	res, err := agentClient(t, g).Post("http://gateway/model/anthropic/v1/messages", "application/json", strings.NewReader(`{"model":"m","max_tokens":1,"stream":true,"messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	if line, err := r.ReadString('\n'); err != nil || line != "data: {\"n\":1}\n" {
		t.Fatalf("first line %q, %v", line, err)
	}
	waited := time.NewTimer(2 * lim.requestTime) // what is tested is that a limit's passing does no harm
	defer waited.Stop()
	<-waited.C
	close(arrived)
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "\ndata: {\"n\":2}\n\n" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}

// TestModelAnswers covers what the gateway does not pass on.
func TestModelAnswers(t *testing.T) {
	t.Parallel()
	gone := func(status int, h http.Header, body string) func(http.ResponseWriter, *http.Request, []byte) {
		return func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			for k, v := range h {
				w.Header()[k] = v
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, tt := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request, []byte)
		status int
		want   string
	}{
		"redirect":           {gone(307, http.Header{"Location": {"https://elsewhere.example/"}}, ""), 502, "redirect"},
		"compressed":         {gone(200, http.Header{"Content-Encoding": {"gzip"}}, "\x1f\x8b"), 502, "compressed"},
		"wrong key":          {gone(401, nil, `{"error":"Incorrect API key provided: sk-test-0123****cdef"}`), 401, "refused the operator's key"},
		"key in a 403":       {gone(403, nil, `{"error":"no: `+testKey+`"}`), 401, "refused the operator's key"},
		"another 403":        {gone(403, nil, `{"error":"not in your country"}`), 403, "not in your country"},
		"overloaded":         {gone(529, http.Header{"Retry-After": {"7"}}, `{"type":"error"}`), 529, `{"type":"error"}`},
		"the provider's 4xx": {gone(400, nil, `{"error":"prompt is too long"}`), 400, "prompt is too long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, tt.answer)
			g, a := openModels(t, p, defaultLimits, modelRoute(policy.Anthropic))
			res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"m"}`)
			if res.StatusCode != tt.status || !strings.Contains(got, tt.want) {
				t.Errorf("answer %d %s", res.StatusCode, got)
			}
			if strings.Contains(got, "sk-test") || res.Header.Get("Location") != "" {
				t.Errorf("the agent gets %v %s", res.Header, got)
			}
			if n := len(p.asked()); n != 1 {
				t.Errorf("the provider was asked %d times", n)
			}
			if recs := a.records(t); len(recs) != 2 || recs[1].End.Status != tt.status {
				t.Errorf("audit is %+v", recs)
			}
		})
	}
}

// TestModelAnswerBreaksOff covers answers that must not be taken for whole: the
// agent's client sees an error, not an end.
func TestModelAnswerBreaksOff(t *testing.T) {
	t.Parallel()
	event := func(w http.ResponseWriter, s string) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, s)
		_ = http.NewResponseController(w).Flush()
	}
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request, _ []byte)
		want   string
	}{
		"the provider hangs up": {func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			event(w, "data: {}\n\n")
			panic(http.ErrAbortHandler)
		}, "broke off"},
		"silence": {func(w http.ResponseWriter, r *http.Request, _ []byte) {
			event(w, "data: {}\n\n")
			<-r.Context().Done()
		}, "broke off"},
		"no end": {func(w http.ResponseWriter, r *http.Request, _ []byte) {
			for r.Context().Err() == nil {
				event(w, strings.Repeat("x", 4096))
			}
		}, "larger than"},
		"the key, in two parts": {func(w http.ResponseWriter, r *http.Request, _ []byte) {
			event(w, "data: "+testKey[:9])
			event(w, testKey[9:]+"\n\n")
			<-r.Context().Done()
		}, "operator's key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, tt.answer)
			lim := defaultLimits
			lim.silence, lim.answerBytes = 500*time.Millisecond, 1<<20
			g, a := openModels(t, p, lim, modelRoute(policy.Anthropic))
			res, err := agentClient(t, g).Post("http://gateway/model/anthropic/v1/messages", "application/json", strings.NewReader(`{"model":"m","stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			got, err := io.ReadAll(res.Body)
			if err == nil || bytes.Contains(got, []byte(testKey)) {
				t.Errorf("the agent takes %.100q for the whole answer", got)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if recs := a.records(t); len(recs) != 2 || !strings.Contains(recs[1].End.Error, tt.want) || !recs[1].End.Usage.Reserved {
				t.Errorf("audit is %+v", recs)
			}
		})
	}
}

// TestModelAddresses covers where an endpoint's name may lead.
func TestModelAddresses(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{}`))
	for _, tt := range []struct {
		address, accepted string
		want              int
	}{
		{"10.1.2.3", "", 502}, {"10.1.2.3", "10.1.0.0/16", 200}, {"10.2.2.3", "10.1.0.0/16", 502}, {"169.254.169.254", "", 502}, {"127.0.0.1", "", 502},
	} {
		m := modelRoute(policy.Anthropic)
		if tt.accepted != "" {
			m.Addresses = []netip.Prefix{netip.MustParsePrefix(tt.accepted)}
		}
		cfg := p.config(t, m)
		cfg.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(tt.address)}, nil
		}
		cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != tt.address+":443" {
				t.Errorf("dialled %s", address)
			}
			return (&net.Dialer{}).DialContext(ctx, network, p.Listener.Addr().String())
		}
		g, _ := openConfig(t, defaultLimits, cfg)
		if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"m"}`); res.StatusCode != tt.want {
			t.Errorf("%+v: %d %s", tt, res.StatusCode, got)
		}
	}
	// A plain server, which the endpoint names by its loopback address.
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("X-Api-Key")[:2]) }))
	defer plain.Close()
	m := modelRoute(policy.Anthropic)
	m.Endpoint = plain.URL
	cfg := p.config(t, m)
	cfg.Dial, cfg.Resolve = nil, nil
	g, _ := openConfig(t, defaultLimits, cfg)
	if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"m"}`); res.StatusCode != 200 || got != "sk" {
		t.Errorf("plain: %d %s", res.StatusCode, got)
	}
}

// TestModelProbes covers what clients ask beside calls.
func TestModelProbes(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{"data":[]}`))
	g, _ := openModels(t, p, defaultLimits, modelRoute(policy.Anthropic), modelRoute(policy.OpenAI))
	c := agentClient(t, g)
	for _, path := range []string{"/model/anthropic", "/model/anthropic/"} {
		res, err := c.Head("http://gateway" + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 || len(p.asked()) != 0 {
			t.Errorf("HEAD %s: %d, asked %v", path, res.StatusCode, p.asked())
		}
	}
	res, err := c.Get("http://gateway/model/openai/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 200 || p.last(t).uri != "/v1/models" {
		t.Errorf("models: %d, %v", res.StatusCode, p.last(t))
	}
	if res, got := post(t, g, "/model/anthropic/v1/messages/count_tokens", `{"model":"m","messages":[]}`); res.StatusCode != 200 {
		t.Errorf("count_tokens: %d %s", res.StatusCode, got)
	}
}

// FuzzModelUsage has any answer counted, in any parts.
func FuzzModelUsage(f *testing.F) {
	for _, w := range wires {
		f.Add([]byte(w.stream), 7)
		f.Add([]byte(w.json), 1)
	}
	f.Fuzz(func(t *testing.T, raw []byte, part int) {
		if part < 1 {
			part = 1
		}
		for _, format := range []*format{anthropicFormat, responsesFormat, chatFormat, geminiFormat} {
			for _, sse := range []bool{true, false} {
				whole, parts := &meter{format: format, sse: sse}, &meter{format: format, sse: sse}
				whole.see(raw)
				whole.end()
				for rest := raw; len(rest) > 0; rest = rest[min(part, len(rest)):] {
					parts.see(rest[:min(part, len(rest))])
				}
				parts.end()
				if whole.seen != parts.seen || whole.final != parts.final || !whole.seen.valid() && whole.seen.cacheRead+whole.seen.cacheWrite <= whole.seen.input {
					t.Errorf("%q: whole %+v, in parts of %d %+v", raw, whole.seen, part, parts.seen)
				}
			}
		}
	})
}
