// Package egress is the gateway: the one way out of a sandbox. It sits outside,
// is reached through a Unix socket that belongs to one kick, speaks HTTP/1.1 as
// a proxy does (CONNECT, absolute form) and as a server does (origin form), and
// writes every decision down before it acts on it. What no rule of the policy
// allows is denied.
package egress

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kickhq/kick/policy"
)

// SocketName is the name of the socket in the directory that Listen makes.
const SocketName = "gateway.sock"

// limits bound what the agent can make the gateway spend.
type limits struct {
	headerTime  time.Duration // from accepting a connection to the end of the request's header
	requestTime time.Duration // to the end of its body
	replyTime   time.Duration // to write a reply; what streams sets its own
	idleTime    time.Duration // from one request of a connection to the next
	headerBytes int           // request line and header; net/http allows 4 KiB more
	connections int           // at once; further ones wait
	decisions   int           // in one kick; all further requests are refused unwritten
	git         gitLimits
	forward     forwardLimits

	bodyBytes   int64         // of a model call; four times as much at once
	answerBytes int64         // of a model's answer
	answerTime  time.Duration // from a model call to the header of its answer
	silence     time.Duration // within an answer
	modelTime   time.Duration // from a model call to the end of its answer
}

// The longest header that real agents send is below 4 KiB, and they hold some
// ten connections each, of which one that is idle counts too. 20,000 audit lines of at most some 1.5 KiB are 30 MB.
var defaultLimits = limits{
	headerTime:  10 * time.Second,
	requestTime: 30 * time.Second,
	replyTime:   10 * time.Second,
	idleTime:    30 * time.Second,
	headerBytes: 32 << 10,
	connections: 256,
	decisions:   20_000,
	git:         defaultGitLimits,
	forward:     defaultForwardLimits,

	// Anthropic takes 32 MB, and agents send some 100 KB; 128,000 tokens, one an
	// event, are some 30 MB. Providers' clients wait for ten minutes.
	bodyBytes:   32 << 20,
	answerBytes: 128 << 20,
	answerTime:  10 * time.Minute,
	silence:     5 * time.Minute,
	modelTime:   time.Hour,
}

// Gateway is the way out of one kick's sandbox.
type Gateway struct {
	cfg       Config
	reach     *policy.Reach
	authority *authority // nil if the policy ends no TLS
	limits    limits
	dir       *os.File
	path      string
	ctx       context.Context // ends when the gateway closes
	cancel    context.CancelFunc
	served    chan struct{} // closed when nothing is served any more
	unwatch   func() bool   // ends the watch over the context
	entrance  *entrance     // nil without Config.TCP
	routes    map[string]*route
	inMemory  atomic.Int64 // bytes of bodies
	closeOnce sync.Once
	closeErr  error

	log *auditLog

	mu   sync.Mutex
	fail context.CancelCauseFunc // ends what is served now
}

// Config is what a gateway serves.
type Config struct {
	Kick  string // id
	Agent string
	Repo  string // the kick's, as the policy names repositories
	// Policy says what may be reached. Its zero value allows nothing.
	Policy policy.Egress
	// Audit gets each Record as one line in one Write, which must not block for
	// long. It stays the caller's to close, after Close.
	Audit io.Writer
	// GitCredential returns the user and password to fetch a repository with,
	// such as "acme/lib" of "github.com"; an empty password stands for none. It
	// is asked at each request of a fetch that the policy allows. Nil: none.
	GitCredential func(ctx context.Context, host, repo string) (user, password string, err error)
	// LookupEnv finds the variables that hold keys. Nil: os.LookupEnv.
	LookupEnv func(name string) (string, bool)
	// TCP is a second way in, for a sandbox that the socket cannot be carried to.
	// Nil: there is none. It stays the caller's to close.
	TCP *TCP
	// Ledgers is the directory in which agents' daily budgets are kept.
	Ledgers string
	// Roots are the certificate authorities that an upstream is verified
	// against. Nil: the system's.
	Roots *x509.CertPool
	// Resolve finds a host's addresses. Nil: the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Dial connects to an address that Resolve gave. Nil: net.Dialer's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Listen makes dir with a socket named SocketName and nothing else in it but,
// if the policy ends TLS, the file TrustName, and serves one kick on it until
// Close is called or ctx ends. dir may exist, if it is empty but for what a
// killed process left.
//
// The sandbox's user is another one than the caller, so dir may be passed
// through by all (0711) and the socket may be used by all (0666): keep dir
// below a directory that is the caller's alone, and mount it into the sandbox
// read-only.
func Listen(ctx context.Context, dir string, cfg Config) (*Gateway, error) {
	return listen(ctx, dir, cfg, defaultLimits)
}

func listen(ctx context.Context, dir string, cfg Config, lim limits) (*Gateway, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("open egress gateway: %w", err)
	}
	if cfg.LookupEnv == nil {
		cfg.LookupEnv = os.LookupEnv
	}
	reach, err := cfg.Policy.Compile()
	if err != nil {
		return nil, fmt.Errorf("open egress gateway: %w", err)
	}
	d, err := openSocketDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open egress gateway: %w", err)
	}
	var ca *authority
	if reach.Terminates() {
		if ca, err = openAuthority(cfg.Kick, d); err != nil {
			return nil, errors.Join(fmt.Errorf("open egress gateway in %s: %w", dir, err), emptySocketDir(d), d.Close())
		}
	}
	l, err := listenIn(d)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open egress gateway in %s: %w", dir, err), emptySocketDir(d), d.Close())
	}
	g := &Gateway{
		cfg: cfg, reach: reach, authority: ca, limits: lim, dir: d, path: filepath.Join(dir, SocketName),
		served: make(chan struct{}), log: newAuditLog(cfg.Audit, lim.decisions),
	}
	if err := g.makeRoutes(); err != nil {
		return nil, errors.Join(err, l.Close(), emptySocketDir(d), d.Close())
	}
	if cfg.TCP != nil {
		g.entrance = cfg.TCP.newEntrance(g.wrongSecret)
	}
	g.ctx, g.cancel = context.WithCancel(ctx)
	go g.run(l)
	g.unwatch = context.AfterFunc(ctx, g.cut)
	return g, nil
}

// Socket returns the path of the socket.
func (g *Gateway) Socket() string { return g.path }

// Terminates tells whether the gateway ends TLS for some host, so that the file
// TrustName is beside the socket.
func (g *Gateway) Terminates() bool { return g.authority != nil }

// Trust returns what is in the file TrustName; nothing if there is none.
func (g *Gateway) Trust() []byte {
	if g.authority == nil {
		return nil
	}
	return g.authority.trust
}

// Secret returns the kick's secret for Config.TCP, and nothing without. It is for
// the shim in the kick's sandbox alone.
func (g *Gateway) Secret() string {
	if g.entrance == nil {
		return ""
	}
	return g.entrance.secret
}

// Admit tells the address of the kick's sandbox, once. Before that, nothing is
// let in at Config.TCP for this kick, and after that nothing from elsewhere.
func (g *Gateway) Admit(sandbox netip.Addr) error {
	if g.entrance == nil {
		return errors.New("let a sandbox in at the egress gateway: it has no TCP address; set Config.TCP")
	}
	if err := g.entrance.admit(sandbox); err != nil {
		return fmt.Errorf("let the sandbox in at the egress gateway: %w", err)
	}
	return nil
}

// AdmitFrom is Admit where nobody knows the address of the kick's sandbox, but the
// network that its connections come from: who is in that may try the kick's secret.
func (g *Gateway) AdmitFrom(network netip.Prefix) error {
	if g.entrance == nil {
		return errors.New("let a sandbox in at the egress gateway: it has no TCP address; set Config.TCP")
	}
	if err := g.entrance.admitFrom(network); err != nil {
		return fmt.Errorf("let a sandbox in at the egress gateway: %w", err)
	}
	return nil
}

// wrongSecret writes down that something at the sandbox's address tried to get
// in without the kick's secret.
func (g *Gateway) wrongSecret(from netip.Addr) {
	_, _ = g.log.decided(Request{Kick: g.cfg.Kick, Agent: g.cfg.Agent, Form: GreetingForm, Host: from.String()}, Decision{Rule: "wrong-secret"})
}

// Close cuts every connection at once, removes the socket and waits until
// nothing of the gateway runs or writes to the audit. It may be called any
// number of times and from anywhere.
func (g *Gateway) Close() error {
	g.unwatch()
	g.cut()
	return g.closeErr
}

func (g *Gateway) cut() {
	g.closeOnce.Do(func() {
		if g.entrance != nil {
			g.entrance.close()
		}
		g.cancel()
		<-g.served
		for _, r := range g.routes {
			r.transport.CloseIdleConnections()
		}
		g.closeErr = errors.Join(removeFrom(g.dir, SocketName), removeFrom(g.dir, TrustName), g.dir.Close())
		if g.closeErr != nil {
			g.closeErr = fmt.Errorf("close egress gateway: %w", g.closeErr)
		}
	})
}

// modelPrefix and gitPrefix begin the paths of what the gateway itself serves.
const (
	modelPrefix = "/model/"
	gitPrefix   = "/git/"
)

// serve answers one request. What it hands it to must not return before all
// that it started has ended, and must end when the request's context does,
// that of a hijacked connection included.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	req := requestOf(r)
	req.Kick, req.Agent = g.cfg.Kick, g.cfg.Agent
	switch {
	case req.Form != OriginForm:
		g.forward(w, r, req)
	case strings.HasPrefix(req.Path, modelPrefix):
		g.model(w, r, req)
	case strings.HasPrefix(req.Path, gitPrefix):
		g.gitRead(w, r, req)
	default:
		g.deny(w, req, denyByDefault(req))
	}
}

// deny writes down that a request is denied, and answers with why.
func (g *Gateway) deny(w http.ResponseWriter, req Request, d Decision) {
	d.Allow = false
	_, d = g.log.decided(req, d)
	refuse(w, d)
}

// Keys returns every key that was sent to a provider, and the kick's secret if
// it has one, in the forms that hex has: none of them may leave through the
// agent's work.
func (g *Gateway) Keys() []string {
	var all []string
	if g.entrance != nil {
		all = append(all, g.entrance.forms()...)
	}
	for _, r := range g.routes {
		all = append(all, r.key.keys()...)
	}
	return all
}

// Summary counts what went through until now.
func (g *Gateway) Summary() Summary { return g.log.counts() }

// requestOf takes from a request what decisions are made by.
func requestOf(r *http.Request) Request {
	req := Request{Method: r.Method, Host: r.Host, Form: OriginForm}
	switch {
	case r.Method == http.MethodConnect:
		req.Form = ConnectForm
	case r.URL.IsAbs():
		req.Form = AbsoluteForm
	}
	if req.Form != ConnectForm {
		req.Path = r.URL.EscapedPath()
	}
	return req
}

// refuse answers with 403 and the decision, and ends the connection: the body
// of the request was not read.
func refuse(w http.ResponseWriter, d Decision) {
	reply(w, http.StatusForbidden, "policy_denied", d)
}

// reply answers in the gateway's own words, and ends the connection.
func reply(w http.ResponseWriter, status int, kind string, d Decision) {
	body, err := json.Marshal(struct {
		Error  string `json:"error"`
		Rule   string `json:"rule"`
		Detail string `json:"detail"`
	}{kind, d.Rule, strings.ToValidUTF8(d.Detail, "?")})
	if err != nil {
		panic(http.ErrAbortHandler) // three strings always marshal
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(body)+1))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	// An agent that does not wait for the answer is no matter.
	_, _ = w.Write(append(body, '\n'))
}
