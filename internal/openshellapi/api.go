// Package openshellapi is what kick needs of an OpenShell gateway, as an interface
// in plain types, with an implementation on the wire of the gateway's v0.1
// releases. The interface is the seam for OpenShell's own SDK: see sdk.go, and
// docs/adr/0032-openshell-api.md for the reasons.
//
// What a gateway answers is not trusted with more than it must be: answers are
// bounded in size and time, and texts in them are for people alone, who are to see
// them escaped.
package openshellapi

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Limits of the gateway, from its sources at v0.1; see docs/openshell-wire.md.
const (
	MaxName      = 19       // bytes of a sandbox's name and of a workspace's
	MaxStdin     = 64 << 10 // bytes of one frame of stdin; a whole message may have 1 MiB
	MaxPolicy    = 256 << 10
	MaxAttribute = 8 << 10 // bytes of an annotation's or a variable's value
)

// Gateway is an OpenShell gateway, in one of its workspaces. Its methods may be
// called at once. Errors of the gateway are of type *Error.
type Gateway interface {
	// Health returns the gateway's version. It needs no credential and so proves
	// none.
	Health(ctx context.Context) (version string, err error)
	// User proves the credential.
	User(ctx context.Context) error
	// Create makes a sandbox and returns at once.
	Create(ctx context.Context, r CreateRequest) (Sandbox, error)
	// Get returns a sandbox's state; CodeNotFound when there is none.
	Get(ctx context.Context, name string) (Sandbox, error)
	// List returns the sandboxes that have all of the labels.
	List(ctx context.Context, labels map[string]string) ([]Sandbox, error)
	// Watch calls f for each event until f returns false, which is no error, or
	// the stream ends: io.EOF when the gateway ended it in good order, also
	// because the sandbox is gone.
	Watch(ctx context.Context, name string, f func(Event) bool) error
	// Exec starts a command in a sandbox that is ready. The command ends with ctx.
	Exec(ctx context.Context, r ExecRequest) (Exec, error)
	// Policy returns the policy that holds for a sandbox.
	Policy(ctx context.Context, name string) (Effective, error)
	// Logs returns at most the last lines of a sandbox's log.
	Logs(ctx context.Context, name string, lines int) ([]LogLine, error)
	// Delete asks for a sandbox's end. It is gone when Get says CodeNotFound.
	Delete(ctx context.Context, name string) error
	// Close frees the connection.
	Close() error
}

// CreateRequest describes a sandbox.
type CreateRequest struct {
	Name        string
	Labels      map[string]string // the rules of Kubernetes' labels
	Annotations map[string]string // values of at most MaxAttribute bytes
	Image       string            // by digest; empty: the gateway's default
	Command     []string          // the main process; the sandbox ends with it
	Environment map[string]string
	Policy      *Policy
	// Resources and DriverConfig are what the gateway's driver takes, as plain
	// JSON values.
	Resources, DriverConfig map[string]any
}

// Sandbox is what a gateway says of a sandbox.
type Sandbox struct {
	ID, Name    string
	Labels      map[string]string
	Annotations map[string]string
	Created     time.Time
	Phase       Phase
	Conditions  []Condition
	ExitCode    *int // of the main process
	// Resources are those that the gateway has noted for it.
	Resources map[string]any
	// Rejected says why the gateway did not accept the sandbox's policy.
	Rejected string
}

// Phase is where a sandbox is in its life.
type Phase string

// The phases.
const (
	Provisioning Phase = "provisioning"
	Ready        Phase = "ready"
	Failed       Phase = "error"
	Deleting     Phase = "deleting"
	Stopping     Phase = "stopping"
	Stopped      Phase = "stopped"
	Starting     Phase = "starting"
	Completed    Phase = "completed" // the main process ended with 0
	Unknown      Phase = "unknown"   // also every phase that kick does not know
)

// Condition is one of a sandbox's conditions.
type Condition struct {
	Type, Status, Reason, Message string
}

// Event is one event of a watch; one field is set.
type Event struct {
	Sandbox  *Sandbox
	Platform string // what the platform below said, e.g. that an image is pulled
	Warning  string
}

// ExecRequest describes a command in a sandbox. The gateway runs it through a
// shell that reads no profile.
type ExecRequest struct {
	Name    string
	Command []string
	// Timeout is the gateway's own for the command; it answers with exit code 124
	// then. 0: none.
	Timeout time.Duration
}

// Exec is a command that runs. One goroutine may send while another receives.
type Exec interface {
	// Send writes to stdin at most MaxStdin bytes, and blocks while the other side
	// does not read.
	Send(p []byte) error
	// CloseSend ends stdin.
	CloseSend() error
	// Recv returns the next output, or the exit, after which comes io.EOF. A
	// stream that ends without an exit is an *Error of CodeUnavailable.
	Recv() (ExecEvent, error)
}

// ExecEvent is output, or the end.
type ExecEvent struct {
	Stdout, Stderr []byte
	Exit           *int
}

// Effective is the policy that holds for a sandbox.
type Effective struct {
	Policy *Policy
	// Strange says what the gateway's policy has that Policy cannot hold, and so
	// cannot be compared. Empty: nothing.
	Strange string
	// Own tells that it is the sandbox's own, and not one of the whole gateway.
	Own  bool
	Hash string
}

// LogLine is one line of a sandbox's log.
type LogLine struct {
	Time                           time.Time
	Level, Target, Message, Source string
	Fields                         map[string]string
}

// Code is the kind of a gateway's error.
type Code string

// The kinds.
const (
	CodeInvalid         Code = "invalid argument"
	CodeNotFound        Code = "not found"
	CodeExists          Code = "already exists"
	CodePrecondition    Code = "failed precondition"
	CodeUnauthenticated Code = "unauthenticated"
	CodePermission      Code = "permission denied"
	CodeExhausted       Code = "resource exhausted" // a rate or a message size
	CodeUnavailable     Code = "unavailable"        // also a stream that broke off
	CodeDeadline        Code = "deadline exceeded"
	CodeAborted         Code = "aborted"
	CodeUnimplemented   Code = "unimplemented"
	CodeInternal        Code = "internal" // and all others
)

// maxText bounds what is kept of a gateway's text.
const maxText = 2 << 10

// Error is an error of the gateway or of the way to it.
type Error struct {
	Op   string // what was asked, e.g. "create sandbox k1"
	Code Code
	Text string // the gateway's own words, at most 2 KiB
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s: %s", e.Op, e.Code, e.Text) }

// CodeOf returns the kind of a gateway's error, and "" of any other.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
