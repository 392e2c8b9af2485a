package egress

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const dialVariable = "KICK_TEST_DIAL"

func TestMain(m *testing.M) {
	if path := os.Getenv(dialVariable); path != "" {
		os.Exit(dialAndReport(path))
	}
	goleak.VerifyTestMain(m)
}

// audit is a place for audit lines that can be read while it is written.
type audit struct {
	mu  sync.Mutex
	buf bytes.Buffer
	err error
	// grown, if somebody waits, is closed by the next record.
	grown chan struct{}
}

func (a *audit) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return 0, a.err
	}
	if a.grown != nil {
		close(a.grown)
		a.grown = nil
	}
	return a.buf.Write(p)
}

// next is closed when a further record is written.
func (a *audit) next() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.grown == nil {
		a.grown = make(chan struct{})
	}
	return a.grown
}

func (a *audit) records(t *testing.T) []Record {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Record
	for line := range strings.Lines(a.buf.String()) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("audit line %q: %v", line, err)
		}
		out = append(out, r)
	}
	return out
}

// open opens a gateway that denies everything.
func open(t *testing.T, lim limits) (*Gateway, *audit) {
	t.Helper()
	return openConfig(t, lim, Config{Kick: "k0000000000001", Agent: "fixer"})
}

// openConfig opens a gateway that the test's end closes. Names of sockets are
// short, so the directory is not that of the test's long name.
func openConfig(t testing.TB, lim limits, cfg Config) (*Gateway, *audit) {
	t.Helper()
	a := &audit{}
	cfg.Audit = a
	g, err := listen(context.Background(), filepath.Join(shortDir(t), "egress"), cfg, lim)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g, a
}

func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "egress")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func dial(t *testing.T, g *Gateway) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", g.Socket())
	if err != nil {
		t.Fatal(err)
	}
	return untilLate(t, c)
}

// untilLate has a test that would hang fail instead.
func untilLate(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// exchange sends raw bytes and reads until the gateway closes.
func exchange(t *testing.T, g *Gateway, raw string) string {
	t.Helper()
	return exchangeOn(t, dial(t, g), raw)
}

func exchangeOn(t *testing.T, c net.Conn, raw string) string {
	t.Helper()
	go func() { _, _ = io.WriteString(c, raw) }()
	got, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	return string(got)
}

func response(t *testing.T, method, raw string) (*http.Response, map[string]string) {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(raw)), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("answer %q: %v", raw, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodHead {
		return res, nil
	}
	m := map[string]string{}
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("body %q: %v", body, err)
	}
	return res, m
}

func TestEverythingIsDenied(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 5000)
	tests := []struct {
		name, raw string
		want      Record
		detail    string
	}{
		{"CONNECT", "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
			Record{Form: ConnectForm, Method: "CONNECT", Host: "example.org:443"}, "No egress rule has the host example.org"},
		{"CONNECT to an address", "CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\n\r\n",
			Record{Form: ConnectForm, Method: "CONNECT", Host: "169.254.169.254:80", Rule: "host-form"}, ""},
		{"absolute form", "GET http://example.org/a%20b?token=x HTTP/1.1\r\nHost: other.example\r\n\r\n",
			Record{Form: AbsoluteForm, Method: "GET", Host: "example.org", Path: "/a%20b"}, "No egress rule has the host example.org"},
		{"origin form", "POST /v1/messages HTTP/1.1\r\nHost: localhost:3128\r\nContent-Length: 2\r\n\r\n{}",
			Record{Form: OriginForm, Method: "POST", Host: "localhost:3128", Path: "/v1/messages"}, "POST localhost:3128/v1/messages is not"},
		{"HTTP/1.0 without a host", "GET / HTTP/1.0\r\n\r\n", Record{Form: OriginForm, Method: "GET", Path: "/"}, ""},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", Record{Form: OriginForm, Method: "OPTIONS", Host: "h", Path: "*"}, ""},
		{"HEAD", "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", Record{Form: OriginForm, Method: "HEAD", Host: "h", Path: "/"}, ""},
		{"upgrade", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", Record{Form: OriginForm, Method: "GET", Host: "h", Path: "/"}, ""},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Record{Form: OriginForm, Method: "PRI", Path: "*"}, ""},
		{"hostile method", "<b>/../ / HTTP/1.1\r\nHost: h\r\n\r\n", Record{}, ""},
		{"long path", "GET /" + long + " HTTP/1.1\r\nHost: h\r\n\r\n",
			Record{Form: OriginForm, Method: "GET", Host: "h", Path: "/" + long[:maxShown-1] + "…"}, ""},
		{"body that is announced and never sent", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n", Record{Form: OriginForm, Method: "POST", Host: "h", Path: "/"}, ""},
		{"body of 4 MiB", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4194304\r\n\r\n" + strings.Repeat("x", 4<<20), Record{Form: OriginForm, Method: "POST", Host: "h", Path: "/"}, ""},
		{"a second request on the connection", "GET / HTTP/1.1\r\nHost: h\r\n\r\nGET /second HTTP/1.1\r\nHost: h\r\n\r\n", Record{Form: OriginForm, Method: "GET", Host: "h", Path: "/"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g, a := open(t, defaultLimits)
			raw := exchange(t, g, tt.raw)
			if tt.want.Method == "" { // not HTTP: refused before there is anything to decide
				if !strings.HasPrefix(raw, "HTTP/1.1 400 ") || len(a.records(t)) != 0 {
					t.Errorf("answer %q, audit %+v", raw, a.records(t))
				}
				return
			}
			res, body := response(t, tt.want.Method, raw)
			if res.StatusCode != http.StatusForbidden || res.Header.Get("Content-Type") != "application/json" || !res.Close {
				t.Errorf("answer is %+v", res)
			}
			if tt.want.Rule == "" {
				tt.want.Rule = "default-deny"
			}
			if body != nil && (body["error"] != "policy_denied" || body["rule"] != tt.want.Rule || body["detail"] == "" || !strings.Contains(body["detail"], tt.detail)) {
				t.Errorf("body is %q", body)
			}
			tt.want.Event, tt.want.Request, tt.want.Kick, tt.want.Agent, tt.want.Verdict = Decided, 1, "k0000000000001", "fixer", Denied
			got := a.records(t)
			if len(got) != 1 {
				t.Fatalf("audit is %+v, want one record", got)
			}
			if age := time.Since(got[0].Time); age < 0 || age > time.Minute {
				t.Errorf("the record is of %v", got[0].Time)
			}
			got[0].Time = time.Time{}
			if got[0] != tt.want {
				t.Errorf("record is %+v, want %+v", got[0], tt.want)
			}
		})
	}
}

// TestClientsSeeTheReason goes through Go's own client, as an agent would: as a
// proxy for both schemes.
func TestClientsSeeTheReason(t *testing.T) {
	t.Parallel()
	g, _ := open(t, defaultLimits)
	tr := &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "gateway"}),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", g.Socket())
		},
	}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	res, err := client.Post("http://example.org/big", "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 403 || !strings.Contains(string(body), "default-deny") {
		t.Errorf("answer %d %q, %v", res.StatusCode, body, err)
	}
	if res, err := client.Get("https://example.org/"); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("a tunnel gives %v, %v", res, err)
	}
}

// refusal is how every answer begins.
var refusal = regexp.MustCompile(`^HTTP/1\.[01] [45]\d\d `)

func TestGarbage(t *testing.T) {
	t.Parallel()
	g, a := open(t, limits{headerTime: time.Second, requestTime: 2 * time.Second, replyTime: time.Second, headerBytes: 4 << 10, connections: 4, decisions: 10})
	huge := "GET / HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"
	tests := map[string]string{
		"bytes":                     strings.Repeat("\x00\xff\x16\x03\x01", 1000) + "\r\n\r\n",
		"TLS":                       "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
		"SOCKS5":                    "\x05\x01\x00\r\n\r\n",
		"huge header":               huge,
		"endless request line":      "GET /" + strings.Repeat("x", 1<<20),
		"many headers":              "GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("A: b\r\n", 100_000) + "\r\n",
		"no host":                   "GET / HTTP/1.1\r\n\r\n",
		"two hosts":                 "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"host with a space":         "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
		"escape sequence in host":   "GET / HTTP/1.1\r\nHost: \x1b[31m\r\n\r\n",
		"negative length":           "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
		"two lengths":               "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"unknown transfer encoding": "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: x\r\n\r\n",
		"bad version":               "GET / HTTP/9.9\r\nHost: h\r\n\r\n",
		"CONNECT without port":      "CONNECT / HTTP/9.9\r\n\r\n",
		"folded header":             "GET / HTTP/1.1\r\nHost: h\r\n X: y\r\nA B: c\r\n\r\n",
	}
	for name, raw := range tests {
		got := exchange(t, g, raw)
		if got != "" && !refusal.MatchString(got) {
			t.Errorf("%s: answer %.100q", name, got)
		}
	}
	if got := a.records(t); len(got) != 0 {
		t.Errorf("garbage led to decisions: %+v", got)
	}
	if _, body := response(t, "GET", exchange(t, g, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")); body["rule"] != "default-deny" {
		t.Errorf("after garbage the gateway answers %v", body)
	}
}

// TestAttackSlowRequests covers a header that trickles in, none at all, and so
// many of them that no connection is left: an honest request gets its turn.
func TestAttackSlowRequests(t *testing.T) {
	t.Parallel()
	lim := limits{headerTime: time.Second, requestTime: 2 * time.Second, replyTime: time.Second, headerBytes: 4 << 10, connections: 4, decisions: 100}
	g, _ := open(t, lim)
	var wg sync.WaitGroup
	for i := range 3 * lim.connections {
		c := dial(t, g)
		wg.Go(func() {
			if i%2 == 0 {
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nX: ")
				for { // a byte at a time until the gateway hangs up
					if _, err := c.Write([]byte("x")); err != nil {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
			}
			_, _ = io.Copy(io.Discard, c)
		})
	}
	_, body := response(t, "GET", exchange(t, g, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
	if body["rule"] != "default-deny" {
		t.Errorf("answer is %v", body)
	}
	wg.Wait() // each of them ended, or the deadline of dial fails the write and the test's time
}

func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	lim := defaultLimits
	lim.connections = 2
	g, _ := open(t, lim)
	held := []net.Conn{dial(t, g), dial(t, g)}
	third := dial(t, g)
	if _, err := io.WriteString(third, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := third.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := third.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a third connection is served beside two: %d, %v", n, err)
	}
	held[0].Close()
	if err := third.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(third); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 403") {
		t.Errorf("once a connection is free: %q, %v", got, err)
	}
}

func TestDecisionsAreLimited(t *testing.T) {
	t.Parallel()
	lim := defaultLimits
	lim.decisions = 3
	g, a := open(t, lim)
	for i := range 6 {
		_, body := response(t, "GET", exchange(t, g, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
		want := "default-deny"
		if i >= 2 {
			want = "too-many-requests"
		}
		if body["rule"] != want {
			t.Errorf("request %d: %v, want rule %s", i+1, body, want)
		}
	}
	got := a.records(t)
	if len(got) != 3 || got[2].Rule != "too-many-requests" {
		t.Errorf("audit is %+v", got)
	}
}

func TestRefusedWhenTheAuditFails(t *testing.T) {
	t.Parallel()
	g, a := open(t, defaultLimits)
	a.err = syscall.ENOSPC
	res, body := response(t, "GET", exchange(t, g, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
	if res.StatusCode != http.StatusForbidden || body["rule"] != "audit-failed" {
		t.Errorf("answer is %d %v", res.StatusCode, body)
	}
}

// TestCloseCuts is the cut at the agent's end: idle, half-sent and waiting
// connections end at once, and the socket is gone.
func TestCloseCuts(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Gateway, context.CancelFunc){
		"Close":   func(g *Gateway, _ context.CancelFunc) { _ = g.Close() },
		"context": func(_ *Gateway, cancel context.CancelFunc) { cancel() },
	} {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		lim := defaultLimits
		lim.connections, lim.headerTime = 2, time.Hour
		g, err := listen(ctx, filepath.Join(shortDir(t), "egress"), Config{Kick: "k0000000000001", Agent: "fixer", Audit: &audit{}}, lim)
		if err != nil {
			t.Fatal(err)
		}
		idle, half, waiting := dial(t, g), dial(t, g), dial(t, g)
		if _, err := io.WriteString(half, "GET / HTTP/1.1\r\nHo"); err != nil {
			t.Fatal(err)
		}
		end(g, cancel)
		for _, c := range []net.Conn{idle, half, waiting} {
			if n, err := io.Copy(io.Discard, c); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: a connection got %d bytes, then %v", name, n, err)
			}
		}
		for range 2 {
			if err := g.Close(); err != nil {
				t.Errorf("%s: Close again: %v", name, err)
			}
		}
		if _, err := os.Lstat(g.Socket()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the socket is there: %v", name, err)
		}
		if _, err := net.Dial("unix", g.Socket()); err == nil {
			t.Errorf("%s: the gateway still listens", name)
		}
	}
}

// TestCloseDuringRequests closes while many clients connect: nothing hangs, and
// no line is written after Close has returned.
func TestCloseDuringRequests(t *testing.T) {
	t.Parallel()
	lim := defaultLimits
	lim.headerTime = time.Minute
	for range 20 {
		g, a := open(t, lim)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					c, err := net.Dial("unix", g.Socket())
					if err != nil {
						return
					}
					_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
					_, _ = io.Copy(io.Discard, c)
					c.Close()
				}
			})
		}
		for len(a.records(t)) == 0 {
			_ = exchange(t, g, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		}
		start := time.Now()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > lim.headerTime/2 {
			t.Errorf("Close took %v", d)
		}
		n := len(a.records(t))
		close(stop)
		wg.Wait()
		if m := len(a.records(t)); m != n {
			t.Errorf("%d lines were written after Close", m-n)
		}
	}
}
