package frame

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// ErrProtocol is a conversation that broke the rules: the sandbox is not to be
// believed any further.
var ErrProtocol = errors.New("sandbox broke the protocol")

// Limits of what a sandbox hands back in one conversation.
const (
	MaxReports    = 32      // artifacts of kind "report"
	MaxReportSize = 1 << 20 // bytes of one of them
	MaxProblem    = 4 << 10 // bytes of a Problem's text that are kept
	MaxProbes     = 64      // probes of a Readiness
)

// IsReportName reports whether name is fit for an agent report:
// agent-report*.json, of letters, digits, ".", "_" and "-", at most 117 bytes.
func IsReportName(name string) bool {
	rest, ok := strings.CutPrefix(name, "agent-report")
	rest, isJSON := strings.CutSuffix(rest, ".json")
	strange := func(r rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", r)
	}
	return ok && isJSON && len(rest) <= 100 && !strings.ContainsFunc(rest, strange)
}

// reportKind is the one artifact that may come several times and has a name;
// singleKinds come at most once. They are sandbox.Artifact's values, which this
// package cannot import.
const reportKind = "report"

// Checkpoint is the artifact that comes while the command runs, any number of times:
// the later one stands for the earlier.
const Checkpoint = "checkpoint.bundle"

var singleKinds = map[string]bool{"final.bundle": true, "rest.bundle": true, "dirty.tar": true, "work.json": true}

// Message is one frame whose place and content were checked. Which fields are
// set depends on Type.
type Message struct {
	Type      Type
	Data      []byte         // Stdout, Stderr, Data; valid until the next call
	Readiness Readiness      // Ready
	Exit      ExitStatus     // Exit
	Artifact  ArtifactHeader // Begin
	End       ArtifactEnd    // End
	Problem   string         // Problem
}

// Conversation reads what a sandbox sends and holds it to the order:
//
//	Ready                                            once, first
//	Started, then Stdout and Stderr in any order     Started is absent if the command could not be started
//	Begin, Data..., End                              any number among these, of kind Checkpoint
//	Look                                             once at most, after Started
//	Exit                                             once
//	Begin, Data..., End                              any number, one after the other
//	Goodbye                                          last
//
// RunMode has no artifacts and no checkpoints, CollectMode neither command nor exit. A Problem may
// come at any time and is the last.
type Conversation struct {
	r           *Reader
	mode        Mode
	artifactMax int64
	state       state
	started     bool
	looked      bool
	checking    bool // a checkpoint has begun
	seen        map[string]bool
	reports     int
	left        int64 // bytes that the artifact at hand may still have
}

type state int

const (
	atStart state = iota
	running
	collecting
	inArtifact
	over
)

// NewConversation reads from r; an artifact of more than artifactMax bytes
// breaks the rules. 0: artifacts may be of any size.
func NewConversation(r *Reader, mode Mode, artifactMax int64) *Conversation {
	if artifactMax <= 0 {
		artifactMax = math.MaxInt64
	}
	return &Conversation{r: r, mode: mode, artifactMax: artifactMax, seen: map[string]bool{}}
}

// Next returns the next message, io.EOF after Goodbye or a Problem,
// io.ErrUnexpectedEOF when the sandbox fell silent before that, and an error
// that wraps ErrProtocol when it broke the rules.
func (c *Conversation) Next() (Message, error) {
	if c.state == over {
		return Message{}, io.EOF
	}
	t, p, err := c.r.Read()
	switch {
	case errors.Is(err, io.EOF):
		return Message{}, io.ErrUnexpectedEOF
	case errors.Is(err, ErrTooLarge):
		return Message{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	case err != nil:
		return Message{}, err
	}
	m := Message{Type: t}
	if err := c.check(&m, p); err != nil {
		c.state = over
		return Message{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return m, nil
}

// check takes one frame through the state machine.
func (c *Conversation) check(m *Message, p []byte) error {
	if m.Type == Problem {
		c.state = over
		m.Problem = string(p[:min(len(p), MaxProblem)])
		return nil
	}
	switch c.state {
	case atStart:
		if m.Type != Ready {
			break
		}
		c.state = running
		if c.mode == CollectMode {
			c.state = collecting
		}
		if err := parse(p, &m.Readiness); err != nil {
			return err
		}
		if n := len(m.Readiness.Probes); n > MaxProbes {
			return fmt.Errorf("%d probes, at most %d are allowed", n, MaxProbes)
		}
		return nil
	case running:
		return c.checkRunning(m, p)
	case collecting:
		switch m.Type {
		case Begin:
			if c.mode == RunMode {
				break
			}
			if err := parse(p, &m.Artifact); err != nil {
				return err
			}
			return c.begin(m.Artifact)
		case Goodbye:
			c.state = over
			return empty(p)
		}
	case inArtifact:
		switch m.Type {
		case Data:
			return c.data(m, p)
		case End:
			c.state = collecting
			return parse(p, &m.End)
		}
	}
	return fmt.Errorf("frame %q is out of place", byte(m.Type))
}

func (c *Conversation) checkRunning(m *Message, p []byte) error {
	switch {
	case m.Type == Started && !c.started:
		c.started = true
		return empty(p)
	case (m.Type == Stdout || m.Type == Stderr) && c.started:
		m.Data = p
		return nil
	case m.Type == Look && c.started && !c.looked:
		c.looked = true
		return empty(p)
	case m.Type == Begin && c.started && !c.checking && c.mode == RunAndCollectMode:
		c.checking, c.left = true, c.artifactMax
		if err := parse(p, &m.Artifact); err != nil {
			return err
		}
		if m.Artifact != (ArtifactHeader{Kind: Checkpoint}) {
			return fmt.Errorf("an artifact %.60q while the command runs", m.Artifact.Kind)
		}
		return nil
	case m.Type == Data && c.checking:
		return c.data(m, p)
	case m.Type == End && c.checking:
		c.checking = false
		return parse(p, &m.End)
	case m.Type == Exit && !c.checking:
		c.state = collecting
		if err := parse(p, &m.Exit); err != nil {
			return err
		}
		return c.checkExit(m.Exit)
	}
	return fmt.Errorf("frame %q is out of place", byte(m.Type))
}

// data takes a part of an artifact.
func (c *Conversation) data(m *Message, p []byte) error {
	if c.left -= int64(len(p)); c.left < 0 {
		return fmt.Errorf("an artifact is larger than its limit of %d bytes", c.artifactMax)
	}
	m.Data = p
	return nil
}

// checkExit refuses statuses that no process can have.
func (c *Conversation) checkExit(e ExitStatus) error {
	switch {
	case e.Code < -1 || e.Code > 255, e.Signal < 0 || e.Signal > 64:
		return fmt.Errorf("exit code %d and signal %d are impossible", e.Code, e.Signal)
	case e.Signal != 0 && e.Code != -1, e.Signal == 0 && e.Code == -1 && e.Error == "":
		return fmt.Errorf("exit code %d and signal %d contradict each other", e.Code, e.Signal)
	case !c.started && e.Error == "":
		return errors.New("a command ended that never started")
	}
	return nil
}

func (c *Conversation) begin(h ArtifactHeader) error {
	c.left = c.artifactMax
	switch {
	case h.Kind == reportKind:
		if c.reports++; c.reports > MaxReports {
			return fmt.Errorf("more than %d reports", MaxReports)
		}
		if !IsReportName(h.Name) {
			return fmt.Errorf("a report is named %.120q, want agent-report*.json", h.Name)
		}
		c.left = min(c.left, MaxReportSize)
	case !singleKinds[h.Kind]:
		return fmt.Errorf("an artifact of unknown kind %.60q", h.Kind)
	case h.Name != "":
		return fmt.Errorf("the artifact %s has a name, only reports have", h.Kind)
	}
	key := h.Kind + "\x00" + h.Name
	if c.seen[key] {
		return fmt.Errorf("the artifact %s came twice", h.Kind)
	}
	c.seen[key] = true
	c.state = inArtifact
	return nil
}

func parse(p []byte, v any) error {
	if err := json.Unmarshal(p, v); err != nil {
		return fmt.Errorf("bad JSON in a frame: %w", err)
	}
	return nil
}

func empty(p []byte) error {
	if len(p) != 0 {
		return fmt.Errorf("%d bytes in a frame that has none", len(p))
	}
	return nil
}
