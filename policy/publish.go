package policy

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/lazyregexp"
)

// Publish says in which form inspected work is published. What is not set
// stands for its default; nothing here lets work pass that the rules refuse.
type Publish struct {
	// Squash makes one commit of the work before it is inspected for the push.
	// Default: false.
	Squash *bool `json:"squash,omitempty"`
	// Signed has the forge make the commits, which it then signs. Default:
	// false.
	Signed *bool `json:"signed,omitempty"`
	// Draft opens every pull request as a draft, not those alone whose work
	// asks for a review. Default: false.
	Draft *bool `json:"draft,omitempty"`
	// TitlePrefix begins the title of every pull request.
	TitlePrefix string `json:"title_prefix,omitempty"`
	// Labels, Assignees and Reviewers are the pull request's. A reviewer is a
	// user's name, or "org/team".
	Labels    []string `json:"labels,omitempty"`
	Assignees []string `json:"assignees,omitempty"`
	Reviewers []string `json:"reviewers,omitempty"`
	// CodeOwners asks the owners that the base's CODEOWNERS names, where the
	// work asks for a review. Default: true.
	CodeOwners *bool `json:"code_owners,omitempty"`
	// Template is the repository's template that a pull request begins with:
	// the name of a file in a PULL_REQUEST_TEMPLATE directory, or NoTemplate.
	// Empty: the repository's default template, if it has one.
	Template string `json:"template,omitempty"`
	// IssueFallback opens an issue where the pull request is refused for want
	// of a permission, or because the repository has none. Default: false.
	IssueFallback *bool `json:"issue_fallback,omitempty"`
	// Scopes change the above for some repositories or agents, in order.
	Scopes []PublishScope `json:"scopes,omitempty"`
}

// NoTemplate is the Template that leaves the repository's templates out.
const NoTemplate = "none"

// PublishScope changes the form for some repositories or agents.
type PublishScope struct {
	Repos  []string `json:"repos,omitempty"`
	Agents []string `json:"agents,omitempty"`
	Publish
}

// For returns the form for one repository and one agent; see Policy.For.
func (p Publish) For(repo, agent string) Publish {
	out := p
	out.Scopes = nil
	for _, s := range p.Scopes {
		if appliesRepo(s.Repos, repo) && applies(s.Agents, agent) {
			out = s.or(out)
		}
	}
	return out
}

// or fills what p leaves open from d.
func (p Publish) or(d Publish) Publish {
	flag := func(v, d *bool) *bool {
		if v == nil {
			return d
		}
		return v
	}
	list := func(v, d []string) []string {
		if v == nil {
			return d
		}
		return v
	}
	if p.TitlePrefix == "" {
		p.TitlePrefix = d.TitlePrefix
	}
	if p.Template == "" {
		p.Template = d.Template
	}
	p.Squash, p.Signed, p.Draft = flag(p.Squash, d.Squash), flag(p.Signed, d.Signed), flag(p.Draft, d.Draft)
	p.CodeOwners, p.IssueFallback = flag(p.CodeOwners, d.CodeOwners), flag(p.IssueFallback, d.IssueFallback)
	p.Labels, p.Assignees, p.Reviewers = list(p.Labels, d.Labels), list(p.Assignees, d.Assignees), list(p.Reviewers, d.Reviewers)
	return p
}

// Is reports what an optional setting says, false if it says nothing.
func Is(setting *bool) bool { return setting != nil && *setting }

// GitHub's own limits are 100 labels, 10 assignees and 15 reviewers.
const (
	maxLabels    = 20
	maxAssignees = 10
	maxReviewers = 15
	maxPrefix    = 60 // characters of a title that nobody reads past its first 70
)

func (d *decoder) publish(n *yaml.Node, p *Publish) {
	fields := d.publishFields(p)
	fields["scopes"] = func(v *yaml.Node) {
		d.list(v, "scopes", func(v *yaml.Node) {
			var s PublishScope
			d.scoped(v, "a scope of publish", &s.Repos, &s.Agents, d.publishFields(&s.Publish))
			p.Scopes = append(p.Scopes, s)
		})
	}
	d.mapping(n, "publish", fields)
}

func (d *decoder) publishFields(p *Publish) map[string]field {
	flag := func(what string, to **bool) field {
		return func(v *yaml.Node) { *to = d.flag(v, what) }
	}
	names := func(what string, to *[]string, most int, check func(string) error) field {
		return func(v *yaml.Node) {
			*to = d.strs(v, what, check)
			if len(*to) > most {
				d.fail(v, "%s has %d entries: keep at most %d", what, len(*to), most)
			}
		}
	}
	text := func(what string, to *string, check func(string) error) field {
		return func(v *yaml.Node) {
			s, ok := d.str(v, what)
			if !ok {
				return
			}
			if err := check(s); err != nil {
				d.fail(v, "%s: %v", what, err)
			}
			*to = s
		}
	}
	return map[string]field{
		"squash": flag("squash", &p.Squash), "signed": flag("signed", &p.Signed), "draft": flag("draft", &p.Draft),
		"code_owners": flag("code_owners", &p.CodeOwners), "issue_fallback": flag("issue_fallback", &p.IssueFallback),
		"title_prefix": text("title_prefix", &p.TitlePrefix, checkPrefix),
		"template":     text("template", &p.Template, checkTemplate),
		"labels":       names("labels", &p.Labels, maxLabels, checkLabel),
		"assignees":    names("assignees", &p.Assignees, maxAssignees, checkLogin),
		"reviewers":    names("reviewers", &p.Reviewers, maxReviewers, checkReviewer),
	}
}

func (d *decoder) flag(n *yaml.Node, what string) *bool {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Value != "true" && n.Value != "false" {
		d.fail(n, "%s is %s: write true or false", what, kind(n))
		return nil
	}
	v := n.Value == "true"
	return &v
}

var (
	login        = lazyregexp.New(`^[A-Za-z0-9](?:[A-Za-z0-9_-]{0,98}[A-Za-z0-9])?$`)
	team         = lazyregexp.New(`^[A-Za-z0-9](?:[A-Za-z0-9_-]{0,98}[A-Za-z0-9])?/[A-Za-z0-9_-]{1,100}$`)
	templateName = lazyregexp.New(`^[A-Za-z0-9._ -]{1,100}$`)
)

func checkLogin(s string) error {
	if !login.MatchString(s) {
		return fmt.Errorf("%q is no user's name: write it without @", s)
	}
	return nil
}

func checkReviewer(s string) error {
	if !login.MatchString(s) && !team.MatchString(s) {
		return fmt.Errorf("%q is neither a user's name nor org/team: write it without @", s)
	}
	return nil
}

// checkLabel holds GitHub's 50 characters.
func checkLabel(s string) error {
	if utf8.RuneCountInString(s) > 50 || strings.Contains(s, ",") || hidden(s) {
		return fmt.Errorf("%q is no label: write at most 50 characters without commas and control characters", s)
	}
	return nil
}

func checkPrefix(s string) error {
	if utf8.RuneCountInString(s) > maxPrefix || hidden(s) {
		return fmt.Errorf("%q: write at most %d characters without control characters", s, maxPrefix)
	}
	return nil
}

func checkTemplate(s string) error {
	if !templateName.MatchString(s) || slices.Contains([]string{".", ".."}, s) {
		return fmt.Errorf("%q is no file's name: write the name of a file in PULL_REQUEST_TEMPLATE, or %s", s, NoTemplate)
	}
	return nil
}

func hidden(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return escape.Control(r) || escape.Invisible(r) })
}
