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

// Decide decides about one request. Egress is denied by default, and there is
// no rule that allows any.
func Decide(r Request) Decision {
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

// Record is one line of the audit. Method, Host and Path come from the agent:
// they are cut to maxShown characters, and escaped as JSON escapes.
type Record struct {
	Time    time.Time `json:"time"` // UTC
	Kick    string    `json:"kick"`
	Agent   string    `json:"agent"`
	Form    Form      `json:"form"`
	Method  string    `json:"method"`
	Host    string    `json:"host"`
	Path    string    `json:"path,omitempty"`
	Verdict Verdict   `json:"verdict"`
	Rule    string    `json:"rule"`
}

func newRecord(now time.Time, r Request, d Decision) Record {
	v := Denied
	if d.Allow {
		v = Allowed
	}
	return Record{
		Time: now.UTC(), Kick: r.Kick, Agent: r.Agent, Form: r.Form,
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
