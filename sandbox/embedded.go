package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/kickhq/kick/internal/frame"
)

// Embedded is the runtime that needs nothing installed: namespaces, a root file
// system made of the host's program directories, Landlock and a system call
// filter, set up by the shim and checked from outside before the agent runs.
// It works as root, where every kick gets a user of its own, and as an ordinary
// user.
type Embedded struct {
	shim *os.File
	weak weakness
}

var (
	_ Launcher    = (*Embedded)(nil)
	_ Preflighter = (*Embedded)(nil)
	_ Reaper      = (*Embedded)(nil)
)

// EmbeddedConfig configures the embedded runtime.
type EmbeddedConfig struct {
	// Shim is the program cmd/kick-shim, built static for this machine. It is
	// read to its end.
	Shim io.Reader
}

// NewEmbedded returns a launcher that is good for any number of runs. Close
// frees its copy of the shim.
func NewEmbedded(c EmbeddedConfig) (*Embedded, error) {
	if c.Shim == nil {
		return nil, noShim()
	}
	f, err := sealShim(c.Shim)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, noShim()
	}
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "seal the shim", Err: err, Remedy: "The embedded runtime needs Linux with memfd_create: use another runtime"}
	}
	return &Embedded{shim: f}, nil
}

func noShim() error {
	return &Error{Kind: ErrSpec, Op: "embedded runtime", Err: errors.New("there is no shim"), Remedy: "Build kick with make build, which builds the shim first"}
}

// OpenShim opens the launcher's copy of the shim.
func (e *Embedded) OpenShim() (io.ReadCloser, error) {
	return os.Open("/proc/self/fd/" + strconv.Itoa(int(e.shim.Fd())))
}

// Close frees the launcher. No run may be going on.
func (e *Embedded) Close() error { return e.shim.Close() }

// Run implements Launcher. Without a Workspace.Dir the working directory is a
// tmpfs, and nothing comes back but the output.
func (e *Embedded) Run(ctx context.Context, spec LaunchSpec) (Result, error) {
	return runKick(ctx, e, spec)
}

func (e *Embedded) isolation() Isolation { return Isolation{Runtime: "embedded"} }

func (e *Embedded) check(spec *LaunchSpec) error {
	if spec.Image != "" {
		return specError("image", fmt.Errorf("%q", spec.Image), "The embedded runtime runs the host's programs and takes no image: leave it out or choose another runtime")
	}
	return wantSocket(spec.Egress)
}

// together: the artifacts are made in a second sandbox, which costs little.
func (e *Embedded) together() bool { return false }

func (e *Embedded) sends() bool { return false }

// instead: nothing is needed that could be missing.
func (e *Embedded) instead() Launcher { return nil }

func (e *Embedded) newBox(ctx context.Context, spec LaunchSpec, mode frame.Mode) (box, error) {
	p, err := newPlan(spec, mode)
	if err != nil {
		return nil, err
	}
	return &embeddedBox{plan: p, shim: e.shim, weak: e.weak}, giveWorkspace(ctx, p)
}

// giveWorkspace makes the workspace the sandbox user's own, where that is not
// the caller.
func giveWorkspace(ctx context.Context, p *plan) error {
	if !p.asRoot || p.spec.Workspace.Dir == "" {
		return nil
	}
	if err := chownTree(ctx, p.spec.Workspace.Dir, p.hostUID, p.hostGID); err != nil {
		return &Error{Kind: ErrRuntime, Op: "give the workspace to the sandbox's user", Err: err}
	}
	return nil
}

// preflights counts, so that several at once have different names.
var preflights atomic.Int64

// Preflight implements Preflighter: it runs /bin/true in a sandbox of its own.
func (e *Embedded) Preflight(ctx context.Context) (Isolation, error) {
	res, err := e.Run(ctx, LaunchSpec{
		ID:      fmt.Sprintf("p%d-%d", os.Getpid(), preflights.Add(1)),
		Command: []string{"/bin/true"},
		Network: NetworkNone,
	})
	if err == nil && res.ExitCode != 0 {
		err = &Error{Kind: ErrRuntime, Op: "run /bin/true in a sandbox", Err: errors.New(res.Detail)}
	}
	return res.Isolation, err
}
