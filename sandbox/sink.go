package sandbox

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// sinkCopy writes what a sandbox hands back to the caller's sink. Frames come
// in an order that was checked.
type sinkCopy struct {
	sink    Sink
	stored  []Artifact
	whole   []string // their names, with those of reports
	missing []string

	checkpoint time.Time // when the last one came

	had map[string]bool // names of those that an earlier sandbox has made

	kind   Artifact
	name   string
	writer SinkWriter // nil: the artifact at hand is dropped
}

// again returns a copy for another sandbox, which makes what this one did not.
func (c *sinkCopy) again(why string) *sinkCopy {
	c.breakOff(why)
	had := map[string]bool{}
	for _, name := range c.whole {
		had[name] = true
	}
	return &sinkCopy{sink: c.sink, stored: c.stored, whole: c.whole, checkpoint: c.checkpoint, had: had}
}

func (c *sinkCopy) take(m frame.Message) {
	switch m.Type {
	case frame.Begin:
		c.kind, c.name = Artifact(m.Artifact.Kind), m.Artifact.Name
		if c.had[c.what()] {
			return
		}
		w, err := c.sink.Create(c.kind, c.name)
		if err != nil {
			c.miss(err.Error())
			return
		}
		c.writer = w
	case frame.Data:
		if c.writer == nil {
			return
		}
		if _, err := c.writer.Write(m.Data); err != nil {
			c.abort(err.Error())
		}
	case frame.End:
		switch {
		case c.writer == nil:
		case m.End.Error != "":
			c.abort("the sandbox says: " + escaped(m.End.Error))
		default:
			err := c.writer.Close()
			c.writer = nil
			if err != nil {
				c.miss(err.Error())
				return
			}
			if c.kind == Checkpoint {
				c.checkpoint = time.Now()
				return
			}
			c.stored, c.whole = append(c.stored, c.kind), append(c.whole, c.what())
		}
	}
}

// breakOff ends an artifact whose end never came.
func (c *sinkCopy) breakOff(why string) {
	if c.writer != nil {
		c.abort(why)
	}
}

func (c *sinkCopy) abort(why string) {
	if err := c.writer.Abort(); err != nil {
		why += "; " + err.Error()
	}
	c.writer = nil
	c.miss(why)
}

func (c *sinkCopy) miss(why string) {
	if c.kind == Checkpoint {
		return // the next one is due
	}
	c.missing = append(c.missing, fmt.Sprintf("%s: %s", c.what(), why))
}

// what names the artifact at hand.
func (c *sinkCopy) what() string {
	if c.name != "" {
		return c.name
	}
	return string(c.kind)
}

// escaped makes text of a sandbox fit to be shown in one line. Quotes and backslashes
// stay as they are, so that text which was escaped before does, too.
func escaped(s string) string {
	q := strconv.QuoteToASCII(s)
	return unquoted.Replace(q[1 : len(q)-1])
}

var unquoted = strings.NewReplacer(`\\`, `\`, `\"`, `"`)
