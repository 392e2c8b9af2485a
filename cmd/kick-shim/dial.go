package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/forwarder"
)

// A gateway that lets programs use the network by their files has to look into the
// process that asks, and nobody can look into this one, which holds the kick's secret.
// So another process of this program, which holds none, opens each connection and
// passes it on.

// dialTime is how long that process may take.
const dialTime = 10 * time.Second

// dial is the process that opens a connection. It passes that, or words, to the
// socket that is its standard output.
func dial() error {
	if len(os.Args) != 4 {
		return errors.New("dial takes two arguments, an address and a proxy")
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	c, err := forwarder.Dial(ctx, os.Args[3], os.Args[2])
	if err != nil {
		_, err = os.Stdout.WriteString(clip(err.Error(), 1<<10))
		return err
	}
	f, err := c.File()
	if err != nil {
		return err
	}
	return unix.Sendmsg(1, []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0)
}

// dialBeside has such a process open a connection. Whoever waits for every process here
// waits for it too.
func dialBeside(ctx context.Context, proxy, address string) (net.Conn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	own, others := os.NewFile(uintptr(pair[0]), "dial"), os.NewFile(uintptr(pair[1]), "dial")
	defer own.Close()
	defer others.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	_, err = syscall.ForkExec("/proc/self/exe", []string{"kick-shim", "dial", address, proxy}, &syscall.ProcAttr{
		Env: []string{}, Files: []uintptr{null.Fd(), others.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start what opens connections: %w", err)
	}
	others.Close() // so that its end is seen here
	c, err := net.FileConn(own)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	return passedOn(c.(*net.UnixConn))
}

// passedOn takes the connection, or the words.
func passedOn(c *net.UnixConn) (net.Conn, error) {
	words, rights := make([]byte, 1<<10), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := c.ReadMsgUnix(words, rights)
	switch {
	case err != nil:
		return nil, fmt.Errorf("wait for what opens connections: %w", err)
	case n == 0:
		return nil, errors.New("what opens connections has ended without a word")
	case m == 0:
		return nil, errors.New(string(words[:n]))
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(fmt.Errorf("what opens connections passes on %d messages", len(messages)), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(fmt.Errorf("what opens connections passes on %d descriptors", len(fds)), err)
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	return net.FileConn(f)
}
