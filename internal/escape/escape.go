// Package escape makes hostile text safe to show: in a terminal, in a CI log
// and in a table. Nothing that it lets through moves a cursor, hides or
// reorders text, or is a command of a CI runner's log.
//
// What it takes away it shows: a control or invisible character becomes \x1b
// or \u202e, a byte that is not UTF-8 becomes \xff. Only Writer drops anything:
// the control sequences by which programs colour and move (CSI), since they
// carry no text.
package escape

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// String escapes s for one line: line breaks and tabs are escaped too.
func String(s string) string {
	if safe(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		appendRune(&b, r, n, s[i])
		i += n
	}
	return neutral(b.String())
}

func safe(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] >= 0x7F || s[i] == ':' || s[i] == '#' {
			return false
		}
	}
	return true
}

// neutral breaks the log commands in a text without line breaks.
func neutral(s string) string {
	var l line
	var b strings.Builder
	for _, r := range s {
		l.write(&b, r)
	}
	return b.String()
}

// appendRune writes r, or its escape. first is its first byte, n its length.
func appendRune(b *strings.Builder, r rune, n int, first byte) {
	switch {
	case r == utf8.RuneError && n <= 1:
		fmt.Fprintf(b, `\x%02x`, first)
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\t':
		b.WriteString(`\t`)
	case r == '\r':
		b.WriteString(`\r`)
	case r < 0x20 || r == 0x7F:
		fmt.Fprintf(b, `\x%02x`, r)
	case hidden(r) && r > 0xFFFF:
		fmt.Fprintf(b, `\U%08x`, r)
	case hidden(r):
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		b.WriteRune(r)
	}
}

// hidden reports whether r does not show as itself. Zero-width joiners and
// variation selectors are hidden too: an emoji that is made of several shows
// as its parts.
func hidden(r rune) bool {
	return Control(r) || Invisible(r) || !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r) || unicode.Is(unicode.Co, r)
}

// line breaks the commands that CI runners read from logs: "::name" at the
// start of a line (GitHub Actions, after white space too), and "##[name]",
// "##vso[" and "##teamcity[" anywhere in it. One state machine serves text in
// chunks, for it never needs to see what follows.
type line struct {
	begun bool   // something other than white space is on the line
	colon bool   // that is one colon
	hash  string // the latest of "#", "##", "##vso", ...
}

func (l *line) write(b *strings.Builder, r rune) {
	switch {
	case r == '\n':
		*l = line{}
		b.WriteRune(r)
		return
	case r == ':' && l.colon:
		b.WriteString(`\:`)
		l.colon = false
		return
	case r == '[' && (l.hash == "##" || l.hash == "##vso" || l.hash == "##teamcity"):
		b.WriteString(`\[`)
		l.hash = ""
		return
	}
	l.colon = r == ':' && !l.begun
	l.begun = l.begun || !unicode.IsSpace(r)
	switch next := l.hash + string(unicode.ToLower(r)); {
	case next == "###":
		l.hash = "##"
	case strings.HasPrefix("##vso", next) || strings.HasPrefix("##teamcity", next):
		l.hash = next
	case r == '#':
		l.hash = "#"
	default:
		l.hash = ""
	}
	b.WriteRune(r)
}

// plain returns how much of p, in the middle of a line, is visible ASCII that
// can begin no command. Nearly all output is, and an agent that writes without
// end shall not keep the host busy.
func (l *line) plain(p []byte) int {
	if !l.begun || l.colon || l.hash != "" {
		return 0
	}
	for i, c := range p {
		if c < ' ' || c > '~' || c == '#' {
			return i
		}
	}
	return len(p)
}

// Writer escapes a stream of lines for w, keeping its state between writes, so
// that a sequence that is split over chunks is seen whole. Line breaks and
// tabs stay, a carriage return before a line break goes, and sequences that
// colour or move (CSI) are dropped. It holds back at most 64 bytes; Flush
// writes them. It is not for concurrent use.
type Writer struct {
	w    io.Writer
	held []byte // an unfinished rune, escape sequence or carriage return
	line line
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// maxSequence is the longest control sequence that is dropped; real ones have
// some twenty bytes.
const maxSequence = 64

// Write escapes p. It returns len(p) unless w fails.
func (e *Writer) Write(p []byte) (int, error) {
	in := p
	if len(e.held) > 0 {
		in = append(e.held, p...)
		e.held = nil
	}
	var b strings.Builder
	b.Grow(len(in) + 16)
	n := e.convert(&b, in, false)
	e.held = append([]byte(nil), in[n:]...)
	if _, err := io.WriteString(e.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what is held back, as it is at the end of a stream.
func (e *Writer) Flush() error {
	in := e.held
	e.held = nil
	var b strings.Builder
	e.convert(&b, in, true)
	_, err := io.WriteString(e.w, b.String())
	return err
}

// convert escapes in to b and returns how much of it is done. At the end of
// the stream everything is.
func (e *Writer) convert(b *strings.Builder, in []byte, end bool) int {
	i := 0
	for i < len(in) {
		rest := in[i:]
		switch c := rest[0]; {
		case c == 0x1B:
			n, whole := csi(rest)
			if n == 0 && !whole && !end {
				return i
			}
			if whole {
				i += n
				continue
			}
		case c == '\r':
			if len(rest) == 1 && !end {
				return i
			}
			if len(rest) > 1 && rest[1] == '\n' {
				i++
				continue
			}
		case !utf8.FullRune(rest) && !end:
			return i
		}
		if n := e.line.plain(rest); n > 0 {
			b.Write(rest[:n])
			i += n
			continue
		}
		r, n := utf8.DecodeRune(rest)
		if r == '\n' || r == '\t' {
			e.line.write(b, r)
		} else {
			var one strings.Builder
			appendRune(&one, r, n, rest[0])
			for _, r := range one.String() {
				e.line.write(b, r)
			}
		}
		i += n
	}
	return i
}

// csi returns the length of the control sequence at the start of p. whole is
// false and n is 0 if it is not known yet; whole is false and n is 1 if it is
// none.
func csi(p []byte) (n int, whole bool) {
	if len(p) == 1 {
		return 0, false
	}
	if p[1] != '[' {
		return 1, false
	}
	state := byte('p') // parameters, then intermediates
	for i := 2; i < len(p) && i < maxSequence; i++ {
		switch c := p[i]; {
		case 0x30 <= c && c <= 0x3F && state == 'p':
		case 0x20 <= c && c <= 0x2F:
			state = 'i'
		case 0x40 <= c && c <= 0x7E:
			return i + 1, true
		default:
			return 1, false
		}
	}
	if len(p) >= maxSequence {
		return 1, false
	}
	return 0, false
}
