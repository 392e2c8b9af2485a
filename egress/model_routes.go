package egress

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kickhq/kick/policy"
)

// format is a wire format.
type format struct {
	usageKey []byte // stands in each event that has a usage
	usage    func(data []byte) (t tokens, final, ok bool)
	maxField string // that bounds an answer's tokens
	each     bool   // servers may count in each event, of which the last one counts
}

var (
	anthropicFormat = &format{[]byte(`"usage"`), anthropicTokens, "max_tokens", false}
	responsesFormat = &format{[]byte(`"usage"`), responsesTokens, "max_output_tokens", false}
	chatFormat      = &format{[]byte(`"usage"`), chatTokens, "max_tokens", true}
	geminiFormat    = &format{[]byte(`"usageMetadata"`), geminiTokens, "maxOutputTokens", true}
)

// operation is something that a provider may be asked for, by its exact method
// and path.
type operation struct {
	method string
	path   string // below the route; * stands for a model's name
	query  string // the only one that may be there
	shape  *shape // of the body; nil: there is none
	format *format
	spends bool // it costs tokens
	stream bool // always, whatever the body says
	lists  bool // its answer is a list of models
}

var operations = map[policy.Provider][]operation{
	policy.Anthropic: {
		{method: "POST", path: "/v1/messages", query: "beta=true", shape: anthropicBody, format: anthropicFormat, spends: true},
		{method: "POST", path: "/v1/messages/count_tokens", query: "beta=true", shape: anthropicBody, format: anthropicFormat},
		{method: "GET", path: "/v1/models", lists: true},
	},
	policy.OpenAI:           openAIOperations,
	policy.OpenAICompatible: openAIOperations,
	policy.Gemini: {
		{method: "POST", path: "/v1beta/models/*:generateContent", shape: geminiBody, format: geminiFormat, spends: true},
		{method: "POST", path: "/v1beta/models/*:streamGenerateContent", query: "alt=sse", shape: geminiBody, format: geminiFormat, spends: true, stream: true},
		{method: "POST", path: "/v1beta/models/*:countTokens", shape: geminiBody, format: geminiFormat},
		{method: "GET", path: "/v1beta/models", lists: true},
	},
}

var openAIOperations = []operation{
	{method: "POST", path: "/v1/responses", shape: responsesBody, format: responsesFormat, spends: true},
	{method: "POST", path: "/v1/chat/completions", shape: chatBody, format: chatFormat, spends: true},
	{method: "GET", path: "/v1/models", lists: true},
}

// match returns the operation of a request, and the model that its path names.
func match(p policy.Provider, method, path string) (op operation, model string, ok bool) {
	for _, op := range operations[p] {
		before, after, some := strings.Cut(op.path, "*")
		switch {
		case method != op.method:
		case !some && path == op.path:
			return op, "", true
		case some && len(path) > len(before)+len(after) && strings.HasPrefix(path, before) && strings.HasSuffix(path, after):
			if model := path[len(before) : len(path)-len(after)]; isModelName(model) && !strings.ContainsAny(model, "/:") {
				return op, model, true
			}
		}
	}
	return operation{}, "", false
}

// route is a model route of one gateway.
type route struct {
	policy.Model
	base      *url.URL
	key       *keySource
	transport *http.Transport
	budget    *budget
}

// routes makes the policy's model routes.
func (g *Gateway) makeRoutes() error {
	g.routes = map[string]*route{}
	for _, m := range g.cfg.Policy.Models {
		m = m.Filled()
		base, err := url.Parse(m.Endpoint)
		if err != nil {
			return fmt.Errorf("model route %s: %w", m.Route, err)
		}
		if g.routes[m.Route] != nil {
			return fmt.Errorf("model route %s is there twice: give one of them another `route`", m.Route)
		}
		r := &route{Model: m, base: base, key: newKeySource(m, g.cfg.LookupEnv), budget: newBudget(m, g.cfg.Ledgers, g.cfg.Agent)}
		r.transport = g.transport(base.Hostname(), func(ctx context.Context) (net.Conn, error) {
			c, err := g.dialModel(ctx, r)
			if err != nil {
				return nil, err
			}
			return bulkConn{c}, nil
		})
		r.transport.ResponseHeaderTimeout = 0 // each call has a time of its own
		r.transport.MaxIdleConnsPerHost = g.limits.connections
		r.transport.WriteBufferSize = 1 << 10 // a header's; bodies go past it
		g.routes[m.Route] = r
	}
	return nil
}

// dialModel connects to an endpoint. An address that the operator wrote into it,
// and localhost, are what was meant; any other name must lead where the route
// may go.
func (g *Gateway) dialModel(ctx context.Context, r *route) (net.Conn, error) {
	host := r.base.Hostname()
	port, err := strconv.ParseUint(r.base.Port(), 10, 16)
	if err != nil { // there is none
		port = 443
		if r.base.Scheme == policy.SchemeHTTP {
			port = 80
		}
	}
	if host == "localhost" {
		return g.dial(ctx, []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, uint16(port))
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return g.dial(ctx, []netip.Addr{ip}, uint16(port))
	}
	return g.dialName(ctx, host, uint16(port), policy.Answer{Addresses: r.Addresses})
}

// target is where a request goes at the provider.
func (r *route) target(op operation, model string) *url.URL {
	path := op.path
	if r.Provider == policy.OpenAI || r.Provider == policy.OpenAICompatible {
		path = strings.TrimPrefix(path, "/v1") // the endpoint has it
	}
	u := *r.base
	u.Path = strings.TrimSuffix(u.Path, "/") + strings.Replace(path, "*", model, 1)
	u.RawPath = ""
	return &u
}

// query returns what is asked of the provider beside the path, and whether
// nothing else is. A key there is the agent's dummy.
func (op operation) allowsQuery(raw string) (string, bool) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return "", false
	}
	q.Del("key")
	switch rest := q.Encode(); rest {
	case "", op.query:
		return rest, true
	}
	return "", false
}

// authorize sets the provider's own form of the key.
func (r *route) authorize(h http.Header, key string) {
	switch {
	case key == "":
	case r.Provider == policy.Anthropic:
		h.Set("X-Api-Key", key)
	case r.Provider == policy.Gemini:
		h.Set("X-Goog-Api-Key", key)
	default:
		h.Set("Authorization", "Bearer "+key)
	}
}

// toProvider are the headers that an agent's request keeps, and fromProvider
// those of an answer: neither who the operator is nor a cookie.
var (
	toProvider   = []string{"Accept", "User-Agent", "Anthropic-Version"}
	fromProvider = []string{
		"Content-Type", "Request-Id", "X-Request-Id", "Retry-After", "Retry-After-Ms", "X-Should-Retry", "Openai-Processing-Ms", "Openai-Version",
	}
	fromProviderPrefixes = []string{"Anthropic-Ratelimit-", "X-Ratelimit-"}
)

// betas are Anthropic's switches; those of a feature need that feature. They are
// known in any case and version, and a context of so many million by any number.
var betas = map[string]string{
	"context": "long-context", "mcp-client": "mcp", "files-api": "file-store", "code-execution": "code-execution", "skills": "code-execution", "web-fetch": "web-fetch", "web-search": "web-search",
}

func (r *route) header(from http.Header) http.Header {
	h := http.Header{"Accept-Encoding": {"identity"}}
	for _, name := range toProvider {
		if v := from.Get(name); v != "" && len(v) <= 256 {
			h.Set(name, v)
		}
	}
	if r.Provider != policy.Anthropic {
		h.Del("Anthropic-Version")
		return h
	}
	var keep []string
	for _, b := range strings.Split(strings.Join(from.Values("Anthropic-Beta"), ","), ",") {
		b = strings.TrimSpace(b)
		name := strings.TrimRight(strings.ToLower(b), "-0123456789")
		if size, ok := strings.CutSuffix(name, "m"); ok && strings.HasPrefix(size, "context-") {
			name = strings.TrimRight(size, "-0123456789")
		}
		feature, bound := betas[name]
		if b != "" && len(b) <= 64 && len(keep) < 32 && (!bound || slices.Contains(r.Allow, feature)) {
			keep = append(keep, b)
		}
	}
	if len(keep) > 0 {
		h.Set("Anthropic-Beta", strings.Join(keep, ","))
	}
	return h
}

func copyAnswerHeader(to, from http.Header, key string) {
	for name, values := range from {
		if key != "" && slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, key) }) {
			continue
		}
		if slices.Contains(fromProvider, name) || slices.ContainsFunc(fromProviderPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			to[name] = values
		}
	}
	to.Set("X-Content-Type-Options", "nosniff")
}

func modelFeature(name string) string { return policy.ModelFeatures[name] }
