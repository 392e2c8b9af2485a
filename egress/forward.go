package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kickhq/kick/policy"
)

// forwardLimits bound what goes through the forward proxy.
type forwardLimits struct {
	resolve time.Duration // to find a host's addresses
	dial    time.Duration // to connect to one of them
	dialOne time.Duration // to connect to the first, so that a second has its turn
	hello   time.Duration // from the start of a tunnel to the end of its ClientHello
	idle    time.Duration // without a byte in either direction
	total   time.Duration // of one request or tunnel
	header  int64         // bytes of an upstream's header
	bytes   int64         // of one request or tunnel, in each direction
}

// The largest packages that registries serve are some 500 MB; a clone or a
// model may be more, and is the operator's to put into place.
var defaultForwardLimits = forwardLimits{
	resolve: 10 * time.Second,
	dial:    20 * time.Second,
	dialOne: 6 * time.Second,
	hello:   10 * time.Second,
	idle:    2 * time.Minute,
	total:   time.Hour,
	header:  64 << 10,
	bytes:   2 << 30,
}

// target is where a request wants to go.
type target struct {
	scheme string // of package policy
	host   string // in lower case
	port   uint16
}

// authority is the target as a Host header has it.
func (t target) authority() string {
	if t.scheme == policy.SchemeHTTP && t.port == 80 || t.scheme == policy.SchemeHTTPS && t.port == 443 {
		return t.host
	}
	return t.hostPort()
}

func (t target) hostPort() string { return net.JoinHostPort(t.host, strconv.Itoa(int(t.port))) }

// forward answers a proxy request: CONNECT, or one in absolute form.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request, req Request) {
	t, d := targetOf(r, req.Form)
	if d != nil {
		g.deny(w, req, *d)
		return
	}
	ans, d := g.ask(r, t)
	if d != nil {
		g.deny(w, req, *d)
		return
	}
	addrs, err := g.resolve(r.Context(), t.host, ans)
	var forbidden *forbiddenError
	if errors.As(err, &forbidden) {
		g.deny(w, req, forbiddenAddress(forbidden))
		return
	}
	rec, dec := g.log.decided(req, Decision{Allow: true, Rule: ans.Rule})
	switch {
	case !dec.Allow:
		refuse(w, dec)
	case err != nil:
		g.unreachable(w, rec, err)
	case req.Form == ConnectForm:
		g.tunnel(w, r, req, rec, t, ans, addrs)
	default:
		transport := g.transport(t, addrs)
		transport.DisableKeepAlives = true
		g.pass(w, r, rec, t, transport)
	}
}

// ask asks the policy about a request to a target.
func (g *Gateway) ask(r *http.Request, t target) (policy.Answer, *Decision) {
	q := policy.Request{Scheme: t.scheme, Method: r.Method, Host: t.host, Port: int(t.port)}
	if r.Method != http.MethodConnect {
		q.Path = pathOf(r.URL)
	}
	ans := g.reach.Decide(q)
	if !ans.Allow {
		return ans, &Decision{Rule: ans.Rule, Detail: ans.Detail}
	}
	// A body has no meaning there (RFC 9110, section 9.3.1), and would carry
	// out more than a URL does.
	if (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.ContentLength != 0 {
		return ans, &Decision{Rule: "body-not-permitted", Detail: "A " + r.Method + " request must not have a body. Leave it out."}
	}
	return ans, nil
}

func forbiddenAddress(e *forbiddenError) Decision {
	return Decision{Rule: e.rule, Detail: e.Error() + ". The operator of this sandbox can permit private addresses of a host by its addresses in the egress policy."}
}

// pathOf is the path that the policy judges, and that is sent.
func pathOf(u *url.URL) string {
	if p := u.EscapedPath(); p != "" {
		return p
	}
	return "/"
}

// targetOf takes the target from a proxy request. A Host header that differs
// counts for nothing, and is not sent (RFC 9112, section 3.2.2).
func targetOf(r *http.Request, form Form) (target, *Decision) {
	t := target{scheme: policy.SchemeHTTPS}
	if form == AbsoluteForm {
		switch {
		case r.URL.Scheme != policy.SchemeHTTP:
			return t, &Decision{Rule: "scheme-not-permitted", Detail: fmt.Sprintf("A proxy request with the scheme %s is not permitted. Use http, or CONNECT for https.", cut(r.URL.Scheme))}
		case r.URL.User != nil:
			return t, &Decision{Rule: "user-in-url", Detail: "The URL names a user. Send credentials, if any, in a header."}
		}
		t.scheme = policy.SchemeHTTP
	}
	return parseTarget(t.scheme, r.URL.Host, form == AbsoluteForm)
}

// parseTarget reads host and port. Only a URL has a port by default.
func parseTarget(scheme, hostPort string, portByDefault bool) (target, *Decision) {
	t := target{scheme: scheme}
	host, port := hostPort, ""
	if h, p, err := net.SplitHostPort(hostPort); err == nil {
		host, port = h, p
	} else if !portByDefault {
		return t, &Decision{Rule: "port-missing", Detail: fmt.Sprintf("%q names no port. Use the form host:port.", cut(hostPort))}
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r > '~' }) { // some of which fold to letters
		return t, &Decision{Rule: "host-form", Detail: fmt.Sprintf("The host %q is not in ASCII. Use its form in DNS.", cut(host))}
	}
	t.host = strings.ToLower(host) // its form is for the policy to judge
	if port == "" && portByDefault {
		port = "80"
		if scheme == policy.SchemeHTTPS {
			port = "443"
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || port != strconv.FormatUint(n, 10) {
		return t, &Decision{Rule: "port-unclear", Detail: fmt.Sprintf("%q is no port. Use a number from 1 to 65535.", cut(port))}
	}
	t.port = uint16(n)
	return t, nil
}

// transport carries requests to one target, at the addresses that were found
// when it was allowed, whatever its name resolves to later.
func (g *Gateway) transport(t target, addrs []netip.Addr) *http.Transport {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return g.dial(ctx, addrs, t.port)
		},
		TLSClientConfig:        g.clientTLS(t.host),
		TLSHandshakeTimeout:    g.limits.forward.dial,
		ResponseHeaderTimeout:  g.limits.forward.idle,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        g.limits.forward.idle,
		MaxResponseHeaderBytes: g.limits.forward.header,
		DisableCompression:     true, // the agent gets what was sent
		Protocols:              new(http.Protocols),
	}
	tr.Protocols.SetHTTP1(true)
	return tr
}

// pass sends an allowed request on and its answer back, and writes down how it
// ended.
func (g *Gateway) pass(w http.ResponseWriter, r *http.Request, rec Record, t target, transport http.RoundTripper) {
	lim := g.limits.forward
	ctx, cancel := context.WithTimeout(r.Context(), lim.total)
	defer cancel()
	var end End
	idle := newIdle(lim.idle, cancel)
	defer idle.stop()
	sent, got := &flow{left: lim.bytes, idle: idle}, &flow{left: lim.bytes, idle: idle}
	defer func() { // the proxy panics if the answer breaks off
		end.Sent, end.Got = sent.n.Load(), got.n.Load()
		if err := errors.Join(sent.err(), got.err()); err != nil {
			end.Error = err.Error()
		}
		g.log.done(rec, end)
	}()
	// The server's own limits are for refusals; what passes has those above.
	rc := http.NewResponseController(w)
	deadline := time.Now().Add(lim.total)
	if err := errors.Join(rc.SetReadDeadline(deadline), rc.SetWriteDeadline(deadline)); err != nil {
		end.Error = err.Error()
		return
	}
	r = r.WithContext(boundHints(ctx))
	r.Header.Del("Upgrade") // to nothing that could not be read
	if r.Body != nil {
		r.Body = sent.body(r.Body)
	}
	proxy := httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { rewrite(p, t) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode == http.StatusSwitchingProtocols {
				return fmt.Errorf("%s switches to another protocol", t.host)
			}
			end.Status = res.StatusCode
			res.Body = got.body(res.Body)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			end.Status, end.Error = http.StatusBadGateway, err.Error()
			reply(w, http.StatusBadGateway, "upstream_failed", Decision{Rule: rec.Rule, Detail: err.Error()})
		},
	}
	proxy.ServeHTTP(w, r)
}

// maxHints is how many informational answers (1xx) may come before the one that
// counts. Servers send one or two.
const maxHints = 10

// boundHints ends a request whose answer is nothing but informational ones,
// which no other cap counts.
func boundHints(ctx context.Context) context.Context {
	hints := 0
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			if hints++; hints > maxHints {
				return fmt.Errorf("the upstream sent more than %d informational answers", maxHints)
			}
			return nil
		},
	})
}

// rewrite makes the outgoing request, of which hop-by-hop headers are gone.
func rewrite(p *httputil.ProxyRequest, t target) {
	p.Out.URL = &url.URL{Scheme: t.scheme, Host: t.hostPort(), Path: p.In.URL.Path, RawPath: p.In.URL.RawPath, RawQuery: p.In.URL.RawQuery}
	if p.Out.URL.Path == "" {
		p.Out.URL.Path = "/"
	}
	p.Out.Host = t.authority()
	p.Out.Trailer = nil
}

// unreachable answers that an allowed request found no upstream.
func (g *Gateway) unreachable(w http.ResponseWriter, rec Record, err error) {
	g.log.done(rec, End{Status: http.StatusBadGateway, Error: err.Error()})
	reply(w, http.StatusBadGateway, "upstream_failed", Decision{Rule: rec.Rule, Detail: err.Error()})
}
