// Package openshelltest is a conformance gateway: a gRPC server that behaves as
// docs/openshell-wire.md says that OpenShell v0.1 does, for tests of the launcher.
// Its workloads really run, each in an embedded sandbox, and a sandbox's network
// policy is really enforced, by kick's own egress gateway and for the programs that
// the policy lists. It is no OpenShell: what it knows of one is that page.
package openshelltest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/openshellapi"
	"github.com/kickhq/kick/internal/openshellapi/wire"
	"github.com/kickhq/kick/sandbox"
)

// Image is the one image that the gateway has: this host's programs.
const Image = "registry.test/kick-agent@sha256:0000000000000000000000000000000000000000000000000000000000000000"

// Options describe a gateway. The zero value is one of version 0.1.10 on
// plaintext loopback, without credentials.
type Options struct {
	Version string
	// MTLS asks for a client's certificate; Tokens for one of the tokens, which
	// stand for users.
	MTLS   bool
	Tokens map[string]User
	// Network is what the egress of workloads uses for resolving and dialling.
	Network egress.Config
	// Faults make it behave badly; tests may change them while it runs.
	Faults *Faults
	// AllowDriverConfig is the driver's setting of that name.
	AllowDriverConfig bool
}

// User is who has a token.
type User struct {
	Expired bool
	// Scopes that the token has; nil stands for all.
	Scopes []string
}

// Gateway is a running gateway.
type Gateway struct {
	wire.UnimplementedOpenShellServer

	// Connection is how to reach it, as its own user.
	Connection openshellapi.Connection

	options  Options
	dir      string
	launcher *sandbox.Embedded
	program  string // the supervisor

	mu        sync.Mutex
	sandboxes map[string]*box
	calls     map[string]int
	running   sync.WaitGroup
}

// Start starts a gateway that ends with the test; nothing of its sandboxes is left
// then.
func Start(t testing.TB, o Options) *Gateway {
	t.Helper()
	if o.Version == "" {
		o.Version = "0.1.10"
	}
	if o.Faults == nil {
		o.Faults = &Faults{}
	}
	dir, err := os.MkdirTemp("", "openshelltest-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	g := &Gateway{options: o, dir: dir, sandboxes: map[string]*box{}, calls: map[string]int{}}
	g.program = filepath.Join(dir, "supervisor")
	shim := Shim(t)
	built, _ := programs() // as Shim has seen
	if err := os.WriteFile(g.program, built[0], 0o755); err != nil {
		t.Fatal(err)
	}
	if g.launcher, err = sandbox.NewEmbedded(sandbox.EmbeddedConfig{Shim: bytes.NewReader(shim)}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(1 << 20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(g.unary), grpc.ChainStreamInterceptor(g.stream),
	}
	g.Connection.Endpoint = "http://" + l.Addr().String()
	if o.MTLS {
		pki := newPKI(t, dir)
		g.Connection.Endpoint = "https://" + l.Addr().String()
		g.Connection.CA, g.Connection.Cert, g.Connection.Key = pki.ca, pki.clientCert, pki.clientKey
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{pki.server}, ClientCAs: pki.pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
		})))
	}
	for token, user := range o.Tokens {
		if !user.Expired && user.Scopes == nil {
			g.Connection.Token = filepath.Join(dir, "token")
			if err := os.WriteFile(g.Connection.Token, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := grpc.NewServer(options...)
	if !o.Faults.Renamed {
		wire.RegisterOpenShellServer(s, g)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
		g.endAll()
		if err := errors.Join(g.launcher.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return g
}

// programs are the supervisor and the shim of the embedded sandboxes, built once.
var programs = sync.OnceValues(func() (built [2][]byte, err error) {
	dir, err := os.MkdirTemp("", "openshelltest-")
	if err != nil {
		return built, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for i, pkg := range []string{"internal/openshelltest/supervisor", "cmd/kick-shim"} {
		p := filepath.Join(dir, "program")
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", p, "github.com/kickhq/kick/"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return built, fmt.Errorf("build %s: %w: %s", pkg, err, out)
		}
		if built[i], err = os.ReadFile(p); err != nil {
			return built, err
		}
	}
	return built, nil
})

// Shim is a build of cmd/kick-shim.
func Shim(t testing.TB) []byte {
	t.Helper()
	built, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return built[1]
}

// Calls is how often a call was made, by its short name.
func (g *Gateway) Calls(name string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls[name]
}

// Sandboxes are the names of those that exist.
func (g *Gateway) Sandboxes() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var names []string
	for name := range g.sandboxes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Lose loses all sandboxes, as when their node goes, and returns when they are gone.
func (g *Gateway) Lose() {
	g.mu.Lock()
	var gone []<-chan struct{}
	for _, b := range g.sandboxes {
		b.cancel()
		gone = append(gone, b.gone)
	}
	g.mu.Unlock()
	for _, c := range gone {
		<-c
	}
}

func (g *Gateway) endAll() {
	g.mu.Lock()
	for _, b := range g.sandboxes {
		b.cancel()
	}
	g.mu.Unlock()
	g.running.Wait()
}

// scopes are what the calls need (Credentials).
var scopes = map[string]string{
	"Health": "", "GetCurrentUser": "any",
	"CreateSandbox": "sandbox:write", "DeleteSandbox": "sandbox:write", "ExecSandboxInteractive": "sandbox:write",
	"GetSandbox": "sandbox:read", "ListSandboxes": "sandbox:read", "WatchSandbox": "sandbox:read", "GetSandboxLogs": "sandbox:read",
	"GetSandboxConfig": "config:read",
}

// admit checks the credential of a call.
func (g *Gateway) admit(ctx context.Context, method string) error {
	name := method[strings.LastIndexByte(method, '/')+1:]
	g.mu.Lock()
	g.calls[name]++
	g.mu.Unlock()
	scope := scopes[name]
	if scope == "" {
		return nil
	}
	if g.options.MTLS && g.options.Tokens == nil {
		p, _ := peer.FromContext(ctx)
		if info, ok := p.AuthInfo.(credentials.TLSInfo); !ok || len(info.State.VerifiedChains) == 0 {
			return status.Error(codes.Unauthenticated, "a client certificate is required")
		}
	}
	if g.options.Tokens == nil {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	token := ""
	if v := md.Get("authorization"); len(v) == 1 {
		token, _ = strings.CutPrefix(v[0], "Bearer ")
	}
	user, ok := g.options.Tokens[token]
	switch {
	case !ok:
		return status.Error(codes.Unauthenticated, "invalid token")
	case user.Expired:
		return status.Error(codes.Unauthenticated, "token expired")
	case scope != "any" && user.Scopes != nil && !slices.Contains(user.Scopes, scope) && !slices.Contains(user.Scopes, "openshell:all"):
		return status.Errorf(codes.PermissionDenied, "scope %s required", scope)
	}
	return nil
}

func (g *Gateway) unary(ctx context.Context, q any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := g.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	if w, ok := q.(interface {
		GetWorkspaceScope() *wire.WorkspaceSelector
	}); ok {
		if err := checkScope(w.GetWorkspaceScope()); err != nil {
			return nil, err
		}
	}
	if err := hold(ctx, info.FullMethod, g.options.Faults.Deaf.Load()); err != nil {
		return nil, err
	}
	a, err := next(ctx, q)
	if held := hold(ctx, info.FullMethod, g.options.Faults.Mute.Load()); held != nil {
		return nil, held
	}
	return a, err
}

func (g *Gateway) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := g.admit(s.Context(), info.FullMethod); err != nil {
		return err
	}
	return next(srv, s)
}

// checkScope: the workspace is required, and there is one (Generations).
func checkScope(w *wire.WorkspaceSelector) error {
	if w.GetWorkspace() == "" {
		return status.Error(codes.InvalidArgument, "workspace_scope is required")
	}
	if w.GetWorkspace() != openshellapi.DefaultWorkspace {
		return status.Error(codes.PermissionDenied, "not a member of the workspace")
	}
	return nil
}

// Health implements the call.
func (g *Gateway) Health(context.Context, *wire.HealthRequest) (*wire.HealthResponse, error) {
	return &wire.HealthResponse{Status: wire.ServiceStatus_SERVICE_STATUS_HEALTHY, Version: g.options.Version}, nil
}

// GetCurrentUser implements the call.
func (g *Gateway) GetCurrentUser(context.Context, *wire.GetCurrentUserRequest) (*wire.GetCurrentUserResponse, error) {
	return &wire.GetCurrentUserResponse{}, nil
}

// find returns the sandbox of a name.
func (g *Gateway) find(name string) (*box, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.sandboxes[name]
	if b == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %q not found", name)
	}
	return b, nil
}

// GetSandbox implements the call.
func (g *Gateway) GetSandbox(_ context.Context, q *wire.GetSandboxRequest) (*wire.SandboxResponse, error) {
	b, err := g.find(q.GetName())
	if err != nil {
		return nil, err
	}
	s, _ := b.snapshot()
	return &wire.SandboxResponse{Sandbox: s}, nil
}

// ListSandboxes implements the call, in pages.
func (g *Gateway) ListSandboxes(_ context.Context, q *wire.ListSandboxesRequest) (*wire.ListSandboxesResponse, error) {
	size := int(q.GetPageSize())
	if size <= 0 {
		size = 100
	}
	size = min(size, 1000)
	a := &wire.ListSandboxesResponse{}
	for _, name := range g.Sandboxes() {
		b, err := g.find(name)
		if err != nil || name <= q.GetPageToken() || !matchesLabels(b.created.GetLabels(), q.GetLabelSelector()) {
			continue
		}
		if len(a.Sandboxes) == size {
			a.NextPageToken = a.Sandboxes[size-1].GetMetadata().GetName()
			break
		}
		s, _ := b.snapshot()
		a.Sandboxes = append(a.Sandboxes, s)
	}
	return a, nil
}

func matchesLabels(labels map[string]string, selector string) bool {
	for pair := range strings.SplitSeq(selector, ",") {
		if k, v, ok := strings.Cut(pair, "="); ok && labels[k] != v {
			return false
		}
	}
	return true
}

// GetSandboxConfig implements the call.
func (g *Gateway) GetSandboxConfig(_ context.Context, q *wire.GetSandboxConfigRequest) (*wire.GetSandboxConfigResponse, error) {
	b, err := g.find(q.GetName())
	if err != nil {
		return nil, err
	}
	a := &wire.GetSandboxConfigResponse{Policy: b.created.GetSpec().GetPolicy(), Version: 1, PolicyHash: b.hash, PolicySource: wire.PolicySource_POLICY_SOURCE_SANDBOX}
	if g.options.Faults.Config != nil {
		g.options.Faults.Config(a)
	}
	return a, nil
}

// GetSandboxLogs implements the call.
func (g *Gateway) GetSandboxLogs(_ context.Context, q *wire.GetSandboxLogsRequest) (*wire.GetSandboxLogsResponse, error) {
	b, err := g.find(q.GetSandbox())
	if err != nil {
		return nil, err
	}
	most := int(q.GetLines())
	if most == 0 {
		most = 2000
	}
	logs := b.logs()
	if n := g.options.Faults.LogLines; n > 0 {
		for range n {
			logs = append(logs, &wire.SandboxLogLine{Level: "INFO", Message: strings.Repeat("flood \x1b[2J", 10), Source: "sandbox"})
		}
		most = n // more than was asked for
	}
	if n := g.options.Faults.LogBytes; n > 0 {
		for range most {
			logs = append(logs, &wire.SandboxLogLine{Level: "WARN", Message: strings.Repeat("x", n), Source: "sandbox"})
		}
	}
	return &wire.GetSandboxLogsResponse{Logs: logs[max(0, len(logs)-most):], BufferTotal: uint32(len(logs))}, nil
}

// DeleteSandbox implements the call (Deletion): it is accepted, and goes on by
// itself.
func (g *Gateway) DeleteSandbox(_ context.Context, q *wire.DeleteSandboxRequest) (*wire.DeleteSandboxResponse, error) {
	b, err := g.find(q.GetName())
	if err != nil {
		if q.GetAllowMissing() {
			return &wire.DeleteSandboxResponse{Outcome: wire.DeletionOutcome_DELETION_OUTCOME_ALREADY_ABSENT}, nil
		}
		return nil, err
	}
	b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_DELETING, "Deleting", "")
	b.cancel()
	return &wire.DeleteSandboxResponse{Outcome: wire.DeletionOutcome_DELETION_OUTCOME_ACCEPTED, SandboxId: b.id}, nil
}

// WatchSandbox implements the call (Watching).
func (g *Gateway) WatchSandbox(q *wire.WatchSandboxRequest, s grpc.ServerStreamingServer[wire.SandboxStreamEvent]) error {
	if err := checkScope(q.GetWorkspaceScope()); err != nil {
		return err
	}
	b, err := g.find(q.GetSandbox())
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		snapshot, changed := b.snapshot()
		if err := s.Send(&wire.SandboxStreamEvent{Payload: &wire.SandboxStreamEvent_Sandbox{Sandbox: snapshot}}); err != nil {
			return err
		}
		if g.options.Faults.WatchEnds > 0 && n+1 >= g.options.Faults.WatchEnds {
			return status.Error(codes.Unavailable, "gateway restarts")
		}
		select {
		case <-changed:
		case <-b.gone:
			return nil
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}
