package manager

import (
	"context"
	"fmt"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
)

// form is in which form the work is published: as the policy says for this
// repository and agent, and as the request says beyond that.
func (r *run) form() policy.Publish {
	f := r.policy().Publish
	on := true
	if r.req.Squash {
		f.Squash = &on
	}
	if r.req.Signed {
		f.Signed = &on
	}
	return f
}

// squash inspects the work as it came, makes one commit of it, and inspects
// that: its verdict counts.
func (r *run) squash(ctx context.Context, q *pushbroker.Quarantine, work pushbroker.Work) (pushbroker.Verdict, error) {
	first, err := r.judgeWork(ctx, q, work)
	if err != nil {
		return first, err
	}
	d := r.description(first, work.Branch)
	d.TitlePrefix = ""
	title, _ := d.Text()
	commits := len(q.Commits)
	if err := q.Squash(ctx, work, first, title); err != nil {
		return first, err
	}
	r.out.Squashed = commits
	if err := r.k.Journal.Note("squashed", map[string]string{"commit": q.Tip, "commits": fmt.Sprint(commits)}); err != nil {
		return first, err
	}
	v, err := r.inspect(ctx, q, work)
	return v.WithLeftBehind(first), err
}

// formNotes tells the reviewer how the commits came to be.
func (r *run) formNotes() []string {
	if r.out.Squashed == 0 {
		return nil
	}
	return []string{fmt.Sprintf("kick made one commit of the %s that the agent left; what only those held is not in it.", count(r.out.Squashed, "commit"))}
}
