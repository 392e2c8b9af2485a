package kubetest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Programs of a cluster that a test may stop.
const (
	APIServer  = "kube-apiserver"
	Kubelet    = "kubelet"
	Containerd = "containerd"
	Scheduler  = "kube-scheduler"
	Controller = "kube-controller-manager"
	Enforcer   = "netpol" // of NetworkPolicies; its rules stay when it ends
	// AgentSandbox is there after Cluster.AgentSandbox.
	AgentSandbox = "agent-sandbox-controller"
)

// Stop ends a program of the cluster, which the caller has by OpenAlone, and
// starts it again when the test ends at the latest. Containers go on.
func (c *Cluster) Stop(t testing.TB, program string) {
	t.Helper()
	output(t, command(c.Script, "stop", c.Dir, program))
	t.Cleanup(func() { c.Start(t, program) })
}

// Kill is Stop without asking the program.
func (c *Cluster) Kill(t testing.TB, program string) {
	t.Helper()
	output(t, command(c.Script, "stop", "-KILL", c.Dir, program))
	t.Cleanup(func() { c.Start(t, program) })
}

// Start starts a stopped program, and waits until it does its work. It does
// nothing to one that runs.
func (c *Cluster) Start(t testing.TB, program string) {
	t.Helper()
	output(t, command(c.Script, "start", c.Dir, program))
}

// Proxy passes connections on to the API server until it is told to cut them.
type Proxy struct {
	Kubeconfig string // of kick's account, by way of the proxy

	listener net.Listener
	to       string
	running  sync.WaitGroup

	mu      sync.Mutex
	open    map[net.Conn]bool
	refuse  bool
	accepts int
}

// Proxy makes one for the account of a namespace. It ends with the test.
func (n *Namespace) Proxy(t testing.TB) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		listener: l, to: n.APIServer(t).String(), open: map[net.Conn]bool{},
		Kubeconfig: n.kubeconfig(t, n.token, l.Addr().String()),
	}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.Cut()
		p.running.Wait()
	})
	return p
}

func (p *Proxy) accept() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		p.accepts++
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			_ = from.Close()
			continue
		}
		p.running.Go(func() { p.pass(from) })
	}
}

// pass copies both ways until either end closes or the proxy cuts.
func (p *Proxy) pass(from net.Conn) {
	to, err := net.Dial("tcp", p.to)
	if err != nil {
		_ = from.Close()
		return
	}
	p.mu.Lock()
	p.open[from], p.open[to] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	one := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src)
		_, _ = dst.Close(), src.Close()
	}
	both.Go(func() { one(from, to) })
	both.Go(func() { one(to, from) })
	both.Wait()
	p.mu.Lock()
	delete(p.open, from)
	delete(p.open, to)
	p.mu.Unlock()
}

// Cut closes all connections. Later ones are passed on as before.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close()
	}
}

// Refuse closes all connections, and those to come until it is told otherwise.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	p.refuse = refuse
	p.mu.Unlock()
	if refuse {
		p.Cut()
	}
}

// Connections is how many there have been.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepts
}
