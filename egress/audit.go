package egress

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Event is what a Record tells of.
type Event string

// The events. An allowed request has the first two, in this order: whatever
// becomes of the gateway, CompleteAudit of its process' successor at the latest
// writes the second.
const (
	Decided   Event = "decided"   // written before anything is done
	Done      Event = "done"      // the request ended
	Restarted Event = "restarted" // all that was under way was cut, and the gateway listens anew
)

// Record is one line of the audit. Method, Host, Path and Model come from the
// agent: they are cut to maxShown characters, and escaped as JSON escapes. A
// line that a full disk cut short is followed by a whole one.
type Record struct {
	Time    time.Time `json:"time"` // UTC
	Event   Event     `json:"event"`
	Request int       `json:"request"` // its number in the kick, from 1; a restart has one too
	Kick    string    `json:"kick"`
	Agent   string    `json:"agent"`
	Form    Form      `json:"form,omitempty"`
	Method  string    `json:"method,omitempty"`
	Host    string    `json:"host,omitempty"`
	Path    string    `json:"path,omitempty"`
	Verdict Verdict   `json:"verdict,omitempty"`
	Rule    string    `json:"rule,omitempty"`
	End     *End      `json:"end,omitempty"`   // with Done alone
	Cause   string    `json:"cause,omitempty"` // with Restarted alone
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
	Money    float64 `json:"money,omitempty"`
	Restarts int     `json:"restarts,omitempty"`
}

func (s *Summary) add(r Record) {
	switch {
	case r.Event == Restarted:
		s.Restarts++
	case r.Event == Decided && r.Verdict == Allowed:
		s.Allowed++
	case r.Event == Decided:
		s.Denied++
	case r.End != nil:
		s.Bytes += r.End.Sent + r.End.Got
		if u := r.End.Usage; u != nil {
			s.Tokens += u.Input + u.Output
			s.Money += u.Money
		}
	}
}

// auditLog writes the audit of one gateway.
type auditLog struct {
	most int // decisions that are written down

	mu        sync.Mutex // guards what follows
	w         io.Writer
	torn      bool // the last line was cut short
	decisions int
	open      map[int]Record // allowed requests that have not ended
	summary   Summary
}

func newAuditLog(w io.Writer, most int) *auditLog {
	return &auditLog{w: w, most: most, open: map[int]Record{}}
}

// decided writes a decision down, and returns the one that counts: what cannot
// be written down is refused. Who gets an allowed one calls done at the end,
// once, with the record.
func (a *auditLog) decided(req Request, d Decision) (Record, Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.decisions++
	d, written := a.limited(d)
	rec := newRecord(time.Now(), a.decisions, req, d)
	if written {
		if err := a.write(rec); err != nil {
			d = Decision{Rule: "audit-failed", Detail: "The decision could not be written down, so the request is refused. The operator of this sandbox has to look at its disk."}
			rec.Verdict, rec.Rule = Denied, d.Rule
		}
	}
	if d.Allow {
		a.open[rec.Request] = rec
	}
	a.summary.add(rec)
	return rec, d
}

// limited refuses what is too much to write down, and tells what is written.
func (a *auditLog) limited(d Decision) (Decision, bool) {
	switch {
	case a.decisions > a.most:
		return Decision{Rule: "too-many-requests", Detail: fmt.Sprintf("This kick made its %d requests.", a.most)}, false
	case a.decisions == a.most:
		return Decision{Rule: "too-many-requests", Detail: "This was the last request of this kick that is written down; all further ones are refused."}, true
	}
	return d, true
}

// done writes down how an allowed request ended, and counts it.
func (a *auditLog) done(rec Record, end End) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end(rec, end)
}

func (a *auditLog) end(rec Record, end End) {
	delete(a.open, rec.Request)
	rec = ended(rec, time.Now(), end)
	a.summary.add(rec)
	// The next decision finds the same fault, and refuses.
	_ = a.write(rec)
}

// settle ends the requests whose handling ended without doing so itself.
func (a *auditLog) settle(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(a.open)) {
		a.end(a.open[n], End{Error: why})
	}
}

// restarted writes down that the gateway listens anew.
func (a *auditLog) restarted(kick, agent string, cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.decisions++
	rec := Record{Time: time.Now().UTC(), Event: Restarted, Request: a.decisions, Kick: kick, Agent: agent, Cause: cut(cause.Error())}
	a.summary.add(rec)
	if a.decisions < a.most { // as many lines as decisions, not more
		_ = a.write(rec) // as at a request's end
	}
}

func (a *auditLog) counts() Summary {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.summary
}

// write writes one line in one Write, so that lines of several writers to one
// file do not mix.
func (a *auditLog) write(r Record) error {
	line, err := recordLine(r)
	if err != nil {
		return err
	}
	if a.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := a.w.Write(line)
	if err != nil {
		a.torn = a.torn || n > 0
		return fmt.Errorf("write audit record: %w", err)
	}
	a.torn = false
	return nil
}

func recordLine(r Record) ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write audit record: %w", err)
	}
	return append(line, '\n'), nil
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

// ended is the record of the end of what rec decided.
func ended(rec Record, now time.Time, end End) Record {
	end.Seconds = now.Sub(rec.Time).Seconds()
	end.Error, end.Model = cut(end.Error), cut(end.Model)
	rec.Time, rec.Event, rec.End = now.UTC(), Done, &end
	return rec
}

// CompleteAudit completes the audit, in the file of that name, of a gateway
// whose process was killed: requests that it had allowed and that have no end
// get one, and a line that was cut short goes, since nothing was done on it. It
// returns what went through, and may be called again. Nobody else may write.
func CompleteAudit(name string) (sum Summary, err error) {
	fail := func(err error) (Summary, error) { return sum, fmt.Errorf("complete the egress audit: %w", err) }
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	open := map[int]Record{}
	in, whole := bufio.NewReader(f), int64(0)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fail(err)
		}
		whole += int64(len(line))
		var rec Record
		if json.Unmarshal(line, &rec) != nil {
			continue // a full disk cut it short
		}
		sum.add(rec)
		switch {
		case rec.Event == Done:
			delete(open, rec.Request)
		case rec.Event == Decided && rec.Verdict == Allowed:
			open[rec.Request] = rec
		}
	}
	var rest bytes.Buffer
	for _, n := range slices.Sorted(maps.Keys(open)) {
		rec := ended(open[n], time.Now(), End{Error: "kick was killed before this request ended; its bytes and cost are not known"})
		line, err := recordLine(rec)
		if err != nil {
			return fail(err)
		}
		rest.Write(line)
	}
	if err := f.Truncate(whole); err != nil {
		return fail(err)
	}
	if _, err := f.WriteAt(rest.Bytes(), whole); err != nil {
		return fail(err)
	}
	return sum, nil
}
