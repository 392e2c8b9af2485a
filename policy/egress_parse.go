package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/publicsuffix"

	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/internal/lazyregexp"
)

func (d *decoder) egress(n *yaml.Node, e *Egress) {
	d.noCredential(n)
	before := len(d.errs)
	fields := d.egressFields(e)
	fields["scopes"] = func(v *yaml.Node) {
		d.list(v, "scopes", func(v *yaml.Node) {
			var s EgressScope
			d.scoped(v, "a scope of egress", &s.Repos, &s.Agents, d.egressFields(&s.Egress))
			d.need(v, "a scope", "presets, hosts, git, git_hosts or models", slices.ContainsFunc([]string{"presets", "hosts", "git", "git_hosts", "models"}, func(name string) bool { return d.has(v, name) }))
			e.Scopes = append(e.Scopes, s)
		})
	}
	d.mapping(n, "egress", fields)
	if len(d.errs) > before {
		return
	}
	base := *e
	base.Scopes = nil
	seen := map[string]bool{}
	for _, part := range append([]Egress{base}, scoped(base, e.Scopes)...) {
		d.compiles(n, part, seen)
	}
}

// scoped is base with each of the scopes.
func scoped(base Egress, scopes []EgressScope) []Egress {
	out := make([]Egress, len(scopes))
	for i, s := range scopes {
		out[i] = base.with(s.Egress)
	}
	return out
}

// compiles reports contradictions, each once.
func (d *decoder) compiles(n *yaml.Node, e Egress, seen map[string]bool) {
	_, err := e.Compile()
	if err == nil {
		return
	}
	for _, err := range err.(interface{ Unwrap() []error }).Unwrap() { //nolint:errorlint // Compile joins its errors
		if seen[err.Error()] {
			continue
		}
		seen[err.Error()] = true
		at := *n
		var r *ruleError
		if errors.As(err, &r) && r.line > 0 {
			at.Line = r.line
		}
		d.fail(&at, "%v", err)
	}
}

// noCredential refuses a credential in any value: keys come from the gateway's
// own environment.
func (d *decoder) noCredential(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		if kind := credential.Kind(n.Value); kind != "" {
			d.fail(n, "a value looks like %s: revoke it if it is real, and write no credential here", kind)
		}
	}
	for _, c := range n.Content {
		d.noCredential(c)
	}
}

func (d *decoder) egressFields(e *Egress) map[string]field {
	return map[string]field{
		"presets": func(v *yaml.Node) { e.Presets = d.strs(v, "presets", checkPreset) },
		"hosts":   func(v *yaml.Node) { d.list(v, "hosts", func(v *yaml.Node) { e.Hosts = append(e.Hosts, d.host(v)) }) },
		"git": func(v *yaml.Node) {
			e.Git = d.strs(v, "git", checkGitRepo)
			e.gitLines = map[string]int{}
			for _, c := range v.Content {
				e.gitLines[c.Value] = c.Line
			}
		},
		"git_hosts": func(v *yaml.Node) {
			d.list(v, "git_hosts", func(v *yaml.Node) { e.GitHosts = append(e.GitHosts, d.gitHost(v)) })
		},
		"models": func(v *yaml.Node) {
			d.list(v, "models", func(v *yaml.Node) { e.Models = append(e.Models, d.model(v)) })
		},
	}
}

func (d *decoder) host(n *yaml.Node) Host {
	h := Host{line: n.Line}
	d.mapping(n, "a host", map[string]field{
		"host": func(v *yaml.Node) {
			s, ok := d.str(v, "host")
			if ok {
				if err := checkHost(s); err != nil {
					d.fail(v, "%v", err)
				}
			}
			h.Host = s
		},
		"scheme": func(v *yaml.Node) {
			s, ok := d.str(v, "scheme")
			if ok && s != SchemeHTTPS && s != SchemeHTTP {
				d.fail(v, "scheme is %q: write https or http", s)
			}
			h.Scheme = s
		},
		"ports":     func(v *yaml.Node) { h.Ports = d.ports(v) },
		"terminate": func(v *yaml.Node) { h.Terminate = Is(d.flag(v, "terminate")) },
		"methods":   func(v *yaml.Node) { h.Methods = d.strs(v, "methods", checkMethod) },
		"paths":     func(v *yaml.Node) { h.Paths = d.strs(v, "paths", checkURLPath) },
		"addresses": func(v *yaml.Node) { h.Addresses = d.addresses(v) },
		"shared":    func(v *yaml.Node) { h.Shared = Is(d.flag(v, "shared")) },
		"reason":    func(v *yaml.Node) { h.Reason, _ = d.str(v, "reason") },
	})
	d.need(n, "a host", "host", d.has(n, "host"))
	d.checkReading(n, h)
	return h
}

func (d *decoder) gitHost(n *yaml.Node) GitHost {
	h := GitHost{line: n.Line}
	d.mapping(n, "a host of git_hosts", map[string]field{
		"host": func(v *yaml.Node) {
			if s, ok := d.str(v, "host"); ok {
				if err := checkHost(s); err != nil {
					d.fail(v, "%v", err)
				} else if strings.HasPrefix(s, "*.") {
					d.fail(v, "%q is a wildcard: write the host as the repositories in git have it", s)
				}
				h.Host = s
			}
		},
		"addresses": func(v *yaml.Node) { h.Addresses = d.addresses(v) },
	})
	d.need(n, "a host of git_hosts", "host and addresses", d.has(n, "host") && d.has(n, "addresses"))
	return h
}

// checkReading checks what hangs on whether the gateway sees requests.
func (d *decoder) checkReading(n *yaml.Node, h Host) {
	reads := h.Terminate || h.Scheme == SchemeHTTP
	front := frontOf(h.Host)
	switch {
	case h.Terminate && h.Scheme == SchemeHTTP:
		d.fail(n, "host %q is http and has no TLS to terminate: remove terminate", h.Host)
	case !reads && (h.Methods != nil || h.Paths != nil):
		d.fail(n, "methods and paths of %q are inside of TLS, which passes through: add \"terminate: true\", or remove them to allow all", h.Host)
	case reads && h.Shared:
		d.fail(n, "shared has no effect on %q, whose requests are read: remove it", h.Host)
	case !reads && front != "" && !h.Shared:
		d.fail(n, "host %q is at %s, a front of many sites, and a connection that passes through may ask it for another: add \"terminate: true\", or accept that with \"shared: true\"", h.Host, front)
	}
	for i, p := range h.Paths {
		for _, o := range h.Paths[:i] {
			if parsePath(p).meets(parsePath(o)) {
				d.fail(n, "paths %q and %q of host %q overlap: keep the wider one, or write them apart", o, p, h.Host)
			}
		}
	}
}

func frontOf(host string) string {
	for _, f := range sharedFronts {
		if strings.HasSuffix("."+strings.TrimPrefix(host, "*."), "."+f) {
			return f
		}
	}
	return ""
}

func (d *decoder) ports(n *yaml.Node) []int {
	ports := []int{}
	d.list(n, "ports", func(v *yaml.Node) {
		port := d.count(v, "a port")
		switch {
		case port > 65535:
			d.fail(v, "port %d is above 65535", port)
		case slices.Contains(ports, int(port)):
			d.fail(v, "ports has %d twice: keep one", port)
		}
		ports = append(ports, int(port))
	})
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		d.fail(n, "ports is empty: list something or remove the key")
	}
	return ports
}

func (d *decoder) addresses(n *yaml.Node) []netip.Prefix {
	var out []netip.Prefix
	d.strs(n, "addresses", func(s string) error {
		p, err := checkAddress(s)
		out = append(out, p)
		return err
	})
	return out
}

func checkAddress(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if a, aerr := netip.ParseAddr(s); aerr == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	switch {
	case err != nil:
		return p, fmt.Errorf("%q is no address: write one as 10.1.2.3, or a network as 10.1.2.0/24", s)
	case p != p.Masked():
		return p, fmt.Errorf("%q has bits behind its length: write %s", s, p.Masked())
	case p.Bits() < 8:
		return p, fmt.Errorf("%q is more than a network: write a length of 8 or more", s)
	}
	for _, never := range neverPrefixes {
		if never.Overlaps(p) {
			return p, fmt.Errorf("%q has addresses of %s, which no policy opens (loopback, link-local, metadata, multicast, or another one in disguise): leave them out", s, never)
		}
	}
	return p, nil
}

func checkHost(s string) error {
	suffix, wildcard := strings.CutPrefix(s, "*.")
	switch {
	case len(s) > 253 || !hostName.MatchString(s) || numeric.MatchString(s[strings.LastIndexByte(s, '.')+1:]):
		return fmt.Errorf("host %q is no DNS name: write it in lower case without scheme, port or path, with \"*.\" in front for all below it", s)
	case !wildcard:
		return nil
	}
	if public, _ := publicsuffix.PublicSuffix(suffix); public == suffix {
		return fmt.Errorf("host %q has the names of anybody: %s is a public suffix, so write more of the name", s, suffix)
	}
	return nil
}

func checkPreset(s string) error {
	if _, ok := presets[s]; !ok {
		return fmt.Errorf("there is no preset %q: the presets are %s", s, strings.Join(Presets(), ", "))
	}
	return nil
}

// gitRepo is host/owner/name; no pattern has a part of the host open.
var gitRepo = lazyregexp.New(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+/(\*|[A-Za-z0-9_][A-Za-z0-9._-]{0,99})/(\*|[A-Za-z0-9_.-]{0,99}[A-Za-z0-9_-])$`)

func checkGitRepo(s string) error {
	if !gitRepo.MatchString(s) || strings.HasSuffix(s, ".git") || strings.Contains(s, "..") || len(s) > 512 {
		return fmt.Errorf("%q is no repository: write host/owner/name, without scheme and .git, with \"*\" for any owner or name", s)
	}
	return nil
}
