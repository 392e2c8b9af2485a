package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
)

// terminate ends the TLS of a tunnel with a certificate of the gateway's own
// and answers the requests in it, each by the policy. It returns why the
// tunnel was refused, if it was.
func (g *Gateway) terminate(ctx context.Context, c net.Conn, req Request, t target, addrs []netip.Addr) *Decision {
	var refused *Decision
	conn := tls.Server(c, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			if refused = checkHello(h, t.host); refused != nil {
				return nil, errors.New(refused.Rule)
			}
			leaf, err := g.authority.leaf(t.host)
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				Certificates:           []tls.Certificate{leaf},
				MinVersion:             tls.VersionTLS12,
				NextProtos:             []string{"http/1.1"}, // no other is understood
				SessionTicketsDisabled: true,
			}, nil
		},
	})
	defer func() { _ = conn.Close() }()
	hctx, cancel := context.WithTimeout(ctx, g.limits.forward.hello)
	err := conn.HandshakeContext(hctx)
	cancel()
	if refused != nil {
		return refused
	}
	if err != nil {
		return &Decision{Rule: "tls-failed", Detail: cut(err.Error())}
	}
	// At the addresses that were found when the tunnel was allowed, whatever its
	// name resolves to later.
	transport := g.transport(t.host, func(ctx context.Context) (net.Conn, error) { return g.dial(ctx, addrs, t.port) })
	defer transport.CloseIdleConnections()
	g.serveOne(ctx, conn, func(w http.ResponseWriter, r *http.Request) {
		g.inside(w, r, req, t, addrs, transport)
	})
	return nil
}

// inside answers one request of a tunnel whose TLS ended here.
func (g *Gateway) inside(w http.ResponseWriter, r *http.Request, outer Request, t target, addrs []netip.Addr, transport http.RoundTripper) {
	req := requestOf(r)
	req.Kick, req.Agent, req.Form = outer.Kick, outer.Agent, TerminatedForm
	if d := sameTarget(r, t); d != nil {
		g.deny(w, req, *d)
		return
	}
	ans, d := g.ask(r, t)
	if d != nil {
		g.deny(w, req, *d)
		return
	}
	// Which rule allows may depend on the path, and each has its addresses.
	may, err := permitted(t.host, addrs, ans)
	if err != nil || len(may) < len(addrs) {
		g.deny(w, req, Decision{Rule: "address-not-listed", Detail: t.host + " was reached at an address that the rule of this request does not permit."})
		return
	}
	rec, dec := g.log.decided(req, Decision{Allow: true, Rule: ans.Rule})
	if !dec.Allow {
		refuse(w, dec)
		return
	}
	g.pass(w, r, rec, t, transport)
}

// sameTarget refuses what would leave the tunnel's target: the proxy forms,
// and the name of another host.
func sameTarget(r *http.Request, t target) *Decision {
	if r.Method == http.MethodConnect || r.URL.IsAbs() || r.URL.Host != "" {
		return &Decision{Rule: "form-not-permitted", Detail: "In a tunnel a request names its path alone. Open a tunnel for each host."}
	}
	if h, d := parseTarget(t.scheme, r.Host, true); d != nil || h != t {
		return &Decision{Rule: "host-mismatch", Detail: "The request is for " + cut(r.Host) + " and came through the tunnel to " + t.hostPort() + "; they have to be the same."}
	}
	return nil
}

// serveOne serves HTTP/1.1 on one connection and returns when it is closed and
// no handler runs.
func (g *Gateway) serveOne(ctx context.Context, c net.Conn, handler http.HandlerFunc) {
	l := &oneListener{conn: make(chan net.Conn, 1), ended: make(chan struct{}), addr: c.LocalAddr()}
	l.conn <- c
	s := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer g.guard()
			handler(w, r)
		}),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed || s == http.StateHijacked {
				close(l.ended)
			}
		},
	}
	g.bound(s)
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	_ = s.Serve(l)
}

// oneListener gives one connection, and then waits until the server has ended
// it.
type oneListener struct {
	conn  chan net.Conn
	ended chan struct{}
	addr  net.Addr
}

func (l *oneListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *oneListener) Close() error   { return nil } // Serve calls it when it returns
func (l *oneListener) Addr() net.Addr { return l.addr }
