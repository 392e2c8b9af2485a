package policy

import (
	"fmt"
)

// Subject is one thing that rules look at. Exactly one of its pointers is set.
type Subject struct {
	CommitID string // commit it is in; empty for the work as a whole

	Change *Change
	Names  *Names
	Commit *Commit
	Work   *Work
}

// Change is one path of one commit against one of its parents, where the
// result also differs from what the base has at that path.
type Change struct {
	Path     string   // raw bytes
	Aliases  []string // paths of the base's links by which the file is known too
	Old, New uint32   // git modes as written in the tree; 0: absent
	Target   string   // of a new symbolic link
	Leads    string   // why it must not lead where it does, by the other links of its tree; empty: it may
	Blob     *Blob    // the new side's content, where it is a file and new in this push
}

// Blob is what rules need of a file's content.
type Blob struct {
	Size   int64
	Binary bool   // a NUL within the first 8,000 bytes, as git decides it
	LFS    string // object id of a Git LFS pointer, or empty
	// The first character of its kind, where the base's file at that path has
	// none; as "U+202E on line 3".
	Bidi      string // that escape.Concealed finds
	ZeroWidth string // that escape.ZeroWidth finds
	Control   string // that acts on a terminal
}

// Names are two paths of one new tree, of which the first is new.
type Names struct{ Path, Other string }

// Commit is a new commit.
type Commit struct {
	Header    string // what is wrong with the header by the strict grammar, or empty
	Author    Identity
	Committer Identity
	Message   string
	Parents   int
	Empty     bool     // its tree is that of each parent
	Expect    Identity // who commits in the workspace; empty: not checked
	CoAuthors []string // e-mail addresses that may be in a Co-authored-by trailer; set by the policy
}

// Identity is a name and an e-mail address.
type Identity struct{ Name, Email string }

// Work is the push as a whole.
type Work struct {
	Rewritten bool   // base is no ancestor of the tip, and they share history
	Unrelated string // a new commit without a parent
	Foreign   string // a commit that the repository has outside of base
	Duplicate string // an open pull request of another kick with the same tree
	Files     int    // changed paths, net
	Bytes     int64  // of new objects, inflated
	Commits   int
	Limits    Limits // set by the policy
}

// Rule is one row of the table.
type Rule struct {
	ID     string
	Level  Level  // default
	Reason string // one sentence without a full stop
	Remedy string // what to do, one sentence
	// Fixed rules keep their level whatever the policy says, since what
	// follows them relies on it.
	Fixed bool

	pathless bool   // its findings name no path
	paths    []Glob // of a class of paths: then match is made from them

	// match returns what struck, or "".
	match func(*Subject) string
	// Matches and Misses are examples that tests run. A fixed rule without a
	// match is raised where the thing happens, and tested there.
	Matches, Misses []Subject
}

// Match returns what of s strikes the rule, or "".
func (r Rule) Match(s Subject) string {
	if r.match == nil {
		return ""
	}
	return r.match(&s)
}

// Rules is the table of built-in change rules, in the order in which they are
// applied.
func Rules() []Rule { return rules }

var (
	rules []Rule
	byID  = map[string]*Rule{}
)

func init() {
	for _, table := range [][]Rule{commitRules, workRules} {
		for i := range table {
			table[i].pathless = true
		}
	}
	for _, table := range [][]Rule{pathRules, entryRules, classRules, contentRules, commitRules, workRules, ciRules, ingestRules} {
		rules = append(rules, table...)
	}
	for i := range rules {
		if rules[i].paths != nil {
			rules[i].match = classRule(rules[i].paths)
		}
		if byID[rules[i].ID] != nil {
			panic("two rules have the id " + rules[i].ID)
		}
		byID[rules[i].ID] = &rules[i]
	}
}

// RuleByID returns a built-in rule.
func RuleByID(id string) (Rule, bool) {
	r, ok := byID[id]
	if !ok {
		return Rule{}, false
	}
	return *r, true
}

// NewFinding returns a finding of a built-in rule at its default level. An
// unknown id is a mistake of the caller, and panics.
func NewFinding(id, detail string) Finding {
	r, ok := byID[id]
	if !ok {
		panic("no rule " + id)
	}
	return r.finding(detail)
}

func (r *Rule) finding(detail string) Finding {
	msg := r.Reason
	if detail != "" {
		msg = fmt.Sprintf("%s: %s", r.Reason, detail)
	}
	return Finding{Rule: r.ID, Level: r.Level, Message: msg, Remedy: r.Remedy}
}

// Modes of tree entries.
const (
	modeFile    = 0o100644
	modeExec    = 0o100755
	modeLink    = 0o120000
	modeGitlink = 0o160000
)

// Helpers for the tables' examples.
func added(path string) Subject { return Subject{Change: &Change{Path: path, New: modeFile}} }
func edited(path string) Subject {
	return Subject{Change: &Change{Path: path, Old: modeFile, New: modeFile}}
}
func deleted(path string) Subject { return Subject{Change: &Change{Path: path, Old: modeFile}} }
func modes(path string, before, after uint32) Subject {
	return Subject{Change: &Change{Path: path, Old: before, New: after}}
}
func link(path, target string) Subject {
	return Subject{Change: &Change{Path: path, New: modeLink, Target: target}}
}
func blob(path string, b Blob) Subject {
	return Subject{Change: &Change{Path: path, New: modeFile, Blob: &b}}
}
func collide(path, other string) Subject { return Subject{Names: &Names{Path: path, Other: other}} }
func message(m string) Subject           { return Subject{Commit: &Commit{Message: m, Parents: 1}} }

// onChange, onAdded and onCommit lift a test of one kind of subject to a match.
func onChange(f func(*Change) string) func(*Subject) string {
	return func(s *Subject) string {
		if s.Change == nil {
			return ""
		}
		return f(s.Change)
	}
}

// onAdded looks at paths that a commit adds: a path that was there before is
// not this work's doing.
func onAdded(f func(path string) string) func(*Subject) string {
	return onChange(func(c *Change) string {
		if c.Old != 0 || c.New == 0 {
			return ""
		}
		return f(c.Path)
	})
}

func onCommit(f func(*Commit) string) func(*Subject) string {
	return func(s *Subject) string {
		if s.Commit == nil {
			return ""
		}
		return f(s.Commit)
	}
}

func onWork(f func(*Work) string) func(*Subject) string {
	return func(s *Subject) string {
		if s.Work == nil {
			return ""
		}
		return f(s.Work)
	}
}
