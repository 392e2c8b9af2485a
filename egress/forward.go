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
	"net/textproto"
	"net/url"
	"slices"
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
		transport := g.transport(t.host, func(ctx context.Context) (net.Conn, error) { return g.dial(ctx, addrs, t.port) })
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
	if r.Method != http.MethodConnect {
		if name := overriding(r.Header); name != "" {
			return ans, &Decision{Rule: "header-not-permitted", Detail: "The header " + cut(name) + " can give a request another method, path, host or length than the ones that were judged. Leave it out."}
		}
	}
	return ans, nil
}

// overrides are headers by which servers take a request for another one than
// its first line says, in lower case; those that end with "-" are beginnings.
var overrides = []string{
	"x-http-method", "x-method-override", "x-original-", "x-rewrite-", "x-forwarded-", "x-host", "x-http-host-override", "x-envoy-original-", "x-accel-redirect",
}

// framing are headers that net/http reads or takes away, as they are spelled;
// servers that hand headers on as variables (CGI, WSGI) take "_" for "-".
var framing = []string{"host", "content-length", "transfer-encoding", "connection", "upgrade", "forwarded", "te", "trailer"}

// overriding returns a header that is one of these, if there is one.
func overriding(h http.Header) string {
	for name := range h {
		switch plain := strings.ToLower(strings.ReplaceAll(name, "_", "-")); {
		case slices.Contains([]string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}, name):
			// They are common, and the proxy leaves them out.
		case slices.ContainsFunc(overrides, func(o string) bool { return strings.HasPrefix(plain, o) }),
			strings.Contains(name, "_") && slices.Contains(framing, plain):
			return name
		}
	}
	return ""
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

// pass sends an allowed request on and its answer back, and writes down how it
// ended.
func (g *Gateway) pass(w http.ResponseWriter, r *http.Request, rec Record, t target, transport http.RoundTripper) {
	lim := g.limits.forward
	x := newPassage(r.Context(), lim.total, lim.idle)
	defer x.end()
	var end End
	sent, got := x.flow(lim.bytes, errTooMuch), x.flow(lim.bytes, errTooMuch)
	defer func() { // the proxy panics if the answer breaks off
		end.Sent, end.Got = sent.n.Load(), got.n.Load()
		if err := errors.Join(sent.err(), got.err(), context.Cause(x.ctx)); err != nil {
			end.Error = err.Error()
		}
		g.log.done(rec, end)
	}()
	release, err := x.hold(w)
	if err != nil {
		end.Error = err.Error()
		return
	}
	defer release()
	r = r.WithContext(boundHints(x.ctx))
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
			if cause := context.Cause(x.ctx); cause != nil {
				err = cause
			}
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
