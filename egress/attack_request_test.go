package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
)

// TestAttackSmuggling sends what servers disagree about. The gateway makes
// each request anew, so that there is one way to read what the upstream gets.
func TestAttackSmuggling(t *testing.T) {
	t.Parallel()
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: registry.example\r\n\r\n"
	const head = "POST http://registry.example/a HTTP/1.1\r\nHost: registry.example\r\n"
	tests := map[string]string{
		"TE and CL":            head + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"CL and TE":            head + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + smuggled + "\r\n0\r\n\r\n",
		"TE twice":             head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + smuggled,
		"TE with a tab":        head + "Transfer-Encoding:\tchunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n" + smuggled,
		"TE with a space":      head + "Transfer-Encoding : chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n" + smuggled,
		"TE of another kind":   head + "Transfer-Encoding: xchunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n" + smuggled,
		"TE folded":            head + "Transfer-Encoding:\r\n chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n" + smuggled,
		"CL twice":             head + "Content-Length: 0\r\nContent-Length: 60\r\n\r\n" + smuggled,
		"CL with a plus":       head + "Content-Length: +60\r\n\r\n" + smuggled,
		"CL in a list":         head + "Content-Length: 0, 60\r\n\r\n" + smuggled,
		"CL is hop by hop":     head + "Connection: Content-Length\r\nContent-Length: 52\r\n\r\n" + smuggled,
		"a bad chunk":          head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + smuggled + "0\r\n\r\n",
		"a chunk too long":     head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + smuggled,
		"a chunk with LF":      head + "Transfer-Encoding: chunked\r\n\r\n2\nab\n0\n\n" + smuggled,
		"a chunk extension":    head + "Transfer-Encoding: chunked\r\n\r\n2;x=\nx\r\nab\r\n0\r\n\r\n" + smuggled,
		"a trailer":            head + "Transfer-Encoding: chunked\r\nTrailer: Host\r\n\r\n0\r\nHost: evil.example\r\nX: y\r\n\r\n",
		"obs-fold":             head + "X-A: a\r\n Host: evil.example\r\nContent-Length: 0\r\n\r\n",
		"obs-fold first":       head[:len(head)-len("Host: registry.example\r\n")] + " Host: evil.example\r\nHost: registry.example\r\n\r\n",
		"a lone CR":            head + "X-A: a\rHost: evil.example\r\nContent-Length: 0\r\n\r\n",
		"a lone LF":            head + "X-A: a\nX-B: b\r\nContent-Length: 0\r\n\r\n",
		"a NUL":                head + "X-A: a\x00\r\nContent-Length: 0\r\n\r\n",
		"CR LF in the path":    "POST http://registry.example/a%0d%0aHost:%20evil.example HTTP/1.1\r\nHost: registry.example\r\nContent-Length: 0\r\n\r\n",
		"CR LF in the query":   "POST http://registry.example/a?x=%0d%0aHost:%20evil.example HTTP/1.1\r\nHost: registry.example\r\nContent-Length: 0\r\n\r\n",
		"absolute form":        "POST http://registry.example/a HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.0 with TE":     "POST http://registry.example/a HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n" + smuggled,
		"HTTP/2 upgrade":       head + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 0\r\n\r\n",
		"HTTP/2 in clear":      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"a websocket":          head + "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
		"a second request":     head + "Content-Length: 0\r\nConnection: keep-alive\r\n\r\n" + smuggled,
		"a body of a response": head + "Content-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
	}
	for _, terminate := range []bool{false, true} {
		for name, raw := range tests {
			t.Run(fmt.Sprintf("%s, terminate %v", name, terminate), func(t *testing.T) {
				t.Parallel()
				o := newOutside(t, "registry.example")
				s := o.serveSeen(t)
				host := policy.Host{Host: "registry.example", Scheme: "http", Methods: []string{"POST"}, Paths: []string{"/a"}}
				if terminate {
					host.Scheme, host.Terminate = "https", true
					tlsFront(t, o)
				}
				lim := defaultLimits
				lim.forward.idle = time.Second // for bodies that do not come
				g, _ := o.open(t, lim, host)
				var c io.ReadWriteCloser = dial(t, g)
				if terminate {
					raw = strings.ReplaceAll(raw, "http://registry.example", "")
					tc := tls.Client(tunnelTo(t, g, "registry.example:443"), &tls.Config{ServerName: "registry.example", RootCAs: trusted(t, g)})
					if err := tc.Handshake(); err != nil {
						t.Fatal(err)
					}
					c = tc
				}
				go func() { _, _ = io.WriteString(c, raw) }()
				first, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err == nil {
					first.Body.Close()
				}
				c.Close()
				if err := g.Close(); err != nil {
					t.Error(err)
				}
				up := s.all()
				if strings.Contains(up, "evil.example") && !strings.Contains(up, "X-A: a Host: evil.example") && !strings.Contains(up, "x=%0d%0aHost:%20evil.example") ||
					strings.Contains(up, "\nHost: evil") || strings.Contains(up, "\rHost: evil") {
					t.Errorf("upstream got %q", up)
				}
				checkFraming(t, up)
			})
		}
	}
}

// checkFraming fails if what an upstream got is not at most one request on
// each connection, framed in one way.
func checkFraming(t *testing.T, up string) {
	t.Helper()
	for _, one := range strings.Split(up, "\n---\n") {
		if one == "" {
			continue
		}
		head, rest, ok := strings.Cut(one, "\r\n\r\n")
		lower := strings.ToLower(head)
		if !ok && rest == "" {
			continue // broken off before it was whole
		}
		if n := strings.Count(lower, "content-length:") + strings.Count(lower, "transfer-encoding:"); n > 1 {
			t.Errorf("upstream got %d framings: %q", n, one)
		}
		if strings.Contains(lower, "upgrade") || strings.Contains(lower, "http2-settings") {
			t.Errorf("upstream got an upgrade: %q", one)
		}
		if strings.ContainsAny(strings.ReplaceAll(head, "\r\n", ""), "\r\n\x00") {
			t.Errorf("upstream got a bare line end: %q", one)
		}
		in := bufio.NewReader(strings.NewReader(one))
		r, err := http.ReadRequest(in)
		if err != nil {
			t.Errorf("upstream got %q: %v", one, err)
			continue
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if left, _ := io.ReadAll(in); len(left) > 0 {
			t.Errorf("after the request upstream got %q", left)
		}
	}
}

// tlsFront puts TLS before an outside's server.
func tlsFront(t *testing.T, o *outside) {
	t.Helper()
	behind := o.server
	l, err := tls.Listen("tcp", "127.0.0.1:0", o.serverTLS())
	if err != nil {
		t.Fatal(err)
	}
	o.serveOn(t, l, func(c net.Conn) {
		b, err := net.Dial("tcp", behind)
		if err != nil {
			return
		}
		defer b.Close()
		var half sync.WaitGroup
		half.Go(func() {
			_, _ = io.Copy(b, c)
			_ = b.(*net.TCPConn).CloseWrite()
		})
		_, _ = io.Copy(c, b)
		c.Close()
		half.Wait()
	})
}

// TestAttackInsideTunnel leaves the host of a tunnel whose TLS ends here.
func TestAttackInsideTunnel(t *testing.T) {
	t.Parallel()
	o := newOutside(t, "registry.example", "other.example")
	o.serveHTTP(t, true, http.HandlerFunc(echo))
	g, _ := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Terminate: true, Paths: []string{"/pkg/**"}}, policy.Host{Host: "other.example", Terminate: true})
	for _, c := range []struct{ name, raw, want string }{
		{"another host", "GET /pkg/a HTTP/1.1\r\nHost: other.example\r\n\r\n", "host-mismatch"},
		{"another port", "GET /pkg/a HTTP/1.1\r\nHost: registry.example:444\r\n\r\n", "host-mismatch"},
		{"dot at the end", "GET /pkg/a HTTP/1.1\r\nHost: registry.example.\r\n\r\n", "host-mismatch"},
		{"no host", "GET /pkg/a HTTP/1.0\r\n\r\n", "host-mismatch"},
		{"absolute form", "GET https://other.example/pkg/a HTTP/1.1\r\nHost: registry.example\r\n\r\n", "form-not-permitted"},
		{"CONNECT inside", "CONNECT other.example:443 HTTP/1.1\r\nHost: registry.example\r\n\r\n", "form-not-permitted"},
		{"two slashes in front", "GET //other.example/pkg/a HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"parent directory", "GET /pkg/../secret HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"encoded dots", "GET /pkg/%2e%2e/secret HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"encoded dots and slash", "GET /pkg/%2E%2E%2fsecret HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"dots with parameters", "GET /pkg/..;/secret HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"doubled slash", "GET /pkg//secret HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"encoded backslash", "GET /pkg/..%5csecret HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"backslash", "GET /pkg/..\\secret HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"twice encoded", "GET /pkg/%252e%252e/secret HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"case", "GET /PKG/a HTTP/1.1\r\nHost: registry.example\r\n\r\n", "path"},
		{"no slash at the end", "GET /pkg HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"encoded letter", "GET /%70kg/a HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"method in another case", "get /pkg/a HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"another method", "DELETE /pkg/a HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"body of a GET", "GET /pkg/a HTTP/1.1\r\nHost: registry.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "body-not-permitted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := tls.Client(tunnelTo(t, g, "registry.example:443"), &tls.Config{ServerName: "registry.example", RootCAs: trusted(t, g)})
			if _, err := io.WriteString(conn, c.raw); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			res, body := response(t, "GET", string(got))
			if res.StatusCode != 403 || c.want != "" && body["rule"] != c.want {
				t.Errorf("%q: %d %v, c.want rule %q", c.raw, res.StatusCode, body, c.want)
			}
		})
	}
	if d := o.dialed(); len(d) != 0 {
		t.Errorf("connected to %v", d)
	}
}
