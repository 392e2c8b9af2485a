package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// closedPort is an address of this host where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// silentPort is an address that drops attempts: its queue is full.
func silentPort(t *testing.T) string {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(s) })
	if err := errors.Join(unix.Bind(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(s, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(s)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	for range 16 {
		c, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the queue does not become full")
	return ""
}

func TestConfinement(t *testing.T) {
	t.Parallel()
	if said := confinement([]string{closedPort(t), silentPort(t)}); said != "" {
		t.Errorf("what refuses and what is silent: %s", said)
	}
	if said := confinement(nil); said != "" {
		t.Errorf("no address: %s", said)
	}
}

// One attempt that nobody answers is enough, at the very end of the time too.
func TestUnreachableSilent(t *testing.T) {
	t.Parallel()
	address := silentPort(t)
	for range 3 {
		if err := unreachable(address, time.Now()); err != nil {
			t.Error(err)
		}
	}
}

// A network that is closed late is waited for.
func TestUnreachableLater(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		answered <- errors.Join(err, l.Close())
	}()
	if err := unreachable(l.Addr().String(), time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("it was not tried while it answered: %v", err)
	}
}

// What answers to the end is named.
func TestReachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	err = unreachable(l.Addr().String(), time.Now())
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()+" can be reached") || !strings.Contains(err.Error(), "it answers") {
		t.Errorf("the error is %v", err)
	}
}

// An attempt that was none proves nothing.
func TestUnreachableNoAttempt(t *testing.T) {
	t.Parallel()
	if err := unreachable("127.0.0.1:not-a-port", time.Now()); err == nil {
		t.Error("an address that is none counts as closed")
	}
}

func TestIsRefusal(t *testing.T) {
	t.Parallel()
	for errno, want := range map[syscall.Errno]bool{
		syscall.ECONNREFUSED: true, syscall.EHOSTUNREACH: true, syscall.ENETUNREACH: true, syscall.EACCES: true, syscall.EPERM: true,
		syscall.EMFILE: false, syscall.EADDRNOTAVAIL: false, syscall.ECONNRESET: false, syscall.ENOBUFS: false,
	} {
		err := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
		if got := isRefusal(err); got != want {
			t.Errorf("%v: %v", errno, got)
		}
	}
}
