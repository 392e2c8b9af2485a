package pushbroker

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

func reasonOf(err error) Reason {
	var e *PublishError
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// TestPublishReasons makes every answer of a server for real.
func TestPublishReasons(t *testing.T) {
	t.Parallel()
	fault := func(f githubtest.Fault) func(*stage) { return func(s *stage) { s.hub.AddFault(f) } }
	for name, tc := range map[string]struct {
		script  string
		repo    githubtest.RepoOptions
		prepare func(*stage)
		want    Reason
		words   []string // in the error
		details []string
		pushed  bool
	}{
		"ruleset": {
			prepare: func(s *stage) { s.must(s.repo.AddRule("refs/heads/kick/*", "Commits must have verified signatures.")) },
			want:    ReasonRuleset, words: []string{"GH013", "; Commits must have verified signatures", "kick/**"}, details: []string{"- Commits must have verified signatures."},
		},
		"protected branch": {
			prepare: func(s *stage) { s.must(s.repo.Protect(kickBranch)) },
			want:    ReasonProtected, words: []string{"GH006", "kick/**"},
		},
		"push protection": {
			script: withSecret, prepare: func(s *stage) { s.must(s.repo.PushProtection()) },
			want: ReasonPushProtection, words: []string{"Amazon AWS Access Key ID in conf:1 of commit ", "rotate"}, details: []string{"- Push cannot contain secrets"},
		},
		"workflows permission": {
			script: withWorkflow, want: ReasonWorkflows, words: []string{"`.github/workflows/new.yml`", "workflows:write"},
		},
		"not installed":  {repo: githubtest.RepoOptions{NotInstalled: true}, want: ReasonNotFound, words: []string{"installed"}},
		"not granted":    {repo: githubtest.RepoOptions{Granted: githubtest.Permissions{"contents": "read", "pull_requests": "write"}}, want: ReasonPermission, words: []string{"contents:write"}},
		"archived":       {repo: githubtest.RepoOptions{Archived: true}, want: ReasonReadOnly, words: []string{"archived"}},
		"App's key":      {prepare: func(s *stage) { s.swapApp(func(a *githubapp.App) { a.ID = 7 }) }, want: ReasonAuthentication, words: []string{"App's id and key"}},
		"App's key file": {prepare: func(s *stage) { s.swapApp(func(a *githubapp.App) { a.PrivateKey = []byte("x") }) }, want: ReasonAuthentication, words: []string{"cannot be read"}},
		"wider token":    {prepare: func(s *stage) { s.hub.OnMint(func(g *githubtest.Grant) { g.Permissions["secrets"] = "read" }) }, want: ReasonTokenTooWide, words: []string{"secrets:read"}},
		"revoked before push": {
			prepare: func(s *stage) { s.onEvent("push", s.hub.RevokeAll) }, want: ReasonTokenInvalid, words: []string{"Run again"},
		},
		"expired before pull request": {
			prepare: func(s *stage) {
				n := 0
				s.hub.OnMint(func(*githubtest.Grant) { n++ })
				s.onEvent("pull-request", s.hub.ExpireAll)
			}, want: ReasonTokenInvalid, pushed: true,
		},
		"git answers 500":       {prepare: fault(githubtest.Fault{Match: "git-receive-pack", Status: 500}), want: ReasonServer, words: []string{"later"}},
		"git answers 429":       {prepare: fault(githubtest.Fault{Match: "info/refs", Status: 429}), want: ReasonRateLimit, words: []string{"wait 1m"}},
		"mint answers 502":      {prepare: fault(githubtest.Fault{Match: "access_tokens", Status: 502}), want: ReasonServer},
		"mint answers nonsense": {prepare: fault(githubtest.Fault{Match: "access_tokens", Status: 201, Body: "<html>"}), want: ReasonAnswer},
		"git is moved":          {prepare: func(s *stage) { s.redirect("info/refs") }, want: ReasonMoved, words: []string{"new address"}},
		"API is moved":          {prepare: func(s *stage) { s.redirect("/installation") }, want: ReasonMoved, words: []string{"new address"}},
		"secondary rate limit": {
			prepare: fault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Status: 403, Header: map[string]string{"Retry-After": "73"},
				Body: `{"message":"You have exceeded a secondary rate limit.","documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`}),
			want: ReasonRateLimit, words: []string{"wait 1m13s"}, pushed: true,
		},
		"primary rate limit": {
			prepare: fault(githubtest.Fault{Match: "GET /repos/acme/api/pulls", Status: 403,
				Header: map[string]string{"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": fmt.Sprint(time.Now().Add(20 * time.Minute).Unix())},
				Body:   `{"message":"API rate limit exceeded for installation ID 42."}`}),
			want: ReasonRateLimit, words: []string{"wait"}, pushed: true,
		},
		"pull request refused": {
			prepare: fault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Status: 422, Body: `{"message":"Validation Failed","errors":[{"resource":"PullRequest","code":"custom","message":"The base branch is locked"}]}`}),
			want:    ReasonPullRequest, words: []string{"The base branch is locked", "by hand"}, pushed: true,
		},
		"pull request answers 503": {prepare: fault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Status: 503}), want: ReasonServer, pushed: true},
		"other work there": {
			prepare: func(s *stage) { s.sh(s.repo.Dir, "git update-ref refs/heads/"+kickBranch+" main~1") },
			want:    ReasonBranchExists, words: []string{"delete it"},
		},
		"base rewound": {prepare: func(s *stage) { s.sh(s.repo.Dir, "git update-ref refs/heads/main main~1") }, want: ReasonRepublish, words: []string{"rewritten"}},
		"base rewritten": {prepare: func(s *stage) {
			s.sh(s.repo.Dir, "git update-ref refs/heads/main $(git -c user.name=x -c user.email=x commit-tree -m purged main^{tree})")
		}, want: ReasonRepublish, words: []string{"not inspected"}},
		"base deleted": {prepare: func(s *stage) { s.sh(s.repo.Dir, "git update-ref -d refs/heads/main") }, want: ReasonRepublish, words: []string{"nothing left"}},
		"default branch": {prepare: func(s *stage) {
			s.sh(s.repo.Dir, "git symbolic-ref HEAD refs/heads/"+kickBranch+"; git update-ref refs/heads/"+kickBranch+" main")
		}, want: ReasonUsage, words: []string{"default branch"}},
		"server is gone": {prepare: func(s *stage) { s.req.Target.URL, s.req.Target.Host = "http://127.0.0.1:1/acme/api.git", "127.0.0.1:1" }, want: ReasonNetwork, words: []string{"network"}},
		"journal is full": {
			prepare: func(s *stage) {
				s.req.Journal = func(string, map[string]string) error { return errors.New("no space") }
			},
			want: ReasonJournal, words: []string{"no space", "disk"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.script == "" {
				tc.script = oneFile
			}
			s := newStage(t, githubtest.Options{}, tc.repo, tc.script)
			if tc.prepare != nil {
				tc.prepare(s)
			}
			pub, err := Publish(t.Context(), s.req)
			var e *PublishError
			if !errors.As(err, &e) || e.Reason != tc.want {
				t.Fatalf("reason %q, want %q: %v", reasonOf(err), tc.want, err)
			}
			if strings.Contains(err.Error(), "..") {
				t.Errorf("two full stops in %q", err)
			}
			for _, w := range tc.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in %q", w, err)
				}
			}
			for _, w := range tc.details {
				if !slices.Contains(e.Details, w) {
					t.Errorf("%q is not in the details %q", w, e.Details)
				}
			}
			if e.Pushed != tc.pushed || (pub.Commit != "") != tc.pushed {
				t.Errorf("Pushed is %v, publication %+v", e.Pushed, pub)
			}
			if got := s.repo.Ref("refs/heads/" + kickBranch); (got == s.req.Quarantine.Tip) != tc.pushed {
				t.Errorf("the branch is at %q", got)
			}
			if n := s.hub.LiveTokens(); n != 0 {
				t.Errorf("%d tokens are alive", n)
			}
			s.silent("the error", fmt.Sprintf("%+v %#v", err, e))
		})
	}
}

func TestPushPlainReasons(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(l *lab, dir string)
		want    Reason
		words   string
	}{
		"hook": {func(l *lab, dir string) {
			l.sh(dir, "mkdir -p hooks; printf '#!/bin/sh\\necho not on mondays >&2; exit 1\\n' > hooks/pre-receive; chmod +x hooks/pre-receive")
		}, ReasonHook, "hook"},
		"no repository": {func(l *lab, dir string) { l.sh(dir, "rm -r objects") }, ReasonNotFound, "does not appear to be a git repository"},
		"other work":    {func(l *lab, dir string) { l.sh(dir, "git update-ref refs/heads/"+kickBranch+" main") }, ReasonBranchExists, "already"},
		"other owner": {func(l *lab, dir string) {
			if os.Geteuid() != 0 { // only root can give a directory away; the words are tested below for all
				l.sh(dir, "rm -r objects")
				return
			}
			l.sh(dir, "chown -R 12345 .")
		}, ReasonOwnership, "owns the repository"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			q, dir := l.quarantine(oneFile), l.bare()
			tc.prepare(l, dir)
			target, err := NewTarget(dir, Access{})
			if err != nil {
				t.Fatal(err)
			}
			if name == "other owner" && os.Geteuid() != 0 {
				tc.want, tc.words = ReasonNotFound, ""
			}
			_, err = Push(t.Context(), q, target, Refs{Branch: kickBranch, Base: "main"}, githubapp.Token{})
			if reasonOf(err) != tc.want || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("got %q: %v", reasonOf(err), err)
			}
		})
	}
}
