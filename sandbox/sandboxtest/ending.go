package sandboxtest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

// stubborn is a command that does its best to outlive its sandbox: it ignores
// SIGTERM, and so do a child in a session of its own, a grandchild without a
// parent, and one that has closed its output. Each writes a heartbeat.
const stubborn = `
trap '' TERM HUP INT
beat() { while :; do echo >>"$1"; sleep 0.02; done; }
export mark=$0
setsid sh -c 'trap "" TERM HUP; while :; do echo >>beat.session; sleep 0.02; done' "$mark" &
( (trap '' TERM HUP; beat beat.orphan) & ) 
( (trap '' TERM HUP; beat beat.quiet) <&- >&- 2>&- & )
for f in session orphan quiet; do until [ -s beat.$f ]; do sleep 0.01; done; done
echo all run
beat beat.main
`

// wantSilence fails if any process or heartbeat of a stubborn run goes on.
func (s *suite) wantSilence(t *testing.T, spec sandbox.LaunchSpec) {
	t.Helper()
	s.wantNothing(t, spec.ID)
	if s.h.Sent {
		return // the heartbeats are the sandbox's own
	}
	beats := func() (sizes []int64) {
		for _, f := range []string{"main", "session", "orphan", "quiet"} {
			if info, err := os.Stat(filepath.Join(spec.Workspace.Dir, "beat."+f)); err == nil {
				sizes = append(sizes, info.Size())
			}
		}
		return sizes
	}
	first := beats()
	if len(first) < 3 {
		t.Fatalf("%d heartbeats, want at least three: the command did not run as it should", len(first))
	}
	time.Sleep(200 * time.Millisecond) // ten heartbeats
	if second := beats(); !slices.Equal(first, second) {
		t.Errorf("heartbeats go on: %v, then %v", first, second)
	}
}

func (s *suite) timeout(t *testing.T) {
	spec := s.script(t, stubborn)
	spec.Limits.Wall = 4 * time.Second
	r := s.start(t, spec)
	r.waitFor("all run\n")
	o := r.wait()
	if o.err != nil || o.Reason != sandbox.ReasonTimeout || o.ExitCode == 0 {
		t.Errorf("%v, %s, exit code %d, %s", o.err, o.Reason, o.ExitCode, o.Detail)
	}
	if d := o.Finished.Sub(o.Started); d < spec.Limits.Wall || d > spec.Limits.Wall+30*time.Second {
		t.Errorf("ended %v after its start", d)
	}
	s.wantSilence(t, spec)
}

func (s *suite) cancel(t *testing.T) {
	spec := s.script(t, stubborn)
	r := s.start(t, spec)
	r.waitFor("all run\n")
	r.cancel()
	if o := r.wait(); o.err != nil || o.Reason != sandbox.ReasonCancelled || o.ExitCode == 0 {
		t.Errorf("%v, %s, exit code %d, %s", o.err, o.Reason, o.ExitCode, o.Detail)
	}
	s.wantSilence(t, spec)
}

func (s *suite) cancelBeforeStart(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	spec := s.script(t, "echo ran >ran")
	res, _ := s.launcher.Run(ctx, spec)
	if res.Reason != sandbox.ReasonCancelled {
		t.Errorf("reason %s, %s", res.Reason, res.Detail)
	}
	s.wantNothing(t, spec.ID)
}

// What the command leaves running ends with it, and does not hold the run up.
func (s *suite) orphans(t *testing.T) {
	script := strings.Replace(stubborn, "beat beat.main", "echo >>beat.main; exit 3", 1)
	spec := s.script(t, script)
	o := s.run(t, spec)
	if o.Reason != sandbox.ReasonExited || o.ExitCode != 3 {
		t.Errorf("%s, exit code %d", o.Reason, o.ExitCode)
	}
	if d := o.Finished.Sub(o.Started); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
	s.wantSilence(t, spec)
}

// When the launcher's process is killed, the sandbox ends with it, and its id
// is free again.
func (s *suite) launcherKilled(t *testing.T) {
	spec := s.script(t, stubborn)
	c := s.startChild(t, spec)
	c.waitFor(t, "all run\n")
	c.kill()
	// Only processes of the sandbox have the id as an argument.
	eventually(t, "processes", func() []string { return marked(spec.ID) })
	s.wantSilenceAfterKill(t, spec)

	if r, ok := s.launcher.(sandbox.Reaper); ok {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := r.Reap(ctx); err != nil {
			t.Errorf("reap: %v", err)
		}
	}
	again := s.script(t, "echo again")
	again.ID = spec.ID
	again.Workspace = spec.Workspace
	if o := s.succeed(t, again); o.stdout != "again\n" {
		t.Errorf("stdout %q", o.stdout)
	}
	s.wantNothing(t, spec.ID)
	if left, err := filepath.Glob(filepath.Join(c.tmp, "*kick*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

func (s *suite) wantSilenceAfterKill(t *testing.T, spec sandbox.LaunchSpec) {
	t.Helper()
	if s.h.Sent {
		return
	}
	size := func() int64 {
		info, err := os.Stat(filepath.Join(spec.Workspace.Dir, "beat.orphan"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	first := size()
	time.Sleep(200 * time.Millisecond) // ten heartbeats
	if second := size(); first != second {
		t.Errorf("the heartbeat goes on: %d, then %d", first, second)
	}
}

// A process that has run a sandbox leaves nothing on the host.
func (s *suite) nothingLeft(t *testing.T) {
	before := mounts(t)
	spec := s.script(t, "echo hi; sleep 100 & echo >/tmp/x; echo >x")
	c := s.startChild(t, spec)
	select {
	case <-c.done:
	case <-time.After(patience):
		t.Fatalf("the child process has not ended\n%s", clip(c.out.String()))
	}
	if c.err != nil || !strings.Contains(c.out.String(), "hi\n") {
		t.Fatalf("the child process: %v\n%s", c.err, clip(c.out.String()))
	}
	s.wantNothing(t, spec.ID)
	after := mounts(t)
	for _, m := range after {
		if !slices.Contains(before, m) && strings.Contains(m, spec.ID) {
			t.Errorf("a mount is left: %s", m)
		}
	}
	left, err := os.ReadDir(c.tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}
