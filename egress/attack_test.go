package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
)

// The attacks are those of docs/security/egress.md.

// seen keeps the raw requests that an upstream got: what it would parse.
type seen struct {
	mu   sync.Mutex
	raws []string
}

func (s *seen) add(raw string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raws = append(s.raws, raw)
}

func (s *seen) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.raws, "\n---\n")
}

// serveSeen puts a server outside that keeps every byte it gets, answers the
// first request and reads on to the end of the connection: what a naive server
// would take for a second request is in it too.
func (o *outside) serveSeen(t *testing.T) *seen {
	t.Helper()
	s := &seen{}
	o.serveRaw(t, func(c net.Conn) {
		var all bytes.Buffer
		in := bufio.NewReader(io.TeeReader(c, &all))
		r, err := http.ReadRequest(in)
		if err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			_, _ = io.Copy(io.Discard, in)
		}
		s.add(all.String())
	})
	return s
}

func TestAttackRebinding(t *testing.T) {
	t.Parallel()
	for name, terminate := range map[string]bool{"passed through": false, "terminated": true} {
		o := newOutside(t, "rebind.example")
		o.serveHTTP(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close") // each request needs a new connection upstream
			echo(w, r)
		}))
		var mu sync.Mutex
		lookups := 0
		g, err := listen(context.Background(), shortDir(t)+"/egress", Config{
			Policy: policy.Egress{Hosts: []policy.Host{{Host: "rebind.example", Terminate: terminate}}},
			Audit:  io.Discard, Roots: o.roots(), Dial: o.dial,
			Resolve: func(context.Context, string) ([]netip.Addr, error) {
				mu.Lock()
				defer mu.Unlock()
				lookups++
				if lookups == 1 {
					return []netip.Addr{publicAddr}, nil
				}
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			},
		}, defaultLimits)
		if err != nil {
			t.Fatal(err)
		}
		roots := o.roots()
		if terminate {
			roots = trusted(t, g)
		}
		c := client(t, g, roots)
		if terminate {
			for range 2 { // in one tunnel: the name counts once
				if code, body := get(t, c, "https://rebind.example/"); code != 200 {
					t.Errorf("%s: %d %s", name, code, body)
				}
			}
		} else if code, body := get(t, c, "https://rebind.example/"); code != 200 {
			t.Errorf("%s: %d %s", name, code, body)
		}
		c.CloseIdleConnections()
		if got := exchange(t, g, "CONNECT rebind.example:443 HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 403") || !strings.Contains(got, "127.0.0.1") {
			t.Errorf("%s: once the name leads inside: %.300q", name, got)
		}
		for _, d := range o.dialed() {
			if d != "93.184.215.14:443" {
				t.Errorf("%s: connected to %s", name, d)
			}
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAttackSpecialAddresses(t *testing.T) {
	t.Parallel()
	list := []string{
		"0.0.0.0", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.9.9.9", "169.254.169.254", "172.16.0.1", "192.168.1.1",
		"192.0.0.192", "198.18.0.1", "224.0.0.1", "239.255.255.250", "255.255.255.255", "168.63.129.16",
		"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1",
		"2002:7f00:1::", "2001:0:1::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1",
	}
	own, err := ownAddresses()
	if err != nil || len(own) == 0 {
		t.Fatalf("this machine's addresses: %v, %v", own, err)
	}
	for _, a := range own {
		list = append(list, a.String())
	}
	o := newOutside(t)
	for i, a := range list {
		o.addrs[fmt.Sprintf("h%d.example", i)] = []netip.Addr{netip.MustParseAddr(a)}
	}
	var hosts []policy.Host
	for i := range list {
		h := fmt.Sprintf("h%d.example", i)
		hosts = append(hosts, policy.Host{Host: h}, policy.Host{Host: h, Scheme: "http"})
	}
	g, a := o.open(t, defaultLimits, hosts...)
	for i, addr := range list {
		t.Run(addr, func(t *testing.T) {
			for _, raw := range []string{
				fmt.Sprintf("CONNECT h%d.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", i),
				fmt.Sprintf("GET http://h%d.example/latest/meta-data/ HTTP/1.1\r\nHost: x\r\n\r\n", i),
			} {
				res, body := response(t, "GET", exchange(t, g, raw))
				if res.StatusCode != 403 || !strings.HasPrefix(body["rule"], "address-") {
					t.Errorf("%d %v", res.StatusCode, body)
				}
			}
		})
	}
	if d := o.dialed(); len(d) != 0 {
		t.Errorf("connected to %v", d)
	}
	if n := len(a.records(t)); n != 2*len(list) {
		t.Errorf("%d records of %d requests", n, 2*len(list))
	}
}

// TestForwardAcceptedAddress is an on-premises registry: its private address
// is named by the operator, and no other address of it is taken.
func TestForwardAcceptedAddress(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	o.addrs["registry.corp.example"] = []netip.Addr{netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("::ffff:10.1.2.3"), publicAddr}
	o.serveHTTP(t, false, http.HandlerFunc(echo))
	g, _ := o.open(t, defaultLimits, policy.Host{Host: "registry.corp.example", Scheme: "http", Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	if code, body := get(t, client(t, g, nil), "http://registry.corp.example/"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if d := o.dialed(); !slices.Equal(d, []string{"10.1.2.3:80"}) {
		t.Errorf("connected to %v", d)
	}
}

func TestAttackAddressLiterals(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	g, _ := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Scheme: "http"})
	for _, h := range []string{
		"127.0.0.1", "169.254.169.254", "93.184.215.14", "2130706433", "017700000001", "0177.0.0.1", "0x7f000001", "0x7f.0.0.1", "0X7F.1",
		"127.1", "127.0.1", "1.2.3.4.", "0", "0x", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "registry.example.127",
	} {
		t.Run(h, func(t *testing.T) {
			for _, raw := range []string{"CONNECT " + h + ":443 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://" + h + "/ HTTP/1.1\r\nHost: registry.example\r\n\r\n"} {
				res, body := response(t, "GET", exchange(t, g, raw))
				if res.StatusCode != 403 || body["rule"] != "host-form" {
					t.Errorf("%d %v", res.StatusCode, body)
				}
			}
		})
	}
	if l := o.lookedUp(); len(l) != 0 {
		t.Errorf("looked up %q", l)
	}
}

func TestAttackTargets(t *testing.T) {
	t.Parallel()
	o := newOutside(t, "registry.example")
	g, _ := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Scheme: "http"}, policy.Host{Host: "registry.example"})
	for _, c := range []struct{ name, raw, want string }{
		{"port 22", "CONNECT registry.example:22 HTTP/1.1\r\nHost: x\r\n\r\n", "port"},
		{"another scheme's port", "CONNECT registry.example:80 HTTP/1.1\r\nHost: x\r\n\r\n", "scheme"},
		{"port with a zero", "CONNECT registry.example:0443 HTTP/1.1\r\nHost: x\r\n\r\n", "port-unclear"},
		{"port that wraps", "CONNECT registry.example:65979 HTTP/1.1\r\nHost: x\r\n\r\n", "port-unclear"}, // 443 and 65536
		{"no port", "CONNECT registry.example HTTP/1.1\r\nHost: x\r\n\r\n", "port-missing"},
		{"empty port", "CONNECT registry.example: HTTP/1.1\r\nHost: x\r\n\r\n", "port-unclear"},
		{"dot at the end", "CONNECT registry.example.:443 HTTP/1.1\r\nHost: x\r\n\r\n", "host-form"},
		{"longer name", "CONNECT xregistry.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", "default-deny"},
		{"fragment in a name", "CONNECT evil.example#registry.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"letter that folds to ASCII", "CONNECT registry\u212a.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", "host-form"},
		{"user", "GET http://evil.example@registry.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "user-in-url"},
		{"host as user", "GET http://registry.example@evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "user-in-url"},
		{"https in absolute form", "GET https://registry.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "scheme-not-permitted"},
		{"ftp", "GET ftp://registry.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "scheme-not-permitted"},
		{"scheme without slashes", "GET http:registry.example/ HTTP/1.1\r\nHost: registry.example\r\n\r\n", "host-form"},
		{"port 22 in absolute form", "GET http://registry.example:22/ HTTP/1.1\r\nHost: registry.example\r\n\r\n", "port"},
		{"host of the absolute form", "GET http://evil.example/ HTTP/1.1\r\nHost: registry.example\r\n\r\n", "default-deny"},
		{"body of a GET", "GET http://registry.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "body-not-permitted"},
		{"two slashes as a host", "GET //registry.example/ HTTP/1.1\r\nHost: registry.example\r\n\r\n", "default-deny"},
		{"origin form", "GET /x HTTP/1.1\r\nHost: registry.example\r\n\r\n", "default-deny"},
		{"TRACE", "TRACE http://registry.example/ HTTP/1.1\r\nHost: registry.example\r\n\r\n", "method"},
		{"CONNECT-UDP", "CONNECT-UDP http://registry.example/ HTTP/1.1\r\nHost: registry.example\r\n\r\n", "method"},
		{"encoded dots", "GET http://registry.example/%2e%2e/ HTTP/1.1\r\nHost: registry.example\r\n\r\n", "path-form"},
		{"parent directory", "GET http://registry.example/a/../b HTTP/1.1\r\nHost: registry.example\r\n\r\n", ""},
		{"backslash and user", "GET http://registry.example\\@evil.example/ HTTP/1.1\r\nHost: registry.example\r\n\r\n", "400"},
		{"two hosts", "GET http://registry.example/ HTTP/1.1\r\nHost: registry.example\r\nHost: x.example\r\n\r\n", "400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := exchange(t, g, c.raw)
			if bad := strings.HasPrefix(got, "HTTP/1.1 400"); bad || c.want == "400" {
				if !bad || c.want != "400" {
					t.Errorf("%q: %.200q, c.want %q", c.raw, got, c.want)
				}
				return
			}
			res, body := response(t, "GET", got)
			if res.StatusCode != 403 || c.want != "" && body["rule"] != c.want {
				t.Errorf("%q: %d %v, c.want rule %q", c.raw, res.StatusCode, body, c.want)
			}
		})
	}
	if d := o.dialed(); len(d) != 0 {
		t.Errorf("connected to %v", d)
	}
}

// echConfig is an ECHConfigList whose outer name is public (RFC 9849, 4).
func echConfig(t *testing.T, public string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := []byte{7, 0, 0x20, 0, 32} // id, KEM X25519, length of the key
	c = append(c, key.PublicKey().Bytes()...)
	c = append(c, 0, 4, 0, 1, 0, 1, 64, byte(len(public))) // HKDF-SHA256, AES-128-GCM, longest name
	c = append(c, public...)
	c = append(c, 0, 0)
	c = append(binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(c))), c...)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(c))), c...)
}

// tunnelTo opens a tunnel and returns it.
func tunnelTo(t *testing.T, g *Gateway, hostPort string) net.Conn {
	t.Helper()
	c := dial(t, g)
	if _, err := io.WriteString(c, "CONNECT "+hostPort+" HTTP/1.1\r\nHost: "+hostPort+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	const want = "HTTP/1.1 200 Connection established\r\n\r\n"
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("CONNECT gives %q, %v", b, err)
	}
	return c
}

func TestAttackSNI(t *testing.T) {
	t.Parallel()
	hello := func(cfg *tls.Config) func(*testing.T, net.Conn) {
		return func(t *testing.T, c net.Conn) {
			cfg.InsecureSkipVerify = true
			if err := tls.Client(c, cfg).Handshake(); err == nil {
				t.Error("the handshake succeeds")
			}
		}
	}
	raw := func(s string) func(*testing.T, net.Conn) {
		return func(_ *testing.T, c net.Conn) { _, _ = io.WriteString(c, s) }
	}
	tests := []struct {
		name, rule string
		send       func(*testing.T, net.Conn)
	}{
		{"another host", "sni-mismatch", hello(&tls.Config{ServerName: "evil.example"})},
		{"a host above", "sni-mismatch", hello(&tls.Config{ServerName: "example"})},
		{"no host", "sni-missing", hello(&tls.Config{})},
		{"an address", "sni-missing", hello(&tls.Config{ServerName: "93.184.215.14"})},
		{"ECH", "encrypted-client-hello", hello(&tls.Config{ServerName: "evil.example", EncryptedClientHelloConfigList: echConfig(t, "registry.example"), MinVersion: tls.VersionTLS13})},
		{"plain HTTP", "", raw("GET / HTTP/1.1\r\nHost: registry.example\r\n\r\n")},
		{"SSH", "", raw("SSH-2.0-OpenSSH_9.9\r\n")},
		{"HTTP/2 in clear", "", raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
		{"SSL 2", "", raw("\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + strings.Repeat("\x01", 40))},
		{"an alert first", "", raw("\x15\x03\x01\x00\x02\x01\x00")},
		{"an endless hello", "", raw("\x16\x03\x01\x40\x00\x01\x00\xff\xff" + strings.Repeat("\x00", 1<<20))},
		{"a hello in records of a byte", "", raw("\x16\x03\x01\x00\x01\x01" + strings.Repeat("\x16\x03\x01\x00\x01\x00", 1<<16))},
		{"a broken hello", "", raw("\x16\x03\x01\x00\x08\x01\x00\x00\x04\x03\x03\x00\x00")},
	}
	for _, terminate := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, terminate %v", tt.name, terminate), func(t *testing.T) {
				t.Parallel()
				o := newOutside(t, "registry.example")
				s := o.serveSeen(t)
				g, a := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Terminate: terminate})
				c := tunnelTo(t, g, "registry.example:443")
				tt.send(t, c)
				_, _ = io.Copy(io.Discard, c) // until the gateway hangs up
				got := waitRecords(t, a, 3)
				i := slices.IndexFunc(got, func(r Record) bool { return r.Verdict == Denied })
				if i < 0 || tt.rule != "" && got[i].Rule != tt.rule || tt.rule == "" && got[i].Rule != "not-tls" && got[i].Rule != "tls-failed" {
					t.Errorf("audit %+v, want a denial by %q", got, tt.rule)
				}
				if err := g.Close(); err != nil {
					t.Error(err)
				}
				if up := s.all(); up != "" {
					t.Errorf("upstream got %q", up)
				}
			})
		}
	}
}

// TestAttackSlowTunnel never sends, or trickles, a ClientHello and a header in
// the TLS that ends here.
func TestAttackSlowTunnel(t *testing.T) {
	t.Parallel()
	slowHello, slowHeader := defaultLimits, defaultLimits
	slowHello.forward.hello = time.Second
	slowHeader.headerTime = time.Second // long enough for an honest CONNECT on a busy machine
	trickling := func(t *testing.T, g *Gateway, begin string) net.Conn {
		c := tunnelTo(t, g, "registry.example:443")
		go dribble(c, begin)
		return c
	}
	for name, tt := range map[string]struct {
		lim       limits
		terminate bool
		open      func(t *testing.T, g *Gateway) net.Conn
	}{
		"no hello, passed through": {slowHello, false, func(t *testing.T, g *Gateway) net.Conn { return tunnelTo(t, g, "registry.example:443") }},
		"no hello, terminated":     {slowHello, true, func(t *testing.T, g *Gateway) net.Conn { return tunnelTo(t, g, "registry.example:443") }},
		"a trickling hello, passed through": {slowHello, false, func(t *testing.T, g *Gateway) net.Conn {
			return trickling(t, g, "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc")
		}},
		"a trickling hello, terminated": {slowHello, true, func(t *testing.T, g *Gateway) net.Conn {
			return trickling(t, g, "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc")
		}},
		"a trickling header": {slowHeader, true, func(t *testing.T, g *Gateway) net.Conn {
			c := tls.Client(tunnelTo(t, g, "registry.example:443"), &tls.Config{ServerName: "registry.example", RootCAs: trusted(t, g)})
			if err := c.Handshake(); err != nil {
				t.Fatal(err)
			}
			go dribble(c, "GET / HTTP/1.1\r\nX: ")
			return c
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutside(t, "registry.example")
			s := o.serveSeen(t)
			g, a := o.open(t, tt.lim, policy.Host{Host: "registry.example", Terminate: tt.terminate})
			c := tt.open(t, g)
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
			waitRecords(t, a, 2)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if up := s.all(); strings.Trim(up, "\n-") != "" {
				t.Errorf("upstream got %q", up)
			}
		})
	}
}

// dribble writes a beginning and then a byte at a time until the other side
// hangs up.
func dribble(c net.Conn, begin string) {
	_, err := io.WriteString(c, begin)
	for err == nil {
		_, err = c.Write([]byte("x"))
		time.Sleep(20 * time.Millisecond)
	}
}

func TestAttackEndlessResponse(t *testing.T) {
	t.Parallel()
	chunk := strings.Repeat("x", 1<<15)
	endless := func(begin, more string) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
				return
			}
			_, err := io.WriteString(c, begin)
			for err == nil {
				_, err = io.WriteString(c, more)
			}
		}
	}
	for name, f := range map[string]func(net.Conn){
		"body":           endless("HTTP/1.1 200 OK\r\n\r\n", chunk),
		"chunks":         endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "8000\r\n"+chunk+"\r\n"),
		"header":         endless("HTTP/1.1 200 OK\r\n", "X-A: "+chunk+"\r\n"),
		"status line":    endless("HTTP/1.1 200 ", chunk),
		"informational":  endless("", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
		"trailers":       endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X-A: "+chunk+"\r\n"),
		"chunk header":   endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", chunk),
		"empty trickle":  endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ""),
		"protocol":       endless("HTTP/1.1 101 Switching Protocols\r\n\r\n", chunk),
		"websocket":      endless("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", chunk),
		"length too big": endless("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n", chunk),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutside(t, "registry.example")
			o.serveRaw(t, f)
			lim := defaultLimits
			lim.forward.bytes, lim.forward.idle = 1<<20, 2*time.Second
			if name == "empty trickle" {
				o.serveRaw(t, func(c net.Conn) {
					if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
						return
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
					_, _ = io.Copy(io.Discard, c) // says no more
				})
				lim.forward.idle = 200 * time.Millisecond
			}
			g, a := o.open(t, lim, policy.Host{Host: "registry.example", Scheme: "http"})
			got := exchange(t, g, "GET http://registry.example/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			if len(got) > 4<<20 {
				t.Errorf("the agent got %d bytes", len(got))
			}
			e := waitRecords(t, a, 2)[1].End
			if e == nil || e.Got > lim.forward.bytes || name != "trailers" && name != "chunk header" && e.Error == "" && name != "empty trickle" {
				t.Errorf("end %+v", e)
			}
		})
	}
}

// TestAttackEndlessTunnel is the cap on bytes of a tunnel, in both directions,
// and the time without any.
func TestAttackEndlessTunnel(t *testing.T) {
	t.Parallel()
	lim := defaultLimits
	lim.forward.bytes, lim.forward.idle = 1<<20, 300*time.Millisecond
	for name, serve := range map[string]http.HandlerFunc{
		"down": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, zeros{}) },
		"up":   func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"idle": func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutside(t, "registry.example")
			o.serveHTTP(t, true, serve)
			g, a := o.open(t, lim, policy.Host{Host: "registry.example"})
			c := tls.Client(tunnelTo(t, g, "registry.example:443"), &tls.Config{ServerName: "registry.example", RootCAs: o.roots()})
			begin := "GET / HTTP/1.1\r\nHost: registry.example\r\n\r\n"
			if name != "down" {
				begin = "POST / HTTP/1.1\r\nHost: registry.example\r\nTransfer-Encoding: chunked\r\n\r\n"
			}
			if _, err := io.WriteString(c, begin); err != nil {
				t.Fatal(err)
			}
			if name == "up" {
				go func() {
					var err error
					for err == nil {
						_, err = fmt.Fprintf(c, "8000\r\n%s\r\n", strings.Repeat("x", 1<<15))
					}
				}()
			}
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the tunnel is still open")
			}
			e := waitRecords(t, a, 2)[1].End
			if e == nil || e.Got > lim.forward.bytes || e.Sent > lim.forward.bytes || name != "idle" && e.Error == "" {
				t.Errorf("end %+v", e)
			}
		})
	}
}

// TestAttackTunnelAfterEnd is the reuse of a kick's way out after its end.
func TestAttackTunnelAfterEnd(t *testing.T) {
	t.Parallel()
	for _, terminate := range []bool{false, true} {
		o := newOutside(t, "registry.example")
		o.serveHTTP(t, true, http.HandlerFunc(echo))
		g, a := o.open(t, defaultLimits, policy.Host{Host: "registry.example", Terminate: terminate})
		roots := o.roots()
		if terminate {
			roots = trusted(t, g)
		}
		c := tls.Client(tunnelTo(t, g, "registry.example:443"), &tls.Config{ServerName: "registry.example", RootCAs: roots})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		n := len(a.records(t))
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: registry.example\r\n\r\n")
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("terminate %v: after the end the tunnel gives %q", terminate, got)
		}
		if m := len(a.records(t)); m != n {
			t.Errorf("terminate %v: %d records at Close and %d after", terminate, n, m)
		}
		if _, err := os.Stat(g.Socket()); err == nil {
			t.Error("the socket is there")
		}
	}
}
