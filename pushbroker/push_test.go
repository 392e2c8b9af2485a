package pushbroker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

// Tests do not wait for a server to recover.
func init() { retryWaits = []time.Duration{time.Millisecond, time.Millisecond} }

const (
	kickBranch   = "kick/claude/k0000000000000"
	oneFile      = "echo hi > new.txt; git add new.txt; git commit -qm 'add a file'"
	fakeKey      = "AKIA" + "IOSFODNN7EXAMPLQ"
	withSecret   = "echo 'key = " + fakeKey + "' > conf; git add conf; git commit -qm 'add conf'"
	withWorkflow = "echo 'on: push' > .github/workflows/new.yml; git add .; git commit -qm 'add workflow'"
)

// stage is ingested work and a GitHub to publish it on.
type stage struct {
	*lab
	hub    *githubtest.Server
	repo   *githubtest.Repo
	app    *githubapp.App
	req    PublishRequest
	mu     sync.Mutex
	events []string
	tokens map[string]bool // values that were seen on the wire
}

func (l *lab) quarantine(script string) *Quarantine {
	l.t.Helper()
	l.sh(l.clone, script)
	q, err := Ingest(context.Background(), filepath.Join(l.t.TempDir(), "quarantine"), l.work(l.bundle()), IngestLimits{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = q.Close() })
	return q
}

func passing(q *Quarantine) Verdict {
	return Verdict{Pass: true, Base: q.BaseOID, Tip: q.Tip, Commits: len(q.Commits), Files: 1, Subjects: []string{"add a file"}, Changes: []Change{{Status: "A", Path: "new.txt"}}}
}

func newStage(t *testing.T, opts githubtest.Options, repo githubtest.RepoOptions, script string) *stage {
	t.Helper()
	s := &stage{lab: newLab(t), tokens: map[string]bool{}}
	wrap := opts.Intercept
	opts.Intercept = func(next http.Handler) http.Handler {
		if wrap != nil {
			next = wrap(next)
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, token, ok := r.BasicAuth(); ok {
				s.saw(token)
			}
			if _, token, ok := strings.Cut(r.Header.Get("Authorization"), "Bearer "); ok {
				s.saw(token)
			}
			next.ServeHTTP(w, r)
		})
	}
	s.hub = githubtest.Start(t, opts)
	repo.From = s.mirror
	s.repo = s.hub.MustAddRepo(t, "acme", "api", repo)
	s.app = &githubapp.App{ID: githubtest.AppID, PrivateKey: s.hub.PrivateKey(), BaseURL: s.hub.API()}
	target, err := NewTarget(s.hub.URL()+"/acme/api.git", Access{App: s.app})
	if err != nil {
		t.Fatal(err)
	}
	q := s.quarantine(script)
	s.req = PublishRequest{
		Target: target, Quarantine: q, Verdict: passing(q), Refs: Refs{Branch: kickBranch, Base: "main"}, PullRequest: true,
		Description: Description{KickID: "k0000000000000", Agent: "claude", Prompt: "add a file"},
		Journal: func(event string, _ map[string]string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, event)
			return nil
		},
	}
	return s
}

func (s *stage) saw(token string) {
	if token == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[token] = true
}

// silent fails when text holds a token that was used.
func (s *stage) silent(what, text string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for token := range s.tokens {
		if strings.Contains(text, token) || strings.Contains(text, token[4:24]) {
			s.t.Errorf("%s holds a token", what)
		}
	}
}

func TestPublishPullRequest(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]githubtest.Options{
		"short tokens": {}, "long tokens": {LongTokens: true}, "enterprise": {APIPath: "/api/v3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, opts, githubtest.RepoOptions{}, oneFile)
			s.req.Labels, s.req.Reviewers = []string{"agent"}, []string{"olga"}
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
			if want := []string{"mint", "push", "revoke", "mint", "pull-request", "revoke"}; !slices.Equal(s.events, want) {
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
			want:    ReasonRuleset, words: []string{"GH013", "kick/**"}, details: []string{"- Commits must have verified signatures."},
		},
		"protected branch": {
			prepare: func(s *stage) { s.must(s.repo.Protect(kickBranch)) },
			want:    ReasonProtected, words: []string{"GH006", "kick/**"},
		},
		"push protection": {
			script: withSecret, prepare: func(s *stage) { s.must(s.repo.PushProtection()) },
			want: ReasonPushProtection, words: []string{"rotate"}, details: []string{"- Push cannot contain secrets", "Amazon AWS Access Key ID", "path: conf:1"},
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
		"mint answers nonsense": {prepare: fault(githubtest.Fault{Match: "access_tokens", Status: 201, Body: "<html>"}), want: ReasonRejected},
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

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) swapApp(change func(*githubapp.App)) {
	app := *s.app
	change(&app)
	target, err := NewTarget(s.hub.URL()+"/acme/api", Access{App: &app})
	s.must(err)
	s.req.Target = target
}

// onEvent does something right after the journal has recorded an event.
func (s *stage) onEvent(event string, do func()) {
	journal := s.req.Journal
	s.req.Journal = func(e string, f map[string]string) error {
		if e == event {
			do()
		}
		return journal(e, f)
	}
}

func (s *stage) redirect(match string) {
	sink, err := githubtest.NewSink()
	s.must(err)
	s.t.Cleanup(func() {
		if n, saw := sink.Requests(); n > 0 || saw {
			s.t.Errorf("the other host got %d requests, a credential: %v", n, saw)
		}
		_ = sink.Close()
	})
	s.hub.AddFault(githubtest.Fault{Match: match, Redirect: sink.URL()})
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
		"answer to the push lost": {func(s *stage) {
			s.hub.AddFault(githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", Times: 1, CutAfter: true})
		}, 1, ""},
		"revocation fails": {func(s *stage) { s.hub.AddFault(githubtest.Fault{Match: "DELETE ", Status: 500}) }, 1, "could not be revoked"},
		"label fails": {func(s *stage) {
			s.req.Labels = []string{"x"}
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

// TestPushUnknown loses the connection for good right when the push arrived.
func TestPushUnknown(t *testing.T) {
	t.Parallel()
	var s *stage
	s = newStage(t, githubtest.Options{Intercept: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" && strings.HasSuffix(r.URL.Path, "git-receive-pack") {
				s.hub.AddFault(githubtest.Fault{Match: "info/refs", Status: 503})
			}
			next.ServeHTTP(w, r)
		})
	}}, githubtest.RepoOptions{}, oneFile)
	s.hub.AddFault(githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", CutAfter: true})
	if _, err := Publish(t.Context(), s.req); reasonOf(err) != ReasonUnknown {
		t.Errorf("got %v", err)
	}
	if s.hub.LiveTokens() != 0 {
		t.Error("the token is alive")
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

// TestPushGain rewinds the remote's base, so that the remote would gain a
// commit of the base too: refused, until that was inspected.
func TestPushGain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	q, dir := *l.quarantine(oneFile), l.bare()
	l.sh(dir, "git update-ref refs/heads/main main~1")
	target, err := NewTarget(dir, Access{})
	if err != nil {
		t.Fatal(err)
	}
	push := func() error {
		_, err := Push(t.Context(), &q, target, Refs{Branch: kickBranch, Base: "main"}, githubapp.Token{})
		return err
	}
	if err := push(); reasonOf(err) != ReasonRepublish {
		t.Fatalf("got %v", err)
	}
	q.Objects = append(slices.Clone(q.Objects), strings.Fields(l.sh(l.mirror, "git rev-list --objects --no-object-names main~1..main"))...)
	if err := push(); err != nil {
		t.Errorf("all that the remote gains is in the set: %v", err)
	}
}

func TestPushPlain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	q := l.quarantine(oneFile)
	for name, repo := range map[string]string{"path": l.bare(), "file URL": "file://" + l.bare(), "checkout": l.checkout()} {
		t.Run(name, func(t *testing.T) {
			target, err := NewTarget(repo, Access{})
			if err != nil {
				t.Fatal(err)
			}
			req := PublishRequest{Target: target, Quarantine: q, Verdict: passing(q), Refs: Refs{Branch: kickBranch, Base: "main"}}
			for _, pushed := range []bool{true, false} {
				pub, err := Publish(t.Context(), req)
				if err != nil || pub.Pushed != pushed || pub.Commit != q.Tip || pub.Number != 0 {
					t.Fatalf("publication: %+v, %v", pub, err)
				}
			}
			if got := l.sh(target.URL, "git rev-parse refs/heads/"+kickBranch); got != q.Tip {
				t.Errorf("the branch is at %s", got)
			}
			req.PullRequest = true
			if _, err := Publish(t.Context(), req); reasonOf(err) != ReasonUsage {
				t.Errorf("a pull request on a plain remote: %v", err)
			}
		})
	}
}

func (l *lab) bare() string {
	dir := filepath.Join(l.t.TempDir(), "remote.git")
	l.sh(l.dir, "git clone -q --bare mirror "+dir)
	return dir
}

func (l *lab) checkout() string {
	dir := filepath.Join(l.t.TempDir(), "checkout")
	l.sh(l.dir, "git clone -q mirror "+dir)
	return dir
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

func BenchmarkPushPlain(b *testing.B) {
	t := &testing.T{}
	l := newLab(t)
	q := l.quarantine(oneFile)
	dir := l.bare()
	target, err := NewTarget(dir, Access{})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		if _, err := Push(context.Background(), q, target, Refs{Branch: fmt.Sprintf("kick/b/%d", n), Base: "main"}, githubapp.Token{}); err != nil {
			b.Fatal(err)
		}
	}
}
