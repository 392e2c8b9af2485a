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
	"sync/atomic"
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
		refused = g.splice(c, up, ctx, t, &end)
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
func (g *Gateway) splice(c, up net.Conn, ctx context.Context, t target, end *End) *Decision {
	lim := g.limits.forward
	hello, refused := readHello(c, t.host, lim.hello)
	if refused != nil {
		return refused
	}
	defer context.AfterFunc(ctx, func() { up.Close() })()
	idle := newIdle(lim.idle, func() {
		c.Close()
		up.Close()
	})
	defer idle.stop()
	sent, got := &flow{left: lim.bytes, idle: idle}, &flow{left: lim.bytes, idle: idle}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(struct{ io.Writer }{up}, sent.reader(io.MultiReader(bytes.NewReader(hello), c)))
		if h, ok := up.(interface{ CloseWrite() error }); ok && sent.err() == nil {
			_ = h.CloseWrite() // the upstream may have more to say
		} else {
			up.Close()
		}
	})
	_, _ = io.Copy(struct{ io.Writer }{c}, got.reader(up))
	// TLS has ends of its own; without the upstream there is nothing to say.
	c.Close()
	up.Close()
	wg.Wait()
	end.Sent, end.Got = sent.n.Load(), got.n.Load()
	if err := errors.Join(sent.err(), got.err()); err != nil {
		end.Error = err.Error()
	}
	return nil
}

// idle calls a function once nothing passed for a time.
type idle struct {
	limit time.Duration
	timer *time.Timer
}

func newIdle(limit time.Duration, then func()) *idle {
	return &idle{limit, time.AfterFunc(limit, then)}
}

func (i *idle) passed() { i.timer.Reset(i.limit) }
func (i *idle) stop()   { i.timer.Stop() }

// errTooMuch ends what passes the limit of bytes.
var errTooMuch = errors.New("more bytes than one request or tunnel may carry")

// flow is one direction: it counts what is read, up to a limit.
type flow struct {
	left int64 // bytes; of the reading goroutine alone
	idle *idle
	n    atomic.Int64
	over atomic.Bool
}

func (m *flow) err() error {
	if m.over.Load() {
		return errTooMuch
	}
	return nil
}

func (m *flow) reader(r io.Reader) io.Reader { return &flowReader{m, r, nil} }

func (m *flow) body(b io.ReadCloser) io.ReadCloser { return &flowReader{m, b, b} }

type flowReader struct {
	m *flow
	r io.Reader
	io.Closer
}

func (r *flowReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if n > 0 {
		r.m.idle.passed()
	}
	if r.m.left -= int64(n); r.m.left < 0 {
		r.m.over.Store(true)
		return 0, errTooMuch
	}
	r.m.n.Add(int64(n))
	return n, err
}
