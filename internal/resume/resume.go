// Package resume carries a stream of bytes in each direction over connections
// that may break at any byte: kick and the shim in a pod speak through an API
// server, which cuts its streams when it restarts. Nothing is lost and nothing
// comes twice. It uses the standard library alone, since the shim carries it.
//
// The shim is the Server, kick the Client. Both ends have a key of KeySize bytes,
// which the first client of all gives to the server, before anything runs that
// could listen. From then on each packet carries a code that nobody makes without
// the key: who gets hold of a connection can break it, and nothing else.
//
// A connection begins with three messages, of fixed sizes:
//
//	server: magic, nonce
//	client: kind, [key,] session, nonce, received, code
//	server: received, code
//
// The magic of a server that has no key yet is another one, so that who comes for
// what a client before has left learns that there was none (see Waits). In the
// messages, received says how many bytes of the other's stream have been read, from
// which on the other sends again. Then come packets: offset, received, length,
// code, payload. A client of another session ends the session before: its reads
// and writes fail, and streams begin anew.
package resume

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Sizes in bytes.
const (
	// KeySize is the size of the key.
	KeySize = 32
	// window is what each end keeps until the other has read it. Through an API
	// server on the same host a packet takes 1 to 2 ms, so this is some 100 MB/s.
	window = 256 << 10
	// maxPayload is the largest payload of a packet.
	maxPayload = 32 << 10

	sessionSize = 16
	nonceSize   = 16
	codeSize    = 16
	headerSize  = 8 + 8 + 4 + codeSize
)

// How long an end may be silent. Each sends something at least every beat, and
// takes a connection for broken when nothing has come for silence. They are
// variables for the tests.
var (
	beat    = 10 * time.Second
	silence = 35 * time.Second
)

// magic begins what a server says, so that a client knows it from a program that
// prints an error.
const magic = "kick-resume-1\n"

// waitingMagic is that of a server that has no key yet.
const waitingMagic = "kick-waiting1\n"

// ErrEnded is the error of a stream whose session is over.
var ErrEnded = errors.New("the session is over")

// ErrGreeting is the error of a connection at whose other end no server of the session
// answered.
var ErrGreeting = errors.New("greet the shim")

// errProtocol is a connection that does not keep to the rules. It is given up,
// and another may take its place.
var errProtocol = errors.New("bad packet")

// Stream is one end of a session: what is written here is read there. Its methods
// may be called at once.
type Stream struct {
	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, with every change

	out   []byte // written here and not yet read there
	acked uint64 // the offset of out[0]
	next  uint64 // the offset of what is sent next on this connection
	in    []byte // received and not yet read here
	read  uint64 // the offset of in[0]
	told  uint64 // the read offset that the other end knows

	carrier  int // counts the connections; the latest one counts
	carried  bool
	deadline time.Time // of writes
	ended    error
}

func newStream() *Stream { return &Stream{changed: make(chan struct{})} }

// note tells all who wait that something has changed. The lock is held.
func (s *Stream) note() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await gives up the lock until something changes or the time is up. No time: it
// waits for ever.
func (s *Stream) await(until time.Time) (inTime bool) {
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	if until.IsZero() {
		<-changed
		return true
	}
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-changed:
		return true
	case <-t.C:
		return false
	}
}

// Read reads what the other end has written. It fails with ErrEnded when the
// session is over and all that came has been read.
func (s *Stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.in) == 0 {
		if s.ended != nil {
			return 0, s.ended
		}
		s.await(time.Time{})
	}
	n := copy(p, s.in)
	s.in = s.in[n:]
	s.read += uint64(n)
	s.note()
	return n, nil
}

// Write returns when all of p is kept for the other end, which may be later than
// the deadline: then the error is os.ErrDeadlineExceeded and a part may be sent.
func (s *Stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for {
		switch {
		case s.ended != nil:
			return n, s.ended
		case len(p) == 0:
			return n, nil
		case len(s.out) < window:
			k := min(len(p), window-len(s.out))
			s.out = append(s.out, p[:k]...)
			n, p = n+k, p[k:]
			s.note()
		case !s.await(s.deadline):
			return n, errDeadline
		}
	}
}

// errDeadline is a write that took too long.
var errDeadline = fmt.Errorf("the other end takes nothing: %w", os.ErrDeadlineExceeded)

// SetWriteDeadline bounds writes that begin after it. The zero time is none.
func (s *Stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	s.note()
	return nil
}

// Drain waits until the other end has read all that was written, at most so long,
// and reports whether it has.
func (s *Stream) Drain(most time.Duration) bool {
	until := time.Now().Add(most)
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.out) > 0 {
		if s.ended != nil || !s.await(until) {
			return false
		}
	}
	return true
}

// Part waits until the other end has heard that all it wrote was read and has gone for
// that, at most so long, and reports whether it has.
func (s *Stream) Part(most time.Duration) bool {
	until := time.Now().Add(most)
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.told != s.read || s.carried {
		if s.ended != nil || !s.await(until) {
			return false
		}
	}
	return true
}

// End ends the session for everybody who reads, writes or carries it.
func (s *Stream) End() { s.end(ErrEnded) }

func (s *Stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = err
		s.note()
	}
}

// resumeAt makes the stream go on where the other end is. It takes over from a
// connection before.
func (s *Stream) resumeAt(received uint64) (carrier int, read uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return 0, 0, s.ended
	}
	if received < s.acked || received > s.acked+uint64(len(s.out)) {
		return 0, 0, fmt.Errorf("%w: the other end has read up to %d, and %d to %d are kept", errProtocol, received, s.acked, s.acked+uint64(len(s.out)))
	}
	s.acknowledge(received)
	s.next = received
	s.carrier++
	s.carried = true
	s.told = s.read
	s.note()
	return s.carrier, s.read + uint64(len(s.in)), nil
}

// acknowledge drops what the other end has read. The lock is held.
func (s *Stream) acknowledge(received uint64) {
	if n := received - s.acked; n > 0 {
		s.out = append(s.out[:0], s.out[n:]...)
		s.acked = received
	}
}

// carry moves packets over one connection until it breaks, another takes over or
// the session ends. The connection is closed then.
func (s *Stream) carry(c io.ReadWriteCloser, carrier int, r, w *coder) error {
	var wg sync.WaitGroup
	var sent error
	wg.Go(func() {
		sent = s.send(c, carrier, w)
		c.Close() // the receiver waits on it
	})
	err := s.receive(c, carrier, r)
	c.Close()
	s.mu.Lock()
	if s.carrier == carrier {
		s.carried = false
		s.carrier++ // no more of this one
	}
	s.note()
	s.mu.Unlock()
	wg.Wait()
	if errors.Is(err, errProtocol) || sent == nil {
		return err
	}
	return sent
}

// send sends what there is, and something every beat.
func (s *Stream) send(w io.Writer, carrier int, code *coder) error {
	packet := make([]byte, headerSize+maxPayload)
	for {
		n, err := s.packet(packet, carrier, time.Now().Add(beat))
		if err != nil {
			return err
		}
		code.seal(packet[:n])
		if _, err := w.Write(packet[:n]); err != nil {
			return err
		}
	}
}

// errTakenOver ends a connection that another one has replaced.
var errTakenOver = errors.New("another connection has taken over")

// packet waits for something to send and fills a packet with it.
func (s *Stream) packet(b []byte, carrier int, beat time.Time) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for inTime := true; ; inTime = s.await(beat) {
		kept := s.acked + uint64(len(s.out))
		switch {
		case s.ended != nil:
			return 0, s.ended
		case s.carrier != carrier:
			return 0, errTakenOver
		case s.next == kept && s.told == s.read && inTime:
			continue
		}
		n := int(min(kept-s.next, maxPayload))
		copy(b[headerSize:], s.out[s.next-s.acked:][:n])
		binary.BigEndian.PutUint64(b, s.next)
		binary.BigEndian.PutUint64(b[8:], s.read)
		binary.BigEndian.PutUint32(b[16:], uint32(n))
		s.next += uint64(n)
		s.told = s.read
		return headerSize + n, nil
	}
}

// receive takes packets. What nobody could have sent breaks the connection.
func (s *Stream) receive(r io.ReadCloser, carrier int, code *coder) error {
	packet := make([]byte, headerSize+maxPayload)
	quiet := time.AfterFunc(silence, func() { r.Close() })
	defer quiet.Stop()
	for {
		if _, err := io.ReadFull(r, packet[:headerSize]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(packet[16:])
		if n > maxPayload {
			return fmt.Errorf("%w: a payload of %d bytes", errProtocol, n)
		}
		if _, err := io.ReadFull(r, packet[headerSize:headerSize+int(n)]); err != nil {
			return err
		}
		quiet.Reset(silence)
		if !code.open(packet[:headerSize+int(n)]) {
			return fmt.Errorf("%w: its code is wrong", errProtocol)
		}
		if err := s.take(carrier, binary.BigEndian.Uint64(packet), binary.BigEndian.Uint64(packet[8:]), packet[headerSize:headerSize+int(n)]); err != nil {
			return err
		}
	}
}

// take takes one packet.
func (s *Stream) take(carrier int, offset, received uint64, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.read + uint64(len(s.in))
	switch {
	case s.ended != nil:
		return s.ended
	case s.carrier != carrier:
		return errTakenOver
	case offset > have || received < s.acked || received > s.next:
		return fmt.Errorf("%w: bytes from %d on where %d is due, %d of %d read", errProtocol, offset, have, received, s.next)
	}
	s.acknowledge(received)
	if old := have - offset; old < uint64(len(payload)) {
		payload = payload[old:]
		if len(s.in)+len(payload) > window {
			return fmt.Errorf("%w: more than the %d bytes that may be on the way", errProtocol, window)
		}
		s.in = append(s.in, payload...)
	}
	s.note()
	return nil
}

// coder makes the codes of one direction of one connection.
type coder struct{ key []byte }

// newCoder derives the key of a direction from all that makes a connection one.
func newCoder(key []byte, direction string, parts ...[]byte) *coder {
	return &coder{mac(key, append([][]byte{[]byte(direction)}, parts...)...)}
}

func mac(key []byte, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

func (c *coder) code(packet []byte) []byte {
	return mac(c.key, packet[:headerSize-codeSize], packet[headerSize:])[:codeSize]
}

func (c *coder) seal(packet []byte) { copy(packet[headerSize-codeSize:headerSize], c.code(packet)) }

func (c *coder) open(packet []byte) bool {
	return hmac.Equal(c.code(packet), packet[headerSize-codeSize:headerSize])
}
