package pushbroker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

func TestPublishPullRequest(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]githubtest.Options{
		"short tokens": {}, "long tokens": {LongTokens: true}, "enterprise": {APIPath: "/api/v3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, opts, githubtest.RepoOptions{}, oneFile)
			s.req.Form.Labels, s.req.Form.Reviewers = []string{"agent"}, []string{"olga"}
			pub, err := Publish(t.Context(), s.req)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.repo.Ref("refs/heads/" + kickBranch); got != s.req.Quarantine.Tip {
				t.Errorf("the branch is at %q, want %s", got, s.req.Quarantine.Tip)
			}
			pulls := s.repo.Pulls()
			if len(pulls) != 1 || pulls[0].Head != kickBranch || pulls[0].Base != "main" || pulls[0].Draft || !slices.Equal(pulls[0].Labels, []string{"agent"}) || !slices.Equal(pulls[0].Reviewers, []string{"olga"}) {
				t.Fatalf("pull requests: %+v", pulls)
			}
			if !pub.Pushed || pub.Existing || pub.Number != 1 || pub.URL != s.hub.URL()+"/acme/api/pull/1" || len(pub.Warnings) > 0 {
				t.Errorf("publication: %+v", pub)
			}
			if want := []string{"proposal", "mint", "push", "revoke", "mint", "pull-request", "revoke"}; !slices.Equal(s.events, want) {
				t.Errorf("journal: %v, want %v", s.events, want)
			}
			for _, p := range s.hub.Minted() {
				if !maps.Equal(p, githubtest.Permissions{"metadata": "read", "contents": "write"}) && !maps.Equal(p, githubtest.Permissions{"metadata": "read", "pull_requests": "write"}) {
					t.Errorf("minted a token for %v", p)
				}
			}
			if len(s.hub.Minted()) != 2 || s.hub.LiveTokens() != 0 {
				t.Errorf("%d tokens minted, %d alive", len(s.hub.Minted()), s.hub.LiveTokens())
			}

			again, err := Publish(t.Context(), s.req)
			if err != nil {
				t.Fatal(err)
			}
			if again.Pushed || !again.Existing || again.Number != 1 || s.hub.Pushes() != 1 || len(s.repo.Pulls()) != 1 {
				t.Errorf("second publication: %+v with %d pushes and %d pull requests", again, s.hub.Pushes(), len(s.repo.Pulls()))
			}
		})
	}
}

func TestPublishReview(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.req.Verdict.Pass, s.req.Verdict.Review = false, true
	s.req.PullRequest = false
	if _, err := Publish(t.Context(), s.req); reasonOf(err) != ReasonUsage || s.hub.Pushes() != 0 {
		t.Fatalf("a branch without a reviewer: %v", err)
	}
	s.req.PullRequest = true
	pub, err := Publish(t.Context(), s.req)
	if err != nil {
		t.Fatal(err)
	}
	if p := s.repo.Pulls()[0]; !p.Draft || !pub.Draft || !slices.Equal(p.Labels, []string{ReviewLabel}) || !strings.Contains(p.Body, "[!IMPORTANT]") {
		t.Errorf("pull request: %+v", p)
	}
}

// TestPublishReviewWithoutDrafts is a repository whose plan has no drafts.
func TestPublishReviewWithoutDrafts(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.req.Verdict.Pass, s.req.Verdict.Review = false, true
	s.hub.AddFault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Times: 1, Status: 422, Body: `{"message":"Draft pull requests are not supported in this repository."}`})
	pub, err := Publish(t.Context(), s.req)
	if err != nil || pub.Draft || len(pub.Warnings) != 1 || !slices.Equal(s.repo.Pulls()[0].Labels, []string{ReviewLabel}) {
		t.Errorf("publication: %+v, %v", pub, err)
	}
}

// TestPublishDraftOnly is the same repository, where CI would expose something
// to a pull request that is no draft.
func TestPublishDraftOnly(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.req.Verdict.Pass, s.req.Verdict.Review, s.req.Verdict.DraftOnly = false, true, true
	s.hub.AddFault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Times: 1, Status: 422, Body: `{"message":"Draft pull requests are not supported in this repository."}`})
	_, err := Publish(t.Context(), s.req)
	if reasonOf(err) != ReasonPullRequest || len(s.repo.Pulls()) != 0 || !strings.Contains(err.Error(), "no draft") {
		t.Errorf("%d pull requests, %v", len(s.repo.Pulls()), err)
	}
}

// TestPublishRecovers is about failures that do not fail the publication.
func TestPublishRecovers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(*stage)
		pushes  int
		warning string
	}{
		"one 503 of git": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", Times: 1, Status: 503})
		}, 1, ""},
		"one 502 of the mint": {func(s *stage) { s.hub.AddFault(githubtest.Fault{Match: "access_tokens", Times: 1, Status: 502}) }, 1, ""},
		"one 500 of pulls": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Times: 1, Status: 500})
		}, 1, ""},
		"one 500 of the revocation": {func(s *stage) { s.hub.AddFault(githubtest.Fault{Match: "DELETE ", Times: 1, Status: 500}) }, 1, ""},
		"one cut before the push": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", Times: 1, Cut: true})
		}, 1, ""},
		"one 429 of git": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "GET /acme/api.git/info/refs", Times: 1, Status: 429})
		}, 1, "waited 1m0s"},
		"one cut of the list": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "GET /acme/api.git/info/refs", Times: 1, Cut: true})
		}, 1, ""},
		"one cut of pulls": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "/repos/acme/api/pulls", Times: 1, Cut: true})
		}, 1, ""},
		"answer to the pull request lost": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Times: 1, After: true, Cut: true})
		}, 1, ""},
		"answer to the pull request is no JSON": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Times: 1, After: true, Status: 201, Body: "<html>"})
		}, 1, ""},
		"pull request made and 500": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "POST /repos/acme/api/pulls", Times: 1, After: true, Status: 500})
		}, 1, ""},
		"answer to the push lost": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", Times: 1, After: true, Cut: true})
		}, 1, ""},
		"revocation fails": {func(s *stage) { s.hub.AddFault(githubtest.Fault{Match: "DELETE ", Status: 500}) }, 1, "could not be revoked"},
		"label fails": {func(s *stage) {
			s.req.Form.Labels = []string{"x"}
			s.hub.AddFault(githubtest.Fault{Match: "/labels", Status: 403, Body: `{"message":"no"}`})
		}, 1, "label pull request"},
		"base moved on": {func(s *stage) {
			s.sh(s.repo.Dir, "git update-ref refs/heads/main $(git -c user.name=x -c user.email=x commit-tree -p main -m more main^{tree})")
		}, 1, ""},
		"base deleted but tagged": {func(s *stage) {
			s.sh(s.repo.Dir, "git update-ref refs/tags/v1 main; git update-ref refs/heads/old main; git symbolic-ref HEAD refs/heads/old; git update-ref -d refs/heads/main")
			s.req.PullRequest = false
		}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
			tc.prepare(s)
			pub, err := Publish(t.Context(), s.req)
			if err != nil {
				t.Fatal(err)
			}
			if s.hub.Pushes() != tc.pushes || !pub.Pushed || s.req.PullRequest && len(s.repo.Pulls()) != 1 {
				t.Errorf("%d pushes, %d pull requests, %+v", s.hub.Pushes(), len(s.repo.Pulls()), pub)
			}
			if (tc.warning == "") != (len(pub.Warnings) == 0) || !strings.Contains(strings.Join(pub.Warnings, " "), tc.warning) {
				t.Errorf("warnings: %q", pub.Warnings)
			}
			s.silent("a warning", strings.Join(pub.Warnings, " "))
		})
	}
}

func TestPublishCancelled(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	ctx, cancel := context.WithCancel(t.Context())
	s.hub.AddFault(githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", Hang: true})
	s.onEvent("push", func() { time.AfterFunc(300*time.Millisecond, cancel) })
	if _, err := Publish(ctx, s.req); reasonOf(err) != ReasonCancelled {
		t.Errorf("got %v", err)
	}
	if s.hub.LiveTokens() != 0 {
		t.Error("the token is alive after the cancel")
	}
}

// TestPublishNonsense has a server answer a push with bytes that are not the
// push protocol, after it took the push and instead. Only what is on the remote
// counts.
func TestPublishNonsense(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"nothing":                "",
		"a flush":                "0000",
		"a page":                 "<html><body>502 Bad Gateway</body></html>",
		"a length that lies":     "ffff\x01000eunpack ok\n",
		"no length":              "zzzz\x01",
		"an unknown band":        "0009\x07owned0000",
		"an error band":          "0024\x03fatal: \x1b]0;owned\x07 the disk is full0000",
		"a report of other refs": "003a\x01000eunpack ok\n0020ok refs/heads/never-asked-for\n00000000",
		"a refusal in words":     "0037\x02error: GH013: Repository rule violations found for x\n0000",
	} {
		for _, after := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, taken %v", name, after), func(t *testing.T) {
				t.Parallel()
				s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
				s.hub.AddFault(githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", After: after, Status: 200, Body: body})
				pub, err := Publish(t.Context(), s.req)
				arrived := s.repo.Ref("refs/heads/"+kickBranch) == s.req.Quarantine.Tip
				if arrived != after || (err == nil) != arrived || pub.Pushed != arrived || len(s.repo.Pulls()) == 1 != arrived {
					t.Errorf("arrived %v, publication %+v, %v", arrived, pub, err)
				}
				if after && s.hub.Pushes() != 1 {
					t.Errorf("%d pushes", s.hub.Pushes())
				}
				if err != nil && (reasonOf(err) == ReasonGit || strings.ContainsFunc(err.Error(), escape.Control)) {
					t.Errorf("reason %s: %q", reasonOf(err), err)
				}
				if s.hub.LiveTokens() != 0 {
					t.Error("a token is alive")
				}
			})
		}
	}
}

// TestPublishOnToASilentServer hangs the server where it is asked, where it is
// pushed to, and where it shall answer. It changes the deadlines, so it runs
// alone.
func TestPublishOnToASilentServer(t *testing.T) {
	defer func(l, p, a time.Duration) { listTimeout, pushTimeout, askTimeout = l, p, a }(listTimeout, pushTimeout, askTimeout)
	// With more than a pipe holds and then no end, git waits for ever.
	messages := strings.Repeat("fff0\x02"+strings.Repeat("x", 0xfff0-5), 20)
	for name, tc := range map[string]struct {
		fault githubtest.Fault
		list  time.Duration
		push  time.Duration // long enough to arrive, where it shall
		want  Reason        // empty: published
	}{
		"asked":          {githubtest.Fault{Match: "GET /acme/api.git/info/refs", Hang: true}, time.Second, time.Minute, ReasonNetwork},
		"pushed to":      {githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", Hang: true}, time.Minute, 4 * time.Second, ReasonNetwork},
		"no end":         {githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", Status: 200, Body: messages}, time.Minute, 4 * time.Second, ReasonNetwork},
		"after the push": {githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", After: true, Hang: true}, time.Minute, 20 * time.Second, ""},
		"endless":        {githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", Status: 200, Body: "000a\x02hello", Endless: true}, time.Minute, 4 * time.Second, ReasonNetwork},
	} {
		t.Run(name, func(t *testing.T) {
			listTimeout, pushTimeout, askTimeout = tc.list, tc.push, time.Minute
			s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
			s.hub.AddFault(tc.fault)
			_, err := Publish(t.Context(), s.req)
			if reasonOf(err) != tc.want || (err == nil) != (tc.want == "") {
				t.Errorf("reason %q, want %q: %v", reasonOf(err), tc.want, err)
			}
			if s.hub.Pushes() > 1 || s.hub.LiveTokens() != 0 {
				t.Errorf("%d pushes, %d live tokens", s.hub.Pushes(), s.hub.LiveTokens())
			}
		})
	}
}

func TestPublishClosedPullRequest(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	if _, err := Publish(t.Context(), s.req); err != nil {
		t.Fatal(err)
	}
	s.repo.ClosePull(1)
	if _, err := Publish(t.Context(), s.req); reasonOf(err) != ReasonPullClosed || len(s.repo.Pulls()) != 1 {
		t.Errorf("got %v with %d pull requests", err, len(s.repo.Pulls()))
	}
}

func TestLookup(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	look := func(want Found) {
		t.Helper()
		got, warnings, err := Lookup(t.Context(), s.req.Target, kickBranch, s.req.Journal)
		if err != nil || len(warnings) > 0 || got != want {
			t.Errorf("got %+v, %v, %v; want %+v", got, warnings, err, want)
		}
	}
	look(Found{})
	pub, err := Publish(t.Context(), s.req)
	if err != nil {
		t.Fatal(err)
	}
	look(Found{Commit: s.req.Quarantine.Tip, Number: 1, URL: pub.URL, State: "open"})
	s.repo.ClosePull(1)
	s.sh(s.repo.Dir, "git update-ref -d refs/heads/"+kickBranch)
	look(Found{Number: 1, URL: pub.URL, State: "closed"})
	if s.hub.LiveTokens() != 0 || s.hub.Pushes() != 1 {
		t.Errorf("%d live tokens, %d pushes", s.hub.LiveTokens(), s.hub.Pushes())
	}
	target, err := NewTarget(s.bare(), Access{})
	s.must(err)
	if f, _, err := Lookup(t.Context(), target, "main", nil); err != nil || f.Commit != s.base {
		t.Errorf("plain remote: %+v, %v", f, err)
	}
}

// TestPublishLarge is more than git sends in one piece (http.postBuffer, 1 MiB).
func TestPublishLarge(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{LongTokens: true}, githubtest.RepoOptions{}, "head -c 3000000 /dev/urandom > big; git add big; git commit -qm big")
	if _, err := Publish(t.Context(), s.req); err != nil {
		t.Fatal(err)
	}
	if s.hub.Pushes() != 1 || s.repo.Ref("refs/heads/"+kickBranch) != s.req.Quarantine.Tip {
		t.Errorf("%d pushes", s.hub.Pushes())
	}
}

// TestPublishRace has several brokers publish one kick.
func TestPublishRace(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if pub, err := Publish(t.Context(), s.req); err != nil || pub.Number != 1 {
				t.Errorf("publication: %+v, %v", pub, err)
			}
		}()
	}
	wg.Wait()
	if len(s.repo.Pulls()) != 1 || s.hub.LiveTokens() != 0 {
		t.Errorf("%d pull requests, %d live tokens", len(s.repo.Pulls()), s.hub.LiveTokens())
	}
}

func TestPublishWithOperatorsToken(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	use := func(p githubtest.Permissions) (Publication, error) {
		target, err := NewTarget(s.hub.URL()+"/acme/api", Access{Token: githubapp.UserToken(s.hub.UserToken("olga", p, s.repo)), API: s.hub.API()})
		s.must(err)
		s.req.Target = target
		return Publish(t.Context(), s.req)
	}
	if _, err := use(githubtest.Permissions{"contents": "read"}); reasonOf(err) != ReasonPermission {
		t.Errorf("a token that may not write: %v", err)
	}
	if pub, err := use(githubtest.Permissions{"contents": "write", "pull_requests": "write"}); err != nil || pub.Number != 1 {
		t.Errorf("publication: %+v, %v", pub, err)
	}
	if n := s.hub.Count("access_tokens") + s.hub.Count("DELETE "); n != 0 {
		t.Errorf("%d requests minted or revoked", n)
	}
}

func TestPublishRefusesWhatWasNotInspected(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	for name, change := range map[string]func(*PublishRequest){
		"other tip":        func(r *PublishRequest) { r.Verdict.Tip = s.base },
		"other base":       func(r *PublishRequest) { r.Verdict.Base = r.Verdict.Tip },
		"blocked":          func(r *PublishRequest) { r.Verdict.Pass = false },
		"onto the base":    func(r *PublishRequest) { r.Refs.Branch = "main" },
		"option as branch": func(r *PublishRequest) { r.Refs.Branch = "-x" },
		"two refs":         func(r *PublishRequest) { r.Refs.Branch = "a:refs/heads/main" },
	} {
		r := s.req
		change(&r)
		if _, err := Publish(t.Context(), r); reasonOf(err) != ReasonUsage {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.hub.Pushes() != 0 || s.hub.LiveTokens() != 0 {
		t.Error("something was pushed, or a token lives")
	}
}
