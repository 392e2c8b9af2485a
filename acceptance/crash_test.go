package acceptance

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/manager"
)

// TestCrash kills kick with SIGKILL at every step. Whatever the step, `kick gc`
// leaves no process, mount or cgroup, and the work is there or was published.
func TestCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	crashing := buildCrashing(t)
	base := seedBare(t)
	steps := []struct {
		event string
		work  bool // the agent had committed
	}{
		{"kick", false}, {"prepared", false}, {"sandbox", false}, {"agent-started", false},
		{"agent-exited", true}, {"bundled", true}, {"ingested", true}, {"inspected", true},
		{"push", true}, {"published", true}, {"outcome", true},
	}
	for _, s := range steps {
		t.Run(s.event, func(t *testing.T) {
			t.Parallel()
			bare := filepath.Join(t.TempDir(), "r.git")
			run(t, "", "cp", "-r", base, bare)
			xdg := t.TempDir()
			state := filepath.Join(xdg, "kick")
			cmd := exec.Command(crashing, "run", "--state-dir", state, "--repo", bare, "--publish", "branch", "--",
				"sh", "-c", "echo precious >work; git add work; git commit -qm precious; echo dirt >dirt")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "KICK_TEST_CRASH_AT="+s.event)
			out, _ := cmd.CombinedOutput()
			if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
				t.Fatalf("kick was not killed at %s: %v\n%s", s.event, cmd.ProcessState, out)
			}
			if out, err := exec.Command(kick, "gc", "--state-dir", state).CombinedOutput(); err != nil {
				t.Fatalf("kick gc: %v\n%s", err, out)
			}
			if left := leftovers(xdg); len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
			o := onlyOutcome(t, state)
			published := strings.Contains(run(t, bare, "git", "for-each-ref"), "refs/heads/kick/")
			if published != (o.Outcome == manager.Published) {
				t.Errorf("outcome %s, but published is %v", o.Outcome, published)
			}
			if !s.work || published {
				return
			}
			if o.KeptAt == "" {
				t.Fatalf("the work is lost: %+v", o)
			}
			clone := filepath.Join(t.TempDir(), "c")
			run(t, "", "git", "clone", "-q", bare, clone)
			run(t, clone, "git", "fetch", "-q", filepath.Join(o.KeptAt, "final.bundle"), "HEAD:kept")
			if got := run(t, clone, "git", "show", "kept:work"); got != "precious\n" {
				t.Errorf("the kept work is %q", got)
			}
		})
	}
}

// buildCrashing builds a kick that kills itself where it is told to.
func buildCrashing(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kick-crash")
	build := exec.Command("go", "build", "-tags", "kickcrash", "-o", program, "./cmd/kick")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func onlyOutcome(t *testing.T, state string) manager.Outcome {
	t.Helper()
	results, err := filepath.Glob(filepath.Join(state, "kicks", "*", "result.json"))
	if err != nil || len(results) != 1 {
		t.Fatalf("want one result, have %q (%v)", results, err)
	}
	b, err := os.ReadFile(results[0])
	if err != nil {
		t.Fatal(err)
	}
	var o manager.Outcome
	if err := json.Unmarshal(b, &o); err != nil {
		t.Fatal(err)
	}
	return o
}
