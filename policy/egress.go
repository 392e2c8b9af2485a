package policy

import (
	"fmt"
	"net/netip"
)

// Egress says what a sandbox may reach through the gateway. What it does not
// say is denied.
type Egress struct {
	// Presets are named sets of destinations to read from, such as "go".
	Presets []string `json:"presets,omitempty"`
	Hosts   []Host   `json:"hosts,omitempty"`
	// Git are repositories that may be fetched, as host/owner/name or
	// host/owner/*.
	Git    []string `json:"git,omitempty"`
	Models []Model  `json:"models,omitempty"`
	// Scopes add to the above for some repositories or agents.
	Scopes []EgressScope `json:"scopes,omitempty"`
}

// EgressScope is what some repositories or agents may reach beyond the rest.
type EgressScope struct {
	Repos  []string `json:"repos,omitempty"`
	Agents []string `json:"agents,omitempty"`
	Egress
}

// Host is a destination. Of a TLS connection that passes through, the gateway
// sees the host and port alone: methods and paths need scheme http or
// Terminate.
type Host struct {
	Host      string         `json:"host"`                // DNS name; "*." in front stands for one or more labels
	Scheme    string         `json:"scheme,omitempty"`    // https (default) or http
	Ports     []int          `json:"ports,omitempty"`     // default 443 for https, 80 for http
	Terminate bool           `json:"terminate,omitempty"` // the gateway reads the requests in the TLS connection
	Methods   []string       `json:"methods,omitempty"`   // default GET and HEAD
	Paths     []string       `json:"paths,omitempty"`     // patterns: "*" stands for one segment, "**" for one or more; default all
	Addresses []netip.Prefix `json:"addresses,omitempty"` // the host resolves to these alone, which may be private; default public ones
	Shared    bool           `json:"shared,omitempty"`    // accepts that a front which others share may lead elsewhere
	Reason    string         `json:"reason,omitempty"`

	line int
}

// The schemes of a Request.
const (
	SchemeHTTPS = "https"
	SchemeHTTP  = "http"
	SchemeGit   = "git"   // a fetch by smart HTTP: Host is the forge, Path is /owner/name
	SchemeModel = "model" // a call of a model: Host is the provider, Path is / and the model's name
)

// Request is what a sandbox asks for. All of it is hostile.
type Request struct {
	Scheme string
	Method string // CONNECT asks for a TLS connection and leaves Path empty; not used for git and models
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

// Reach is a compiled Egress.
type Reach struct{}

// Compile makes the form in which decisions are made, for one kick: scopes are
// to be applied before, with Policy.For.
func (e Egress) Compile() (*Reach, error) { return &Reach{}, nil }

// Decide decides about one request. It does not resolve names: whoever
// connects asks AllowsAddress about the address, and connects to that one.
func (r *Reach) Decide(q Request) Answer {
	return Answer{Rule: "default-deny", Detail: fmt.Sprintf("%s %s is not permitted: no egress rule allows it", q.Method, q.Host)}
}
