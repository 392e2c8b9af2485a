package egress

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
)

func TestModelList(t *testing.T) {
	t.Parallel()
	const openAI = `{"object":"list","data":[{"id":"good-1","owned_by":"the-operator","permission":[{"organization":"x"}],"created":7},{"id":"bad-1"},{"id":"good-search-preview"},{"id":"good:online"},{"id":"go\u006fd-2"},{"nonsense":1},{"id":"good 3"}],"has_more":true,"first_id":"bad-1"}`
	const gemini = `{"models":[{"name":"models/good-1","version":"1"},{"name":"models/bad-1"}],"nextPageToken":"x"}`
	for name, c := range map[string]struct {
		provider policy.Provider
		path     string
		change   func(m *policy.Model)
		answer   string
		want     string
	}{
		"OpenAI":           {policy.OpenAI, "/v1/models", nil, openAI, `{"object":"list","data":[{"created":7,"id":"good-1"},{"id":"go\u006fd-2"}]}`},
		"Anthropic":        {policy.Anthropic, "/v1/models", nil, `{"data":[{"id":"bad-1"}],"has_more":false}`, `{"data":[]}`},
		"Gemini":           {policy.Gemini, "/v1beta/models", nil, gemini, `{"models":[{"name":"models/good-1","version":"1"}]}`},
		"a forced one":     {policy.OpenAICompatible, "/v1/models", func(m *policy.Model) { m.Names, m.Force = nil, "bad-1" }, openAI, `{"object":"list","data":[{"id":"bad-1"}]}`},
		"that may search":  {policy.OpenAI, "/v1/models", func(m *policy.Model) { m.Names = []string{"good-search-preview"} }, openAI, `{"object":"list","data":[{"id":"good-search-preview"}]}`},
		"a name twice":     {policy.OpenAI, "/v1/models", nil, `{"data":[{"id":"good-1","id":"bad-1"}],"data":[{"id":"bad-2"}]}`, `{"data":[]}`},
		"no list":          {policy.OpenAI, "/v1/models", nil, `<html>`, "did not answer with a list"},
		"an endless list":  {policy.OpenAI, "/v1/models", nil, `{"data":[` + strings.Repeat(" ", maxList), "did not answer with a list"},
		"the key in it":    {policy.OpenAI, "/v1/models", nil, `{"data":[{"id":"good-1","note":"` + testKey + `"}]}`, "not fit to be passed on"},
		"the key elsewere": {policy.OpenAI, "/v1/models", nil, `{"data":[{"id":"good-1"}],"note":"` + testKey + `"}`, `{"data":[{"id":"good-1"}]}`},
	} {
		p := newProvider(t, says("application/json", c.answer))
		m := modelRoute(c.provider)
		m.Names = []string{"good*"}
		if c.change != nil {
			c.change(&m)
		}
		g, a := openModels(t, p, defaultLimits, m)
		code, got := get(t, agentClient(t, g), "http://gateway/model/"+string(c.provider)+c.path)
		if ok := strings.HasPrefix(c.want, "{"); ok && (code != 200 || got != c.want) || !ok && (code != 502 || !strings.Contains(got, c.want) || strings.Contains(got, testKey)) {
			t.Errorf("%s: %d %s, want %s", name, code, got, c.want)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if r := a.records(t); len(r) != 2 || r[1].End.Got == 0 || r[1].End.Status != code {
			t.Errorf("%s: audit %+v", name, r)
		}
	}
}

// TestAttackListsThatWait asks for more lists at once than may be in memory: one more
// is told to wait, and the others come.
func TestAttackListsThatWait(t *testing.T) {
	t.Parallel()
	p, read := &provider{}, make(chan bool)
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		<-read
		_, _ = w.Write([]byte(`{"data":[{"id":"good-1"}]}`))
	}))
	t.Cleanup(p.Close)
	goOn := sync.OnceFunc(func() { close(read) })
	defer goOn()
	lim := defaultLimits
	lim.bodyBytes = maxList / 2 // so that two lists are all that is in memory
	g, _ := openModels(t, p, lim, modelRoute(policy.OpenAI))
	codes := make(chan int, 3)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			code, _ := get(t, agentClient(t, g), "http://gateway/model/openai/v1/models")
			codes <- code
		})
	}
	select {
	case code := <-codes:
		if code != http.StatusTooManyRequests {
			t.Errorf("one too many: %d", code)
		}
	case <-time.After(20 * time.Second):
		t.Error("all lists are under way at once")
	}
	goOn()
	all.Wait()
	for range len(codes) {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("one that fits: %d", code)
		}
	}
	if err := g.Close(); err != nil { // it waits for the last one
		t.Error(err)
	}
	if n := g.inMemory.Load(); n != 0 {
		t.Errorf("%d bytes are counted when nothing is under way", n)
	}
}

// TestModelsThatSearch has names of models that search the web, in use or as one
// would be called, and names that only look a little like those.
func TestModelsThatSearch(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"gpt-4o-search-preview": true, "gpt-5-search-api": true, "o3-deep-research-2025-06-26": true, "deep-research-pro-preview": true, "perplexity/sonar-pro": true, "sonar": true,
		"groq/compound-mini": true, "compound-beta": true, "openai/gpt-4o:online": true, "Some-Web-Model": true, "x/agent_browser": true, "gemini-grounded": true,
		"gpt-5.2": false, "claude-opus-4-5": false, "gemini-3-pro": false, "webllama-3": false, "qwen3-coder": false, "compounded-1": false,
	} {
		if got := searches(name); got != want {
			t.Errorf("%s searches: %t, want %t", name, got, want)
		}
	}
}
