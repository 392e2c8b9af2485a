package egress

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/kickhq/kick/policy"
)

// tunnel answers an allowed CONNECT. What passes through must begin with a
// ClientHello for the very host, and is not looked at after that, unless the
// policy has the gateway end TLS itself.
func (g *Gateway) tunnel(w http.ResponseWriter, r *http.Request, req Request, rec Record, t target, ans policy.Answer, addrs []netip.Addr) {
	var up net.Conn
	if !ans.Terminate {
		var err error
		if up, err = g.dial(r.Context(), addrs, t.port); err != nil {
			g.unreachable(w, rec, err)
			return
		}
		defer up.Close()
	}
	end := End{Status: http.StatusOK}
	defer func() { g.log.done(rec, end) }()
	c, err := established(w)
	if err != nil {
		end.Error = err.Error()
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(r.Context(), g.limits.forward.total)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var refused *Decision
	if ans.Terminate {
		refused = g.terminate(ctx, c, req, t, addrs)
	} else {
		refused = g.splice(ctx, c, up, t, &end)
	}
	if refused != nil {
		end.Error = refused.Rule
		_, _ = g.log.decided(req, *refused)
	}
}

// established takes over the client's connection and tells it so.
func established(w http.ResponseWriter) (net.Conn, error) {
	c, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	err = c.SetDeadline(time.Time{})
	if err == nil {
		_, err = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// A client may send its ClientHello with the request.
	return &readAhead{Conn: c, r: io.MultiReader(io.LimitReader(buf, int64(buf.Reader.Buffered())), c)}, nil
}

// readAhead is a connection of which some bytes were read.
type readAhead struct {
	net.Conn
	r io.Reader
}

func (c *readAhead) Read(p []byte) (int, error) { return c.r.Read(p) }

// splice passes bytes both ways once the ClientHello is right.
func (g *Gateway) splice(ctx context.Context, c, up net.Conn, t target, end *End) *Decision {
	lim := g.limits.forward
	hello, refused := readHello(c, t.host, lim.hello)
	if refused != nil {
		return refused
	}
	x := newPassage(ctx, lim.total, lim.idle)
	defer x.end()
	defer context.AfterFunc(x.ctx, func() {
		c.Close()
		up.Close()
	})()
	sent, got := x.flow(lim.bytes, errTooMuch), x.flow(lim.bytes, errTooMuch)
	var wg sync.WaitGroup
	wg.Go(func() {
		pour(up, sent.reader(io.MultiReader(bytes.NewReader(hello), c)))
		if h, ok := up.(interface{ CloseWrite() error }); ok && sent.err() == nil {
			_ = h.CloseWrite() // the upstream may have more to say
		} else {
			up.Close()
		}
	})
	pour(c, got.reader(up))
	// TLS has ends of its own; without the upstream there is nothing to say.
	c.Close()
	up.Close()
	wg.Wait()
	end.Sent, end.Got = sent.n.Load(), got.n.Load()
	if err := errors.Join(sent.err(), got.err(), context.Cause(x.ctx)); err != nil {
		end.Error = err.Error()
	}
	return nil
}

// pour copies until either side ends, which is all that there is to know.
func pour(w io.Writer, r io.Reader) {
	_ = relay(r, func(p []byte) error {
		_, err := w.Write(p)
		return err
	})
}

// errTooMuch ends what passes the limit of bytes.
var errTooMuch = errors.New("more bytes than one request or tunnel may carry")
