package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
)

// openSocketDir makes dir, or takes an empty one, and opens it. From there on
// the directory is meant and not its name.
func openSocketDir(dir string) (*os.File, error) {
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("%w; name a directory that is no link", err)
	}
	if err := emptySocketDir(d); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// emptySocketDir removes what Listen makes, and refuses anything else.
func emptySocketDir(d *os.File) error {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if ours := e.Name() == SocketName && e.Type() == fs.ModeSocket || e.Name() == TrustName && e.Type().IsRegular(); !ours {
			return fmt.Errorf("%s holds %q, but the sandbox must see nothing but the socket; name a new directory", d.Name(), e.Name())
		}
		if err := removeFrom(d, e.Name()); err != nil {
			return err
		}
	}
	return d.Chmod(0o711) // whatever the umask took away
}

func removeFrom(d *os.File, name string) error {
	err := unix.Unlinkat(int(d.Fd()), name, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", filepath.Join(d.Name(), name), err)
	}
	return nil
}

// socketName names the socket by the descriptor of its directory, since the name
// of a socket is limited to 107 bytes and a state directory may be deep.
func socketName(d *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), SocketName)
}

func listenIn(d *os.File) (*net.UnixListener, error) {
	name := socketName(d)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the gateway removes it
	if err := os.Chmod(name, 0o666); err != nil {
		return nil, errors.Join(err, l.Close(), removeFrom(d, SocketName))
	}
	return l, nil
}

// Times of what listens anew.
const (
	socketCheck  = time.Second            // how often it is looked whether the socket is there
	restartPause = 100 * time.Millisecond // below the time after which clients try again
)

// run serves until the gateway closes. When what listens is lost, all that is
// under way is cut and written down, and the socket is made anew, where agents
// that try again find it: keys, budgets and the numbers of requests go on.
func (g *Gateway) run(l *net.UnixListener) {
	defer close(g.served)
	for l != nil {
		cause := g.serveOn(l)
		g.log.settle("the gateway broke this request off")
		if g.ctx.Err() != nil {
			return
		}
		g.log.restarted(g.cfg.Kick, g.cfg.Agent, cause)
		l = g.listenAgain()
	}
}

// serveOn serves what connects to l until the gateway closes, the socket is
// lost or a request meets a fault of the gateway's own. It returns why, and then
// nothing of it runs.
func (g *Gateway) serveOn(l *net.UnixListener) error {
	ctx, cancel := context.WithCancelCause(g.ctx)
	g.mu.Lock()
	g.fail = cancel
	g.mu.Unlock()
	var connections sync.WaitGroup // one for each open connection and each request under way
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			connections.Add(1) // it is waited for although a hijacked connection no longer counts
			defer connections.Done()
			defer g.guard()
			g.serve(w, r)
		}),
		// StateNew comes from the goroutine of Serve. A connection that was
		// accepted while Close went over the others is not among those, but it
		// is seen here.
		ConnState: func(c net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				connections.Add(1)
				if ctx.Err() != nil {
					_ = c.Close()
				}
			case http.StateClosed, http.StateHijacked:
				connections.Done()
			}
		},
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	g.bound(server)
	own, err := socketIn(g.dir)
	if err != nil {
		cancel(err)
	}
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(socketCheck)
		defer tick.Stop()
		for ctx.Err() == nil {
			select {
			case <-tick.C:
				if err := answers(g.dir, own); err != nil {
					cancel(err)
				}
			case <-ctx.Done():
			}
		}
		_ = server.Close() // of a listener that is closed already, at worst
	})
	var entering sync.WaitGroup
	if g.entrance != nil {
		entering.Go(func() { // until the server closes
			_ = server.Serve(netutil.LimitListener(g.entrance.listen(), g.limits.connections))
		})
	}
	err = server.Serve(netutil.LimitListener(l, g.limits.connections))
	cancel(fmt.Errorf("accept connections: %w", err)) // unless it is known better
	watch.Wait()
	entering.Wait()
	connections.Wait()
	return context.Cause(ctx)
}

// bound gives a server the limits of requests.
func (g *Gateway) bound(s *http.Server) {
	s.ReadHeaderTimeout = g.limits.headerTime
	s.ReadTimeout = g.limits.requestTime
	s.WriteTimeout = g.limits.replyTime
	s.IdleTimeout = g.limits.idleTime
	s.MaxHeaderBytes = g.limits.headerBytes
	// What it would log is the agent's doing and is not to reach a terminal.
	s.ErrorLog = log.New(io.Discard, "", 0)
	s.DisableGeneralOptionsHandler = true // OPTIONS * is a request like any other
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
}

// socketID is what tells a socket from another one of the same name.
type socketID struct{ dev, ino uint64 }

func socketIn(d *os.File) (socketID, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), SocketName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return socketID{}, fmt.Errorf("look at the socket: %w", err)
	}
	return socketID{st.Dev, st.Ino}, nil
}

// answers tells what is wrong if nobody gets through to the socket any more.
func answers(d *os.File, own socketID) error {
	if now, err := socketIn(d); err != nil || now != own {
		return errors.New("the socket was removed or replaced")
	}
	c, err := net.Dial("unix", socketName(d))
	if errors.Is(err, unix.ECONNREFUSED) { // a full queue is another error, and no fault
		return fmt.Errorf("the socket does not listen: %w", err)
	}
	if err == nil {
		_ = c.Close() // it has served
	}
	return nil
}

// listenAgain makes the socket anew, or returns nil once the gateway closes.
func (g *Gateway) listenAgain() *net.UnixListener {
	for {
		select {
		case <-g.ctx.Done():
			return nil
		case <-time.After(restartPause):
		}
		if removeFrom(g.dir, SocketName) == nil {
			if l, err := listenIn(g.dir); err == nil {
				return l
			}
		}
	}
}

// guard, deferred, has a fault of the gateway's own end all that it serves: what
// a panic left behind is not to be trusted by another request. The process, with
// its other kicks, goes on.
func (g *Gateway) guard() {
	p := recover()
	if p == nil {
		return
	}
	if p != http.ErrAbortHandler { //nolint:errorlint // that very value, as net/http asks for
		g.mu.Lock()
		g.fail(fmt.Errorf("a fault of kick: panic in %s: %v", panicked(), p))
		g.mu.Unlock()
	}
	panic(http.ErrAbortHandler)
}

// panicked returns the place of a panic that a deferred function recovers.
func panicked() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	seen := false
	for {
		f, more := frames.Next()
		if seen && !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		seen = seen || f.Function == "runtime.gopanic"
		if !more {
			return "an unknown place"
		}
	}
}
