package manager

import (
	"strings"
	"time"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/workspace"
)

// Code is how a kick ended. The table below is the only place that maps it to
// an exit code.
type Code string

// The outcomes of a kick.
const (
	Published    Code = "published"     // the branch, and the pull request where there is one, exist
	Inspected    Code = "inspected"     // the verdict passed and publishing was not asked for
	Usage        Code = "usage"         // wrong usage or configuration; nothing ran
	FetchFailed  Code = "fetch-failed"  // the base could not be fetched or prepared; nothing ran
	Nothing      Code = "nothing"       // the agent made no commit to publish
	AgentFailed  Code = "agent-failed"  // also out of memory, disk or processes: Reason says
	TimedOut     Code = "timed-out"     //
	Refused      Code = "refused"       // by policy or scan
	NotIsolated  Code = "not-isolated"  // isolation is not provable; nothing ran
	RuntimeError Code = "runtime-error" // the runtime could not start, or lost the sandbox
	PushFailed   Code = "push-failed"   // the push or the pull request failed
	Interrupted  Code = "interrupted"   // kick itself died; found by recovery
	Cancelled    Code = "cancelled"     //
	Internal     Code = "internal"      // a fault of kick or of its host (disk full, ...)
)

var exitCodes = map[Code]int{
	Published: 0, Inspected: 0, Internal: 1, FetchFailed: 1, Usage: 2, Nothing: 10, AgentFailed: 11, TimedOut: 12,
	Refused: 13, NotIsolated: 14, RuntimeError: 15, Interrupted: 15, PushFailed: 16, Cancelled: 130,
}

// ExitCode returns the exit code of `kick run` for c.
func (c Code) ExitCode() int {
	if n, ok := exitCodes[c]; ok {
		return n
	}
	return exitCodes[Internal]
}

// Outcome is the one record of how a kick ended: what `kick run -o json`
// prints and what result.json keeps.
type Outcome struct {
	ID          string           `json:"id"`
	Outcome     Code             `json:"outcome"`
	ExitCode    int              `json:"exitCode"`
	Agent       string           `json:"agent"`
	Repo        string           `json:"repo"`
	Base        string           `json:"base"`              // branch
	BaseCommit  string           `json:"baseCommit"`        //
	Branch      string           `json:"branch,omitempty"`  // published branch
	Commit      string           `json:"commit,omitempty"`  // the work's last commit, published or not
	Issue       string           `json:"issue,omitempty"`   // in the place of a pull request
	Updated     *Updated         `json:"updated,omitempty"` // of an update of an earlier kick's branch
	PullRequest string           `json:"pullRequest,omitempty"`
	Draft       bool             `json:"draft,omitempty"`
	Commits     int              `json:"commits"`
	Squashed    int              `json:"squashed,omitempty"` // commits of the agent's of which one was made
	Files       int              `json:"files"`
	Findings    []policy.Finding `json:"findings"`
	Reason      sandbox.Reason   `json:"reason,omitempty"`
	// PublishReason says why the work is not, or not wholly, published.
	// RetryAfter is how many seconds the server wants to be left alone.
	PublishReason pushbroker.Reason `json:"publishReason,omitempty"`
	RetryAfter    float64           `json:"retryAfter,omitempty"`
	// Unsettled tells that a push was begun and may have arrived, or that its
	// pull request is still to be opened: Recover and GC finish it.
	Unsettled bool `json:"unsettled,omitempty"`

	AgentExit   *int               `json:"agentExit,omitempty"`
	Unpublished *Unpublished       `json:"unpublished,omitempty"`
	KeptAt      string             `json:"keptAt,omitempty"` // directory with what is not on the remote
	Missing     []string           `json:"missing,omitempty"`
	Notes       []string           `json:"notes,omitempty"`
	Timings     map[string]float64 `json:"timings"` // seconds, by step; "total" is the whole kick
	Isolation   sandbox.Isolation  `json:"isolation"`
	Image       string             `json:"image,omitempty"`  // what the agent ran in, by digest or id, where the runtime uses images
	Egress      *egress.Summary    `json:"egress,omitempty"` // what went through the gateway, if there was one
	Error       string             `json:"error,omitempty"`
	Remedy      string             `json:"remedy,omitempty"`
	Started     time.Time          `json:"started"`
	Finished    time.Time          `json:"finished"`
}

// Unpublished names work that is kept and is not part of what was published.
type Unpublished struct {
	Refs    []string `json:"refs,omitempty"`
	Stashes int      `json:"stashes,omitempty"`
	Dirty   []string `json:"dirty,omitempty"`
	// DirtyCount counts all uncommitted paths; Dirty has the first 100.
	DirtyCount int `json:"dirtyCount,omitempty"`
}

// why says why a publication is not finished.
func (o Outcome) why() string {
	for _, n := range o.Notes {
		if strings.HasPrefix(n, unsettledNote) {
			return n
		}
	}
	return o.Error
}

// RestoreCommands returns the shell commands that get the kept work back that
// is not on the remote.
func (o Outcome) RestoreCommands() []string {
	if o.KeptAt == "" {
		return nil
	}
	return workspace.RestoreCommands(o.KeptAt, o.ID, o.unpublished()...)
}

// unpublished names what may hold work that is not on the remote.
func (o Outcome) unpublished() []sandbox.Artifact {
	rest := []sandbox.Artifact{sandbox.RestBundle, sandbox.DirtyArchive, sandbox.Checkpoint}
	if o.Outcome == Published && o.Squashed == 0 {
		return rest
	}
	return append(rest, sandbox.FinalBundle)
}
