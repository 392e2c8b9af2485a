package openshelltest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/openshellapi/wire"
	"github.com/kickhq/kick/internal/openshelltest/relay"
	"github.com/kickhq/kick/sandbox"
)

// box is one sandbox of the gateway.
type box struct {
	g       *Gateway
	id      string
	created *wire.CreateSandboxRequest
	hash    string
	dir     string
	cancel  context.CancelFunc
	gone    chan struct{} // closed when its record is removed
	idle    chan net.Conn // connections of the supervisor that wait for a command
	out     *egress.Gateway

	mu         sync.Mutex
	phase      wire.SandboxPhase
	conditions []*wire.SandboxCondition
	exitCode   *int32
	changed    chan struct{}
	lines      []*wire.SandboxLogLine
	reached    map[string]string // target to the program that connected last
}

// CreateSandbox implements the call (Creation).
func (g *Gateway) CreateSandbox(_ context.Context, q *wire.CreateSandboxRequest) (*wire.SandboxResponse, error) {
	if err := checkCreate(q); err != nil {
		return nil, err
	}
	q = proto.CloneOf(q)
	switch image := q.GetSpec().GetTemplate().GetImage(); {
	case image != "" && image != Image:
		return nil, status.Errorf(codes.FailedPrecondition, "image %q not found", image)
	case q.GetSpec().GetTemplate().GetDriverConfig() != nil && !g.options.AllowDriverConfig:
		return nil, status.Error(codes.FailedPrecondition, "caller driver_config is disabled: set allow_driver_config = true in [openshell.drivers.kubernetes]")
	case len(q.GetSpec().GetProviders()) > 0:
		return nil, status.Error(codes.FailedPrecondition, "unknown provider")
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(q.GetSpec().GetPolicy())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	sum := sha256.Sum256(raw)
	id := sha256.Sum256([]byte(g.dir + q.GetName() + time.Now().String()))
	ctx, cancel := context.WithCancel(context.Background())
	b := &box{
		g: g, id: "o" + hex.EncodeToString(id[:8]), created: q, hash: hex.EncodeToString(sum[:]), cancel: cancel,
		gone: make(chan struct{}), idle: make(chan net.Conn), changed: make(chan struct{}), reached: map[string]string{},
	}
	b.dir = filepath.Join(g.dir, b.id)
	b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_PROVISIONING, "SupervisorNotConnected", "")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sandboxes[q.GetName()] != nil {
		cancel()
		return nil, status.Errorf(codes.AlreadyExists, "sandbox %q already exists", q.GetName())
	}
	g.sandboxes[q.GetName()] = b
	g.running.Go(func() {
		defer cancel()
		b.run(ctx)
		<-ctx.Done() // it stays until somebody deletes it
		if g.options.Faults.Undead {
			return
		}
		g.mu.Lock()
		delete(g.sandboxes, q.GetName())
		g.mu.Unlock()
		close(b.gone)
	})
	s, _ := b.snapshot()
	return &wire.SandboxResponse{Sandbox: s}, nil
}

// snapshot is the sandbox as it is now, and what is closed when that changes.
func (b *box) snapshot() (*wire.Sandbox, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &wire.Sandbox{Metadata: b.meta(), Spec: b.created.GetSpec(), Status: &wire.SandboxStatus{Phase: b.phase, Conditions: slices.Clone(b.conditions), ExitCode: b.exitCode, CurrentPolicyVersion: 1}}
	return s, b.changed
}

func (b *box) setPhase(p wire.SandboxPhase, reason, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == wire.SandboxPhase_SANDBOX_PHASE_DELETING {
		return
	}
	ready := "False"
	if p == wire.SandboxPhase_SANDBOX_PHASE_READY {
		ready = "True"
	}
	b.phase = p
	b.conditions = []*wire.SandboxCondition{{Type: "Ready", Status: ready, Reason: reason, Message: message, TransitionTime: timestamppb.Now()}}
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *box) log(level, target, message string, fields map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, &wire.SandboxLogLine{SandboxId: b.id, Level: level, Target: target, Message: message, Source: "sandbox", Fields: fields, EventTime: timestamppb.Now()})
}

func (b *box) logs() []*wire.SandboxLogLine {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

const (
	proxyPort     = 3128
	workspacePath = sandbox.DefaultMountPath // that exists in the image, and may be written
	imagePath     = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// run runs the sandbox until it ends by itself or ctx does.
func (b *box) run(ctx context.Context) {
	faults := b.g.options.Faults
	if faults.NotReady != "" {
		b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_PROVISIONING, faults.NotReady, "still waiting")
		return
	}
	if faults.Fails != "" {
		b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_ERROR, faults.Fails, "the sandbox did not come up \x1b[31m")
		return
	}
	if faults.ReadyEarly {
		b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_READY, "Ready", "")
	}
	res, err := b.launch(ctx)
	b.mu.Lock()
	exited := b.exitCode
	b.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case exited != nil && *exited == 0:
		b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_COMPLETED, "MainProcessExited", "")
	case exited != nil:
		b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_ERROR, "MainProcessExited", fmt.Sprintf("exit code %d", *exited))
	case res.Reason == sandbox.ReasonOutOfMemory:
		b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_ERROR, "OOMKilled", "the container was killed for its memory limit")
	default:
		b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_ERROR, "ComputeResourceMissing", fmt.Sprintf("%s: %s %v", res.Reason, res.Detail, err))
	}
}

func (b *box) launch(ctx context.Context) (res sandbox.Result, err error) {
	spec := sandbox.LaunchSpec{
		ID: b.id, Agent: "openshell", Network: sandbox.NetworkNone, Limits: sandbox.Limits{Wall: time.Hour, Processes: -1, Disk: -1, Memory: b.memoryLimit()},
		Env: map[string]string{"PATH": imagePath}, Workspace: sandbox.Workspace{Dir: filepath.Join(b.dir, "home"), MountPath: workspacePath},
		ProgramDirs: []string{filepath.Join(b.dir, "supervisor")},
	}
	for _, d := range []string{b.dir, spec.Workspace.Dir, spec.ProgramDirs[0]} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return res, err
		}
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	program := filepath.Join(spec.ProgramDirs[0], "supervisor")
	if err := os.Link(b.g.program, program); err != nil {
		return res, err
	}
	spec.Command = []string{program}
	socket := filepath.Join(spec.ProgramDirs[0], relay.Socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		return res, err
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer l.Close()
	if err := os.Chmod(socket, 0o666); err != nil {
		return res, err
	}
	q, done, err := b.network(ctx, &spec)
	if err != nil {
		return res, err
	}
	defer done()
	var log limited
	spec.Stdout, spec.Stderr = io.Discard, &log
	serveCtx, stop := context.WithCancel(ctx)
	defer stop()
	serving.Go(func() { b.serve(serveCtx, l, q) })
	res, err = b.g.launcher.Run(ctx, spec)
	if log.b != nil {
		res.Detail += ": " + string(log.b)
	}
	return res, err
}

// limited keeps the beginning of what is written.
type limited struct{ b []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.b = append(l.b, p[:min(len(p), 1<<10-min(len(l.b), 1<<10))]...)
	return len(p), nil
}

// memoryLimit is resources.limits.memory, in bytes.
func (b *box) memoryLimit() int64 {
	limits := b.created.GetSpec().GetTemplate().GetResources().GetFields()["limits"].GetStructValue()
	var n int64
	_, _ = fmt.Sscan(limits.GetFields()["memory"].GetStringValue(), &n) // none: no limit of its own
	return n
}

// environment is what every process of the sandbox has.
func (b *box) environment() []string {
	env := map[string]string{"PATH": imagePath, "HOME": sandbox.HomeDir, "OPENSHELL_SANDBOX": b.created.GetName()}
	maps.Copy(env, b.created.GetSpec().GetEnvironment())
	if b.out != nil {
		proxy := fmt.Sprintf("http://127.0.0.1:%d", proxyPort)
		maps.Copy(env, map[string]string{"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy})
		if b.out.Terminates() {
			maps.Copy(env, egress.TrustEnvironment(sandbox.EgressTrustPath))
		}
	}
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// serve takes the supervisor's connections.
func (b *box) serve(ctx context.Context, l net.Listener, main relay.Request) {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		conns.Go(func() {
			r := frame.NewReader(c)
			t, p, err := r.Read()
			switch {
			case err != nil:
				c.Close()
			case t == relay.Main:
				b.supervise(c, r, main)
				c.Close()
				l.Close()
			case t == relay.Tunnel:
				b.tunnel(ctx, c, string(p), main.Rules)
				c.Close()
			default:
				select {
				case b.idle <- c:
				case <-ctx.Done():
					c.Close()
				}
			}
		})
	}
}

// supervise is the sandbox's main connection, from the supervisor's call to the
// end of the main process.
func (b *box) supervise(c net.Conn, r *frame.Reader, main relay.Request) {
	main.Argv, main.Env = b.created.GetSpec().GetCommand(), b.environment()
	if len(main.Argv) == 0 {
		main.Argv = []string{"/bin/bash", "-l"}
	}
	if ask(frame.NewWriter(c), main) != nil {
		return
	}
	b.setPhase(wire.SandboxPhase_SANDBOX_PHASE_READY, "Ready", "")
	for {
		t, p, err := r.Read()
		switch {
		case err != nil:
			return
		case t == relay.Reached:
			var reach relay.Reach
			if json.Unmarshal(p, &reach) == nil {
				b.reach(reach)
			}
		case t == frame.Exit:
			var x relay.Exit
			if json.Unmarshal(p, &x) == nil {
				b.mu.Lock()
				b.exitCode = new(int32(x.Code))
				b.mu.Unlock()
			}
			return
		}
	}
}

func ask(w *frame.Writer, q relay.Request) error {
	raw, err := json.Marshal(q)
	if err == nil {
		_, err = w.Stream(relay.Ask).Write(raw)
	}
	if err == nil {
		err = w.Write(relay.Asked, nil)
	}
	return err
}

func (b *box) meta() *wire.ObjectMeta {
	return &wire.ObjectMeta{Id: b.id, Name: b.created.GetName(), Labels: b.created.GetLabels(), Annotations: b.created.GetAnnotations(), Workspace: b.created.GetWorkspaceScope().GetWorkspace()}
}

// reach logs a connection, and remembers whose it is.
func (b *box) reach(r relay.Reach) {
	target := r.Target
	if f := strings.Fields(r.Target); len(f) > 1 {
		target = strings.TrimPrefix(strings.TrimPrefix(f[1], "http://"), "https://")
		target, _, _ = strings.Cut(target, "/")
	}
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		host = target
	}
	b.mu.Lock()
	b.reached[host] = r.Binary
	b.mu.Unlock()
	if r.Denied {
		b.log("WARN", "ocsf", "NET:OPEN DENIED "+target, map[string]string{"action": "denied", "dst_host": host, "binary": r.Binary, "policy": "-", "reason": "binary not listed"})
	}
}
