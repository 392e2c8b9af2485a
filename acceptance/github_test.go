package acceptance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/manager"
)

// hub is a stand-in for GitHub with one repository, and what kick needs to use
// it.
type hub struct {
	*githubtest.Server
	repo *githubtest.Repo
	args []string // flags of kick run
}

func newHub(t *testing.T, opts githubtest.Options) *hub {
	t.Helper()
	s := githubtest.Start(t, opts)
	h := &hub{Server: s, repo: s.MustAddRepo(t, "acme", "api", githubtest.RepoOptions{From: seedBare(t)})}
	key := filepath.Join(t.TempDir(), "app.pem")
	if err := os.WriteFile(key, s.PrivateKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	h.args = []string{"--repo", s.URL() + "/acme/api", "--github-api", s.API(), "--github-app-id", fmt.Sprint(githubtest.AppID), "--github-app-key", key}
	return h
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
				if len(p) > 2 {
					t.Errorf("a token had more rights than it needed: %v", p)
				}
			}
			if out, _ := exec.Command("grep", "-rlE", "ghs_[A-Za-z0-9]", state).CombinedOutput(); len(out) > 0 {
				t.Errorf("a token is in the state directory:\n%s", out)
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

// TestServerRefuses shows what GitHub's own refusals become.
func TestServerRefuses(t *testing.T) {
	t.Parallel()
	h := newHub(t, githubtest.Options{})
	if err := h.repo.AddRule("refs/heads/kick/*", "Commits must have verified signatures."); err != nil {
		t.Fatal(err)
	}
	o, _ := runKick(t, filepath.Join(t.TempDir(), "s"), append(h.args, "--", "sh", "-c", `echo hi >f; git add f; git commit -qm "add f"`)...)
	if o.Outcome != manager.PushFailed || !strings.Contains(o.Error, "verified signatures") || o.KeptAt == "" {
		t.Errorf("%s: %s, kept at %q", o.Outcome, o.Error, o.KeptAt)
	}
	if n := h.LiveTokens(); n != 0 {
		t.Errorf("%d tokens are alive", n)
	}
}

// TestCrashOnGitHub kills kick at the steps that only a forge has.
func TestCrashOnGitHub(t *testing.T) {
	t.Parallel()
	crashing := buildCrashing(t)
	for _, event := range []string{"mint", "push", "revoke", "pull-request", "published"} {
		t.Run(event, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, githubtest.Options{})
			state := filepath.Join(t.TempDir(), "kick")
			cmd := exec.Command(crashing, append(append([]string{"run", "--state-dir", state}, h.args...), "--", "sh", "-c", "echo precious >work; git add work; git commit -qm precious")...)
			cmd.Env = append(os.Environ(), "KICK_TEST_CRASH_AT="+event)
			out, _ := cmd.CombinedOutput()
			if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
				t.Fatalf("kick was not killed at %s: %v\n%s", event, cmd.ProcessState, out)
			}
			gc := exec.Command(kick, "gc", "--state-dir", state)
			gc.Env = append(os.Environ(), "KICK_GITHUB_API_URL="+h.API(), "KICK_GITHUB_APP_ID="+fmt.Sprint(githubtest.AppID), "KICK_GITHUB_APP_KEY_FILE="+h.args[len(h.args)-1])
			if out, err := gc.CombinedOutput(); err != nil {
				t.Fatalf("kick gc: %v\n%s", err, out)
			}
			o := onlyOutcome(t, state)
			pushed := h.repo.Ref("refs/heads/kick/agent/"+o.ID) != ""
			if pushed != (o.Outcome == manager.Published) {
				t.Errorf("outcome %s, but pushed is %v: %+v", o.Outcome, pushed, o)
			}
			if !pushed && o.KeptAt == "" {
				t.Errorf("the work is lost: %+v", o)
			}
			if h.Pushes() > 1 {
				t.Errorf("%d pushes", h.Pushes())
			}
		})
	}
}
