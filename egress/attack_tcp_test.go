package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/forwarder"
	"github.com/kickhq/kick/policy"
)

// TestAttackGreeting speaks to the TCP way in otherwise than a shim does. Each
// case returns what it got to see.
func TestAttackGreeting(t *testing.T) {
	t.Parallel()
	in := openTCP(t, defaultTCPLimits)
	k := kickAt(t, in, "127.0.0.11")
	hello := greet(k.g.Secret())
	over := func(cfg *tls.Config, said string) func(t *testing.T) string {
		return func(t *testing.T) string {
			cfg.InsecureSkipVerify = true
			c := tls.Client(knock(t, in, "127.0.0.11"), cfg)
			_, _ = io.WriteString(c, said)
			got, _ := io.ReadAll(c)
			return string(got)
		}
	}
	plain := func(said string) func(t *testing.T) string {
		return func(t *testing.T) string {
			c := knock(t, in, "127.0.0.11")
			_, _ = io.WriteString(c, said)
			_ = c.(*net.TCPConn).CloseWrite()
			got, _ := io.ReadAll(c)
			return string(got)
		}
	}
	const denied = "HTTP/1.1 403"
	for name, c := range map[string]struct {
		try  func(t *testing.T) string
		want string // what comes after the welcome; empty: nothing comes
	}{
		"TLS 1.2":                     {over(&tls.Config{MaxVersion: tls.VersionTLS12}, hello+plainGet), ""},
		"the secret in clear":         {plain(hello + plainGet), ""},
		"HTTP in clear":               {plain(plainGet), ""},
		"HTTP in TLS":                 {over(&tls.Config{}, plainGet+plainGet), ""},
		"CONNECT before the secret":   {over(&tls.Config{}, "CONNECT "+strings.Repeat("a", 80)+":443 HTTP/1.1\r\n\r\n"+hello), ""},
		"a line feed in front":        {over(&tls.Config{}, "\n"+hello+plainGet), ""},
		"the secret twice":            {over(&tls.Config{}, hello+hello+plainGet), "HTTP/1.1 400"},
		"HTTP/2 by ALPN":              {over(&tls.Config{NextProtos: []string{"h2"}}, hello+plainGet), denied},
		"HTTP/2 in clear":             {over(&tls.Config{}, hello+"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), denied},
		"a name in the ClientHello":   {over(&tls.Config{ServerName: "registry.example"}, hello+plainGet), denied},
		"two requests, one refused":   {over(&tls.Config{}, hello+"GET / HTTP/1.1\r\nHost: h\r\n\r\n"+plainGet), denied},
		"a greeting in single bytes":  {trickle(in, hello+plainGet), denied},
		"an empty record, many times": {emptyRecords(in), ""},
	} {
		got := c.try(t)
		rest, welcome := strings.CutPrefix(got, forwarder.Welcome)
		if c.want == "" && (welcome || strings.Contains(got, "HTTP/")) || c.want != "" && (!welcome || !strings.HasPrefix(rest, c.want) || strings.Count(rest, "HTTP/1.1 ") != 1) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := say(t, in, "127.0.0.11", hello); !strings.Contains(got, "default-deny") {
		t.Errorf("afterwards: %q", got)
	}
}

// trickle sends each byte in a record of its own.
func trickle(in *TCP, said string) func(t *testing.T) string {
	return func(t *testing.T) string {
		c := withTLS(knock(t, in, "127.0.0.11"))
		for _, b := range []byte(said) {
			_, _ = c.Write([]byte{b})
		}
		got, _ := io.ReadAll(c)
		return string(got)
	}
}

// emptyRecords sends records of TLS that say nothing, in clear.
func emptyRecords(in *TCP) func(t *testing.T) string {
	return func(t *testing.T) string {
		c := knock(t, in, "127.0.0.11")
		_, _ = c.Write(bytes.Repeat([]byte{22, 3, 1, 0, 0}, 10_000))
		got, _ := io.ReadAll(c)
		return string(got)
	}
}

// TestTCPTunnels has tunnels through the TCP way in, passed through and ended at
// the gateway, from a client that half-closes; they end with the kick.
func TestTCPTunnels(t *testing.T) {
	t.Parallel()
	in := openTCP(t, defaultTCPLimits)
	o := newOutside(t, "registry.example", "open.example")
	o.serveHTTP(t, true, http.HandlerFunc(echo))
	cfg := o.config(policy.Host{Host: "registry.example"}, policy.Host{Host: "open.example", Terminate: true})
	cfg.TCP = in
	g, _ := openConfig(t, defaultLimits, cfg)
	if err := g.Admit(netip.MustParseAddr("127.0.0.1")); err != nil {
		t.Fatal(err)
	}
	l, err := forwarder.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		forwarder.Run(ctx, l, forwarder.Way{Network: "tcp", Address: in.Address(), Secret: g.Secret(), Pin: in.Pin()})
	}()
	defer func() { cancel(); <-ended }()
	roots := o.roots()
	if !roots.AppendCertsFromPEM(g.Trust()) {
		t.Fatal("the gateway tells of no certificates to trust")
	}
	tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: l.Addr().String()}), TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer tr.CloseIdleConnections()
	for _, host := range []string{"registry.example", "open.example"} {
		for range 3 {
			if code, body := get(t, &http.Client{Transport: tr}, "https://"+host+"/"); code != 200 {
				t.Errorf("%s: %d %s", host, code, body)
			}
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"registry.example", "open.example"} {
		if res, err := (&http.Client{Transport: tr}).Get("https://" + host + "/"); err == nil {
			res.Body.Close()
			t.Errorf("%s answers after the kick's end", host)
		}
	}
}

// TestAddressForms admits addresses in other forms than connections have.
func TestAddressForms(t *testing.T) {
	t.Parallel()
	in := openTCP(t, defaultTCPLimits)
	mapped := kickAt(t, in, "::ffff:127.0.0.21")
	if got := say(t, in, "127.0.0.21", greet(mapped.g.Secret())); !strings.Contains(got, "default-deny") {
		t.Errorf("a mapped address: %q", got)
	}
	none := kickAt(t, in, "")
	for _, addr := range []netip.Addr{{}, netip.IPv4Unspecified(), netip.IPv6Unspecified(), netip.MustParseAddr("::ffff:0.0.0.0"), netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("ff02::1")} {
		if err := none.g.Admit(addr); err == nil {
			t.Errorf("%s is admitted", addr)
		}
	}
	if err := none.g.Close(); err != nil {
		t.Error(err)
	}
	if err := none.g.Admit(netip.MustParseAddr("127.0.0.22")); err == nil {
		t.Error("a kick that has ended is admitted")
	}
	if g, _ := open(t, defaultLimits); g.Admit(netip.MustParseAddr("127.0.0.22")) == nil || g.Secret() != "" {
		t.Error("a gateway without a TCP address admits a sandbox")
	}
	six, err := listenTCP("[::1]:0", defaultTCPLimits)
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	defer six.Close()
	k := kickAt(t, six, "::1")
	if got := say(t, six, "::1", greet(k.g.Secret())); !strings.Contains(got, "default-deny") {
		t.Errorf("IPv6: %q", got)
	}
}

// TestAttackManyConnections holds as many connections without a secret as there
// may be, of one sandbox: another sandbox gets in, and so does the same one once
// they end.
func TestAttackManyConnections(t *testing.T) {
	t.Parallel()
	in := openTCP(t, defaultTCPLimits)
	k, other := kickAt(t, in, "127.0.0.11"), kickAt(t, in, "127.0.0.12")
	refused := 0
	var held []net.Conn
	for range 2 * defaultTCPLimits.entering {
		held = append(held, knock(t, in, "127.0.0.11"))
	}
	in.mu.Lock()
	open := len(in.sources[netip.MustParseAddr("127.0.0.11")].entering)
	in.mu.Unlock()
	if open > defaultTCPLimits.entering {
		t.Errorf("%d connections wait, want %d at most", open, defaultTCPLimits.entering)
	}
	if got := say(t, in, "127.0.0.12", greet(other.g.Secret())); !strings.Contains(got, "default-deny") {
		t.Errorf("another sandbox: %q", got)
	}
	for _, c := range held {
		if _, err := c.Read(make([]byte, 1)); err != nil {
			refused++
		}
		c.Close()
	}
	if refused != len(held) {
		t.Errorf("%d of %d connections were ended", refused, len(held))
	}
	if n := len(k.a.records(t)); n > defaultTCPLimits.entering+defaultTCPLimits.failures {
		t.Errorf("%d lines of audit", n)
	}
}

// TestAttackFullGateway holds all connections that one kick's gateway serves, and
// all that may wait for it, with the right secret: another kick at the same address
// is served.
func TestAttackFullGateway(t *testing.T) {
	t.Parallel()
	lim := defaultTCPLimits
	lim.entering = 4
	in := openTCP(t, lim)
	few := defaultLimits
	few.connections, few.headerTime = 1, time.Minute
	g, _ := openConfig(t, few, Config{Kick: "k0000000000001", Agent: "fixer", TCP: in})
	addr := netip.MustParseAddr("127.0.0.11")
	if err := g.Admit(addr); err != nil {
		t.Fatal(err)
	}
	other := kickAt(t, in, addr.String())
	welcome := func() (net.Conn, error) {
		c := withTLS(knock(t, in, addr.String()))
		_, _ = io.WriteString(c, greet(g.Secret()))
		_, err := io.ReadFull(c, make([]byte, len(forwarder.Welcome)))
		return c, err
	}
	for i := range few.connections + lim.entering {
		if _, err := welcome(); err != nil {
			t.Fatalf("connection %d: %v", i+1, err)
		}
		for i == 0 && len(g.entrance.waiting) > 0 { // until it is served
			runtime.Gosched()
		}
	}
	if _, err := welcome(); err == nil {
		t.Error("there is no end to those that wait")
	}
	if got := say(t, in, addr.String(), greet(other.g.Secret())); !strings.Contains(got, "default-deny") {
		t.Errorf("another kick at the address: %q", got)
	}
}

// TestAttackLeftOver has a connection of a sandbox that ended be looked at when the
// address is already another's: it is none of its failures.
func TestAttackLeftOver(t *testing.T) {
	t.Parallel()
	in := openTCP(t, defaultTCPLimits)
	addr := netip.MustParseAddr("127.0.0.11")
	ended := kickAt(t, in, addr.String())
	c, _ := net.Pipe()
	s := in.begin(addr, c)
	if s == nil {
		t.Fatal("a connection may not enter")
	}
	if err := ended.g.Close(); err != nil {
		t.Fatal(err)
	}
	next := kickAt(t, in, addr.String())
	for _, secret := range []string{ended.g.Secret(), next.g.Secret(), ""} {
		if in.match(s, secret, nil) != nil {
			t.Error("a connection of an ended sandbox enters")
		}
	}
	in.end(s, c)
	in.mu.Lock()
	defer in.mu.Unlock()
	if r, now := next.a.records(t), in.sources[addr]; len(r) != 0 || !now.spent.IsZero() {
		t.Errorf("the next sandbox pays for it: %+v, until %v", r, now.spent)
	}
}

// TestAttackFault has what is sent before the secret find a fault of kick's own, or
// of TLS: the connection ends, and nothing else.
func TestAttackFault(t *testing.T) {
	t.Parallel()
	in := openTCP(t, defaultTCPLimits)
	k := kickAt(t, in, "127.0.0.11")
	good := in.config
	faulty := good.Clone()
	faulty.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if h.ServerName == "fault.example" {
			panic("for the test")
		}
		return good, nil
	}
	in.mu.Lock() // before the first connection, which begin lets in under it
	in.config = faulty
	in.mu.Unlock()
	c := tls.Client(knock(t, in, "127.0.0.11"), &tls.Config{InsecureSkipVerify: true, ServerName: "fault.example"})
	if err := c.Handshake(); err == nil {
		t.Fatal("the fault was not met")
	}
	if got := say(t, in, "127.0.0.11", greet(k.g.Secret())); !strings.Contains(got, "default-deny") {
		t.Errorf("afterwards: %q", got)
	}
	if r := k.a.records(t); len(r) != 2 || r[0].Rule != "wrong-secret" {
		t.Errorf("the audit is %+v", r)
	}
}
