package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kickid"
)

// memorySink keeps artifacts in memory.
type memorySink struct {
	mu      sync.Mutex
	whole   map[string][]byte
	aborted []string
	refuse  Artifact
}

type memoryWriter struct {
	bytes.Buffer
	sink *memorySink
	name string
}

func (m *memorySink) Create(a Artifact, name string) (SinkWriter, error) {
	if a == m.refuse {
		return nil, errors.New("the disk is full")
	}
	if name == "" {
		name = string(a)
	}
	return &memoryWriter{sink: m, name: name}, nil
}

func (w *memoryWriter) Close() error {
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	if w.sink.whole == nil {
		w.sink.whole = map[string][]byte{}
	}
	w.sink.whole[w.name] = w.Bytes()
	return nil
}

func (w *memoryWriter) Abort() error {
	w.sink.aborted = append(w.sink.aborted, w.name)
	return nil
}

// repository makes a work tree with one commit, in a directory that nobody but
// the caller can enter, and returns it with the commit's id.
func repository(t *testing.T) (dir, oid string) {
	t.Helper()
	private := filepath.Join(workspaceDir(t), "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(private, "repo")
	script := `git init -q "$1" && cd "$1" && git config user.name a && git config user.email a@b && echo base >f && git add f && git commit -qm base && git rev-parse HEAD`
	cmd := exec.Command("sh", "-c", script, "sh", dir)
	cmd.Env = []string{"PATH=" + testPath, "HOME=" + private, "GIT_CONFIG_NOSYSTEM=1"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir, strings.TrimSpace(string(out))
}

func TestCollect(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	const work = `echo new >>f && git commit -qam "agent work" && echo '{"ok":true}' >agent-report.json`
	tests := []struct {
		name   string
		script string
		limits Limits
		reason Reason
	}{
		{"after a success", work, Limits{}, ReasonExited},
		{"after the doors were closed", work + "; chmod 0 .git/objects/* .git/objects .git/refs .git f .", Limits{}, ReasonExited},
		{"after a failure", work + "; exit 3", Limits{}, ReasonExited},
		{"after a time-out", work + "; sleep 1000", Limits{Wall: 10 * time.Second}, ReasonTimeout},
		{"after running out of memory", work + "; head -c 400m /dev/zero | tail; exit 1", Limits{Memory: 150 << 20}, ReasonOutOfMemory},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, oid := repository(t)
			sink := &memorySink{}
			var events []EventKind
			r := launch(t, e, LaunchSpec{
				Command:   []string{"sh", "-c", tt.script},
				Env:       map[string]string{"PATH": testPath, "HOME": HomeDir},
				Workspace: Workspace{Dir: dir, BaseOID: oid, Sink: sink},
				Limits:    tt.limits,
				OnEvent:   func(e Event) { events = append(events, e.Kind) },
			})
			if r.err != nil || r.Reason != tt.reason || len(r.Missing) > 0 {
				t.Fatalf("reason %s, %v, missing %q, stderr %q", r.Reason, r.err, r.Missing, r.stderr)
			}
			if !slices.Contains(r.Artifacts, FinalBundle) || !bytes.HasPrefix(sink.whole[string(FinalBundle)], []byte("# v2 git bundle")) {
				t.Errorf("artifacts %q, the bundle is %.40q", r.Artifacts, sink.whole[string(FinalBundle)])
			}
			if got := strings.TrimSpace(string(sink.whole["agent-report.json"])); got != `{"ok":true}` {
				t.Errorf("the report is %q", got)
			}
			if want := []EventKind{EventProved, EventStarted, EventExited, EventBundled, EventFinished}; !slices.Equal(events, want) {
				t.Errorf("events %q, want %q", events, want)
			}
		})
	}
}

// The sandbox that waits for the agent's end may die meanwhile: another one
// makes the artifacts.
func TestCollectAgain(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	var collectors atomic.Int32
	e.weak.box = func(s *embeddedBox) {
		if s.plan.mode == frame.CollectMode && collectors.Add(1) == 1 {
			s.plan.jail.Hostname = strings.Repeat("x", 100) // longer than Linux takes
		}
	}
	dir, oid := repository(t)
	sink := &memorySink{}
	r := launch(t, e, LaunchSpec{
		Command:   []string{"sh", "-c", "echo new >>f && git commit -qam new"},
		Env:       map[string]string{"PATH": testPath, "HOME": HomeDir},
		Workspace: Workspace{Dir: dir, BaseOID: oid, Sink: sink},
	})
	if r.err != nil || len(r.Missing) > 0 || !slices.Contains(r.Artifacts, FinalBundle) {
		t.Errorf("%v, missing %q, artifacts %q, stderr %q", r.err, r.Missing, r.Artifacts, r.stderr)
	}
	if n := collectors.Load(); n != 2 {
		t.Errorf("%d sandboxes for the artifacts, want 2", n)
	}
}

func TestCollectOnly(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	dir, oid := repository(t)
	if out, err := exec.Command("sh", "-c", "cd "+dir+" && echo dirty >>f").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	sink := &memorySink{refuse: WorkSummary}
	r := launch(t, e, LaunchSpec{Workspace: Workspace{Dir: dir, BaseOID: oid, Sink: sink}})
	if r.err != nil || r.Reason != ReasonExited || r.ExitCode != 0 || len(r.Isolation.Properties) == 0 {
		t.Fatalf("reason %s, exit code %d, %v, %d properties", r.Reason, r.ExitCode, r.err, len(r.Isolation.Properties))
	}
	if len(sink.whole[string(DirtyArchive)]) == 0 || sink.whole[string(FinalBundle)] != nil {
		t.Errorf("artifacts %q", r.Artifacts)
	}
	if len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "the disk is full") {
		t.Errorf("missing %q", r.Missing)
	}
}

// TestCollectAfterCancel cancels a run that has committed: the work comes back.
func TestCollectAfterCancel(t *testing.T) {
	t.Parallel()
	dir, oid := repository(t)
	sink := &memorySink{}
	ctx, cancel := context.WithCancel(t.Context())
	res, err := newEmbedded(t).Run(ctx, LaunchSpec{
		ID:        kickid.New(),
		Command:   []string{"sh", "-c", "echo new >>f && git commit -qam work && echo up && sleep 1000"},
		Env:       map[string]string{"PATH": testPath, "HOME": HomeDir},
		Workspace: Workspace{Dir: dir, BaseOID: oid, Sink: sink},
		Stdout: writerFunc(func(p []byte) (int, error) {
			cancel()
			return len(p), nil
		}),
	})
	if err != nil || res.Reason != ReasonCancelled || !slices.Contains(res.Artifacts, FinalBundle) {
		t.Errorf("reason %s, %v, artifacts %q, missing %q", res.Reason, err, res.Artifacts, res.Missing)
	}
}

// TestWorkspaceLinks gives the sandbox a workspace with links that point out of
// it: what they point to keeps its owner.
func TestWorkspaceLinks(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(workspaceDir(t), "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := workspaceDir(t)
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	r := launch(t, newEmbedded(t), LaunchSpec{Command: []string{"sh", "-c", "touch here && cat link"}, Workspace: Workspace{Dir: dir}})
	if r.err != nil || r.ExitCode == 0 {
		t.Errorf("exit code %d, %v", r.ExitCode, r.err)
	}
	var st unix.Stat_t
	if err := unix.Stat(outside, &st); err != nil || int(st.Uid) != os.Geteuid() {
		t.Errorf("the file outside belongs to %d, %v", st.Uid, err)
	}
	if os.Geteuid() != 0 {
		return // nothing is given away
	}
	hard := workspaceDir(t)
	if err := os.Link(outside, filepath.Join(hard, "hard")); err != nil {
		t.Fatal(err)
	}
	r = launch(t, newEmbedded(t), LaunchSpec{Command: []string{"true"}, Workspace: Workspace{Dir: hard}})
	if !errors.Is(r.err, ErrRuntime) || !strings.Contains(fmt.Sprint(r.err), "hard") {
		t.Errorf("a hard link to a file outside: %v", r.err)
	}
}

// TestNoUserNamespaces runs where the kernel allows no user namespace: the
// error names the property and a remedy.
func TestNoUserNamespaces(t *testing.T) {
	t.Parallel()
	if os.Getenv("KICK_TEST_NO_USERNS") != "" {
		r := launch(t, newEmbedded(t), LaunchSpec{Command: []string{"true"}})
		var failure *Error
		if !errors.As(r.err, &failure) || !errors.Is(r.err, ErrIsolation) || failure.Op != "user-namespace" || !strings.Contains(failure.Remedy, "max_user_namespaces") {
			t.Errorf("error %v", r.err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(workspaceDir(t), "shim")
	if err := os.WriteFile(shim, shimBytes, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		return // takes a user namespace with several users
	}
	// The limit is one of a user namespace's own: this one's, not the host's.
	cmd := exec.Command("sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces && exec "$0" -test.run='^TestNoUserNamespaces$' -test.v`, self)
	some := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: some, GidMappings: some, Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "KICK_TEST_NO_USERNS=1", "KICK_TEST_SHIM="+shim)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestNoUserNamespaces") {
		t.Errorf("%v\n%s", err, out)
	}
}
