package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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
			if left, err := filepath.Glob(filepath.Join(state, "kicks", "*", "quarantine.git")); err != nil || len(left) > 0 {
				t.Errorf("the quarantine is left behind: %q, %v", left, err)
			}
			if left := leftovers(xdg); len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
			o := onlyOutcome(t, state)
			published := strings.Contains(run(t, bare, "git", "for-each-ref"), "refs/heads/kick/")
			if !published && s.event != "outcome" && o.Outcome != manager.Interrupted {
				t.Errorf("outcome %s of a kick that was killed", o.Outcome)
			}
			if published != (o.Outcome == manager.Published) {
				t.Errorf("outcome %s, but published is %v", o.Outcome, published)
			}
			if !s.work || published {
				return
			}
			wantKept(t, bare, o)
		})
	}
}

// wantKept wants the work of a kick that was killed: a file of its name.
func wantKept(t *testing.T, bare string, o manager.Outcome) {
	t.Helper()
	if o.KeptAt == "" {
		t.Fatalf("the work is lost: %+v", o)
	}
	clone := filepath.Join(t.TempDir(), "c")
	run(t, "", "git", "clone", "-q", bare, clone)
	run(t, clone, "git", "fetch", "-q", filepath.Join(o.KeptAt, "final.bundle"), "HEAD:kept")
	if got := run(t, clone, "git", "show", "kept:work"); got != "precious\n" {
		t.Errorf("the kept work is %q", got)
	}
}

// TestSalvageAgain shows that work which could not be taken out, as on a full
// disk, is not given up: it stays in the live workspace, and the next attempt
// gets it.
func TestSalvageAgain(t *testing.T) {
	t.Parallel()
	state, dir := crashed(t, buildCrashing(t))
	// A directory in the bundle's place cannot be replaced by it.
	blocked := filepath.Join(dir, "out", "final.bundle.earlier", "x")
	if err := errors.Join(os.MkdirAll(blocked, 0o700), os.WriteFile(filepath.Join(dir, "out", "final.bundle"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(kick, "gc", "--state-dir", state).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "kick salvage") {
		t.Errorf("gc says nothing of what is missing: %v\n%s", err, out)
	}
	if o := onlyOutcome(t, state); o.Outcome != manager.Interrupted || len(o.Missing) == 0 {
		t.Fatalf("%+v", o)
	}
	if err := errors.Join(os.RemoveAll(filepath.Dir(blocked)), os.Remove(filepath.Join(dir, "out", "final.bundle"))); err != nil {
		t.Fatal(err)
	}
	out, err = exec.Command(kick, "salvage", "--state-dir", state, "last").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "precious") {
		t.Errorf("%v\n%s", err, out)
	}
	o := onlyOutcome(t, state)
	if o.Outcome != manager.Interrupted || len(o.Missing) > 0 || o.KeptAt != filepath.Join(dir, "out") {
		t.Errorf("%+v", o)
	}
	if _, err := os.Lstat(filepath.Join(dir, "work")); err == nil {
		t.Error("the live workspace is still there")
	}
	if out, err := exec.Command(kick, "gc", "--state-dir", state).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestGCInterrupted stops `kick gc` at any instant: what it had not taken out yet
// stays where it is, and the next one gets it.
func TestGCInterrupted(t *testing.T) {
	t.Parallel()
	crashing := buildCrashing(t)
	for _, after := range []time.Duration{5, 20, 40, 60, 80, 100, 150, 200, 300} {
		t.Run(strconv.Itoa(int(after)), func(t *testing.T) {
			t.Parallel()
			state, dir := crashed(t, crashing)
			ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
			defer cancel()
			gc := exec.CommandContext(ctx, kick, "gc", "--state-dir", state)
			gc.Cancel = func() error { return gc.Process.Signal(syscall.SIGTERM) }
			_ = gc.Run() // it may have ended before
			if out, err := exec.Command(kick, "gc", "--state-dir", state).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			o := onlyOutcome(t, state)
			if o.Outcome != manager.Interrupted || o.Commits != 1 || o.KeptAt != filepath.Join(dir, "out") {
				t.Errorf("the work is lost: %+v", o)
			}
		})
	}
}

// crashed is the state and the directory of a kick whose agent has committed, and
// whose process was killed then.
func crashed(t *testing.T, crashing string) (state, dir string) {
	t.Helper()
	state = filepath.Join(t.TempDir(), "kick")
	cmd := exec.Command(crashing, "run", "--state-dir", state, "--repo", seedBare(t), "--publish", "branch", "--",
		"sh", "-c", "echo precious >work; git add work; git commit -qm precious")
	cmd.Env = append(os.Environ(), "KICK_TEST_CRASH_AT=agent-exited")
	_ = cmd.Run() // killed
	kicks, err := filepath.Glob(filepath.Join(state, "kicks", "*"))
	if err != nil || len(kicks) != 1 {
		t.Fatalf("kicks %q, %v", kicks, err)
	}
	return state, kicks[0]
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
