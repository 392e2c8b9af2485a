package egress

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
)

// publicAddr is an address that may be connected to; the outside of a test
// leads it to a listener on loopback.
var publicAddr = netip.MustParseAddr("93.184.215.14")

// outside is what a gateway under test has for the internet: names with
// addresses, and one real server behind all addresses.
type outside struct {
	addrs  map[string][]netip.Addr
	server string // address of the real listener
	ca     *authority

	mu      sync.Mutex
	lookups []string
	dials   []string
}

func (o *outside) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lookups = append(o.lookups, host)
	a, ok := o.addrs[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return a, nil
}

func (o *outside) dial(ctx context.Context, network, address string) (net.Conn, error) {
	o.mu.Lock()
	o.dials = append(o.dials, address)
	o.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, network, o.server)
}

func (o *outside) dialed() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.dials)
}

func (o *outside) lookedUp() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.lookups)
}

func newOutside(t *testing.T, hosts ...string) *outside {
	t.Helper()
	ca, err := newAuthority("upstream")
	if err != nil {
		t.Fatal(err)
	}
	o := &outside{addrs: map[string][]netip.Addr{}, ca: ca}
	for _, h := range hosts {
		o.addrs[h] = []netip.Addr{publicAddr}
	}
	return o
}

// serveHTTP puts a real HTTP server outside, with TLS or without.
func (o *outside) serveHTTP(t *testing.T, withTLS bool, h http.Handler) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = nil
	if withTLS {
		s.TLS = o.serverTLS()
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	o.server = s.Listener.Addr().String()
}

// serverTLS has a certificate for any name that is asked for.
func (o *outside) serverTLS() *tls.Config {
	return &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, err := o.ca.leaf(h.ServerName)
		return &c, err
	}}
}

// serveRaw puts a server outside that a function speaks for.
func (o *outside) serveRaw(t *testing.T, f func(net.Conn)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.serveOn(t, l, f)
}

// serveOn puts a server outside that a function speaks for on a listener.
func (o *outside) serveOn(t *testing.T, l net.Listener, f func(net.Conn)) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	o.server = l.Addr().String()
}

func (o *outside) roots() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(o.ca.cert)
	return p
}

// openTo opens a gateway to an outside.
func (o *outside) open(t *testing.T, lim limits, hosts ...policy.Host) (*Gateway, *audit) {
	t.Helper()
	return openConfig(t, lim, o.config(hosts...))
}

func (o *outside) config(hosts ...policy.Host) Config {
	return Config{
		Kick: "k0000000000001", Agent: "fixer", Policy: policy.Egress{Hosts: hosts},
		Roots: o.roots(), Resolve: o.resolve, Dial: o.dial,
	}
}

// client is an agent's HTTP client behind the gateway.
func client(t *testing.T, g *Gateway, roots *x509.CertPool) *http.Client {
	t.Helper()
	tr := &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "gateway"}),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", g.Socket())
		},
		TLSClientConfig: &tls.Config{RootCAs: roots},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// trusted reads the certificates that the gateway gives its sandbox.
func trusted(t *testing.T, g *Gateway) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(filepath.Join(filepath.Dir(g.Socket()), TrustName))
	if err != nil {
		t.Fatal(err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		t.Fatal("the file of trusted certificates holds none")
	}
	return p
}

func get(t *testing.T, c *http.Client, u string) (int, string) {
	t.Helper()
	res, err := c.Get(u)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// waitRecords waits until the audit has n records: an end is written after the
// client has its answer.
func waitRecords(t *testing.T, a *audit, n int) []Record {
	t.Helper()
	late := time.After(time.Minute)
	for {
		next := a.next()
		if got := a.records(t); len(got) >= n {
			return got
		}
		select {
		case <-next:
		case <-late:
			t.Fatalf("the audit has %+v, want %d records", a.records(t), n)
		}
	}
}

// echo tells what a request looks like upstream.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s %v %s", r.Method, r.Host, r.RequestURI, r.TransferEncoding, body)
	for _, h := range []string{"Authorization", "Proxy-Authorization", "Proxy-Connection", "Connection", "X-Hop", "Upgrade", "X-Forwarded-For", "Accept-Encoding", "User-Agent"} {
		if v := r.Header.Values(h); len(v) > 0 {
			fmt.Fprintf(w, "\n%s: %v", h, v)
		}
	}
}

func TestForwardPlain(t *testing.T) {
	t.Parallel()
	o := newOutside(t, "registry.example")
	o.serveHTTP(t, false, http.HandlerFunc(echo))
	g, a := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Scheme: "http", Methods: []string{"GET", "HEAD", "POST"}, Paths: []string{"/pkg/**"}})
	c := client(t, g, nil)

	req, err := http.NewRequest("POST", "http://registry.example/pkg/a?q=1", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Proxy-Authorization": "x", "Connection": "X-Hop", "X-Hop": "1", "Upgrade": "h2c", "User-Agent": "agent/1", "Accept-Encoding": "br"} {
		req.Header.Set(k, v)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if want := "POST registry.example /pkg/a?q=1 [] hello\nConnection: [close]\nAccept-Encoding: [br]\nUser-Agent: [agent/1]"; err != nil || string(b) != want {
		t.Errorf("upstream saw %q, %v; want %q", b, err, want)
	}
	if code, body := get(t, c, "http://registry.example/other"); code != 403 || !strings.Contains(body, "policy_denied") {
		t.Errorf("a path that is not allowed: %d %s", code, body)
	}
	if code, body := get(t, c, "http://other.example/pkg/a"); code != 403 || !strings.Contains(body, "default-deny") {
		t.Errorf("a host that is not allowed: %d %s", code, body)
	}
	got := waitRecords(t, a, 4)
	if got[0].Event != Decided || got[0].Verdict != Allowed || got[0].Form != AbsoluteForm || got[0].Rule == "" {
		t.Errorf("first record %+v", got[0])
	}
	if e := got[1].End; got[1].Event != Done || e == nil || e.Status != 200 || e.Sent != 5 || e.Got != int64(len(b)) || e.Error != "" {
		t.Errorf("end %+v of %+v", e, got[1])
	}
	if s := g.Summary(); s.Allowed != 1 || s.Denied != 2 || s.Bytes != 5+int64(len(b)) {
		t.Errorf("summary %+v", s)
	}
	if l := o.lookedUp(); len(l) != 1 { // exfiltration by DNS: what is denied is not asked for
		t.Errorf("looked up %q", l)
	}
}

func TestForwardTunnel(t *testing.T) {
	t.Parallel()
	o := newOutside(t, "registry.example")
	o.serveHTTP(t, true, http.HandlerFunc(echo))
	g, a := o.open(t, defaultLimits, policy.Host{Host: "registry.example"})
	if g.Terminates() {
		t.Error("the gateway has an authority without need")
	}
	code, body := get(t, client(t, g, o.roots()), "https://registry.example/any")
	if code != 200 || !strings.HasPrefix(body, "GET registry.example /any") {
		t.Errorf("answer %d %s", code, body)
	}
	if d := o.dialed(); !slices.Equal(d, []string{"93.184.215.14:443"}) {
		t.Errorf("connected to %v", d)
	}
	client(t, g, nil).CloseIdleConnections()
	if r := a.records(t)[0]; r.Form != ConnectForm || r.Verdict != Allowed {
		t.Errorf("record %+v", r)
	}
	if err := g.Close(); err != nil { // cuts the tunnel, which is kept alive
		t.Error(err)
	}
	got := a.records(t)
	if e := got[len(got)-1].End; len(got) != 2 || e == nil || e.Status != 200 || e.Sent < 200 || e.Got < int64(len(body)) {
		t.Errorf("audit %+v, end %+v", got, e)
	}
}

func TestForwardTerminated(t *testing.T) {
	t.Parallel()
	o := newOutside(t, "registry.example")
	o.serveHTTP(t, true, http.HandlerFunc(echo))
	g, a := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Terminate: true, Paths: []string{"/pkg/**"}})
	c := client(t, g, trusted(t, g))
	for range 2 {
		if code, body := get(t, c, "https://registry.example/pkg/a"); code != 200 || !strings.HasPrefix(body, "GET registry.example /pkg/a") {
			t.Errorf("answer %d %s", code, body)
		}
	}
	if d := o.dialed(); len(d) != 1 {
		t.Errorf("two requests of one tunnel connected to %v", d)
	}
	if code, body := get(t, c, "https://registry.example/other"); code != 403 || !strings.Contains(body, "policy_denied") {
		t.Errorf("a path that is not allowed: %d %s", code, body)
	}
	if res, err := c.Post("https://registry.example/pkg/a", "text/plain", strings.NewReader("x")); err != nil || res.StatusCode != 403 {
		t.Errorf("a method that is not allowed: %v, %v", res, err)
	} else {
		res.Body.Close()
	}
	forms := map[Form]int{}
	for _, r := range a.records(t) {
		if r.Event == Decided {
			forms[r.Form]++
		}
	}
	if forms[TerminatedForm] != 4 || forms[ConnectForm] < 1 {
		t.Errorf("decisions by form: %v", forms)
	}
	// Who does not trust the gateway's authority gets nowhere.
	if _, err := client(t, g, o.roots()).Get("https://registry.example/pkg/a"); err == nil {
		t.Error("the certificate is trusted without the gateway's authority")
	}
}

// TestForwardVerifiesUpstream has a server whose certificate no root vouches
// for.
func TestForwardVerifiesUpstream(t *testing.T) {
	t.Parallel()
	o := newOutside(t, "registry.example")
	o.serveHTTP(t, true, http.HandlerFunc(echo))
	other, err := newAuthority("other")
	if err != nil {
		t.Fatal(err)
	}
	real := o.ca
	o.ca = other
	g, a := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Terminate: true})
	o.ca = real
	code, body := get(t, client(t, g, trusted(t, g)), "https://registry.example/")
	if code != http.StatusBadGateway || !strings.Contains(body, "upstream_failed") || !strings.Contains(body, "certificate") {
		t.Errorf("answer %d %s", code, body)
	}
	got := waitRecords(t, a, 3)
	if e := got[2].End; e == nil || e.Status != 502 || e.Error == "" {
		t.Errorf("end %+v", e)
	}
}

// goDown leaves nothing to answer outside.
func (o *outside) goDown(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.server = l.Addr().String()
	l.Close()
}

func TestForwardUnreachable(t *testing.T) {
	t.Parallel()
	o := newOutside(t, "down.example")
	o.goDown(t)
	g, _ := o.open(t, defaultLimits, policy.Host{Host: "down.example", Scheme: "http"}, policy.Host{Host: "down.example"}, policy.Host{Host: "unknown.example", Scheme: "http"})
	c := client(t, g, nil)
	for _, u := range []string{"http://down.example/", "http://unknown.example/"} {
		if code, body := get(t, c, u); code != 502 || !strings.Contains(body, "upstream_failed") {
			t.Errorf("%s: %d %s", u, code, body)
		}
	}
	if got := exchange(t, g, "CONNECT down.example:443 HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 502") {
		t.Errorf("tunnel: %.200q", got)
	}
}

// TestAttackDecompressionBomb is the decompression bomb: the gateway does not open
// it.
func TestAttackDecompressionBomb(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := io.CopyN(z, zeros{}, 64<<20); err != nil {
		t.Fatal(err)
	}
	z.Close()
	o := newOutside(t, "registry.example")
	o.serveHTTP(t, false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(bomb.Bytes())
	}))
	lim := defaultLimits
	lim.forward.bytes = int64(bomb.Len()) // not a byte more
	g, a := o.open(t, lim, policy.Host{Host: "registry.example", Scheme: "http"})
	raw := exchange(t, g, "GET http://registry.example/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(raw)), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil || !bytes.Equal(body, bomb.Bytes()) || res.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("got %d bytes (%s), %v; want the %d that were sent", len(body), res.Header.Get("Content-Encoding"), err, bomb.Len())
	}
	if e := waitRecords(t, a, 2)[1].End; e.Got != int64(bomb.Len()) || e.Error != "" {
		t.Errorf("end %+v", e)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestProxyOfTheOperator has a host that reaches the outside by a proxy alone:
// the proxy is not used, and the answer says what to do.
func TestProxyOfTheOperator(t *testing.T) {
	t.Parallel()
	used := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the proxy is used") }))
	defer used.Close()
	o := newOutside(t, "down.example")
	o.goDown(t)
	m := modelRoute(policy.Anthropic)
	g, a := openConfig(t, defaultLimits, Config{
		Policy:  policy.Egress{Models: []policy.Model{m}, Hosts: []policy.Host{{Host: "down.example", Scheme: "http"}, {Host: "unresolved.example", Scheme: "http"}}, Git: []string{"down.example/acme/lib"}},
		Resolve: o.resolve, Dial: o.dial, Ledgers: t.TempDir(),
		LookupEnv: func(name string) (string, bool) {
			v, ok := map[string]string{"https_proxy": used.URL, m.KeyEnv: testKey}[name]
			return v, ok
		},
	})
	for _, raw := range []string{
		"GET http://down.example/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"GET http://unresolved.example/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"GET /git/down.example/acme/lib/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		if got := exchange(t, g, raw); !strings.HasPrefix(got, "HTTP/1.1 502") || !strings.Contains(got, "does not use the proxy of https_proxy") {
			t.Errorf("%q: %.400q", raw, got)
		}
	}
	if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"m"}`); res.StatusCode != 502 {
		t.Errorf("%d %s", res.StatusCode, got)
	}
	recs := waitRecords(t, a, 8)
	if last := recs[len(recs)-1]; last.End == nil || !strings.Contains(last.End.Error, "does not use the proxy") {
		t.Errorf("audit %+v", last.End)
	}
}

// TestAnswerBeforeTheBodyEnds has an upstream answer while the request's body is
// still on its way, as servers of streams and of refusals do: both go through
// whole, in either form and as a fetch.
func TestAnswerBeforeTheBodyEnds(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	early := func(kind string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			if err := rc.EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(r.Body, make([]byte, 5)); err != nil {
				t.Error(err)
			}
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, "early ")
			_ = rc.Flush()
			rest, err := io.ReadAll(r.Body)
			if err != nil {
				t.Errorf("the body broke off: %v", err)
			}
			_, _ = io.WriteString(w, string(rest)+long)
		}
	}
	plain, ended, forge := newOutside(t, "registry.example"), newOutside(t, "registry.example"), newOutside(t, "registry.example")
	plain.serveHTTP(t, false, early("text/plain"))
	ended.serveHTTP(t, true, early("text/plain"))
	forge.serveHTTP(t, true, early("application/x-git-upload-pack-result"))
	post := []string{"POST"}
	forward, _ := plain.open(t, defaultLimits, policy.Host{Host: "registry.example", Scheme: "http", Methods: post})
	terminated, _ := ended.open(t, defaultLimits, policy.Host{Host: "registry.example", Terminate: true, Methods: post})
	git, _ := openConfig(t, defaultLimits, Config{Policy: policy.Egress{Git: []string{"registry.example/acme/lib"}}, Roots: forge.roots(), Resolve: forge.resolve, Dial: forge.dial})
	for name, c := range map[string]struct {
		conn func(t *testing.T) net.Conn
		line string
	}{
		"plain": {func(t *testing.T) net.Conn { return dial(t, forward) }, "POST http://registry.example/a HTTP/1.1\r\nHost: x\r\n"},
		"terminated": {func(t *testing.T) net.Conn {
			return tls.Client(tunnelTo(t, terminated, "registry.example:443"), &tls.Config{ServerName: "registry.example", RootCAs: trusted(t, terminated)})
		}, "POST /a HTTP/1.1\r\nHost: registry.example\r\n"},
		"fetch": {func(t *testing.T) net.Conn { return dial(t, git) }, "POST /git/registry.example/acme/lib/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-git-upload-pack-request\r\n"},
	} {
		for _, framing := range []string{"Content-Length: 10\r\n\r\nhello|world", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n|5\r\nworld\r\n0\r\n\r\n"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				conn := c.conn(t)
				first, second, _ := strings.Cut(framing, "|")
				if _, err := io.WriteString(conn, c.line+first); err != nil {
					t.Fatal(err)
				}
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				begin := make([]byte, len("early "))
				if _, err := io.ReadFull(res.Body, begin); err != nil || string(begin) != "early " {
					t.Fatalf("%s: %q, %v", res.Status, begin, err)
				}
				if _, err := io.WriteString(conn, second); err != nil {
					t.Fatal(err)
				}
				if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "world"+long {
					t.Errorf("%d bytes, %v", len(rest), err)
				}
			})
		}
	}
}
