// Package sandbox is the seam between kick and the runtimes that isolate an
// agent. A Launcher runs one command in one sandbox; every runtime (embedded,
// Podman, Kubernetes Jobs, ...) is one implementation, and
// sandboxtest.TestLauncher is the contract that each of them passes.
//
// The package knows nothing of GitHub, of kick.yaml or of the push broker, so
// that other agent managers can use it alone.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// Launcher runs one command in one sandbox and returns when nothing of it is
// left: no process, no mount, no cgroup, no temporary file.
//
// A non-nil error means that the runtime failed (see Error); the Result is
// valid all the same and holds what is known. An agent that fails, is killed,
// or runs into a limit is not an error but a Result with the reason.
//
// Run may be called from many goroutines and many processes at once. The
// specification is not retained after Run returns. Cancelling ctx ends the
// sandbox, makes the bundles as usual, and yields ReasonCancelled. Where there is
// no command, a nil error means that all of the work is out, or with ReasonLost that
// nothing has it any more, as Missing says; and a cancel is an error.
type Launcher interface {
	Run(ctx context.Context, spec LaunchSpec) (Result, error)
}

// Preflighter is implemented by launchers that can say, without an agent, what
// they would enforce on this host. The error is an *Error of kind
// ErrIsolation or ErrRuntime when a run would be refused.
type Preflighter interface {
	Preflight(ctx context.Context) (Isolation, error)
}

// Reaper is implemented by launchers that can remove what died without
// cleaning up. It touches nothing that a living kick owns, may run beside any
// number of Runs, and returns the names of what it removed.
type Reaper interface {
	Reap(ctx context.Context) ([]string, error)
}

// LaunchSpec says what to run and what to hold it to. The zero value of every
// optional field is the safe one.
type LaunchSpec struct {
	// ID is the kick's id: 1 to 19 characters, lower-case letters, digits and
	// "-", starting with a letter. It names the sandbox, and two sandboxes of
	// one ID never run at once.
	ID string
	// Agent is the agent's name, for labels and messages only.
	Agent string
	// Image names the root file system where the runtime uses images. The
	// embedded runtime uses the host's program directories and refuses one.
	Image string
	// Command is the agent's command line; Command[0] is looked up in the PATH
	// of Env, inside the sandbox. Empty: no agent runs, the workspace is
	// mounted read-only and only its artifacts are made (this is how work is
	// salvaged).
	Command []string
	// Env is the whole environment of the command: nothing is inherited and
	// nothing is added.
	Env map[string]string
	// Home are files that lie in HomeDir when the command starts, with their
	// content: at most 64, by clean paths relative to HomeDir, 1 MiB together.
	// The command may change them.
	Home map[string]string
	// Workspace is the working directory and the way of the work back.
	Workspace Workspace
	// Network is NetworkRestricted when empty.
	Network NetworkMode
	// Egress is the one way out in NetworkRestricted. Its zero value means
	// that there is none.
	Egress Egress
	// Limits bound the sandbox. See DefaultLimits.
	Limits Limits
	// Stdout and Stderr get the agent's raw output while it runs. They are
	// called from one goroutine, may be nil, and an error from them stops the
	// copying, not the agent. The bytes are hostile: escape before showing.
	Stdout, Stderr io.Writer
	// OnEvent, if set, is told of the sandbox's steps as they happen, from one
	// goroutine.
	OnEvent func(Event)
	// OnLog, if set, is told of the lines of the runtime's own log about the sandbox,
	// where it has one: denied connections are among them. It is called from one
	// goroutine before Run returns. The text is hostile: escape before showing.
	OnLog func(RuntimeLog)
	// Labels are attached where the runtime has labels. Keys and values are
	// limited to 63 characters of [A-Za-z0-9._-].
	Labels map[string]string
	// ProgramDirs are further host directories that the embedded runtime binds
	// read-only at the same path, for tools outside /usr.
	ProgramDirs []string
	// Trust names those who may have one machine one after another, on a runtime where
	// machines linger: kicks of the same Trust. It is opaque, and best a digest of
	// agent, repository and policy. Empty: nobody. Where a machine lingers, nothing of
	// the kick is left in it when Run returns.
	Trust string
	// AcceptWeaker names the isolation properties (Property.Name) that may be
	// missing on this host. Any other missing property fails the run.
	AcceptWeaker []string
}

// Workspace says where the work comes from and where it goes.
type Workspace struct {
	// Dir is the host directory that becomes the working directory, mounted
	// writable at MountPath. It is a prepared git repository whose work tree
	// is not checked out yet (workspace.Prepare), or any other directory when
	// BaseOID is empty. The launcher owns it while Run runs.
	Dir string
	// MountPath is where the sandbox sees Dir. Default: DefaultMountPath.
	MountPath string
	// BaseOID is the commit that the work starts from, as full lower-case hex.
	// The shim checks it out before the agent starts. Empty: Dir is a plain
	// directory, nothing is checked out and no bundle is made.
	BaseOID string
	// Objects is the host's object directory that Dir borrows base objects
	// from (objects/info/alternates names BaseObjectsPath), mounted read-only
	// at BaseObjectsPath. Empty: none.
	Objects string
	// Sink takes what the sandbox hands back. Nil: artifacts are not made.
	Sink Sink
	// Checkpoint is how often, at most, a Checkpoint comes while the command runs, on
	// runtimes where nothing but the sandbox has the work. Default: a minute. Negative:
	// never.
	Checkpoint time.Duration
}

// Paths inside the sandbox.
const (
	// DefaultMountPath is the working directory of the agent.
	DefaultMountPath = "/workspace"
	// BaseObjectsPath is where Workspace.Objects is mounted.
	BaseObjectsPath = "/run/kick/base/objects"
	// EgressSocketPath is where the egress gateway's socket is seen. Its
	// directory is mounted read-only.
	EgressSocketPath = "/run/kick/egress/gateway.sock"
	// EgressTrustPath is where a file of that name beside the socket is seen:
	// the certificates that programs are to trust, if the gateway made them.
	EgressTrustPath = "/run/kick/egress/ca.pem"
	// HomeDir is the agent's home: a private, writable directory, empty but for
	// LaunchSpec.Home.
	HomeDir = "/home/agent"
)

// Artifact is a kind of thing that a sandbox hands back.
type Artifact string

const (
	// FinalBundle is a git bundle of BaseOID..HEAD with the one ref "HEAD". It
	// is absent when HEAD is at the base. At most one comes.
	FinalBundle Artifact = "final.bundle"
	// RestBundle is a git bundle of everything else that is not reachable from
	// the base: other branches, tags, stashes, and a commit that holds the
	// uncommitted changes (as refs/kick/uncommitted).
	RestBundle Artifact = "rest.bundle"
	// DirtyArchive is a tar of the uncommitted files as they lie there; of the
	// whole work tree when git cannot tell.
	DirtyArchive Artifact = "dirty.tar"
	// Checkpoint is a git bundle of all that is in FinalBundle and RestBundle, as it
	// was at some time while the command ran, with HEAD as refs/kick/head. Later ones
	// replace it. It counts only where the end never came.
	Checkpoint Artifact = frame.Checkpoint
	// WorkSummary is a JSON object, see type Work.
	WorkSummary Artifact = "work.json"
	// Report is an agent report (agent-report*.json), at most 1 MiB.
	Report Artifact = "report"
)

// Sink takes what the sandbox hands back. Everything written to it is a claim
// of hostile code. Create is called from one goroutine, one artifact at a
// time; name is the base name of a report, already checked to be
// agent-report*.json, and empty otherwise. A writer that is closed without an
// error holds the whole artifact; an artifact that broke off is aborted: its
// writer's Abort method is called instead of Close.
type Sink interface {
	Create(a Artifact, name string) (SinkWriter, error)
}

// SinkWriter is one artifact being written.
type SinkWriter interface {
	io.WriteCloser
	// Abort ends a write whose source broke off; what was written so far is
	// discarded or marked as incomplete.
	Abort() error
}

// Work is the content of WorkSummary: what the shim found in the workspace at
// the end. It is a claim, good for messages and never for a decision.
type Work struct {
	Head        string   `json:"head,omitempty"`        // commit id that HEAD names
	Branch      string   `json:"branch,omitempty"`      // branch that HEAD is on
	Commits     int      `json:"commits"`               // commits in BaseOID..HEAD
	Unpublished []string `json:"unpublished,omitempty"` // refs with commits that HEAD does not reach
	Stashes     int      `json:"stashes,omitempty"`
	Dirty       []string `json:"dirty,omitempty"`      // uncommitted paths, the first 100
	DirtyCount  int      `json:"dirtyCount,omitempty"` // number of all uncommitted paths
	Problems    []string `json:"problems,omitempty"`   // what could not be read, with git's words
}

// NetworkMode is how much network a sandbox has. No mode gives it an interface
// other than loopback.
type NetworkMode string

const (
	// NetworkRestricted leaves one way out: the egress gateway.
	NetworkRestricted NetworkMode = "restricted"
	// NetworkNone leaves none at all.
	NetworkNone NetworkMode = "none"
)

// Egress is the sandbox's one way out.
type Egress struct {
	// Socket is the host path of the gateway's Unix socket for this kick. Its
	// directory is mounted read-only and must hold nothing else. With TCP too,
	// what listens there only passes connections on to that address.
	Socket string
	// TCP is the gateway's TCP address, for a runtime that carries no Unix
	// socket. Nil: there is none.
	TCP *EgressTCP
	// Port is the loopback TCP port in the sandbox that the shim forwards to
	// the gateway. 0: no forwarder, only the socket.
	Port int
	// Policy is, where the runtime has a gateway of its own instead of Socket, that
	// gateway's policy in its own form: of OpenShell its policy file. Other runtimes
	// refuse it.
	Policy string
	// Programs are those that Policy lets use the network and whose files must be
	// these: from real paths to SHA-256, in hex. The sandbox is not let go where one is
	// another.
	Programs map[string]string
}

func (e Egress) none() bool {
	return e.Socket == "" && e.TCP == nil && e.Port == 0 && e.Policy == "" && len(e.Programs) == 0
}

// RuntimeLog is one line of a runtime's own log.
type RuntimeLog struct {
	Time    time.Time         `json:"time"`
	Level   string            `json:"level"`
	Source  string            `json:"source"`
	Sandbox string            `json:"sandbox"` // its name
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields,omitempty"`
}

// EgressTCP is the way to the gateway by TCP. The shim alone is told of it, in
// its configuration: a launcher writes none of it into anything that a runtime
// keeps or the agent sees.
type EgressTCP struct {
	// Address is the host and port of the gateway as the sandbox sees it.
	Address string
	// Secret is the kick's one-time secret, 64 characters of lower-case hex. It
	// opens this kick's gateway alone, from the sandbox's address, until the
	// kick's agent has ended.
	Secret string
	// Pin is the SHA-256 of the gateway's certificate in lower-case hex.
	Pin string
	// Trust is the content of the file at EgressTrustPath, which the shim
	// writes. Empty: none.
	Trust string
	// Admit tells the gateway the address that the sandbox's connections come
	// from. The launcher calls it as soon as it knows that, and before the shim
	// is let go: nothing else is let in. One that cannot know it gives the zero
	// address, and who opened the gateway has to know what it may be.
	Admit func(sandbox netip.Addr) error
}

// Limits bound one sandbox. A zero field means the default of DefaultLimits; a
// negative one means no limit.
type Limits struct {
	CPUs      float64       // CPU cores, fractions allowed. Default: not limited.
	Memory    int64         // bytes, resident and shared memory of all processes together.
	Processes int           // processes and threads at once.
	Disk      int64         // bytes that the workspace may hold; /tmp and the home directory have as much each.
	Wall      time.Duration // from the agent's start; then everything is killed.
	Output    int64         // bytes of stdout and stderr together that are passed on; the rest is counted and dropped, its last 64 KiB kept.
	Bundle    int64         // bytes of each artifact.
}

// DefaultLimits are limits that an ordinary user can have enforced on any
// Linux host, sized for one coding agent (the largest measured agent uses
// 540 MB resident; builds and tests need the rest).
func DefaultLimits() Limits {
	return Limits{
		Memory:    8 << 30,
		Processes: 1024,
		Disk:      10 << 30,
		Wall:      45 * time.Minute,
		Output:    32 << 20,
		Bundle:    512 << 20,
	}
}

// Reason says how a sandbox ended. It is known from the host, never from what
// the sandbox claims, except for ReasonExited and ReasonSignaled.
type Reason string

// The reasons. Only ReasonExited with exit code 0 is a success.
const (
	ReasonExited       Reason = "exited"        // the command ended by itself; see ExitCode
	ReasonSignaled     Reason = "signaled"      // the command was killed by a signal from inside; see Signal
	ReasonTimeout      Reason = "timeout"       // Limits.Wall was reached
	ReasonCancelled    Reason = "cancelled"     // the context ended
	ReasonOutOfMemory  Reason = "out-of-memory" // Limits.Memory was reached, or the host had too little left
	ReasonProcessLimit Reason = "process-limit" // the command failed and Limits.Processes had been reached
	ReasonDiskLimit    Reason = "disk-limit"    // Limits.Disk was reached, or the file system had too little left
	ReasonIsolation    Reason = "isolation"     // a property could not be proved; nothing ran
	ReasonStartFailed  Reason = "start-failed"  // the runtime could not start the sandbox or the command
	ReasonLost         Reason = "lost"          // the sandbox vanished or broke the protocol
)

// Result is what is known of a finished sandbox.
type Result struct {
	Reason   Reason
	ExitCode int       // the command's exit code, 128+n for signal n, -1 when none is known
	Signal   int       // the signal's number with ReasonSignaled
	Detail   string    // one line for people; may hold text from the sandbox, escaped
	Started  time.Time // when the agent's command started; zero if it did not
	Finished time.Time // when nothing of the sandbox was left
	// Image is what ran, by digest or id, where the runtime uses images.
	Image string
	// Isolation is what the host found enforced on the live sandbox.
	Isolation Isolation
	// StdoutBytes and StderrBytes count what the agent wrote, also what was
	// dropped; OutputCut tells that some was dropped.
	StdoutBytes, StderrBytes int64
	OutputCut                bool
	// Peak is what the sandbox used at most, as far as it was observed.
	Peak Usage
	// Artifacts are those that reached the Sink whole; Missing says what did
	// not and why.
	Artifacts []Artifact
	Missing   []string
	// Gone tells that nothing has what is Missing any more, so that no later Run
	// brings it.
	Gone bool
	// Checkpoint is when the last one came, if that is all there is: the sandbox was
	// lost before it handed back what it had at the end.
	Checkpoint time.Time
}

// Usage is a resource reading.
type Usage struct {
	Memory    int64 // bytes
	Processes int
	Disk      int64 // bytes in the workspace
}

// Isolation is the list of properties that a sandbox had, as found by the host
// on the live process, its mounts and its cgroup.
type Isolation struct {
	Runtime    string     `json:"runtime"`
	Engine     string     `json:"engine,omitempty"` // the program that makes sandboxes for the runtime, with its version
	Properties []Property `json:"properties"`
}

// Property is one isolation property.
type Property struct {
	Name     string `json:"name"`     // kebab case, e.g. "network-namespace"
	Status   Status `json:"status"`   //
	Evidence string `json:"evidence"` // what was read, and where
	Remedy   string `json:"remedy,omitempty"`
}

// Status is the state of a property.
type Status string

const (
	// Enforced was seen on the live sandbox.
	Enforced Status = "enforced"
	// Missing is absent, or could not be seen: unknown counts as missing.
	Missing Status = "missing"
	// Accepted is missing, and the operator accepted that by name.
	Accepted Status = "accepted-weaker"
	// NotRequested is a limit that nobody asked for.
	NotRequested Status = "not-requested"
)

// Missing returns the properties that are missing and not accepted.
func (i Isolation) Missing() []Property {
	var out []Property
	for _, p := range i.Properties {
		if p.Status == Missing {
			out = append(out, p)
		}
	}
	return out
}

// EventKind is a step in a sandbox's life.
type EventKind string

// The events, in their order.
const (
	// EventWaiting comes any number of times before the others, on runtimes whose
	// sandboxes others start: what this one has waited for, for some seconds.
	EventWaiting  EventKind = "waiting"
	EventProved   EventKind = "proved"   // the isolation was read from the live process and holds
	EventStarted  EventKind = "started"  // the agent's command runs
	EventExited   EventKind = "exited"   // it ended, everything else is killed and egress is cut
	EventBundled  EventKind = "bundled"  // the artifacts are in the sink
	EventFinished EventKind = "finished" // nothing is left
)

// Event tells of a step.
type Event struct {
	Kind EventKind
	Time time.Time
	Why  string // of EventWaiting: what the sandbox waits for, escaped
}

// Kinds of runtime failure, for errors.Is.
var (
	// ErrSpec: the specification is wrong; nothing was started.
	ErrSpec = errors.New("bad launch specification")
	// ErrIsolation: a property cannot be had or proved here; nothing ran.
	ErrIsolation = errors.New("isolation not provable")
	// ErrRuntime: the runtime could not start the sandbox, or lost it.
	ErrRuntime = errors.New("runtime failed")
)

// Error is a failure of the runtime.
type Error struct {
	Kind   error  // ErrSpec, ErrIsolation or ErrRuntime
	Op     string // what was being done, e.g. "mount /usr"
	Err    error  // cause, may be nil
	Remedy string // what to do, one sentence
}

func (e *Error) Error() string {
	s := e.Op
	if e.Err != nil {
		s = fmt.Sprintf("%s: %v", s, e.Err)
	}
	if e.Remedy != "" {
		s += ". " + e.Remedy
	}
	return s
}

// Unwrap makes errors.Is see both the kind and the cause.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Err} }
