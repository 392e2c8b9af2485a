package egress

import "fmt"

// Form is how a request names where it wants to go.
type Form string

// The forms of RFC 9112, section 3.2.
const (
	ConnectForm  Form = "connect"  // CONNECT example.org:443, to a proxy
	AbsoluteForm Form = "absolute" // GET http://example.org/, to a proxy
	OriginForm   Form = "origin"   // GET /, to the gateway itself; OPTIONS * counts as one
	// TerminatedForm is a request in a tunnel whose TLS the gateway ends.
	TerminatedForm Form = "terminated"
	// GreetingForm is no request: a connection to the TCP way in from the
	// sandbox's address, which is the host, that had no right secret.
	GreetingForm Form = "greeting"
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
