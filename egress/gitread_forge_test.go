package egress

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kickhq/kick/policy"
)

// A public address, which the tests' servers stand behind.
var publicAddress = netip.MustParseAddr("93.184.215.14")

// forge is a git host: git's own server, over TLS, which asks who has a
// password to show it.
type forge struct {
	*httptest.Server
	dir    string // with the repositories
	answer http.Handler

	mu   sync.Mutex
	seen []*http.Request // without bodies
}

func newForge(t *testing.T, password string) *forge {
	t.Helper()
	dir := t.TempDir()
	f := &forge{dir: dir, answer: &cgi.Handler{
		Path: filepath.Join(gitOutput(t, "--exec-path"), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"},
		// Clients that a test cuts off are no news.
		Stderr: io.Discard, Logger: log.New(io.Discard, "", 0),
	}}
	f.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // CGI has no chunked bodies
		if err != nil {
			return
		}
		seen := r.Clone(context.Background())
		f.mu.Lock()
		f.seen = append(f.seen, seen)
		f.mu.Unlock()
		if _, got, _ := r.BasicAuth(); got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		r.Header.Del("Authorization")
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		f.answer.ServeHTTP(w, r)
	}))
	f.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(f.Close)
	return f
}

// repository makes a repository with one commit, which holds size random bytes
// and one file, and returns the commit.
func (f *forge) repository(t *testing.T, name string, size int) string {
	t.Helper()
	work, bare := t.TempDir(), filepath.Join(f.dir, name)
	noise := make([]byte, size)
	for i, x := 0, uint64(1); i < size; i++ {
		x = x*6364136223846793005 + 1442695040888963407
		noise[i] = byte(x >> 56)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(work, "noise"), noise, 0o644), os.WriteFile(filepath.Join(work, "lib.go"), []byte("package lib\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	gitOutput(t, "-C", work, "init", "-q", "-b", "main")
	gitOutput(t, "-C", work, "add", "-A")
	gitOutput(t, "-C", work, "commit", "-qm", "one")
	gitOutput(t, "clone", "-q", "--bare", work, bare)
	return gitOutput(t, "-C", bare, "rev-parse", "main")
}

func (f *forge) requests() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

// config is a gateway's that reaches the forge as github.com.
func (f *forge) config(git ...string) Config {
	roots := x509.NewCertPool()
	roots.AddCert(f.Certificate())
	return Config{
		Kick: "k0000000000001", Agent: "fixer", Policy: policy.Egress{Git: git}, Roots: roots,
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != "example.com" { // which is what httptest's certificate is for
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			return []netip.Addr{publicAddress}, nil
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != publicAddress.String()+":443" {
				return nil, fmt.Errorf("the gateway dialled %s", address)
			}
			return new(net.Dialer).DialContext(ctx, network, f.Listener.Addr().String())
		},
	}
}

// openGit opens a gateway, and a port of loopback that leads to it as the
// shim's does.
func openGit(t *testing.T, cfg Config, lim limits) (*Gateway, *audit, int) {
	t.Helper()
	a := &audit{}
	cfg.Audit = a
	g, err := listen(context.Background(), filepath.Join(shortDir(t), "egress"), cfg, lim)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer in.Close()
				out, err := net.Dial("unix", g.Socket())
				if err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in); _ = out.(*net.UnixConn).CloseWrite() }()
				_, _ = io.Copy(in, out)
			})
		}
	})
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), g.Close()); err != nil {
			t.Error(err)
		}
		conns.Wait()
	})
	return g, a, l.Addr().(*net.TCPAddr).Port
}

// gitIn runs git as an agent would, with the gateway's settings.
func gitIn(t *testing.T, g *Gateway, port int, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"}
	env := map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "Agent"}
	g.SetGitEnvironment(env, port)
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// gitOutput runs git for the test itself.
func gitOutput(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.com"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}
