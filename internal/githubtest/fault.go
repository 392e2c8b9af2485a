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
	// Times is how many matching requests are hit. 0: all.
	Times int
	// Status answers with this status, Header and Body.
	Status int
	Header map[string]string
	Body   string
	// Hang never answers: the request ends when the client or the server goes.
	Hang bool
	// Redirect answers 307 to this URL with the request's path appended.
	Redirect string
	// CutAfter serves the request and then cuts the connection at the beginning
	// of the answer. For git pushes only.
	CutAfter bool
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
		if f.Times != 0 && strings.Contains(r.Method+" "+r.URL.Path, f.Match) {
			f.Times--
			return f
		}
	}
	return nil
}

// before does what happens in place of the answer, and reports whether it did.
func (f *Fault) before(s *Server, w http.ResponseWriter, r *http.Request) bool {
	switch {
	case f.Hang:
		select {
		case <-r.Context().Done():
		case <-s.closing:
		}
		cut(w, "")
	case f.Redirect != "":
		http.Redirect(w, r, strings.TrimSuffix(f.Redirect, "/")+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	case f.Status != 0:
		for k, v := range f.Header {
			w.Header().Set(k, v)
		}
		if w.Header().Get("Content-Type") == "" {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
		}
		w.WriteHeader(f.Status)
		_, _ = w.Write([]byte(f.Body))
	default:
		return false
	}
	return true
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
