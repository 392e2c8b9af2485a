package pushbroker

import (
	"slices"
	"strings"
	"testing"

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
