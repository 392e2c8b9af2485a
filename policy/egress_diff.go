package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ReachChange is something that one policy lets a sandbox reach and another
// does not.
type ReachChange struct {
	For  string `json:"for,omitempty"` // repository and agent, where not for all
	Rule string `json:"rule"`          // of the policy that allows it
	What string `json:"what"`          // an example, or a limit
}

// Widened returns what p lets sandboxes reach and old did not. It compares
// decisions and not texts: every rule of p is asked about by requests such
// that a policy that allows them allows all that the rule does.
func (p *Policy) Widened(old *Policy) ([]ReachChange, error) {
	var out []ReachChange
	seen := map[ReachChange]bool{}
	for _, who := range scopeCases(p.Egress.Scopes, old.Egress.Scopes) {
		now, err := p.Egress.For(who.repo, who.agent).Compile()
		if err != nil {
			return nil, err
		}
		before, err := old.Egress.For(who.repo, who.agent).Compile()
		if err != nil {
			return nil, err
		}
		for _, c := range now.widened(before) {
			if !seen[c] {
				seen[c] = true
				c.For = who.String()
				out = append(out, c)
			}
		}
	}
	return out, nil
}

// scopeCase is a repository and an agent; a name that is empty is any that no
// scope names.
type scopeCase struct{ repo, agent string }

func (c scopeCase) String() string {
	var parts []string
	if c.repo != "" {
		parts = append(parts, "repository "+c.repo)
	}
	if c.agent != "" {
		parts = append(parts, "agent "+c.agent)
	}
	return strings.Join(parts, ", ")
}

// scopeCases has every repository and agent that a scope tells from others,
// each repository with each agent, and first the one that none does.
func scopeCases(lists ...[]EgressScope) []scopeCase {
	repos, agents := []string{""}, []string{""}
	for _, s := range slices.Concat(lists...) {
		for _, r := range s.Repos {
			repos = append(repos, strings.NewReplacer("*", "any", "?", "a").Replace(r))
		}
		for _, a := range s.Agents {
			agents = append(agents, strings.NewReplacer("*", "any", "?", "a").Replace(a))
		}
	}
	var out []scopeCase
	for _, r := range slices.Compact(slices.Sorted(slices.Values(repos))) {
		for _, a := range slices.Compact(slices.Sorted(slices.Values(agents))) {
			out = append(out, scopeCase{r, a})
		}
	}
	return out
}

func (r *Reach) widened(old *Reach) []ReachChange {
	var out []ReachChange
	for _, h := range r.hosts {
		for _, q := range h.atoms(old.depth()) {
			if what := newly(r.Decide(q), old.Decide(q), q); what != "" {
				out = append(out, ReachChange{Rule: h.name, What: what})
				break
			}
		}
	}
	for _, g := range r.git {
		host, repo, _ := strings.Cut(g.pattern, "/")
		q := Request{Scheme: SchemeGit, Method: "FETCH", Host: host, Path: "/" + strings.ReplaceAll(repo, "*", fresh)}
		what, before := fmt.Sprintf("FETCH https://%s%s", q.Host, strings.ReplaceAll(q.Path, fresh, "*")), old.Decide(q)
		if w := wider(r.gitAt[host], before.Addresses); before.Allow && w != "" {
			what += " at " + w
		} else if before.Allow {
			continue
		}
		out = append(out, ReachChange{Rule: g.name, What: what})
	}
	for _, m := range r.models {
		i := slices.IndexFunc(old.models, func(o Model) bool { return o.Route == m.Route })
		if i < 0 {
			out = append(out, ReachChange{Rule: "model:" + m.Route, What: "MODEL " + m.Route + "/* at " + m.Endpoint})
			continue
		}
		for _, what := range m.widened(old.models[i]) {
			out = append(out, ReachChange{Rule: "model:" + m.Route, What: what})
		}
	}
	return out
}

// depth is how many segments the longest path pattern has.
func (r *Reach) depth() int {
	d := 2
	for _, h := range r.hosts {
		for _, p := range h.paths {
			d = max(d, len(p)+1)
		}
	}
	return d
}

// allMethods are those of a rule of a connection that passes through.
var allMethods = append(slices.Clone(methods), "KICK-ANY-METHOD")

// atoms are requests that stand for all that h allows: whatever rules allow
// all of them, among patterns of at most depth segments, allow as much.
func (h hostRule) atoms(depth int) []Request {
	names := []string{h.Host.Host}
	if suffix, ok := strings.CutPrefix(h.Host.Host, "*"); ok {
		names = []string{fresh + suffix, fresh + "." + fresh + suffix}
	}
	methods, paths := allMethods, []string{"/", "/" + fresh, "/" + fresh + "%2f" + fresh, "/" + fresh + ";" + fresh}
	for n := 2; n <= depth; n++ {
		paths = append(paths, strings.Repeat("/"+fresh, n))
	}
	if h.reads() {
		methods = h.Methods
		if slices.Contains(methods, "GET") {
			methods = append(slices.Clip(methods), "HEAD")
		}
	}
	if len(h.paths) > 0 {
		paths = nil
		for _, p := range h.paths {
			paths = append(paths, p.witnesses(depth)...)
		}
	}
	var out []Request
	for _, name := range names {
		for _, port := range h.Ports {
			for _, m := range methods {
				for _, p := range paths {
					out = append(out, Request{h.Scheme, m, name, port, p})
				}
			}
		}
	}
	return out
}

// newly says what of a request is allowed now and was not.
func newly(now, before Answer, q Request) string {
	what := fmt.Sprintf("%s %s://%s:%d%s", q.Method, q.Scheme, q.Host, q.Port, q.Path)
	what = strings.NewReplacer(fresh, "*", "KICK-ANY-METHOD", "any method", strings.ToUpper(fresh), "*").Replace(what)
	switch {
	case !now.Allow:
		return "" // an atom that the rest of the policy makes unclear
	case !before.Allow:
		return what
	case before.Terminate && !now.Terminate:
		return what + ", and the connection passes through"
	}
	if wider := wider(now.Addresses, before.Addresses); wider != "" {
		return fmt.Sprintf("%s at %s", what, wider)
	}
	return ""
}

// wider returns an address range of now that before does not have. An empty
// list is public addresses.
func wider(now, before []netip.Prefix) string {
	if len(now) == 0 {
		if len(before) == 0 {
			return ""
		}
		return "all public addresses"
	}
	for _, p := range now {
		inside := slices.ContainsFunc(before, func(b netip.Prefix) bool { return b.Contains(p.Addr()) && b.Bits() <= p.Bits() })
		if len(before) == 0 {
			inside = !slices.ContainsFunc(privatePrefixes, p.Overlaps)
		}
		if !inside {
			return p.String()
		}
	}
	return ""
}

// widened says what a route allows that it did not: models, a place to send
// to, features, and more to spend.
func (m Model) widened(old Model) []string {
	var out []string
	if m.Provider != old.Provider || m.Endpoint != old.Endpoint {
		out = append(out, fmt.Sprintf("calls go to %s", m.Endpoint))
	}
	if w := wider(m.Addresses, old.Addresses); w != "" {
		out = append(out, "calls go to "+w)
	}
	names := m.Names
	if m.Force != "" {
		names = []string{m.Force}
	} else if len(names) == 0 {
		names = []string{"*"}
	}
	for _, n := range names {
		asked := strings.ReplaceAll(n, "*", fresh)
		allowed := old.AllowsModel(asked)
		if old.Force != "" {
			allowed = asked == old.Force
		}
		if !allowed {
			out = append(out, fmt.Sprintf("MODEL %s/%s", m.Route, n))
		}
	}
	for _, f := range m.Allow {
		if !slices.Contains(old.Allow, f) {
			out = append(out, "allows "+f)
		}
	}
	out = append(out, m.Budget.widened(old.Budget, "a kick")...)
	return append(out, m.Day.widened(old.Day, "an agent's day")...)
}

func (b Budget) widened(old Budget, of string) []string {
	var out []string
	add := func(what string, now, before float64) {
		switch {
		case before == 0, now != 0 && now <= before:
		case now == 0:
			out = append(out, fmt.Sprintf("%s of %s are no longer limited to %s", what, of, figure(before)))
		default:
			out = append(out, fmt.Sprintf("%s of %s: %s instead of %s", what, of, figure(now), figure(before)))
		}
	}
	add("requests", float64(b.Requests), float64(old.Requests))
	add("tokens", float64(b.Tokens), float64(old.Tokens))
	add("money", b.Money, old.Money)
	return out
}

func figure(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
