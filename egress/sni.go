package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// extensionECH is encrypted_client_hello (RFC 9849, section 5): the name in
// clear is then not, or need not be, the one that counts.
const extensionECH = 0xfe0d

// maxHello is more than a ClientHello can be: crypto/tls takes handshake
// messages of 64 KiB, and each record of at most 16 KiB has 5 bytes of header.
// One in records of a byte each is cut off by this.
const maxHello = 80 << 10

// checkHello says what is wrong with a ClientHello that came through a tunnel
// to host.
func checkHello(h *tls.ClientHelloInfo, host string) *Decision {
	switch {
	case slices.Contains(h.Extensions, extensionECH):
		return &Decision{Rule: "encrypted-client-hello", Detail: "The ClientHello hides which host it is for (ECH). Turn Encrypted Client Hello off."}
	case h.ServerName == "":
		return &Decision{Rule: "sni-missing", Detail: fmt.Sprintf("The ClientHello names no host; it has to name %s, the one of the CONNECT request. Use a client that sends the server's name (SNI).", host)}
	case !strings.EqualFold(h.ServerName, host):
		return &Decision{Rule: "sni-mismatch", Detail: fmt.Sprintf("The ClientHello names %s, and the CONNECT request %s; they have to be the same host.", cut(h.ServerName), host)}
	}
	return nil
}

// errPeeked ends a handshake once its first message is known.
var errPeeked = errors.New("the ClientHello was seen")

// readHello reads a ClientHello to host from a connection, without an answer,
// and returns the bytes that it read. A nil Decision says that they may go on.
func readHello(c net.Conn, host string, limit time.Duration) ([]byte, *Decision) {
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil, notTLS(err)
	}
	rec := &recorder{Conn: c}
	var refused *Decision
	err := tls.Server(rec, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		refused = checkHello(h, host)
		return nil, errPeeked
	}}).Handshake()
	if !errors.Is(err, errPeeked) {
		return nil, notTLS(err)
	}
	if refused != nil {
		// The client is told as TLS can: fatal, unrecognized_name (RFC 6066).
		_, _ = c.Write([]byte{21, 3, 1, 0, 2, 2, 112})
		return nil, refused
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return nil, notTLS(err)
	}
	return rec.read.Bytes(), nil
}

func notTLS(err error) *Decision {
	return &Decision{Rule: "not-tls", Detail: fmt.Sprintf("What came through the tunnel is no TLS ClientHello (%s). Only TLS is passed on; for plain HTTP send the request to the proxy with its whole URL.", cut(err.Error()))}
}

// recorder keeps what is read from a connection and lets nothing be written.
type recorder struct {
	net.Conn
	read bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	left := maxHello - r.read.Len()
	if left <= 0 {
		return 0, fmt.Errorf("it is longer than %d bytes", maxHello)
	}
	n, err := r.Conn.Read(p[:min(len(p), left)])
	r.read.Write(p[:n])
	return n, err
}

func (r *recorder) Write(p []byte) (int, error)      { return len(p), nil }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }
