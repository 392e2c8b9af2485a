package resume

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

var testKey = bytes.Repeat([]byte("k"), KeySize)

// pair is a session whose ends are connected as dial says, again and again until
// it is over.
func pair(t *testing.T, dial func(try int) (client, server io.ReadWriteCloser)) (*Client, *Stream) {
	t.Helper()
	c, srv := NewClient(testKey, true), NewServer()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for try := 0; ; try++ {
			select {
			case <-stop:
				return
			default:
			}
			a, b := dial(try)
			wg.Go(func() { _ = srv.Serve(b) })
			if errors.Is(c.Carry(a), ErrEnded) {
				return
			}
		}
	})
	st := srv.Accept(time.Minute)
	if st == nil {
		t.Fatal("no session came")
	}
	t.Cleanup(func() {
		close(stop)
		c.End()
		st.End()
		wg.Wait()
	})
	return c, st
}

// cutting is a connection that breaks after so many bytes, read or written. What
// it has taken by then may be lost on the way, as on a real one.
type cutting struct {
	net.Conn
	mu   sync.Mutex
	left int
}

func (c *cutting) some(p []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		c.Close()
		return nil, io.ErrClosedPipe
	}
	n := min(len(p), c.left)
	c.left -= n
	return p[:n], nil
}

func (c *cutting) Write(p []byte) (int, error) {
	q, err := c.some(p)
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(q)
	if err == nil && n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, err
}

// exchange has each end write its text and read the other's.
func exchange(t *testing.T, a, b io.ReadWriter, fromA, fromB []byte) {
	t.Helper()
	var wg sync.WaitGroup
	half := func(s io.ReadWriter, mine, theirs []byte) {
		wg.Go(func() {
			if _, err := s.Write(mine); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		wg.Go(func() {
			got := make([]byte, len(theirs))
			if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, theirs) {
				t.Errorf("read %d bytes, %v: the same %v", len(got), err, bytes.Equal(got, theirs))
			}
		})
	}
	half(a, fromA, fromB)
	half(b, fromB, fromA)
	wg.Wait()
}

// noise is text in which each place can be told from the others.
func noise(seed byte, n int) []byte {
	var b []byte
	for i := 0; len(b) < n; i++ {
		sum := sha256.Sum256(binary.BigEndian.AppendUint32([]byte{seed}, uint32(i)))
		b = append(b, sum[:]...)
	}
	return b[:n]
}

// Whichever byte of the first connection is the last, in either direction, both
// texts arrive once and whole.
func TestCutAtEveryByte(t *testing.T) {
	t.Parallel()
	up, down := noise(1, 300), noise(2, 300)
	// A greeting and an answer, and packets with all of it.
	most := len(magic) + nonceSize + 1 + KeySize + sessionSize + nonceSize + 8 + 32 + 8 + 32 + 6*headerSize + len(up)
	for after := range most {
		for _, side := range []string{"client", "server"} {
			c, st := pair(t, func(try int) (io.ReadWriteCloser, io.ReadWriteCloser) {
				a, b := net.Pipe()
				switch {
				case try > 0:
				case side == "client":
					return &cutting{Conn: a, left: after}, b
				default:
					return a, &cutting{Conn: b, left: after}
				}
				return a, b
			})
			exchange(t, c, st, up, down)
			if !c.Drain(time.Minute) || !st.Drain(time.Minute) {
				t.Errorf("%s cut after %d bytes: not all was acknowledged", side, after)
			}
			if t.Failed() {
				t.Fatalf("%s cut after %d bytes", side, after)
			}
		}
	}
}

// Megabytes in both directions, over connections that each last for some
// kilobytes.
func TestManyCuts(t *testing.T) {
	t.Parallel()
	c, st := pair(t, func(try int) (io.ReadWriteCloser, io.ReadWriteCloser) {
		a, b := net.Pipe()
		return &cutting{Conn: a, left: 50_000 + 7919*try%90_000}, &cutting{Conn: b, left: 50_000 + 104_729*try%90_000}
	})
	exchange(t, c, st, noise(1, 3<<20), noise(2, 3<<20))
}

// A writer waits when the other end does not read, within a bound of memory.
func TestWindow(t *testing.T) {
	t.Parallel()
	c, st := pair(t, func(int) (io.ReadWriteCloser, io.ReadWriteCloser) { return net.Pipe() })
	if err := c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	text := noise(3, 3*window)
	n, err := c.Write(text)
	if !errors.Is(err, os.ErrDeadlineExceeded) || n != window {
		t.Fatalf("%d bytes were taken, %v, want %d", n, err, window)
	}
	if c.Drain(10 * time.Millisecond) {
		t.Error("nothing was read, and all is acknowledged")
	}
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(text[n:]); err != nil {
			t.Errorf("write the rest: %v", err)
		}
	})
	got := make([]byte, len(text))
	if _, err := io.ReadFull(st, got); err != nil || !bytes.Equal(got, text) {
		t.Errorf("read: %v", err)
	}
	wg.Wait()
	if !c.Drain(time.Minute) {
		t.Error("all was read, and not all is acknowledged")
	}
}

// serveOn lets a server speak on one end and returns the other.
func serveOn(t *testing.T, srv *Server) (net.Conn, <-chan error) {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- srv.Serve(b)
		close(done)
	}()
	t.Cleanup(func() {
		a.Close()
		<-done
	})
	return a, done
}

// A new session ends the one before, and begins with nothing of it.
func TestAnotherClient(t *testing.T) {
	t.Parallel()
	srv := NewServer()
	begin := func(c *Client) *Stream {
		conn, _ := serveOn(t, srv)
		go func() { _ = c.Carry(conn) }()
		st := srv.Accept(time.Minute)
		if st == nil {
			t.Fatal("no session came")
		}
		t.Cleanup(c.End)
		return st
	}
	first := NewClient(testKey, true)
	old := begin(first)
	if _, err := old.Write([]byte("for the first")); err != nil {
		t.Fatal(err)
	}
	second := NewClient(testKey, false)
	now := begin(second)
	if _, err := old.Write([]byte("more")); !errors.Is(err, ErrEnded) {
		t.Errorf("a write to the session before: %v", err)
	}
	if n, err := old.Read(make([]byte, 10)); !errors.Is(err, ErrEnded) {
		t.Errorf("a read from the session before: %d, %v", n, err)
	}
	exchange(t, second, now, []byte("from the second"), []byte("for the second"))
}

// Who has not the key is not heard, whatever it has seen.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	srv := NewServer()
	// Without a key the server takes nobody who brings none.
	conn, done := serveOn(t, srv)
	if err := NewClient(testKey, false).Carry(conn); !errors.Is(err, ErrGreeting) {
		t.Errorf("a client without a key was welcome: %v", err)
	}
	conn.Close()
	<-done
	c := NewClient(testKey, true)
	conn, _ = serveOn(t, srv)
	broke := make(chan error, 1)
	go func() { broke <- c.Carry(conn) }()
	t.Cleanup(c.End)
	st := srv.Accept(time.Minute)
	if st == nil {
		t.Fatal("no session came")
	}
	conn.Close()
	if err := <-broke; errors.Is(err, ErrGreeting) {
		t.Errorf("a connection that had carried: %v", err)
	}
	conn, _ = serveOn(t, srv)
	go func() { _ = c.Carry(conn) }()
	for name, other := range map[string]*Client{
		"another key, given":     NewClient(bytes.Repeat([]byte("x"), KeySize), true),
		"another key, not given": NewClient(bytes.Repeat([]byte("x"), KeySize), false),
	} {
		conn, _ := serveOn(t, srv)
		if err := other.Carry(conn); !errors.Is(err, ErrGreeting) {
			t.Errorf("%s: it was welcome: %v", name, err)
		}
	}
	exchange(t, c, st, []byte("up"), []byte("down")) // all the same
}

// Who only looks learns whether a server has had its first client, and disturbs nobody.
func TestWaits(t *testing.T) {
	t.Parallel()
	srv := NewServer()
	look := func() bool {
		conn, _ := serveOn(t, srv)
		waits, err := Waits(conn)
		if err != nil {
			t.Error(err)
		}
		return waits
	}
	if !look() {
		t.Error("nobody has come, and it does not wait")
	}
	c := NewClient(testKey, true)
	conn, _ := serveOn(t, srv)
	go func() { _ = c.Carry(conn) }()
	t.Cleanup(c.End)
	st := srv.Accept(time.Minute)
	if st == nil {
		t.Fatal("no session came")
	}
	if look() {
		t.Error("it waits for its first client, and has one")
	}
	exchange(t, c, st, []byte("up"), []byte("down"))
	a, b := net.Pipe()
	go func() { _, _ = b.Write(bytes.Repeat([]byte("x"), len(magic)+nonceSize)) }()
	if _, err := Waits(a); !errors.Is(err, ErrGreeting) {
		t.Errorf("a program that is no server: %v", err)
	}
}

// What one client has said, another cannot say again.
func TestReplay(t *testing.T) {
	t.Parallel()
	srv := NewServer()
	a, b := net.Pipe()
	var said bytes.Buffer
	c := NewClient(testKey, true)
	go func() { _ = srv.Serve(b) }()
	go func() { _ = c.Carry(&recording{Conn: a, to: &said}) }()
	t.Cleanup(c.End)
	st := srv.Accept(time.Minute)
	if st == nil {
		t.Fatal("no session came")
	}
	exchange(t, c, st, []byte("up"), []byte("down"))
	if !c.Drain(time.Minute) {
		t.Fatal("not acknowledged")
	}
	c.End()
	conn, done := serveOn(t, srv)
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	_, _ = conn.Write(said.Bytes()) // it may be cut off
	if err := <-done; !errors.Is(err, errProtocol) {
		t.Errorf("a repetition: %v", err)
	}
}

type recording struct {
	net.Conn
	to io.Writer
}

func (r *recording) Write(p []byte) (int, error) {
	_, _ = r.to.Write(p) // a buffer
	return r.Conn.Write(p)
}

// A session that nobody is connected to ends after its time, and not before a
// connection that comes in time.
func TestEndAlone(t *testing.T) {
	t.Parallel()
	c, st := pair(t, func(int) (io.ReadWriteCloser, io.ReadWriteCloser) { return net.Pipe() })
	over := make(chan struct{})
	go func() {
		st.EndAlone(20 * time.Millisecond)
		close(over)
	}()
	exchange(t, c, st, noise(1, 1000), noise(2, 1000))
	select {
	case <-over:
		t.Fatal("it ended while connected")
	default:
	}
	c.End()
	<-over
	if _, err := st.Read(make([]byte, 1)); !errors.Is(err, ErrEnded) {
		t.Errorf("read: %v", err)
	}
}

// FuzzClient feeds a client what a sandbox might say. It must end, and nothing
// that has no code is read.
func FuzzClient(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte(magic))
	f.Add(append([]byte(magic), make([]byte, nonceSize+8+32+headerSize)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := NewClient(testKey, true)
		if err := c.Carry(&said{bytes.NewReader(data)}); err == nil {
			t.Error("no error at the end")
		}
		if len(c.in) > 0 || c.acked > 0 {
			t.Errorf("%d bytes were believed", len(c.in))
		}
	})
}

// said is a connection on which all is said.
type said struct{ io.Reader }

func (*said) Write(p []byte) (int, error) { return len(p), nil }
func (*said) Close() error                { return nil }

// FuzzPacket feeds packets with good codes: a server whose memory an agent could
// not have read, but whose words are still not believed beyond their bounds.
func FuzzPacket(f *testing.F) {
	f.Add(uint64(0), uint64(0), []byte("x"), uint64(1), uint64(3), []byte("yz"))
	f.Add(uint64(1<<63), uint64(1<<63), []byte("x"), uint64(0), uint64(9), []byte(nil))
	f.Fuzz(func(t *testing.T, o1, r1 uint64, p1 []byte, o2, r2 uint64, p2 []byte) {
		s := newStream()
		carrier, _, err := s.resumeAt(0)
		if err != nil {
			t.Fatal(err)
		}
		s.out, s.next = []byte("0123456789"), 5
		var want []byte
		for _, p := range []struct {
			offset, received uint64
			payload          []byte
		}{{o1, r1, p1}, {o2, r2, p2}} {
			before := uint64(len(want))
			if s.take(carrier, p.offset, p.received, p.payload) != nil {
				break
			}
			if end := p.offset + uint64(len(p.payload)); end > before {
				want = append(want, p.payload[before-p.offset:]...)
			}
		}
		if !slices.Equal(s.in, want) || len(s.in) > window || s.acked > 5 || s.acked+uint64(len(s.out)) != 10 {
			t.Errorf("read %q, want %q; %d acknowledged, %d kept", s.in, want, s.acked, len(s.out))
		}
	})
}

// An end that has read all tells the other, and waits until that has gone.
func TestPart(t *testing.T) {
	t.Parallel()
	c, st := pair(t, func(int) (io.ReadWriteCloser, io.ReadWriteCloser) { return net.Pipe() })
	if _, err := st.Write([]byte("goodbye")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, len("goodbye"))); err != nil {
		t.Fatal(err)
	}
	if c.Part(50 * time.Millisecond) {
		t.Error("the other end is there, and it has parted")
	}
	gone := make(chan bool)
	go func() { gone <- c.Part(time.Minute) }()
	if !st.Drain(time.Minute) {
		t.Error("the other end was not told")
	}
	st.End()
	if !<-gone {
		t.Error("the other end has gone, and it has not parted")
	}
	c.End()
	if _, err := c.Write([]byte("x")); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
}
