package gitcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLimits reads what the kernel says of a git child under way.
func TestLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := (Git{}).Output(t.Context(), nil, "init", "-q", "--bare", dir); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	g := Git{Dir: dir, Limits: Limits{CPU: 1500 * time.Millisecond, Memory: 3 << 30, FileSize: 5 << 20, Alone: true}}
	cmd, err := g.Command(t.Context(), "cat-file", "--batch-check")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = r
	if err := g.start(cmd); err != nil {
		t.Fatal(err)
	}
	proc := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	limits, err := os.ReadFile(proc + "limits")
	if err != nil {
		t.Fatal(err)
	}
	if group, err := syscall.Getpgid(cmd.Process.Pid); err != nil || group != cmd.Process.Pid {
		t.Errorf("process group %d, %v", group, err)
	}
	for name, want := range map[string]string{
		"Max cpu time": "2 2", "Max address space": "3221225472 3221225472", "Max file size": "5242880 5242880",
		"Max core file size": "1 1", "Max processes": "1 1",
	} {
		found := false
		for line := range strings.Lines(string(limits)) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				found = true
				if got := strings.Join(strings.Fields(rest)[:2], " "); got != want {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
			}
		}
		if !found {
			t.Errorf("no limit %q in:\n%s", name, limits)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("git did not end well under its limits: %v", err)
	}
}

// TestEnvironment has a child see nothing of this process's own environment.
func TestEnvironment(t *testing.T) {
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("KICK_GITHUB_TOKEN", "planted")
	cmd, err := Git{}.Command(t.Context(), "version")
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range cmd.Env {
		if name, _, _ := strings.Cut(kv, "="); name == "GIT_CONFIG_COUNT" || strings.Contains(kv, "planted") {
			t.Errorf("the child gets %s", name)
		}
	}
	if len(cmd.Env) == 0 {
		t.Error("an empty environment is this process's own")
	}
}

// TestDeadline ends a git that waits for input that never comes, and what it
// started.
func TestDeadline(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "r")
	if _, err := (Git{}).Output(t.Context(), nil, "init", "-q", "--bare", dir); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	g := Git{Dir: dir, Config: []string{"alias.wait=!cat"}, Limits: Limits{Deadline: 50 * time.Millisecond}}
	if err := g.Run(t.Context(), r, nil, "wait"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}
