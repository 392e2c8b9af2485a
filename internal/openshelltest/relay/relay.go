// Package relay is what the conformance gateway and the supervisor in each of its
// sandboxes say to each other, over connections to a Unix socket that the
// supervisor opens: one for the sandbox itself, and one that waits for each
// command to come. It is no part of OpenShell's wire.
package relay

import "github.com/kickhq/kick/internal/frame"

// Socket is the name of the socket, in the directory where the supervisor lies.
const Socket = "control.sock"

// The kinds of connections; the supervisor says which as its first frame.
const (
	Main    frame.Type = 'm' // empty; answered with a Request: the main process
	Command frame.Type = 'x' // empty; answered with a Request, when there is one
	Tunnel  frame.Type = 't' // HOST:PORT; what follows is that connection's, after one byte when it is open
)

// Frames from the gateway.
const (
	Ask   frame.Type = 'q' // part of a Request as JSON
	Asked frame.Type = 'Q' // empty: the Request is whole
	Stdin frame.Type = 'i' // bytes
	EOF   frame.Type = 'e' // empty: the end of stdin
)

// Reached is the supervisor's frame beside frame.Stdout, frame.Stderr and
// frame.Exit: a Reach as JSON, on the main connection.
const Reached frame.Type = 'n'

// Request is what to run.
type Request struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	// Rules are those of the network; with Main alone.
	Rules []Rule `json:"rules,omitempty"`
	// ProxyPort is the loopback port on which the network is; 0: there is none.
	// ProxySocket is what lies behind it.
	ProxyPort   int    `json:"proxyPort,omitempty"`
	ProxySocket string `json:"proxySocket,omitempty"`
}

// Rule lets programs, by patterns of paths, use the network to hosts, by patterns of
// HOST:PORT.
type Rule struct {
	Binaries []string `json:"binaries"`
	Targets  []string `json:"targets"`
	// Relayed are those of Targets to which connections are passed on unseen.
	Relayed []string `json:"relayed,omitempty"`
}

// Reach is a connection to the network.
type Reach struct {
	Binary string `json:"binary"` // the real path
	Target string `json:"target"` // the first line of what it sent
	Denied bool   `json:"denied"` // since no program of its ancestry is listed for the target
}

// Exit is the end of a command, in frame.Exit.
type Exit struct {
	Code int `json:"code"` // 128 and n for signal n
}
