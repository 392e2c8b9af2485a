package pushbroker

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

// Tests do not wait for a server.
func init() { pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() } }

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
	return s.open(t, opts, repo, script)
}

// open starts the GitHub and ingests the work.
func (s *stage) open(t *testing.T, opts githubtest.Options, repo githubtest.RepoOptions, script string) *stage {
	t.Helper()
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

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// asUser publishes with a token of a user's own.
func (s *stage) asUser(login string) {
	token := githubapp.UserToken(s.hub.UserToken(login, githubtest.Permissions{"contents": "write", "pull_requests": "write"}, s.repo))
	target, err := NewTarget(s.hub.URL()+"/acme/api", Access{Token: token, API: s.hub.API()})
	s.must(err)
	s.req.Target = target
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
