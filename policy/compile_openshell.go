package policy

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// OpenShell is a policy of an OpenShell sandbox (SandboxPolicy, version 1) in
// the form of its policy files.
type OpenShell struct {
	Version     int                         `yaml:"version"`
	Filesystem  openShellFiles              `yaml:"filesystem_policy"`
	Landlock    openShellLandlock           `yaml:"landlock"`
	NetworkRule map[string]OpenShellNetwork `yaml:"network_policies"`
}

type openShellFiles struct {
	IncludeWorkdir bool     `yaml:"include_workdir"`
	ReadOnly       []string `yaml:"read_only,flow"`
	ReadWrite      []string `yaml:"read_write,flow"`
}

type openShellLandlock struct {
	Compatibility string `yaml:"compatibility"`
}

// OpenShellNetwork lets the binaries reach the endpoints.
type OpenShellNetwork struct {
	Name      string              `yaml:"name"`
	Endpoints []OpenShellEndpoint `yaml:"endpoints"`
	Binaries  []OpenShellBinary   `yaml:"binaries"`
}

// OpenShellEndpoint is one host and port. Either Access or Rules is set.
type OpenShellEndpoint struct {
	Host         string          `yaml:"host"`
	Ports        []int           `yaml:"ports,flow"`
	Protocol     string          `yaml:"protocol"`
	Enforcement  string          `yaml:"enforcement"`
	Access       string          `yaml:"access,omitempty"`
	Rules        []OpenShellRule `yaml:"rules,omitempty"`
	EncodedSlash bool            `yaml:"allow_encoded_slash,omitempty"`
	AllowedIPs   []netip.Prefix  `yaml:"allowed_ips,omitempty,flow"`
}

// OpenShellRule allows a method on paths.
type OpenShellRule struct {
	Allow OpenShellAllow `yaml:"allow"`
}

// OpenShellAllow is what a rule allows; GET brings HEAD with it.
type OpenShellAllow struct {
	Method string                      `yaml:"method"`
	Path   string                      `yaml:"path"`
	Query  map[string]OpenShellMatcher `yaml:"query,omitempty,flow"`
}

// OpenShellMatcher matches a value of a query.
type OpenShellMatcher struct {
	Glob string `yaml:"glob"`
}

// OpenShellBinary is the real path of a program.
type OpenShellBinary struct {
	Path string `yaml:"path"`
}

// OpenShellBinaries are the programs that may use the network if nobody says
// otherwise: git, curl and interpreters where common images have them.
func OpenShellBinaries() []string {
	return []string{
		"/usr/bin/git", "/usr/lib/git-core/git-remote-http", "/usr/lib/git-core/git-remote-https",
		"/usr/libexec/git-core/git-remote-http", "/usr/libexec/git-core/git-remote-https",
		"/usr/bin/curl", "/usr/bin/node", "/usr/local/bin/node",
		"/usr/bin/python3.11", "/usr/bin/python3.12", "/usr/bin/python3.13", "/usr/local/go/bin/go", "/usr/lib/apt/methods/http",
	}
}

// openShellPorts are those that OpenShell opens for nobody.
var openShellPorts = []int{2379, 2380, 6443, 10250, 10255}

// OpenShell makes the policy of an OpenShell sandbox that allows what e does,
// for the given programs, with enforcement. Calls of models are not in it:
// they go to inference.local, which is set up beside the sandbox's policy.
func (e Egress) OpenShell(binaries []string) (*OpenShell, error) {
	r, err := e.Compile()
	if err != nil {
		return nil, err
	}
	var errs []error
	var endpoints []OpenShellEndpoint
	at := func(host string, port int) *OpenShellEndpoint {
		for i := range endpoints {
			if endpoints[i].Host == host && endpoints[i].Ports[0] == port {
				return &endpoints[i]
			}
		}
		endpoints = append(endpoints, OpenShellEndpoint{Host: host, Ports: []int{port}, Protocol: "rest", Enforcement: "enforce"})
		return &endpoints[len(endpoints)-1]
	}
	for _, h := range r.hosts {
		for _, port := range h.Ports {
			if slices.Contains(openShellPorts, port) {
				errs = append(errs, fmt.Errorf("%s: OpenShell opens port %d for nobody: leave it out", h.where(), port))
			}
			h.addTo(at(openShellHost(h.Host.Host), port))
		}
	}
	for _, g := range r.git {
		host, repo, _ := strings.Cut(g.pattern, "/")
		if ep := at(host, 443); ep.Access == "" {
			ep.Rules = append(ep.Rules, gitRules(repo)...)
			ep.EncodedSlash = false
			if ep.AllowedIPs == nil {
				ep.AllowedIPs = r.gitAt[host]
			}
		}
	}
	p := &OpenShell{
		Version: 1,
		Filesystem: openShellFiles{
			IncludeWorkdir: true,
			ReadOnly:       []string{"/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/dev/urandom"},
			ReadWrite:      []string{"/tmp", "/dev/null"},
		},
		Landlock:    openShellLandlock{"hard_requirement"},
		NetworkRule: map[string]OpenShellNetwork{},
	}
	if len(endpoints) > 0 {
		n := OpenShellNetwork{Name: "kick", Endpoints: endpoints}
		for _, b := range binaries {
			n.Binaries = append(n.Binaries, OpenShellBinary{b})
		}
		p.NetworkRule["kick"] = n
	}
	return p, errors.Join(errs...)
}

// openShellHost writes a wildcard for one or more labels.
func openShellHost(host string) string {
	if strings.HasPrefix(host, "*.") {
		return "*" + host
	}
	return host
}

func (h hostRule) addTo(ep *OpenShellEndpoint) {
	ep.AllowedIPs = h.Addresses
	if !h.reads() {
		ep.Access, ep.EncodedSlash = "full", true
		return
	}
	ep.EncodedSlash = h.whole
	paths := h.Paths
	if len(paths) == 0 {
		paths = []string{"**"}
	}
	for _, m := range h.Methods {
		for _, p := range paths {
			ep.Rules = append(ep.Rules, OpenShellRule{OpenShellAllow{Method: m, Path: p}})
		}
	}
}

// gitRules allow the two requests of a fetch by smart HTTP, and none of a push.
func gitRules(repo string) []OpenShellRule {
	names := []string{repo}
	if !strings.HasSuffix(repo, "*") {
		names = append(names, repo+".git")
	}
	var rules []OpenShellRule
	for _, n := range names {
		rules = append(rules,
			OpenShellRule{OpenShellAllow{http.MethodGet, "/" + n + "/info/refs", map[string]OpenShellMatcher{"service": {"git-upload-pack"}}}},
			OpenShellRule{OpenShellAllow{Method: http.MethodPost, Path: "/" + n + "/git-upload-pack"}})
	}
	return rules
}

// maxOpenShell is OpenShell's limit of a serialized policy.
const maxOpenShell = 256 << 10

// YAML writes the policy as a file for OpenShell.
func (p *OpenShell) YAML() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# Made by kick policy compile --to openshell. An exact host without allowed_ips may\n" +
		"# resolve to a private address here, which kick's own gateway refuses. Calls of models\n" +
		"# go to inference.local and are not part of this policy.\n")
	if err := writeYAML(&b, p); err != nil {
		return nil, err
	}
	if b.Len() > maxOpenShell {
		return nil, fmt.Errorf("the policy has %d bytes, and OpenShell takes %d: leave out or merge hosts", b.Len(), maxOpenShell)
	}
	return b.Bytes(), nil
}

func writeYAML(b *bytes.Buffer, docs ...any) error {
	enc := yaml.NewEncoder(b)
	enc.SetIndent(2)
	for _, d := range docs {
		if err := enc.Encode(d); err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
	}
	return enc.Close()
}
