// Command gen compiles kick's own secret rules and those of gitleaks into the
// scanner's table, zz_rules.go. Run it by `go generate ./pushbroker/scan`.
//
// Of gitleaks it takes what is about a value: expression, entropy, stop words
// and allow expressions. What an agent could choose at will it leaves out: path
// allowlists, allowances by the rest of the line, and inline allowances.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"os/exec"
	"regexp"
	"regexp/syntax"
	"sort"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/zricethezav/gitleaks/v8/config"

	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
	"github.com/kickhq/kick/pushbroker/scan/internal/shape"
)

const gitleaksModule = "github.com/zricethezav/gitleaks/v8"

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gen FILE")
	}
	out, err := generate()
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], out, 0o644); err != nil {
		log.Fatal(err)
	}
}

// The part of gitleaks' configuration that is used.
type gitleaksConfig struct {
	Allowlist gitleaksAllow
	Rules     []struct {
		ID          string
		Regex       string
		Path        string
		SecretGroup int
		Entropy     float64
		Keywords    []string
		Allowlists  []gitleaksAllow
	}
}

type gitleaksAllow struct {
	Condition   string
	Paths       []string
	RegexTarget string
	Regexes     []string
	Stopwords   []string
}

// possible are rules whose expression has a prefix or whose value is bare, but
// that strike public identifiers, names or plain text as well.
var possible = map[string]bool{
	"curl-auth-header": true, "curl-auth-user": true, "facebook-access-token": true,
	"flutterwave-public-key": true, "freemius-secret-key": true, "generic-api-key": true,
	"hashicorp-tf-password": true, "kubernetes-secret-yaml": true, "lob-pub-api-key": true,
	"mailgun-pub-key": true, "nuget-config-password": true, "pkcs12-file": true,
	"sourcegraph-access-token": true, "square-access-token": true, "mapbox-api-token": true,
	"plaid-client-id": true, "aws-amazon-bedrock-api-key-short-lived": true,
}

// verify names the check of verify.go that a rule of gitleaks gets besides.
var verify = map[string]string{"generic-api-key": "generic", "jwt": "jwt", "square-access-token": "square"}

// named are rules whose value has a form of its own, though no long prefix.
var named = map[string]bool{
	"dropbox-long-lived-api-token": true, "dropbox-short-lived-api-token": true, "telegram-bot-api-token": true,
	"twitter-bearer-token": true, "yandex-access-token": true, "yandex-aws-access-token": true, "mailchimp-api-key": true,
	"okta-access-token": true, "beamer-api-token": true,
}

// keepPath are rules that would drown a person without their path condition.
// The condition costs recall only at the possible grade.
var keepPath = map[string]bool{"hashicorp-tf-password": true, "kubernetes-secret-yaml": true, "pkcs12-file": true}

// minHex is how many hexadecimal digits in a row a match holds of a rule that
// has no literal of its own.
var minHex = map[string]int{"facebook-access-token": 15, "sourcegraph-access-token": 40}

// rule is one row of the table, before it is written.
type rule struct {
	id, what, expr, verify, path string
	certain, own, assign, stop   bool
	begins                       bool
	group                        int
	entropy                      float64
	gate                         []string
	shape                        shape.Shape
	allow, allowMatch            []string
}

func generate() ([]byte, error) {
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", gitleaksModule).Output()
	if err != nil {
		return nil, fmt.Errorf("ask for the version of %s: %w", gitleaksModule, err)
	}
	var conf gitleaksConfig
	if err := toml.Unmarshal([]byte(config.DefaultConfig), &conf); err != nil {
		return nil, fmt.Errorf("read gitleaks' rules: %w", err)
	}
	rules, stop, err := compile(conf)
	if err != nil {
		return nil, err
	}
	return write(strings.TrimSpace(string(version)), rules, conf.Allowlist, stop)
}

func compile(conf gitleaksConfig) (rules []rule, stop []string, err error) {
	superseded := map[string]bool{}
	for _, o := range ruleset.Own {
		s, err := shape.Of(o.Expr)
		if err != nil {
			return nil, nil, fmt.Errorf("rule %s: %w", o.ID, err)
		}
		if len(s.Anchors) == 0 {
			return nil, nil, fmt.Errorf("rule %s: no literal of %d letters that every match holds", o.ID, shape.MinAnchor)
		}
		for _, id := range o.Supersedes {
			superseded[id] = true
		}
		rules = append(rules, rule{id: o.ID, what: o.What, expr: o.Expr, verify: o.Verify, certain: o.Grade == ruleset.Certain,
			own: true, entropy: o.Entropy, shape: s, assign: o.Assign, begins: begins(o.Expr, s)})
	}
	for _, g := range conf.Rules {
		if superseded[g.ID] {
			delete(superseded, g.ID)
			continue
		}
		r := rule{id: g.ID, what: "a secret of the kind " + g.ID, expr: bounds.Replace(g.Regex), group: g.SecretGroup, entropy: g.Entropy}
		if keepPath[g.ID] {
			r.path = g.Path
		}
		r.verify = verify[g.ID]
		for _, a := range g.Allowlists {
			if strings.EqualFold(a.Condition, "AND") || a.RegexTarget == "line" {
				continue
			}
			if len(a.Stopwords) > 0 {
				if stop != nil {
					return nil, nil, fmt.Errorf("rule %s: a second list of stop words", g.ID)
				}
				stop, r.stop = a.Stopwords, true
			}
			if a.RegexTarget == "match" {
				r.allowMatch = append(r.allowMatch, a.Regexes...)
			} else {
				r.allow = append(r.allow, a.Regexes...)
			}
		}
		if g.Regex != "" {
			if err := r.analyse(g.Keywords); err != nil {
				return nil, nil, fmt.Errorf("rule %s: %w", g.ID, err)
			}
		}
		r.certain = !possible[g.ID] && (!r.assign || named[g.ID])
		rules = append(rules, r)
	}
	for id := range superseded {
		return nil, nil, fmt.Errorf("gitleaks has no rule %s that could be superseded", id)
	}
	return rules, stop, nil
}

// Most of gitleaks' rules read: a name, an operator, a value.
const (
	nameEnd  = `(?:[ \t\w.-]{0,20})`
	valueEnd = `(?:[\x60'"\s;]|\\[nr]|$)`
	// ourEnd has the ends of values in XML and in bytes besides.
	ourEnd   = `(?:[\x60'"\s;<\x00-\x1f\x{FFFD}]|\\[nr]|$)`
	operator = `(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)[\x60'"\s=]{0,5}`
)

// bounds lets a value also begin and end where bytes do that are no text, and
// bounds the white space around an operator.
var bounds = strings.NewReplacer(valueEnd, ourEnd, `(?:^|[\\'"\x60\s>=:(,)])`, `(?:^|[\\'"\x60\s>=:(,)\x00-\x1f\x{FFFD}])`,
	`(?:$|[\\'"\x60\s<),])`, `(?:$|[\\'"\x60\s<),\x00-\x1f\x{FFFD}])`, `\s*=>\s*`, `\s{0,99}=>\s{0,99}`)

func (r *rule) analyse(keywords []string) error {
	var err error
	if r.shape, err = shape.Of(r.expr); err != nil {
		return err
	}
	if name, rest, ok := strings.Cut(r.expr, nameEnd); ok && strings.Contains(rest, operator) && !strings.Contains(rest, `)|\b(`) {
		_, value, _ := strings.Cut(rest, operator)
		value = strings.TrimSuffix(value, ourEnd)
		nameShape, err := shape.Of(name)
		if err != nil {
			if nameShape, err = shape.Of(name + ")"); err != nil {
				return err
			}
		}
		flag := ""
		if strings.HasPrefix(r.expr, "(?i)") {
			flag = "(?i)"
		}
		valueShape, err := shape.Of(flag + value)
		if err != nil {
			return err
		}
		r.shape.MinSecret = valueShape.MinSecret
		if prefixed(valueShape.Anchors) {
			r.shape.Anchors = valueShape.Anchors
		} else {
			r.assign, r.shape.Anchors = true, nameShape.Anchors
		}
	}
	if len(r.shape.Anchors) == 0 {
		for _, k := range keywords {
			r.gate = append(r.gate, strings.ToLower(k))
		}
		if len(r.gate) == 0 || minHex[r.id] == 0 {
			return fmt.Errorf("no literal that every match holds, and no keyword or no run of digits")
		}
	}
	r.begins = r.assign && strings.HasPrefix(r.expr, lead) || begins(r.expr, r.shape)
	return nil
}

// lead is how rules for a name and a value begin, see the scanner's constant.
const lead = `(?i)[\w.-]{0,50}?(?:`

// begins reports whether each match of expr begins with its one anchor.
func begins(expr string, s shape.Shape) bool {
	if len(s.Anchors) != 1 || s.Unbounded > 0 {
		return false
	}
	lit := s.Anchors[0].Lit
	if s.Anchors[0].Fold {
		expr = strings.ToLower(strings.TrimPrefix(expr, "(?i)"))
	}
	return strings.HasPrefix(expr, regexp.QuoteMeta(lit)) && !alternates(expr)
}

// alternates reports whether expr has an alternative outside of every group.
func alternates(expr string) bool {
	re, err := syntax.Parse(expr, syntax.Perl)
	return err != nil || re.Op == syntax.OpAlternate
}

// prefixed reports whether a value has a literal of its own that tells whose it
// is, and not only a filler such as AAAA.
func prefixed(anchors []shape.Anchor) bool {
	for _, a := range anchors {
		if len(a.Lit) < 4 || strings.Trim(a.Lit, a.Lit[:1]) == "" {
			return false
		}
	}
	return len(anchors) > 0
}

func write(version string, rules []rule, global gitleaksAllow, stop []string) ([]byte, error) {
	var b bytes.Buffer
	classes := map[shape.Class]int{}
	var order []shape.Class
	fmt.Fprintf(&b, `// Code generated by pushbroker/scan/internal/gen; DO NOT EDIT.

package scan

// Rules that are not kick's own come from gitleaks %s,
// Copyright (c) 2019 Zachary Rice, MIT license.

const gitleaksVersion = %q

`, version, version)
	fmt.Fprintf(&b, "var ruleTable = [...]rule{\n")
	for _, r := range rules {
		fmt.Fprintf(&b, "{id: %q, what: %q, expr: %s", r.id, r.what, quote(r.expr))
		flag := func(name string, on bool) {
			if on {
				fmt.Fprintf(&b, ", %s: true", name)
			}
		}
		flag("certain", r.certain)
		flag("own", r.own)
		flag("assign", r.assign)
		flag("begins", r.begins)
		flag("stop", r.stop)
		number := func(name string, n int) {
			if n != 0 {
				fmt.Fprintf(&b, ", %s: %d", name, n)
			}
		}
		number("group", r.group)
		number("maxLen", r.shape.MaxLen)
		number("unbounded", r.shape.Unbounded)
		number("reach", int(r.shape.Reach))
		number("minSecret", r.shape.MinSecret)
		number("minHex", minHex[r.id])
		if r.entropy != 0 {
			fmt.Fprintf(&b, ", entropy: %v", r.entropy)
		}
		if r.verify != "" {
			fmt.Fprintf(&b, ", verify: %q", r.verify)
		}
		if r.path != "" {
			fmt.Fprintf(&b, ", path: %s", quote(r.path))
		}
		list := func(name string, l []string) {
			if len(l) == 0 {
				return
			}
			fmt.Fprintf(&b, ", %s: []string{", name)
			for _, s := range l {
				fmt.Fprintf(&b, "%s,", quote(s))
			}
			b.WriteString("}")
		}
		list("gate", r.gate)
		list("allow", r.allow)
		list("allowMatch", r.allowMatch)
		if len(r.shape.Anchors) > 0 {
			b.WriteString(", anchors: []anchor{")
			for _, a := range r.shape.Anchors {
				fmt.Fprintf(&b, "{lit: %q", a.Lit)
				flag("fold", a.Fold)
				if a.TailMin > 0 {
					if classes[a.Tail] == 0 {
						order = append(order, a.Tail)
						classes[a.Tail] = len(order)
					}
					fmt.Fprintf(&b, ", tail: %d, tailMin: %d", classes[a.Tail], a.TailMin)
				}
				b.WriteString("},")
			}
			b.WriteString("}")
		}
		b.WriteString("},\n")
	}
	b.WriteString("}\n\n// tailClasses are sets of ASCII bytes; an anchor's tail is an index plus one.\nvar tailClasses = [...][2]uint64{\n")
	for _, c := range order {
		fmt.Fprintf(&b, "{%#x, %#x},\n", c[0], c[1])
	}
	b.WriteString("}\n\nvar globalAllow = []string{\n")
	for _, s := range global.Regexes {
		fmt.Fprintf(&b, "%s,\n", quote(s))
	}
	sort.Strings(stop)
	fmt.Fprintf(&b, "}\n\n// stopWords make a generic strike no secret; one a line.\nconst stopWords = %s\n", quote(strings.Join(append(stop, global.Stopwords...), "\n")))
	return format.Source(b.Bytes())
}

func quote(s string) string {
	if strings.ContainsAny(s, "`\r") {
		return strconv.Quote(s)
	}
	return "`" + s + "`"
}
