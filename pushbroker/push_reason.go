package pushbroker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/escape"
)

// Reason says why work was not published, in one word that programs can rely
// on.
type Reason string

// The reasons.
const (
	ReasonUsage          Reason = "usage"                // the request itself is wrong
	ReasonJournal        Reason = "journal"              // the effect could not be recorded, so it was not done
	ReasonRepublish      Reason = "republishes-history"  // the remote would gain what was not inspected
	ReasonBranchExists   Reason = "branch-exists"        // the branch is there with other work
	ReasonBranchMoved    Reason = "branch-moved"         // the branch to update is not where it was
	ReasonUnsignable     Reason = "cannot-be-signed"     // signed mode cannot express the work; nothing was sent
	ReasonTreeDiffers    Reason = "signed-differs"       // what the server made is not what was inspected, or is not signed; it was taken back
	ReasonRuleset        Reason = "ruleset"              // GH013
	ReasonProtected      Reason = "protected-branch"     // GH006
	ReasonPushProtection Reason = "push-protection"      // the server's own secret scan
	ReasonWorkflows      Reason = "workflows-permission" // the App may not change workflows
	ReasonHook           Reason = "hook-declined"        // the remote's own hook
	ReasonRejected       Reason = "rejected"             // the server refused in words that kick does not know
	ReasonAuthentication Reason = "authentication"       // the credential was refused
	ReasonTokenInvalid   Reason = "token-invalid"        // the token was taken before, and no longer is: expired or revoked
	ReasonTokenTooWide   Reason = "token-too-wide"       // it came back good for more than was asked
	ReasonPermission     Reason = "permission"           // the credential may not do this
	ReasonNotFound       Reason = "not-found"            // no such repository, or no access to it
	ReasonMoved          Reason = "moved"                // the server points to another address
	ReasonReadOnly       Reason = "read-only"            // archived, or not writable
	ReasonOwnership      Reason = "ownership"            // git refuses a repository of another user
	ReasonRateLimit      Reason = "rate-limit"           // see RetryAfter
	ReasonServer         Reason = "server-error"         // 5xx, also after retries
	ReasonNetwork        Reason = "network"              // the server cannot be reached, or fell silent
	ReasonAnswer         Reason = "unreadable-answer"    // the server's answer is not what its protocol gives
	ReasonUnknown        Reason = "push-unknown"         // the connection was lost, and the remote cannot be asked
	ReasonPullRequest    Reason = "pull-request-refused" // the branch is there, the pull request was refused
	ReasonPullClosed     Reason = "pull-request-closed"  // somebody closed this kick's pull request
	ReasonCancelled      Reason = "cancelled"            // by the caller
	ReasonGit            Reason = "git"                  // git failed on this machine
)

// atTheDoor reports whether the server answered so before it looked at the
// work.
func (r Reason) atTheDoor() bool {
	switch r {
	case ReasonAuthentication, ReasonPermission, ReasonNotFound, ReasonMoved, ReasonReadOnly, ReasonRateLimit, ReasonOwnership:
		return true
	}
	return false
}

// Temporary reports whether the same may succeed later, or with a credential
// that works.
func (r Reason) Temporary() bool {
	switch r {
	case ReasonNetwork, ReasonAnswer, ReasonServer, ReasonRateLimit, ReasonUnknown, ReasonAuthentication, ReasonTokenInvalid, ReasonJournal:
		return true
	}
	return false
}

// PublishError is work that was not, or not wholly, published.
type PublishError struct {
	Reason  Reason
	Op      string // what was being done
	Message string // what the server or git said, escaped, one line
	// Details are the server's further lines: each violated rule, each secret.
	Details []string
	Remedy  string // what to do, one sentence
	// RetryAfter is how long the server wants to be left alone. 0: not said.
	RetryAfter time.Duration
	// Pushed tells that the branch is on the remote with this work all the
	// same.
	Pushed bool
	// Begun tells that the branch may have the work, or a part of it, and that
	// nobody knows yet.
	Begun bool
	Err   error // cause, may be nil
}

// Error ends with what to do.
func (e *PublishError) Error() string {
	s := e.Said()
	if todo := e.ToDo(); todo != "" {
		s = strings.TrimRight(s, ". ") + ". " + todo
	}
	return s
}

// Said is the error without what to do.
func (e *PublishError) Said() string {
	s := e.Op
	if said := e.said(); said != "" {
		s += ": " + said
	}
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(" (wait %s)", e.RetryAfter.Round(time.Second))
	}
	return s
}

// said is the Message and what the Details add to it, on one line.
func (e *PublishError) said() string {
	var parts []string
	for _, part := range append([]string{e.Message}, e.Details...) {
		part = strings.TrimPrefix(part, "error: ")
		part = strings.TrimRight(strings.TrimPrefix(part, "- "), ". ")
		// A server repeats its first line, and its headings for each secret.
		if part != "" && !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "; ")
}

// ToDo is what to do, one sentence.
func (e *PublishError) ToDo() string {
	if e.Remedy != "" {
		return e.Remedy
	}
	return remedies[e.Reason]
}

// Unwrap gives the cause.
func (e *PublishError) Unwrap() error { return e.Err }

// remedies are what to do, where the place of failure knows nothing better.
var remedies = map[Reason]string{
	ReasonJournal:        "Free space on the disk that holds kick's state, and run again.",
	ReasonRepublish:      "The base branch was rewritten since the kick began; run the kick again on the new base.",
	ReasonBranchExists:   "Look at that branch; delete it if it is not wanted, or run a new kick.",
	ReasonBranchMoved:    "Run the update again; it then starts from what the branch has. With --base, see first that nothing on the branch is lost.",
	ReasonUnsignable:     "Publish this work without signed mode; --squash helps where merges alone are in the way.",
	ReasonTreeDiffers:    "Publish without signed mode, or have the host's administrator look at how it signs commits of its API.",
	ReasonRuleset:        "Exclude the branches kick/** from this ruleset, or let kick's App bypass it, in the repository's settings.",
	ReasonProtected:      "Exclude the branches kick/** from this protection rule in the repository's settings.",
	ReasonPushProtection: "Take the secret out of every commit that holds it; rotate it if it is real.",
	ReasonWorkflows:      "Leave workflow files alone, or grant the App workflows:write in its settings and accept that for the installation.",
	ReasonHook:           "Ask whoever runs the remote what its hook wants.",
	ReasonRejected:       "Read the server's answer; the work is kept.",
	ReasonAuthentication: "Check the GitHub App's id and key, or the token.",
	ReasonTokenInvalid:   "Run again; the token was revoked or ran out while it was used.",
	ReasonTokenTooWide:   "Do not use this server; an installation token must be limited to what was asked.",
	ReasonPermission:     "Grant the App contents:write and pull_requests:write, and accept that for the installation.",
	ReasonNotFound:       "Check the repository's name, and that the App is installed on it or the token reaches it.",
	ReasonMoved:          "Give the repository's new address; kick follows no redirect.",
	ReasonReadOnly:       "Make the repository writable.",
	ReasonOwnership:      "Run kick as the user who owns the repository.",
	ReasonRateLimit:      "Run again after that time.",
	ReasonServer:         "Run again later; the work is kept.",
	ReasonNetwork:        "Check the address and the network, and run again.",
	ReasonAnswer:         "Check that the address is that of a git server or of its API, and what proxy is on the way.",
	ReasonUnknown:        "Look whether the branch is on the remote before running again.",
	ReasonPullRequest:    "The branch is pushed; open the pull request by hand or correct what the server names.",
	ReasonPullClosed:     "Open it again if it was closed by mistake; kick does not make a second one.",
	ReasonCancelled:      "Run again; the work is kept.",
	ReasonGit:            "Check the state directory's disk and the installed git.",
}

func publishError(r Reason, op, format string, args ...any) *PublishError {
	return &PublishError{Reason: r, Op: op, Message: escape.String(fmt.Sprintf(format, args...))}
}

// asPublishError makes any error one.
func asPublishError(op string, r Reason, err error) *PublishError {
	var p *PublishError
	if errors.As(err, &p) {
		return p
	}
	return &PublishError{Reason: r, Op: op, Message: escape.String(err.Error()), Err: err}
}
