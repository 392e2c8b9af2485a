package egress

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
)

// TestAttackBudgetOverrun sends many calls at once, each of which may cost a
// third of the budget, and each of which does cost it: what the provider
// answered is never more than the budget.
func TestAttackBudgetOverrun(t *testing.T) {
	t.Parallel()
	const output, limit = 10_000, 40_000
	p := newProvider(t, says("application/json", fmt.Sprintf(`{"usage":{"input_tokens":3000,"output_tokens":%d}}`, output)))
	m := modelRoute(policy.Anthropic)
	m.Tokens = limit
	g, a := openModels(t, p, defaultLimits, m)
	body := fmt.Sprintf(`{"model":"m","max_tokens":%d,"messages":[{"role":"user","content":"%s"}]}`, output, strings.Repeat("x", 1000))
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[int]int{}
	for range 20 {
		wg.Go(func() {
			res, _ := post(t, g, "/model/anthropic/v1/messages", body)
			mu.Lock()
			defer mu.Unlock()
			got[res.StatusCode]++
		})
	}
	wg.Wait()
	if got[200] < 1 || got[200] > 3 || got[200]+got[429] != 20 || len(p.asked()) != got[200] {
		t.Errorf("answers are %v, and the provider was asked %d times", got, len(p.asked()))
	}
	if s := g.Summary(); s.Tokens > limit || s.Tokens != int64(got[200])*13_000 {
		t.Errorf("summary is %+v after %v", s, got)
	}
	for { // one after the other until it is used up for good
		res, text := post(t, g, "/model/anthropic/v1/messages", body)
		if res.StatusCode == 200 {
			continue
		}
		if res.StatusCode != 429 || res.Header.Get("X-Should-Retry") != "false" || !strings.Contains(text, "rate_limit_error") || !strings.Contains(text, "39000 of 40000 tokens") {
			t.Errorf("answer %d %v %s", res.StatusCode, res.Header, text)
		}
		break
	}
	recs := a.records(t)
	if last := recs[len(recs)-1]; last.Rule != "model-budget" || last.Verdict != Denied {
		t.Errorf("the last record is %+v", last)
	}
}

// TestBudgetForms covers requests and money, and the answer in each form.
func TestBudgetForms(t *testing.T) {
	t.Parallel()
	for _, w := range wires {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, says("application/json", w.json))
			m := modelRoute(w.provider)
			m.Requests = 2
			g, _ := openModels(t, p, defaultLimits, m)
			path := strings.Replace(w.path, ":streamGenerateContent?alt=sse&", ":generateContent?", 1)
			for i, want := range []int{200, 200, 429} {
				res, got := post(t, g, path, fmt.Sprintf(w.body, ""))
				if res.StatusCode != want {
					t.Fatalf("call %d: %d %s", i, res.StatusCode, got)
				}
				if want != 429 {
					continue
				}
				marks := map[policy.Provider]string{policy.Anthropic: "rate_limit_error", policy.OpenAI: "insufficient_quota", policy.OpenAICompatible: "insufficient_quota", policy.Gemini: "RESOURCE_EXHAUSTED"}
				if !strings.Contains(got, marks[w.provider]) || !strings.Contains(got, "2 of 2 requests") || !json.Valid([]byte(got)) {
					t.Errorf("answer %s", got)
				}
			}
		})
	}
}

func TestBudgetOfMoney(t *testing.T) {
	t.Parallel()
	p := newProvider(t, says("application/json", `{"usage":{"input_tokens":100,"cache_read_input_tokens":1000,"cache_creation_input_tokens":200,"output_tokens":50}}`))
	m := modelRoute(policy.Anthropic)
	m.Money = 1
	m.Prices = []policy.Price{{Model: "priced-*", Input: 10, Output: 100, CacheRead: 1, CacheWrite: 20}}
	g, a := openModels(t, p, defaultLimits, m)
	if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"other","max_tokens":10}`); res.StatusCode != 403 || !strings.Contains(got, "model-no-price") {
		t.Errorf("without a price: %d %s", res.StatusCode, got)
	}
	if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"priced-1","max_tokens":10000}`); res.StatusCode != 429 || !strings.Contains(got, "0.00 of 1.00") {
		t.Errorf("too dear: %d %s", res.StatusCode, got)
	}
	if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"priced-1","max_tokens":1000}`); res.StatusCode != 200 {
		t.Errorf("affordable: %d %s", res.StatusCode, got)
	}
	const want = (100*10 + 1000*1 + 200*20 + 50*100) / 1e6
	recs := a.records(t)
	if u := recs[len(recs)-1].End.Usage; u == nil || u.Money < want-1e-12 || u.Money > want+1e-12 {
		t.Errorf("cost %+v, want %v", u, want)
	}
}

// TestBudgetOfLongPrompts has a model that costs more from a length on: what is
// set aside is for the dearest price that may hold, what counts is for the length
// that the provider says.
func TestBudgetOfLongPrompts(t *testing.T) {
	t.Parallel()
	answers := make(chan string, 1)
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		says("application/json", <-answers)(w, r, body)
	})
	m := modelRoute(policy.Anthropic)
	m.Money = 1
	m.Prices = []policy.Price{{Model: "m", AboveTokens: 5000, Input: 100, Output: 100, CacheRead: 100, CacheWrite: 100}, {Model: "m", Input: 10, Output: 100, CacheRead: 10, CacheWrite: 10}}
	g, a := openModels(t, p, defaultLimits, m)
	call := func(length int) (int, string) {
		res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"m","max_tokens":10,"system":"`+strings.Repeat("x", length)+`"}`)
		return res.StatusCode, got
	}
	// 2,000 are for what the provider adds, so 9,000 bytes may be 11,000 tokens.
	if code, got := call(9000); code != 429 || !strings.Contains(got, "may cost up to 1.1") {
		t.Errorf("a long prompt: %d %s", code, got)
	}
	for _, c := range []struct {
		input int
		want  float64
	}{{4000, 0.04}, {5000, 0.05}, {5001, 0.5001}} {
		answers <- fmt.Sprintf(`{"usage":{"input_tokens":%d,"output_tokens":0}}`, c.input)
		if code, got := call(4000); code != 200 {
			t.Errorf("%d tokens: %d %s", c.input, code, got)
		}
		recs := a.records(t)
		if u := recs[len(recs)-1].End.Usage; u == nil || u.Money < c.want-1e-12 || u.Money > c.want+1e-12 {
			t.Errorf("%d tokens cost %+v, want %v", c.input, u, c.want)
		}
	}
}

// TestBudgetWithoutUsage covers answers that do not say what they cost: the
// most that they could counts. Errors and what was never sent count nothing.
func TestBudgetWithoutUsage(t *testing.T) {
	t.Parallel()
	answer := make(chan func(w http.ResponseWriter), 1)
	p := newProvider(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) { (<-answer)(w) })
	m := modelRoute(policy.Anthropic)
	m.Tokens = 30_000
	g, _ := openModels(t, p, defaultLimits, m)
	const body = `{"model":"m","max_tokens":10000}`
	const most = 2000 + 10_000 + int64(len(body))
	answer <- func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	if res, got := post(t, g, "/model/anthropic/v1/messages", body); res.StatusCode != 502 {
		t.Fatalf("%d %s", res.StatusCode, got)
	}
	if s := g.Summary(); s.Tokens != most {
		t.Errorf("without an answer the summary is %+v", s)
	}
	for range 5 {
		answer <- func(w http.ResponseWriter) { w.WriteHeader(529) }
		if res, got := post(t, g, "/model/anthropic/v1/messages", body); res.StatusCode != 529 {
			t.Fatalf("%d %s", res.StatusCode, got)
		}
	}
	answer <- func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{}`) }
	if res, got := post(t, g, "/model/anthropic/v1/messages", body); res.StatusCode != 200 {
		t.Fatalf("%d %s", res.StatusCode, got)
	}
	if s := g.Summary(); s.Tokens != 2*most {
		t.Errorf("summary is %+v", s)
	}
	twice := `{"model":"m","max_tokens":1000,"context_management":{"edits":[{"type":"compact_20260112"}]}}`
	if res, got := post(t, g, "/model/anthropic/v1/messages", twice); res.StatusCode != 429 || !strings.Contains(got, fmt.Sprintf("may cost up to %d", 2*(len(twice)+3000))) {
		t.Errorf("%d %s", res.StatusCode, got)
	}
	if res, got := post(t, g, "/model/anthropic/v1/messages", body); res.StatusCode != 429 {
		t.Errorf("%d %s", res.StatusCode, got)
	}
}

// TestLedger covers the budget that an agent's kicks share on a day.
func TestLedger(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 23, 59, 0, 0, time.UTC)
	m := policy.Model{Route: "r", Day: policy.Budget{Tokens: 1000}}
	dir := filepath.Join(t.TempDir(), "budgets")
	open := func() *budget {
		b := newBudget(m, dir, "fixer")
		b.day.now = func() time.Time { return now }
		return b
	}
	one, two := open(), open()
	held, err := one.reserve(policy.Budget{Tokens: 800})
	if err != nil {
		t.Fatal(err)
	}
	var ob *overBudget
	if _, err := two.reserve(policy.Budget{Tokens: 300}); !errors.As(err, &ob) || !strings.Contains(ob.detail, "daily") {
		t.Errorf("another kick may spend what is set aside: %v", err)
	}
	if err := held.settle(policy.Budget{Tokens: 100}); err != nil {
		t.Fatal(err)
	}
	late, err := two.reserve(policy.Budget{Tokens: 900})
	if err != nil {
		t.Fatalf("what was not spent is not there: %v", err)
	}
	now = now.Add(2 * time.Minute) // the next day
	if _, err := one.reserve(policy.Budget{Tokens: 1000}); err != nil {
		t.Errorf("the next day: %v", err)
	}
	if err := late.settle(policy.Budget{}); err != nil {
		t.Fatal(err)
	}
	if _, err := two.reserve(policy.Budget{Tokens: 1}); !errors.As(err, &ob) {
		t.Errorf("yesterday's settlement frees today's budget: %v", err)
	}
	path := filepath.Join(dir, "fixer.r.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := one.reserve(policy.Budget{Tokens: 1}); err == nil || !strings.Contains(err.Error(), "correct or remove the file") {
		t.Errorf("a broken ledger: %v", err)
	}
	// Many at once, through files alone.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	passed := 0
	for range 30 {
		wg.Go(func() {
			if _, err := open().reserve(policy.Budget{Tokens: 100}); err == nil {
				mu.Lock()
				passed++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if passed != 10 {
		t.Errorf("%d of 30 passed, want 10", passed)
	}
}

// TestKeySources covers rotation, and what is no key: the agent's answer tells
// nothing of it, the audit does.
func TestKeySources(t *testing.T) {
	t.Parallel()
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		if r.Header.Get("X-Api-Key") == "old-key-old-key" {
			w.WriteHeader(401)
		}
	})
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	byFile, byCommand, missing, none := modelRoute(policy.Anthropic), modelRoute(policy.Anthropic), modelRoute(policy.Anthropic), modelRoute(policy.OpenAICompatible)
	byFile.KeyEnv, byFile.KeyFile = "", file
	byCommand.KeyEnv, byCommand.KeyCommand, byCommand.Route = "", []string{"/bin/sh", "-c", `cat "$0"; echo x >> "$0.count"`, file}, "command"
	missing.KeyEnv, missing.Route = "NOT_SET", "missing"
	none.KeyEnv, none.Route = "", "none"
	g, a := openModels(t, p, defaultLimits, byFile, byCommand, missing, none)
	call := func(route string) (int, string) {
		t.Helper()
		res, got := post(t, g, "/model/"+route+"/v1/messages", `{"model":"m"}`)
		return res.StatusCode, got
	}
	for _, route := range []string{"anthropic", "command"} {
		write("old-key-old-key\n")
		if code, got := call(route); code != 401 {
			t.Errorf("%s, old key: %d %s", route, code, got)
		}
		write("new-key-new-key")
		for range 2 {
			if code, got := call(route); code != 200 || p.last(t).header.Get("X-Api-Key") != "new-key-new-key" {
				t.Errorf("%s, new key: %d %s %v", route, code, got, p.last(t).header)
			}
		}
	}
	if runs, err := os.ReadFile(file + ".count"); err != nil || string(runs) != "x\nx\n" {
		t.Errorf("the command ran %q, %v; want twice", runs, err)
	}
	if keys := g.Keys(); len(keys) != 4 {
		t.Errorf("keys are %q", keys)
	}
	for _, bad := range []string{"", "short", "two words of it", "kick-dummy-key", strings.Repeat("x", maxKey+1)} {
		write(bad)
		if code, got := call("anthropic"); code != 503 || strings.Contains(got, dir) {
			t.Errorf("key %.20q: %d %s", bad, code, got)
		}
	}
	if code, got := call("missing"); code != 503 || strings.Contains(got, "NOT_SET") {
		t.Errorf("missing: %d %s", code, got)
	}
	recs := a.records(t)
	if last := recs[len(recs)-1]; !strings.Contains(last.End.Error, "NOT_SET") {
		t.Errorf("the audit's last record is %+v", last.End)
	}
	if res, got := post(t, g, "/model/none/v1/chat/completions", `{"model":"m"}`); res.StatusCode != 200 || p.last(t).header.Get("Authorization") != "" {
		t.Errorf("without a key: %d %s %v", res.StatusCode, got, p.last(t).header)
	}
}
