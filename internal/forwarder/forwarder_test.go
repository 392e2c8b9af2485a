package forwarder

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// start runs a forwarder to a server that a function speaks for.
func start(t *testing.T, serve func(c *net.UnixConn)) (dial func() *net.TCPConn, end func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fw") // a socket's name is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	var all sync.WaitGroup
	if serve != nil {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for {
				c, err := l.AcceptUnix()
				if err != nil {
					return
				}
				all.Go(func() {
					defer c.Close()
					serve(c)
				})
			}
		})
		t.Cleanup(func() { l.Close(); all.Wait() })
	}
	l, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Run(ctx, l, Way{Network: "unix", Address: socket})
	}()
	end = func() { cancel(); <-ended }
	t.Cleanup(end)
	return func() *net.TCPConn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return c.(*net.TCPConn)
	}, end
}

// Each direction ends by itself: a client that has said all still gets the answer.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	dial, _ := start(t, func(c *net.UnixConn) {
		said, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		_, _ = c.Write([]byte(strings.ToUpper(string(said))))
	})
	long := strings.Repeat("hello", 100_000)
	c := dial()
	if _, err := io.WriteString(c, long); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != strings.ToUpper(long) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Where nobody listens the client sees an end, and not a silence.
func TestNoGateway(t *testing.T) {
	t.Parallel()
	dial, _ := start(t, nil)
	if n, err := dial().Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
		t.Errorf("%d, %v", n, err)
	}
}

// The end cuts open connections on both sides.
func TestEnd(t *testing.T) {
	t.Parallel()
	gone := make(chan error, 1)
	dial, end := start(t, func(c *net.UnixConn) {
		_, _ = c.Write([]byte("x"))
		_, err := c.Read(make([]byte, 1))
		gone <- err
	})
	c := dial()
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	end()
	if err := <-gone; err == nil {
		t.Error("the gateway's side is open")
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the client's side is open: %v", err)
	}
}
