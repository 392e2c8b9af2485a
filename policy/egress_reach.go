package policy

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kickhq/kick/internal/lazyregexp"
)

// Reach is a compiled Egress. It is not changed by use, and may be used from
// several goroutines.
type Reach struct {
	hosts  []hostRule
	git    []gitRule
	gitAt  map[string][]netip.Prefix // addresses of hosts of git that are not public ones
	models []Model
}

// hostRule is a Host with nothing left open.
type hostRule struct {
	Host
	paths []pathPattern // empty: all
	whole bool          // all rules of this host and port have all paths
}

type gitRule struct {
	name, pattern string
	line          int // 0: of a preset
}

func (g gitRule) where() string {
	if g.line > 0 {
		return fmt.Sprintf("git %q on line %d", g.pattern, g.line)
	}
	return g.name
}

// Compile makes the form in which decisions are made. It reads no Scopes: For
// does. The error names every contradiction.
func (e Egress) Compile() (*Reach, error) {
	r := &Reach{gitAt: map[string][]netip.Prefix{}}
	var errs []error
	for _, m := range e.Models {
		m = m.Filled()
		if slices.ContainsFunc(r.models, func(o Model) bool { return o.Route == m.Route }) {
			errs = append(errs, &ruleError{m.line, fmt.Sprintf("the model route %s is there twice: give one of them another \"route\"", m.Route)})
		}
		r.models = append(r.models, m)
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(e.Presets))) {
		p, ok := presets[name]
		if !ok {
			errs = append(errs, fmt.Errorf("there is no preset %q: the presets are %s", name, strings.Join(Presets(), ", ")))
		}
		for _, h := range p.Hosts {
			h.name = "preset:" + name
			r.hosts = append(r.hosts, newHostRule(h))
		}
		for _, g := range p.Git {
			r.git = append(r.git, gitRule{name: "preset:" + name, pattern: g})
		}
	}
	for _, h := range e.Hosts {
		h.name = "host:" + h.Host
		r.hosts = append(r.hosts, newHostRule(h))
	}
	for _, g := range e.Git {
		r.git = append(r.git, gitRule{"git:" + g, strings.ToLower(g), e.gitLines[g]})
	}
	for _, h := range e.GitHosts {
		switch {
		case r.gitAt[h.Host] != nil:
			errs = append(errs, &ruleError{h.line, fmt.Sprintf("git_hosts has %s twice: keep one", h.Host)})
		case !slices.Contains(r.GitHosts(), h.Host):
			errs = append(errs, &ruleError{h.line, fmt.Sprintf("git_hosts has %s, of which git has no repository: add one, or remove it", h.Host)})
		}
		r.gitAt[h.Host] = h.Addresses
	}
	for i := range r.hosts {
		for j := range i {
			if err := r.hosts[i].conflict(r.hosts[j]); err != nil {
				errs = append(errs, err)
			}
			if r.hosts[i].sameEndpoint(r.hosts[j]) {
				w := r.hosts[i].whole && r.hosts[j].whole
				r.hosts[i].whole, r.hosts[j].whole = w, w
			}
		}
	}
	for i, g := range r.git {
		for _, o := range r.git[:i] {
			narrow, wide := g, o
			if matchesRepo(g.pattern, o.pattern) {
				narrow, wide = o, g
			}
			if matchesRepo(wide.pattern, narrow.pattern) {
				errs = append(errs, &ruleError{narrow.line, fmt.Sprintf("%s is shadowed by %s and changes nothing: remove it", narrow.where(), wide.where())})
			}
		}
	}
	return r, errors.Join(errs...)
}

func newHostRule(h Host) hostRule {
	if h.Scheme == "" {
		h.Scheme = SchemeHTTPS
	}
	if h.Ports == nil {
		h.Ports = []int{443}
		if h.Scheme == SchemeHTTP {
			h.Ports = []int{80}
		}
	}
	if h.Methods == nil {
		h.Methods = []string{http.MethodGet}
	}
	r := hostRule{Host: h, whole: len(h.Paths) == 0}
	for _, p := range h.Paths {
		r.paths = append(r.paths, parsePath(p))
	}
	return r
}

// reads reports whether the gateway sees methods and paths.
func (h hostRule) reads() bool { return h.Terminate || h.Scheme == SchemeHTTP }

// where names the rule for people.
func (h hostRule) where() string {
	if h.line > 0 {
		return fmt.Sprintf("host %q on line %d", h.Host.Host, h.line)
	}
	return h.name
}

// matchesHost decides about a name or a pattern in lower case.
func (h hostRule) matchesHost(name string) bool {
	if suffix, ok := strings.CutPrefix(h.Host.Host, "*"); ok {
		return strings.HasSuffix(name, suffix)
	}
	return name == h.Host.Host
}

func (h hostRule) sameEndpoint(o hostRule) bool {
	return (h.matchesHost(o.Host.Host) || o.matchesHost(h.Host.Host)) &&
		slices.ContainsFunc(h.Ports, func(p int) bool { return slices.Contains(o.Ports, p) })
}

// conflict says why h, the later one, cannot stand beside o: of two rules that
// decide about one request, one does nothing or the two contradict.
func (h hostRule) conflict(o hostRule) error {
	if !h.sameEndpoint(o) {
		return nil
	}
	fail := func(format string, args ...any) error {
		return &ruleError{line: h.line, text: fmt.Sprintf("%s and %s: ", h.where(), o.where()) + fmt.Sprintf(format, args...)}
	}
	switch {
	case h.Scheme != o.Scheme:
		return fail("one port is https and http: give each a port of its own")
	case h.Terminate != o.Terminate:
		return fail("one is terminated and the other passes through, for the same host and port: make them alike, or name other hosts")
	case h.Host.Host != o.Host.Host && o.matchesHost(h.Host.Host) && o.coversRequests(h):
		return fail("the first is shadowed and changes nothing: remove it")
	case h.Host.Host != o.Host.Host && h.matchesHost(o.Host.Host) && h.coversRequests(o):
		return fail("the second is shadowed and changes nothing: remove it")
	case h.Host.Host != o.Host.Host:
		return fail("they overlap: name hosts that the other does not have")
	case !slices.Equal(h.Addresses, o.Addresses):
		return fail("one host has two lists of addresses: make them alike")
	case o.coversRequests(h):
		return fail("the first is shadowed and changes nothing: remove it")
	case h.coversRequests(o):
		return fail("the second is shadowed and changes nothing: remove it")
	case h.meets(o):
		return fail("they overlap: allow each method, path and port once")
	}
	return nil
}

// coversRequests reports whether h allows all ports, methods and paths of o.
func (h hostRule) coversRequests(o hostRule) bool {
	for _, p := range o.Ports {
		if !slices.Contains(h.Ports, p) {
			return false
		}
	}
	if !h.reads() {
		return true
	}
	for _, m := range o.Methods {
		if !h.allowsMethod(m) {
			return false
		}
	}
	if len(h.paths) == 0 {
		return true
	}
	return len(o.paths) > 0 && !slices.ContainsFunc(o.paths, func(q pathPattern) bool {
		return !slices.ContainsFunc(h.paths, func(p pathPattern) bool { return p.covers(q) })
	})
}

// meets reports whether a request to the one host is allowed by both.
func (h hostRule) meets(o hostRule) bool {
	if !slices.ContainsFunc(h.Methods, o.allowsMethod) && !slices.ContainsFunc(o.Methods, h.allowsMethod) {
		return false
	}
	return len(h.paths) == 0 || len(o.paths) == 0 || slices.ContainsFunc(h.paths, func(p pathPattern) bool {
		return slices.ContainsFunc(o.paths, p.meets)
	})
}

// allowsMethod: who may GET may ask for the header alone.
func (h hostRule) allowsMethod(m string) bool {
	return slices.Contains(h.Methods, m) || m == http.MethodHead && slices.Contains(h.Methods, http.MethodGet)
}

func (h hostRule) allowsPath(p string) bool {
	return len(h.paths) == 0 || slices.ContainsFunc(h.paths, func(pat pathPattern) bool { return pat.matches(p) })
}

// ruleError is a contradiction with the line of the rule that it is about.
type ruleError struct {
	line int
	text string
}

func (e *ruleError) Error() string { return e.text }

// Terminates reports whether the gateway is to end the TLS of some host.
func (r *Reach) Terminates() bool {
	return slices.ContainsFunc(r.hosts, func(h hostRule) bool { return h.Terminate })
}

// Decide decides about one request. It does not resolve names: whoever
// connects asks AllowsAddress about the address, and connects to that one.
func (r *Reach) Decide(q Request) Answer {
	switch q.Scheme {
	case SchemeHTTPS, SchemeHTTP:
		return r.decideHost(q)
	case SchemeGit:
		return r.decideGit(q)
	case SchemeModel:
		return r.decideModel(q)
	}
	return deny("scheme", "%s is not a scheme that leaves a sandbox: use https or http.", quoted(q.Scheme))
}

func deny(rule, format string, args ...any) Answer {
	return Answer{Rule: rule, Detail: fmt.Sprintf(format, args...)}
}

func (r *Reach) decideHost(q Request) Answer {
	host := strings.ToLower(q.Host)
	if why := unclearHost(host); why != "" {
		return deny("host-form", "The host %s is denied: %s.", quoted(q.Host), why)
	}
	rules := r.hosts
	keep := func(ok func(h hostRule) bool) bool {
		rules = slices.DeleteFunc(slices.Clone(rules), func(h hostRule) bool { return !ok(h) })
		return len(rules) > 0
	}
	if !keep(func(h hostRule) bool { return h.matchesHost(host) }) {
		return deny("default-deny", "No egress rule has the host %s, and what no rule has is denied. To allow it, the operator adds %s.", host, remedy(host, q))
	}
	near := rules[0].where()
	if !keep(func(h hostRule) bool { return slices.Contains(h.Ports, q.Port) }) {
		return deny("port", "Port %d of %s is denied: %s has other ports. To allow it, the operator adds %s.", q.Port, host, near, entry(host, q))
	}
	if !keep(func(h hostRule) bool { return h.Scheme == q.Scheme }) {
		return deny("scheme", "%s is denied on port %d of %s: %s has the other scheme. To allow it, the operator adds an entry with scheme %s and a port of its own.", q.Scheme, q.Port, host, near, q.Scheme)
	}
	allowed := Answer{Allow: true, Rule: rules[0].name, Terminate: rules[0].Terminate, Addresses: rules[0].Addresses}
	if !rules[0].reads() {
		allowed.Detail = fmt.Sprintf("%s lets every TLS connection to %s:%d pass through.", rules[0].where(), host, q.Port)
		return allowed
	}
	if q.Method == http.MethodConnect && q.Scheme == SchemeHTTPS {
		allowed.Detail = fmt.Sprintf("%s has %s:%d, and its requests are decided about one by one.", rules[0].where(), host, q.Port)
		return allowed
	}
	if why := unclearPath(q.Path, rules[0].whole); why != "" {
		return deny("path-form", "The path %s is denied, since servers may read it in more than one way: %s. Write it plainly.", quoted(q.Path), why)
	}
	near = rules[0].where()
	if !keep(func(h hostRule) bool { return h.allowsMethod(q.Method) }) {
		return deny("method", "%s is denied on %s: %s has other methods. To allow it, the operator adds it to the methods of the host's entry in egress.hosts, or adds one with it.", quoted(q.Method), host, near)
	}
	near = rules[0].where()
	if !keep(func(h hostRule) bool { return h.allowsPath(q.Path) }) {
		return deny("path", "%s %s is denied on %s: %s has other paths. To allow it, the operator adds it to the paths of the host's entry in egress.hosts, or adds one with it.", q.Method, quoted(q.Path), host, near)
	}
	allowed.Rule = rules[0].name
	allowed.Detail = fmt.Sprintf("%s allows %s %s on %s:%d.", rules[0].where(), q.Method, quoted(q.Path), host, q.Port)
	return allowed
}

// remedy is the entry that allows a request.
func remedy(host string, q Request) string {
	for _, p := range []Provider{Anthropic, OpenAI, Gemini} {
		endpoint, _ := p.defaults()
		if name, _, _ := strings.Cut(strings.TrimPrefix(endpoint, "https://"), "/"); name == host {
			return fmt.Sprintf("{provider: %s} to egress.models, and the agent calls the route that this makes in its sandbox", p)
		}
	}
	for _, name := range Presets() {
		for _, h := range presets[name].Hosts {
			if newHostRule(h).matchesHost(host) {
				return fmt.Sprintf("the preset %s to egress.presets", name)
			}
		}
	}
	return entry(host, q)
}

func entry(host string, q Request) string {
	s := fmt.Sprintf("{host: %s", host)
	switch {
	case q.Scheme == SchemeHTTP && q.Port != 80:
		s += ", scheme: http, ports: [" + strconv.Itoa(q.Port) + "]"
	case q.Scheme == SchemeHTTP:
		s += ", scheme: http"
	case q.Port != 443:
		s += ", ports: [" + strconv.Itoa(q.Port) + "]"
	}
	if q.Scheme == SchemeHTTPS {
		s += ", terminate: true"
	}
	return s + "} to egress.hosts"
}

// unclearHost says why a host is none that a rule can name.
func unclearHost(host string) string {
	last := host[strings.LastIndexByte(host, '.')+1:]
	_, notIP := netip.ParseAddr(strings.Trim(host, "[]"))
	switch {
	case host == "":
		return "it is empty"
	case notIP == nil || numeric.MatchString(last):
		return "it is an address, and only names are allowed"
	case len(host) > 253 || strings.HasPrefix(host, "*") || !hostName.MatchString(host):
		return "it is no DNS name"
	}
	return ""
}

// numeric is a last label that makes URL parsers take a host for an IPv4
// address (https://url.spec.whatwg.org/#ends-in-a-number-checker).
var numeric = lazyregexp.New(`^([0-9]+|0[xX][0-9A-Fa-f]*)$`)

func (r *Reach) decideGit(q Request) Answer {
	host, path := strings.ToLower(q.Host), strings.ToLower(q.Path)
	repo := host + strings.TrimSuffix(path, ".git")
	if unclearHost(host) != "" || !gitRepo.MatchString(repo) || strings.ContainsRune(repo, '*') {
		return deny("git-form", "%s is denied: a repository is named as host/owner/name.", quoted(q.Host+q.Path))
	}
	if q.Method == "PUSH" {
		return deny("push", "A push to %s is denied, as every push from a sandbox: what is committed in the workspace is pushed by kick, after inspection.", repo)
	}
	for _, g := range r.git {
		if matchesRepo(g.pattern, repo) {
			return Answer{Allow: true, Rule: g.name, Detail: fmt.Sprintf("%s allows fetches of %s.", g.where(), repo), Addresses: r.gitAt[host]}
		}
	}
	return deny("default-deny", "No egress rule has the repository %s, and what no rule has is denied. To allow fetches of it, the operator adds %s to egress.git.", repo, repo)
}

// matchesRepo compares part by part; "*" stands for any.
func matchesRepo(pattern, repo string) bool {
	p, n := strings.Split(pattern, "/"), strings.Split(repo, "/")
	return slices.EqualFunc(p, n, func(p, n string) bool { return p == "*" || p == n })
}

func (r *Reach) decideModel(q Request) Answer {
	name := strings.TrimPrefix(q.Path, "/")
	i := slices.IndexFunc(r.models, func(m Model) bool { return m.Route == q.Host })
	switch {
	case i < 0:
		return deny("default-deny", "No egress rule has the model route %s, and what no rule has is denied. To allow it, the operator adds it to egress.models.", quoted(q.Host))
	case !r.models[i].AllowsModel(name):
		return deny("model-name", "The model %s is denied on the route %s: the policy has other names. To allow it, the operator adds it to its names.", quoted(name), q.Host)
	}
	return Answer{
		Allow: true, Rule: "model:" + q.Host, Addresses: r.models[i].Addresses,
		Detail: fmt.Sprintf("The policy allows calls of %s on the route %s.", quoted(name), q.Host),
	}
}

// quoted shows hostile text, cut to what a host name may have.
func quoted(s string) string {
	if len(s) > 253 {
		return strconv.QuoteToASCII(s[:253]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
