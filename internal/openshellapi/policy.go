package openshellapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Policy is a sandbox's policy, version 1, in the form of OpenShell's policy
// files. What a file may say beyond it, kick does not write and refuses to read.
type Policy struct {
	Version    uint32                 `yaml:"version"`
	Filesystem Filesystem             `yaml:"filesystem_policy"`
	Landlock   Landlock               `yaml:"landlock"`
	Network    map[string]NetworkRule `yaml:"network_policies"`
}

// Filesystem says which paths a sandbox sees, and which it may change.
type Filesystem struct {
	IncludeWorkdir bool     `yaml:"include_workdir"`
	ReadOnly       []string `yaml:"read_only"`
	ReadWrite      []string `yaml:"read_write"`
}

// Landlock says what happens where the kernel cannot hold the sandbox to it.
type Landlock struct {
	Compatibility string `yaml:"compatibility"` // HardRequirement, or best_effort
}

// HardRequirement fails the sandbox where there is no Landlock.
const HardRequirement = "hard_requirement"

// NetworkRule lets the binaries reach the endpoints.
type NetworkRule struct {
	Name      string     `yaml:"name"`
	Endpoints []Endpoint `yaml:"endpoints"`
	Binaries  []Binary   `yaml:"binaries"`
}

// Binary is the real path of a program.
type Binary struct {
	Path string `yaml:"path"`
}

// Endpoint is one host and its ports. Either Access or Rules is set.
type Endpoint struct {
	Host        string   `yaml:"host"`
	Ports       []uint32 `yaml:"ports"`
	Protocol    string   `yaml:"protocol"`
	Enforcement string   `yaml:"enforcement"` // Enforce; anything else blocks nothing
	Access      string   `yaml:"access"`      // read-only, read-write or full
	Rules       []Rule   `yaml:"rules"`
	// EncodedSlash allows %2F in paths.
	EncodedSlash bool     `yaml:"allow_encoded_slash"`
	AllowedIPs   []string `yaml:"allowed_ips"`
	// Relayed has connections passed on as they are, TLS unseen, without Protocol,
	// Access and Rules. No policy file says it: it is for kick's own gateway.
	Relayed bool `yaml:"-"`
}

// Enforce is the one enforcement that blocks.
const Enforce = "enforce"

// Rule allows requests.
type Rule struct {
	Allow Allow `yaml:"allow"`
}

// Allow are requests of a method to paths, with values of the query.
type Allow struct {
	Method string             `yaml:"method"`
	Path   string             `yaml:"path"`
	Query  map[string]Matcher `yaml:"query"`
}

// Matcher matches one value of a query.
type Matcher struct {
	Glob string `yaml:"glob"`
}

// ParsePolicy reads a policy file. A key that Policy does not have is an error, as
// are an endpoint that is not enforced and one without a port: those would be open
// where somebody meant them closed.
func ParsePolicy(file []byte) (*Policy, error) {
	if len(file) > MaxPolicy {
		return nil, fmt.Errorf("the policy has %d bytes, and OpenShell takes %d", len(file), MaxPolicy)
	}
	dec := yaml.NewDecoder(bytes.NewReader(file))
	dec.KnownFields(true)
	p := &Policy{}
	if err := dec.Decode(p); err != nil {
		return nil, fmt.Errorf("read the policy: %w", err)
	}
	if err := dec.Decode(&Policy{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("the policy file holds more than one document")
	}
	return p, p.check()
}

func (p *Policy) check() error {
	if p.Version != 1 {
		return fmt.Errorf("the policy's version is %d, want 1", p.Version)
	}
	if p.Landlock.Compatibility != HardRequirement {
		return fmt.Errorf("landlock.compatibility is %q, want %s: without it a sandbox may run unprotected", p.Landlock.Compatibility, HardRequirement)
	}
	for name, rule := range p.Network {
		for _, e := range rule.Endpoints {
			at := fmt.Sprintf("network_policies.%s: %s", name, e.Host)
			switch {
			case e.Enforcement != Enforce:
				return fmt.Errorf("%s: enforcement is %q, want %s: anything else blocks nothing", at, e.Enforcement, Enforce)
			case len(e.Ports) == 0:
				return fmt.Errorf("%s: there are no ports", at)
			case e.Protocol != "rest":
				return fmt.Errorf("%s: protocol is %q, want rest: otherwise every method is allowed", at, e.Protocol)
			case (e.Access == "") == (len(e.Rules) == 0):
				return fmt.Errorf("%s: want either access or rules", at)
			}
		}
	}
	return nil
}

// Difference says in one line what the policy that a gateway gave back has that
// differs from the one that was asked for, or "". The order of paths, endpoints
// and programs does not count.
func (p *Policy) Difference(got *Policy) string {
	if got == nil {
		return "there is no policy"
	}
	switch {
	case got.Version != p.Version:
		return fmt.Sprintf("version is %d, want %d", got.Version, p.Version)
	case got.Landlock != p.Landlock:
		return fmt.Sprintf("landlock is %q, want %q", got.Landlock.Compatibility, p.Landlock.Compatibility)
	case got.Filesystem.IncludeWorkdir != p.Filesystem.IncludeWorkdir:
		return fmt.Sprintf("filesystem.include_workdir is %v", got.Filesystem.IncludeWorkdir)
	}
	for _, c := range []struct {
		what      string
		want, got []string
	}{
		{"filesystem.read_only", p.Filesystem.ReadOnly, got.Filesystem.ReadOnly},
		{"filesystem.read_write", p.Filesystem.ReadWrite, got.Filesystem.ReadWrite},
		{"network rules", slices.Collect(maps.Keys(p.Network)), slices.Collect(maps.Keys(got.Network))},
	} {
		if d := differ(c.want, c.got); d != "" {
			return c.what + ": " + d
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Network)) {
		want, have := p.Network[name], got.Network[name]
		if d := differ(texts(want.Binaries), texts(have.Binaries)); d != "" {
			return "programs of " + name + ": " + d
		}
		if d := differ(endpoints(want.Endpoints), endpoints(have.Endpoints)); d != "" {
			return "endpoints of " + name + ": " + d
		}
	}
	return ""
}

// differ compares two sets of texts.
func differ(want, got []string) string {
	want, got = slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))
	var words []string
	for _, c := range []struct {
		verb    string
		of, not []string
	}{{"lacks ", want, got}, {"has ", got, want}} {
		for _, s := range c.of {
			if !slices.Contains(c.not, s) {
				words = append(words, c.verb+s) // one of each says enough
				break
			}
		}
	}
	if len(words) > 0 {
		return strings.Join(words, ", and ")
	}
	if len(want) != len(got) {
		return fmt.Sprintf("%d, want %d", len(got), len(want))
	}
	return ""
}

func texts(list []Binary) []string {
	var out []string
	for _, b := range list {
		out = append(out, b.Path)
	}
	return out
}

// endpoints writes each endpoint whole, in one form.
func endpoints(list []Endpoint) []string {
	var out []string
	for _, e := range list {
		var rules []string
		for _, r := range e.Rules {
			rules = append(rules, fmt.Sprintf("%s %s %v", r.Allow.Method, r.Allow.Path, r.Allow.Query)) // maps print sorted
		}
		slices.Sort(rules)
		ports, ips := slices.Sorted(slices.Values(e.Ports)), slices.Sorted(slices.Values(e.AllowedIPs))
		out = append(out, fmt.Sprintf("%s %v protocol=%s enforcement=%s access=%s encoded-slash=%v relayed=%v ips=%q rules=%q",
			e.Host, ports, e.Protocol, e.Enforcement, e.Access, e.EncodedSlash, e.Relayed, ips, rules))
	}
	return out
}
