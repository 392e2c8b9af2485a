package egress

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
)

// bodyBuffer has the body of a model call, or the list that is its answer. It has
// one owner: the call, and then what is sent. Until it is given back, its bytes count among those that the
// gateway has in memory: a provider may be slow to read.
type bodyBuffer struct {
	bytes.Buffer
	g     *Gateway
	bytes int64
}

var bodies = sync.Pool{New: func() any { return new(bodyBuffer) }}

// newBody returns a buffer that counts for n bytes, or nil if they are too many.
func (g *Gateway) newBody(n int64) *bodyBuffer {
	if !g.take(n) {
		return nil
	}
	b := bodies.Get().(*bodyBuffer)
	b.g, b.bytes = g, n
	return b
}

// isWhole tells that nothing more comes than what is there.
func (b *bodyBuffer) isWhole() {
	if left := b.bytes - int64(b.Len()); left > 0 {
		b.g.take(-left)
		b.bytes -= left
	}
}

// take counts the bytes of bodies that are in memory, and reports whether n
// more are too many.
func (g *Gateway) take(n int64) bool {
	for {
		now := g.inMemory.Load()
		if n > 0 && now > 0 && now+n > 4*g.limits.bodyBytes {
			return false
		}
		if g.inMemory.CompareAndSwap(now, now+n) {
			return true
		}
	}
}

// keptBody is how large a buffer is kept, in bytes: agents send some 100 KB.
const keptBody = 1 << 20

// release gives a buffer back; nil is none.
func release(b *bodyBuffer) {
	if b == nil {
		return
	}
	b.g.take(-b.bytes)
	b.g, b.bytes = nil, 0
	if b.Cap() <= keptBody {
		b.Reset()
		bodies.Put(b)
	}
}

// sentBody is the body of a request to a provider. It gives its buffer back once
// it is read or closed, and is not read after: a transport may try that in a
// goroutine that lives longer than the call.
type sentBody struct {
	mu    sync.Mutex
	parts [][]byte
	buf   *bodyBuffer // nil: it was given back
}

func (s *sentBody) length() (n int64) {
	for _, p := range s.parts {
		n += int64(len(p))
	}
	return n
}

func (s *sentBody) Read(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buf == nil {
		return 0, errors.New("the body was sent or closed")
	}
	for len(s.parts) > 0 && n < len(p) {
		m := copy(p[n:], s.parts[0])
		n += m
		if s.parts[0] = s.parts[0][m:]; len(s.parts[0]) == 0 {
			s.parts = s.parts[1:]
		}
	}
	if len(s.parts) == 0 {
		return n, io.EOF
	}
	return n, nil
}

func (s *sentBody) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	release(s.buf)
	s.parts, s.buf = nil, nil
	return nil
}

// bulkConn is a connection to a provider. Bodies, which are in memory, are copied
// to it in large pieces, by buffers that are used again.
type bulkConn struct{ net.Conn }

var bulks = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

// ReadFrom is what net/http sends bodies by.
func (c bulkConn) ReadFrom(r io.Reader) (int64, error) {
	buf := bulks.Get().(*[]byte)
	defer bulks.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, r, *buf)
}
