package forwarder

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"io"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

const secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// serveTLS is a gateway's TCP way in, as far as a client sees it: it reads what a
// connection begins with, answers and echoes.
func serveTLS(t *testing.T, answer string) (Way, <-chan string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	greetings := make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				greeting := make([]byte, len(Greeting)+SecretSize+1)
				_, err := io.ReadFull(c, greeting)
				if err != nil {
					greetings <- err.Error()
					return
				}
				greetings <- string(greeting)
				_, _ = io.WriteString(c, answer)
				if answer == Welcome {
					_, _ = io.Copy(c, c)
				}
			}()
		}
	}()
	sum := sha256.Sum256(der)
	return Way{Network: "tcp", Address: l.Addr().String(), Secret: secret, Pin: hex.EncodeToString(sum[:])}, greetings
}

// What passes is the same as through a socket, both directions at once.
func TestTCPWay(t *testing.T) {
	t.Parallel()
	way, greetings := serveTLS(t, Welcome)
	l, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); Run(ctx, l, way) }()
	defer func() { cancel(); <-ended }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	long := bytes.Repeat([]byte("hello"), 200_000)
	go func() { _, _ = c.Write(long) }()
	got := make([]byte, len(long))
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, long) {
		t.Errorf("what came back differs: %v", err)
	}
	if g := <-greetings; g != Greeting+secret+"\n" {
		t.Errorf("the connection begins with %q", g)
	}
}

// A server that is not the gateway gets nothing of the secret.
func TestPin(t *testing.T) {
	t.Parallel()
	way, greetings := serveTLS(t, Welcome)
	way.Pin = strings.Repeat("0", len(way.Pin))
	if err := way.ask(t.Context()); err == nil || !strings.Contains(err.Error(), "another certificate") {
		t.Errorf("asked: %v", err)
	}
	if g := <-greetings; strings.Contains(g, secret) || !strings.Contains(g, "bad certificate") {
		t.Errorf("the other server got %q", g)
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	way, _ := serveTLS(t, Welcome)
	if err := way.Reach(t.Context()); err != nil {
		t.Errorf("there: %v", err)
	}
	refused, _ := serveTLS(t, "")
	other, _ := serveTLS(t, strings.Repeat("HTTP/1.1 200 OK\r\n", 3))
	nobody := Way{Network: "unix", Address: t.TempDir() + "/none"}
	for want, w := range map[string]Way{"does not take this sandbox's secret": refused, "another protocol": other, "no such file": nobody} {
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		w.Through = func(ctx context.Context) (net.Conn, error) {
			if asked++; asked == 2 { // the time is up during the second question
				cancel()
				return nil, os.ErrDeadlineExceeded
			}
			return new(net.Dialer).DialContext(ctx, w.Network, w.Address)
		}
		if err := w.Reach(ctx); err == nil || !strings.Contains(err.Error(), want) || asked != 2 {
			t.Errorf("%s: asked %d times: %v", want, asked, err)
		}
		cancel()
	}
}

// A gateway that comes later is found: a network may take a moment to let a new
// address through.
func TestReachLater(t *testing.T) {
	t.Parallel()
	way, _ := serveTLS(t, Welcome)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	direct := way.Address
	way.Address = l.Addr().String()
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if n < 2 {
				c.Close()
				continue
			}
			up, err := net.Dial("tcp", direct)
			if err != nil {
				c.Close()
				return
			}
			go func() { _, _ = io.Copy(up, c); up.Close() }()
			go func() { _, _ = io.Copy(c, up); c.Close() }()
		}
	}()
	if err := way.Reach(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestProxy goes by a proxy, whose answer may come with the first bytes of what is
// behind it, and says what a proxy answers that opens nothing.
func TestProxy(t *testing.T) {
	t.Parallel()
	way, _ := serveTLS(t, Welcome)
	proxy := func(answer string) Way {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					want := "CONNECT " + way.Address + " HTTP/1.1\r\nHost: " + way.Address + "\r\n\r\n"
					got := make([]byte, len(want))
					if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
						t.Errorf("the proxy got %q, %v", got, err)
						return
					}
					_, _ = io.WriteString(c, answer)
					if !strings.HasSuffix(answer, "\r\n\r\n") || !strings.Contains(answer, " 200") {
						return
					}
					up, err := net.Dial("tcp", way.Address)
					if err != nil {
						t.Error(err)
						return
					}
					defer up.Close()
					go func() { _, _ = io.Copy(up, c) }()
					_, _ = io.Copy(c, up)
				}()
			}
		}()
		w := way
		w.Through = func(ctx context.Context) (net.Conn, error) {
			return Dial(ctx, "http://"+l.Addr().String(), way.Address)
		}
		return w
	}
	if err := proxy("HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n").ask(t.Context()); err != nil {
		t.Error(err)
	}
	for answer, want := range map[string]string{
		"HTTP/1.1 403 Forbidden\r\n\r\nno": `"HTTP/1.1 403 Forbidden"`,
		"HTTP/1.1 200":                     "within its answer",
		"SSH 200 x\r\n\r\n":                `"SSH 200 x"`,
		"HTTP/1.1 200 " + strings.Repeat("x", maxProxyAnswer): "does not end",
	} {
		if err := proxy(answer).ask(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", answer, err, want)
		}
	}
	for _, bad := range []string{"socks5://127.0.0.1:1", "http://127.0.0.1", "http://u:p@127.0.0.1:1"} {
		if _, err := Dial(t.Context(), bad, way.Address); err == nil {
			t.Errorf("%s is a proxy", bad)
		}
	}
}
