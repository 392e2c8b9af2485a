package workspace

import (
	"errors"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/repoaddr"
)

// parseRepo reads Source.Repo. No error of it repeats what may be a credential.
func parseRepo(repo string) (repoaddr.Address, error) {
	a, err := repoaddr.Parse(repo)
	var fault *repoaddr.Error
	if errors.As(err, &fault) {
		err = &Error{Kind: ErrSource, Op: fault.What, Remedy: fault.Remedy}
	}
	return a, err
}

// scopeOf is the origin that a credential for the repository is bound to.
// Empty: none can be used.
func scopeOf(a repoaddr.Address) string {
	if !strings.HasPrefix(a.Protocol, "http") {
		return ""
	}
	return a.Protocol + "://" + a.Host
}

// checkBranch holds a name to git's rules for branch names.
func checkBranch(name string) error {
	if fault := gitcmd.BranchNameFault(name); fault != "" {
		return unusable("give the branch's name as git branch shows it", "base branch %.200q %s", name, fault)
	}
	return nil
}
