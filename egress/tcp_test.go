package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kickhq/kick/internal/forwarder"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/pushbroker/scan"
)

// tcpKick is a kick whose sandbox has a TCP way in. Addresses of sandboxes are
// those of 127.0.0.0/8.
type tcpKick struct {
	tcp *TCP
	g   *Gateway
	a   *audit
}

func openTCP(t testing.TB, lim tcpLimits) *TCP {
	t.Helper()
	in, err := listenTCP("127.0.0.1:0", lim)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// kickAt is a kick that is admitted at an address; an empty one is not.
func kickAt(t *testing.T, in *TCP, addr string) tcpKick {
	t.Helper()
	g, a := openConfig(t, defaultLimits, Config{Kick: "k0000000000001", Agent: "fixer", TCP: in})
	if addr != "" {
		if err := g.Admit(netip.MustParseAddr(addr)); err != nil {
			t.Fatal(err)
		}
	}
	return tcpKick{in, g, a}
}

// knock connects from an address.
func knock(t testing.TB, in *TCP, from string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", in.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func withTLS(c net.Conn) *tls.Conn {
	return tls.Client(c, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // an attacker does not verify
}

const plainGet = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

// say begins a connection with a line, asks for something, and returns all that
// comes. The gateway's end is no error: TLS's own last words are not sent.
func say(t testing.TB, in *TCP, from, greeting string) string {
	t.Helper()
	c := withTLS(knock(t, in, from))
	if _, err := io.WriteString(c, greeting+plainGet); err != nil {
		return ""
	}
	got, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q from %s: the connection stays open", greeting, from)
	}
	return string(got)
}

func greet(secret string) string { return forwarder.Greeting + secret + "\n" }

// TestTCP is the way of an honest sandbox: through its forwarder, kept alive, in
// several connections at once, and after the gateway has listened anew.
func TestTCP(t *testing.T) {
	t.Parallel()
	k := kickAt(t, openTCP(t, defaultTCPLimits), "127.0.0.1")
	way := forwarder.Way{Network: "tcp", Address: k.tcp.Address(), Secret: k.g.Secret(), Pin: k.tcp.Pin()}
	if err := way.Reach(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := forwarder.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); forwarder.Run(ctx, l, way) }()
	defer func() { cancel(); <-ended }()
	proxy := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: l.Addr().String()})}
	defer proxy.CloseIdleConnections()
	ask := func() {
		res, err := (&http.Client{Transport: proxy}).Get("http://example.org/")
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 403 || !strings.Contains(string(body), "default-deny") {
			t.Errorf("answer %d %q, %v", res.StatusCode, body, err)
		}
	}
	var all sync.WaitGroup
	for range 40 {
		all.Go(ask)
	}
	all.Wait()
	k.g.mu.Lock()
	k.g.fail(errors.New("for the test"))
	k.g.mu.Unlock()
	for k.g.Summary().Restarts == 0 {
		<-k.a.next()
	}
	if err := way.Reach(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask()
	if s := k.g.Summary(); s.Denied != 41 {
		t.Errorf("the audit has %+v", s)
	}
}

// TestAttackSecret tries to get in with a secret that is not the kick's, or
// from where the kick's sandbox is not.
func TestAttackSecret(t *testing.T) {
	t.Parallel()
	in := openTCP(t, defaultTCPLimits)
	unknown := kickAt(t, in, "")
	one, two := kickAt(t, in, "127.0.0.11"), kickAt(t, in, "127.0.0.12")
	wrong := strings.Repeat("0", forwarder.SecretSize)
	for name, c := range map[string]struct{ from, greeting string }{
		"before its address is told":  {"127.0.0.10", greet(unknown.g.Secret())},
		"another address":             {"127.0.0.13", greet(one.g.Secret())},
		"another kick's address":      {"127.0.0.12", greet(one.g.Secret())},
		"a wrong secret":              {"127.0.0.11", greet(wrong)},
		"in capitals":                 {"127.0.0.11", greet(strings.ToUpper(one.g.Secret()))},
		"no secret":                   {"127.0.0.11", ""},
		"a secret that is short":      {"127.0.0.11", greet(one.g.Secret()[1:])},
		"a secret of a kick not here": {"127.0.0.11", greet(unknown.g.Secret())},
		"another version":             {"127.0.0.11", strings.Replace(greet(one.g.Secret()), "/1", "/2", 1)},
		"no end of the line":          {"127.0.0.11", forwarder.Greeting + one.g.Secret() + " "},
	} {
		if got := say(t, in, c.from, c.greeting); got != "" {
			t.Errorf("%s: the gateway answers %q", name, got)
		}
	}
	for _, k := range []tcpKick{unknown, one, two} {
		for _, r := range k.a.records(t) {
			if r.Rule != "wrong-secret" || r.Form != GreetingForm || r.Verdict != Denied || r.Host != "127.0.0.11" && r.Host != "127.0.0.12" {
				t.Errorf("record %+v", r)
			}
		}
	}
	if n := []int{len(unknown.a.records(t)), len(one.a.records(t)), len(two.a.records(t))}; !slices.Equal(n, []int{0, 7, 1}) {
		t.Errorf("the audits have %v lines, want one for each wrong secret from a sandbox's address", n)
	}
	if n, last := in.Refused(); n != 2 || !last.IsValid() {
		t.Errorf("%d strangers, the last is %s", n, last)
	}
	// The honest ones get in.
	for from, k := range map[string]tcpKick{"127.0.0.11": one, "127.0.0.12": two} {
		if got := say(t, in, from, greet(k.g.Secret())); !strings.HasPrefix(got, forwarder.Welcome+"HTTP/1.1 403") {
			t.Errorf("%s: %q", from, got)
		}
	}
	if one.g.Secret() == two.g.Secret() || len(one.g.Secret()) != forwarder.SecretSize {
		t.Error("secrets are not of their kicks alone")
	}
	if err := one.g.Admit(netip.MustParseAddr("127.0.0.19")); err == nil {
		t.Error("a second address is admitted")
	}
}

// TestSharedAddress is a network that hides two sandboxes behind one address:
// the secret tells them apart, and the end of one is not the other's.
func TestSharedAddress(t *testing.T) {
	t.Parallel()
	in := openTCP(t, defaultTCPLimits)
	one, two := kickAt(t, in, "127.0.0.11"), kickAt(t, in, "127.0.0.11")
	half := withTLS(knock(t, in, "127.0.0.11"))
	if err := half.Handshake(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := say(t, in, "127.0.0.11", greet(two.g.Secret())); !strings.Contains(got, "default-deny") {
			t.Errorf("%q", got)
		}
		if err := one.g.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := io.WriteString(half, greet(two.g.Secret())+plainGet); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(half); !strings.Contains(string(got), "default-deny") {
		t.Errorf("a connection that was entering as the other kick ended: %q", got)
	}
	if got := say(t, in, "127.0.0.11", greet(one.g.Secret())); got != "" || len(one.a.records(t)) != 0 || len(two.a.records(t)) != 4 {
		t.Errorf("after the end: %q, audits %v and %v", got, one.a.records(t), two.a.records(t))
	}
}

// TestAdmitFrom is a kick whose sandbox's address nobody knows: its secret counts from
// everywhere in the network, beside that of a kick whose address is in it, and from
// nowhere when the kick has ended.
func TestAdmitFrom(t *testing.T) {
	t.Parallel()
	in := openTCP(t, defaultTCPLimits)
	before, somewhere, after := kickAt(t, in, "127.0.7.1"), kickAt(t, in, ""), kickAt(t, in, "")
	network := netip.MustParsePrefix("127.0.7.0/24")
	for _, bad := range []string{"0.0.0.0/0", "::ffff:127.0.7.0/120"} {
		if err := somewhere.g.AdmitFrom(netip.MustParsePrefix(bad)); err == nil {
			t.Errorf("%s is a network of sandboxes", bad)
		}
	}
	if err := somewhere.g.AdmitFrom(network); err != nil {
		t.Fatal(err)
	}
	if err := after.g.Admit(netip.MustParseAddr("127.0.7.2")); err != nil {
		t.Fatal(err)
	}
	if somewhere.g.AdmitFrom(network) == nil || somewhere.g.Admit(network.Addr()) == nil || after.g.AdmitFrom(network) == nil {
		t.Error("a kick is admitted twice")
	}
	served := func(k tcpKick, from string, want bool) {
		t.Helper()
		if got := say(t, in, from, greet(k.g.Secret())); strings.Contains(got, "default-deny") != want {
			t.Errorf("from %s: %q", from, got)
		}
	}
	for _, from := range []string{"127.0.7.1", "127.0.7.2", "127.0.7.3"} {
		served(somewhere, from, true)
	}
	served(before, "127.0.7.1", true)
	served(after, "127.0.7.2", true)
	served(somewhere, "127.0.8.1", false)
	served(after, "127.0.7.3", false)
	if err := somewhere.g.Close(); err != nil {
		t.Error(err)
	}
	served(somewhere, "127.0.7.3", false)
	served(somewhere, "127.0.7.1", false)
	served(before, "127.0.7.1", true)
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.sources) != 2 || len(in.networks) != 0 {
		t.Errorf("%d addresses and %d networks are left", len(in.sources), len(in.networks))
	}
}

// TestAttackSecretAfterEnd uses a secret, and connections that it opened, after
// the kick's end.
func TestAttackSecretAfterEnd(t *testing.T) {
	t.Parallel()
	lim := defaultTCPLimits
	lim.entry = time.Hour
	in := openTCP(t, lim)
	k := kickAt(t, in, "127.0.0.11")
	served, entering, silent := withTLS(knock(t, in, "127.0.0.11")), withTLS(knock(t, in, "127.0.0.11")), knock(t, in, "127.0.0.11")
	if _, err := io.WriteString(served, greet(k.g.Secret())); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(served, make([]byte, len(forwarder.Welcome))); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(entering, greet(k.g.Secret())[:20]); err != nil {
		t.Fatal(err)
	}
	if err := k.g.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]net.Conn{"served": served, "entering": entering, "silent": silent} {
		if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	lines := len(k.a.records(t))
	if got := say(t, in, "127.0.0.11", greet(k.g.Secret())); got != "" {
		t.Errorf("the secret opens %q", got)
	}
	next := kickAt(t, in, "127.0.0.11") // the address has another sandbox now
	if got := say(t, in, "127.0.0.11", greet(k.g.Secret())); got != "" {
		t.Errorf("the secret opens %q", got)
	}
	if n := len(k.a.records(t)); n != lines {
		t.Errorf("%d lines were written after the end", n-lines)
	}
	if r := next.a.records(t); len(r) != 1 || r[0].Rule != "wrong-secret" {
		t.Errorf("the next kick's audit is %+v", r)
	}
}

// TestAttackGuesses tries 1,000 secrets: what is written down is bounded, other
// kicks are not touched, and once it stops the sandbox's own secret is good again.
func TestAttackGuesses(t *testing.T) {
	t.Parallel()
	lim := defaultTCPLimits
	lim.recovery = 300 * time.Millisecond
	in := openTCP(t, lim)
	k, other := kickAt(t, in, "127.0.0.11"), kickAt(t, in, "127.0.0.12")
	var all sync.WaitGroup
	start := time.Now()
	for i := range 20 {
		all.Go(func() {
			for j := range 50 {
				if got := say(t, in, "127.0.0.11", greet(fmt.Sprintf("%064x", i*50+j))); got != "" {
					t.Errorf("a guess opens %q", got)
				}
			}
		})
	}
	if got := say(t, in, "127.0.0.12", greet(other.g.Secret())); !strings.Contains(got, "default-deny") {
		t.Errorf("another kick meanwhile: %q", got)
	}
	all.Wait()
	most := 20 + lim.failures + int(time.Since(start)/lim.recovery) // 20 at once at first
	if n := len(k.a.records(t)); n < lim.failures || n > most {
		t.Errorf("%d lines of 1,000 guesses, want %d to %d", n, lim.failures, most)
	}
	deadline := time.Now().Add(20 * time.Second)
	for !strings.Contains(say(t, in, "127.0.0.11", greet(k.g.Secret())), "default-deny") {
		if time.Now().After(deadline) {
			t.Fatal("the sandbox's own secret is refused for good")
		}
		time.Sleep(lim.recovery / 3)
	}
}

// TestAttackSlowGreeting has connections that never say their secret, say it a
// byte at a time or say nothing, as many as there may be, and then some more.
func TestAttackSlowGreeting(t *testing.T) {
	t.Parallel()
	lim := tcpLimits{entry: time.Second, entering: 4, failures: 100, recovery: time.Millisecond}
	in := openTCP(t, lim)
	k, other := kickAt(t, in, "127.0.0.11"), kickAt(t, in, "127.0.0.12")
	var all sync.WaitGroup
	for i := range 3 * lim.entering {
		c := knock(t, in, "127.0.0.11")
		all.Go(func() {
			defer c.Close()
			switch i % 3 {
			case 0:
				_, _ = io.Copy(io.Discard, c)
			case 1: // a record of TLS that trickles in
				_, _ = c.Write([]byte{22, 3, 1, 2, 0})
				for range 1000 {
					if _, err := c.Write([]byte{0}); err != nil {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
			case 2:
				s := withTLS(c)
				for b := range strings.SplitSeq(greet(k.g.Secret()), "") {
					if _, err := io.WriteString(s, b); err != nil {
						break
					}
					time.Sleep(50 * time.Millisecond)
				}
				if n, _ := io.Copy(io.Discard, s); n != 0 {
					t.Error("a slow greeting is welcome")
				}
			}
		})
	}
	if got := say(t, in, "127.0.0.12", greet(other.g.Secret())); !strings.Contains(got, "default-deny") {
		t.Errorf("another kick meanwhile: %q", got)
	}
	all.Wait() // each was cut off: none has the test's own deadline
	if got := say(t, in, "127.0.0.11", greet(k.g.Secret())); !strings.Contains(got, "default-deny") {
		t.Errorf("the same kick afterwards: %q", got)
	}
}

// TestFailuresArePaidFor is the arithmetic of it.
func TestFailuresArePaidFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lim := defaultTCPLimits
		in := &TCP{limits: lim, sources: map[netip.Addr]*source{}}
		addr := netip.MustParseAddr("10.0.0.1")
		in.sources[addr] = &source{addr: addr, kicks: []*entrance{{closed: true}}, entering: map[net.Conn]struct{}{}}
		// try has connections at once, and returns how many could have guessed.
		try := func(at int) (guesses int) {
			for range at {
				c, _ := net.Pipe()
				if s := in.begin(addr, c); s != nil {
					defer in.end(s, c)
					defer in.match(s, "wrong", nil)
					guesses++
				}
			}
			return guesses
		}
		for i := range lim.failures {
			if try(1) != 1 {
				t.Fatalf("failure %d is refused", i+1)
			}
		}
		for range 500 {
			if try(1) != 0 {
				t.Fatal("more than the first ones at once")
			}
		}
		for range 3 {
			time.Sleep(lim.recovery)
			if n := try(5); n != 1 {
				t.Errorf("%d for a time of recovery, want one", n)
			}
		}
		// Who waits until all is paid for does not get as many as an honest sandbox.
		for range 3 {
			time.Sleep(time.Duration(lim.failures) * lim.recovery)
			if n := try(500); n != lim.failures {
				t.Errorf("%d at once after failures, want %d", n, lim.failures)
			}
		}
		time.Sleep(time.Duration(lim.failures)*lim.recovery + lim.wary)
		if n := try(500); n != lim.entering {
			t.Errorf("%d at once after a time without failures, want %d", n, lim.entering)
		}
		time.Sleep(time.Hour)
		if s := in.sources[addr]; time.Until(s.spent) > 0 {
			t.Error("it is never paid for")
		}
	})
}

// TestSecretIsHeld looks for the secret in what an agent would commit.
func TestSecretIsHeld(t *testing.T) {
	t.Parallel()
	k := kickAt(t, openTCP(t, defaultTCPLimits), "127.0.0.11")
	secret := k.g.Secret()
	if !slices.Contains(k.g.Keys(), secret) {
		t.Fatal("the scanner is not told of the secret")
	}
	key := bytes.Repeat([]byte("k"), 32)
	values := map[string]string{}
	for i, v := range k.g.Keys() {
		values[fmt.Sprintf("gateway key %d", i)] = v
	}
	held, err := scan.NewHeld(key, values)
	if err != nil {
		t.Fatal(err)
	}
	s, err := scan.New(scan.Options{Key: key, Held: held})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := hex.DecodeString(secret)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"as it is": secret, "base64": base64.StdEncoding.EncodeToString([]byte(secret)), "hex": hex.EncodeToString([]byte(secret)),
		"in capitals": strings.ToUpper(secret), "the bytes": string(raw), "the bytes in base64": base64.StdEncoding.EncodeToString(raw),
		"in two lines": secret[:30] + "\n" + secret[30:], "in two strings": "'" + secret[:40] + "' +\n'" + secret[40:] + "'",
	} {
		found, err := s.Scan(t.Context(), pushbroker.Item{Kind: pushbroker.BlobItem, Path: "a.txt", Data: []byte("x = " + text + "\n")})
		if err != nil || len(found) == 0 || found[0].Rule != scan.HeldRule {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
}

func FuzzGreeting(f *testing.F) {
	secret := strings.Repeat("ab", forwarder.SecretSize/2)
	for _, s := range []string{"", greet(secret), greet(secret) + plainGet, greet(secret)[:30], "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		got, err := readGreeting(r)
		size := len(greet(secret))
		if err != nil {
			if got != "" || bytes.HasPrefix(b, []byte(forwarder.Greeting)) && len(b) >= size && b[size-1] == '\n' {
				t.Errorf("%q: %q, %v", b, got, err)
			}
			return
		}
		if string(b[:size]) != greet(got) || r.Len() != len(b)-size {
			t.Errorf("%q is read as %q, with %d bytes left", b, got, r.Len())
		}
	})
}
