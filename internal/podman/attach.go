package podman

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Stream is the standard input, output and error of a container.
type Stream struct {
	conn net.Conn
	r    *bufio.Reader
}

// Attach prepares a container that was created, so that Start starts its first
// process, and connects to its three standard streams. Nothing is lost of what
// it writes; a container that has already run cannot be attached to (it hangs
// on Podman 5 and starts anew on Podman 4).
func (c *Client) Attach(ctx context.Context, name string) (*Stream, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	s, err := handshake(conn, name)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return s, nil
}

func handshake(conn net.Conn, name string) (*Stream, error) {
	// The bytes of standard input are the shim's protocol: no key detaches.
	q := url.Values{"stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"}, "stream": {"true"}, "detachKeys": {""}}
	req, err := http.NewRequest(http.MethodPost, "http://podman"+apiRoot+"/containers/"+url.PathEscape(name)+"/attach?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(conn, 64<<10)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols && resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return nil, err
		}
		return nil, refusal(resp.StatusCode, b)
	}
	return &Stream{conn, r}, nil
}

// Write writes to standard input.
func (s *Stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// SetWriteDeadline bounds writes.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.conn.SetWriteDeadline(t) }

// Close ends the connection; the container's standard input ends with it.
func (s *Stream) Close() { s.conn.Close() }

// Copy passes standard output and error on until they end. Each piece comes
// after eight bytes: the stream's number, three zeros and the length.
func (s *Stream) Copy(stdout, stderr io.Writer) error {
	var header [8]byte
	for {
		if _, err := io.ReadFull(s.r, header[:]); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		var w io.Writer
		switch header[0] {
		case 0, 1:
			w = stdout
		case 2:
			w = stderr
		case 3: // a failure of the service, in words
			b, _ := io.ReadAll(io.LimitReader(s.r, min(maxAnswer, int64(binary.BigEndian.Uint32(header[4:])))))
			return fmt.Errorf("the Podman service: %.1000q", b)
		default:
			return fmt.Errorf("the Podman service sent a piece of stream %d, there are 0 to 3", header[0])
		}
		if _, err := io.CopyN(w, s.r, int64(binary.BigEndian.Uint32(header[4:]))); err != nil {
			return err
		}
	}
}
