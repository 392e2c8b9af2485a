// Package policy is the policy file: which changes may be pushed and which
// destinations may be reached. It decides nothing by itself; the push broker
// and the egress gateway do, by its rules.
package policy

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
	Rule        string `json:"rule"`                  // rule id, e.g. "protected-path-ci" or "github-app-token"
	Level       Level  `json:"level"`                 //
	Commit      string `json:"commit,omitempty"`      // full id of the commit it is in
	Path        string `json:"path,omitempty"`        // path in that commit, raw; escape before showing
	Line        int    `json:"line,omitempty"`        // 1-based; 0: not known
	Column      int    `json:"column,omitempty"`      // 1-based byte column; 0: not known
	Place       string `json:"place,omitempty"`       // where, if not in a file's content: "path", "message", "author", "committer", "symlink-target"
	Message     string `json:"message"`               // what is wrong, one sentence
	Remedy      string `json:"remedy"`                // what to do, one sentence
	Excerpt     string `json:"excerpt,omitempty"`     // the place, with the secret redacted
	Fingerprint string `json:"fingerprint,omitempty"` // keyed, stable name of a secret, never its value
}
