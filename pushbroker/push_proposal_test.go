package pushbroker

import (
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
)

// TestFinish opens the pull request of a branch that another process pushed:
// once, with the text that was recorded before the push.
func TestFinish(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.req.Verdict.Pass, s.req.Verdict.Review = false, true
	s.req.Form.Labels, s.req.Form.Reviewers = []string{"agent"}, []string{"olga"}
	var recorded string
	journal := s.req.Journal
	s.req.Journal = func(event string, f map[string]string) error {
		if event == "proposal" {
			recorded = f["proposal"]
			s.silent("the record", recorded)
		}
		return journal(event, f)
	}
	s.hub.AddFault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Times: 3, Status: 503})
	if _, err := Publish(t.Context(), s.req); reasonOf(err) != ReasonServer {
		t.Fatal(err)
	}
	proposal, err := ParseProposal(recorded)
	if err != nil {
		t.Fatal(err)
	}
	for _, existing := range []bool{false, true} {
		pub, err := Finish(t.Context(), s.req.Target, proposal, proposal.Commit, journal)
		if err != nil || pub.Number != 1 || pub.Existing != existing || pub.Commit != s.req.Quarantine.Tip || !pub.Draft {
			t.Fatalf("publication %+v, %v", pub, err)
		}
	}
	pulls := s.repo.Pulls()
	if len(pulls) != 1 || s.hub.Pushes() != 1 || s.hub.LiveTokens() != 0 {
		t.Fatalf("%d pull requests, %d pushes, %d live tokens", len(pulls), s.hub.Pushes(), s.hub.LiveTokens())
	}
	p := pulls[0]
	if p.Title != proposal.Title || p.Body != proposal.Body || !strings.Contains(p.Body, "[!IMPORTANT]") || !p.Draft || !slices.Equal(p.Labels, []string{ReviewLabel, "agent"}) || !slices.Contains(p.Reviewers, "olga") {
		t.Errorf("pull request %+v", p)
	}
	s.repo.ClosePull(1)
	if _, err := Finish(t.Context(), s.req.Target, proposal, proposal.Commit, journal); reasonOf(err) != ReasonPullClosed || len(s.repo.Pulls()) != 1 {
		t.Errorf("after it was closed: %v", err)
	}
	plain, err := NewTarget(s.bare(), Access{})
	s.must(err)
	if _, err := Finish(t.Context(), plain, proposal, proposal.Commit, journal); reasonOf(err) != ReasonAuthentication {
		t.Errorf("without a credential: %v", err)
	}
	if _, err := ParseProposal("{"); err == nil {
		t.Error("a broken record was taken")
	}
}
