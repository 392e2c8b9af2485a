// Package policytest has what the forms that a policy is compiled to are held
// against: requests, and evaluators of what OpenShell and Kubernetes make of the
// compiled files, which share no code with what made these.
package policytest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// Question is one request.
type Question struct {
	Scheme, Method, Host string
	Port                 int
	Path, Query          string // as sent
}

func (q Question) String() string {
	return fmt.Sprintf("%s %s://%s:%d%s?%s", q.Method, q.Scheme, q.Host, q.Port, q.Path, q.Query)
}

// Questions are requests near the rules and far from them, always the same.
func Questions(n int) []Question {
	rnd := rand.New(rand.NewPCG(4, 20))
	pick := func(list ...string) string { return list[rnd.IntN(len(list))] }
	hosts := []string{
		"a.example.com", "a.b.example.com", "example.com", "aexample.com", "a.example.com.evil.test", "api.example.org", "API.example.org", "x.api.example.org",
		"plain.example.net", "vault.corp.example.net", "registry.npmjs.org", "evil.registry.npmjs.org", "deb.debian.org", "api.github.com", "github.com",
		"git.example.net", "evil.test", "127.0.0.1", "169.254.169.254", "2130706433", "localhost", "metadata.google.internal",
	}
	segments := []string{
		"v1", "V1", "a", "b", "c", "u", "search", "me@x", "acme", "other", "lib", "lib.git", "x.git", "info", "refs", "git-upload-pack", "git-receive-pack",
		"..", ".", "", "%2e%2e", "%2f", "a%2fb", "%61", "a;b", "..;", "%00", "a%20b", "left-pad",
	}
	qs := make([]Question, 0, n)
	for range n {
		q := Question{
			Scheme: pick("https", "https", "http"), Method: pick("GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"),
			Host: pick(hosts...), Port: []int{443, 443, 443, 80, 80, 8080, 8081, 22, 8443}[rnd.IntN(9)],
			Query: pick("", "", "service=git-upload-pack", "service=git-receive-pack", "service=git-upload-pack&service=git-receive-pack"),
		}
		for range rnd.IntN(5) {
			q.Path += "/" + pick(segments...)
		}
		switch rnd.IntN(6) {
		case 0:
			q.Scheme, q.Port, q.Host = "https", 443, pick("api.example.org", "api.example.org", "registry.npmjs.org", "b.example.com")
			q.Path = pick("/v1/x", "/v1/search", "/u/me@x", "/a/b/c", "/", "/v1/x/y/z")
		case 1:
			repo := pick("/acme/x", "/acme/x.git", "/other/lib", "/other/lib.git", "/other/x", "/any/thing.git")
			q.Scheme, q.Host, q.Port = "https", pick("github.com", "git.example.net", "git.example.net", "git.corp.example.net", "evil.test"), 443
			q.Path, q.Method = repo+pick("/info/refs", "/git-upload-pack", "/git-receive-pack"), pick("GET", "POST")
		}
		if q.Path == "" {
			q.Path = "/"
		}
		qs = append(qs, q)
	}
	return qs
}

// Canonical is a path as OpenShell matches it: decoded, dot segments resolved,
// doubled slashes collapsed, parameters cut. It is refused where it cannot be.
func Canonical(p string, encodedSlash bool) (string, bool) {
	low := strings.ToLower(p)
	if strings.Contains(low, "%2f") && !encodedSlash || strings.Contains(low, "%00") {
		return "", false
	}
	segments := strings.Split(p, "/")
	for i, s := range segments {
		s, _, _ = strings.Cut(s, ";")
		d, err := url.PathUnescape(s)
		if err != nil {
			return "", false
		}
		segments[i] = strings.ReplaceAll(d, "/", "%2F")
	}
	clean := path.Clean(strings.Join(segments, "/"))
	if last := segments[len(segments)-1]; clean != "/" && (last == "" || last == "." || last == "..") {
		clean += "/"
	}
	return clean, true
}

// OpenShell is a compiled file as it is read back, and shares no code with
// what made it.
type OpenShell struct {
	Rules map[string]struct {
		Endpoints []struct {
			Host         string
			Ports        []int
			Protocol     string
			Enforcement  string
			Access       string
			EncodedSlash bool `yaml:"allow_encoded_slash"`
			Rules        []struct {
				Allow struct {
					Method, Path string
					Query        map[string]struct{ Glob string }
				}
			}
		}
	} `yaml:"network_policies"`
}

// ParseOpenShell reads a compiled file. All of it must be enforced.
func ParseOpenShell(file []byte) (*OpenShell, error) {
	doc := &OpenShell{}
	if err := yaml.Unmarshal(file, doc); err != nil {
		return nil, err
	}
	for _, rule := range doc.Rules {
		for _, ep := range rule.Endpoints {
			if ep.Protocol != "rest" || ep.Enforcement != "enforce" {
				return nil, fmt.Errorf("endpoint %s is not enforced", ep.Host)
			}
		}
	}
	return doc, nil
}

// Allows evaluates the rules as OpenShell does.
func (doc *OpenShell) Allows(q Question) bool {
	for _, rule := range doc.Rules {
		for _, ep := range rule.Endpoints {
			if !globMatches(ep.Host, ".", strings.ToLower(q.Host)) || !slices.Contains(ep.Ports, q.Port) {
				continue
			}
			p, ok := Canonical(q.Path, ep.EncodedSlash)
			if ep.Access == "full" {
				return true
			}
			for _, r := range ep.Rules {
				values, err := url.ParseQuery(q.Query)
				match := ok && err == nil && (r.Allow.Method == q.Method || q.Method == "HEAD" && r.Allow.Method == "GET") &&
					(r.Allow.Path == "**" || globMatches(r.Allow.Path, "/", p))
				for key, m := range r.Allow.Query {
					match = match && len(values[key]) > 0 && !slices.ContainsFunc(values[key], func(v string) bool { return !globMatches(m.Glob, "", v) })
				}
				if match {
					return true
				}
			}
		}
	}
	return false
}

var globs sync.Map // of pattern and delimiter

func globMatches(pattern, delimiter, s string) bool {
	key := [2]string{pattern, delimiter}
	if re, ok := globs.Load(key); ok {
		return re.(*regexp.Regexp).MatchString(s)
	}
	q := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*\*`, `.*`)
	q = strings.ReplaceAll(q, `\*`, `[^`+delimiter+`\n]*`)
	re := regexp.MustCompile(`^(?s:` + q + `)$`)
	globs.Store(key, re)
	return re.MatchString(s)
}

// NetworkPolicies are compiled manifests as they are read back.
type NetworkPolicies []networkPolicy

type networkPolicy struct {
	Metadata struct{ Namespace string }
	Spec     struct {
		PodSelector selector `yaml:"podSelector"`
		PolicyTypes []string `yaml:"policyTypes"`
		Egress      []struct {
			To    []peer
			Ports []Port
		}
	}
}

type peer struct {
	Namespace *selector `yaml:"namespaceSelector"`
	Pods      *selector `yaml:"podSelector"`
	IPBlock   *struct {
		CIDR   netip.Prefix
		Except []netip.Prefix
	} `yaml:"ipBlock"`
}

type selector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

// Port is a port of a manifest.
type Port struct {
	Protocol string
	Port     int
	EndPort  int `yaml:"endPort"`
}

// covers tells whether a port of a rule is or has one that is asked about.
func (p Port) covers(asked Port) bool {
	return p.Protocol == asked.Protocol && asked.Port >= p.Port && asked.Port <= max(p.Port, p.EndPort)
}

// ParseNetworkPolicies reads manifests.
func ParseNetworkPolicies(manifest []byte) (NetworkPolicies, error) {
	var ps NetworkPolicies
	dec := yaml.NewDecoder(bytes.NewReader(manifest))
	for {
		var n networkPolicy
		if err := dec.Decode(&n); errors.Is(err, io.EOF) {
			return ps, nil
		} else if err != nil {
			return nil, err
		}
		ps = append(ps, n)
	}
}

// Reaches tells whether pods of from with labels may connect to an address or
// to other pods. Several policies for one pod add up, and none allows all.
func (ps NetworkPolicies) Reaches(from string, labels map[string]string, ip netip.Addr, to string, toLabels map[string]string, port Port) bool {
	selected := false
	for _, p := range ps {
		if p.Metadata.Namespace != from || !hasLabels(labels, &p.Spec.PodSelector) || !slices.Contains(p.Spec.PolicyTypes, "Egress") {
			continue
		}
		selected = true
		for _, e := range p.Spec.Egress {
			if slices.ContainsFunc(e.Ports, func(p Port) bool { return p.covers(port) }) && slices.ContainsFunc(e.To, func(peer peer) bool {
				if peer.IPBlock != nil {
					return ip.IsValid() && peer.IPBlock.CIDR.Contains(ip) && !slices.ContainsFunc(peer.IPBlock.Except, func(x netip.Prefix) bool { return x.Contains(ip) })
				}
				return !ip.IsValid() && hasLabels(map[string]string{"kubernetes.io/metadata.name": to}, peer.Namespace) && hasLabels(toLabels, peer.Pods)
			}) {
				return true
			}
		}
	}
	return !selected
}

func hasLabels(labels map[string]string, s *selector) bool {
	if s == nil {
		return true
	}
	for k, v := range s.MatchLabels {
		if labels[k] != v {
			return false
		}
	}
	return true
}
