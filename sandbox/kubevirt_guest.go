package sandbox

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kickhq/kick/internal/lazyregexp"
)

// guest is the way into one machine: SSH within a stream that the API server
// carries. What answers there is not believed to be the machine before it has shown
// the key that it was given, and is hostile after that too.
type guest struct {
	dial func(context.Context) (net.Conn, error)
	user string
	keys machineKeyPairs
}

// Bounds of what a guest may take.
const (
	guestHello     = 30 * time.Second // until it has let kick in; a software CPU was measured to take 3 s
	guestAnswer    = 2 * time.Minute  // for a command of kick's own, with what it sends
	guestAlive     = 15 * time.Second // between two signs of life; load balancers cut what is idle
	guestSilent    = time.Minute      // for each, which waits behind what is being sent to a machine on a busy node
	guestSays      = 1 << 20          // bytes of a command's output
	guestForwarded = 64               // connections to the gateway at once
)

var (
	// errWrongHost is a guest that is not the machine that was made.
	errWrongHost = errors.New("who answers has not the key that the machine was given")
	// errKeptOut is the machine itself, which does not know kick.
	errKeptOut  = errors.New("it has shown its key, and refuses kick's")
	errNoHello  = fmt.Errorf("it did not let kick in within %v", guestHello)
	errNoAnswer = fmt.Errorf("it did not answer within %v", guestAnswer)
)

// guestConn is one connection with the guest.
type guestConn struct {
	client *ssh.Client
	done   chan struct{} // closed when the connection has ended
}

// connect comes to the guest and in.
func (g *guest) connect(ctx context.Context) (*guestConn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, guestHello, errNoHello)
	defer cancel()
	conn, err := g.dial(ctx)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(g.keys.client)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	want, err := ssh.NewPublicKey(g.keys.host.Public())
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	var shown atomic.Bool
	config := &ssh.ClientConfig{
		User: g.user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if subtle.ConstantTimeCompare(key.Marshal(), want.Marshal()) != 1 {
				return errWrongHost
			}
			shown.Store(true)
			return nil
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends the handshake, which says so
	c, channels, requests, err := ssh.NewClientConn(conn, "machine", config)
	if !stop() && err == nil {
		_ = c.Close() // too late
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case shown.Load():
			err = fmt.Errorf("%w: %w", errKeptOut, err)
		}
		return nil, fmt.Errorf("speak SSH with the machine: %w", err)
	}
	gc := &guestConn{client: ssh.NewClient(c, channels, requests), done: make(chan struct{})}
	go func() {
		defer close(gc.done)
		_ = gc.client.Wait() // who uses it is told
	}()
	go gc.keepAlive()
	return gc, nil
}

func (c *guestConn) Close() error { return c.client.Close() }

// keepAlive asks for signs of life, and ends a connection that gives none.
func (c *guestConn) keepAlive() {
	t := time.NewTicker(guestAlive)
	defer t.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-t.C:
		}
		late := time.AfterFunc(guestSilent, func() { _ = c.Close() })
		_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
		late.Stop()
		if err != nil {
			return
		}
	}
}

// command runs a command of kick's own and returns what it says.
func (c *guestConn) command(ctx context.Context, command string, stdin io.Reader) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, guestAnswer, errNoAnswer)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	fail := func(said string, err error) ([]byte, error) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w %s", err, escaped(said))
	}
	session, err := c.client.NewSession()
	if err != nil {
		return fail("", err)
	}
	defer func() { _ = session.Close() }() // how it ended, Run says
	out, words := &capped{max: guestSays}, &tail{max: 4 << 10}
	session.Stdin, session.Stdout, session.Stderr = stdin, out, words
	if err := session.Run(command); err != nil {
		return fail(words.String()+string(out.b.Bytes()[:min(out.b.Len(), 4<<10)]), err)
	}
	return out.b.Bytes(), nil
}

// capped takes so many bytes and no more.
type capped struct {
	max int
	b   bytes.Buffer
}

func (c *capped) Write(p []byte) (int, error) {
	if c.b.Len()+len(p) > c.max {
		return 0, fmt.Errorf("more than %d bytes", c.max)
	}
	return c.b.Write(p)
}

// stream runs a command whose standard input and output are the stream. What it says
// of its trouble goes to words. The connection is closed with it.
func (c *guestConn) stream(command string, words io.Writer) (io.ReadWriteCloser, error) {
	session, err := c.client.NewSession()
	if err != nil {
		return nil, err
	}
	in, err := session.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return nil, err
	}
	session.Stderr = words
	if err := session.Start(command); err != nil {
		return nil, err
	}
	return &guestStream{Reader: out, Writer: in, conn: c}, nil
}

type guestStream struct {
	io.Reader
	io.Writer
	conn *guestConn
}

func (s *guestStream) Close() error { return s.conn.Close() }

// forward carries connections to a socket in the machine to one of this host, until
// the connection with the guest ends.
func (c *guestConn) forward(remote, local string) error {
	l, err := c.client.ListenUnix(remote)
	if err != nil {
		return err
	}
	go func() {
		slots := make(chan struct{}, guestForwarded)
		for {
			slots <- struct{}{}
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { <-slots }()
				pass(from, local)
			}()
		}
	}()
	return nil
}

// pass copies in both directions between a connection and a socket of this host.
func pass(from net.Conn, local string) {
	defer from.Close()
	to, err := net.Dial("unix", local)
	if err != nil {
		return // the gateway is gone, as it is when the agent has ended
	}
	defer to.Close()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(to, from) // whoever breaks it knows
		_ = to.(*net.UnixConn).CloseWrite()
	})
	both.Go(func() {
		_, _ = io.Copy(from, to)
		if half, ok := from.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	})
	both.Wait()
}

// machineDir is a directory that needs no quoting.
var machineDir = lazyregexp.New(`^/[A-Za-z0-9._/-]{1,200}$`)
