package acceptance

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDemo runs the README's first command, and the same where there is no
// repository to work on, or one without a history.
func TestDemo(t *testing.T) {
	t.Parallel()
	shallow := filepath.Join(t.TempDir(), "shallow")
	run(t, "", "git", "clone", "-q", "--depth=1", "file://"+seedBare(t), shallow)
	empty := t.TempDir()
	run(t, empty, "git", "init", "-q")
	for name, dir := range map[string]string{"here": "..", "elsewhere": t.TempDir(), "shallow": shallow, "empty": empty} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := filepath.Join(t.TempDir(), "state")
			cmd := exec.Command(kick, "demo", "--state-dir", state)
			cmd.Dir = dir
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
			for i, want := range []string{"published", "refused", "refused"} {
				if len(lines) != 3 || !strings.HasPrefix(lines[i], want) {
					t.Fatalf("results:\n%s", stdout.String())
				}
			}
			for _, want := range []string{"github-token", ".github/workflows/lint.yml", "Pull request #1", "interfaces: lo", "kept at"} {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("the demonstration does not show %q:\n%s", want, stderr.String())
				}
			}
			// What it says is kept can be looked at when it has ended.
			out, err := exec.Command(kick, "diff", "--state-dir", state, "last").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "lint.yml") {
				t.Errorf("the refused work is not there: %v\n%s", err, out)
			}
		})
	}
}
