// Package sandboxtest is the contract that every sandbox.Launcher meets, as one
// test suite. A launcher's test says
//
//	func TestContract(t *testing.T) {
//		sandboxtest.TestLauncher(t, sandboxtest.Harness{New: newLauncher})
//	}
//
// and has one subtest for each requirement. The suite runs real commands in
// real sandboxes. In the sandbox it needs sh, git and coreutils; on the host git
// and, unless KICK_SANDBOXTEST_PROBE names a ready one, Go to build its probe.
// It can be run as root and as an ordinary user, and by several users at once.
package sandboxtest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

// Harness describes the launcher under test.
type Harness struct {
	// New returns a launcher. It is called several times, also in other
	// processes, and all of its launchers share what state they have: they are
	// the several kicks of one user on one host.
	New func() (sandbox.Launcher, error)
	// Image is the image of every run, for runtimes that use images. Empty:
	// the runtime takes none, and must refuse one.
	Image string
	// Path is the PATH in the sandbox. Default: DefaultPath.
	Path string
	// Sent tells that the workspace in the sandbox is a copy of the directory: what
	// happens there is not seen here, and nothing but the end can be said to the
	// command.
	Sent bool
	// Beside is how many processes of the runtime's own a command sees, beyond
	// process 1 and the shim.
	Beside int
	// OneMountPath tells that the workspace can be at sandbox.DefaultMountPath alone.
	OneMountPath bool
	// Filtered tells that the sandbox has an interface, and that a filter outside of
	// it lets nothing pass. The gateway is no Unix socket then.
	Filtered bool
	// Remains, if set, lists what the runtime has of its own on this host:
	// containers, pods, state. It is compared before and after the suite.
	Remains func() ([]string, error)
	// Cannot names subtests that the runtime cannot pass, each with the reason.
	// They are skipped with it. A name that no subtest has is an error.
	Cannot map[string]string
}

// DefaultPath finds sh, git and coreutils on most systems.
const DefaultPath = "/usr/local/bin:/usr/bin:/bin"

// ProbeEnv names a variable that holds the path of a ready build of
// github.com/kickhq/kick/sandbox/sandboxtest/probe. It spares users without
// Go's caches the build.
const ProbeEnv = "KICK_SANDBOXTEST_PROBE"

// subtests are the contract, in the order in which it is best read.
var subtests = []struct {
	name string
	test func(*suite, *testing.T)
}{
	{"Environment", (*suite).environment},
	{"Home", (*suite).home},
	{"Descriptors", (*suite).descriptors},
	{"Stdin", (*suite).stdin},
	{"Arguments", (*suite).arguments},
	{"WorkingDirectory", (*suite).workingDirectory},
	{"Stderr", (*suite).stderr},
	{"Streaming", (*suite).streaming},
	{"BrokenWriter", (*suite).brokenWriter},
	{"ExitCode", (*suite).exitCode},
	{"Signal", (*suite).signal},
	{"NoSuchCommand", (*suite).noSuchCommand},
	{"Result", (*suite).result},
	{"BadSpec", (*suite).badSpec},
	{"Preflight", (*suite).preflight},

	{"Timeout", (*suite).timeout},
	{"Cancel", (*suite).cancel},
	{"CancelBeforeStart", (*suite).cancelBeforeStart},
	{"Orphans", (*suite).orphans},
	{"LauncherKilled", (*suite).launcherKilled},
	{"NothingLeft", (*suite).nothingLeft},

	{"MemoryLimit", (*suite).memoryLimit},
	{"ProcessLimit", (*suite).processLimit},
	{"DiskLimit", (*suite).diskLimit},
	{"FileSizeLimit", (*suite).fileSizeLimit},
	{"OutputLimit", (*suite).outputLimit},
	{"NoOutputLimit", (*suite).noOutputLimit},

	{"EightAtOnce", (*suite).eightAtOnce},
	{"SameID", (*suite).sameID},

	{"Egress", (*suite).egress},
	{"NetworkNone", (*suite).networkNone},
	{"NoOtherNetwork", (*suite).noOtherNetwork},

	{"Identity", (*suite).identity},
	{"SystemCalls", (*suite).systemCalls},
	{"HostProcesses", (*suite).hostProcesses},
	{"HostFiles", (*suite).hostFiles},
	{"ReadOnlySystem", (*suite).readOnlySystem},
	{"FirstProcess", (*suite).firstProcess},
	{"Setuid", (*suite).setuid},

	{"Work", (*suite).work},
	{"WorkUntouched", (*suite).workUntouched},
	{"WorkAfterTimeout", (*suite).workAfterTimeout},
	{"WorkAfterCancel", (*suite).workAfterCancel},
	{"WorkAfterMemoryLimit", (*suite).workAfterMemoryLimit},
	{"WorkOnly", (*suite).workOnly},
	{"WorkTooLarge", (*suite).workTooLarge},
	{"WorkUnlimited", (*suite).workUnlimited},
	{"SinkFails", (*suite).sinkFails},
	{"BaseObjects", (*suite).baseObjects},
	{"BadBase", (*suite).badBase},
}

// TestLauncher tests the launchers of h against the contract.
func TestLauncher(t *testing.T, h Harness) {
	t.Helper()
	if spec := os.Getenv(childEnv); spec != "" {
		runChild(t, h, spec)
		return
	}
	names := map[string]bool{}
	for _, sub := range subtests {
		names[sub.name] = true
	}
	for name, reason := range h.Cannot {
		if !names[name] || reason == "" {
			t.Errorf("Harness.Cannot has %q: %q, want the name of a subtest and a reason", name, reason)
		}
	}
	s := newSuite(t, h)
	for _, sub := range subtests {
		t.Run(sub.name, func(t *testing.T) {
			if reason, ok := h.Cannot[sub.name]; ok {
				t.Skipf("the runtime cannot: %s", reason)
			}
			t.Parallel()
			sub.test(s, t)
		})
	}
}

// suite is what the subtests share.
type suite struct {
	h        Harness
	launcher sandbox.Launcher
	probe    string // path of the probe program on the host
	test     string // name of the test that runs the suite
	prefix   string // of the ids of all sandboxes
	canary   string // a text that no sandbox may see
	ids      atomic.Int64
}

func newSuite(t *testing.T, h Harness) *suite {
	t.Helper()
	if h.Path == "" {
		h.Path = DefaultPath
	}
	l, err := h.New()
	if err != nil {
		t.Fatalf("make the launcher: %v", err)
	}
	s := &suite{h: h, launcher: l, test: t.Name(), prefix: "t" + random(4) + "-", canary: "canary-" + random(16)}
	s.probe = buildProbe(t)
	// Nothing of this process's environment may reach a sandbox.
	if err := os.Setenv("KICK_SANDBOXTEST_CANARY", s.canary); err != nil {
		t.Fatal(err)
	}
	var before []string
	if h.Remains != nil {
		if before, err = h.Remains(); err != nil {
			t.Fatalf("list the runtime's remains: %v", err)
		}
	}
	// After all subtests: nothing of any sandbox is left.
	t.Cleanup(func() {
		if c, ok := l.(interface{ Close() error }); ok {
			if err := c.Close(); err != nil {
				t.Errorf("close the launcher: %v", err)
			}
		}
		s.wantNothing(t, s.prefix)
		if h.Remains == nil {
			return
		}
		after, err := h.Remains()
		if err != nil {
			t.Errorf("list the runtime's remains: %v", err)
		}
		for _, r := range after {
			if !slices.Contains(before, r) {
				t.Errorf("left behind: %s", r)
			}
		}
	})
	return s
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails on Linux
	return hex.EncodeToString(b)
}

// id returns a new id of at most 19 characters, which no other one begins with: what is
// left is looked for by it.
func (s *suite) id() string { return fmt.Sprintf("%s%05d", s.prefix, s.ids.Add(1)) }

// buildProbe builds the program that the suite runs in sandboxes where sh and
// coreutils do not suffice.
func buildProbe(t *testing.T) string {
	t.Helper()
	if p := os.Getenv(ProbeEnv); p != "" {
		return p
	}
	p := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", p, "github.com/kickhq/kick/sandbox/sandboxtest/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	return p
}

// spec returns the specification of a run of command in a directory of its own.
func (s *suite) spec(t *testing.T, command ...string) sandbox.LaunchSpec {
	t.Helper()
	return sandbox.LaunchSpec{
		ID:        s.id(),
		Agent:     "contract",
		Image:     s.h.Image,
		Command:   command,
		Env:       map[string]string{"PATH": s.h.Path},
		Workspace: sandbox.Workspace{Dir: newDir(t)},
		Limits:    sandbox.Limits{Wall: time.Minute},
	}
}

// script is spec for a shell script; $0 is the sandbox's id, so that its
// processes can be told on the host.
func (s *suite) script(t *testing.T, script string) sandbox.LaunchSpec {
	t.Helper()
	spec := s.spec(t)
	spec.Command = []string{"sh", "-c", script, spec.ID}
	return spec
}

// probing is spec for the probe, which is put into the working directory.
func (s *suite) probing(t *testing.T, args ...string) sandbox.LaunchSpec {
	t.Helper()
	spec := s.spec(t)
	b, err := os.ReadFile(s.probe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(spec.Workspace.Dir, "probe"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	spec.Command = append([]string{sandbox.DefaultMountPath + "/probe"}, args...)
	return spec
}

func newDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "workspace")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func sorted(m map[string]string) []string {
	list := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, k+"="+m[k])
	}
	return list
}

func words(s string) []string { return strings.Fields(s) }
