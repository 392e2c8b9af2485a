package acceptance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
)

// hub is a stand-in for GitHub with one repository, and what kick needs to use
// it.
type hub struct {
	*githubtest.Server
	repo *githubtest.Repo
	args []string // flags of kick run

	mu     sync.Mutex
	hooks  map[string]func()
	tokens map[string]bool // that were seen on the wire
}

func newHub(t *testing.T, opts githubtest.Options) *hub {
	return newHubWith(t, opts, githubtest.RepoOptions{})
}

func newHubWith(t *testing.T, opts githubtest.Options, repo githubtest.RepoOptions) *hub {
	t.Helper()
	h := &hub{hooks: map[string]func(){}, tokens: map[string]bool{}}
	opts.Intercept = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.arrived(r)
			next.ServeHTTP(w, r)
		})
	}
	s := githubtest.Start(t, opts)
	repo.From = seedBare(t)
	h.Server, h.repo = s, s.MustAddRepo(t, "acme", "api", repo)
	key := filepath.Join(t.TempDir(), "app.pem")
	if err := os.WriteFile(key, s.PrivateKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	h.args = []string{"--repo", s.URL() + "/acme/api", "--github-api", s.API(), "--github-app-id", fmt.Sprint(githubtest.AppID), "--github-app-key", key}
	return h
}

// before does something once, before a request is served that has match in its
// "METHOD URI".
func (h *hub) before(match string, do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hooks[match] = do
}

func (h *hub) arrived(r *http.Request) {
	h.mu.Lock()
	_, token, ok := r.BasicAuth()
	if !ok {
		_, token, _ = strings.Cut(r.Header.Get("Authorization"), "Bearer ")
	}
	if strings.HasPrefix(token, "gh") {
		h.tokens[token] = true
	}
	var due []func()
	for match, do := range h.hooks {
		if strings.Contains(r.Method+" "+r.RequestURI, match) {
			due = append(due, do)
			delete(h.hooks, match)
		}
	}
	h.mu.Unlock()
	for _, do := range due {
		do()
	}
}

// leaked names the tokens that text holds, by their beginning.
func (h *hub) leaked(text string) (found []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for token := range h.tokens {
		for _, form := range forms(token) {
			if strings.Contains(text, form) {
				found = append(found, token[:8])
			}
		}
	}
	return found
}

// environ is what kick gc needs to reach the hub.
func (h *hub) environ() []string {
	return append(os.Environ(), "KICK_GITHUB_API_URL="+h.API(), "KICK_GITHUB_APP_ID="+fmt.Sprint(githubtest.AppID), "KICK_GITHUB_APP_KEY_FILE="+h.args[len(h.args)-1])
}

// TestPullRequest opens pull requests on the stand-in, as on github.com and as
// on an Enterprise host, with tokens in both forms.
func TestPullRequest(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]githubtest.Options{
		"github.com": {LongTokens: true},
		"enterprise": {APIPath: "/api/v3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, opts)
			state := filepath.Join(t.TempDir(), "s")
			o, _ := runKick(t, state, append(h.args, "-p", "Add a file", "--", "sh", "-c",
				`echo hi >f; git add f; git commit -qm "add f"; printf '{"lane":"x","kind":"summary","summary":"all done"}' >.hive/agent-report.json`)...)
			if o.Outcome != manager.Published || o.PullRequest == "" {
				t.Fatalf("%s: %s", o.Outcome, o.Error)
			}
			pulls := h.repo.Pulls()
			if len(pulls) != 1 || pulls[0].Draft || h.repo.Ref("refs/heads/"+o.Branch) != o.Commit {
				t.Errorf("pull requests %+v, branch at %s, want %s", pulls, h.repo.Ref("refs/heads/"+o.Branch), o.Commit)
			}
			for _, want := range []string{"Add a file", "all done", o.ID, "embedded"} {
				if !strings.Contains(pulls[0].Body, want) {
					t.Errorf("the body lacks %q:\n%s", want, pulls[0].Body)
				}
			}
			if n := h.LiveTokens(); n != 0 {
				t.Errorf("%d tokens are alive", n)
			}
			for _, p := range h.Minted() {
				reads := p["contents"] != "write" && p["pull_requests"] != "write"
				if len(p) > 2 && !reads {
					t.Errorf("a token had more rights than it needed: %v", p)
				}
			}
			if out, _ := exec.Command("grep", "-rlE", "ghs_[A-Za-z0-9]", state).CombinedOutput(); len(out) > 0 {
				t.Errorf("a token is in the state directory:\n%s", out)
			}

			// The same once more is in that pull request already.
			again, _ := runKick(t, state, append(h.args, "--", "sh", "-c", `echo hi >f; git add f; git commit -qm "again"`)...)
			if again.Outcome != manager.Refused || again.PullRequest != o.PullRequest || len(again.Findings) != 1 || again.Findings[0].Rule != "duplicate" || len(h.repo.Pulls()) != 1 {
				t.Errorf("the same work again: %s, %s, %+v", again.Outcome, again.PullRequest, again.Findings)
			}
			if n := h.LiveTokens(); n != 0 {
				t.Errorf("%d tokens are alive", n)
			}
			// What asks for a review becomes a draft.
			o, _ = runKick(t, state, append(h.args, "--", "sh", "-c", `echo 'all:' >Makefile; git add -A; git commit -qm "add a makefile"`)...)
			if o.Outcome != manager.Published || !o.Draft {
				t.Errorf("%s, draft %v: %s", o.Outcome, o.Draft, o.Error)
			}
			// Without a pull request nobody reviews.
			o, _ = runKick(t, state, append(h.args, "--publish", "branch", "--", "sh", "-c", `echo 'all:' >Makefile; git add -A; git commit -qm "add a makefile"`)...)
			if o.Outcome != manager.Refused {
				t.Errorf("%s: %s", o.Outcome, o.Error)
			}
			// A refusal makes no token for a push.
			before := len(h.Minted())
			o, _ = runKick(t, state, append(h.args, "--", "sh", "-c", `echo x >.github/workflows/x.yml; git add -A; git commit -qm ci`)...)
			if o.Outcome != manager.Refused || len(h.Minted()) != before+1 { // the one is for the fetch
				t.Errorf("%s, %d tokens minted: %s", o.Outcome, len(h.Minted())-before, o.Error)
			}
		})
	}
}

// TestTextOfPullRequest shows that a report cannot carry a secret into the text
// of a pull request.
func TestTextOfPullRequest(t *testing.T) {
	t.Parallel()
	h := newHub(t, githubtest.Options{})
	o, _ := runKick(t, filepath.Join(t.TempDir(), "s"), append(h.args, "--", "sh", "-c",
		`echo hi >f; git add f; git commit -qm "add f"; printf '{"lane":"x","kind":"summary","summary":"see ghp_%s"}' Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2 >.hive/agent-report.json`)...)
	if o.Outcome != manager.Refused || len(h.repo.Pulls()) != 0 || h.Pushes() != 0 {
		t.Errorf("%s: %s, %d pushes", o.Outcome, o.Error, h.Pushes())
	}
}

// TestAllowedInTextOfPullRequest shows that a secret that the policy allows by
// its fingerprint may be quoted in the text of a pull request, until it expires.
func TestAllowedInTextOfPullRequest(t *testing.T) {
	t.Parallel()
	h := newHub(t, githubtest.Options{})
	dir := t.TempDir()
	run := func(allowed string) manager.Outcome {
		args := h.args
		if allowed != "" {
			file := filepath.Join(dir, "policy.yaml")
			if err := os.WriteFile(file, []byte(allowed), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append([]string{"--policy", file}, args...)
		}
		o, _ := runKick(t, filepath.Join(dir, "s"), append(args, "--", "sh", "-c",
			`echo hi >f; git add f; git commit -qm "Drop a key"; printf '{"lane":"x","kind":"summary","summary":"dropped AKIA%s"}' V6NQ2RSTW4XYZ7LM >.hive/agent-report.json`)...)
		return o
	}
	o := run("")
	if o.Outcome != manager.Refused || len(o.Findings) == 0 || o.Findings[0].Fingerprint == "" {
		t.Fatalf("without a policy: %s: %s, %+v", o.Outcome, o.Error, o.Findings)
	}
	const allow = "version: 1\nsecrets:\n  exceptions:\n    - fingerprint: %s\n      reason: the key of a test account\n      expires: %s\n"
	expired := run(fmt.Sprintf(allow, o.Findings[0].Fingerprint, "2020-01-01"))
	if expired.Outcome != manager.Refused || !slices.ContainsFunc(expired.Findings, func(f policy.Finding) bool {
		return f.Rule == "exception-expired"
	}) {
		t.Errorf("after the exception's end: %s: %s, %+v", expired.Outcome, expired.Error, expired.Findings)
	}
	if o = run(fmt.Sprintf(allow, o.Findings[0].Fingerprint, "2099-01-01")); o.Outcome != manager.Published || len(h.repo.Pulls()) != 1 {
		t.Errorf("allowed: %s: %s, %+v", o.Outcome, o.Error, o.Findings)
	}
}

// crashOn kills a kick right after its journal had the event.
func (h *hub) crashOn(t *testing.T, crashing, event, state string) {
	t.Helper()
	cmd := exec.Command(crashing, append(append([]string{"run", "--state-dir", state, "-p", "Keep it"}, h.args...), "--", "sh", "-c", "echo precious >work; git add work; git commit -qm precious")...)
	cmd.Env = append(os.Environ(), "KICK_TEST_CRASH_AT="+event)
	out, _ := cmd.CombinedOutput()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("kick was not killed at %s: %v\n%s", event, cmd.ProcessState, out)
	}
}

// gc runs kick gc with the hub's credential.
func (h *hub) gc(state string) (string, error) {
	cmd := exec.Command(kick, "gc", "--state-dir", state)
	cmd.Env = h.environ()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// proposed is the pull request that a kick recorded before its push.
func proposed(t *testing.T, state string) pushbroker.Proposal {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(state, "kicks", "*", "journal.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("journals %q, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var e manager.Entry
		if err := json.Unmarshal(line, &e); err == nil && e.Event == "proposal" {
			p, err := pushbroker.ParseProposal(e.Fields["proposal"])
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
	}
	t.Fatal("the journal has no proposal")
	return pushbroker.Proposal{}
}

// TestCrashOnGitHub kills kick at the steps that only a forge has. The next
// start finishes what was pushed, with the recorded text and without a second
// push, however often it starts.
func TestCrashOnGitHub(t *testing.T) {
	t.Parallel()
	crashing := buildCrashing(t)
	finish := map[string]func(*testing.T, *hub, string){
		"gc": func(t *testing.T, h *hub, state string) {
			for range 2 {
				if out, err := h.gc(state); err != nil {
					t.Fatalf("kick gc: %v\n%s", err, out)
				}
			}
		},
		"salvage": func(t *testing.T, h *hub, state string) {
			cmd := exec.Command(kick, "salvage", "--state-dir", state, "last")
			cmd.Env = h.environ()
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("kick salvage: %v\n%s", err, out)
			}
		},
		"next run": func(t *testing.T, h *hub, state string) {
			o, out := runKick(t, state, append(h.args, "--", "true")...)
			if o.Outcome != manager.Nothing {
				t.Fatalf("%s\n%s", o.Outcome, out)
			}
			// What was never pushed is for gc alone.
			if out, err := h.gc(state); err != nil {
				t.Fatalf("kick gc: %v\n%s", err, out)
			}
			if err := forgetKick(state, o.ID); err != nil {
				t.Fatal(err)
			}
		},
	}
	for _, event := range []string{"proposal", "mint", "revoke", "mint#2", "push", "revoke#2", "mint#3", "pull-request", "published"} {
		for by, finish := range finish {
			t.Run(event+", then "+by, func(t *testing.T) {
				t.Parallel()
				h := newHub(t, githubtest.Options{})
				state := filepath.Join(t.TempDir(), "kick")
				h.crashOn(t, crashing, event, state)
				pushed := h.Pushes() == 1
				finish(t, h, state)
				o := onlyOutcome(t, state)
				if arrived := h.repo.Ref("refs/heads/kick/agent/"+o.ID) != ""; arrived != pushed || h.Pushes() > 1 {
					t.Errorf("the branch is there: %v, %d pushes", arrived, h.Pushes())
				}
				if pushed != (o.Outcome == manager.Published) || o.Unsettled {
					t.Errorf("outcome %s, but pushed is %v: %+v", o.Outcome, pushed, o)
				}
				pulls := h.repo.Pulls()
				if !pushed {
					if o.Outcome != manager.Interrupted || o.KeptAt == "" || len(pulls) > 0 {
						t.Errorf("%d pull requests, %+v", len(pulls), o)
					}
					return
				}
				if len(pulls) != 1 || o.PullRequest == "" {
					t.Fatalf("%d pull requests, %+v", len(pulls), o)
				}
				if p := proposed(t, state); pulls[0].Title != p.Title || pulls[0].Body != p.Body || pulls[0].HeadOID != p.Commit || !strings.Contains(p.Body, "Keep it") {
					t.Errorf("the pull request is %+v, recorded was %+v", pulls[0], p)
				}
			})
		}
	}
}

// forgetKick removes the record of another kick, so that one is left.
func forgetKick(state, id string) error { return os.RemoveAll(filepath.Join(state, "kicks", id)) }

// TestCrashIsAskedAbout changes the remote between the crash and the next
// start: what people did is not undone, and nothing is pushed again.
func TestCrashIsAskedAbout(t *testing.T) {
	t.Parallel()
	crashing := buildCrashing(t)
	for name, tc := range map[string]struct {
		event  string
		change func(t *testing.T, h *hub, branch string)
		want   manager.Code
		pulls  int
		note   string
	}{
		"branch deleted":      {"revoke#2", func(t *testing.T, h *hub, branch string) { run(t, h.repo.Dir, "git", "update-ref", "-d", branch) }, manager.Interrupted, 0, ""},
		"branch moved":        {"revoke#2", func(t *testing.T, h *hub, branch string) { run(t, h.repo.Dir, "git", "update-ref", branch, "main") }, manager.Interrupted, 0, "with other work"},
		"pull request closed": {"published", func(_ *testing.T, h *hub, _ string) { h.repo.ClosePull(1) }, manager.Published, 1, "closed meanwhile"},
		"pull request closed, branch deleted": {"published", func(t *testing.T, h *hub, branch string) {
			h.repo.ClosePull(1)
			run(t, h.repo.Dir, "git", "update-ref", "-d", branch)
		}, manager.Published, 1, "closed meanwhile"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, githubtest.Options{})
			state := filepath.Join(t.TempDir(), "kick")
			h.crashOn(t, crashing, tc.event, state)
			tc.change(t, h, strings.TrimSpace(run(t, h.repo.Dir, "git", "for-each-ref", "--format=%(refname)", "refs/heads/kick/")))
			if out, err := h.gc(state); err != nil {
				t.Fatalf("kick gc: %v\n%s", err, out)
			}
			o := onlyOutcome(t, state)
			if o.Outcome != tc.want || h.Pushes() != 1 || len(h.repo.Pulls()) != tc.pulls || !strings.Contains(strings.Join(o.Notes, "\n"), tc.note) {
				t.Errorf("%d pushes, %d pull requests, %+v", h.Pushes(), len(h.repo.Pulls()), o)
			}
			if o.Outcome == manager.Interrupted && o.KeptAt == "" {
				t.Error("the work is not kept")
			}
		})
	}
}

// TestUnsettled shows that a publication which cannot be finished is tried
// again: after a crash while the server is down, and after a failure.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	crashing := buildCrashing(t)
	for name, begin := range map[string]func(*testing.T, *hub, string){
		"crash": func(t *testing.T, h *hub, state string) {
			h.crashOn(t, crashing, "pull-request", state)
			h.AddFault(githubtest.Fault{Match: "/repos/acme/api/", Times: 3, Status: 503})
			out, err := h.gc(state)
			if err == nil || !strings.Contains(out, "not finished") {
				t.Errorf("gc says nothing of it: %v\n%s", err, out)
			}
		},
		"failure": func(t *testing.T, h *hub, state string) {
			h.AddFault(githubtest.Fault{Match: openPull, Times: 3, Status: 503})
			o, _ := runKick(t, state, append(h.args, "-p", "Keep it", "--", "sh", "-c", "echo precious >work; git add work; git commit -qm precious")...)
			if o.ExitCode != 16 || o.PublishReason != pushbroker.ReasonServer || !strings.Contains(o.Remedy, "kick gc") {
				t.Errorf("%+v", o)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, githubtest.Options{})
			state := filepath.Join(t.TempDir(), "kick")
			begin(t, h, state)
			if o := onlyOutcome(t, state); !o.Unsettled || o.KeptAt == "" || len(h.repo.Pulls()) > 0 {
				t.Fatalf("%d pull requests, %+v", len(h.repo.Pulls()), o)
			}
			if out, err := h.gc(state); err != nil {
				t.Fatalf("kick gc: %v\n%s", err, out)
			}
			o := onlyOutcome(t, state)
			if o.Outcome != manager.Published || o.ExitCode != 0 || o.Unsettled || o.PullRequest == "" || o.Error != "" || o.Remedy != "" || o.PublishReason != "" {
				t.Errorf("%+v", o)
			}
			if len(h.repo.Pulls()) != 1 || h.Pushes() != 1 || h.LiveTokens() > 1 { // the crash left one
				t.Errorf("%d pull requests, %d pushes, %d live tokens", len(h.repo.Pulls()), h.Pushes(), h.LiveTokens())
			}
			if out, err := h.gc(state); err != nil || !strings.Contains(out, "nothing to clean up") {
				t.Errorf("there is more to do: %v\n%s", err, out)
			}
		})
	}
}

// TestTwoFinish has two processes finish one dead kick, each with a state
// directory of its own, as after a restored backup: one pull request.
func TestTwoFinish(t *testing.T) {
	t.Parallel()
	crashing := buildCrashing(t)
	for round := range 3 {
		h := newHub(t, githubtest.Options{})
		dir := t.TempDir()
		h.crashOn(t, crashing, "revoke#2", filepath.Join(dir, "0"))
		run(t, dir, "cp", "-a", "0", "1")
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				if out, err := h.gc(filepath.Join(dir, fmt.Sprint(i))); err != nil {
					t.Errorf("kick gc: %v\n%s", err, out)
				}
			})
		}
		wg.Wait()
		for i := range 2 {
			if o := onlyOutcome(t, filepath.Join(dir, fmt.Sprint(i))); o.Outcome != manager.Published || !strings.HasSuffix(o.PullRequest, "/pull/1") {
				t.Errorf("round %d: %+v", round, o)
			}
		}
		if h.Pushes() != 1 || len(h.repo.Pulls()) != 1 {
			t.Errorf("round %d: %d pushes, %d pull requests", round, h.Pushes(), len(h.repo.Pulls()))
		}
	}
}
