// Package workspace gets the base branch without leaving a credential
// anywhere, makes the directory that a sandbox works in, and gets work back
// out of a kick that died.
package workspace

import (
	"context"

	"github.com/kickhq/kick/sandbox"
)

// Source names a repository and a branch to start from.
type Source struct {
	// Repo is a git URL (https, http to a loopback host, ssh, file) or an
	// absolute path. It holds no credential: one in the URL is refused.
	Repo string
	// Base is the branch's name, without refs/heads/. Empty: the branch that
	// the remote's HEAD names; never guessed.
	Base string
	// Credential, if set, is asked for a user name and a password when the
	// remote is HTTP. They stay in memory and reach git over a descriptor.
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
	Prompt   string // written to .hive/kick-prompt.txt; at most 1 MiB
	Identity Identity
}

// Base is one commit of one branch in a mirror generation, pinned until
// Release is called.
type Base struct {
	Repo   string // as in Source
	Branch string
	OID    string // full lower-case hex
	Mirror string // absolute path of the bare mirror generation: this branch's history and nothing else

	release func() error
}

// Release lets the generation be removed once it is superseded.
func (b *Base) Release() error {
	if b.release == nil {
		return nil
	}
	r := b.release
	b.release = nil
	return r()
}

// Cache is a directory of mirrors, shared by any number of processes.
type Cache struct {
	Dir string
}

// SalvageRequest names the remains of a kick.
type SalvageRequest struct {
	ID      string
	Agent   string
	Dir     string // the live workspace directory
	Mirror  string // mirror generation that it borrows from
	BaseOID string
	Sink    sandbox.Sink
}
