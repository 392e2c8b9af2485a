// Package pushbroker turns a bundle from a sandbox into a branch and a pull
// request. It trusts nothing that the sandbox wrote: the bundle is taken as
// data into a fresh quarantine repository, everything that the remote would
// gain is inspected there, and only then is a token minted and that very
// commit pushed, by id.
package pushbroker

import (
	"github.com/kickhq/kick/policy"
)

// Work is what a sandbox handed over.
type Work struct {
	KickID  string
	Agent   string
	Repo    string // "owner/name", or the path or URL of a plain remote; what the policy's scopes name
	Bundle  string // path of the final bundle, read as data
	Mirror  string // bare mirror generation that holds the base, made by kick
	BaseOID string // recorded by the preparer, full lower-case hex
	Branch  string // branch that the work shall go to; scanned like content
	// Destination is where the branch goes, as far as CI there depends on it.
	Destination Destination
	// Identity is who commits in the workspace; other identities are a finding.
	IdentityName, IdentityEmail string
}

// Destination is what the judgement of CI needs to know of the remote. The zero
// one is a plain git remote, on which no workflow of GitHub's runs.
type Destination struct {
	GitHub      bool   // pushing starts the workflows
	Repo        string // "owner/name"; empty: not known
	Base        string // branch
	PullRequest bool   // there will be one
}

// Quarantine is a bare repository that holds the work's objects and borrows
// the base's. Only this package's git children write to it. Close ends those
// that still run; the directory is the caller's to remove.
type Quarantine struct {
	Dir     string // git directory
	Mirror  string
	BaseOID string
	Tip     string   // full id of the work's last commit
	Commits []string // new commits (not reachable from base), parents first
	Objects []string // S: ids of all objects of tip that base does not reach

	history *history      // what Ingest learned of the new commits
	objects *objectReader // of Dir; nil once closed
}

// Verdict is the broker's decision, with all that led to it.
type Verdict struct {
	Pass   bool `json:"pass"`   // nothing blocks, and nothing asks for review
	Review bool `json:"review"` // nothing blocks, but something asks for review
	// DraftOnly: the pull request must be a draft, since CI would expose
	// something to one that is none.
	DraftOnly bool              `json:"draft_only,omitempty"`
	Findings  []policy.Finding  `json:"findings"`
	Base      string            `json:"base"`
	Tip       string            `json:"tip"`
	Tree      string            `json:"tree"`
	Commits   int               `json:"commits"`
	Files     int               `json:"files"`    // changed paths, net of base..tip
	Added     int               `json:"added"`    // lines, text files up to 1 MiB only; -1: not counted
	Removed   int               `json:"removed"`  // likewise
	Bytes     int64             `json:"bytes"`    // of new objects, inflated
	Digests   map[string]string `json:"digests"`  // of what decided: "policy", "scanner", "base", "held-values", and "day" where exceptions end
	Subjects  []string          `json:"subjects"` // first lines of the commit messages, oldest first, at most 50
	Changes   []Change          `json:"changes"`  // net of base..tip, at most 1000
}

// Change is one changed path of base..tip.
type Change struct {
	Status string `json:"status"` // A, M, D, T as in git diff-tree; a rename is a D and an A
	Path   string `json:"path"`
	Mode   string `json:"mode,omitempty"` // new mode, octal
}
