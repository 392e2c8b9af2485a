// Package githubtest is a small GitHub: real git over smart HTTP from bare
// repositories, and the REST endpoints that kick calls, with one token state
// for both. It serves the tests and the demonstration. Its answers are checked
// against GitHub's published OpenAPI description by this package's own tests.
//
// It is a stand-in, not a copy: what kick does not call is not there, and an
// unknown path is a 404.
package githubtest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Options configure a Server. The zero value is a GitHub on a free loopback
// port with its repositories in a temporary directory.
type Options struct {
	// Addr is the listening address. Default: "127.0.0.1:0".
	Addr string
	// Dir holds the bare repositories as OWNER/NAME.git. Default: a temporary
	// directory that Close removes.
	Dir string
	// APIPath is where the REST API lives: "" as on api.github.com, "/api/v3"
	// as on GitHub Enterprise Server.
	APIPath string
	// LongTokens makes installation tokens of the form ghs_<APPID>_<JWT>, about
	// 520 characters, instead of ghs_ and 36 characters.
	LongTokens bool
	// TokenLife is how long an installation token lives. Default: one hour, as
	// on GitHub.
	TokenLife time.Duration
	// Intercept, if set, wraps the whole handler. Tests use it to look at
	// requests and answers as they are on the wire.
	Intercept func(http.Handler) http.Handler
}

// AppID and AppSlug name the one GitHub App that exists here.
const (
	AppID   = 1001
	AppSlug = "kick-app"
	botName = AppSlug + "[bot]"
)

// installationID is that App's one installation.
const installationID = 42

// Server is a running stand-in.
type Server struct {
	opts    Options
	ln      net.Listener
	http    *http.Server
	served  chan struct{}
	closing chan struct{}
	key     *rsa.PrivateKey
	backend string // path of git-http-backend
	tmp     bool   // Dir is ours to remove

	mu       sync.Mutex
	repos    map[string]*Repo // by lower-case OWNER/NAME
	tokens   map[string]*grant
	nextID   int64
	onMint   func(*Grant)
	faults   []*Fault
	requests []Request
}

// Request is one request that was served. It holds no token, only a name for
// it.
type Request struct {
	Method string
	Path   string
	Query  string
	Status int
	Token  string // kind and digest of the token, e.g. "ghs:1f2e3d4c"; empty: none
	Push   bool   // a git push that updates refs
}

// appKey is the App's key, one for all servers of a process: making one takes
// longer than most tests.
var appKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// New starts a Server. Close it.
func New(opts Options) (*Server, error) {
	if opts.Addr == "" {
		opts.Addr = "127.0.0.1:0"
	}
	if opts.TokenLife == 0 {
		opts.TokenLife = time.Hour
	}
	opts.APIPath = strings.TrimSuffix(opts.APIPath, "/")
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("find git-http-backend: %w. Install git", err)
	}
	s := &Server{
		opts: opts, served: make(chan struct{}), closing: make(chan struct{}),
		backend: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"),
		repos:   map[string]*Repo{}, tokens: map[string]*grant{}, nextID: 1000,
	}
	if _, err := os.Stat(s.backend); err != nil {
		return nil, fmt.Errorf("find git-http-backend: %w. Install the whole of git", err)
	}
	if s.key, err = appKey(); err != nil {
		return nil, err
	}
	if opts.Dir == "" {
		if s.opts.Dir, err = os.MkdirTemp("", "githubtest-"); err != nil {
			return nil, err
		}
		s.tmp = true
	}
	if s.ln, err = net.Listen("tcp", opts.Addr); err != nil {
		return nil, errors.Join(fmt.Errorf("start the GitHub stand-in: %w", err), s.cleanup())
	}
	var h http.Handler = http.HandlerFunc(s.serve)
	if opts.Intercept != nil {
		h = opts.Intercept(h)
	}
	s.http = &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.served)
		_ = s.http.Serve(s.ln) // ends with ErrServerClosed
	}()
	return s, nil
}

// TB is what Start needs of a *testing.T, so that programs can use this
// package without linking the testing package.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
	TempDir() string
}

// Start is New for tests: it closes the server when the test ends.
func Start(t TB, opts Options) *Server {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	s, err := New(opts)
	if err != nil {
		t.Fatalf("githubtest: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Fatalf("githubtest: close: %v", err)
		}
	})
	return s
}

// Close ends the server and removes what it made.
func (s *Server) Close() error {
	close(s.closing)
	err := s.http.Close()
	<-s.served
	return errors.Join(err, s.cleanup())
}

func (s *Server) cleanup() error {
	if !s.tmp {
		return nil
	}
	return os.RemoveAll(s.opts.Dir)
}

// URL is the server's web and git address, without a trailing slash.
func (s *Server) URL() string { return "http://" + s.ln.Addr().String() }

// API is the base URL of the REST API, with a trailing slash.
func (s *Server) API() string { return s.URL() + s.opts.APIPath + "/" }

// PrivateKey is the App's key as PEM.
func (s *Server) PrivateKey() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(s.key)})
}

// Requests returns what was served so far, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Count returns how many served requests contain match in "METHOD PATH".
func (s *Server) Count(match string) int {
	n := 0
	for _, r := range s.Requests() {
		if strings.Contains(r.Method+" "+r.Path, match) {
			n++
		}
	}
	return n
}

// Pushes returns how many pushes that update refs were served.
func (s *Server) Pushes() int {
	n := 0
	for _, r := range s.Requests() {
		if r.Push {
			n++
		}
	}
	return n
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	rec := &statusWriter{ResponseWriter: w}
	log := Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Token: tokenName(presentedToken(r))}
	defer func() {
		log.Status = rec.status
		s.mu.Lock()
		s.requests = append(s.requests, log)
		s.mu.Unlock()
	}()
	fault := s.takeFault(r)
	switch {
	case fault == nil:
		log.Push = s.route(rec, r)
	case fault.After:
		log.Push = s.route(&memoryWriter{header: http.Header{}}, r)
		fault.answer(s, rec, r)
	default:
		fault.answer(s, rec, r)
	}
}

// route serves a request, and reports whether it was a push that updates refs.
func (s *Server) route(w http.ResponseWriter, r *http.Request) (push bool) {
	if owner, name, rest, ok := gitPath(r.URL.Path); ok {
		return s.serveGit(w, r, owner, name, rest)
	}
	if number := pullPage.FindStringSubmatch(r.URL.Path); number != nil {
		s.servePage(w, number[1], number[2], number[3])
		return false
	}
	if r.URL.Path == strings.TrimSuffix(s.opts.APIPath, "/v3")+"/graphql" {
		s.serveGraphQL(w, r)
		return false
	}
	if path, ok := strings.CutPrefix(r.URL.Path, s.opts.APIPath+"/"); ok {
		s.serveAPI(w, r, path)
		return false
	}
	http.NotFound(w, r)
	return false
}

// statusWriter remembers the status that was written.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func tokenName(token string) string {
	if token == "" {
		return ""
	}
	kind, _, _ := strings.Cut(token, "_")
	if kind == token {
		kind = "jwt"
	}
	sum := sha256.Sum256([]byte(token))
	return kind + ":" + hex.EncodeToString(sum[:4])
}
