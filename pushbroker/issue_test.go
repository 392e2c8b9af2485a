package pushbroker

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

func TestIssueFallback(t *testing.T) {
	t.Parallel()
	all := githubtest.Permissions{"metadata": "read", "contents": "write", "issues": "write"}
	for name, tc := range map[string]struct {
		repo   githubtest.RepoOptions
		asked  bool
		fault  githubtest.Fault
		reason Reason // empty: an issue is there
	}{
		"no pull requests here":  {githubtest.RepoOptions{NoPulls: true}, true, githubtest.Fault{}, ""},
		"no permission":          {githubtest.RepoOptions{Granted: all}, true, githubtest.Fault{}, ""},
		"policy does not say so": {githubtest.RepoOptions{NoPulls: true}, false, githubtest.Fault{}, ReasonNotFound},
		"another failure":        {githubtest.RepoOptions{}, true, githubtest.Fault{Match: "POST /repos/acme/api/pulls", Status: 422, Body: `{"message":"Validation Failed"}`}, ReasonPullRequest},
		"not even an issue":      {githubtest.RepoOptions{NoPulls: true}, true, githubtest.Fault{Match: "POST /repos/acme/api/issues", Status: 410, Body: `{"message":"Issues are disabled for this repo"}`}, ReasonNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, githubtest.Options{}, tc.repo, oneFile)
			s.req.Form.IssueFallback, s.req.Form.Labels = &tc.asked, []string{"agent"}
			if tc.fault.Match != "" {
				s.hub.AddFault(tc.fault)
			}
			pub, err := Publish(t.Context(), s.req)
			if reasonOf(err) != tc.reason || s.hub.LiveTokens() != 0 {
				t.Fatalf("got %v, want %q", err, tc.reason)
			}
			issues := s.repo.Issues()
			if tc.reason != "" {
				if len(issues) != 0 {
					t.Errorf("issues %+v", issues)
				}
				return
			}
			if len(issues) != 1 || pub.Issue == "" || pub.URL != "" || issues[0].Title != "add a file" || !slices.Equal(issues[0].Labels, []string{"agent"}) || !strings.Contains(issues[0].Body, kickBranch) {
				t.Errorf("%+v, issues %+v", pub, issues)
			}
			if again, err := Publish(t.Context(), s.req); err != nil || again.Issue != pub.Issue || len(s.repo.Issues()) != 1 {
				t.Errorf("a repetition: %+v, %v", again, err)
			}
		})
	}
}

// TestTextOfOthers: a stranger who knows the branch's commit, as everybody does,
// cannot have their own issue or comment pass for kick's.
func TestTextOfOthers(t *testing.T) {
	t.Parallel()
	on := true
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{NoPulls: true}, oneFile)
	s.req.Form.IssueFallback = &on
	stranger := githubapp.UserToken(s.hub.UserToken("mallory", githubtest.Permissions{"issues": "write"}, s.repo))
	client, err := githubapp.NewClient(s.hub.API(), stranger)
	s.must(err)
	title, body := "add a file", "As pushed in "+s.req.Quarantine.Tip
	_, _, err = client.Issues.Create(t.Context(), "acme", "api", &github.IssueRequest{Title: &title, Body: &body})
	s.must(err)
	pub, err := Publish(t.Context(), s.req)
	if err != nil || pub.Existing || len(s.repo.Issues()) != 2 || !strings.HasSuffix(pub.Issue, "/2") {
		t.Errorf("%+v, %v, issues %+v", pub, err, s.repo.Issues())
	}

	u := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	u.next("echo more > more.txt; git add -A; git commit -qm more")
	stranger = githubapp.UserToken(u.hub.UserToken("mallory", githubtest.Permissions{"issues": "write", "pull_requests": "write"}, u.repo))
	client, err = githubapp.NewClient(u.hub.API(), stranger)
	u.must(err)
	comment := "**Updated**: nothing to see in " + u.req.Quarantine.Tip
	_, _, err = client.Issues.CreateComment(t.Context(), "acme", "api", 1, &github.IssueComment{Body: &comment})
	u.must(err)
	if _, err := Publish(t.Context(), u.req); err != nil || len(u.repo.Pulls()[0].Comments) != 2 {
		t.Errorf("%v, comments %q", err, u.repo.Pulls()[0].Comments)
	}
}

// TestPullRequestOfAnotherCommit: who can push to the branch can move it before
// its pull request is there. kick's text then is about other work, and it says so.
func TestPullRequestOfAnotherCommit(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.onEvent("pull-request", func() {
		s.sh(s.repo.Dir, "git update-ref refs/heads/"+kickBranch+" $(git -c user.name=x -c user.email=x commit-tree -p "+kickBranch+" -m other "+kickBranch+"^{tree})")
	})
	pub, err := Publish(t.Context(), s.req)
	if err != nil || !strings.Contains(strings.Join(pub.Warnings, " "), "somebody else changed the branch meanwhile") {
		t.Errorf("%+v, %v", pub, err)
	}
}

// TestAddressesOfTheServer: what the server says of where a pull request is
// comes to no terminal as it is.
func TestAddressesOfTheServer(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.hub.AddFault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", After: true, Status: 201, Body: `{"number":1,"html_url":"https://x/\u001b]0;owned\u0007\u202e\n::error::x","head":{"sha":"` + s.req.Quarantine.Tip + `"}}`})
	pub, err := Publish(t.Context(), s.req)
	if err != nil || pub.URL == "" || strings.ContainsFunc(pub.URL, func(r rune) bool { return escape.Control(r) || escape.Invisible(r) }) {
		t.Errorf("%q, %v", pub.URL, err)
	}
}
