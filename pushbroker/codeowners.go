package pushbroker

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/hmarr/codeowners"

	"github.com/kickhq/kick/internal/escape"
)

// codeOwnersFiles are the places of CODEOWNERS, in the order in which GitHub
// looks; the first that is there counts.
var codeOwnersFiles = []string{".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS"}

const (
	maxCodeOwners = 3 << 20 // bytes; GitHub reads no larger file
	maxOwnerRules = 10_000  // each is tried against each changed path
	maxOwnerLine  = 4 << 10 // bytes
)

// codeOwners are who owns the changed paths, most paths first.
type codeOwners struct {
	users, teams []string // teams as "org/team"
	notes        []string // what could not be taken
}

// ownersOf reads CODEOWNERS at a commit and finds the owners of the paths. For
// each path the last pattern that matches decides, also one without owners.
func ownersOf(files *baseFiles, paths []string) (codeOwners, error) {
	var o codeOwners
	for _, name := range codeOwnersFiles {
		data, err := files.read(name, maxCodeOwners)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case errors.Is(err, errTooLarge):
			o.notes = append(o.notes, fmt.Sprintf("%s is larger than 3 MB, and was not read, as on GitHub", name))
			return o, nil
		case err != nil:
			return o, fmt.Errorf("read %s: %w", name, err)
		}
		rules, notes := parseCodeOwners(name, data)
		o.notes = notes
		o.find(rules, paths)
		return o, nil
	}
	return o, nil
}

// parseCodeOwners leaves out lines that are not understood, as GitHub does, and
// names them.
func parseCodeOwners(name string, data []byte) (rules codeowners.Ruleset, notes []string) {
	line := 0
	for text := range bytes.Lines(data) {
		line++
		if len(rules) == maxOwnerRules {
			notes = append(notes, fmt.Sprintf("%s has more than %d rules; those from line %d on were left out", name, maxOwnerRules, line))
			break
		}
		err := errors.New("the line is too long")
		var one codeowners.Ruleset
		if len(text) <= maxOwnerLine {
			one, err = codeowners.ParseFile(bytes.NewReader(text))
		}
		if err != nil {
			if len(notes) < 3 {
				notes = append(notes, fmt.Sprintf("%s, line %d was left out: %s", name, line, escape.String(strings.TrimPrefix(err.Error(), "line 1: "))))
			}
			continue
		}
		rules = append(rules, one...)
	}
	return rules, notes
}

func (o *codeOwners) find(rules codeowners.Ruleset, paths []string) {
	users, teams, mails := map[string]int{}, map[string]int{}, map[string]int{}
	seen := map[string]string{} // by folded name: as it was first spelled
	for _, path := range paths {
		rule, err := rules.Match(path)
		if err != nil || rule == nil {
			continue
		}
		for _, owner := range rule.Owners {
			folded := strings.ToLower(owner.Value)
			if seen[folded] == "" {
				seen[folded] = owner.Value
			}
			switch owner.Type {
			case codeowners.UsernameOwner:
				users[seen[folded]]++
			case codeowners.TeamOwner:
				teams[seen[folded]]++
			default:
				mails[seen[folded]]++
			}
		}
	}
	o.users, o.teams = mostFirst(users), mostFirst(teams)
	if len(mails) > 0 {
		o.notes = append(o.notes, fmt.Sprintf("CODEOWNERS names %s by mail address, and nobody can be asked for a review by that: ask them by hand", strings.Join(mostFirst(mails), ", ")))
	}
}

func mostFirst(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
}
