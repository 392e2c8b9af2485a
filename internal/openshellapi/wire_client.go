//go:build !openshellsdk

package openshellapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kickhq/kick/internal/openshellapi/wire"
)

const (
	maxAnswer = 4 << 20          // bytes of one answer
	askFor    = 30 * time.Second // how long one may take
	// A gateway that does not answer pings is gone: between 20 s and 40 s.
	pingEvery = 20 * time.Second
	// pauseMost is the longest pause between two attempts to connect. gRPC's own of two
	// minutes would outlast what a launcher waits for a gateway that starts again.
	pauseMost = 5 * time.Second
	// maxList bounds how many sandboxes are listed, in pages of 100.
	maxList = 10_000
)

// Dial makes a client. It connects at the first call.
func Dial(c Connection) (Gateway, error) { return dial(c) }

func dial(c Connection, more ...grpc.DialOption) (Gateway, error) {
	a, err := c.address()
	if err != nil {
		return nil, err
	}
	pauses := backoff.DefaultConfig
	pauses.MaxDelay = pauseMost
	options := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: askFor}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingEvery}),
		grpc.WithDisableRetry(), // what may be asked again, the launcher knows
		grpc.WithDisableServiceConfig(),
	}
	if a.tls != nil {
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(a.tls)))
	} else {
		// The check was of the name; this is of what it resolved to.
		dial := func(ctx context.Context, target string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", target)
			if err != nil {
				return nil, err
			}
			if remote, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || !remote.IP.IsLoopback() {
				conn.Close()
				return nil, fmt.Errorf("%s is not on this host", target)
			}
			return conn, nil
		}
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	}
	if c.Token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer{c.Token, a.tls != nil}))
	}
	conn, err := grpc.NewClient("passthrough:///"+a.target, append(options, more...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", a.target, err)
	}
	scope := &wire.WorkspaceSelector{Selection: &wire.WorkspaceSelector_Workspace{Workspace: c.workspace()}}
	return &client{conn, wire.NewOpenShellClient(conn), scope}, nil
}

// bearer reads the token anew for each call: whoever renews it writes the file.
type bearer struct {
	file string
	tls  bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := readToken(b.file)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return b.tls }

// client is the Gateway on the wire.
type client struct {
	conn  *grpc.ClientConn
	rpc   wire.OpenShellClient
	scope *wire.WorkspaceSelector
}

func (c *client) Close() error { return c.conn.Close() }

// ask bounds a call and translates its error.
func ask[Q, A any](ctx context.Context, op string, call func(context.Context, Q, ...grpc.CallOption) (A, error), q Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	a, err := call(ctx, q)
	return a, failure(op, err)
}

var codeOf = map[codes.Code]Code{
	codes.InvalidArgument: CodeInvalid, codes.NotFound: CodeNotFound, codes.AlreadyExists: CodeExists,
	codes.FailedPrecondition: CodePrecondition, codes.Unauthenticated: CodeUnauthenticated, codes.PermissionDenied: CodePermission,
	codes.ResourceExhausted: CodeExhausted, codes.OutOfRange: CodeExhausted, codes.Unavailable: CodeUnavailable,
	codes.DeadlineExceeded: CodeDeadline, codes.Aborted: CodeAborted, codes.Unimplemented: CodeUnimplemented,
}

// failure translates an error of a call. The caller's own context comes through.
func failure(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	s := status.Convert(err)
	if s.Code() == codes.Canceled {
		return fmt.Errorf("%s: %w", op, context.Canceled)
	}
	code, ok := codeOf[s.Code()]
	if !ok {
		code = CodeInternal
	}
	text := ownWords(s.Message())
	return &Error{Op: op, Code: code, Text: text[:min(len(text), maxText)]}
}

// ownWords takes off what gRPC wraps around the reason why there is no connection.
func ownWords(text string) string {
	_, quoted, found := strings.Cut(text, "connection error: desc = ")
	if reason, err := strconv.Unquote(quoted); found && err == nil {
		text = strings.TrimPrefix(strings.TrimPrefix(reason, "transport: "), "Error while dialing: ")
	}
	return text
}

func (c *client) Health(ctx context.Context) (string, error) {
	a, err := ask(ctx, "ask the gateway for its version", c.rpc.Health, &wire.HealthRequest{})
	if CodeOf(err) == CodeUnimplemented {
		err = &Error{Op: "ask the gateway for its version", Code: CodeUnimplemented, Text: "it does not have the interface of " + Tested + ": it may be of a later generation, which has another name"}
	}
	if err == nil && a.GetStatus() == wire.ServiceStatus_SERVICE_STATUS_UNHEALTHY {
		err = &Error{Op: "ask the gateway for its health", Code: CodeUnavailable, Text: "it says that it is unhealthy"}
	}
	return a.GetVersion(), err
}

func (c *client) User(ctx context.Context) error {
	_, err := ask(ctx, "ask the gateway who kick is", c.rpc.GetCurrentUser, &wire.GetCurrentUserRequest{})
	return err
}

func (c *client) Create(ctx context.Context, r CreateRequest) (Sandbox, error) {
	op := "create the sandbox " + r.Name
	template := &wire.SandboxTemplate{Image: r.Image}
	var err, err2 error
	if r.Resources != nil {
		template.Resources, err = structpb.NewStruct(r.Resources)
	}
	if r.DriverConfig != nil {
		template.DriverConfig, err2 = structpb.NewStruct(r.DriverConfig)
	}
	if err := errors.Join(err, err2); err != nil {
		return Sandbox{}, &Error{Op: op, Code: CodeInvalid, Text: err.Error()}
	}
	a, err := ask(ctx, op, c.rpc.CreateSandbox, &wire.CreateSandboxRequest{
		Name: r.Name, Labels: r.Labels, Annotations: r.Annotations, WorkspaceScope: c.scope,
		Spec: &wire.SandboxSpec{Template: template, Environment: r.Environment, Command: r.Command, Policy: policyToWire(r.Policy)},
	})
	return sandboxFromWire(a.GetSandbox()), err
}

func (c *client) Get(ctx context.Context, name string) (Sandbox, error) {
	a, err := ask(ctx, "look at the sandbox "+name, c.rpc.GetSandbox, &wire.GetSandboxRequest{Name: name, WorkspaceScope: c.scope})
	return sandboxFromWire(a.GetSandbox()), err
}

func (c *client) List(ctx context.Context, labels map[string]string) ([]Sandbox, error) {
	var selector []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		selector = append(selector, k+"="+labels[k])
	}
	q := &wire.ListSandboxesRequest{PageSize: 100, LabelSelector: strings.Join(selector, ","), WorkspaceScope: c.scope}
	var all []Sandbox
	for len(all) < maxList {
		a, err := ask(ctx, "list sandboxes", c.rpc.ListSandboxes, q)
		if err != nil {
			return nil, err
		}
		for _, s := range a.GetSandboxes() {
			all = append(all, sandboxFromWire(s))
		}
		if q.PageToken = a.GetNextPageToken(); q.PageToken == "" || len(a.GetSandboxes()) == 0 {
			return all, nil
		}
	}
	return all, nil
}

func (c *client) Watch(ctx context.Context, name string, f func(Event) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	op := "watch the sandbox " + name
	stream, err := c.rpc.WatchSandbox(ctx, &wire.WatchSandboxRequest{Sandbox: name, FollowStatus: true, FollowEvents: true, EventTail: 20, WorkspaceScope: c.scope})
	for err == nil {
		var e *wire.SandboxStreamEvent
		if e, err = stream.Recv(); err == nil && !f(eventFromWire(e)) {
			return nil
		}
	}
	return failure(op, err)
}

func (c *client) Exec(ctx context.Context, r ExecRequest) (Exec, error) {
	op := "run a command in the sandbox " + r.Name
	stream, err := c.rpc.ExecSandboxInteractive(ctx)
	if err != nil {
		return nil, failure(op, err)
	}
	start := &wire.ExecSandboxRequest{Sandbox: r.Name, Command: r.Command, NoLoginShell: true, WorkspaceScope: c.scope}
	if r.Timeout > 0 {
		start.ExecutionTimeout = durationpb.New(r.Timeout)
	}
	x := &execution{stream: stream, op: op}
	return x, x.send(&wire.ExecSandboxInput{Payload: &wire.ExecSandboxInput_Start{Start: start}})
}

// execution is an Exec on the wire.
type execution struct {
	stream grpc.BidiStreamingClient[wire.ExecSandboxInput, wire.ExecSandboxEvent]
	op     string
	exited bool
}

func (x *execution) Send(p []byte) error {
	return x.send(&wire.ExecSandboxInput{Payload: &wire.ExecSandboxInput_Stdin{Stdin: p}})
}

// send leaves it to Recv to tell why a stream has ended.
func (x *execution) send(m *wire.ExecSandboxInput) error {
	err := x.stream.Send(m)
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return failure(x.op, err)
}

func (x *execution) CloseSend() error { return x.stream.CloseSend() }

func (x *execution) Recv() (ExecEvent, error) {
	m, err := x.stream.Recv()
	switch {
	case errors.Is(err, io.EOF) && !x.exited:
		return ExecEvent{}, &Error{Op: x.op, Code: CodeUnavailable, Text: "the stream ended without an exit"}
	case err != nil:
		return ExecEvent{}, failure(x.op, err)
	case x.exited:
		return ExecEvent{}, &Error{Op: x.op, Code: CodeInternal, Text: "there was more after the exit"}
	}
	switch p := m.GetPayload().(type) {
	case *wire.ExecSandboxEvent_Stdout:
		return ExecEvent{Stdout: p.Stdout.GetData()}, nil
	case *wire.ExecSandboxEvent_Stderr:
		return ExecEvent{Stderr: p.Stderr.GetData()}, nil
	case *wire.ExecSandboxEvent_Exit:
		x.exited = true
		return ExecEvent{Exit: new(int(p.Exit.GetExitCode()))}, nil
	}
	return ExecEvent{}, nil // of a later release
}

func (c *client) Policy(ctx context.Context, name string) (Effective, error) {
	a, err := ask(ctx, "read the policy of the sandbox "+name, c.rpc.GetSandboxConfig, &wire.GetSandboxConfigRequest{Name: name, WorkspaceScope: c.scope})
	if err != nil {
		return Effective{}, err
	}
	e := Effective{Own: a.GetPolicySource() == wire.PolicySource_POLICY_SOURCE_SANDBOX, Hash: a.GetPolicyHash()}
	e.Policy, e.Strange = policyFromWire(a.GetPolicy())
	return e, nil
}

func (c *client) Logs(ctx context.Context, name string, lines int) ([]LogLine, error) {
	a, err := ask(ctx, "read the log of the sandbox "+name, c.rpc.GetSandboxLogs, &wire.GetSandboxLogsRequest{Sandbox: name, Lines: uint32(lines), WorkspaceScope: c.scope})
	var out []LogLine
	for _, l := range a.GetLogs() {
		if len(out) == lines {
			break
		}
		out = append(out, LogLine{Time: l.GetEventTime().AsTime(), Level: l.GetLevel(), Target: l.GetTarget(), Message: l.GetMessage(), Source: l.GetSource(), Fields: l.GetFields()})
	}
	return out, err
}

func (c *client) Delete(ctx context.Context, name string) error {
	_, err := ask(ctx, "delete the sandbox "+name, c.rpc.DeleteSandbox, &wire.DeleteSandboxRequest{Name: name, AllowMissing: true, WorkspaceScope: c.scope})
	if CodeOf(err) == CodeNotFound {
		return nil
	}
	return err
}
