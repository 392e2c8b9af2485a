package policy

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Provider is whose wire format a model route speaks.
type Provider string

// The providers.
const (
	Anthropic        Provider = "anthropic"         // Messages
	OpenAI           Provider = "openai"            // Responses and Chat Completions
	Gemini           Provider = "gemini"            // generateContent
	OpenAICompatible Provider = "openai-compatible" // OpenAI's formats at another server
)

var providers = []Provider{Anthropic, Gemini, OpenAI, OpenAICompatible}

// Model is a route to a model provider, to which the gateway speaks with its
// own key. The sandbox sees it at /model/ROUTE on the gateway.
type Model struct {
	Provider Provider `json:"provider"`
	Route    string   `json:"route,omitempty"` // default the provider's name
	// Endpoint is the base URL as the provider's clients take it: with /v1 for
	// OpenAI's formats, without for the others. Default the provider's own.
	Endpoint string `json:"endpoint,omitempty"`
	// Addresses are those that the endpoint's name may resolve to, which may be
	// private. Default public ones.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	Names     []string       `json:"names,omitempty"` // allowed model names, "*" as wildcard; default all
	Force     string         `json:"force,omitempty"` // the model that answers, whatever is asked for

	// At most one of these is set. Default: the variable that the provider's
	// clients read; openai-compatible has none, and no key is sent.
	KeyEnv     string   `json:"key_env,omitempty"`     // variable of kick's environment
	KeyFile    string   `json:"key_file,omitempty"`    // absolute path; read for each request
	KeyCommand []string `json:"key_command,omitempty"` // prints the key; asked again when the provider refuses it

	Budget        // of one kick
	Day    Budget `json:"day,omitzero"` // of one agent on one day (UTC), all its kicks together

	// MaxOutput is how many tokens an answer may have if the request does not
	// say, where a budget is set. Default 32,000.
	MaxOutput int64   `json:"max_output,omitempty"`
	Prices    []Price `json:"prices,omitempty"` // the first that fits counts, see PriceOf
	// Allow names what is refused by default; see ModelFeatures. "field:NAME",
	// "tool:TYPE" and "part:TYPE" let pass what this kick does not know.
	Allow []string `json:"allow,omitempty"`

	line int
}

// Budget bounds what is spent. Zero: not limited.
type Budget struct {
	Requests int64   `json:"requests,omitempty"`
	Tokens   int64   `json:"tokens,omitempty"` // input and output
	Money    float64 `json:"money,omitempty"`  // in the unit of Prices
}

// Price is what a million tokens cost.
type Price struct {
	Model string `json:"model"` // name, "*" as wildcard
	// AboveTokens is the length of the input, cached parts included, that a call
	// must exceed for this price. Default 0: it holds for any.
	AboveTokens int64   `json:"above_tokens,omitempty"`
	Input       float64 `json:"input"`
	Output      float64 `json:"output"`
	CacheRead   float64 `json:"cache_read,omitempty"`  // default Input
	CacheWrite  float64 `json:"cache_write,omitempty"` // default twice Input, the dearest there is
}

// ModelFeatures are what a provider does beside answering, by the name that
// Allow has for it: each reaches out, remembers, or costs beyond tokens.
var ModelFeatures = map[string]string{
	"background":       "answers that are made after the connection ended",
	"code-execution":   "programs that run at the provider",
	"file-store":       "files, containers and vector stores that are kept at the provider",
	"image-generation": "images, which cost beyond tokens",
	"long-context":     "prompts beyond the usual length, which cost more than the price table says",
	"mcp":              "tools of other servers that the provider calls",
	"remote-files":     "images and files that the provider fetches from a URL",
	"stored":           "responses, conversations, prompts and caches that are kept at the provider",
	"web-fetch":        "pages that the provider fetches",
	"web-search":       "searches of the web",
}

// DefaultEndpoint and DefaultKeyEnv are the provider's own.
func (p Provider) defaults() (endpoint, keyEnv string) {
	switch p {
	case Anthropic:
		return "https://api.anthropic.com", "ANTHROPIC_API_KEY"
	case OpenAI:
		return "https://api.openai.com/v1", "OPENAI_API_KEY"
	case Gemini:
		return "https://generativelanguage.googleapis.com", "GEMINI_API_KEY"
	}
	return "", ""
}

// Filled returns m with its defaults.
func (m Model) Filled() Model {
	endpoint, keyEnv := m.Provider.defaults()
	if m.Route == "" {
		m.Route = string(m.Provider)
	}
	if m.Endpoint == "" {
		m.Endpoint = endpoint
	}
	if m.KeyEnv == "" && m.KeyFile == "" && len(m.KeyCommand) == 0 {
		m.KeyEnv = keyEnv
	}
	if m.MaxOutput == 0 {
		m.MaxOutput = 32_000
	}
	m.Prices = slices.Clone(m.Prices)
	for i := range m.Prices {
		p := &m.Prices[i]
		if p.CacheRead == 0 {
			p.CacheRead = p.Input
		}
		if p.CacheWrite == 0 {
			p.CacheWrite = 2 * p.Input
		}
	}
	return m
}

// Limited reports whether what is spent in tokens or money is bounded.
func (m Model) Limited() bool {
	return m.Tokens > 0 || m.Money > 0 || m.Day.Tokens > 0 || m.Day.Money > 0
}

// AllowsModel reports whether a model of that name may be asked for.
func (m Model) AllowsModel(name string) bool {
	return len(m.Names) == 0 || slices.ContainsFunc(m.Names, func(p string) bool { return wildcard(p, name) })
}

// PriceOf returns the price of a call of a model with so many input tokens, if
// there is one.
func (m Model) PriceOf(name string, input int64) (Price, bool) {
	for _, p := range m.PricesOf(name) {
		if input > p.AboveTokens || p.AboveTokens == 0 {
			return p, true
		}
	}
	return Price{}, false
}

// PricesOf returns the prices that calls of a model may have by their length:
// those that are given for it, up to the first that holds for any. It is empty
// if there is none that does.
func (m Model) PricesOf(name string) []Price {
	var all []Price
	for _, p := range m.Prices {
		if !wildcard(p.Model, name) {
			continue
		}
		all = append(all, p)
		if p.AboveTokens == 0 {
			return all
		}
	}
	return nil
}

// wildcard matches a pattern in which "*" stands for any characters.
func wildcard(pattern, s string) bool {
	first, rest, some := strings.Cut(pattern, "*")
	if !some {
		return pattern == s
	}
	if !strings.HasPrefix(s, first) {
		return false
	}
	s = s[len(first):]
	for {
		next, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(s, rest)
		}
		i := strings.Index(s, next)
		if i < 0 {
			return false
		}
		s, rest = s[i+len(next):], after
	}
}

func (d *decoder) model(n *yaml.Node) (m Model) {
	m.line = n.Line
	fields := d.budgetFields(&m.Budget)
	for key, f := range map[string]field{
		"provider": func(v *yaml.Node) {
			s, ok := d.str(v, "provider")
			if ok && !slices.Contains(providers, Provider(s)) {
				d.fail(v, "provider %q is not known: write anthropic, gemini, openai or openai-compatible", s)
			}
			m.Provider = Provider(s)
		},
		"route": func(v *yaml.Node) {
			s, ok := d.str(v, "route")
			if ok && checkWord(s) != nil {
				d.fail(v, "route: %v", checkWord(s))
			}
			m.Route = s
		},
		"endpoint": func(v *yaml.Node) {
			s, ok := d.str(v, "endpoint")
			if ok {
				if err := checkEndpoint(s); err != nil {
					d.fail(v, "endpoint: %v", err)
				}
			}
			m.Endpoint = s
		},
		"addresses": func(v *yaml.Node) {
			d.strs(v, "addresses", func(s string) error {
				p, err := netip.ParsePrefix(s)
				if err != nil || p != p.Masked() {
					return fmt.Errorf("%q is no range of addresses: write it as 10.1.0.0/16, with no bit set beyond its length", s)
				}
				m.Addresses = append(m.Addresses, p)
				return nil
			})
		},
		"names": func(v *yaml.Node) { m.Names = d.strs(v, "names", nil) },
		"force": func(v *yaml.Node) { m.Force, _ = d.str(v, "force") },
		"key_env": func(v *yaml.Node) {
			s, ok := d.str(v, "key_env")
			if ok && !envName.MatchString(s) {
				d.fail(v, "key_env %q is no variable name: write the variable's name, never the key itself", s)
			}
			m.KeyEnv = s
		},
		"key_file": func(v *yaml.Node) {
			s, ok := d.str(v, "key_file")
			if ok && !filepath.IsAbs(s) {
				d.fail(v, "key_file %q is no absolute path: write the file's whole path, never the key itself", s)
			}
			m.KeyFile = s
		},
		"key_command": func(v *yaml.Node) {
			d.list(v, "key_command", func(v *yaml.Node) {
				s, _ := d.str(v, "a word of key_command")
				m.KeyCommand = append(m.KeyCommand, s)
			})
			if len(m.KeyCommand) > 0 && m.KeyCommand[0] != "" && !filepath.IsAbs(m.KeyCommand[0]) {
				d.fail(v, "key_command runs %q: write the program's whole path", m.KeyCommand[0])
			}
		},
		"day":        func(v *yaml.Node) { d.mapping(v, "day", d.budgetFields(&m.Day)) },
		"max_output": func(v *yaml.Node) { m.MaxOutput = d.count(v, "max_output") },
		"prices": func(v *yaml.Node) {
			d.list(v, "prices", func(v *yaml.Node) { m.Prices = append(m.Prices, d.price(v)) })
		},
		"allow": func(v *yaml.Node) { m.Allow = d.strs(v, "allow", checkFeature) },
	} {
		fields[key] = f
	}
	d.mapping(n, "a model", fields)
	d.need(n, "a model", "provider", d.has(n, "provider"))
	d.checkModel(n, m)
	return m
}

func (d *decoder) budgetFields(b *Budget) map[string]field {
	return map[string]field{
		"requests": func(v *yaml.Node) { b.Requests = d.count(v, "requests") },
		"tokens":   func(v *yaml.Node) { b.Tokens = d.count(v, "tokens") },
		"money":    func(v *yaml.Node) { b.Money = d.amount(v, "money", false) },
	}
}

func (d *decoder) price(n *yaml.Node) (p Price) {
	d.mapping(n, "a price", map[string]field{
		"model":        func(v *yaml.Node) { p.Model, _ = d.str(v, "model") },
		"above_tokens": func(v *yaml.Node) { p.AboveTokens = d.count(v, "above_tokens") },
		"input":        func(v *yaml.Node) { p.Input = d.amount(v, "input", true) },
		"output":       func(v *yaml.Node) { p.Output = d.amount(v, "output", true) },
		"cache_read":   func(v *yaml.Node) { p.CacheRead = d.amount(v, "cache_read", false) },
		"cache_write":  func(v *yaml.Node) { p.CacheWrite = d.amount(v, "cache_write", false) },
	})
	for _, key := range []string{"model", "input", "output"} {
		d.need(n, "a price", key, d.has(n, key))
	}
	return p
}

// amount reads a sum of money.
func (d *decoder) amount(n *yaml.Node, what string, zero bool) float64 {
	v, err := strconv.ParseFloat(n.Value, 64)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" || err != nil || !(v >= 0 && v <= 1e9) || v == 0 && !zero {
		d.fail(n, "%s is %s: write an amount, as 2.50", what, kind(n))
		return 0
	}
	return v
}

func (d *decoder) checkModel(n *yaml.Node, m Model) {
	keys := 0
	for _, key := range []string{"key_env", "key_file", "key_command"} {
		if d.has(n, key) {
			keys++
		}
	}
	if keys > 1 {
		d.fail(n, "a model has more than one of key_env, key_file and key_command: keep one")
	}
	if m.Provider == OpenAICompatible && m.Endpoint == "" {
		d.fail(n, "a model of provider openai-compatible has no endpoint: add it, with /v1 if its clients write that")
	}
	if (m.Money > 0 || m.Day.Money > 0) && len(m.Prices) == 0 {
		d.fail(n, "a model has a budget of money and no prices: add them, in the same unit for a million tokens")
	}
	for i, p := range m.Prices {
		j := slices.IndexFunc(m.Prices, func(o Price) bool { return o.Model == p.Model && o.AboveTokens <= p.AboveTokens })
		if j < i {
			d.fail(n, "prices has %q twice, and the one above %d tokens is never reached: write the highest above_tokens first", p.Model, p.AboveTokens)
		}
		if p.AboveTokens > 0 && p.Model != "" && m.PricesOf(p.Model) == nil {
			d.fail(n, "prices has %q above %d tokens alone: add one without above_tokens below it", p.Model, p.AboveTokens)
		}
	}
	if m.Force != "" && !m.AllowsModel(m.Force) {
		d.fail(n, "force is %q, which names does not allow: add it there, or leave names out", m.Force)
	}
}

func checkFeature(s string) error {
	kind, name, some := strings.Cut(s, ":")
	if some && name != "" && slices.Contains([]string{"field", "tool", "part"}, kind) {
		return nil
	}
	if _, ok := ModelFeatures[s]; ok {
		return nil
	}
	names := make([]string, 0, len(ModelFeatures))
	for n := range ModelFeatures {
		names = append(names, n)
	}
	slices.Sort(names)
	return fmt.Errorf("%q is nothing that can be allowed: write %s, or field:NAME, tool:TYPE or part:TYPE", s, strings.Join(names, ", "))
}
