// Package ui prints kicks for people: steps with their times, the agent's
// output, the verdict and the way forward. It gets text that is already
// escaped where it came from a sandbox or a remote.
package ui

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/kickhq/kick/internal/wrap"
	"github.com/kickhq/kick/manager"
)

// Printer prints to one terminal or file; it is safe for concurrent use.
type Printer struct {
	mu    sync.Mutex
	w     io.Writer
	color bool
	width int  // columns of the terminal; 0: not known
	mid   bool // the agent's last line has no end yet
}

// New returns a printer to f, with colours when f is a terminal and NO_COLOR is
// not set (https://no-color.org).
func New(f *os.File) *Printer {
	color := os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		width = 0 // no terminal
	}
	return &Printer{w: f, color: color, width: width}
}

// Plain returns a printer without colours.
func Plain(w io.Writer) *Printer { return &Printer{w: w} }

// Style is how a piece of text looks on a terminal.
type Style string

// The styles, as SGR parameters.
const (
	Bold  Style = "1"
	Dim   Style = "2"
	Red   Style = "31"
	Green Style = "32"
	Amber Style = "33"
)

// Paint wraps s in a style, if colours are on.
func (p *Printer) Paint(st Style, s string) string {
	if !p.color || s == "" || st == "" {
		return s
	}
	return "\x1b[" + string(st) + "m" + s + "\x1b[0m"
}

// Linef prints one line.
func (p *Printer) Linef(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLine()
	fmt.Fprintf(p.w, format+"\n", args...)
}

// hang prints text behind a head that takes indent columns, and wraps it below
// itself. indent counts the blank between the two.
func (p *Printer) hang(head string, indent int, st Style, text string) {
	for i, l := range wrap.Text(text, max(p.columns()-indent, 20)) {
		if i > 0 {
			head = strings.Repeat(" ", indent-1)
		}
		if l == "" {
			p.Linef("%s", strings.TrimRight(head, " "))
			continue
		}
		p.Linef("%s %s", head, p.Paint(st, l))
	}
}

// columns is the width that text is wrapped to.
func (p *Printer) columns() int {
	if p.width == 0 {
		return 80
	}
	return min(max(p.width, 60), 100)
}

func (p *Printer) endLine() {
	if p.mid {
		fmt.Fprintln(p.w)
		p.mid = false
	}
}

// Step prints a finished step: when it ended, its name, what it found, and how
// long it took. Of one that waits it prints for what.
func (p *Printer) Step(s manager.Step) {
	if s.Waiting {
		p.Linef("%s %s %-8s %s", p.Paint(Dim, fmt.Sprintf("%7s", clock(s.At))), p.Paint(Dim, "…"), s.Name, p.Paint(Dim, s.Detail))
		return
	}
	mark := p.Paint(Green, "✓")
	detail := s.Detail
	if s.Failed {
		mark, detail = p.Paint(Red, "✗"), p.Paint(Red, s.Detail)
	}
	p.Linef("%s %s %-8s %s  %s", p.Paint(Dim, fmt.Sprintf("%7s", clock(s.At))), mark, s.Name, detail, p.Paint(Dim, clock(s.Took)))
}

// clock prints a duration with the digits that matter.
func clock(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.2fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// Output returns a writer for the agent's escaped output, with a bar before
// every line, so that nothing in it can pass for kick's own words.
func (p *Printer) Output() io.Writer { return outputWriter{p} }

type outputWriter struct{ p *Printer }

func (o outputWriter) Write(b []byte) (int, error) {
	p := o.p
	p.mu.Lock()
	defer p.mu.Unlock()
	bar := p.Paint(Dim, "        │ ")
	var buf bytes.Buffer
	for _, line := range strings.SplitAfter(string(b), "\n") {
		if line == "" {
			continue
		}
		if !p.mid {
			buf.WriteString(bar)
		}
		buf.WriteString(line)
		p.mid = !strings.HasSuffix(line, "\n")
	}
	// A terminal that is gone must not end what is written beside it, the
	// transcript.
	_, _ = p.w.Write(buf.Bytes())
	return len(b), nil
}
