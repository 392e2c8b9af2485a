package pushbroker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kickhq/kick/policy"
)

// maxFindings is how many findings of one level a verdict lists. More of them
// tell a person nothing, and a hostile push could make millions.
const maxFindings = 300

// findings collects findings, each place of a rule once.
type findings struct {
	list   []policy.Finding
	seen   map[findingKey]bool
	counts map[policy.Level]int // also of those that are not listed
}

func newFindings() findings {
	return findings{seen: map[findingKey]bool{}, counts: map[policy.Level]int{}}
}

// findingKey makes a change rule's finding on a path one finding, however many
// commits and parents show it: the first commit is the one to mend.
type findingKey struct {
	rule, path, commit, place, fingerprint string
	line, column                           int
	level                                  policy.Level
}

func (fs *findings) add(found ...policy.Finding) {
	for _, f := range found {
		k := findingKey{f.Rule, f.Path, f.Commit, f.Place, f.Fingerprint, f.Line, f.Column, f.Level}
		if _, rule := policy.RuleByID(f.Rule); rule && f.Path != "" {
			k.commit = ""
		}
		if fs.seen[k] {
			continue
		}
		if fs.counts[f.Level]++; fs.counts[f.Level] > maxFindings {
			continue
		}
		fs.seen[k] = true
		fs.list = append(fs.list, f)
	}
}

// sorted returns the findings: those that block first, then by commit, path
// and line. What the repository's own CI has is behind what the work has.
func (fs *findings) sorted(commits []Commit) []policy.Finding {
	order := map[string]int{}
	for i, c := range commits {
		order[c.OID] = i + 1
	}
	place := func(f policy.Finding) int {
		if strings.HasPrefix(f.Rule, "ci-") {
			return len(commits) + 1
		}
		return order[f.Commit]
	}
	rank := map[policy.Level]int{policy.Review: 1, policy.Report: 2}
	list := slices.Clone(fs.list)
	for level, n := range fs.counts {
		if n > maxFindings {
			more := policy.NewFinding("too-many-findings", fmt.Sprintf("%d more of level %s", n-maxFindings, level))
			more.Level = level
			list = append(list, more)
		}
	}
	slices.SortStableFunc(list, func(a, b policy.Finding) int {
		return cmp.Or(
			cmp.Compare(rank[a.Level], rank[b.Level]),
			cmp.Compare(place(a), place(b)),
			cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Rule, b.Rule),
		)
	})
	if list == nil {
		list = []policy.Finding{}
	}
	return list
}
