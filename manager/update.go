package manager

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/pushbroker"
)

// Update names the branch of an earlier kick, to which further work goes.
type Update struct {
	ID     string // of the kick for which the branch was made
	Agent  string
	Repo   string // as Outcome.Repo
	Branch string
	Into   string // branch that the pull request asks to go into, and on which the first kick began
	Base   string // commit of Into on which the first kick began
	Commit string // what kick last published there
	// Rewrite replaces what the branch has, if that is still Commit. Otherwise
	// the work is added to what the branch has.
	Rewrite bool
}

// Updated is what an Outcome says of an update.
type Updated struct {
	ID   string             `json:"id"`   // of the kick for which the branch was made
	Into string             `json:"into"` // branch that the pull request asks to go into
	Base string             `json:"base"` // commit on which the first kick began
	Old  string             `json:"old"`  // what the branch had
	How  pushbroker.Updated `json:"how,omitempty"`
}

// Update finds the branch that was made for a kick, by this state's own record:
// no other branch is ever updated. name is as for Find, and may be that of an
// update of the branch.
func (s *State) Update(name string) (Update, error) {
	id, err := s.Find(name)
	if err != nil {
		return Update{}, err
	}
	o, err := s.Outcome(id)
	if err != nil {
		return Update{}, fmt.Errorf("kick %s has no outcome yet: wait for its end, or run `kick gc`", id)
	}
	if o.Outcome != Published || o.Branch == "" {
		return Update{}, fmt.Errorf("kick %s is %s and has no branch to update: run a new kick", id, o.Outcome)
	}
	u := Update{ID: id, Agent: o.Agent, Repo: o.Repo, Branch: o.Branch, Into: o.Base, Base: o.BaseCommit, Commit: o.Commit}
	if o.Updated != nil {
		u.ID, u.Into, u.Base = o.Updated.ID, o.Updated.Into, o.Updated.Base
	}
	if tail := u.Branch[strings.LastIndexByte(u.Branch, '/')+1:]; !kickid.Valid(tail) || u.Branch != BranchName(u.Agent, u.ID) {
		return Update{}, fmt.Errorf("the branch %s was not made for kick %s: kick updates no other", escape.String(u.Branch), u.ID)
	}
	return u, s.latest(&u)
}

// latest finds what kick last published on the branch.
func (s *State) latest(u *Update) error {
	ids, err := s.Kicks()
	if err != nil {
		return err
	}
	for _, id := range ids { // oldest first
		if o, err := s.Outcome(id); err == nil && o.Outcome == Published && o.Repo == u.Repo && o.Branch == u.Branch && o.Commit != "" {
			u.Commit = o.Commit
		}
	}
	return nil
}

// branch is where the work goes.
func (r *run) branch() string {
	if r.req.Update != nil {
		return r.req.Update.Branch
	}
	return BranchName(r.req.Agent, r.k.ID)
}

// refs are the branches of the push. It is for after prepare.
func (r *run) refs() pushbroker.Refs {
	refs := pushbroker.Refs{Branch: r.branch(), Base: r.out.Base}
	if u := r.req.Update; u != nil {
		refs.Old, refs.Into = r.base.OID, u.Into
		if u.Rewrite {
			refs.Old = u.Commit
		}
	}
	return refs
}

// into is the branch that the work shall go into in the end.
func (r *run) into() string {
	if r.req.Update != nil {
		return r.req.Update.Into
	}
	return r.out.Base
}

// rulesAt is the commit whose CODEOWNERS and templates count: never one that an
// agent made.
func (r *run) rulesAt() string {
	if u := r.req.Update; u != nil && !u.Rewrite {
		return u.Base
	}
	return ""
}

// checkUpdate looks, before anything runs, whether there is still something to
// update.
func (r *run) checkUpdate(ctx context.Context) error {
	u := r.req.Update
	if u == nil {
		return nil
	}
	r.out.Updated = &Updated{ID: u.ID, Into: u.Into, Base: u.Base, Old: r.refs().Old}
	if r.req.Publish == PublishNone {
		return nil
	}
	found, warnings, err := pushbroker.Lookup(ctx, r.req.Target, u.Branch, r.k.Journal.Intend)
	r.out.Notes = append(r.out.Notes, warnings...)
	switch {
	case err != nil:
		return err
	case found.State == "merged" || found.State == "closed":
		return fmt.Errorf("%w: pull request #%d of %s is %s: run a new kick", errNoUpdate, found.Number, u.Branch, found.State)
	case found.Commit != r.out.Updated.Old:
		return fmt.Errorf("%w: %s is at %s, no longer at %s, which kick published there: run again without --base to build on what it has", errNoUpdate, u.Branch, orNothing(found.Commit), r.out.Updated.Old)
	}
	return nil
}

func orNothing(oid string) string {
	if oid == "" {
		return "no commit"
	}
	return oid
}

// errNoUpdate is a branch that is not to be updated any more.
var errNoUpdate = errors.New("nothing to update")

// updateNote tells how the branch changed.
func (r *run) updateNote(pub pushbroker.Publication) {
	u := r.out.Updated
	if u == nil {
		return
	}
	u.How = pub.Updated
	how := "work was added to what it had"
	if u.How == pushbroker.Rewritten {
		how = "what it had was replaced"
	}
	r.out.Notes = append(r.out.Notes, fmt.Sprintf("updated the branch of kick %s (%s): %s, which was %.12s", u.ID, u.How, how, u.Old))
}
