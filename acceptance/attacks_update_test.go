package acceptance

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/pushbroker"
)

// TestUpdateAttacks turn on an update of a branch that is there: by its agent,
// and by what others do to the branch while it runs. Whatever kick did not put
// there stays.
func TestUpdateAttacks(t *testing.T) {
	t.Parallel()
	const (
		commit   = "git -c user.name=x -c user.email=x commit-tree"
		byHand   = "git update-ref REF $(" + commit + " -p REF -m hand REF^{tree})"
		delete   = "git update-ref -d REF"
		toBase   = "git update-ref REF main"
		workflow = `mkdir -p .github/workflows; echo 'on: push' >.github/workflows/x.yml; git add -A; git commit -qm ci`
		atPush   = "service=git-receive-pack" // kick's look at the remote before its push is a fetch's
	)
	for name, tc := range map[string]struct {
		first  string // what the first kick's agent does; default: one file
		flags  []string
		script string
		match  string // request before which the branch is changed; empty: before the update begins
		change string
		want   manager.Code
		reason pushbroker.Reason
		rule   string
		says   string
	}{
		// The lease is lost.
		"somebody pushed meanwhile":                {match: atPush, change: byHand, script: "work", want: manager.PushFailed, reason: pushbroker.ReasonBranchMoved, says: "no longer at"},
		"the branch was deleted meanwhile":         {match: atPush, change: delete, script: "work", want: manager.PushFailed, reason: pushbroker.ReasonBranchMoved, says: "the branch is gone"},
		"the branch was reset meanwhile":           {match: atPush, change: toBase, script: "work", want: manager.PushFailed, reason: pushbroker.ReasonBranchMoved, says: "no longer at"},
		"somebody pushed while it is written anew": {flags: []string{"--base", "main"}, match: atPush, change: byHand, script: "work", want: manager.PushFailed, reason: pushbroker.ReasonBranchMoved, says: "no longer at"},
		"signed, somebody pushed meanwhile":        {flags: []string{"--signed"}, match: "POST /graphql", change: byHand, script: "work", want: manager.PushFailed, reason: pushbroker.ReasonBranchMoved, says: "did not"},
		"signed, the branch was deleted meanwhile": {flags: []string{"--signed"}, match: "POST /graphql", change: delete, script: "work", want: manager.PushFailed, reason: pushbroker.ReasonNotFound, says: "No commit exists"},
		// It is lost before anything runs.
		"somebody pushed before it is written anew": {flags: []string{"--base", "main"}, change: byHand, script: "work", want: manager.Usage, says: "run again without --base"},
		"the branch was deleted before":             {change: delete, script: "work", want: manager.Usage, says: "is gone from the remote: run a new kick"},
		// The agent of the update.
		"resets the branch to its base":        {script: `git reset -q --hard HEAD^; work`, want: manager.Refused, rule: "history-rewritten"},
		"amends what was reviewed":             {script: `echo other >f; git commit -q -a --amend -m 'add f'`, want: manager.Refused, rule: "history-rewritten"},
		"brings a workflow":                    {script: workflow, want: manager.Refused, rule: "protected-ci"},
		"brings a workflow by a new beginning": {flags: []string{"--base", "main"}, script: workflow, want: manager.Refused, rule: "protected-ci"},
		"cannot be signed":                     {flags: []string{"--signed"}, script: `ln -s README.md l; git add l; git commit -qm l`, want: manager.PushFailed, reason: pushbroker.ReasonUnsignable, says: "symbolic link"},
		"signed and written anew":              {flags: []string{"--signed", "--base", "main"}, script: "work", want: manager.PushFailed, reason: pushbroker.ReasonUnsignable, says: "written anew"},
		"moves HEAD to the remote's main":      {script: `git checkout -q -B main origin/main 2>/dev/null || git checkout -q -B main HEAD^; work`, want: manager.Refused, rule: "history-rewritten"},
		"works on another agent's branch name": {script: `git checkout -q -b kick/other/k0000000000000; work`, want: manager.Published},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, githubtest.Options{})
			state := filepath.Join(t.TempDir(), "s")
			first, output := runKick(t, state, append(h.args, "--", "sh", "-ec", "echo hi >f; git add f; git commit -qm 'add f'")...)
			if first.Outcome != manager.Published {
				t.Fatalf("%s: %s\n%s", first.Outcome, first.Error, output)
			}
			ref := "refs/heads/" + first.Branch
			change := func() { run(t, h.repo.Dir, "sh", "-ec", strings.ReplaceAll(tc.change, "REF", ref)) }
			switch {
			case tc.match != "":
				h.before(tc.match, change)
			case tc.change != "":
				change()
			}
			other := h.repo.Ref(ref)
			args := append([]string{"--update", first.ID}, tc.flags...)
			args = append(append(args, h.args[2:]...), "--", "sh", "-ec", prelude+tc.script) // without --repo
			o, output := runKick(t, state, args...)
			if o.Outcome != tc.want || o.PublishReason != tc.reason || !strings.Contains(o.Error, tc.says) {
				t.Fatalf("outcome %s, reason %q, want %s, %q, %q: %s\n%s", o.Outcome, o.PublishReason, tc.want, tc.reason, tc.says, o.Error, output)
			}
			if tc.rule != "" && (len(o.Findings) == 0 || o.Findings[0].Rule != tc.rule) {
				t.Errorf("want %s, findings %+v", tc.rule, o.Findings)
			}
			if tc.match != "" {
				other = h.repo.Ref(ref) // as the change left it, which is checked below
				if other == first.Commit {
					t.Fatal("the branch was not changed")
				}
			}
			switch {
			case tc.want == manager.Published:
				if got := h.repo.Ref(ref); got != o.Commit || o.Branch != first.Branch {
					t.Errorf("%s is at %s, %+v", ref, got, o)
				}
			case tc.match == "" && h.repo.Ref(ref) != other:
				t.Errorf("the branch is at %q, and was at %q", h.repo.Ref(ref), other)
			case tc.match != "" && strings.Contains(run(t, h.repo.Dir, "git", "log", "--all", "--format=%s"), "work"):
				t.Error("the work is on the remote")
			}
			if got := run(t, h.repo.Dir, "git", "for-each-ref", "--format=%(refname)", "refs/heads"); strings.Count(got, "\n") > 2 {
				t.Errorf("the remote has the branches\n%s", got)
			}
			if len(h.repo.Pulls()) != 1 || h.LiveTokens() != 0 {
				t.Errorf("%d pull requests, %d live tokens", len(h.repo.Pulls()), h.LiveTokens())
			}
			if tc.want == manager.Refused || tc.want == manager.PushFailed {
				if o.KeptAt == "" {
					t.Error("the work is not kept")
				}
			}
		})
	}
}

// TestUpdateOfOthers: an update goes by this state's own record, and by nothing
// that a caller or an agent can say.
func TestUpdateOfOthers(t *testing.T) {
	t.Parallel()
	h := newHub(t, githubtest.Options{})
	state := filepath.Join(t.TempDir(), "s")
	first, output := runKick(t, state, append(h.args, "--agent", "first", "--", "sh", "-ec", prelude+"work")...)
	if first.Outcome != manager.Published {
		t.Fatalf("%s: %s\n%s", first.Outcome, first.Error, output)
	}
	h.repo.ClosePull(1)
	for name, tc := range map[string]struct {
		state string
		args  []string
		says  string
	}{
		"another agent's":          {state, []string{"--update", first.ID, "--agent", "second"}, "its branch has that name"},
		"another state's":          {filepath.Join(t.TempDir(), "s"), []string{"--update", first.ID}, first.ID},
		"a branch in place of one": {state, []string{"--update", "main"}, "main"},
		"a path in place of one":   {state, []string{"--update", "../" + first.ID}, first.ID},
		"closed by somebody":       {state, []string{"--update", first.ID}, "is closed: run a new kick"},
	} {
		o, output := runKick(t, tc.state, append(append(tc.args, h.args[2:]...), "--", "sh", "-ec", prelude+"work")...)
		if o.Outcome != manager.Usage || !strings.Contains(o.Error, tc.says) {
			t.Errorf("%s: %s: %s\n%s", name, o.Outcome, o.Error, output)
		}
	}
	if h.repo.Ref("refs/heads/"+first.Branch) != first.Commit || h.Pushes() != 1 || len(h.repo.Pulls()) != 1 {
		t.Errorf("%d pushes, %d pull requests, branch at %s", h.Pushes(), len(h.repo.Pulls()), h.repo.Ref("refs/heads/"+first.Branch))
	}
}
