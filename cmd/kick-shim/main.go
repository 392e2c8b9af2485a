// Go's runtime would hold two files of the control group open, to follow its
// processor limit, and nothing but the three standard descriptors may be open.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command kick-shim is the first process in every sandbox. It is a small
// static program of its own, so that a kick neither pays for the start of the
// whole of kick nor has it in the sandbox, and it trusts nothing but its first
// configuration, which comes from the host over standard input. It speaks the
// protocol of internal/frame on standard input and output.
//
// In the embedded runtime it starts as "jail", builds the sandbox around itself
// and executes itself again as "init". In a container, which an engine has built,
// it starts as "lock", gives up what the engine has left to it and executes
// itself as "init" too. In a pod, whose host is far away, it starts as "wait", does
// the same and becomes "serve", which is "init" for a host that comes over
// connections; each of them is a process of its own, "line". In a gateway's sandbox it
// is a command, "guest", which leaves such a server behind; its connections with kick's own
// gateway are opened by others, "dial". Beside an agent's
// container it prepares the pod, "install", and removes a workspace, "clear".
// In a virtual machine kick has it "look" first, and then "enclose" a sandbox that
// waits as in a pod; and to "leave", when another kick may have the machine.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/kickhq/kick/internal/frame"
)

func main() {
	role := "init"
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	var err error
	switch role {
	case "jail":
		err = jail()
	case "lock":
		err = lock()
	case "guest":
		if err = guest(); err != nil {
			fmt.Fprintln(os.Stderr, clip(err.Error(), 4<<10))
			os.Exit(1)
		}
	case "guest-init":
		err = guestInit()
	case "guest-serve":
		err = onAnotherThread(serveGuest)
	case "init":
		err = onAnotherThread(initProcess)
	case "wait":
		err = wait()
	case "serve":
		err = onAnotherThread(serve)
	case "line":
		err = line()
	case "checkpoint":
		err = checkpoint()
	case "dial":
		err = dial()
	case "look":
		err = look()
	case "leave":
		err = leaveMachine()
	case "enclose":
		err = enclose()
	case "enclosed":
		err = enclosed()
	case "install":
		err = install()
	case "clear":
		err = clearWork()
	default:
		fmt.Fprintf(os.Stderr, "kick-shim: unknown role %q: kick starts this program, it is of no use by hand\n", role)
		os.Exit(2)
	}
	if err == nil {
		return
	}
	// The host may be gone already; then there is nobody to tell.
	_ = frame.NewWriter(os.Stdout).Write(frame.Problem, []byte(clip(err.Error(), 4<<10)))
	leave(1)
}

// The main function stays on the main thread, see onAnotherThread.
func init() { runtime.LockOSThread() }

// onAnotherThread runs f while the main thread waits. The kernel drops a signal to
// process 1 that has no handler unless the main thread blocks it; then it goes to
// another thread, and ends the process. Go blocks all signals of a thread that
// forks or makes a thread, and on a busy host a command can have begun to send
// signals before its parent goes on.
func onAnotherThread(f func() error) error {
	done := make(chan error)
	go func() { done <- f() }()
	return <-done
}

// property is a failure to give the sandbox one isolation property. Its text
// begins with the property's name, by which the host finds the remedy.
type property struct {
	name string
	err  error
}

func (p *property) Error() string { return p.name + ": " + p.err.Error() }
func (p *property) Unwrap() error { return p.err }

// failed names the property that could not be had because of err.
func failed(name, doing string, err error) error {
	var p *property
	if err == nil || errors.As(err, &p) {
		return err
	}
	return &property{name, fmt.Errorf("%s: %w", doing, err)}
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
