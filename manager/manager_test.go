package manager

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	want := map[Code]int{
		Published: 0, Inspected: 0, Internal: 1, FetchFailed: 1, Usage: 2, Nothing: 10, AgentFailed: 11, TimedOut: 12,
		Refused: 13, NotIsolated: 14, RuntimeError: 15, Interrupted: 15, PushFailed: 16, Cancelled: 130,
	}
	for code, n := range want {
		if got := code.ExitCode(); got != n {
			t.Errorf("%s: %d, want %d", code, got, n)
		}
	}
	if len(exitCodes) != len(want) {
		t.Errorf("%d codes, %d tested", len(exitCodes), len(want))
	}
	if got := Code("no such").ExitCode(); got != 1 {
		t.Errorf("an unknown outcome exits with %d: only known successes may be 0", got)
	}
}

func newState(t *testing.T) *State {
	t.Helper()
	s, err := OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpenStateRefuses(t *testing.T) {
	t.Parallel()
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenState(open); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("a state directory that others can read: %v", err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenState(file); err == nil || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("a file: %v", err)
	}
	link := filepath.Join(t.TempDir(), "l")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenState(link); err == nil {
		t.Error("a symbolic link was taken for a state directory")
	}
}

func TestKickLife(t *testing.T) {
	t.Parallel()
	s := newState(t)
	k, err := s.NewKick()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.lockKick(k.ID); !errors.Is(err, ErrBusy) {
		t.Errorf("a second lock of a running kick: %v", err)
	}
	if st, err := s.Status(k.ID); err != nil || st != StatusRunning {
		t.Errorf("status %s, %v", st, err)
	}
	if err := k.Journal.Intend("push", map[string]string{"branch": "b"}); err != nil {
		t.Fatal(err)
	}
	if err := k.Finish(Outcome{ID: k.ID, Agent: "a", Outcome: Nothing, Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if o, err := s.Outcome(k.ID); err != nil || o.Outcome != Nothing {
		t.Errorf("outcome %+v, %v", o, err)
	}
	if left, _ := os.ReadDir(filepath.Join(s.Dir, "active")); len(left) != 0 {
		t.Errorf("a finished kick is still marked as active: %v", left)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 || list[0].Status != Status(Nothing) {
		t.Errorf("list %+v, %v", list, err)
	}
}

func TestDeadKick(t *testing.T) {
	t.Parallel()
	s := newState(t)
	k, err := s.NewKick()
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Journal.Note("kick", map[string]string{"agent": "scanner"}); err != nil {
		t.Fatal(err)
	}
	// A crash in the middle of a line.
	if _, err := k.Journal.f.WriteString(`{"time":"2026-01-01T00:00:00Z","event":"pre`); err != nil {
		t.Fatal(err)
	}
	if err := k.close(); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Status(k.ID); err != nil || st != StatusDead {
		t.Errorf("status %s, %v", st, err)
	}
	// What comes after it stands in a line of its own.
	next, err := s.lockKick(k.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(next.Journal.Note("noticed", nil), next.close()); err != nil {
		t.Fatal(err)
	}
	if entries, err := readJournal(k.Path("journal.jsonl")); err != nil || len(entries) != 2 || entries[1].Event != "noticed" {
		t.Errorf("entries %+v, %v", entries, err)
	}
	if dead, err := s.dead(); err != nil || len(dead) != 1 || dead[0] != k.ID {
		t.Errorf("dead kicks %v, %v", dead, err)
	}
	m := &Manager{State: s, Launchers: map[string]sandbox.Launcher{}}
	o, err := m.Recover(t.Context(), k.ID)
	if err != nil || o.Outcome != Interrupted || o.Agent != "scanner" {
		t.Errorf("recovered as %+v, %v", o, err)
	}
	if dead, err := s.dead(); err != nil || len(dead) != 0 {
		t.Errorf("dead kicks after recovery: %v, %v", dead, err)
	}
	again, err := m.Recover(t.Context(), k.ID)
	if err != nil || again.Outcome != Interrupted || !again.Finished.Equal(o.Finished) {
		t.Errorf("a second recovery changed the outcome: %+v, %v", again, err)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	s := newState(t)
	if _, err := s.Find("last"); err == nil {
		t.Error("found a kick where there is none")
	}
	var ids []string
	for range 2 {
		k, err := s.NewKick()
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Finish(Outcome{ID: k.ID}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, k.ID)
	}
	if ids[0] > ids[1] {
		ids[0], ids[1] = ids[1], ids[0] // made within one millisecond
	}
	for name, want := range map[string]string{"last": ids[1], ids[0]: ids[0]} {
		if got, err := s.Find(name); err != nil || got != want {
			t.Errorf("Find(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"", "k", "nope", "../" + ids[0]} {
		if got, err := s.Find(name); err == nil {
			t.Errorf("Find(%q) = %q", name, got)
		}
	}
}

func TestFingerprintKey(t *testing.T) {
	t.Parallel()
	s := newState(t)
	keys := make(chan string, 8)
	for range cap(keys) {
		go func() {
			key, err := s.fingerprintKey()
			if err != nil {
				t.Error(err)
			}
			keys <- string(key)
		}()
	}
	first := <-keys
	for range cap(keys) - 1 {
		if k := <-keys; k != first || len(k) != 32 {
			t.Error("two processes at once got two keys")
		}
	}
}

// TestEnvironment holds what an agent gets to the list that the documentation
// gives: nothing of kick's own environment passes but program directories of
// PATH.
func TestEnvironment(t *testing.T) {
	t.Setenv("PATH", "/root/bin:/usr/local/go/bin:/usr/bin:relative:/opt/tools/bin:/usr/bin")
	t.Setenv("GITHUB_TOKEN", "x")
	t.Setenv("HTTPS_PROXY", "http://user:pass@proxy")
	r := &run{k: &Kick{ID: "k0000000000000"}, req: Request{Agent: "a", Env: map[string]string{"EXTRA": "1", "LANG": "de_DE.UTF-8"}, ProgramDirs: []string{"/opt/tools"}}}
	got := r.environment()
	want := map[string]string{
		"PATH": "/usr/local/go/bin:/usr/bin:/opt/tools/bin:/usr/local/bin:/bin:/opt/tools", "HOME": "/home/agent", "USER": "agent", "LOGNAME": "agent",
		"SHELL": "/bin/sh", "LANG": "de_DE.UTF-8", "TMPDIR": "/tmp", "TERM": "dumb", "EXTRA": "1",
		"KICK_ID": "k0000000000000", "KICK_AGENT": "a", "KICK_PROMPT_FILE": "/workspace/.hive/kick-prompt.txt",
		"HTTP_PROXY": "http://127.0.0.1:3128", "http_proxy": "http://127.0.0.1:3128", "NO_PROXY": "127.0.0.1,localhost,::1",
		"HTTPS_PROXY": "http://127.0.0.1:3128", "https_proxy": "http://127.0.0.1:3128", "no_proxy": "127.0.0.1,localhost,::1",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s=%q, want %q", k, got[k], v)
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s=%q is more than the documentation says", k, got[k])
		}
	}
	r.req.Network = sandbox.NetworkNone
	for k := range r.environment() {
		if strings.HasSuffix(strings.ToLower(k), "_proxy") {
			t.Errorf("%s is set without a way to a proxy", k)
		}
	}
}
