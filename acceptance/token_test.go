package acceptance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
)

// TestOwnToken goes to a pull request with a token of the operator's own in
// place of an App. No state and no output holds it afterwards, and it lives on.
func TestOwnToken(t *testing.T) {
	t.Parallel()
	h := newHub(t, githubtest.Options{APIPath: "/api/v3"})
	token := h.UserToken("olga", githubtest.Permissions{"contents": "write", "pull_requests": "write"}, h.repo)
	state := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(kick, "run", "--state-dir", state, "--repo", h.URL()+"/acme/api", "--github-api", h.API(), "--",
		"sh", "-c", `env >&2; echo hi >f; git add f; git commit -qm "add f"`)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "KICK_GITHUB_TOKEN="+token)
	out, err := cmd.CombinedOutput()
	if err != nil || len(h.repo.Pulls()) != 1 {
		t.Fatalf("%v, %d pull requests\n%s", err, len(h.repo.Pulls()), out)
	}
	if strings.Contains(string(out), token) {
		t.Errorf("the output holds the token:\n%s", out)
	}
	if found, err := exec.Command("grep", "-rlF", token, state).CombinedOutput(); err == nil {
		t.Errorf("the state holds the token:\n%s", found)
	}
	// An agent that came by it does not get it out.
	cmd = exec.Command(kick, "run", "--state-dir", state, "--repo", h.URL()+"/acme/api", "--github-api", h.API(), "--", "sh", "-c",
		`echo $0$1 >f; git add f; git commit -qm "add f"`, token[:9], token[9:])
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "KICK_GITHUB_TOKEN="+token)
	out, _ = cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 13 || len(h.repo.Pulls()) != 1 {
		t.Errorf("%v, %d pull requests\n%s", cmd.ProcessState, len(h.repo.Pulls()), out)
	}
}
