package openshelltest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/openshellapi/wire"
	"github.com/kickhq/kick/internal/openshelltest/relay"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// network opens the sandbox's way out, if its policy has any, and says what the
// supervisor is to do.
func (b *box) network(ctx context.Context, spec *sandbox.LaunchSpec) (q relay.Request, done func(), err error) {
	rules := b.created.GetSpec().GetPolicy().GetNetworkPolicies()
	if len(rules) == 0 {
		return q, func() {}, nil
	}
	allowed, err := egressOf(rules, b.g.options.Faults.Lax)
	if err != nil {
		return q, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	cfg := b.g.options.Network
	cfg.Kick, cfg.Agent, cfg.Policy, cfg.Audit = b.id, "openshell", allowed, denials{b}
	if b.out, err = egress.Listen(ctx, filepath.Join(b.dir, "egress"), cfg); err != nil {
		return q, nil, err
	}
	spec.Network, spec.Egress = sandbox.NetworkRestricted, sandbox.Egress{Socket: b.out.Socket()}
	q.ProxyPort, q.ProxySocket = proxyPort, sandbox.EgressSocketPath
	for _, rule := range rules {
		var r relay.Rule
		for _, p := range rule.GetBinaries() {
			r.Binaries = append(r.Binaries, p.GetPath())
		}
		for _, e := range rule.GetEndpoints() {
			for _, port := range e.GetPorts() {
				target := net.JoinHostPort(e.GetHost(), strconv.FormatUint(uint64(port), 10))
				r.Targets = append(r.Targets, target)
				if e.GetTls() == wire.NetworkTlsMode_NETWORK_TLS_MODE_SKIP {
					r.Relayed = append(r.Relayed, target)
				}
			}
		}
		q.Rules = append(q.Rules, r)
	}
	return q, func() { _ = b.out.Close() }, nil // what it says is of requests that were cut
}

// tunnel passes a connection on, to a target that the policy relays.
func (b *box) tunnel(ctx context.Context, c net.Conn, target string, rules []relay.Rule) {
	if !slices.ContainsFunc(rules, func(r relay.Rule) bool { return slices.Contains(r.Relayed, target) }) {
		return
	}
	dial := b.g.options.Network.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	up, err := dial(ctx, "tcp", target)
	if err != nil {
		return // the supervisor sees its connection end
	}
	defer up.Close()
	if _, err := c.Write([]byte{0}); err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	go func() {
		_, _ = io.Copy(up, c) // who is gone needs nothing more
		up.Close()
	}()
	_, _ = io.Copy(c, up)
}

// denials writes what kick's gateway denied into the sandbox's log.
type denials struct{ b *box }

func (d denials) Write(line []byte) (int, error) {
	for l := range bytes.Lines(line) {
		var r egress.Record
		if json.Unmarshal(l, &r) != nil || r.Event != egress.Decided || r.Verdict == egress.Allowed {
			continue
		}
		host := r.Host
		if h, _, ok := strings.Cut(host, ":"); ok {
			host = h
		}
		d.b.mu.Lock()
		binary := d.b.reached[host]
		d.b.mu.Unlock()
		d.b.log("WARN", "ocsf", fmt.Sprintf("HTTP:%s DENIED %s%s", r.Method, r.Host, r.Path),
			map[string]string{"action": "denied", "dst_host": host, "http_method": r.Method, "url_path": r.Path, "binary": binary, "reason": "policy_denied"})
	}
	return len(line), nil
}

// egressOf translates network rules into kick's own policy. An endpoint that is
// only audited allows everything, as it does there (Policy); with lax, all are.
func egressOf(rules map[string]*wire.NetworkPolicyRule, lax bool) (policy.Egress, error) {
	var e policy.Egress
	for _, key := range slices.Sorted(maps.Keys(rules)) {
		for _, p := range rules[key].GetEndpoints() {
			h := policy.Host{Host: strings.Replace(p.GetHost(), "**.", "*.", 1), Terminate: true}
			for _, port := range p.GetPorts() {
				h.Ports = append(h.Ports, int(port))
			}
			for _, ip := range p.GetAllowedIps() {
				a, err := netip.ParsePrefix(ip)
				if err != nil {
					return e, fmt.Errorf("allowed_ips %q: %w", ip, err)
				}
				h.Addresses = append(h.Addresses, a)
			}
			enforced := !lax && p.GetEnforcement() == wire.NetworkEnforcementMode_NETWORK_ENFORCEMENT_MODE_ENFORCE
			switch {
			case !enforced, p.GetProtocol() == "", p.GetAccess() == wire.NetworkAccessPreset_NETWORK_ACCESS_PRESET_FULL:
				h.Terminate = false
				e.Hosts = append(e.Hosts, h)
			case p.GetAccess() == wire.NetworkAccessPreset_NETWORK_ACCESS_PRESET_READ_ONLY:
				h.Methods = []string{http.MethodGet, http.MethodOptions}
				e.Hosts = append(e.Hosts, h)
			case p.GetAccess() == wire.NetworkAccessPreset_NETWORK_ACCESS_PRESET_READ_WRITE:
				h.Methods = []string{http.MethodGet, http.MethodOptions, http.MethodPost, http.MethodPut, http.MethodPatch}
				e.Hosts = append(e.Hosts, h)
			default:
				addRules(&e, h, p.GetRules())
			}
		}
	}
	return e, nil
}

// addRules allows what an endpoint's rules do. The two rules of a fetch are one
// repository in kick's policy.
func addRules(e *policy.Egress, h policy.Host, rules []*wire.L7Rule) {
	paths := map[string][]string{}
	for _, r := range rules {
		a := r.GetAllow()
		if repo, ok := strings.CutSuffix(a.GetPath(), "/git-upload-pack"); ok && a.GetMethod() == http.MethodPost {
			e.Git = append(e.Git, h.Host+strings.TrimSuffix(repo, ".git"))
			if h.Addresses != nil {
				e.GitHosts = append(e.GitHosts, policy.GitHost{Host: h.Host, Addresses: h.Addresses})
			}
			continue
		}
		if len(a.GetQuery()) == 0 {
			paths[a.GetMethod()] = append(paths[a.GetMethod()], a.GetPath())
		}
	}
	slices.Sort(e.Git)
	e.Git = slices.Compact(e.Git)
	for _, method := range slices.Sorted(maps.Keys(paths)) {
		h.Methods, h.Paths = []string{method}, paths[method]
		if slices.Contains(h.Paths, "**") {
			h.Paths = nil
		}
		e.Hosts = append(e.Hosts, h)
	}
}
