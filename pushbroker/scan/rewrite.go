package scan

import (
	"bytes"
	"fmt"
	"html"
	"unicode/utf8"
)

const (
	// maxEscaped caps the stretch around an escape that is decoded with it.
	maxEscaped = 8 << 10
	// minEscaped is decoded behind an escape: it may stand in a name, and the
	// value follow.
	minEscaped = 192
)

// escapeByte are the bytes with which an escape begins, quoteMark those around
// a literal.
var (
	escapeByte = set(`%\&`)
	quoteMark  = set("\"'`")
)

// stretch decodes from the begin of the word that holds an escape at at to the
// end of one behind it, and returns where that is.
func (w *rewriter) stretch(at int, k kind, decode func(out, b []byte) []byte, how string) (to int) {
	text, from := w.parent.text, at
	for from > w.done[k] && at-from < maxEscaped && !isSpace(text[from-1]) {
		from--
	}
	for to = at; to < len(text) && to-at < maxEscaped && (to-at < minEscaped || !isSpace(text[to]) || goesOn(text[at:to+1], text[at])); {
		to++
	}
	w.scratch = decode(w.scratch[:0], text[from:to])
	w.addText(span{from, to}, w.scratch, how)
	return to
}

// goesOn reports whether the white space that ends b is that of a line end which
// mark, a backslash or an equals sign, takes back.
func goesOn(b []byte, mark byte) bool {
	b = bytes.TrimSuffix(b[:len(b)-1], []byte("\r"))
	return len(b) > 0 && b[len(b)-1] == mark
}

// unescapeAll appends b with every escape decoded: %41, \x41, \u0041, \u{41},
// \U00000041, \101, &#65;, &#x41; and &lowbar;. A backslash at the end of a line
// joins it to the next.
func unescapeAll(out, b []byte) []byte {
	for i := 0; i < len(b); {
		if escapeByte[b[i]] {
			if r, n := unescape(b[i:]); n > 0 {
				out, i = utf8AppendByte(out, r), i+n
				continue
			}
			if n := lineEnd(b[i+1:]); n > 0 && b[i] == '\\' {
				i += 1 + n
				continue
			}
		}
		out, i = append(out, b[i]), i+1
	}
	return out
}

// lineEnd returns the length of a line's end at the start of b.
func lineEnd(b []byte) int {
	switch {
	case len(b) > 0 && b[0] == '\n':
		return 1
	case len(b) > 1 && b[0] == '\r' && b[1] == '\n':
		return 2
	}
	return 0
}

// splitsLine reports whether a word goes on behind a backslash at the end of a
// line.
func splitsLine(text []byte, at int) bool {
	n := lineEnd(text[at+1:])
	next := at + 1 + n
	return n > 0 && at > 0 && !isSpace(text[at-1]) && next < len(text) && !isSpace(text[next])
}

// quotedPrintable reports whether text[at], an equals sign, ends a line that goes
// on, is the first of two escapes in a row, or that of an equals sign.
func quotedPrintable(text []byte, at int) bool {
	if n := lineEnd(text[at+1:]); n > 0 {
		next := at + 1 + n // words are split anywhere, blanks are before or behind
		return at > 0 && text[at-1] != '=' && next < len(text) && (!isSpace(text[at-1]) || !isSpace(text[next]))
	}
	r, n := digits(text[at:], 1, 2, 2, 16)
	if n == 0 {
		return false
	}
	return r == '=' || at+n < len(text) && text[at+n] == '='
}

// unquoteAll appends b with every escape of quoted-printable decoded.
func unquoteAll(out, b []byte) []byte {
	for i := 0; i < len(b); {
		if b[i] == '=' {
			if n := lineEnd(b[i+1:]); n > 0 {
				i += 1 + n
				continue
			}
			if r, n := digits(b[i:], 1, 2, 2, 16); n > 0 {
				out, i = append(out, byte(r)), i+n
				continue
			}
		}
		out, i = append(out, b[i]), i+1
	}
	return out
}

func escaped(b []byte) bool {
	_, n := unescape(b)
	return n > 0
}

// utf8AppendByte appends a value below 256 as that byte, which is how bytes are
// escaped, and a larger one in UTF-8.
func utf8AppendByte(out []byte, r rune) []byte {
	if r < 256 {
		return append(out, byte(r))
	}
	return utf8.AppendRune(out, r)
}

// unescape decodes one escape at the start of b; n is its length, 0 if there
// is none.
func unescape(b []byte) (decoded rune, n int) {
	if len(b) < 3 {
		return 0, 0
	}
	switch {
	case b[0] == '%':
		return digits(b, 1, 2, 2, 16)
	case b[0] == '&' && b[1] == '#':
		at, base := 2, 10
		if b[2] == 'x' || b[2] == 'X' {
			at, base = 3, 16
		}
		if decoded, n = digits(b, at, 1, 6, base); n > 0 && n < len(b) && b[n] == ';' {
			n++
		}
		return decoded, n
	case b[0] == '&':
		return entity(b)
	case b[0] != '\\':
		return 0, 0
	}
	switch b[1] {
	case 'x':
		return digits(b, 2, 2, 2, 16)
	case 'u':
		if b[2] == '{' {
			if decoded, n = digits(b, 3, 1, 6, 16); n > 0 && n < len(b) && b[n] == '}' {
				return decoded, n + 1
			}
			return 0, 0
		}
		return digits(b, 2, 4, 4, 16)
	case 'U':
		return digits(b, 2, 8, 8, 16)
	case '0', '1':
		return digits(b, 1, 3, 3, 8)
	}
	return 0, 0
}

// entity decodes an entity of HTML that has a name.
func entity(b []byte) (decoded rune, n int) {
	n = bytes.IndexByte(b[:min(len(b), 34)], ';') + 1
	if n < 4 || !alphanumeric[b[1]] {
		return 0, 0
	}
	text := html.UnescapeString(string(b[:n]))
	decoded, size := utf8.DecodeRuneInString(text)
	if size != len(text) {
		return 0, 0
	}
	return decoded, n
}

func digits(b []byte, at, least, most, base int) (rune, int) {
	value, i := 0, at
	for i < len(b) && i-at < most && int(fourBits[b[i]]) < base {
		value, i = value*base+int(fourBits[b[i]]), i+1
	}
	if i-at < least || value > utf8.MaxRune {
		return 0, 0
	}
	return rune(value), i
}

// joinLiterals joins the string literal that ends at last, if it does, with
// those that stand beside it, or are joined by an operator: "ghp_" + "abc",
// 'a' . 'b', "a" \ "b". It returns where the next one may end.
func (w *rewriter) joinLiterals(last int) int {
	text := w.parent.text
	open := after(text, last)
	if open < 0 {
		return w.done[quote]
	}
	first := opening(text, last, max(w.done[quote]-1, 0))
	if first < 0 {
		return last + 1
	}
	out, start, end := w.scratch[:0], first+1, last
	for {
		out = append(out, text[start:end]...)
		if open < 0 || len(out) > maxEscaped {
			break
		}
		start = open + 1
		next := bytes.IndexByte(text[start:min(start+maxLiteral, len(text))], text[open])
		if next < 0 {
			end = start
			break
		}
		end = start + next
		open = after(text, end)
	}
	w.scratch = out
	w.addText(span{first + 1, end}, out, "joined strings")
	return end + 1
}

// maxLiteral caps one string literal of a joined chain.
const maxLiteral = 2 << 10

// after returns the opening quote that follows a closing one at i with nothing
// but white space and one operator between, or -1.
func after(text []byte, i int) int {
	operators, spaces := 0, 0
	for j := i + 1; j < len(text) && j-i < 120; j++ {
		switch c := text[j]; {
		case c == '"' || c == '\'' || c == '`':
			if operators+spaces == 0 {
				return -1 // an empty literal, or a quote that is doubled
			}
			return j
		case isSpace(c):
			spaces++
		case c == '+' || c == '.' || c == '&' || c == '\\' || c == '~' || c == '|' || c == '<' || c == '>':
			if operators++; operators > 2 {
				return -1
			}
		default:
			return -1
		}
	}
	return -1
}

// opening returns the quote that opens the literal closed at i, not before
// limit, on one line; or -1.
func opening(text []byte, i, limit int) int {
	for j := i - 1; j >= limit && i-j <= maxLiteral; j-- {
		if text[j] == text[i] {
			return j
		}
		if text[j] == '\n' && text[i] != '`' {
			return -1
		}
	}
	return -1
}

// dropGuises removes the characters that no one sees from the rest of a line that
// holds one at at, and of the lines behind while they hold one, and writes letters
// in another guise as they are. It returns where it ended.
func (w *rewriter) dropGuises(at int) (to int) {
	text, from := w.parent.text, at
	for from > w.done[guised] && text[from-1] != '\n' && at-from < maxEscaped {
		from--
	}
	out, inLine := append(w.scratch[:0], text[from:at]...), true
	for to = at; to < len(text) && to-at < maxEscaped; {
		if guiseByte[text[to]] {
			if c, n := guise(text[to:]); n > 0 {
				inLine = true
				if to += n; c != 0 {
					out = append(out, c)
				}
				continue
			}
		}
		if text[to] == '\n' {
			if !inLine && text[to-1] != '\n' {
				break
			}
			inLine = false
		}
		out, to = append(out, text[to]), to+1
	}
	w.scratch = out
	w.addText(span{from, to}, out, "invisible or styled characters")
	return to
}

// guiseByte are the bytes with which a character that guise knows can begin.
var guiseByte = set("\xc2\xcd\xd8\xe1\xe2\xe3\xef\xf0\xf3")

// guise returns the length of a character at the start of b that is invisible,
// or a letter in another guise, and what it stands for: 0 or the letter.
func guise(b []byte) (c byte, n int) {
	r, n := utf8.DecodeRune(b)
	switch {
	case invisible(r):
		return 0, n
	case r >= 0xff10 && r <= 0xff19, r >= 0xff21 && r <= 0xff3a, r == 0xff3f, r >= 0xff41 && r <= 0xff5a: // of full width
		return byte(r - 0xff00 + 0x20), n
	case r >= 0x1d400 && r < 0x1d6a4: // bold, italic, script, … of mathematics
		const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
		return letters[(r-0x1d400)%52], n
	case r >= 0x1d7ce && r <= 0x1d7ff:
		return byte('0' + (r-0x1d7ce)%10), n
	}
	return 0, 0
}

// invisible reports whether no one sees r: zero-width characters, soft hyphens,
// directional marks, variation selectors and tags.
func invisible(r rune) bool {
	return r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2060 && r <= 0x206f ||
		r == 0x00ad || r == 0x034f || r == 0x061c || r == 0x115f || r == 0x1160 || r == 0x17b4 || r == 0x17b5 || r >= 0x180b && r <= 0x180e ||
		r == 0x3164 || r >= 0xfe00 && r <= 0xfe0f || r == 0xfeff || r == 0xffa0 || r >= 0xe0000 && r <= 0xe0fff
}

// narrow finds ASCII in UTF-16 or UTF-32 of either byte order, with or without a
// mark, also within other bytes, whose first zero is at at. It returns where to
// look for more.
func (w *rewriter) narrow(at int) int {
	text := w.parent.text
	width := 0 // of a letter: up to the next zero, or the fourth
	for _, n := range []int{2, 4} {
		if at+n < len(text) && text[at+n] == 0 && text[at+n-1] != 0 && (n == 2 || text[at+1] == 0 && text[at+2] == 0) {
			width = n
		}
	}
	if width == 0 {
		return at + 1
	}
	for _, letter := range []int{0, width - 1} {
		// Little-endian text has its letter before the first zero, big-endian
		// text behind the last.
		from := at
		if letter == 0 {
			from--
		}
		out, to := w.scratch[:0], from
		for from >= w.done[zero] && to+width <= len(text) && wide(text[to:to+width], letter) {
			out, to = append(out, text[to+letter]), to+width
		}
		if w.scratch = out; len(out) >= minPrintable {
			w.add(span{from, to}, out, fmt.Sprintf("UTF-%d", 8*width))
			return to
		}
	}
	return at + 1
}

// wide reports whether unit is a letter of ASCII between zeros.
func wide(unit []byte, letter int) bool {
	for i, c := range unit {
		if (i == letter) == (c == 0) {
			return false
		}
	}
	return asciiText(unit[letter])
}

func asciiText(c byte) bool { return c >= ' ' && c < 0x7f || c >= '\t' && c <= '\r' }
