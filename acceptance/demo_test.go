package acceptance

import (
	"bufio"
	"bytes"
	"os"
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

// TestDemoServe goes on with the demonstration's stand-in as it says itself:
// commits with a signature, and an update of the first pull request.
func TestDemoServe(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(kick, "demo", "--serve", "--state-dir", filepath.Join(t.TempDir(), "state"))
	cmd.Dir = t.TempDir()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	var script strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		said = append(said, lines.Text())
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "export KICK_") {
			script.WriteString(line + "\n")
		}
		before, _, ok := strings.Cut(line, " -- COMMAND")
		if ok && strings.Contains(before, " --repo ") {
			script.WriteString(before + " --signed --squash -- sh -c 'echo 1 >one; git add one; git commit -qm one'\n")
		} else if ok {
			script.WriteString(before + " -- sh -c 'test -e docs/thanks.md && echo 2 >two; git add two; git commit -qm two'\n")
			break
		}
	}
	sh := exec.Command("sh", "-euc", script.String())
	out, err := sh.Output()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	for lines.Scan() {
		said = append(said, lines.Text())
	}
	if werr := cmd.Wait(); werr != nil || err != nil {
		t.Fatalf("the stand-in: %v, the kicks: %v\n%s\n%s", werr, err, out, strings.Join(said, "\n"))
	}
	if got := strings.Fields(string(out)); len(got) != 6 || !strings.HasSuffix(got[2], "/pull/2") || !strings.HasSuffix(got[5], "/pull/1") {
		t.Errorf("the kicks ended with:\n%s", out)
	}
}
