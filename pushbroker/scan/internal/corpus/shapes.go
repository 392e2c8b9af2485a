// Package corpus plants secrets of every kind, in every encoding, in every
// place of real git repositories, from a fixed seed, and tells which of them a
// scanner finds there. It is linked into tests and measurements alone.
package corpus

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/zricethezav/gitleaks/v8/detect"

	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
)

// Shape is one form of a secret.
type Shape struct {
	Rule, Family string
	// Draw returns the secret of a seed, with the name before it if the rule
	// needs one.
	Draw func(seed uint64) string
}

// families are kick's own rules by what they are about; the others are services.
var families = map[string][]string{
	"GitHub, GitLab":        {"github-token", "github-installation-token", "github-fine-grained-token", "gitlab-token"},
	"cloud":                 {"aws-access-key-id", "aws-secret-key", "aws-secret-key-after-id", "aws-secret-key-before-id", "aws-session-token", "gcp-service-account", "google-api-key", "google-oauth-secret", "azure-key", "azure-ai-key"},
	"model providers":       {"openai-key", "anthropic-key", "model-provider-key", "huggingface-token"},
	"registries":            {"npm-token", "pypi-token", "docker-token", "docker-registry-auth"},
	"private keys":          {"private-key", "putty-private-key"},
	"URLs, logins, headers": {"url-password", "netrc-password", "authorization-header"},
	"JSON web tokens":       {"jwt-token"},
}

func familyOf(rule string) string {
	for family, rules := range families {
		if slices.Contains(rules, rule) {
			return family
		}
	}
	return "services"
}

// Gitleaks is gitleaks as it would have to run here: an agent picks paths and
// comments, so neither allows anything.
func Gitleaks(depth int) (*detect.Detector, error) {
	zerolog.SetGlobalLevel(zerolog.Disabled)
	d, err := detect.NewDetectorDefaultConfig()
	if err != nil {
		return nil, err
	}
	d.IgnoreGitleaksAllow = true
	d.MaxDecodeDepth = depth
	for _, a := range d.Config.Allowlists {
		a.Paths = nil
	}
	return d, nil
}

// Shapes returns the examples of kick's rules, and one shape for each rule of
// gitleaks: values that are drawn from its expression until gitleaks itself
// finds one by that rule.
func Shapes() ([]Shape, error) {
	d, err := Gitleaks(0)
	if err != nil {
		return nil, err
	}
	var shapes []Shape
	for _, r := range ruleset.Own {
		for _, m := range r.Matches {
			shapes = append(shapes, Shape{r.ID, familyOf(r.ID), func(seed uint64) string { return ruleset.Expand(m, seed) }})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(d.Config.Rules)) {
		rule := d.Config.Rules[id]
		if rule.Regex == nil || rule.Path != nil {
			continue
		}
		expr := rule.Regex.String()
		re, err := syntax.Parse(expr, syntax.Perl)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", id, err)
		}
		family := "gitleaks' rules for a form"
		switch {
		case id == "generic-api-key":
			family = "gitleaks' generic rule"
		case strings.Contains(expr, `\|\||:|=>|\?=|,)`):
			family = "gitleaks' rules for a name and a value"
		}
		draw := func(seed uint64) string {
			r := rand.New(rand.NewPCG(seed, 20260502))
			for range 200 {
				text := Random(re, r)
				for _, f := range d.Detect(detect.Fragment{Raw: text + "\n"}) { //nolint:staticcheck // Detect takes no other type
					if f.RuleID == id {
						return text
					}
				}
			}
			return ""
		}
		if draw(1) != "" { // else gitleaks' own rule finds nothing that it describes
			shapes = append(shapes, Shape{id, family, draw})
		}
	}
	return shapes, nil
}

// Random draws a string that re matches.
func Random(re *syntax.Regexp, r *rand.Rand) string {
	switch re.Op {
	case syntax.OpLiteral:
		return string(re.Rune)
	case syntax.OpCharClass:
		var all []rune
		for i := 0; i < len(re.Rune); i += 2 {
			for c := re.Rune[i]; c <= re.Rune[i+1] && c < 127; c++ {
				if c >= ' ' || len(re.Rune) <= 4 {
					all = append(all, c)
				}
			}
		}
		if len(all) == 0 {
			return string(re.Rune[0])
		}
		return string(all[r.IntN(len(all))])
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return string(rune('a' + r.IntN(26)))
	case syntax.OpCapture:
		return Random(re.Sub[0], r)
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		least, most := 0, 8
		switch re.Op {
		case syntax.OpPlus:
			least = 1
		case syntax.OpQuest:
			most = 1
		case syntax.OpRepeat:
			least, most = re.Min, re.Max
			if most < 0 || most > least+40 {
				most = least + 40
			}
		}
		var b strings.Builder
		for range least + r.IntN(most-least+1) {
			b.WriteString(Random(re.Sub[0], r))
		}
		return b.String()
	case syntax.OpConcat:
		var b strings.Builder
		for _, sub := range re.Sub {
			b.WriteString(Random(sub, r))
		}
		return b.String()
	case syntax.OpAlternate:
		return Random(re.Sub[r.IntN(len(re.Sub))], r)
	}
	return ""
}
