package resume

import (
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// handshakeMost is how long a connection may take to begin.
const handshakeMost = 10 * time.Second

// The kinds of a client's greeting.
const (
	withKey    = 'k' // it gives the key, which the server takes if it has none
	withoutKey = 'r'
)

// Client is kick's end of one session.
type Client struct {
	*Stream
	key     []byte
	session []byte

	mu     sync.Mutex
	greets byte // the kind of its greeting
}

// NewClient begins a session. first tells that the server may have no key yet, so
// that it is given this one. That must be before anything runs beside the server
// that could listen.
func NewClient(key []byte, first bool) *Client {
	c := &Client{Stream: newStream(), key: key, session: random(sessionSize), greets: withoutKey}
	if first {
		c.greets = withKey
	}
	return c
}

// Carry speaks over a connection until it breaks, which the error says, or the
// session ends. The connection is closed then. It has carried nothing if the error is
// ErrGreeting. Of two at once the later one counts.
func (c *Client) Carry(conn io.ReadWriteCloser) error {
	carrier, r, w, err := c.greet(conn)
	if err != nil {
		conn.Close()
		return fmt.Errorf("%w: %w", ErrGreeting, err)
	}
	return c.carry(conn, carrier, r, w)
}

func (c *Client) greet(conn io.ReadWriteCloser) (carrier int, r, w *coder, err error) {
	t := time.AfterFunc(handshakeMost, func() { conn.Close() })
	defer func() {
		if !t.Stop() && err != nil {
			err = fmt.Errorf("no answer in %v: %w", handshakeMost, os.ErrDeadlineExceeded)
		}
	}()
	theirs, _, err := hear(conn)
	if err != nil {
		return 0, nil, nil, err
	}
	ours := random(nonceSize)
	c.mu.Lock()
	greets := c.greets
	c.mu.Unlock()
	c.Stream.mu.Lock()
	have := c.read + uint64(len(c.in))
	c.Stream.mu.Unlock()
	greeting := []byte{greets}
	if greets == withKey {
		greeting = append(greeting, c.key...)
	}
	said := append(append(append([]byte{}, c.session...), ours...), binary.BigEndian.AppendUint64(nil, have)...)
	greeting = append(append(greeting, said...), mac(c.key, []byte("client"), theirs, said)...)
	if _, err := conn.Write(greeting); err != nil {
		return 0, nil, nil, err
	}
	answer := make([]byte, 8+32)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return 0, nil, nil, err
	}
	if !hmac.Equal(answer[8:], mac(c.key, []byte("server"), theirs, said, answer[:8])) {
		return 0, nil, nil, fmt.Errorf("%w: the answer's code is wrong", errProtocol)
	}
	c.mu.Lock()
	c.greets = withoutKey // it has the key, and is not told again
	c.mu.Unlock()
	// What an older connection still brings meanwhile comes again, and is dropped.
	carrier, _, err = c.resumeAt(binary.BigEndian.Uint64(answer))
	return carrier, newCoder(c.key, "to client", theirs, said), newCoder(c.key, "to server", theirs, said), err
}

// hear reads what a server says first: its nonce, and whether it has no key yet.
func hear(conn io.Reader) (nonce []byte, waits bool, err error) {
	hello := make([]byte, len(magic)+nonceSize)
	if _, err := io.ReadFull(conn, hello); err != nil {
		return nil, false, err
	}
	said, nonce := string(hello[:len(magic)]), hello[len(magic):]
	if said != magic && said != waitingMagic {
		return nil, false, fmt.Errorf("%w: it does not begin with %q", errProtocol, magic)
	}
	return nonce, said == waitingMagic, nil
}

// Waits tells whether a server waits for its first client, so that nothing has run
// beside it, and closes the connection. It is the word of whoever is at the other end.
func Waits(conn io.ReadWriteCloser) (bool, error) {
	t := time.AfterFunc(handshakeMost, func() { conn.Close() })
	_, waits, err := hear(conn)
	t.Stop()
	conn.Close() // it was only looked at
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrGreeting, err)
	}
	return waits, nil
}

// Server is the shim's end of all sessions.
type Server struct {
	sessions chan *Stream

	mu      sync.Mutex
	key     []byte
	session []byte
	stream  *Stream
}

// NewServer returns a server that has no key yet.
func NewServer() *Server { return &Server{sessions: make(chan *Stream, 1)} }

// Accept waits for the next session, at most so long; nil if none came.
func (s *Server) Accept(most time.Duration) *Stream {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case st := <-s.sessions:
		return st
	case <-t.C:
		return nil
	}
}

// EndAlone ends the session when nobody has been connected for so long. It returns
// when the session is over.
func (st *Stream) EndAlone(most time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	var since time.Time
	for st.ended == nil {
		switch {
		case st.carried:
			since = time.Time{}
			st.await(time.Time{})
		case since.IsZero():
			since = time.Now()
		case !st.await(since.Add(most)):
			if st.carried || st.ended != nil {
				continue
			}
			st.ended = fmt.Errorf("nobody has come for %v: %w", most, ErrEnded)
			st.note()
		}
	}
}

// Serve speaks over a connection until it breaks or another takes over.
func (s *Server) Serve(conn io.ReadWriteCloser) error {
	st, carrier, r, w, err := s.welcome(conn)
	if err != nil {
		conn.Close()
		return err
	}
	return st.carry(conn, carrier, r, w)
}

func (s *Server) welcome(conn io.ReadWriteCloser) (st *Stream, carrier int, r, w *coder, err error) {
	t := time.AfterFunc(handshakeMost, func() { conn.Close() })
	defer t.Stop()
	ours := random(nonceSize)
	if _, err := conn.Write(append([]byte(s.magic()), ours...)); err != nil {
		return nil, 0, nil, nil, err
	}
	kind, given := make([]byte, 1), make([]byte, KeySize)
	if _, err := io.ReadFull(conn, kind); err != nil {
		return nil, 0, nil, nil, err
	}
	if kind[0] == withKey {
		if _, err := io.ReadFull(conn, given); err != nil {
			return nil, 0, nil, nil, err
		}
	}
	said, code := make([]byte, sessionSize+nonceSize+8), make([]byte, 32)
	for _, b := range [][]byte{said, code} {
		if _, err := io.ReadFull(conn, b); err != nil {
			return nil, 0, nil, nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.key
	if key == nil && kind[0] == withKey {
		key = given
	}
	if key == nil || !hmac.Equal(code, mac(key, []byte("client"), ours, said)) {
		return nil, 0, nil, nil, fmt.Errorf("%w: the greeting's code is wrong", errProtocol)
	}
	s.key = key
	st = s.open(said[:sessionSize])
	carrier, have, err := st.resumeAt(binary.BigEndian.Uint64(said[sessionSize+nonceSize:]))
	if err != nil {
		return nil, 0, nil, nil, err
	}
	answer := binary.BigEndian.AppendUint64(nil, have)
	if _, err := conn.Write(append(answer, mac(key, []byte("server"), ours, said, answer)...)); err != nil {
		return nil, 0, nil, nil, err
	}
	return st, carrier, newCoder(key, "to server", ours, said), newCoder(key, "to client", ours, said), nil
}

func (s *Server) magic() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key == nil {
		return waitingMagic
	}
	return magic
}

// open finds the stream of a session, or begins it in place of the one before.
// The lock is held.
func (s *Server) open(session []byte) *Stream {
	if s.stream != nil && string(session) == string(s.session) {
		return s.stream
	}
	if s.stream != nil {
		s.stream.end(fmt.Errorf("another host has taken over: %w", ErrEnded))
	}
	s.session, s.stream = session, newStream()
	select {
	case <-s.sessions: // one that nobody has taken yet
	default:
	}
	s.sessions <- s.stream
	return s.stream
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails on Linux
	return b
}
