package pushbroker

import (
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
)

// next publishes the stage's work and ingests further work on top of it.
func (s *stage) next(script string) {
	s.t.Helper()
	if _, err := Publish(s.t.Context(), s.req); err != nil {
		s.t.Fatal(err)
	}
	first := s.req.Quarantine
	s.sh(s.mirror, "git fetch -q ../clone main:main")
	s.base = first.Tip
	q := s.quarantine(script)
	s.req.Quarantine, s.req.Verdict, s.req.RulesAt = q, passing(q), first.BaseOID
	s.req.Refs = Refs{Branch: kickBranch, Base: kickBranch, Old: first.Tip, Into: "main"}
}

const moreWork = "echo more > more.txt; echo '* @mallory' > .github/CODEOWNERS; git add -A; git commit -qm more"

func TestUpdateFastForward(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.next(moreWork)
	s.review()
	pub, err := Publish(t.Context(), s.req)
	if err != nil {
		t.Fatal(err)
	}
	pulls := s.repo.Pulls()
	if pub.Updated != FastForward || !pub.Pushed || !pub.Existing || pub.Number != 1 || len(pulls) != 1 || s.repo.Ref("refs/heads/"+kickBranch) != s.req.Quarantine.Tip {
		t.Errorf("%+v, pull requests %+v", pub, pulls)
	}
	p := pulls[0]
	if len(p.Comments) != 1 || !strings.HasPrefix(p.Comments[0], "**Updated** (fast-forward): `"+kickBranch+"` is now at `"+s.req.Quarantine.Tip+"`") || !strings.Contains(p.Comments[0], "A person must look") {
		t.Errorf("comments %q", p.Comments)
	}
	// The reasons are new, and so is whom they ask: the base's owners, not those
	// of the branch.
	if !slices.Contains(p.Labels, ReviewLabel) || !slices.Equal(p.Reviewers, []string{"owner"}) {
		t.Errorf("labels %q, reviewers %q", p.Labels, p.Reviewers)
	}
	again, err := Publish(t.Context(), s.req)
	if err != nil || again.Pushed || s.hub.Pushes() != 2 || len(s.repo.Pulls()[0].Comments) != 1 {
		t.Errorf("a repetition: %+v, %v, %d pushes, comments %q", again, err, s.hub.Pushes(), s.repo.Pulls()[0].Comments)
	}
}

func TestUpdateRewritten(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	base, first := s.base, s.req.Quarantine.Tip
	if _, err := Publish(t.Context(), s.req); err != nil {
		t.Fatal(err)
	}
	q := s.quarantine("git reset -q --hard " + base + "; echo other > other.txt; git add -A; git commit -qm other")
	s.req.Quarantine, s.req.Verdict = q, passing(q)
	s.req.Refs = Refs{Branch: kickBranch, Base: "main", Old: first}
	pub, err := Publish(t.Context(), s.req)
	if err != nil || pub.Updated != Rewritten || pub.Number != 1 || s.repo.Ref("refs/heads/"+kickBranch) != q.Tip {
		t.Errorf("%+v, %v", pub, err)
	}
}

func TestUpdateLeavesAMovedBranchAlone(t *testing.T) {
	t.Parallel()
	hand := "git update-ref refs/heads/" + kickBranch + " $(git -c user.name=x -c user.email=x commit-tree -p " + kickBranch + " -m hand " + kickBranch + "^{tree})"
	for name, tc := range map[string]struct {
		move string
		at   string // journal event
		want string
	}{
		"before the push":   {hand, "mint", "no longer at"},
		"during the push":   {hand, "push", "no longer at"},
		"deleted":           {"git update-ref -d refs/heads/" + kickBranch, "mint", "the branch is gone"},
		"deleted at a push": {"git update-ref -d refs/heads/" + kickBranch, "push", "the branch is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
			s.next(moreWork)
			moved := ""
			s.onEvent(tc.at, func() {
				if moved == "" {
					s.sh(s.repo.Dir, tc.move)
					moved = "at " + s.repo.Ref("refs/heads/"+kickBranch)
				}
			})
			_, err := Publish(t.Context(), s.req)
			if reasonOf(err) != ReasonBranchMoved || !strings.Contains(err.Error(), tc.want) || "at "+s.repo.Ref("refs/heads/"+kickBranch) != moved || s.hub.LiveTokens() != 0 {
				t.Errorf("%v; the branch %s, moved %s", err, s.repo.Ref("refs/heads/"+kickBranch), moved)
			}
		})
	}
}

// TestUpdateRace moves the branch between git's look at it and its push.
func TestUpdateRace(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.next(moreWork)
	s.sh(s.repo.Dir, `cat > hooks/moved <<'END'
#!/bin/sh
env -u GIT_QUARANTINE_PATH git update-ref refs/heads/`+kickBranch+` refs/heads/main
END
chmod +x hooks/moved; printf '#!/bin/sh\nsh hooks/moved\n' > hooks/pre-receive`)
	if _, err := Publish(t.Context(), s.req); reasonOf(err) != ReasonBranchMoved || s.repo.Ref("refs/heads/"+kickBranch) != s.repo.Ref("refs/heads/main") {
		t.Errorf("got %v", err)
	}
}

func TestUpdateWithoutItsFirstBase(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.next(moreWork)
	s.review()
	s.req.RulesAt = strings.Repeat("1", 40)
	pub, err := Publish(t.Context(), s.req)
	if err != nil || !strings.Contains(strings.Join(pub.Warnings, " "), "code owners and its template are not known") || len(s.repo.Pulls()[0].Reviewers) != 0 {
		t.Errorf("%+v, %v", pub, err)
	}
}
