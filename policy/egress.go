package policy

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
)

// Egress says what a sandbox may reach through the gateway. What it does not
// say is denied.
type Egress struct {
	// Presets are named sets of destinations to read from, such as "go".
	Presets []string `json:"presets,omitempty"`
	Hosts   []Host   `json:"hosts,omitempty"`
	// Git are repositories that may be fetched, as host/owner/name or
	// host/owner/*.
	Git []string `json:"git,omitempty"`
	// GitHosts are the hosts of Git that are at addresses of their own.
	GitHosts []GitHost `json:"git_hosts,omitempty"`
	Models   []Model   `json:"models,omitempty"`
	// Scopes add to the above for some repositories or agents.
	Scopes []EgressScope `json:"scopes,omitempty"`

	gitLines map[string]int // of Git, in the file
}

// EgressScope is what some repositories or agents may reach beyond the rest.
type EgressScope struct {
	Repos  []string `json:"repos,omitempty"`
	Agents []string `json:"agents,omitempty"`
	Egress
}

// For returns what one repository and one agent may reach; see Policy.For.
func (e Egress) For(repo, agent string) Egress {
	scopes := e.Scopes
	e.Scopes = nil
	for _, s := range scopes {
		if appliesRepo(s.Repos, repo) && applies(s.Agents, agent) {
			e = e.with(s.without(e))
		}
	}
	return e
}

// with adds what o allows.
func (e Egress) with(o Egress) Egress {
	e.Presets = slices.Concat(e.Presets, o.Presets)
	e.Hosts = slices.Concat(e.Hosts, o.Hosts)
	e.Git = slices.Concat(e.Git, o.Git)
	e.GitHosts = slices.Concat(e.GitHosts, o.GitHosts)
	e.Models = slices.Concat(e.Models, o.Models)
	lines := maps.Clone(e.gitLines)
	if lines == nil {
		lines = map[string]int{}
	}
	maps.Copy(lines, o.gitLines)
	e.gitLines = lines
	return e
}

// without leaves out what o has word for word: two scopes that apply together
// may say the same.
func (e Egress) without(o Egress) Egress {
	e.Hosts = slices.DeleteFunc(slices.Clone(e.Hosts), func(h Host) bool {
		return slices.ContainsFunc(o.Hosts, func(o Host) bool {
			o.Reason, o.line = h.Reason, h.line
			return reflect.DeepEqual(h, o)
		})
	})
	e.Git = slices.DeleteFunc(slices.Clone(e.Git), func(g string) bool { return slices.Contains(o.Git, g) })
	e.GitHosts = slices.DeleteFunc(slices.Clone(e.GitHosts), func(g GitHost) bool {
		return slices.ContainsFunc(o.GitHosts, func(o GitHost) bool { return o.Host == g.Host && slices.Equal(o.Addresses, g.Addresses) })
	})
	return e
}

// GitHost is a host of repositories.
type GitHost struct {
	Host      string         `json:"host"`
	Addresses []netip.Prefix `json:"addresses"` // it resolves to these alone, which may be private

	line int
}

// Host is a destination. Of a TLS connection that passes through, the gateway
// sees the host and port alone: methods and paths need scheme http or
// Terminate.
type Host struct {
	Host      string         `json:"host"`                // DNS name; "*." in front stands for one or more labels
	Scheme    string         `json:"scheme,omitempty"`    // https (default) or http
	Ports     []int          `json:"ports,omitempty"`     // default 443 for https, 80 for http
	Terminate bool           `json:"terminate,omitempty"` // the gateway reads the requests in the TLS connection
	Methods   []string       `json:"methods,omitempty"`   // default GET; GET brings HEAD with it
	Paths     []string       `json:"paths,omitempty"`     // patterns: "*" stands for one segment, "**" for one or more; default all
	Addresses []netip.Prefix `json:"addresses,omitempty"` // the host resolves to these alone, which may be private; default public ones
	Shared    bool           `json:"shared,omitempty"`    // accepts that a front which others share may lead elsewhere
	Reason    string         `json:"reason,omitempty"`

	name string // as Answer.Rule has it
	line int    // 0: of a preset
}

// The schemes of a Request.
const (
	SchemeHTTPS = "https"
	SchemeHTTP  = "http"
	SchemeGit   = "git"   // a fetch by smart HTTP: Host is the forge, Path is /owner/name
	SchemeModel = "model" // a call of a model: Host is the route, Path is / and the model's name
)

// Request is what a sandbox asks for. All of it is hostile.
type Request struct {
	Scheme string
	Method string // CONNECT asks for a TLS connection and leaves Path empty; PUSH for git is refused; else not used for git and models
	Host   string // without port
	Port   int    // not used for git and models
	Path   string // percent-encoded, without the query
}

// Answer is the decision about a Request.
type Answer struct {
	Allow  bool
	Rule   string // what decided, e.g. "preset:npm", "host:*.example.com" or "default-deny"
	Detail string // what was decided and, of a denial, how to allow it
	// Terminate asks the gateway to end the TLS connection itself and to ask
	// about each request in it.
	Terminate bool
	// Addresses are those that the host may resolve to; empty: public ones.
	Addresses []netip.Prefix
}
