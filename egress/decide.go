package egress

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Form is how a request names where it wants to go.
type Form string

// The forms of RFC 9112, section 3.2.
const (
	ConnectForm  Form = "connect"  // CONNECT example.org:443, to a proxy
	AbsoluteForm Form = "absolute" // GET http://example.org/, to a proxy
	OriginForm   Form = "origin"   // GET /, to the gateway itself; OPTIONS * counts as one
	// TerminatedForm is a request in a tunnel whose TLS the gateway ends.
	TerminatedForm Form = "terminated"
)

// Request is what a decision is made by. All but Kick and Agent is hostile.
type Request struct {
	Kick   string
	Agent  string
	Form   Form
	Method string
	Host   string // as asked for, with the port if one was given
	Path   string // percent-encoded, without the query; empty with ConnectForm
}

// Decision is the answer to a Request.
type Decision struct {
	Allow  bool
	Rule   string // what decided, in kebab case
	Detail string // for the agent and its operator: what was refused and what to do
}

// denyByDefault is the decision about what no rule allows.
func denyByDefault(r Request) Decision {
	what := r.Method + " " + r.Host
	if r.Form != ConnectForm {
		what += r.Path
	}
	return Decision{
		Rule: "default-deny",
		Detail: fmt.Sprintf("%s is not permitted: no egress rule allows it, and what no rule allows is denied. "+
			"Work with what is in the workspace. What is needed from outside has to be put there by the operator of this sandbox, "+
			"as a file of the repository or a program of the runtime.", cut(what)),
	}
}

// Verdict is the outcome in a Record.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed"
	Denied  Verdict = "denied"
)

// Event is what a Record tells of.
type Event string

// The events. An allowed request has both, in this order; if the second is
// missing, the gateway died between them.
const (
	Decided Event = "decided" // written before anything is done
	Done    Event = "done"    // the request ended
)

// Record is one line of the audit. Method, Host, Path and Model come from the
// agent: they are cut to maxShown characters, and escaped as JSON escapes.
type Record struct {
	Time    time.Time `json:"time"` // UTC
	Event   Event     `json:"event"`
	Request int       `json:"request"` // its number in the kick, from 1
	Kick    string    `json:"kick"`
	Agent   string    `json:"agent"`
	Form    Form      `json:"form"`
	Method  string    `json:"method"`
	Host    string    `json:"host"`
	Path    string    `json:"path,omitempty"`
	Verdict Verdict   `json:"verdict"`
	Rule    string    `json:"rule"`
	End     *End      `json:"end,omitempty"` // with Done alone
}

// End is how an allowed request ended.
type End struct {
	Status  int     `json:"status,omitempty"` // that the agent got; 0: none
	Sent    int64   `json:"sent"`             // body bytes from the agent to the outside
	Got     int64   `json:"got"`              // body bytes from the outside to the agent
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"` // what went wrong, in the gateway's words
	Model   string  `json:"model,omitempty"`
	Usage   *Usage  `json:"usage,omitempty"` // with a model's answer alone
}

// Usage is what a model's answer cost.
type Usage struct {
	Input  int64   `json:"input"`           // tokens, cached ones among them
	Output int64   `json:"output"`          // tokens
	Money  float64 `json:"money,omitempty"` // by the price table; 0: there is none
	// Reserved tells that the provider did not say, so that the worst case
	// counts.
	Reserved bool `json:"reserved,omitempty"`
}

// Summary counts what went through a gateway.
type Summary struct {
	Allowed int   `json:"allowed"` // requests
	Denied  int   `json:"denied"`  // requests, those that were not written down among them
	Tokens  int64 `json:"tokens"`
	Bytes   int64 `json:"bytes"` // of bodies, both ways
	// Money is in the price table's unit.
	Money float64 `json:"money,omitempty"`
}

func newRecord(now time.Time, n int, r Request, d Decision) Record {
	v := Denied
	if d.Allow {
		v = Allowed
	}
	return Record{
		Time: now.UTC(), Event: Decided, Request: n, Kick: r.Kick, Agent: r.Agent, Form: r.Form,
		Method: cut(r.Method), Host: cut(r.Host), Path: cut(r.Path), Verdict: v, Rule: d.Rule,
	}
}

// writeRecord writes one line in one Write, so that lines of several writers
// to one file do not mix.
func writeRecord(w io.Writer, r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write audit record: %w", err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write audit record: %w", err)
	}
	return nil
}

// maxShown is what is shown of hostile text, in characters: a host name has at
// most 253.
const maxShown = 260

func cut(s string) string {
	n := 0
	for i := range s {
		if n == maxShown {
			return s[:i] + "…"
		}
		n++
	}
	return s
}
