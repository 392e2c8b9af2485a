// Package modeltest is a scripted model provider for tests: a real HTTP server
// on loopback that speaks the four wire formats of coding agents. It answers
// the first request of an agent with one shell command to run, and the one that
// brings the command's result with "done".
//
// It is a stand-in, not a model: it reads of a request what it needs to choose
// the tool, and an unknown path is a 404.
package modeltest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Wire is a wire format.
type Wire string

// The wire formats.
const (
	Responses Wire = "responses" // OpenAI Responses
	Chat      Wire = "chat"      // OpenAI Chat Completions
	Messages  Wire = "messages"  // Anthropic Messages
	Gemini    Wire = "gemini"    // Gemini generateContent
)

// Options script a Server.
type Options struct {
	// Key is what every request must bring, in the header of its format;
	// another one is answered with 401. Empty: any.
	Key string
	// Command is run by the agent's shell tool, once in a conversation.
	Command string
	// OnResult, if set, is called when a command's result has arrived and
	// before it is answered: the agent's program runs and waits meanwhile.
	OnResult func()
	// OnStream, if set, is called when the first event of an answer was sent and
	// before the rest, with the request that is answered.
	OnStream func(r *http.Request)
}

// Call is one request that came.
type Call struct {
	Wire   Wire   // empty: of none
	Method string //
	Path   string //
	Header http.Header
	Model  string
	Size   int  // bytes of the body
	Tool   bool // it has a shell tool
	Result bool // it brings the result of a command
}

// Key is the key that a call brought, in any of the headers for one.
func (c Call) Key() string {
	for _, h := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if k := c.Header.Get(h); k != "" {
			return k
		}
	}
	return strings.TrimPrefix(c.Header.Get("Authorization"), "Bearer ")
}

// Server is the provider.
type Server struct {
	URL string // without a path

	opts  Options
	mu    sync.Mutex
	calls []Call
}

// Start starts a server that runs until the end of the test.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	s := &Server{opts: opts}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	s.URL = h.URL
	return s
}

// Calls returns the requests that came so far.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// maxBody is far above the first request of any agent, which has 76 KB.
const maxBody = 8 << 20

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c := Call{Method: r.Method, Path: r.URL.Path, Header: r.Header, Size: len(body)}
	f := formatOf(r.URL.Path)
	var q request
	if f != nil {
		c.Wire = f.wire
		if err := json.Unmarshal(body, &q); err != nil && len(body) > 0 {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c.Model, c.Result = q.Model, strings.Contains(string(body), f.result)
		c.Tool = f.tool(q, s.opts.Command) != nil
	}
	s.mu.Lock()
	s.calls = append(s.calls, c)
	s.mu.Unlock()

	switch {
	case f == nil || r.Method != http.MethodPost:
		http.NotFound(w, r)
	case s.opts.Key != "" && c.Key() != s.opts.Key:
		http.Error(w, `{"error":{"type":"authentication_error","message":"wrong key"}}`, http.StatusUnauthorized)
	case strings.HasSuffix(r.URL.Path, "/count_tokens"):
		answer(w, object{"input_tokens": 10})
	default:
		if c.Result && s.opts.OnResult != nil {
			s.opts.OnResult()
		}
		var tool object
		if !c.Result {
			tool = f.tool(q, s.opts.Command)
		}
		stream := q.Stream || strings.Contains(r.URL.Path, ":stream")
		if s.opts.OnStream != nil {
			w = &interrupted{ResponseWriter: w, first: func() { s.opts.OnStream(r) }}
		}
		f.answer(w, q, tool, stream)
	}
}

// interrupted calls a function after its first event.
type interrupted struct {
	http.ResponseWriter
	first func()
}

// Flush ends an event.
func (i *interrupted) Flush() {
	i.ResponseWriter.(http.Flusher).Flush()
	if i.first != nil {
		i.first()
		i.first = nil
	}
}

type object = map[string]any

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an agent that is gone is no matter
}

// event writes one server-sent event and flushes it.
func event(w http.ResponseWriter, name string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain objects of this package
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if name != "" {
		_, _ = io.WriteString(w, "event: "+name+"\n")
	}
	_, _ = io.WriteString(w, "data: "+string(b)+"\n\n")
	w.(http.Flusher).Flush()
}
