// Package manager runs kicks: it takes one agent and one task along the whole
// line, from a prepared workspace through a sandbox and the push broker to a
// branch or a pull request, and keeps a record that survives its own death.
package manager

import (
	"context"
	"io"
	"time"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/workspace"
)

// Manager runs kicks on one state directory.
type Manager struct {
	State *State
	// Launchers by runtime name, e.g. "embedded".
	Launchers map[string]sandbox.Launcher
	// Target says how a dead kick's repository is reached, for Recover and GC.
	// Nil: as a plain git remote.
	Target func(repo string) (pushbroker.Target, error)
	// Version of kick, for records and pull requests.
	Version string
}

// PublishMode says how far a kick goes.
type PublishMode string

const (
	// PublishPR pushes the branch and opens a pull request.
	PublishPR PublishMode = "pr"
	// PublishBranch pushes the branch.
	PublishBranch PublishMode = "branch"
	// PublishNone stops after the verdict.
	PublishNone PublishMode = "none"
)

// Request is one kick: one agent on one task.
type Request struct {
	Agent   string // name; letters, digits, "-", "_", "."
	Runtime string // key of Manager.Launchers
	// Source is where the work starts. Source.Repo may differ from the target,
	// which is where it goes.
	Source workspace.Source
	Target pushbroker.Target
	// AfterFetch, if set, ends the authority that Source.Credential gave.
	AfterFetch func(ctx context.Context) error
	// LocalCheckout tells that the target is the user's own checkout: the user
	// is the reviewer, so findings that ask for review do not refuse the push.
	LocalCheckout bool
	Publish       PublishMode
	// AcceptReview publishes work with review findings where there is no
	// reviewer.
	AcceptReview bool
	// Squash and Signed ask for one commit, and for commits that the forge
	// makes, also where the policy does not.
	Squash, Signed bool
	// Update, if set, is the earlier kick's branch to which the work goes. The
	// Source's base is that branch, or Update.Into for a rewrite.
	Update *Update

	Prompt  string
	Command []string
	Env     map[string]string // added to the base environment; see environment
	Home    map[string]string // files of the agent's home; see sandbox.LaunchSpec

	Network      sandbox.NetworkMode
	Limits       sandbox.Limits
	ProgramDirs  []string
	Image        string
	Podman       sandbox.PodmanChoice
	OpenShell    OpenShell
	Kubernetes   sandbox.KubernetesChoice
	KubeVirt     sandbox.KubeVirtChoice
	AcceptWeaker []string // isolation properties that may be missing and holes that git may have, by name

	// WorkspaceDir is where the live workspace is made, in a directory of the
	// kick's id. Empty: in the state directory.
	WorkspaceDir string

	Identity workspace.Identity
	Policy   *policy.Policy
	// Held are the values of the credentials that this process holds, by name.
	// They must not leave through the agent's work.
	Held map[string]string

	// Notes are shown with the outcome.
	Notes []string

	// Output gets the agent's output, escaped for a terminal. May be nil.
	Output io.Writer
	// Progress is told of every step when it is done. May be nil.
	Progress func(Step)
}

// Step is a finished part of a kick.
type Step struct {
	Name    string        // "prepare", "sandbox", "agent", "collect", "ingest", "inspect", "publish"
	Detail  string        // one line for people, already escaped
	At      time.Duration // since the kick began
	Took    time.Duration
	Failed  bool
	Waiting bool // it has not ended: Detail says what it waits for, and Took is 0
}

// DefaultIdentity is who commits in a workspace when nothing else was
// configured. The address is in a domain that can never exist (RFC 2606).
func DefaultIdentity(agent string) workspace.Identity {
	return workspace.Identity{Name: "kick agent " + agent, Email: agent + "@agents.kick.invalid"}
}

// BranchName returns the branch that a kick's work goes to.
func BranchName(agent, id string) string { return "kick/" + agent + "/" + id }
