package policy

import (
	_ "embed"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/internal/spelling"
)

// Schema is the JSON Schema of the policy file, as published.
//
//go:embed schema.json
var Schema []byte

func (d *decoder) policy(n *yaml.Node, p *Policy) {
	version := false
	d.mapping(n, "the policy", map[string]field{
		"version": func(v *yaml.Node) {
			version = true
			if v.Tag != "!!int" || v.Value != "1" {
				d.fail(v, "version is %s: this kick reads version %d", kind(v), Version)
			}
			p.Version = Version
		},
		"changes": func(v *yaml.Node) { d.changes(v, &p.Changes) },
		"secrets": func(v *yaml.Node) { d.secrets(v, &p.Secrets) },
		"publish": func(v *yaml.Node) { d.publish(v, &p.Publish) },
		"ci":      func(v *yaml.Node) { d.ci(v, &p.CI) },
		"egress":  func(v *yaml.Node) { d.egress(v, &p.Egress) },
	})
	if !version && n.Kind == yaml.MappingNode {
		d.fail(n, "version is missing: begin with \"version: %d\"", Version)
	}
}

func (d *decoder) changes(n *yaml.Node, c *Changes) {
	d.mapping(n, "changes", map[string]field{
		"rules": func(v *yaml.Node) {
			c.Rules = d.rules(v)
			c.from = map[string]string{}
			for i := 0; i+1 < len(v.Content); i += 2 {
				c.from[v.Content[i].Value] = at("changes.rules", v.Content[i].Line, d.name)
			}
		},
		"limits":     func(v *yaml.Node) { c.Limits = d.limits(v) },
		"allow_only": func(v *yaml.Node) { c.AllowOnly = d.globs(v, "allow_only") },
		"co_authors": func(v *yaml.Node) { c.CoAuthors = d.strs(v, "co_authors", checkMail) },
		"protect":    func(v *yaml.Node) { c.Protect = d.protects(v) },
		"exceptions": func(v *yaml.Node) {
			d.list(v, "exceptions", func(v *yaml.Node) { c.Exceptions = append(c.Exceptions, d.exception(v)) })
		},
		"scopes": func(v *yaml.Node) {
			d.list(v, "scopes", func(v *yaml.Node) { c.Scopes = append(c.Scopes, d.scope(v)) })
		},
	})
}

func (d *decoder) rules(n *yaml.Node) map[string]Level {
	out := map[string]Level{}
	d.pairs(n, "rules", func(k, v *yaml.Node) {
		if d.changeable(k, k.Value) {
			if l := d.level(v, "the level of "+k.Value, Block, Review, Report); l != "" {
				out[k.Value] = l
			}
		}
	})
	return out
}

// changeable checks that id is a rule whose level a policy may change.
func (d *decoder) changeable(n *yaml.Node, id string) bool {
	r, ok := byID[id]
	switch {
	case !ok:
		if near := spelling.Nearest(id, changeableIDs()); near != "" {
			d.fail(n, "there is no rule %q: did you mean %s?", id, near)
			break
		}
		d.fail(n, "there is no rule %q: the rules are %s", id, strings.Join(changeableIDs(), ", "))
	case r.Fixed:
		d.fail(n, "rule %q has a fixed level, since later checks rely on it: remove this entry", id)
	default:
		return true
	}
	return false
}

func changeableIDs() []string {
	var ids []string
	for _, r := range rules {
		if !r.Fixed {
			ids = append(ids, r.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func (d *decoder) limits(n *yaml.Node) (l Limits) {
	d.mapping(n, "limits", map[string]field{
		"files":       func(v *yaml.Node) { l.Files = int(d.count(v, "files")) },
		"file_bytes":  func(v *yaml.Node) { l.FileBytes = d.size(v, "file_bytes") },
		"total_bytes": func(v *yaml.Node) { l.TotalBytes = d.size(v, "total_bytes") },
		"commits":     func(v *yaml.Node) { l.Commits = int(d.count(v, "commits")) },
	})
	return l
}

func (d *decoder) protects(n *yaml.Node) (ps []Protect) {
	d.list(n, "protect", func(v *yaml.Node) { ps = append(ps, d.protect(v)) })
	return ps
}

func (d *decoder) protect(n *yaml.Node) Protect {
	p := Protect{Level: Block}
	d.mapping(n, "an entry of protect", map[string]field{
		"paths":  func(v *yaml.Node) { p.Paths = d.globs(v, "paths") },
		"level":  func(v *yaml.Node) { p.Level = d.level(v, "level", Block, Review, Report) },
		"reason": func(v *yaml.Node) { p.Reason, _ = d.str(v, "reason") },
	})
	d.need(n, "an entry of protect", "paths", p.Paths != nil)
	d.need(n, "an entry of protect", "reason", d.has(n, "reason"))
	return p
}

func (d *decoder) exception(n *yaml.Node) Exception {
	e := Exception{Level: Report, line: n.Line}
	d.mapping(n, "an exception", map[string]field{
		"rule": func(v *yaml.Node) {
			if s, ok := d.str(v, "rule"); ok && d.changeable(v, s) {
				e.Rule = s
			}
		},
		"paths":   func(v *yaml.Node) { e.Paths = d.globs(v, "paths") },
		"level":   func(v *yaml.Node) { e.Level = d.level(v, "level", Review, Report) },
		"repos":   func(v *yaml.Node) { e.Repos = d.strs(v, "repos", checkRepo) },
		"agents":  func(v *yaml.Node) { e.Agents = d.strs(v, "agents", checkAgent) },
		"reason":  func(v *yaml.Node) { e.Reason, _ = d.str(v, "reason") },
		"expires": func(v *yaml.Node) { e.Expires = d.date(v) },
	})
	for _, key := range []string{"rule", "reason", "expires"} {
		d.need(n, "an exception", key, d.has(n, key))
	}
	return e
}

// scoped decodes a scope: the fields that it changes, for some repositories or
// agents.
func (d *decoder) scoped(n *yaml.Node, what string, repos, agents *[]string, fields map[string]field) {
	fields["repos"] = func(v *yaml.Node) { *repos = d.strs(v, "repos", checkRepo) }
	fields["agents"] = func(v *yaml.Node) { *agents = d.strs(v, "agents", checkAgent) }
	d.mapping(n, what, fields)
	d.need(n, "a scope", "repos or agents", d.has(n, "repos") || d.has(n, "agents"))
}

func (d *decoder) scope(n *yaml.Node) Scope {
	s := Scope{line: n.Line}
	d.scoped(n, "a scope", &s.Repos, &s.Agents, map[string]field{
		"rules":      func(v *yaml.Node) { s.Rules = d.rules(v) },
		"limits":     func(v *yaml.Node) { s.Limits = d.limits(v) },
		"allow_only": func(v *yaml.Node) { s.AllowOnly = d.globs(v, "allow_only") },
		"protect":    func(v *yaml.Node) { s.Protect = d.protects(v) },
	})
	d.need(n, "a scope", "rules, limits, allow_only or protect", d.has(n, "rules") || d.has(n, "limits") || d.has(n, "allow_only") || d.has(n, "protect"))
	return s
}

func (d *decoder) secrets(n *yaml.Node, s *Secrets) {
	d.mapping(n, "secrets", map[string]field{
		"certain":  func(v *yaml.Node) { s.Certain = d.level(v, "certain", Block, Review, Report) },
		"possible": func(v *yaml.Node) { s.Possible = d.level(v, "possible", Block, Review, Report) },
		"exceptions": func(v *yaml.Node) {
			d.list(v, "exceptions", func(v *yaml.Node) { s.Exceptions = append(s.Exceptions, d.secretException(v)) })
		},
	})
}

func (d *decoder) secretException(n *yaml.Node) SecretException {
	e := SecretException{line: n.Line}
	d.mapping(n, "an exception", map[string]field{
		"fingerprint": func(v *yaml.Node) { e.Fingerprint, _ = d.str(v, "fingerprint") },
		"repos":       func(v *yaml.Node) { e.Repos = d.strs(v, "repos", checkRepo) },
		"agents":      func(v *yaml.Node) { e.Agents = d.strs(v, "agents", checkAgent) },
		"reason":      func(v *yaml.Node) { e.Reason, _ = d.str(v, "reason") },
		"expires":     func(v *yaml.Node) { e.Expires = d.date(v) },
	})
	for _, key := range []string{"fingerprint", "reason", "expires"} {
		d.need(n, "an exception", key, d.has(n, key))
	}
	return e
}

func (d *decoder) date(n *yaml.Node) Date {
	t, err := time.Parse(time.DateOnly, n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.fail(n, "expires is %s: write a day as 2006-01-02", kind(n))
	}
	return Date{t}
}

func (d *decoder) has(n *yaml.Node, key string) bool {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

func (d *decoder) need(n *yaml.Node, what, key string, ok bool) {
	if !ok && n.Kind == yaml.MappingNode {
		d.fail(n, "%s has no %s: add it", what, key)
	}
}

var (
	hostName = lazyregexp.New(`^(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	envName  = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	word     = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)
	mail     = lazyregexp.New(`^[^\s<>@]+@[^\s<>@]+$`)
	methods  = []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"}
)

func checkWord(s string) error {
	if !word.MatchString(s) {
		return fmt.Errorf("%q is no name: write lower-case letters, digits and dashes", s)
	}
	return nil
}

func checkMail(s string) error {
	if !mail.MatchString(s) {
		return fmt.Errorf("%q is no e-mail address: write it without name or brackets", s)
	}
	return nil
}

func checkMethod(s string) error {
	if !slices.Contains(methods, s) {
		return fmt.Errorf("%q is no method: write %s", s, strings.Join(methods, ", "))
	}
	return nil
}

func checkEndpoint(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("%q is no URL: %w", s, err)
	case u.Scheme != "https" && !(u.Scheme == "http" && (u.Hostname() == "127.0.0.1" || u.Hostname() == "localhost" || u.Hostname() == "::1")):
		return fmt.Errorf("%q is not https: use https, or http to a loopback host", s)
	case u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q has no host, or has a user, query or fragment: write scheme, host and path alone", s)
	}
	return nil
}
