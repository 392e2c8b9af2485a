package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/httpstream"
	clientws "k8s.io/client-go/transport/websocket"
)

// PortForward connects with a port of what an object stands for, by a subresource
// that carries a stream's bytes in the binary messages of a websocket. ctx is for
// the beginning alone.
func (c *Client) PortForward(ctx context.Context, r Resource, namespace, name string, port int, protocol string) (net.Conn, error) {
	k := call{verb: "get", method: http.MethodGet, resource: r, namespace: namespace, names: []string{name, "portforward", strconv.Itoa(port)}}
	rt, holder, err := clientws.RoundTripperFor(c.config)
	if err != nil {
		return nil, c.fail(k, err)
	}
	req, err := http.NewRequestWithContext(ctx, k.method, c.url(r, namespace, k.names...).String(), nil)
	if err != nil {
		return nil, c.fail(k, err)
	}
	c.calls.Add(1)
	conn, err := clientws.Negotiate(rt, holder, req, protocol)
	if err != nil {
		var refused *httpstream.UpgradeFailureError
		if status := (*apierrors.StatusError)(nil); errors.As(err, &refused) && errors.As(refused.Cause, &status) {
			err = status
		}
		return nil, c.fail(k, err)
	}
	return &wsConn{Conn: conn}, nil
}

// wsConn is the stream in a websocket. Reads and writes may go on at once, one of
// each.
type wsConn struct {
	*websocket.Conn
	message io.Reader // what is left of the message that is being read

	mu sync.Mutex // of writes, whose end a Close does not wait for
}

func (c *wsConn) Read(p []byte) (int, error) {
	for {
		if c.message != nil {
			n, err := c.message.Read(p)
			if !errors.Is(err, io.EOF) {
				return n, err
			}
			c.message = nil
			if n > 0 {
				return n, nil
			}
		}
		kind, r, err := c.NextReader()
		if err != nil {
			var closed *websocket.CloseError
			if errors.As(err, &closed) && closed.Code == websocket.CloseNormalClosure {
				err = io.EOF
			}
			return 0, err
		}
		if kind != websocket.BinaryMessage {
			return 0, fmt.Errorf("a message of kind %d in a stream of bytes", kind)
		}
		c.message = r
	}
}

func (c *wsConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// SetDeadline is both.
func (c *wsConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}
