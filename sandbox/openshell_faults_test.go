package sandbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/openshelltest"
	"github.com/kickhq/kick/sandbox"
)

// What a gateway does wrong ends in the right reason, with nothing left, or does
// not matter.
func TestOpenShellFaults(t *testing.T) {
	t.Parallel()
	seconds := func(n int) func(*sandbox.OpenShellConfig, *sandbox.LaunchSpec) {
		return func(c *sandbox.OpenShellConfig, _ *sandbox.LaunchSpec) {
			c.ReadyWithin = time.Duration(n) * time.Second
		}
	}
	run := func(name string, f *openshelltest.Faults, script string, change func(*sandbox.OpenShellConfig, *sandbox.LaunchSpec), check func(*testing.T, openShellRan)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, onOpenShell(t, openshelltest.Options{Faults: f}, script, change))
		})
	}
	fine := func(t *testing.T, r openShellRan) {
		t.Helper()
		if r.err != nil || r.Reason != sandbox.ReasonExited || r.ExitCode != 7 || !strings.Contains(r.stdout, "ran\n") {
			t.Errorf("%v, %+v, %.200q", r.err, r.Result, r.stdout)
		}
	}
	const script = "echo ran; exit 7"

	waited := ""
	never := func(c *sandbox.OpenShellConfig, s *sandbox.LaunchSpec) {
		seconds(10)(c, s)
		s.OnEvent = func(e sandbox.Event) { waited += string(e.Kind) + " " + e.Why + "\n" }
	}
	run("never ready", &openshelltest.Faults{NotReady: "SupervisorNotConnected"}, script, never, func(t *testing.T, r openShellRan) {
		r.wantError(t, sandbox.ErrRuntime, "not ready within 10s", "SupervisorNotConnected", "callback address")
		if !strings.HasPrefix(waited, "waiting it is in the phase provisioning: SupervisorNotConnected: still waiting") || strings.Count(waited, "waiting it") != 1 {
			t.Errorf("it told of %q", waited)
		}
	})
	run("fails", &openshelltest.Faults{Fails: "ImagePullBackOff"}, script, nil, func(t *testing.T, r openShellRan) {
		r.wantError(t, sandbox.ErrRuntime, "ImagePullBackOff", "nodes may pull it")
		if strings.Contains(r.err.Error(), "\x1b") {
			t.Errorf("the gateway's escape sequence is in the error: %q", r.err)
		}
	})
	run("ready too early", &openshelltest.Faults{ReadyEarly: true}, script, nil, fine)
	gaps := &openshelltest.Faults{}
	gaps.Gaps.Store(3)
	run("gaps before the shim runs", gaps, script, nil, fine)
	run("watches that break", &openshelltest.Faults{WatchEnds: 1}, script, nil, fine)
	run("streams that break", &openshelltest.Faults{ExecEnds: 100_000}, "echo ran; head -c 1000000 /dev/zero | tr '\\0' x; exit 7", nil, fine)
	run("streams that say nothing", &openshelltest.Faults{ExecEnds: 7}, script, nil, func(t *testing.T, r openShellRan) {
		r.wantError(t, sandbox.ErrRuntime, "the line to the sandbox is cut")
		if r.Reason != sandbox.ReasonStartFailed {
			t.Errorf("%+v", r.Result)
		}
	})
	run("a lie about success", &openshelltest.Faults{ExecExit: new(int32(0))}, script, nil, fine)
	run("a lie about the shim's end", &openshelltest.Faults{ExecExit: new(int32(0)), ExecEnds: 100_000}, "echo ran; head -c 1000000 /dev/zero | tr '\\0' x; exit 7", nil, fine)
	run("a lie about failure", &openshelltest.Faults{ExecExit: new(int32(1))}, script, nil, func(t *testing.T, r openShellRan) {
		r.wantError(t, sandbox.ErrRuntime, "put the shim into the sandbox", "exit code 1")
	})
	run("more after the exit", &openshelltest.Faults{AfterExit: true}, script, nil, fine)
	run("a flood of logs", &openshelltest.Faults{LogLines: 200_000}, script, nil, func(t *testing.T, r openShellRan) {
		fine(t, r)
		if len(r.logs) != 1 || !strings.Contains(r.logs[0].Message, "could not be read") {
			t.Errorf("%d lines, %+v", len(r.logs), r.logs[:min(1, len(r.logs))])
		}
	})
	run("lines of logs that are long", &openshelltest.Faults{LogBytes: 4 << 10}, script, nil, func(t *testing.T, r openShellRan) {
		fine(t, r)
		if len(r.logs) < 100 || len(r.logs[0].Message) != 4<<10 {
			t.Errorf("%d lines, %.100s", len(r.logs), r.logs[0].Message)
		}
	})
	run("more logs than asked for", &openshelltest.Faults{LogLines: 10_000}, script, nil, func(t *testing.T, r openShellRan) {
		fine(t, r)
		if len(r.logs) != 2000 {
			t.Errorf("%d lines", len(r.logs))
		}
	})
	deaf := &openshelltest.Faults{}
	deaf.Deaf.Store(new("GetSandboxLogs"))
	run("an answer that never comes", deaf, script, nil, fine)
	run("a sandbox that stays", &openshelltest.Faults{Undead: true}, script, nil, func(t *testing.T, r openShellRan) {
		if r.Reason != sandbox.ReasonExited || r.ExitCode != 7 || r.err == nil || !strings.Contains(r.err.Error(), "kick gc") {
			t.Errorf("%v, %+v", r.err, r.Result)
		}
	})
}

// A cancel ends the waiting for a sandbox, and for the answer that there is one, and
// leaves none.
func TestOpenShellCancelWhileStarting(t *testing.T) {
	t.Parallel()
	created := &openshelltest.Faults{}
	created.Mute.Store(new("CreateSandbox"))
	for call, f := range map[string]*openshelltest.Faults{"WatchSandbox": {NotReady: "ContainerStarting"}, "CreateSandbox": created} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			cancelAt(t, call, f)
		})
	}
}

func cancelAt(t *testing.T, call string, f *openshelltest.Faults) {
	t.Helper()
	g := openshelltest.Start(t, openshelltest.Options{Faults: f})
	l, err := sandbox.NewOpenShell(openShellConfig(g))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for g.Calls(call) == 0 || len(g.Sandboxes()) == 0 {
			time.Sleep(time.Millisecond) // the gateway tells nobody of its calls
		}
		cancel()
	}()
	res, err := l.Run(ctx, sandbox.LaunchSpec{ID: "c" + random(), Image: openshelltest.Image, Command: []string{"true"}, Env: map[string]string{"PATH": sandboxPath}})
	if err != nil || res.Reason != sandbox.ReasonCancelled || len(g.Sandboxes()) > 0 {
		t.Errorf("%v, %+v, left %q", err, res, g.Sandboxes())
	}
}
