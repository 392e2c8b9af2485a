package sandboxtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

func (s *suite) wantReason(t *testing.T, spec sandbox.LaunchSpec, want sandbox.Reason) outcome {
	t.Helper()
	o := s.run(t, spec)
	if o.Reason != want || o.ExitCode == 0 || o.Detail == "" {
		t.Errorf("%s, exit code %d, detail %q, want %s; stdout %q, stderr %q", o.Reason, o.ExitCode, o.Detail, want, clip(o.stdout), clip(o.stderr))
	}
	s.wantNothing(t, spec.ID)
	return o
}

func (s *suite) memoryLimit(t *testing.T) {
	t.Run("over", func(t *testing.T) {
		t.Parallel()
		spec := s.probing(t, "memory", itoa(1<<30))
		spec.Limits.Memory = 128 << 20
		s.wantReason(t, spec, sandbox.ReasonOutOfMemory)
	})
	t.Run("together", func(t *testing.T) {
		t.Parallel()
		spec := s.probing(t)
		probe := spec.Command[0]
		spec.Command = []string{"sh", "-c", probe + " memory 60000000 & a=$!; " + probe + " memory 60000000 & b=$!; " + probe + " memory 60000000 & wait $! && wait $b && wait $a", spec.ID}
		spec.Limits.Memory, spec.Limits.Wall = 128<<20, 20*time.Second
		o := s.start(t, spec).wait()
		// The kernel may end one of the three, and the shell waits for the others,
		// or all.
		if o.err != nil || o.Reason != sandbox.ReasonOutOfMemory && o.Reason != sandbox.ReasonTimeout {
			t.Errorf("%v, %s, %s", o.err, o.Reason, o.Detail)
		}
	})
	t.Run("under", func(t *testing.T) {
		t.Parallel()
		spec := s.script(t, "head -c 10000000 /dev/zero | tail -c 10000000 | wc -c")
		spec.Limits.Memory = 128 << 20
		if o := s.succeed(t, spec); strings.TrimSpace(o.stdout) != "10000000" || o.Peak.Memory > 128<<20 {
			t.Errorf("stdout %q, peak %+v", o.stdout, o.Peak)
		}
	})
}

func (s *suite) processLimit(t *testing.T) {
	spec := s.script(t, "i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done; echo all 200 run")
	spec.Limits.Processes = 20
	o := s.wantReason(t, spec, sandbox.ReasonProcessLimit)
	if strings.Contains(o.stdout, "all 200 run") {
		t.Error("all 200 processes ran")
	}
	under := s.script(t, "sleep 0 & sleep 0 & sleep 0 & wait; echo fine")
	under.Limits.Processes = 20
	s.succeed(t, under)
}

// Many small files, from a command that would go on for ever.
func (s *suite) diskLimit(t *testing.T) {
	spec := s.script(t, "i=0; while :; do head -c 1000000 /dev/zero >f$i; i=$((i+1)); [ $i -lt 40 ] || exec sleep 60; done")
	spec.Limits.Disk = 8 << 20
	s.wantReason(t, spec, sandbox.ReasonDiskLimit)
}

// One file that grows beyond the limit faster than anybody can look.
func (s *suite) fileSizeLimit(t *testing.T) {
	spec := s.script(t, "head -c 500000000 /dev/zero >big")
	spec.Limits.Disk = 8 << 20
	s.wantReason(t, spec, sandbox.ReasonDiskLimit)
	if info, err := os.Stat(filepath.Join(spec.Workspace.Dir, "big")); err == nil && info.Size() > 100<<20 {
		t.Errorf("the file has %d bytes", info.Size())
	}
}

// 60 MB of output are counted, passed on up to the limit, and shown with their
// end.
func (s *suite) outputLimit(t *testing.T) {
	const size, limit = 60_000_000, 1 << 20
	spec := s.script(t, "echo THE BEGINNING; head -c 60000000 /dev/zero | tr '\\0' x; echo THE END; echo err >&2")
	spec.Limits.Output = limit
	o := s.succeed(t, spec)
	want := int64(len("THE BEGINNING\n") + size + len("THE END\n"))
	if o.StdoutBytes != want || o.StderrBytes != 4 || !o.OutputCut {
		t.Errorf("%d bytes, want %d; %d bytes of stderr; cut %v", o.StdoutBytes, want, o.StderrBytes, o.OutputCut)
	}
	if n := len(o.stdout); n < limit || n > limit+80<<10 {
		t.Errorf("%d bytes were passed on, want the limit of %d and the end", n, limit)
	}
	all := o.stdout + o.stderr
	if !strings.HasPrefix(o.stdout, "THE BEGINNING\n") || !strings.Contains(all, "THE END\n") || !strings.Contains(all, "err\n") {
		t.Errorf("beginning or end are missing: %q, stderr %q", clip(o.stdout), clip(o.stderr))
	}
}

func (s *suite) noOutputLimit(t *testing.T) {
	spec := s.script(t, "head -c 40000000 /dev/zero | tr '\\0' x")
	spec.Limits.Output = -1
	spec.Limits.Wall = time.Minute
	if o := s.succeed(t, spec); o.OutputCut || len(o.stdout) != 40_000_000 || o.StdoutBytes != 40_000_000 {
		t.Errorf("%d bytes came, %d were counted, cut %v", len(o.stdout), o.StdoutBytes, o.OutputCut)
	}
}
