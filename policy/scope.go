package policy

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/lazyregexp"
)

// For returns the policy as it is for one repository ("owner/name", or the
// path or URL of a remote) and one agent: scopes applied, exceptions for
// others left out.
func (p *Policy) For(repo, agent string) *Policy {
	q := *p
	q.Publish = p.Publish.For(repo, agent)
	q.CI = p.CI.For(repo, agent)
	q.Egress = p.Egress.For(repo, agent)
	c := &q.Changes
	c.Rules, c.from = maps.Clone(p.Changes.Rules), maps.Clone(p.Changes.from)
	if c.Rules == nil {
		c.Rules = map[string]Level{}
	}
	if c.from == nil {
		c.from = map[string]string{}
	}
	for _, s := range p.Changes.Scopes {
		if !appliesRepo(s.Repos, repo) || !applies(s.Agents, agent) {
			continue
		}
		for id, l := range s.Rules {
			c.Rules[id], c.from[id] = l, at("the scope", s.line, p.name)
		}
		c.Limits = s.Limits.or(c.Limits)
		if s.AllowOnly != nil {
			c.AllowOnly = s.AllowOnly
		}
		c.Protect = append(slices.Clip(c.Protect), s.Protect...)
	}
	c.Scopes = nil
	c.Exceptions = slices.DeleteFunc(slices.Clone(c.Exceptions), func(e Exception) bool {
		return !appliesRepo(e.Repos, repo) || !applies(e.Agents, agent)
	})
	q.Secrets.Exceptions = slices.DeleteFunc(slices.Clone(q.Secrets.Exceptions), func(e SecretException) bool {
		return !appliesRepo(e.Repos, repo) || !applies(e.Agents, agent)
	})
	return &q
}

// at names a place of the file for people.
func at(what string, line int, file string) string {
	if line == 0 {
		return what
	}
	return fmt.Sprintf("%s on line %d of %s", what, line, filepath.Base(file))
}

// applies reports whether a list of agents, which stands for all if it is
// empty, has a pattern for name.
func applies(list []string, name string) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// appliesRepo does the same for repositories.
func appliesRepo(list []string, repo string) bool {
	if len(list) == 0 {
		return true
	}
	names := repoNames(repo)
	return slices.ContainsFunc(list, func(pattern string) bool {
		if host, name, ok := remote(pattern); ok {
			pattern = host + "/" + name
		}
		if pattern = localPath(pattern); !strings.HasPrefix(pattern, "/") {
			pattern = strings.TrimSuffix(pattern, ".git")
		}
		return slices.ContainsFunc(names, func(name string) bool {
			ok, _ := path.Match(foldRepo(pattern), foldRepo(name))
			return ok
		})
	})
}

// repoNames are the names by which a policy may call a repository.
func repoNames(repo string) []string {
	if host, name, ok := remote(repo); ok {
		return []string{name, host + "/" + name}
	}
	return []string{localPath(repo)}
}

// localPath is the path of a file URL; anything else stays as it is.
func localPath(repo string) string {
	if u, err := url.Parse(repo); err == nil && u.Scheme == "file" && u.Host == "" {
		return u.Path
	}
	return repo
}

// remote splits a URL, or git's short form for ssh, into host and path.
func remote(repo string) (host, name string, ok bool) {
	if strings.Contains(repo, "://") {
		u, err := url.Parse(repo)
		if err != nil || u.Host == "" {
			return "", "", false
		}
		host, name = u.Hostname(), u.Path
	} else {
		head, _, _ := strings.Cut(repo, "/")
		if !strings.Contains(head, ":") {
			return "", "", false
		}
		host, name, _ = strings.Cut(repo, ":")
		if at := strings.LastIndexByte(host, '@'); at >= 0 {
			host = host[at+1:]
		}
	}
	name = strings.TrimSuffix(strings.Trim(name, "/"), ".git")
	return host, name, host != "" && name != ""
}

// foldRepo lowers the case of a name on a forge, since forges do not tell
// cases apart; a local path is what it is.
func foldRepo(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return strings.ToLower(name)
}

// checkRepo and checkAgent refuse what names nothing: a scope with it would be
// believed to hold.
func checkRepo(s string) error {
	const remedy = "name a repository as owner/name, owner/*, host/owner/name, a URL or an absolute path"
	if err := checkPattern(s, remedy); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(s, ".") || strings.HasPrefix(s, "~"):
		return fmt.Errorf("%q is no absolute path, and matches nothing: %s", s, remedy)
	case strings.HasSuffix(s, "/") || strings.Contains(s, "**"):
		return fmt.Errorf("%q matches nothing: %s", s, remedy)
	}
	if _, _, ok := remote(s); !ok && !strings.Contains(s, "/") {
		return fmt.Errorf("%q has no owner, and matches nothing, since * stops at a slash: %s", s, remedy)
	}
	return nil
}

// agentPattern has the characters of an agent's name, and those of path.Match.
var agentPattern = lazyregexp.New(`^[a-z0-9_*?\[\]^-]+$`)

func checkAgent(s string) error {
	const remedy = "name an agent as kick.yaml or --agent has it, with * for any characters"
	if err := checkPattern(s, remedy); err != nil {
		return err
	}
	if !agentPattern.MatchString(s) {
		return fmt.Errorf("%q matches nothing, since agents have names of lower-case letters, digits, - and _: %s", s, remedy)
	}
	return nil
}

func checkPattern(s, remedy string) error {
	switch _, err := path.Match(s, "x"); {
	case err != nil:
		return fmt.Errorf("%q has a bracket without an end: %s", s, remedy)
	case strings.ContainsFunc(s, func(r rune) bool { return r == ' ' || escape.Control(r) || escape.Invisible(r) }):
		return fmt.Errorf("%q has a space or a character that does not show: %s", s, remedy)
	}
	return nil
}
