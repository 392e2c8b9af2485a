package forwarder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"
)

// A connection to the gateway's TCP way in is TLS. Its first bytes are Greeting,
// the kick's secret of SecretSize characters and a line feed. The gateway answers
// a right one with Welcome, and anything else by an end. Then both sides go on as
// on a Unix socket. The client need not wait for the answer before it goes on.
const (
	Greeting   = "kick-egress/1 "
	SecretSize = 64 // 256 bits in lower-case hex
	Welcome    = "kick-egress/1 ok\n"
)

// Curves are the key exchanges of both sides: one that is secure against those who
// record a pod network today, and costs half of what the default does.
var Curves = []tls.CurveID{tls.X25519}

// Way is how the gateway is reached.
type Way struct {
	Network string // "unix" or "tcp"
	Address string // path of the socket, or host and port
	// Secret is the kick's, for the TCP way in. Empty: the plain Unix socket.
	Secret string
	// Pin is the SHA-256 of the gateway's certificate in lower-case hex. No
	// other server gets the secret.
	Pin string
	// Through opens the connection in place of this package, where not everybody may.
	Through func(context.Context) (net.Conn, error)
}

// Times of a connection.
const (
	connectTime = 10 * time.Second       // to connect, TLS included
	askPause    = 200 * time.Millisecond // from one question to the next
)

// Reach asks the gateway whether it is there, again and again until it answers
// or ctx ends: what lets a new address through a network may take its time. The
// error is the last one that is more than the end of that time.
func (w Way) Reach(ctx context.Context) error {
	var err error
	for {
		now := w.ask(ctx)
		if now == nil {
			return nil
		}
		var timeout net.Error
		if err == nil || !errors.As(now, &timeout) || !timeout.Timeout() {
			err = now
		}
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
			return fmt.Errorf("ask the egress gateway at %s whether it is there: %w", w.Address, err)
		}
	}
}

func (w Way) ask(ctx context.Context) error {
	c, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if g, ok := c.(*greeted); ok {
		return g.awaitWelcome()
	}
	return nil // who accepts is there
}

// connect opens a connection. On one with a secret, a gateway that does not
// take it ends the connection at the first read.
func (w Way) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	var d net.Dialer
	open := func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, w.Network, w.Address) }
	if w.Through != nil {
		open = w.Through
	}
	c, err := open(ctx)
	if err != nil || w.Secret == "" {
		return c, err
	}
	t := tls.Client(c, &tls.Config{
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: Curves,
		// Small records are for browsers, which show what they have. Bodies here
		// are read whole.
		DynamicRecordSizingDisabled: true,
		// There is one certificate and it has no name: it is known by its hash.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies
		VerifyConnection:   w.verify,
	})
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if _, err := io.WriteString(t, Greeting+w.Secret+"\n"); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &greeted{Conn: t, raw: c}, nil
}

// Dial opens a TCP connection to an address, by the HTTP proxy of that URL if there is
// one, which opens such connections by CONNECT.
func Dial(ctx context.Context, proxy, address string) (*net.TCPConn, error) {
	to := address
	if proxy != "" {
		u, err := url.Parse(proxy)
		if err != nil || u.Scheme != "http" || u.Port() == "" || u.User != nil {
			return nil, fmt.Errorf("the proxy %q is not http://HOST:PORT", proxy)
		}
		to = u.Host
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	if proxy == "" {
		return tcp, nil
	}
	deadline, _ := ctx.Deadline() // none is the zero time, which is none
	err = tcp.SetDeadline(deadline)
	if err == nil {
		err = through(tcp, address)
	}
	if err = errors.Join(err, tcp.SetDeadline(time.Time{})); err != nil {
		return nil, errors.Join(fmt.Errorf("by the proxy %s to %s: %w", to, address, err), tcp.Close())
	}
	return tcp, nil
}

// maxProxyAnswer bounds a proxy's answer, in bytes.
const maxProxyAnswer = 4 << 10

// through asks a proxy for a connection. It reads none of what comes after the
// answer, which is the gateway's.
func through(c net.Conn, address string) error {
	if _, err := fmt.Fprintf(c, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", address); err != nil {
		return err
	}
	answer := make([]byte, 0, 256)
	for !bytes.HasSuffix(answer, []byte("\r\n\r\n")) {
		var b [1]byte
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return fmt.Errorf("it ends within its answer: %w", err)
		}
		if answer = append(answer, b[0]); len(answer) == maxProxyAnswer {
			return errors.New("its answer does not end")
		}
	}
	line, _, _ := bytes.Cut(answer, []byte("\r\n"))
	_, rest, ok := bytes.Cut(line, []byte(" "))
	if code, _, _ := bytes.Cut(rest, []byte(" ")); !ok || !bytes.HasPrefix(line, []byte("HTTP/1.")) || string(code) != "200" {
		return fmt.Errorf("it answers %q", line)
	}
	return nil
}

func (w Way) verify(s tls.ConnectionState) error {
	sum := sha256.Sum256(s.PeerCertificates[0].Raw)
	if hex.EncodeToString(sum[:]) != w.Pin {
		return errors.New("the server at the gateway's address has another certificate than the gateway")
	}
	return nil
}

// greeted is a connection on which the gateway's answer to the secret comes first.
type greeted struct {
	*tls.Conn
	raw      net.Conn
	welcomed bool
}

// awaitWelcome reads the answer.
func (g *greeted) awaitWelcome() error {
	answer := make([]byte, len(Welcome))
	if err := g.raw.SetReadDeadline(time.Now().Add(connectTime)); err != nil {
		return err
	}
	if _, err := io.ReadFull(g.Conn, answer); err != nil {
		return fmt.Errorf("the gateway does not take this sandbox's secret from this address: %w", err)
	}
	if string(answer) != Welcome {
		return errors.New("the gateway answers in another protocol")
	}
	g.welcomed = true
	return g.raw.SetReadDeadline(time.Time{})
}

func (g *greeted) Read(p []byte) (int, error) {
	if !g.welcomed {
		if err := g.awaitWelcome(); err != nil {
			return 0, err
		}
	}
	return g.Conn.Read(p)
}

// Close ends the connection at once; TLS would wait for a peer that does not read.
func (g *greeted) Close() error { return g.raw.Close() }
