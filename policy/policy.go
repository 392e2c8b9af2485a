// Package policy is the policy file: which changes may be pushed and which
// destinations may be reached. It decides nothing by itself; the push broker
// and the egress gateway do, by its rules.
//
// The change rules are a table (Rules) whose rows carry their own examples.
// The file changes their levels, makes exceptions with a reason and an end,
// sets limits, and adds protected paths; what it does not say is Default.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Level is what a finding of a rule leads to.
type Level string

const (
	// Block refuses the push.
	Block Level = "block"
	// Review asks for a person: a draft pull request, or a refusal on a plain
	// git remote unless the operator accepts.
	Review Level = "review"
	// Report is shown and stops nothing.
	Report Level = "report"
)

// Finding is one thing that a rule found, with its place and what to do.
type Finding struct {
	Rule        string `json:"rule"`                  // rule id, e.g. "protected-ci" or "github-app-token"
	Level       Level  `json:"level"`                 //
	Commit      string `json:"commit,omitempty"`      // full id of the commit it is in
	Path        string `json:"path,omitempty"`        // path in that commit, raw; escape before showing
	Line        int    `json:"line,omitempty"`        // 1-based; 0: not known
	Column      int    `json:"column,omitempty"`      // 1-based byte column; 0: not known
	Place       string `json:"place,omitempty"`       // where, if not in a file's content: "path", "commit", "symlink-target", "branch", or what a scanner says
	Message     string `json:"message"`               // what is wrong, one sentence
	Remedy      string `json:"remedy"`                // what to do, one sentence
	Excerpt     string `json:"excerpt,omitempty"`     // the place, with the secret redacted
	Fingerprint string `json:"fingerprint,omitempty"` // keyed, stable name of a secret, never its value
	Exception   string `json:"exception,omitempty"`   // reason of the policy's exception that set the level
}

// Version is the version of the file format that this package reads.
const Version = 1

// Policy is a policy file.
type Policy struct {
	Version int     `json:"version"`
	Changes Changes `json:"changes"`
	Secrets Secrets `json:"secrets"`
	Publish Publish `json:"publish"`
	CI      CI      `json:"ci"`
	Egress  Egress  `json:"egress"`

	name string // of the file, as errors call it; empty: built in
}

// Changes says what a push may change.
type Changes struct {
	// Rules sets the levels of built-in rules, by id.
	Rules map[string]Level `json:"rules,omitempty"`
	// Limits count one push alone.
	Limits Limits `json:"limits"`
	// AllowOnly, if set, are the only paths that may change.
	AllowOnly []Glob `json:"allow_only,omitempty"`
	// Protect are further protected paths.
	Protect []Protect `json:"protect,omitempty"`
	// CoAuthors are the e-mail addresses that may be in a Co-authored-by line.
	CoAuthors []string `json:"co_authors,omitempty"`
	// Exceptions lower the level of findings in named places.
	Exceptions []Exception `json:"exceptions,omitempty"`
	// Scopes change the above for some repositories or agents, in order.
	Scopes []Scope `json:"scopes,omitempty"`

	from map[string]string // what set the level of a rule, by its id
}

// Limits bound one push. Zero values stand for the default.
type Limits struct {
	Files      int   `json:"files"`       // changed paths, net of base..tip
	FileBytes  int64 `json:"file_bytes"`  // of one new file
	TotalBytes int64 `json:"total_bytes"` // of all new objects, inflated
	Commits    int   `json:"commits"`     // new ones
}

// DefaultLimits are 1,000 files, 5 MiB a file, 20 MiB in all and 100 commits:
// more than a person reviews in one pull request.
func DefaultLimits() Limits {
	return Limits{Files: 1000, FileBytes: 5 << 20, TotalBytes: 20 << 20, Commits: 100}
}

// Protect is a protected path of the operator's own.
type Protect struct {
	Paths  []Glob `json:"paths"`
	Level  Level  `json:"level"`
	Reason string `json:"reason"`
}

// Exception lowers the level of one rule's findings in named places until its
// end. Repos and agents that are empty stand for all. Of several that apply,
// the one with the lowest level counts.
type Exception struct {
	Rule    string   `json:"rule"`
	Paths   []Glob   `json:"paths,omitempty"`
	Level   Level    `json:"level"` // what the finding becomes: review or report
	Repos   []string `json:"repos,omitempty"`
	Agents  []string `json:"agents,omitempty"`
	Reason  string   `json:"reason"`
	Expires Date     `json:"expires"`

	line int
}

// Scope changes the policy for some repositories or agents: its levels, limits
// and allowed paths go over those before it, its protected paths are added. A
// repository is named as "owner/name", "owner/*", "host/owner/name", by its
// URL, or by the path of a local one; "*" stands for any characters but a
// slash, in an agent's name too.
type Scope struct {
	Repos     []string         `json:"repos,omitempty"`
	Agents    []string         `json:"agents,omitempty"`
	Rules     map[string]Level `json:"rules,omitempty"`
	Limits    Limits           `json:"limits"`
	AllowOnly []Glob           `json:"allow_only,omitempty"`
	Protect   []Protect        `json:"protect,omitempty"`

	line int
}

// Secrets says what a secret scanner's findings lead to.
type Secrets struct {
	Certain    Level             `json:"certain"`  // of a finding that a scanner is sure of; default block
	Possible   Level             `json:"possible"` // of one that needs a look; default review
	Exceptions []SecretException `json:"exceptions,omitempty"`
}

// SecretException accepts one secret, named by its fingerprint, until its end.
type SecretException struct {
	Fingerprint string   `json:"fingerprint"`
	Repos       []string `json:"repos,omitempty"`
	Agents      []string `json:"agents,omitempty"`
	Reason      string   `json:"reason"`
	Expires     Date     `json:"expires"`

	line int
}

// Date is a day, in UTC. A thing that expires on a day holds to its end.
type Date struct{ time.Time }

// MarshalText writes the day as 2006-01-02.
func (d Date) MarshalText() ([]byte, error) { return []byte(d.Format(time.DateOnly)), nil }

// Past reports whether the day is over at now.
func (d Date) Past(now time.Time) bool { return !now.Before(d.AddDate(0, 0, 1)) }

// defaultCoAuthors are the addresses that coding agents put into their own
// Co-authored-by lines.
var defaultCoAuthors = []string{
	"noreply@anthropic.com", "noreply@openai.com", "codex@openai.com", "cursoragent@cursor.com", "noreply@cursor.com",
	"198982749+Copilot@users.noreply.github.com", "223556219+Copilot@users.noreply.github.com", "copilot@github.com",
	"gemini-cli@google.com", "noreply@google.com", "noreply@aider.chat", "aider@aider.chat", "noreply@opencode.ai", "amp@ampcode.com",
	"openhands@all-hands.dev", "qwen-coder@alibabacloud.com", "crush@charm.land",
}

// Default is the policy when there is no file: every rule at its own level,
// the default limits, and no way out but the gateway's model calls.
func Default() *Policy {
	p := &Policy{Version: Version}
	p.fillDefaults()
	return p
}

func (p *Policy) fillDefaults() {
	p.Changes.Limits = p.Changes.Limits.or(DefaultLimits())
	if p.Changes.CoAuthors == nil {
		p.Changes.CoAuthors = slices.Clone(defaultCoAuthors)
	}
	if p.Secrets.Certain == "" {
		p.Secrets.Certain = Block
	}
	if p.Secrets.Possible == "" {
		p.Secrets.Possible = Review
	}
}

func (l Limits) or(d Limits) Limits {
	if l.Files == 0 {
		l.Files = d.Files
	}
	if l.FileBytes == 0 {
		l.FileBytes = d.FileBytes
	}
	if l.TotalBytes == 0 {
		l.TotalBytes = d.TotalBytes
	}
	if l.Commits == 0 {
		l.Commits = d.Commits
	}
	return l
}

// Digest names the policy: the SHA-256, in hex, of its canonical JSON and of
// the built-in tables of rules, with their patterns, and of presets. The order of keys,
// comments and values that equal the default do not change it.
func (p *Policy) Digest() string {
	type row struct {
		ID     string
		Level  Level
		Reason string
	}
	var table []row
	for _, r := range rules {
		table = append(table, row{r.ID, r.Level, r.Reason})
	}
	form := struct {
		Policy  *Policy
		Rules   []row
		Classes [][]Glob
		Presets map[string]Egress
	}{p, table, [][]Glob{ciPaths, governancePaths, gitPaths, openPaths, buildPaths, agentPaths, testPaths}, presets}
	b, err := json.Marshal(form)
	if err != nil {
		panic(fmt.Sprintf("policy has no canonical form: %v", err)) // only plain types above
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
