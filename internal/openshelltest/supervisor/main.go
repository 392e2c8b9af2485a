// Command supervisor is the conformance gateway's program in each of its
// sandboxes, as OpenShell has one. It calls the gateway, runs the main process and
// every command that comes, and is the way to the network for those programs that
// the policy lists.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/openshelltest/relay"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "supervisor:", err)
		os.Exit(1)
	}
}

func run() error {
	c, r, w, err := dial(relay.Main, "")
	if err != nil {
		return err
	}
	q, err := readRequest(r)
	if err != nil {
		return err
	}
	if q.ProxyPort != 0 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", q.ProxyPort))
		if err != nil {
			return err
		}
		go serveNetwork(l, q, w)
	}
	go func() {
		for {
			if err := serveCommand(); err != nil {
				fmt.Fprintln(os.Stderr, "supervisor:", err)
				os.Exit(1) // the gateway is gone
			}
		}
	}()
	go func() {
		_, _ = io.Copy(io.Discard, c) // nothing comes any more until the gateway is gone
		os.Exit(1)
	}()
	cmd := exec.Command(q.Argv[0], q.Argv[1:]...)
	cmd.Env = q.Env
	return w.WriteJSON(frame.Exit, relay.Exit{Code: codeOf(cmd.Run())})
}

// dial opens a connection of a kind, to the socket beside this program.
func dial(kind frame.Type, said string) (net.Conn, *frame.Reader, *frame.Writer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	c, err := net.Dial("unix", filepath.Join(filepath.Dir(self), relay.Socket))
	if err != nil {
		return nil, nil, nil, err
	}
	w := frame.NewWriter(c)
	return c, frame.NewReader(c), w, w.Write(kind, []byte(said))
}

func readRequest(r *frame.Reader) (q relay.Request, err error) {
	var b []byte
	for {
		t, p, err := r.Read()
		switch {
		case err != nil:
			return q, err
		case t == relay.Asked:
			err := json.Unmarshal(b, &q)
			if err == nil && len(q.Argv) == 0 {
				err = errors.New("there is no command")
			}
			return q, err
		}
		b = append(b, p...)
	}
}

// serveCommand waits for one command and leaves it running.
func serveCommand() error {
	c, r, w, err := dial(relay.Command, "")
	if err != nil {
		return err
	}
	q, err := readRequest(r)
	if err != nil {
		return err
	}
	cmd := exec.Command(q.Argv[0], q.Argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = q.Env, w.Stream(frame.Stdout), w.Stream(frame.Stderr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // for who has left the group and holds the output open
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		_ = w.Write(frame.Stderr, []byte(err.Error()+"\n"))
		_ = w.WriteJSON(frame.Exit, relay.Exit{Code: 127})
		c.Close()
		return nil
	}
	go func() {
		for {
			t, p, err := r.Read()
			switch {
			case err != nil: // the caller is gone: the group ends, and only that
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				return
			case t == relay.Stdin:
				_, _ = stdin.Write(p) // who does not read need not
			case t == relay.EOF:
				stdin.Close()
			}
		}
	}()
	go func() {
		_ = w.WriteJSON(frame.Exit, relay.Exit{Code: codeOf(cmd.Wait())})
		c.Close()
	}()
	return nil
}

func codeOf(err error) int {
	var e *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return 0
	case !errors.As(err, &e):
		return 127
	}
	if ws := e.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return e.ExitCode()
}
