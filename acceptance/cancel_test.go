package acceptance

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/manager"
)

// TestCancelAtAnyTime stops kick at many moments of its first half second.
// Whenever that is, it says that it was cancelled, and nothing else: what a
// look that was cut short did not see is not missing.
func TestCancelAtAnyTime(t *testing.T) {
	t.Parallel()
	checkout := filepath.Join(t.TempDir(), "c")
	run(t, "", "git", "clone", "-q", seedBare(t), checkout)
	xdg := t.TempDir()
	for delay := 20 * time.Millisecond; delay < 500*time.Millisecond; delay += 20 * time.Millisecond {
		cmd := exec.Command(kick, "run", "-o", "json", "--state-dir", filepath.Join(xdg, "kick"), "--", "sleep", "60")
		cmd.Dir = checkout
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop := time.AfterFunc(delay, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
		_ = cmd.Wait()
		stop.Stop()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGTERM && stdout.Len() == 0 {
			continue // before it listened
		}
		var o manager.Outcome
		if err := json.Unmarshal([]byte(stdout.String()), &o); err != nil || o.Outcome != manager.Cancelled || cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("after %s: %v, outcome %s: %s\n%s", delay, cmd.ProcessState, o.Outcome, o.Error, stderr.String())
		}
	}
	if left := leftovers(xdg); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}
