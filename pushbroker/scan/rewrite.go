package scan

import (
	"bytes"
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

// decodeEscapes decodes %41, \x41, \u0041, \u{41}, \U00000041, \101, &#65; and
// &#x41; from the begin of the word that holds the first to the end of one
// behind it.
func decodeEscapes(w *rewriter) {
	text := w.parent.text
	done := 0 // text before it is decoded, or needs not be
	for at := 0; at < len(text); at++ {
		if !escapeByte[text[at]] || !escaped(text[at:]) {
			continue
		}
		from, to := at, at
		for from > done && at-from < maxEscaped && !isSpace(text[from-1]) {
			from--
		}
		for to < len(text) && to-at < maxEscaped && (to-at < minEscaped || !isSpace(text[to])) {
			to++
		}
		w.scratch = unescapeAll(w.scratch[:0], text[from:to])
		w.addText(span{from, to}, w.scratch, "escapes")
		done, at = to, to-1
	}
}

// unescapeAll appends b with every escape decoded.
func unescapeAll(out, b []byte) []byte {
	for i := 0; i < len(b); {
		if escapeByte[b[i]] {
			if r, n := unescape(b[i:]); n > 0 {
				out, i = utf8AppendByte(out, r), i+n
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

// joinLiterals joins string literals that stand side by side, or are joined by
// an operator: "ghp_" + "abc", 'a' . 'b', "a" \ "b".
func joinLiterals(w *rewriter) {
	text := w.parent.text
	var out []byte
	for i := 0; i < len(text); {
		last, open := seam(text, i)
		if last < 0 {
			return
		}
		if open < 0 {
			i = last + 1
			continue
		}
		first := opening(text, last, max(i-1, 0))
		if first < 0 {
			i = last + 1
			continue
		}
		// first+1..last is the first literal; collect the chain.
		out = out[:0]
		from, start, end := first+1, first+1, last
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
		w.addText(span{from, end}, out, "joined strings")
		i = end + 1
	}
}

// maxLiteral caps one string literal of a joined chain.
const maxLiteral = 2 << 10

// seam returns the next closing quote at or after i, and the opening quote of
// the literal that is joined to it, or -1.
func seam(text []byte, i int) (last, open int) {
	for ; i < len(text); i++ {
		if quoteMark[text[i]] {
			if open = after(text, i); open >= 0 {
				return i, open
			}
		}
	}
	return -1, -1
}

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

// dropInvisible removes characters that no one sees from the lines that hold
// them: zero-width ones, soft hyphens, directional marks, variation selectors
// and tags.
func dropInvisible(w *rewriter) {
	text := w.parent.text
	for i := 0; i < len(text); {
		next := firstInvisible(text[i:])
		if next < 0 {
			return
		}
		at := i + next
		from, to := at, at
		for from > i && text[from-1] != '\n' && at-from < maxEscaped {
			from--
		}
		var out []byte
		out = append(out, text[from:at]...)
		for to < len(text) && text[to] != '\n' && to-at < maxEscaped {
			if n := invisible(text[to:]); n > 0 {
				to += n
				continue
			}
			out, to = append(out, text[to]), to+1
		}
		w.addText(span{from, to}, out, "invisible characters")
		i = max(to, at+1)
	}
}

func firstInvisible(b []byte) int {
	for i, c := range b {
		if c >= 0xc2 && invisible(b[i:]) > 0 {
			return i
		}
	}
	return -1
}

// invisible returns the length of an invisible character at the start of b.
func invisible(b []byte) int {
	r, n := utf8.DecodeRune(b)
	switch {
	case r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f,
		r == 0x00ad, r == 0x034f, r == 0x061c, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r >= 0x180b && r <= 0x180e,
		r == 0x3164, r >= 0xfe00 && r <= 0xfe0f, r == 0xfeff, r == 0xffa0, r >= 0xe0000 && r <= 0xe0fff:
		return n
	}
	return 0
}

// narrow finds ASCII in UTF-16 of either byte order, with or without a mark,
// also within other bytes.
func narrow(w *rewriter) {
	text := w.parent.text
	for i := 0; i < len(text); {
		zero := bytes.IndexByte(text[i:], 0)
		if zero < 0 {
			return
		}
		at := i + zero
		// Little-endian text has its letter before the first zero, big-endian
		// text after it.
		from := at
		if at > i && asciiText(text[at-1]) {
			from = at - 1
		}
		to, out := from, []byte(nil)
		for to+1 < len(text) && (text[to] == 0) != (text[to+1] == 0) && (text[to] == 0) == (text[from] == 0) &&
			asciiText(text[to]|text[to+1]) {
			out, to = append(out, text[to]|text[to+1]), to+2
		}
		if len(out) >= minPrintable {
			w.add(span{from, to}, out, "UTF-16")
		}
		i = max(to, at+1)
	}
}

func asciiText(c byte) bool { return c >= ' ' && c < 0x7f || c >= '\t' && c <= '\r' }
