package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/kickhq/kick/policy"
)

// maxAddresses is how many addresses of one host are tried, in the resolver's
// order. Hosts that matter here have one to four of each family.
const maxAddresses = 8

// forbiddenError tells that a host's addresses are all forbidden.
type forbiddenError struct {
	host string
	addr netip.Addr // the first one
	rule string     // what forbids it
}

func (e *forbiddenError) Error() string {
	return fmt.Sprintf("%s has the address %s, which is not permitted", e.host, e.addr)
}

// resolve asks for the addresses of a host once, and returns those that may be
// connected to. Who connects uses one of these and never the name, so a name
// that changes its addresses gains nothing. The error is a *forbiddenError if
// the host has none but forbidden ones.
func (g *Gateway) resolve(ctx context.Context, host string, ans policy.Answer) ([]netip.Addr, error) {
	lookup := g.cfg.Resolve
	if lookup == nil {
		lookup = resolveBySystem
	}
	ctx, cancel := context.WithTimeout(ctx, g.limits.forward.resolve)
	defer cancel()
	found, err := lookup(ctx, host)
	if err != nil {
		return nil, g.withProxyHint(fmt.Errorf("resolve %s: %w", host, err))
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("resolve %s: it has no address", host)
	}
	may, err := permitted(host, found, ans)
	return may[:min(len(may), maxAddresses)], err
}

// permitted returns those of a host's addresses that may be connected to. A
// mapped address (::ffff:127.0.0.1) is judged as the IPv4 one that the system
// connects to.
func permitted(host string, found []netip.Addr, ans policy.Answer) ([]netip.Addr, error) {
	own, err := ownAddresses()
	if err != nil {
		return nil, err
	}
	var may []netip.Addr
	var forbidden *forbiddenError
	for _, a := range found {
		a = a.Unmap()
		rule, ok := ans.AllowsAddress(a)
		if ok && len(ans.Addresses) == 0 && slices.Contains(own, a) {
			rule, ok = "address-own", false
		}
		if ok {
			may = append(may, a)
		} else if forbidden == nil {
			forbidden = &forbiddenError{host, a, rule}
		}
	}
	if len(may) == 0 && forbidden != nil {
		return nil, forbidden
	}
	return may, nil
}

// resolveBySystem asks for the host as a full name: the resolver's search
// domains would make another host of it.
func resolveBySystem(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host+".")
}

// ownAddresses are those of this machine's interfaces. A service may listen on
// a public one and be kept from the world by a firewall, which does not hold
// for connections from here: only an operator's list of addresses opens it.
func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				own = append(own, ip.Unmap())
			}
		}
	}
	return own, nil
}

// dialName connects to a host by its name.
func (g *Gateway) dialName(ctx context.Context, host string, port uint16, ans policy.Answer) (net.Conn, error) {
	addrs, err := g.resolve(ctx, host, ans)
	if err != nil {
		return nil, err
	}
	return g.dial(ctx, addrs, port)
}

// dial connects to one of the addresses that resolve gave.
func (g *Gateway) dial(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, error) {
	dial := g.cfg.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, g.limits.forward.dial)
	defer cancel()
	var errs []error
	for _, a := range addrs {
		c, err := dialOne(ctx, dial, netip.AddrPortFrom(a, port), g.limits.forward.dialOne)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, g.withProxyHint(errors.Join(errs...))
}

func dialOne(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), to netip.AddrPort, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return dial(ctx, "tcp", to.String())
}

// proxyVariables send other programs to a proxy, and kick not.
var proxyVariables = []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"}

// withProxyHint says what to do where a host reaches the outside by a proxy
// alone, which would resolve the names that are to be judged here.
func (g *Gateway) withProxyHint(err error) error {
	for _, name := range proxyVariables {
		if v, ok := g.cfg.LookupEnv(name); ok && v != "" {
			return fmt.Errorf("%w (kick does not use the proxy of %s, since it judges the addresses that it connects to: let the host of kick connect to this destination itself)", err, name)
		}
	}
	return err
}

// transport speaks HTTP/1.1 to a host by connections that dial makes. It takes
// no proxy from kick's own environment and follows no redirect.
func (g *Gateway) transport(host string, dial func(ctx context.Context) (net.Conn, error)) *http.Transport {
	tr := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		TLSClientConfig:        &tls.Config{RootCAs: g.cfg.Roots, ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
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
