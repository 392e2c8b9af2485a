package acceptance

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/pushbroker"
)

// TestSigned satisfies a ruleset that wants signed commits, where a push would
// be refused, and refuses what cannot be signed.
func TestSigned(t *testing.T) {
	t.Parallel()
	h := newHub(t, githubtest.Options{})
	if err := h.repo.AddRule("refs/heads/kick/*", "Commits must have verified signatures."); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "s")
	o, _ := runKick(t, state, append(h.args, "--signed", "--", "sh", "-c", `echo hi >f; git add f; git commit -qm "add f"`)...)
	if o.Outcome != manager.Published || o.PullRequest == "" || h.repo.Ref("refs/heads/"+o.Branch) != o.Commit || h.Pushes() != 0 {
		t.Errorf("%s: %s, branch at %s, %d pushes", o.Outcome, o.Error, h.repo.Ref("refs/heads/"+o.Branch), h.Pushes())
	}
	if notes := strings.Join(o.Notes, " "); !strings.Contains(notes, "GitHub made and signed the commits") {
		t.Errorf("notes: %q", o.Notes)
	}
	if out, _ := exec.Command("grep", "-rlE", "gh[a-z]_[A-Za-z0-9]", state).CombinedOutput(); len(out) > 0 || h.LiveTokens() != 0 {
		t.Errorf("%d tokens are alive; a token is in the state directory:\n%s", h.LiveTokens(), out)
	}
	before := len(h.repo.Pulls())
	o, _ = runKick(t, state, append(h.args, "--signed", "--", "sh", "-c", `ln -s README.md l; git add l; git commit -qm link`)...)
	if o.ExitCode != 16 || !strings.Contains(o.Error, "symbolic link") || len(h.repo.Pulls()) != before || h.repo.Ref("refs/heads/kick/agent/"+o.ID) != "" {
		t.Errorf("%d: %s", o.ExitCode, o.Error)
	}
}

// signedCrash runs a signed kick that dies, of a crash point or of itself: die
// is given its process.
func (h *hub) signedCrash(t *testing.T, program, event, script string, die func(*os.Process)) (state string) {
	t.Helper()
	state = filepath.Join(t.TempDir(), "kick")
	cmd := exec.Command(program, append(append([]string{"run", "--state-dir", state, "--signed", "-p", "Keep it"}, h.args...), "--", "sh", "-ec", script)...)
	cmd.Env = append(os.Environ(), "KICK_TEST_CRASH_AT="+event)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if die != nil {
		die(cmd.Process)
	}
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("kick was not killed: %v\n%s", cmd.ProcessState, output.String())
	}
	return state
}

// TestSignedCrash kills kick around the commits that GitHub makes, whose ids no
// journal can know. The next start asks the branch what it has: the whole work
// is finished without another commit, a part of it is named and left, and what
// others did is not touched.
func TestSignedCrash(t *testing.T) {
	t.Parallel()
	crashing := buildCrashing(t)
	const one, two = "echo precious >work; git add work; git commit -qm precious", "echo precious >work; git add work; git commit -qm precious; echo more >work; git commit -qam more"
	// GitHub has answered, and kick is about to look at the commit.
	atAnswer := func(h *hub) func(*os.Process) {
		return func(p *os.Process) {
			h.before("GET /repos/acme/api/git/commits/", func() { _ = p.Kill() })
		}
	}
	move := func(what string) func(*testing.T, *hub, string) {
		return func(t *testing.T, h *hub, ref string) {
			run(t, h.repo.Dir, "sh", "-ec", strings.ReplaceAll(what, "REF", ref))
		}
	}
	for name, tc := range map[string]struct {
		event, script string
		die           func(*hub) func(*os.Process)
		change        func(t *testing.T, h *hub, ref string)
		commits       int // that GitHub had made
		want          manager.Code
		note          string
	}{
		"before the branch":           {event: "push", script: one, want: manager.Interrupted},
		"before the first commit":     {event: "sign", script: one, want: manager.Interrupted, note: "with 0 of the 1 commit that GitHub was making"},
		"before the second commit":    {event: "sign#2", script: two, commits: 1, want: manager.Interrupted, note: "with 1 of the 2 commits that GitHub was making"},
		"after the answer":            {die: atAnswer, script: one, commits: 1, want: manager.Published},
		"after the record":            {event: "signed", script: two, commits: 2, want: manager.Published},
		"before the pull request":     {event: "pull-request", script: two, commits: 2, want: manager.Published},
		"then the branch is deleted":  {die: atAnswer, script: one, commits: 1, change: move("git update-ref -d REF"), want: manager.Interrupted},
		"then somebody adds to it":    {die: atAnswer, script: one, commits: 1, change: move("git update-ref REF $(git -c user.name=x -c user.email=x commit-tree -p REF -m other main^{tree})"), want: manager.Interrupted, note: "with other work"},
		"then it has the tree alone":  {die: atAnswer, script: one, commits: 1, change: move("git update-ref REF $(git -c user.name=x -c user.email=x commit-tree -p main -m precious REF^{tree})"), want: manager.Interrupted, note: "with other work"},
		"then it has another parent":  {die: atAnswer, script: one, commits: 1, change: move("git update-ref REF $(git cat-file commit REF | sed s/^parent.*/parent\\ $(git -c user.name=x -c user.email=x commit-tree -p main -m between main^{tree})/ | git hash-object -w -t commit --stdin)"), want: manager.Interrupted, note: "with other work"},
		"then it has another message": {die: atAnswer, script: one, commits: 1, change: move("git update-ref REF $(git cat-file commit REF | sed s/precious/cheap/ | git hash-object -w -t commit --stdin)"), want: manager.Interrupted, note: "with other work"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, githubtest.Options{})
			program, die := crashing, (func(*os.Process))(nil)
			if tc.die != nil {
				program, die = kick, tc.die(h)
			}
			state := h.signedCrash(t, program, tc.event, tc.script, die)
			ref := strings.TrimSpace(run(t, h.repo.Dir, "git", "for-each-ref", "--format=%(refname)", "refs/heads/kick/"))
			if tc.change != nil {
				tc.change(t, h, ref)
			}
			before := run(t, h.repo.Dir, "git", "for-each-ref")
			for range 2 {
				if out, err := h.gc(state); err != nil {
					t.Fatalf("kick gc: %v\n%s", err, out)
				}
			}
			o := onlyOutcome(t, state)
			if o.Outcome != tc.want || o.Unsettled || !strings.Contains(strings.Join(o.Notes, "\n"), tc.note) {
				t.Errorf("want %s and a note %q: %+v", tc.want, tc.note, o)
			}
			if after := run(t, h.repo.Dir, "git", "for-each-ref"); after != before || h.Count("/graphql") != tc.commits || h.Pushes() != 0 {
				t.Errorf("%d commits were asked for, %d pushes; the branches were\n%sand are\n%s", h.Count("/graphql"), h.Pushes(), before, after)
			}
			if tc.want != manager.Published {
				if len(h.repo.Pulls()) != 0 || o.KeptAt == "" {
					t.Errorf("%d pull requests, kept at %q", len(h.repo.Pulls()), o.KeptAt)
				}
				return
			}
			pulls := h.repo.Pulls()
			if len(pulls) != 1 || o.PullRequest == "" || o.Commit != h.repo.Ref(ref) || pulls[0].HeadOID != o.Commit || pulls[0].Body != proposed(t, state).Body {
				t.Errorf("pull requests %+v, branch at %s, %+v", pulls, h.repo.Ref(ref), o)
			}
		})
	}
}

// TestSignedAsksAgain: a server that is down when the commit was made, and when
// kick asks for it, is asked again by the next start.
func TestSignedAsksAgain(t *testing.T) {
	t.Parallel()
	h := newHub(t, githubtest.Options{})
	state := filepath.Join(t.TempDir(), "kick")
	h.AddFault(githubtest.Fault{Match: "GET /repos/acme/api/git/commits", Times: 6, Status: 503})
	o, _ := runKick(t, state, append(h.args, "--signed", "--", "sh", "-c", "echo precious >work; git add work; git commit -qm precious")...)
	if o.Outcome != manager.PushFailed || !o.Unsettled || o.PublishReason != pushbroker.ReasonServer || !strings.Contains(o.Remedy, "kick gc") {
		t.Fatalf("%+v", o)
	}
	if out, err := h.gc(state); err == nil || !strings.Contains(out, "not finished") {
		t.Errorf("gc says nothing of what is missing: %v\n%s", err, out)
	}
	if out, err := h.gc(state); err != nil {
		t.Fatalf("kick gc: %v\n%s", err, out)
	}
	o = onlyOutcome(t, state)
	if o.Outcome != manager.Published || o.Unsettled || len(h.repo.Pulls()) != 1 || h.Count("/graphql") != 1 || o.Commit != h.repo.Ref("refs/heads/"+o.Branch) {
		t.Errorf("%d pull requests, %d commits, %+v", len(h.repo.Pulls()), h.Count("/graphql"), o)
	}
}

// TestSignedUpdateCrash kills an update when GitHub has made its commit: the next
// start finds it, and tells the reviewers once.
func TestSignedUpdateCrash(t *testing.T) {
	t.Parallel()
	h := newHub(t, githubtest.Options{})
	state := filepath.Join(t.TempDir(), "kick")
	first, output := runKick(t, state, append(h.args, "--", "sh", "-ec", prelude+"work")...)
	if first.Outcome != manager.Published {
		t.Fatalf("%s\n%s", first.Outcome, output)
	}
	args := append([]string{"run", "--state-dir", state, "--update", first.ID, "--signed"}, h.args[2:]...)
	cmd := exec.Command(kick, append(args, "--", "sh", "-ec", "echo more >more; git add more; git commit -qm more")...)
	h.before("GET /repos/acme/api/git/commits/", func() { _ = cmd.Process.Kill() })
	out, _ := cmd.CombinedOutput()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("kick was not killed: %v\n%s", cmd.ProcessState, out)
	}
	for range 2 {
		if out, err := h.gc(state); err != nil {
			t.Fatalf("kick gc: %v\n%s", err, out)
		}
	}
	if err := forgetKick(state, first.ID); err != nil {
		t.Fatal(err)
	}
	o, pulls := onlyOutcome(t, state), h.repo.Pulls()
	if o.Outcome != manager.Published || o.Commit != h.repo.Ref("refs/heads/"+first.Branch) || o.Commit == first.Commit || h.Count("/graphql") != 1 || h.Pushes() != 1 {
		t.Errorf("%d commits, %d pushes, %+v", h.Count("/graphql"), h.Pushes(), o)
	}
	if len(pulls) != 1 || len(pulls[0].Comments) != 1 || !strings.Contains(pulls[0].Comments[0], "a commit of GitHub's with the tree") {
		t.Errorf("pull requests %+v", pulls)
	}
}
