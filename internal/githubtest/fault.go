package githubtest

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Fault makes matching requests go wrong.
type Fault struct {
	// Match is looked for in "METHOD PATH", e.g. "POST /repos/acme/api/pulls"
	// or "git-receive-pack".
	Match string
	// Skip is how many matching requests are served well before.
	Skip int
	// Times is how many matching requests are hit. 0: all.
	Times int
	// After serves the request, and then does what follows in place of the
	// answer.
	After bool
	// Status answers with this status, Header and Body.
	Status int
	Header map[string]string
	Body   string
	// Hang never answers: the request ends when the client or the server goes.
	Hang bool
	// Endless answers with Status and Header, and then repeats Body until the
	// client goes.
	Endless bool
	// Redirect answers 307 to this URL with the request's path appended.
	Redirect string
	// Cut closes the connection at the beginning of the answer.
	Cut bool
}

// AddFault arms a fault. Faults are tried in the order in which they were
// added.
func (s *Server) AddFault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Times == 0 {
		f.Times = -1
	}
	s.faults = append(s.faults, &f)
}

func (s *Server) takeFault(r *http.Request) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.Times == 0 || !strings.Contains(r.Method+" "+r.URL.Path, f.Match) {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		f.Times--
		return f
	}
	return nil
}

// answer answers in place of the server.
func (f *Fault) answer(s *Server, w http.ResponseWriter, r *http.Request) {
	switch {
	case f.Hang:
		select {
		case <-r.Context().Done():
		case <-s.closing:
		}
		cut(w, "")
	case f.Redirect != "":
		http.Redirect(w, r, strings.TrimSuffix(f.Redirect, "/")+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	case f.Cut:
		cut(w, "HTTP/1.1 200 OK\r\nContent-Type: "+contentType(r)+"\r\nContent-Length: 500\r\n\r\n")
	default:
		for k, v := range f.Header {
			w.Header().Set(k, v)
		}
		if w.Header().Get("Content-Type") == "" {
			w.Header().Set("Content-Type", contentType(r))
		}
		w.WriteHeader(f.Status)
		_, err := w.Write([]byte(f.Body))
		for f.Endless && err == nil {
			_, err = w.Write([]byte(f.Body))
		}
	}
}

// contentType is what a client wants to see before it reads an answer.
func contentType(r *http.Request) string {
	_, _, rest, ok := gitPath(r.URL.Path)
	switch {
	case !ok:
		return "application/json; charset=utf-8"
	case rest == "info/refs":
		return "application/x-" + r.URL.Query().Get("service") + "-advertisement"
	}
	return "application/x-" + rest + "-result"
}

// cut closes the connection, after this much of an answer. With nothing, a
// client may take the connection for an old one and send the request again.
func cut(w http.ResponseWriter, after string) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_, _ = conn.Write([]byte(after))
		_ = conn.Close()
	}
}

// Sink is another host: it answers 404 to all, and remembers whether a
// credential reached it.
type Sink struct {
	ln     net.Listener
	server *http.Server
	done   chan struct{}

	mu    sync.Mutex
	count int
	saw   bool
}

// NewSink starts a Sink on its own loopback port. Close it.
func NewSink() (*Sink, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	k := &Sink{ln: ln, done: make(chan struct{})}
	k.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		k.count++
		k.saw = k.saw || r.Header.Get("Authorization") != ""
		k.mu.Unlock()
		http.NotFound(w, r)
	})}
	go func() {
		defer close(k.done)
		_ = k.server.Serve(ln)
	}()
	return k, nil
}

// URL is the sink's address.
func (k *Sink) URL() string { return "http://" + k.ln.Addr().String() }

// Requests returns how many requests came, and whether one had a credential.
func (k *Sink) Requests() (n int, sawCredential bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count, k.saw
}

// Close ends the sink.
func (k *Sink) Close() error {
	err := k.server.Close()
	<-k.done
	return err
}
