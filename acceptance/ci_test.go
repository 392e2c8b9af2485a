package acceptance

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/manager"
)

const exposingWorkflow = `name: CI
on: pull_request
permissions: read-all
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - run: make test
        env: {NPM_TOKEN: "${{ secrets.NPM_TOKEN }}"}
`

// TestCIExposed shows that a kick ends before its push where the repository's CI
// would answer that by running what the agent wrote with a secret, that the
// operator can accept it by name, and that `kick policy ci` says so beforehand.
func TestCIExposed(t *testing.T) {
	t.Parallel()
	h := newHub(t, githubtest.Options{})
	src := filepath.Join(t.TempDir(), "src")
	run(t, "", "git", "clone", "-q", seedBare(t), src)
	if err := os.WriteFile(filepath.Join(src, ".github/workflows/ci.yml"), []byte(exposingWorkflow), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, src, "git", "add", "-A")
	run(t, src, "git", "commit", "-qm", "add CI")
	repo := h.MustAddRepo(t, "acme", "exposed", githubtest.RepoOptions{From: src})
	args := append([]string{"--repo", h.URL() + "/acme/exposed"}, h.args[2:]...)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	accept := "version: 1\nci:\n  accept:\n    - {workflow: .github/workflows/ci.yml, job: test, reason: the token can only read, expires: 2999-01-01}\n"
	if err := os.WriteFile(policy, []byte(accept), 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "s")
	agent := []string{"--", "sh", "-c", "echo hi >f; git add f; git commit -qm 'add f'"}

	code, report := policyCI(t, append([]string{"--state-dir", state, h.URL() + "/acme/exposed"}, h.args[2:]...))
	if code != manager.Refused.ExitCode() || !report.GitHub || !report.Exposed || report.Repo != "acme/exposed" || len(report.Findings) != 1 {
		t.Errorf("policy ci: code %d, %+v", code, report)
	}
	code, report = policyCI(t, append([]string{"--state-dir", state, "--policy", policy, h.URL() + "/acme/exposed"}, h.args[2:]...))
	if code != 0 || report.Exposed || report.Findings[0].Exception != "the token can only read" {
		t.Errorf("policy ci, accepted: code %d, %+v", code, report)
	}

	o, _ := runKick(t, state, append(args[:len(args):len(args)], agent...)...)
	if o.Outcome != manager.Refused || h.Pushes() != 0 || o.KeptAt == "" || len(o.Findings) != 1 || o.Findings[0].Rule != "ci-exposure" {
		t.Fatalf("%s, %d pushes, kept at %q: %s %+v", o.Outcome, h.Pushes(), o.KeptAt, o.Error, o.Findings)
	}
	for _, want := range []string{"secret NPM_TOKEN (line 10)", "pull_request opened", "line 9"} {
		if !strings.Contains(o.Findings[0].Message, want) {
			t.Errorf("%q is not in %q", want, o.Findings[0].Message)
		}
	}
	// A branch alone starts no workflow here, and what is accepted passes.
	o, _ = runKick(t, state, append(append(args[:len(args):len(args)], "--publish", "branch"), agent...)...)
	if o.Outcome != manager.Published {
		t.Errorf("branch alone: %s: %s", o.Outcome, o.Error)
	}
	o, _ = runKick(t, state, append(append(args[:len(args):len(args)], "--policy", policy), agent...)...)
	if o.Outcome != manager.Published || len(repo.Pulls()) != 1 {
		t.Errorf("accepted: %s, %d pull requests: %s", o.Outcome, len(repo.Pulls()), o.Error)
	}
	if n := h.LiveTokens(); n != 0 {
		t.Errorf("%d tokens are alive", n)
	}
}

// policyCI runs `kick policy ci` and reads its report.
func policyCI(t *testing.T, args []string) (int, manager.CIReport) {
	t.Helper()
	cmd := exec.Command(kick, append([]string{"policy", "ci", "-o", "json"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	var r manager.CIReport
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(fmt.Errorf("%w: %s%s", err, out, stderr.String()))
	}
	return cmd.ProcessState.ExitCode(), r
}
