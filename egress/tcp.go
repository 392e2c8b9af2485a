package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kickhq/kick/internal/forwarder"
)

// TCP is the way in for sandboxes to which no Unix socket can be carried, one for
// all gateways of this process. It speaks TLS, with a certificate that the shim
// knows by its hash, and each connection begins with a kick's secret (see
// forwarder.Way). It serves a connection only from an address at which a kick's
// sandbox is, and only with the secret of that kick.
type TCP struct {
	l        *net.TCPListener
	config   *tls.Config
	pin      string
	limits   tcpLimits
	handlers sync.WaitGroup
	closing  chan struct{}

	mu       sync.Mutex // guards what follows
	closed   bool
	sources  map[netip.Addr]*source
	networks []*entrance // of kicks whose sandbox's address is not known
	refused  int
	stranger netip.Addr
}

// tcpLimits bound what who has no secret can make the gateway spend.
type tcpLimits struct {
	entry    time.Duration // from accepting a connection to its secret
	entering int           // connections from one address that are not served yet; further ones are closed
	failures int           // connections without a right secret from one address; further ones are closed,
	recovery time.Duration // but for one each such time
	wary     time.Duration // after failures are paid for, no more than failures at once
}

// A shim holds as many connections as the gateway serves, and may open all at
// once. It never fails but when its sandbox ends.
var defaultTCPLimits = tcpLimits{entry: 5 * time.Second, entering: 256, failures: 10, recovery: time.Second, wary: time.Minute}

// source is an address at which sandboxes are: one, but where a network
// translates addresses. One that has no kick any more gets none: who has the
// address next is another source.
type source struct {
	addr     netip.Addr
	kicks    []*entrance
	entering map[net.Conn]struct{}
	spent    time.Time // until when failures are paid for
}

// ListenTCP opens the way in at an address such as "10.0.0.1:8377", for
// Config.TCP, until Close.
func ListenTCP(address string) (*TCP, error) { return listenTCP(address, defaultTCPLimits) }

func listenTCP(address string, lim tcpLimits) (*TCP, error) {
	cert, err := tcpCertificate()
	if err != nil {
		return nil, fmt.Errorf("open the egress gateway's TCP address: %w", err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("open the egress gateway's TCP address: %w; give an address and a free port of this host", err)
	}
	sum := sha256.Sum256(cert.Certificate[0])
	t := &TCP{
		l: l.(*net.TCPListener), pin: hex.EncodeToString(sum[:]), limits: lim,
		closing: make(chan struct{}), sources: map[netip.Addr]*source{},
		config: &tls.Config{
			MinVersion: tls.VersionTLS13, CurvePreferences: forwarder.Curves,
			Certificates: []tls.Certificate{cert}, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
		},
	}
	t.handlers.Go(t.accept)
	return t, nil
}

// tcpCertificate is made for this process; its key is nowhere else.
func tcpCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	form := certificate("kick egress gateway")
	form.NotAfter = time.Now().AddDate(10, 0, 0) // the pin says that it is right, not the date
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Address returns the address that it listens on. Sandboxes may know it by
// another one.
func (t *TCP) Address() string { return t.l.Addr().String() }

// Pin returns the SHA-256 of the certificate in lower-case hex.
func (t *TCP) Pin() string { return t.pin }

// Refused counts connections from addresses at which no sandbox is, and returns
// the last of these addresses: if a sandbox does not get through, a network that
// translates its address may be why.
func (t *TCP) Refused() (n int, last netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused, t.stranger
}

// Close ends all connections that are not served yet, and the listener. Gateways
// close their own.
func (t *TCP) Close() error {
	t.mu.Lock()
	already := t.closed
	t.closed = true
	if !already {
		close(t.closing)
	}
	for _, s := range t.sources {
		s.cut()
	}
	t.mu.Unlock()
	err := t.l.Close()
	t.handlers.Wait()
	if already || err == nil {
		return nil
	}
	return fmt.Errorf("close the egress gateway's TCP address: %w", err)
}

func (s *source) cut() {
	for c := range s.entering {
		_ = c.Close()
	}
}

// accept takes connections until Close.
func (t *TCP) accept() {
	for {
		c, err := t.l.AcceptTCP()
		if err != nil {
			select {
			case <-t.closing:
				return
			case <-time.After(restartPause): // out of descriptors, most likely: others end first
				continue
			}
		}
		from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
		s := t.begin(from, c)
		if s == nil {
			_ = c.Close()
			continue
		}
		t.handlers.Go(func() {
			defer t.end(s, c)
			if !t.enter(s, c) {
				_ = c.Close()
			}
		})
	}
}

// begin counts a connection from an address that may enter; others get nil.
func (t *TCP) begin(from netip.Addr, c net.Conn) *source {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sources[from]
	if s == nil && slices.ContainsFunc(t.networks, func(e *entrance) bool { return e.network.Contains(from) }) {
		s = t.sourceAt(from)
	}
	if s == nil || t.closed {
		t.refused++
		t.stranger = from
		return nil
	}
	most := t.limits.entering
	if owed := time.Until(s.spent); owed > -t.limits.wary { // each of those under way may be a failure too
		most = t.limits.failures - int((max(owed, 0)+t.limits.recovery-1)/t.limits.recovery)
	}
	if len(s.entering) >= most {
		return nil
	}
	s.entering[c] = struct{}{}
	return s
}

// sourceAt finds or makes the source of an address. t.mu is held.
func (t *TCP) sourceAt(addr netip.Addr) *source {
	s := t.sources[addr]
	if s != nil {
		return s
	}
	s = &source{addr: addr, entering: map[net.Conn]struct{}{}}
	for _, e := range t.networks {
		if e.network.Contains(addr) {
			s.kicks = append(s.kicks, e)
		}
	}
	t.sources[addr] = s
	return s
}

func (t *TCP) end(s *source, c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(s.entering, c)
}

// enter passes a connection to the gateway whose kick's secret it has, and
// reports whether it did.
func (t *TCP) enter(s *source, raw *net.TCPConn) bool {
	c := &tcpConn{Conn: tls.Server(raw, t.config), raw: raw}
	err := raw.SetDeadline(time.Now().Add(t.limits.entry))
	var secret string
	if err == nil {
		secret, err = readGreeting(c)
	}
	e := t.match(s, secret, err)
	if e == nil {
		return false
	}
	select {
	case e.waiting <- struct{}{}:
		defer func() { <-e.waiting }()
	default:
		return false
	}
	t.end(s, raw) // what this kick's gateway has no room for yet takes none of others at the address
	if _, err := io.WriteString(c, forwarder.Welcome); err != nil || raw.SetDeadline(time.Time{}) != nil {
		return false
	}
	select {
	case e.conns <- c:
		return true
	case <-e.gone:
	case <-t.closing:
	}
	return false
}

// readGreeting reads the first bytes of a connection and returns the secret in
// them. It reads none that follow. A fault that what was sent finds, in TLS or
// here, is an error of that connection, as in net/http: the process has other kicks.
func readGreeting(r io.Reader) (secret string, err error) {
	defer func() {
		if p := recover(); p != nil {
			secret, err = "", fmt.Errorf("a fault of kick: panic in %s: %v", panicked(), p)
		}
	}()
	b := make([]byte, len(forwarder.Greeting)+forwarder.SecretSize+1)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", err
	}
	secret, ok := strings.CutPrefix(string(b[:len(b)-1]), forwarder.Greeting)
	if !ok || b[len(b)-1] != '\n' {
		return "", errors.New("the connection does not begin as a shim's does")
	}
	return secret, nil
}

// match finds the kick of a secret among those at an address. Every one is
// compared, in a time that does not depend on what is in the secret.
func (t *TCP) match(s *source, secret string, err error) *entrance {
	t.mu.Lock()
	if len(s.kicks) == 0 {
		t.mu.Unlock()
		return nil // ended meanwhile; the address may be another sandbox's by now
	}
	var found *entrance
	for _, e := range s.kicks {
		if subtle.ConstantTimeCompare([]byte(e.secret), []byte(secret)) == 1 && err == nil {
			found = e
		}
	}
	kicks := slices.Clone(s.kicks)
	if found == nil {
		t.charge(s, time.Now())
	}
	t.mu.Unlock()
	if found == nil {
		for _, e := range kicks {
			e.tellWrong(s.addr)
		}
	}
	return found
}

// charge counts a failure.
func (t *TCP) charge(s *source, now time.Time) {
	if s.spent.Before(now) {
		s.spent = now
	}
	s.spent = s.spent.Add(t.limits.recovery)
	if most := now.Add(time.Duration(t.limits.failures) * t.limits.recovery); s.spent.After(most) {
		s.spent = most
	}
}

// entrance is the TCP way in of one kick.
type entrance struct {
	tcp    *TCP
	secret string
	conns  chan net.Conn // those with the secret
	gone   chan struct{} // closed by close
	wrong  func(from netip.Addr)
	// waiting has one for each connection that has the secret and is not served
	// yet; it takes as many as there may be of an address without it.
	waiting chan struct{}

	mu     sync.Mutex // guards what follows; wrong is called under it
	addr   netip.Addr // the sandbox's; not valid: not known yet
	closed bool

	network netip.Prefix // instead of addr; set before the entrance is in TCP.networks
}

// newEntrance makes a kick's secret. Who tries another one from the sandbox's
// address is told to wrong.
func (t *TCP) newEntrance(wrong func(from netip.Addr)) *entrance {
	var secret [forwarder.SecretSize / 2]byte
	_, _ = rand.Read(secret[:]) // never fails
	return &entrance{
		tcp: t, secret: hex.EncodeToString(secret[:]), wrong: wrong,
		conns: make(chan net.Conn), gone: make(chan struct{}), waiting: make(chan struct{}, t.limits.entering),
	}
}

// forms are what the secret can be written as and read from again: as it is, in
// capitals, and the bytes that it stands for.
func (e *entrance) forms() []string {
	raw, _ := hex.DecodeString(e.secret) // newEntrance made it from such
	return []string{e.secret, strings.ToUpper(e.secret), string(raw)}
}

// admit lets connections in from the sandbox's address, which is told once.
func (e *entrance) admit(addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
		return fmt.Errorf("%s is no address of a sandbox", addr)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return net.ErrClosed
	case e.addr == addr:
		return nil
	case e.network.IsValid():
		return fmt.Errorf("it is known already that this kick's sandbox is in %s", e.network)
	case e.addr.IsValid():
		return fmt.Errorf("%s is not %s, where this kick's sandbox is already", addr, e.addr)
	}
	e.addr = addr
	t := e.tcp
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.sourceAt(addr)
	at.kicks = append(at.kicks, e)
	return nil
}

// admitFrom lets connections in from every address of a network, which is told once
// and instead of an address.
func (e *entrance) admitFrom(network netip.Prefix) error {
	network = network.Masked()
	if !network.IsValid() || network.Bits() == 0 || network.Addr().Is4In6() {
		return fmt.Errorf("%s is no network that sandboxes are in", network)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return net.ErrClosed
	case e.addr.IsValid() || e.network.IsValid():
		return errors.New("it is known already where this kick's sandbox is")
	}
	t := e.tcp
	t.mu.Lock()
	defer t.mu.Unlock()
	e.network = network
	t.networks = append(t.networks, e)
	for addr, s := range t.sources {
		if network.Contains(addr) {
			s.kicks = append(s.kicks, e)
		}
	}
	return nil
}

func (e *entrance) tellWrong(from netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.wrong(from)
	}
}

// close ends the way in: the secret opens nothing any more. It is called once.
func (e *entrance) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	close(e.gone)
	t := e.tcp
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sources[e.addr]; s != nil {
		t.leave(s, e)
	}
	if !e.network.IsValid() {
		return
	}
	t.networks = slices.DeleteFunc(t.networks, func(other *entrance) bool { return other == e })
	for addr, s := range t.sources {
		if e.network.Contains(addr) {
			t.leave(s, e)
		}
	}
}

// leave takes a kick away from an address. t.mu is held.
func (t *TCP) leave(s *source, e *entrance) {
	s.kicks = slices.DeleteFunc(s.kicks, func(other *entrance) bool { return other == e })
	if len(s.kicks) == 0 {
		s.cut()
		delete(t.sources, s.addr)
	}
}

// listen returns a listener for what has entered.
func (e *entrance) listen() net.Listener {
	return &entered{e: e, closed: make(chan struct{})}
}

type entered struct {
	e      *entrance
	once   sync.Once
	closed chan struct{}
}

func (l *entered) Accept() (net.Conn, error) {
	select {
	case c := <-l.e.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *entered) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *entered) Addr() net.Addr { return l.e.tcp.l.Addr() }

// tcpConn is TLS that ends at once, as a Unix socket does: TLS's own last words
// would wait for a peer that does not read.
type tcpConn struct {
	net.Conn
	raw net.Conn
}

func (c *tcpConn) Close() error      { return c.raw.Close() }
func (c *tcpConn) CloseWrite() error { return c.Conn.(*tls.Conn).CloseWrite() }
