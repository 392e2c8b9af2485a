package acceptance

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/manager"
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
	before := len(h.repo.Pulls())
	o, _ = runKick(t, state, append(h.args, "--signed", "--", "sh", "-c", `ln -s README.md l; git add l; git commit -qm link`)...)
	if o.ExitCode != 16 || !strings.Contains(o.Error, "symbolic link") || len(h.repo.Pulls()) != before || h.repo.Ref("refs/heads/kick/agent/"+o.ID) != "" {
		t.Errorf("%d: %s", o.ExitCode, o.Error)
	}
}
