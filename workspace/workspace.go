// Package workspace gets the base branch of a repository without leaving a
// credential anywhere, makes the directory that a sandbox works in, keeps what
// a sandbox hands back, and gets work out of a kick that died.
//
// Cache.Fetch keeps one bare mirror per repository and branch and pins it for
// the caller; Prepare writes a workspace that borrows the mirror's objects,
// without running git; DirSink stores what comes back; Salvage collects the
// work of a kick that did not end in order, and Remove deletes what is left.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

// Source names a repository and a branch to start from.
type Source struct {
	// Repo is a git URL (https, http to a loopback host, ssh, user@host:path,
	// file) or an absolute path. It holds no credential: one in the URL is
	// refused.
	Repo string
	// Base is the branch's name, without refs/heads/. Empty: the branch that
	// the remote's HEAD names; never guessed.
	Base string
	// Credential, if set, is asked once per Fetch for a user name and a
	// password when the remote is HTTP. They stay in memory and reach git over
	// a descriptor.
	Credential func(ctx context.Context) (user, password string, err error)
}

// Identity is who commits in a workspace.
type Identity struct {
	Name, Email string
}

// Task is what a workspace is prepared for.
type Task struct {
	ID       string
	Agent    string
	Prompt   string // written to .hive/kick-prompt.txt; at most MaxPrompt bytes
	Identity Identity
	// Holder is an absolute path: the mirror generation stays as long as it
	// exists, since kept bundles build on the base. Default: the workspace.
	Holder string
}

// MaxPrompt is the longest prompt: 1 MiB, several times what the context of
// any model holds.
const MaxPrompt = 1 << 20

// PromptPath is where the agent finds its task, relative to the workspace.
const PromptPath = ".hive/kick-prompt.txt"

// Base is one commit of one branch in a mirror generation, pinned until
// Release is called or the process ends.
type Base struct {
	Repo   string // as in Source
	Branch string
	OID    string // full lower-case hex
	// Mirror is the absolute path of the bare mirror generation: this branch's
	// history and nothing else. It may come to hold later commits of the
	// branch than OID while it is pinned, but never loses any.
	Mirror string
	// Notes says, in sentences for people, what of the repository a workspace
	// will not have: the content of submodules and of LFS files.
	Notes []string

	borrowers string // directory that records the workspaces that borrow from Mirror
	release   func() error
}

// Objects is the object directory that a workspace of this base borrows from,
// for sandbox.Workspace.Objects.
func (b *Base) Objects() string { return filepath.Join(b.Mirror, "objects") }

// Release lets the generation be removed once it is superseded and no prepared
// workspace that borrows from it exists any more.
func (b *Base) Release() error {
	if b.release == nil {
		return nil
	}
	r := b.release
	b.release = nil
	return r()
}

// Kinds of failure, for errors.Is.
var (
	// ErrSource: the repository, the branch or the task that was asked for
	// cannot be used; asking again will not help.
	ErrSource = errors.New("unusable source")
	// ErrNoBranch is an ErrSource: the repository has no branch of that name.
	ErrNoBranch = fmt.Errorf("%w: no such branch", ErrSource)
	// ErrRemote: the remote could not be reached, or refused.
	ErrRemote = errors.New("remote failed")
	// ErrHost: this host could not store or run what was needed.
	ErrHost = errors.New("host failed")
)

// Error is a failure of this package with a remedy.
type Error struct {
	Kind   error  // one of those above
	Op     string // what was being done and what was wrong
	Err    error  // cause, may be nil
	Remedy string // what to do, without a full stop
}

func (e *Error) Error() string {
	s := e.Op
	if e.Err != nil {
		s = fmt.Sprintf("%s: %v", s, e.Err)
	}
	if e.Remedy != "" {
		s += ": " + e.Remedy
	}
	return s
}

// Unwrap makes errors.Is see both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

func unusable(remedy, format string, args ...any) error {
	return &Error{Kind: ErrSource, Op: fmt.Sprintf(format, args...), Remedy: remedy}
}
