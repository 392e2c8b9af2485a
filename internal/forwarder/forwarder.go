// Package forwarder is the sandbox's side of the way out: it passes connections
// to a port of loopback, where programs expect a proxy, on to the egress gateway,
// by its Unix socket or, where a runtime carries none, by its TCP address. The shim
// runs it, so it needs the standard library alone.
package forwarder

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// maxForwarded is how many connections the forwarder holds at once. More wait
// in the listener's backlog.
const maxForwarded = 256

// Listen listens on the loopback port that programs in the sandbox
// know the gateway by.
func Listen(port int) (net.Listener, error) {
	return net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// Run passes connections to l on to the gateway until ctx ends, and returns
// when none is left.
func Run(ctx context.Context, l net.Listener, way Way) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	slots := make(chan struct{}, maxForwarded)
	for {
		slots <- struct{}{}
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			// Out of descriptors, most likely: existing connections end first.
			<-slots
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-ctx.Done():
				return
			}
		}
		conns.Go(func() {
			defer func() { <-slots }()
			pass(ctx, c, way)
		})
	}
}

// pass copies both ways; the end of one direction is passed on as such, since
// protocols may half-close.
func pass(ctx context.Context, c net.Conn, way Way) {
	defer c.Close()
	up, err := way.connect(ctx)
	if err != nil {
		return // the client sees its connection closed
	}
	defer up.Close()
	stop := context.AfterFunc(ctx, func() {
		c.Close()
		up.Close()
	})
	defer stop()
	var wg sync.WaitGroup
	copyHalf := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src)
		if h, ok := dst.(interface{ CloseWrite() error }); ok {
			_ = h.CloseWrite()
		}
	}
	wg.Go(func() { copyHalf(up, c) })
	copyHalf(c, up)
	wg.Wait()
}
