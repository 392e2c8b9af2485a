package pushbroker

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kickhq/kick/policy"
)

// secretPlaces are the paths, link targets and commits in which a scanner found
// a secret: a verdict quotes such, and no part of it may carry the value on.
type secretPlaces struct {
	paths   map[string]string // and how to show them
	commits map[string]bool
	texts   []string // the paths and targets, also as messages quote them
}

func newSecretPlaces() secretPlaces {
	return secretPlaces{paths: map[string]string{}, commits: map[string]bool{}}
}

// note remembers where the finding of an item is.
func (s *secretPlaces) note(it Item, f policy.Finding) {
	if f.Level == policy.Report {
		return
	}
	switch it.Kind {
	case CommitItem:
		s.commits[it.Commit] = true
	case PathItem:
		s.paths[it.Path] = redacted(it.Path, f.Column)
		s.quote(it.Path)
	case BlobItem, SymlinkItem:
		if len(it.Data) <= maxTarget {
			s.quote(string(it.Data))
		}
	}
}

func (s *secretPlaces) quote(text string) {
	quoted := strconv.Quote(text)
	s.texts = append(s.texts, text, quoted[1:len(quoted)-1])
}

// redacted keeps a text up to a few characters into the secret that begins at
// the column.
func redacted(text string, column int) string {
	const shown = 4 // as in a finding's excerpt: enough to know its kind
	return text[:min(max(column-1, 0)+shown, len(text))] + "… (redacted)"
}

// path is a path as it may be shown.
func (s *secretPlaces) path(p string) string {
	if shown, ok := s.paths[p]; ok {
		return shown
	}
	return p
}

// message is a finding's message as it may be shown: of a change rule, which
// quotes what it is about, the reason alone.
func (s *secretPlaces) message(f policy.Finding) string {
	rule, ok := policy.RuleByID(f.Rule)
	if !ok {
		return f.Message
	}
	_, quotes := s.paths[f.Path] // of which a rule may quote any part
	quotes = quotes || f.Path == "" && s.commits[f.Commit] || slices.ContainsFunc(s.texts, func(text string) bool { return text != "" && strings.Contains(f.Message, text) })
	if quotes {
		return rule.Reason + ": not shown, since it holds a secret"
	}
	return f.Message
}
