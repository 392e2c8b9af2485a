package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/openshellapi"
	"github.com/kickhq/kick/internal/resume"
)

// OpenShell is the runtime that runs every kick in a sandbox of an OpenShell
// gateway, wherever that has them. The gateway's policy is the isolation: it is
// sent whole, read back and compared before anything runs. The shim is sent into
// the sandbox by a command, and is another command of it, whose standard input and
// output are the line; the workspace goes and comes over the same.
type OpenShell struct {
	config OpenShellConfig

	choice OpenShellChoice
	chosen bool // by an operator: otherwise it is there for With alone

	mu      sync.Mutex
	gateway openshellapi.Gateway
	key     []byte                         // from which those of lines are derived
	others  map[OpenShellChoice]*OpenShell // that With has made

	left sync.Map // by id: boxes that have ended, whose sandboxes have work
}

var (
	_ Launcher    = (*OpenShell)(nil)
	_ Preflighter = (*OpenShell)(nil)
	_ Reaper      = (*OpenShell)(nil)
)

// OpenShellConnection says where a gateway is and how to prove who asks.
type OpenShellConnection = openshellapi.Connection

// OpenShellConfig configures the OpenShell runtime.
type OpenShellConfig struct {
	// Shim opens the program cmd/kick-shim, built static for the sandboxes'
	// machines.
	Shim func() (io.ReadCloser, error)
	// Dir is a directory of the caller's own on this host, for what a later process
	// needs to take over what a dead one has left. Empty: none does.
	Dir string
	// Connection is the gateway. A zero one is found as OpenShellChoice.Found does.
	Connection OpenShellConnection
	// Image is what Preflight runs, by digest.
	Image string
	// TelemetryOff is the operator's word that the gateway sends no telemetry,
	// which nothing on its wire tells.
	TelemetryOff bool
	// ReadyWithin is how long a sandbox may take until it is ready, the pulling of
	// its image included. Default: 5 minutes.
	ReadyWithin time.Duration
	// Alone is how long the shim goes on when nobody is connected with it: then it
	// stops the command, and after as long again it ends. Default: 10 minutes.
	Alone time.Duration
}

// OpenShellChoice is what an operator chooses for one agent.
type OpenShellChoice struct {
	// Connection is the gateway. Without an endpoint, Gateway is the name of one of
	// the openshell command's own configuration, or empty for its active one, and a
	// workspace and a version that are accepted go over what that says.
	Connection   OpenShellConnection `json:"connection"`
	Gateway      string              `json:"gateway,omitempty"`
	TelemetryOff bool                `json:"telemetryOff,omitempty"`
}

// Found is the connection of the choice, looked up where it has no endpoint.
func (c OpenShellChoice) Found() (OpenShellConnection, error) {
	if c.Connection.Endpoint != "" {
		return c.Connection, nil
	}
	found, err := openshellapi.Find(c.Gateway)
	found.AcceptVersion = c.Connection.AcceptVersion
	found.Workspace = cmp.Or(c.Connection.Workspace, found.Workspace)
	return found, err
}

const (
	defaultReady = 5 * time.Minute
	// gapTimeout is how long a supervisor may be away before the shim runs: the
	// gateway itself waits for 15 s, and answers that it is unavailable.
	gapTimeout = time.Minute
	// logLines is how much of a sandbox's log is read at the end.
	logLines = 2000
)

// deleteTimeout: a gateway takes some 5 s, and more under load.
var deleteTimeout = 2 * time.Minute // tests of one that never does it wait less

// NewOpenShell returns a launcher that is good for any number of runs. It does not
// ask the gateway anything yet.
func NewOpenShell(c OpenShellConfig) (*OpenShell, error) {
	if c.Shim == nil {
		return nil, noShim()
	}
	c.ReadyWithin, c.Alone = cmp.Or(c.ReadyWithin, defaultReady), cmp.Or(c.Alone, 10*time.Minute)
	return &OpenShell{config: c, chosen: c.Connection != (OpenShellConnection{})}, nil
}

// With returns a launcher like this one with what an operator chose. It is closed
// with this one.
func (l *OpenShell) With(c OpenShellChoice) *OpenShell {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.others == nil {
		l.others = map[OpenShellChoice]*OpenShell{}
	}
	if l.others[c] == nil {
		other := &OpenShell{config: l.config, choice: c, chosen: true}
		other.config.Connection, other.config.TelemetryOff = c.Connection, c.TelemetryOff
		l.others[c] = other
	}
	return l.others[c]
}

// Close frees the connection. No run may be going on.
func (l *OpenShell) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, other := range l.others {
		errs = append(errs, other.Close())
	}
	if l.gateway != nil {
		errs = append(errs, l.gateway.Close())
		l.gateway = nil
	}
	return errors.Join(errs...)
}

// Run implements Launcher. Without a Workspace.Dir the working directory is what
// the image has there, and nothing comes back but the output. Without a Command it
// takes the work out of the sandbox that a dead process has left under this ID, which
// stays if that fails.
func (l *OpenShell) Run(ctx context.Context, spec LaunchSpec) (Result, error) {
	res, err := runKick(ctx, l, spec)
	if b, left := l.left.LoadAndDelete(spec.ID); left && (len(spec.Command) > 0 || err == nil) {
		l.forget(spec.ID)
		err = errors.Join(err, b.(*openShellBox).remove())
	}
	if len(spec.Command) == 0 && errors.Is(err, errSandboxGone) {
		// That is no failure which another attempt could mend.
		res.Reason, err = ReasonLost, nil
	}
	return res, err
}

func (l *OpenShell) isolation() Isolation { return Isolation{Runtime: "openshell"} }

func (l *OpenShell) check(spec *LaunchSpec) error {
	switch {
	case spec.Image == "":
		return specError("image", errors.New("there is none"), "Name an image by its digest: NAME@sha256:…")
	case !pinnedImage.MatchString(spec.Image):
		return specError("image", fmt.Errorf("%q is not pinned", spec.Image), "Name it by its digest, NAME@sha256:…: a tag may mean another image at the sandbox's node")
	case len(spec.ProgramDirs) > 0:
		return specError("program directory", fmt.Errorf("%q", spec.ProgramDirs[0]), "The OpenShell runtime has the image's programs and binds no others: put the tool into the image")
	case spec.Egress.Socket != "":
		return specError("egress socket", fmt.Errorf("%q", spec.Egress.Socket), "A sandbox of OpenShell shares no socket with this host: give its policy as Egress.Policy")
	case strings.Contains(spec.ID, "--") || strings.HasSuffix(spec.ID, "-"):
		return specError("id", fmt.Errorf("%q", spec.ID), "OpenShell takes no two - together and none at the end")
	}
	_, err := openShellPolicy(*spec)
	return err
}

// together: the workspace is in the one sandbox, and goes with it.
func (l *OpenShell) together() bool { return true }

func (l *OpenShell) sends() bool { return true }

func (l *OpenShell) enforcesPolicy() {}

// instead: what is lost with a sandbox, no other launcher has.
func (l *OpenShell) instead() Launcher { return nil }

func (l *OpenShell) newBox(ctx context.Context, spec LaunchSpec, mode frame.Mode) (box, error) {
	g, version, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	p, err := newOpenShellPlan(spec, mode, l.config.ReadyWithin)
	if err != nil {
		return nil, err
	}
	b := &openShellBox{launcher: l, gateway: g, plan: p, version: version, gonech: make(chan struct{})}
	b.log.max = 8 << 10
	if mode == frame.CollectMode {
		return b, b.find(ctx)
	}
	return b, nil
}

// heldFile is in OpenShellConfig.Dir while the sandbox of that kick has work that
// has not come back.
func (l *OpenShell) heldFile(id string) string { return filepath.Join(l.config.Dir, "held", id) }

// note notes that the sandbox of a kick is to have work. The reaper leaves it then,
// until it has ended.
func (l *OpenShell) note(id string) error {
	if l.config.Dir == "" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(l.heldFile(id)), 0o700)
	if err == nil {
		err = os.WriteFile(l.heldFile(id), nil, 0o600)
	}
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "note the sandbox for the reaper", Err: err, Remedy: "kick needs a directory of its own that it can write, see --state-dir"}
	}
	return nil
}

func (l *OpenShell) forget(id string) {
	if l.config.Dir != "" {
		_ = os.Remove(l.heldFile(id)) // if it stays, the reaper waits for the sandbox's end
	}
}

// holds reports whether the sandbox of a kick may have work that has not come back.
func (l *OpenShell) holds(id string) bool {
	if l.config.Dir == "" {
		return false
	}
	_, err := os.Lstat(l.heldFile(id))
	return err == nil
}

// connect returns the gateway, whose version and whose opinion of who asks are
// checked for each sandbox anew: it may be another one by now.
func (l *OpenShell) connect(ctx context.Context) (openshellapi.Gateway, string, error) {
	g, err := l.dial()
	if err != nil {
		return nil, "", err
	}
	doing := "reach"
	version, err := g.Health(ctx)
	if err == nil {
		doing, err = "use", openshellapi.CheckVersion(version, l.config.Connection.AcceptVersion)
	}
	if err == nil {
		err = g.User(ctx)
	}
	if err != nil {
		return nil, "", &Error{Kind: ErrRuntime, Op: doing + " the OpenShell gateway at " + l.config.Connection.Endpoint, Err: shown(err), Remedy: connectRemedy(err)}
	}
	return g, version, nil
}

// connectRemedy says what may help where a gateway cannot be spoken with.
func connectRemedy(err error) string {
	switch openshellapi.CodeOf(err) {
	case openshellapi.CodeUnauthenticated, openshellapi.CodePermission:
		return remedyUnauthenticated
	case openshellapi.CodeUnimplemented, "": // it says so itself
		return ""
	}
	return "See whether it runs and whether its address and authority are right: openshell status"
}

const remedyUnauthenticated = "Log in anew (openshell gateway login), or set openshell.token or the certificates to what the gateway accepts"

func (l *OpenShell) dial() (openshellapi.Gateway, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gateway != nil {
		return l.gateway, nil
	}
	if err := l.findKey(); err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "read the key of lines to sandboxes", Err: err, Remedy: "kick needs a directory of its own that it can write, see --state-dir"}
	}
	found, err := OpenShellChoice{Connection: l.config.Connection, Gateway: l.choice.Gateway}.Found()
	if err != nil {
		return nil, specError("OpenShell gateway", err, "Set openshell.endpoint in kick.yaml, or choose a gateway with openshell gateway select")
	}
	l.config.Connection = found
	g, err := openshellapi.Dial(found)
	if err != nil {
		return nil, specError("OpenShell gateway", err, "Correct the openshell keys in kick.yaml, or what the openshell command has of the gateway")
	}
	l.gateway = g
	return g, nil
}

// findKey finds the key of lines; where there is no directory for it, it is this
// process's alone.
func (l *OpenShell) findKey() (err error) {
	if l.config.Dir != "" {
		l.key, err = lineKey(l.config.Dir)
		return err
	}
	l.key = make([]byte, resume.KeySize)
	_, _ = rand.Read(l.key) // never fails on Linux
	return nil
}

// shown makes the words of a gateway fit to be shown.
func shown(err error) error {
	var e *openshellapi.Error
	if !errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("%s: %w", e.Op, &openShellRefusal{e})
}

// openShellRefusal is a gateway's error with its words escaped.
type openShellRefusal struct{ err *openshellapi.Error }

func (r *openShellRefusal) Error() string { return string(r.err.Code) + ": " + escaped(r.err.Text) }
func (r *openShellRefusal) Unwrap() error { return r.err }
