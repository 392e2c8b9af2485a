package sandbox

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// newPair makes the keys of a machine that is nowhere.
func newPair(t *testing.T) machineKeyPairs {
	t.Helper()
	_, client, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, host, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return machineKeyPairs{client, host}
}

// guestServer serves one connection in place of a guest, until the test ends, and
// returns the way to it.
func guestServer(t *testing.T, keys machineKeyPairs, serve func(net.Conn)) *guest {
	t.Helper()
	return &guest{user: "agent", keys: keys, dial: func(ctx context.Context) (net.Conn, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		go func() {
			c, err := l.Accept()
			_ = l.Close() // one that has not been accepted would be reset
			if err != nil {
				return
			}
			defer c.Close()
			serve(c)
		}()
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			_ = l.Close() // then nothing comes to it
		}
		return c, err
	}}
}

// honest is a server with a host key that lets the client in, and then does what
// attend does with each channel.
func honest(t *testing.T, host ed25519.PrivateKey, client ed25519.PrivateKey, attend func(ssh.NewChannel)) func(net.Conn) {
	t.Helper()
	signer, err := ssh.NewSignerFromKey(host)
	if err != nil {
		t.Fatal(err)
	}
	want, err := ssh.NewPublicKey(client.Public())
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(want.Marshal()) {
			return nil, errors.New("another key")
		}
		return nil, nil
	}}
	config.AddHostKey(signer)
	return func(c net.Conn) {
		_, channels, requests, err := ssh.NewServerConn(c, config)
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		for ch := range channels {
			go attend(ch)
		}
	}
}

// A guest is believed to be the machine by its key alone.
func TestKubeVirtGuestKey(t *testing.T) {
	t.Parallel()
	keys, other := newPair(t), newPair(t)
	refuse := func(c ssh.NewChannel) { _ = c.Reject(ssh.Prohibited, "no") }
	if _, err := guestServer(t, keys, honest(t, other.host, keys.client, refuse)).connect(t.Context()); !errors.Is(err, errWrongHost) {
		t.Errorf("with another host key: %v", err)
	}
	if _, err := guestServer(t, keys, honest(t, keys.host, other.client, refuse)).connect(t.Context()); !errors.Is(err, errKeptOut) || errors.Is(err, errWrongHost) {
		t.Errorf("with another client key: %v", err)
	}
	c, err := guestServer(t, keys, honest(t, keys.host, keys.client, refuse)).connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.command(t.Context(), "true", nil); err == nil {
		t.Error("a command went well where no session is opened")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestKubeVirtGuestHostile: what answers in place of a machine and never lets kick in
// is given up at the deadline, and costs no memory meanwhile.
func TestKubeVirtGuestHostile(t *testing.T) {
	keys := newPair(t)
	endless := func(w io.Writer, b []byte) {
		for {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}
	version := []byte("SSH-2.0-hostile\r\n")
	for name, serve := range map[string]func(net.Conn){
		"says nothing":           func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"endless line":           func(c net.Conn) { endless(c, []byte(strings.Repeat("x", 1<<16))) },
		"endless lines":          func(c net.Conn) { endless(c, []byte(strings.Repeat("hello\r\n", 1<<12))) },
		"version and then noise": func(c net.Conn) { _, _ = c.Write(version); endless(c, []byte(strings.Repeat("\x7f", 1<<16))) },
		"version and no more":    func(c net.Conn) { _, _ = c.Write(version); _, _ = io.Copy(io.Discard, c) },
		"packet of four gigabytes": func(c net.Conn) {
			_, _ = c.Write(append(version, binary.BigEndian.AppendUint32(nil, 1<<32-1)...))
			endless(c, make([]byte, 1<<16))
		},
		"endless ignored packets": func(c net.Conn) {
			// Length, padding length, SSH_MSG_IGNORE with an empty string, padding.
			packet := append(binary.BigEndian.AppendUint32(nil, 12), 6, 2, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6)
			_, _ = c.Write(version)
			endless(c, packet)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			before := heap()
			began := time.Now()
			_, err := guestServer(t, keys, serve).connect(ctx)
			if err == nil {
				t.Error("it was let in")
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("that took %v", took)
			}
			if more := heap() - before; more > 32<<20 {
				t.Errorf("%d bytes more are in use", more)
			}
		})
	}
}

// TestKubeVirtLeft: a machine that a dead kick has left and that lets nobody in holds
// nobody up who has more to look at.
func TestKubeVirtLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// No API server is there, so it has no event to tell of.
		client, err := kube.New(&rest.Config{Host: "http://127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		left := machineSaid(t, `{"metadata": {"name": "kick-k1"}, "status": {"phase": "Running", "interfaces": [{"ipAddress": "10.0.2.2"}]}}`)
		l := &KubeVirt{}
		l.config.setDefaults()
		b := &kubeVirtBox{launcher: l, client: client, adopted: left, eye: &machineEye{client: client, object: objectOf(kubevirtapi.Instances, &left.ObjectMeta), seen: left, changed: make(chan struct{})}}
		b.guest.dial = func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") }
		began := time.Now()
		_, err = b.enter(t.Context())
		if took := time.Since(began); took > l.config.Alone/2 {
			t.Errorf("that took %v", took)
		}
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, errPending) || !strings.Contains(err.Error(), "come into the machine kick-k1: it") || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(e.Remedy, "kick gc") {
			t.Errorf("%v, %+v", err, e)
		}
	})
}

// TestKubeVirtKeptOut: a machine that does not know kick's user says so while kick waits
// and when it gives up, with what to do.
func TestKubeVirtKeptOut(t *testing.T) {
	t.Parallel()
	client, _ := refusing(t, math.MaxInt32, "no events for kick")
	keys, other := newPair(t), newPair(t)
	said := machineSaid(t, `{"status": {"phase": "Running", "interfaces": [{"ipAddress": "10.0.2.2"}]}}`)
	l := &KubeVirt{config: KubeVirtConfig{Pending: 4 * waitShown}}
	b := &kubeVirtBox{launcher: l, client: client, guest: *guestServer(t, keys, honest(t, keys.host, other.client, nil)), eye: &machineEye{client: client, seen: said, changed: make(chan struct{})}}
	told := ""
	b.spec.OnEvent = func(e Event) { told += e.Why }
	_, err := b.enter(t.Context())
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, errPending) || !strings.Contains(err.Error(), "does not let kick in as agent; ") || !strings.Contains(err.Error(), errKeptOut.Error()) || !strings.Contains(e.Remedy, "has that user") {
		t.Errorf("%v, %+v", err, e)
	}
	if !strings.Contains(told, "does not let kick in as agent") {
		t.Errorf("it told of %q", told)
	}
}

// TestKubeVirtEarly: a machine that does not come to its start says what to do about
// that very thing.
func TestKubeVirtEarly(t *testing.T) {
	for name, c := range map[string]struct {
		said         string
		gone         bool
		want, remedy string
	}{
		"nobody sees it": {said: `{}`, want: "it is not seen by KubeVirt yet", remedy: "See that KubeVirt runs"},
		"deleted":        {said: `{"status": {"phase": "Scheduling"}}`, gone: true, want: "it has ended: the machine was deleted by somebody else", remedy: "Whoever did that"},
		"no room":        {said: `{"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}`, want: "Unschedulable", remedy: "has room"},
		"failed":         {said: `{"status": {"phase": "Failed"}}`, want: "the machine has failed", remedy: "kubectl describe vmi"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// No API server is there, so it has no event to tell of.
				client, err := kube.New(&rest.Config{Host: "http://127.0.0.1:1"})
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				said := machineSaid(t, c.said)
				l := &KubeVirt{}
				l.config.setDefaults()
				b := &kubeVirtBox{launcher: l, client: client, eye: &machineEye{client: client, seen: said, gone: c.gone, changed: make(chan struct{})}}
				_, err = b.enter(t.Context())
				var e *Error
				if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || !strings.Contains(e.Remedy, c.remedy) {
					t.Errorf("%v, %+v", err, e)
				}
				var r Result
				if b.describe(&r); r.Isolation.Engine != "KubeVirt" {
					t.Errorf("it ran on %q", r.Isolation.Engine)
				}
			})
		})
	}
}

// heap is what is in use, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestKubeVirtGuestHostileInside: a guest that has the machine's key and is hostile
// all the same gets no more out of kick.
func TestKubeVirtGuestHostileInside(t *testing.T) {
	keys := newPair(t)
	session := func(do func(ssh.Channel, *ssh.Request)) func(ssh.NewChannel) {
		return func(n ssh.NewChannel) {
			c, requests, err := n.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			for r := range requests {
				_ = r.Reply(true, nil)
				do(c, r)
			}
		}
	}
	endless := func(w io.Writer) {
		for b := make([]byte, 1<<15); ; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}
	for name, attend := range map[string]func(ssh.NewChannel){
		"never ends":     session(func(ssh.Channel, *ssh.Request) {}),
		"endless output": session(func(c ssh.Channel, _ *ssh.Request) { endless(c) }),
		"endless errors": session(func(c ssh.Channel, _ *ssh.Request) { endless(c.Stderr()) }),
		"never opens":    func(ssh.NewChannel) {},
		"endless requests": session(func(c ssh.Channel, _ *ssh.Request) {
			for {
				if _, err := c.SendRequest("noise", false, make([]byte, 1<<15)); err != nil {
					return
				}
			}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := guestServer(t, keys, honest(t, keys.host, keys.client, attend)).connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			before, began := heap(), time.Now()
			if _, err := c.command(ctx, "anything", nil); err == nil {
				t.Error("the command went well")
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("that took %v", took)
			}
			if more := heap() - before; more > 32<<20 {
				t.Errorf("%d bytes more are in use", more)
			}
		})
	}
}

// Connections of the guest to the gateway's socket are passed on.
func TestKubeVirtPass(t *testing.T) {
	t.Parallel()
	socket := t.TempDir() + "/gateway.sock"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		if err == nil {
			_, _ = c.Write([]byte("got " + string(b)))
		}
	}()
	ours, theirs, err := socketPair(t)
	if err != nil {
		t.Fatal(err)
	}
	go pass(theirs, socket)
	if _, err := ours.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := ours.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(ours); err != nil || string(b) != "got hello" {
		t.Errorf("%q, %v", b, err)
	}
}

// socketPair is two ends of one connection.
func socketPair(t *testing.T) (a, b *net.UnixConn, err error) {
	t.Helper()
	at := &net.UnixAddr{Name: t.TempDir() + "/pair", Net: "unix"}
	l, err := net.ListenUnix("unix", at)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, at); err != nil {
		return nil, nil, err
	}
	b, err = l.AcceptUnix()
	t.Cleanup(func() {
		_ = a.Close() // both may be closed already
		if b != nil {
			_ = b.Close()
		}
	})
	return a, b, err
}

// Nobody but a process of the same state can make the keys of a machine.
func TestKubeVirtKeys(t *testing.T) {
	t.Parallel()
	one := &KubeVirt{cluster: &Kubernetes{kubeCluster: &kubeCluster{key: []byte("one")}}}
	two := &KubeVirt{cluster: &Kubernetes{kubeCluster: &kubeCluster{key: []byte("two")}}}
	made := func(uid string, labels map[string]string) *kubevirtapi.Instance {
		return &kubevirtapi.Instance{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Labels: labels}}
	}
	claimed := map[string]string{labelID: "k1", labelPool: "a"}
	a, again, b, c := one.keysFor(made("a", nil)), one.keysFor(made("a", nil)), one.keysFor(made("b", nil)), two.keysFor(made("a", nil))
	pool, other := one.keysFor(made("a", claimed)), one.keysFor(made("b", claimed))
	if !pool.host.Equal(other.host) || pool.host.Equal(a.host) {
		t.Error("the machines of a pool have other keys than the pool")
	}
	if !a.client.Equal(again.client) || !a.host.Equal(again.host) {
		t.Error("the keys of one machine are not the same each time")
	}
	if a.client.Equal(b.client) || a.client.Equal(c.client) || a.client.Equal(a.host) || a.host.Equal(b.host) || a.host.Equal(c.host) {
		t.Error("keys of different purposes are the same")
	}
}
