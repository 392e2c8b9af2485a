package egress

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
)

// TestAttackOverrides has headers name another request than the one that is
// judged, in the spellings that servers take for one another.
func TestAttackOverrides(t *testing.T) {
	t.Parallel()
	for _, terminate := range []bool{false, true} {
		o := newOutside(t, "registry.example")
		o.serveHTTP(t, terminate, http.HandlerFunc(echo))
		scheme := "http"
		if terminate {
			scheme = "https"
		}
		g, _ := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Scheme: scheme, Terminate: terminate, Paths: []string{"/a"}})
		roots := o.roots()
		if terminate {
			roots = trusted(t, g)
		}
		c := client(t, g, roots)
		for name, value := range map[string]string{
			"X-HTTP-Method-Override": "DELETE", "X-HTTP-Method": "PUT", "X-Method-Override": "PUT", "x_http_method_override": "DELETE", "X-Http_Method-Override": "PUT",
			"X-Original-URL": "/admin", "X-Rewrite-URL": "/admin", "X-Original-Host": "evil.example", "X-Envoy-Original-Path": "/admin", "X_Original_URL": "/admin",
			"X-Forwarded-Prefix": "/admin", "X-Forwarded-Server": "evil.example", "X_Forwarded_Host": "evil.example", "X-Forwarded_Host": "evil.example",
			"X-Host": "evil.example", "X-HTTP-Host-Override": "evil.example",
			"Content_Length": "60", "Transfer_Encoding": "chunked", "transfer_encoding": "chunked", "Host_": "", "_Host": "evil.example",
		} {
			req, err := http.NewRequest("GET", scheme+"://registry.example/a", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header[name] = []string{value}
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if harmless := name == "Host_" || name == "_Host"; err != nil || harmless && res.StatusCode != 200 || !harmless && (res.StatusCode != 403 || !strings.Contains(string(body), "header-not-permitted")) {
				t.Errorf("terminate %v, %s: %d %s, %v", terminate, name, res.StatusCode, body, err)
			}
		}
		for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} { // common, and left out
			req, err := http.NewRequest("GET", scheme+"://registry.example/a", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(name, "evil.example")
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != 200 || strings.Contains(string(body), "evil") {
				t.Errorf("terminate %v, %s: %d %s", terminate, name, res.StatusCode, body)
			}
		}
	}
}

// TestAttackNames writes an allowed name, or an address, in forms that resolvers
// and URL parsers take for it.
func TestAttackNames(t *testing.T) {
	t.Parallel()
	o := newOutside(t, "registry.example")
	o.serveHTTP(t, false, http.HandlerFunc(echo))
	g, _ := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Scheme: "http"}, policy.Host{Host: "*.wild.example"})
	for _, c := range []struct{ name, host string }{
		{"zone of an IPv6 address", "[fe80::1%25lo]"},
		{"zone without escape", "[fe80::1%lo]"},
		{"zone of loopback", "[::1%25registry.example]"},
		{"percent-encoded dot", "registry%2eexample"},
		{"percent-encoded letter", "%72egistry.example"},
		{"full-width letters", "ｒegistry.example"},
		{"ideographic full stop", "registry。example"},
		{"soft hyphen", "regi\u00adstry.example"},
		{"punycode of full-width letters", "xn--registry-.example"},
		{"underscore", "registry_.example"},
		{"empty label", "registry..example"},
		{"label of 64 bytes below a wildcard", strings.Repeat("a", 64) + ".wild.example"},
		{"name of 254 bytes below a wildcard", strings.Repeat("a.", 121) + "wild.example"},
		{"wildcard itself", "*.wild.example"},
		{"quote", "registry.example'"},
		{"two names", "registry.example,evil.example"},
		{"tab", "registry.example\tevil.example"},
	} {
		for form, raw := range map[string]string{
			"connect":  "CONNECT " + c.host + ":80 HTTP/1.1\r\nHost: x\r\n\r\n",
			"absolute": "GET http://" + c.host + "/ HTTP/1.1\r\nHost: registry.example\r\n\r\n",
		} {
			if got := exchange(t, g, raw); !strings.HasPrefix(got, "HTTP/1.1 403 ") && !strings.HasPrefix(got, "HTTP/1.1 400 ") {
				t.Errorf("%s, %s form: %.200q", c.name, form, got)
			}
		}
	}
	if l, d := o.lookedUp(), o.dialed(); len(l)+len(d) != 0 {
		t.Errorf("looked up %q, connected to %q", l, d)
	}
}

// TestAttackTLS ends a tunnel's TLS in other protocols and with older sessions.
func TestAttackTLS(t *testing.T) {
	t.Parallel()
	o := newOutside(t, "registry.example")
	o.serveHTTP(t, true, http.HandlerFunc(echo))
	g, _ := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Terminate: true})
	connect := func(cfg *tls.Config) (*tls.Conn, error) {
		cfg.ServerName, cfg.RootCAs = "registry.example", trusted(t, g)
		c := tls.Client(tunnelTo(t, g, "registry.example:443"), cfg)
		return c, c.Handshake()
	}
	t.Run("HTTP/2 alone", func(t *testing.T) {
		if c, err := connect(&tls.Config{NextProtos: []string{"h2"}}); err == nil {
			t.Errorf("it speaks %q", c.ConnectionState().NegotiatedProtocol)
		}
	})
	t.Run("HTTP/2 without asking", func(t *testing.T) {
		c, err := connect(&tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 4") {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("old versions", func(t *testing.T) {
		for _, v := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
			if _, err := connect(&tls.Config{MinVersion: v, MaxVersion: v}); err == nil {
				t.Errorf("it speaks %s", tls.VersionName(v))
			}
		}
	})
	t.Run("session of another tunnel", func(t *testing.T) {
		cache := tls.NewLRUClientSessionCache(10)
		for range 2 {
			c, err := connect(&tls.Config{ClientSessionCache: cache})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: registry.example\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200") {
				t.Errorf("%.100q, %v", got, err)
			}
			if c.ConnectionState().DidResume {
				t.Error("a session was resumed")
			}
		}
	})
}

// TestAttackExpectations uses headers by which proxies and servers have been
// brought out of step: the request ends, and the upstream has it whole and once.
func TestAttackExpectations(t *testing.T) {
	t.Parallel()
	const head = "POST http://registry.example/a HTTP/1.1\r\nHost: registry.example\r\n"
	for name, raw := range map[string]string{
		"100-continue without a body": head + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
		"100-continue and a body":     head + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
		"an unknown expectation":      head + "Expect: 200-maybe\r\nContent-Length: 5\r\n\r\nhello",
		"two expectations":            head + "Expect: 100-continue\r\nExpect: x\r\nContent-Length: 5\r\n\r\nhello",
		"Host is hop by hop":          head + "Connection: Host\r\nContent-Length: 5\r\n\r\nhello",
		"Content-Type is hop by hop":  head + "Connection: Content-Type, Content-Length, Transfer-Encoding\r\nContent-Length: 5\r\n\r\nhello",
		"Keep-Alive":                  head + "Connection: keep-alive, x\r\nKeep-Alive: timeout=600, max=1000\r\nContent-Length: 5\r\n\r\nhello",
		"TE: trailers":                head + "TE: trailers, deflate;q=0.5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Http-Method-Override: DELETE\r\n\r\n",
		"zeros before a chunk's size": head + "Transfer-Encoding: chunked\r\n\r\n0000000000000005\r\nhello\r\n0\r\n\r\n",
		"a space after a chunk's":     head + "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0 \r\n\r\n",
		"a body over two chunks":      head + "Transfer-Encoding: chunked\r\n\r\n2;a=\"b\"\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutside(t, "registry.example")
			s := o.serveSeen(t)
			lim := defaultLimits
			lim.requestTime = 0
			lim.forward.idle = 2e9
			g, _ := o.open(t, lim, policy.Host{Host: "registry.example", Scheme: "http", Methods: []string{"POST"}, Paths: []string{"/a"}})
			c := dial(t, g)
			if _, err := io.WriteString(c, raw); err != nil {
				t.Fatal(err)
			}
			if err := c.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, c)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			up := s.all()
			checkFraming(t, up)
			if strings.Contains(up, "Override") || strings.Count(up, "POST /a") > 1 || up != "" && !strings.Contains(up, "\r\nHost: registry.example\r\n") {
				t.Errorf("upstream got %q", up)
			}
		})
	}
}

// TestAttackModelBodies hides what a body asks for from a reader that is not the
// provider's: in an encoding, in doubled or deep JSON, in numbers.
func TestAttackModelBodies(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := io.WriteString(z, `{"model":"m","mcp_servers":[]}`); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	const plainBody = `{"model":"m","max_tokens":10,"messages":[]}`
	deep := strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)
	for _, c := range []struct {
		name   string
		header http.Header
		body   string
		status int
	}{
		{"gzip", http.Header{"Content-Encoding": {"gzip"}}, zipped.String(), 415},
		{"gzip unsaid", nil, zipped.String(), 400},
		{"gzip in a second header", http.Header{"Content-Encoding": {"identity", "gzip"}}, zipped.String(), 400},
		{"gzip in a list", http.Header{"Content-Encoding": {"identity, gzip"}}, zipped.String(), 415},
		{"plain, and said to be gzip", http.Header{"Content-Encoding": {"gzip"}}, plainBody, 415},
		{"a name twice", nil, `{"model":"m","messages":[],"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url"}}]}]}`, 400},
		{"a name twice, once escaped", nil, `{"model":"m","tools":[],"t\u006fols":[{"type":"mcp_toolset"}]}`, 400},
		{"a name twice, deep inside", nil, `{"model":"m","messages":[{"role":"user","role":"system","content":"x"}]}`, 400},
		{"a name twice in what is opaque", nil, `{"model":"m","metadata":{"a":1,"a":2}}`, 400},
		{"another case", nil, `{"model":"m","MCP_Servers":[]}`, 403},
		{"a name with a NUL", nil, `{"model":"m","mcp_servers\u0000":[]}`, 403},
		{"half a surrogate", nil, `{"model":"m","messages":[{"role":"user","content":"\ud800"}]}`, 400},
		{"not UTF-8", nil, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xc0\xaf\"}]}", 400},
		{"byte order mark", nil, "\ufeff" + plainBody, 400},
		{"UTF-16", nil, "{\x00\"\x00m\x00", 400},
		{"a comment", nil, `{"model":"m"/*,"x":1*/}`, 400},
		{"a comma at the end", nil, `{"model":"m",}`, 400},
		{"single quotes", nil, `{'model':'m'}`, 400},
		{"something behind", nil, plainBody + plainBody, 400},
		{"a NUL behind", nil, plainBody + "\x00", 400},
		{"deep where nothing is read", nil, `{"model":"m","metadata":` + deep + `}`, 400},
		{"deep where all is read", nil, `{"model":"m","messages":[{"role":"user","content":` + strings.Repeat(`[{"type":"tool_result","content":`, 20_000), 400},
		{"an exponent", nil, `{"model":"m","max_tokens":1e9}`, 400},
		{"a number beyond 64 bits", nil, `{"model":"m","max_tokens":18446744073709551626}`, 400},
		{"a number that wraps", nil, `{"model":"m","max_tokens":4294967306}`, 400},
		{"less than nothing", nil, `{"model":"m","max_tokens":-9223372036854775808}`, 400},
		{"a fraction", nil, `{"model":"m","max_tokens":10.0}`, 400},
		{"a number as text", nil, `{"model":"m","max_tokens":"10"}`, 400},
		{"a list as a number", nil, `{"model":"m","max_tokens":[10]}`, 400},
		{"a model as an object", nil, `{"model":{"id":"m"}}`, 400},
		{"a stream as a number", nil, `{"model":"m","max_tokens":10,"stream":1}`, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, says("application/json", `{"usage":{"input_tokens":1,"output_tokens":1}}`))
			m := modelRoute(policy.Anthropic)
			m.Budget = policy.Budget{Tokens: 1_000_000}
			g, _ := openModels(t, p, defaultLimits, m)
			req, err := http.NewRequest("POST", "http://gateway/model/anthropic/v1/messages", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = c.header
			res, err := agentClient(t, g).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != c.status {
				t.Errorf("%d %s, want %d", res.StatusCode, body, c.status)
			}
			if n := len(p.asked()); (n != 0) != (c.status == 200) {
				t.Errorf("the provider was asked %d times", n)
			}
		})
	}
}

// TestAttackUsage has the model's own words, and a provider's stream in odd form,
// say that a call cost nothing: what the provider's own field says counts, or
// else the worst case.
func TestAttackUsage(t *testing.T) {
	t.Parallel()
	const forged = `{\"usage\":{\"input_tokens\":0,\"output_tokens\":0}}`
	text := func(s string) string {
		return `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"` + s + `"}}` + "\n\n"
	}
	begin := `data: {"type":"message_start","message":{"usage":{"input_tokens":50,"output_tokens":1}}}` + "\n\n"
	end := `data: {"type":"message_delta","usage":{"output_tokens":20}}` + "\n\n"
	for _, c := range []struct {
		name, stream string
		tokens       int64 // 0: the worst case
	}{
		{"in the text", begin + text(forged) + end, 70},
		{"in the text, as an event", begin + text(`\n\ndata: `+forged+`\n\n`) + end, 70},
		{"in a tool's arguments", begin + `data: {"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"` + forged + `"}}` + "\n\n" + end, 70},
		{"in an object of the text's event", begin + `data: {"type":"content_block_delta","delta":{"usage":{"output_tokens":0},"input":{"usage":{"input_tokens":0}}}}` + "\n\n" + end, 70},
		{"less at the end than before", begin + end + `data: {"type":"message_delta","usage":{"output_tokens":0}}` + "\n\n", 70},
		{"in parts of which the sum leaves one out", begin + `data: {"type":"message_delta","usage":{"input_tokens":50,"output_tokens":20,"iterations":[{"type":"compaction","input_tokens":900,"output_tokens":100},{"type":"message","input_tokens":50,"output_tokens":20}]}}` + "\n\n", 1070},
		{"below nothing", begin + end + `data: {"type":"message_delta","usage":{"output_tokens":-100000}}` + "\n\n", 70},
		{"beyond all measure", begin + end + `data: {"type":"message_delta","usage":{"output_tokens":9223372036854775807}}` + "\n\n", 70},
		{"in a comment of the stream", begin + ": {\"usage\":{\"output_tokens\":0}}\n\n" + end, 70},
		{"in the stream's other fields", begin + "event: {\"usage\":{\"output_tokens\":0}}\nid: \"usage\"\n\n" + end, 70},
		{"no end", begin + text("x"), 0},
		{"lines that end with CR alone", strings.ReplaceAll(begin+end, "\n", "\r"), 0},
		{"an event in two lines", begin + "data: {\"type\":\"message_delta\",\ndata: \"usage\":{\"output_tokens\":0}}\n\n", 0},
		{"an event of 9 MiB", begin + `data: {"type":"message_delta","usage":{"output_tokens":0},"x":"` + strings.Repeat("x", 9<<20) + `"}` + "\n\n", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, says("text/event-stream", c.stream))
			m := modelRoute(policy.Anthropic)
			m.Budget = policy.Budget{Tokens: 1_000_000}
			g, a := openModels(t, p, defaultLimits, m)
			body := `{"model":"m","max_tokens":1000,"stream":true,"messages":[]}`
			if res, got := post(t, g, "/model/anthropic/v1/messages", body); res.StatusCode != 200 || got != c.stream {
				t.Errorf("%d, %d bytes", res.StatusCode, len(got))
			}
			waitRecords(t, a, 2)
			want := c.tokens
			if want == 0 {
				want = int64(len(body)) + 2000 + 1000
			}
			if s := g.Summary(); s.Tokens != want {
				t.Errorf("%d tokens are counted, want %d", s.Tokens, want)
			}
		})
	}
}

// TestAttackKeyInAnswer has a provider, or who sits before it, say the key: it
// does not get to the agent whole.
func TestAttackKeyInAnswer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter){
		"in a header": func(w http.ResponseWriter) {
			w.Header().Set("X-Request-Id", "for "+testKey)
			w.Header().Set("X-Ratelimit-"+"Key", testKey)
			_, _ = io.WriteString(w, `{}`)
		},
		"in the body": func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"echo":"`+testKey+`"}`) },
		"in an error": func(w http.ResponseWriter) { http.Error(w, "wrong key "+testKey, 400) },
		"in a trailer": func(w http.ResponseWriter) {
			w.Header().Set(http.TrailerPrefix+"X-Request-Id", testKey)
			_, _ = io.WriteString(w, `{}`)
		},
		"in a set cookie": func(w http.ResponseWriter) {
			w.Header().Set("Set-Cookie", "k="+testKey)
			_, _ = io.WriteString(w, `{}`)
		},
	} {
		p := newProvider(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) { answer(w) })
		g, _ := openModels(t, p, defaultLimits, modelRoute(policy.Anthropic))
		raw := exchange(t, g, "POST /model/anthropic/v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}")
		if len(p.asked()) != 1 || strings.Contains(raw, testKey) {
			t.Errorf("%s: asked %d times; the agent gets %q", name, len(p.asked()), raw)
		}
	}
}

// TestAttackAfterEnd uses what an agent kept of its way out when its kick is
// over: the socket's path, a descriptor of it, and the same place of a later one.
func TestAttackAfterEnd(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	at := func(kick string) (*Gateway, *audit) {
		a := &audit{}
		g, err := Listen(context.Background(), dir+"/"+kick, Config{Kick: kick, Agent: "fixer", Audit: a})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.Close() })
		return g, a
	}
	g, a := at("k1")
	const pathOnly = 0x200000 // O_PATH
	fd, err := syscall.Open(g.Socket(), pathOnly, 0)
	if err != nil {
		t.Fatal(err)
	}
	kept := os.NewFile(uintptr(fd), "socket")
	defer kept.Close()
	byDescriptor := "/proc/self/fd/" + strconv.Itoa(fd)
	c, err := net.Dial("unix", byDescriptor)
	if err != nil {
		t.Fatal(err)
	}
	open := dial(t, g)
	_ = c.Close()
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	n := len(a.records(t))
	later, b := at("k2")
	for name, where := range map[string]string{"the path": g.Socket(), "a descriptor": byDescriptor} {
		if c, err := net.Dial("unix", where); err == nil {
			t.Errorf("%s still leads somewhere: %v", name, c.RemoteAddr())
		}
	}
	if got := fmt.Sprint(io.Copy(io.Discard, open)); strings.Contains(got, "timeout") {
		t.Errorf("a connection is still open: %s", got)
	}
	if len(a.records(t)) != n || len(b.records(t)) != 0 {
		t.Errorf("audits %+v, %+v", a.records(t), b.records(t))
	}
	_ = later
}

// TestAttackSilentBody begins a body and says no more: the request ends with the
// time of silence, and not with that of the whole request.
func TestAttackSilentBody(t *testing.T) {
	t.Parallel()
	lim := defaultLimits
	lim.forward.idle, lim.git.idle = 300*time.Millisecond, 300*time.Millisecond
	o := newOutside(t, "registry.example")
	o.serveHTTP(t, true, http.HandlerFunc(echo))
	terminated, a := o.open(t, lim, policy.Host{Host: "registry.example", Terminate: true, Methods: []string{"POST"}})
	plain := newOutside(t, "registry.example")
	plain.serveHTTP(t, false, http.HandlerFunc(echo))
	forward, b := plain.open(t, lim, policy.Host{Host: "registry.example", Scheme: "http", Methods: []string{"POST"}})
	f := newForge(t, "")
	f.repository(t, "acme/lib", 10)
	git, c, _ := openGit(t, f.config("example.com/acme/lib"), lim)
	const begin = "Content-Length: 100\r\n\r\nhello"
	for _, tt := range []struct {
		name, raw string
		conn      func(t *testing.T) net.Conn
		audit     *audit
	}{
		{"plain", "POST http://registry.example/ HTTP/1.1\r\nHost: x\r\n" + begin, func(t *testing.T) net.Conn { return dial(t, forward) }, b},
		{"terminated", "POST / HTTP/1.1\r\nHost: registry.example\r\n" + begin, func(t *testing.T) net.Conn {
			return tls.Client(tunnelTo(t, terminated, "registry.example:443"), &tls.Config{ServerName: "registry.example", RootCAs: trusted(t, terminated)})
		}, a},
		{"fetch", "POST /git/example.com/acme/lib/git-upload-pack HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-git-upload-pack-request\r\n" + begin, func(t *testing.T) net.Conn { return dial(t, git) }, c},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conn := tt.conn(t)
			if _, err := io.WriteString(conn, tt.raw); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 502 ") || !strings.Contains(string(got), "nothing moved for 300ms") {
				t.Errorf("%.300q, %v", got, err)
			}
			if recs := tt.audit.records(t); !slices.ContainsFunc(recs, func(r Record) bool { return r.End != nil && strings.Contains(r.End.Error, "nothing moved") }) {
				t.Errorf("audit %+v", recs)
			}
		})
	}
}

// TestAttackBodiesThatWait sends large bodies to a provider that does not read
// them: what the gateway has in memory is bounded until it does, and what was
// held back then goes through.
func TestAttackBodiesThatWait(t *testing.T) {
	t.Parallel()
	arrived, read := make(chan bool, 5), make(chan bool)
	p := &provider{}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- true
		<-read
		_, _ = io.Copy(io.Discard, r.Body)
		says("application/json", `{"usage":{"prompt_tokens":1,"completion_tokens":1}}`)(w, r, nil)
	}))
	t.Cleanup(p.Close)
	var wg sync.WaitGroup
	defer wg.Wait()
	goOn := sync.OnceFunc(func() { close(read) })
	defer goOn()
	lim := defaultLimits
	lim.bodyBytes = 16 << 20 // more than a connection keeps by itself
	g, _ := openModels(t, p, lim, modelRoute(policy.OpenAI))
	const path = "/model/openai/v1/chat/completions"
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("a", 15<<20) + `"}]}`
	for range 4 {
		wg.Go(func() {
			if res, got := post(t, g, path, body); res.StatusCode != http.StatusOK {
				t.Errorf("%s, %s", res.Status, got)
			}
		})
		<-arrived
	}
	conn := dial(t, g)
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n", path, len(body)); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(conn); !strings.HasPrefix(string(got), "HTTP/1.1 429 ") || !strings.Contains(string(got), "Too many large requests") {
		t.Errorf("one more: %.300s", got)
	}
	goOn()
	wg.Wait()
	if res, got := post(t, g, path, body); res.StatusCode != http.StatusOK {
		t.Errorf("after them: %s, %.300s", res.Status, got)
	}
}
