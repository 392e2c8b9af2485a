package scan

import "bytes"

// Bytes may be written one by one: 0x41, 'K', 65 in source of many languages,
// 41:4b:49 as in fingerprints, chr(65).chr(75), and as hexdump, od and xxd print
// them. Whether 65 is decimal or hexadecimal is not known: both are tried.

// base is how the tokens of a list are read.
type base int

const (
	decimalBase base = iota
	hexBase          // also of two or four bytes
	swappedBase      // hexadecimal of two bytes, the second first, as od -x prints
	binaryBase
	bases
)

// list is what a base makes of the tokens so far.
type list struct {
	from, to int
	bytes    []byte
}

const (
	// maxListGap is how many bytes may stand between two tokens, but for blanks.
	maxListGap = 8
	// maxListBlanks caps the blanks there.
	maxListBlanks = 64
	// dumpLine is how many bytes of a dump are on a line, behind their offset.
	dumpLine = 16
)

// beginsList reports whether a token may begin b. Letters do if they are two
// hexadecimal digits, since most words of four begin a sentence.
func beginsList(b []byte) bool {
	c := b[0]
	switch {
	case c >= '0' && c <= '9':
		return tokenLen(b) > 0
	case c == '\'':
		return len(b) > 2 && b[2] == '\''
	}
	return fourBits[c] != 0xff && len(b) > 2 && fourBits[b[1]] != 0xff && !alphanumeric[b[2]]
}

// tokenLen returns the length of a token at the start of b by its shape, or 0.
func tokenLen(b []byte) (n int) {
	if b[0] == '\'' {
		return 3
	}
	for n < len(b) && n <= 10 && alphanumeric[b[n]] {
		n++
	}
	marked := n > 2 && b[0] == '0' && b[1] > '9' // 0x or 0b
	suffixed := n == 5 || n == 6                 // 0x41u8
	if n <= 4 || n == 8 && !marked || marked && (suffixed && fourBits[b[4]] == 0xff || n == 10 && b[1]|0x20 == 'b') {
		return n
	}
	return 0
}

var alphanumeric = set("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")

// list reads the tokens from at on, and returns where they end.
func (w *rewriter) list(at int) (end int) {
	text := w.parent.text
	if !severalTokens(text, at) {
		return at + 1
	}
	for b := range w.lists {
		w.lists[b] = list{bytes: w.lists[b].bytes[:0]}
	}
	column := -1 // bytes of this line of a dump; negative: it is none
	for {
		if n := dumpOffset(text[at:]); n > 0 && (end == 0 || bytes.IndexByte(text[end:at], '\n') >= 0) {
			column = 0
			at += n
		}
		tok := readToken(text[at:])
		if tok.size == 0 {
			break
		}
		for b := range w.lists {
			if tok.n[b] > 0 || len(w.lists[b].bytes) > 0 {
				w.extend(base(b), &tok, at)
			}
		}
		end = at + tok.size
		at = end
		if column >= 0 {
			if column += max(1, tok.n[hexBase]); column >= dumpLine { // the text beside the bytes
				column = -1
				line := bytes.IndexByte(text[at:], '\n')
				if line < 0 {
					break
				}
				at += line
			}
		}
		if at = skipGap(text, at); at < 0 || at == end {
			break
		}
	}
	for b := range w.lists {
		w.endList(base(b))
	}
	return max(end, at+1)
}

// extend adds a token to what a base makes of the list; a token that it cannot
// read begins the list anew.
func (w *rewriter) extend(b base, tok *token, at int) {
	l := &w.lists[b]
	if b == swappedBase && len(l.bytes) > 0 && tok.n[hexBase] == 1 {
		b = hexBase // the last byte of an odd number
	}
	if tok.n[b] == 0 {
		w.endList(b)
		return
	}
	if len(l.bytes) == 0 {
		l.from = at
	}
	l.bytes, l.to = append(l.bytes, tok.bytes[b][:tok.n[b]]...), at+tok.size
}

func (w *rewriter) endList(b base) {
	l := &w.lists[b]
	if len(l.bytes) < minHeld {
		l.bytes = l.bytes[:0]
		return
	}
	if printableRun(l.bytes) >= minHeld || packed(l.bytes) {
		w.addWith(0, span{l.from, l.to}, l.bytes, "a list of bytes")
	}
	l.bytes = l.bytes[:0]
}

// severalTokens is a quick look at whether four tokens can follow each other: most
// numbers in a text stand alone.
func severalTokens(text []byte, at int) bool {
	for range 3 {
		n := tokenLen(text[at:])
		next := skipGap(text, at+n)
		if n == 0 || next <= at+n || !beginsList(text[next:]) && text[next] != 'b' && fourBits[text[next]] == 0xff {
			return false
		}
		at = next
	}
	return true
}

// token is one byte, or the hexadecimal digits of a few, in every base that can
// read it.
type token struct {
	size  int // in the text; 0: there is none
	bytes [bases][4]byte
	n     [bases]int // of the bytes
}

// readToken reads the token that begins b.
func readToken(b []byte) (t token) {
	switch {
	case len(b) > 3 && b[0] == 'b' && b[1] == '\'' && b[3] == '\'':
		t.same(b[2], 4)
		return t
	case len(b) > 2 && b[0] == '\'' && b[2] == '\'':
		t.same(b[1], 3)
		return t
	}
	n := 0
	for n < len(b) && n <= 10 && alphanumeric[b[n]] {
		n++
	}
	word := b[:n]
	if n == 0 {
		return t
	}
	if n > 2 && word[0] == '0' && word[1]|0x20 == 'x' {
		value, size := digits(word, 2, 1, 2, 16)
		for _, suffix := range []string{"", "u8", "u", "U", "L"} {
			if size > 0 && string(word[size:]) == suffix {
				t.same(byte(value), n)
			}
		}
		return t
	}
	if n == 10 && word[0] == '0' && word[1]|0x20 == 'b' {
		word = word[2:]
	}
	if value, size := digits(word, 0, 1, 3, 10); size == len(word) && size > 0 && value < 256 {
		t.set(decimalBase, byte(value))
	}
	if value, size := digits(word, 0, 4, 4, 8); size == len(word) && word[0] == '0' && value < 256 {
		t.set(decimalBase, byte(value)) // octal, in C
	}
	if value, size := digits(word, 0, 8, 8, 2); size == len(word) {
		t.set(binaryBase, byte(value))
	}
	if len(word) == n && (n == 2 || n == 4 || n == 8) && hexadecimal(word) {
		for i := 0; i < n; i += 2 {
			t.set(hexBase, fourBits[word[i]]<<4|fourBits[word[i+1]])
		}
		if n == 4 {
			t.set(swappedBase, t.bytes[hexBase][1])
			t.set(swappedBase, t.bytes[hexBase][0])
		}
	}
	if t.n != [bases]int{} {
		t.size = n
	}
	return t
}

func (t *token) set(b base, c byte) {
	t.bytes[b][t.n[b]] = c
	t.n[b]++
}

// same makes t the token that every base reads alike.
func (t *token) same(c byte, size int) {
	t.size = size
	for b := range bases {
		t.set(b, c)
	}
}

// gapByte are the bytes between two tokens.
var gapByte = set(",;:|.-_+/&()[]{}<>\"'`\\*=%#$")

// gapWord returns the length of a word between two tokens at the start of b.
func gapWord(b []byte) int {
	if c := b[0] | 0x20; c != 'c' && c != 'b' {
		return 0
	}
	for _, word := range []string{"chr", "Chr", "CHR", "char", "byte"} {
		if bytes.HasPrefix(b, []byte(word)) {
			return len(word)
		}
	}
	return 0
}

// skipGap returns where the token behind the gap at at begins, or -1 if that is
// none that may stand there.
func skipGap(text []byte, at int) int {
	from, blanks, others := at, 0, 0
	for at < len(text) {
		c := text[at]
		switch {
		case isSpace(c):
			blanks++
		case c == '\'' && at > from && at+2 < len(text) && text[at+2] == '\'':
			return at // else it closes a literal
		case gapByte[c]:
			others++
		default:
			word := gapWord(text[at:])
			if word == 0 {
				return at
			}
			at += word - 1
		}
		if at++; blanks > maxListBlanks || others > maxListGap {
			return -1
		}
	}
	return -1
}

// dumpOffset returns the length of the offset that begins a line of a dump: seven
// or eight digits, the last a zero, before shorter ones.
func dumpOffset(b []byte) int {
	n := 0
	for n < len(b) && n < 9 && fourBits[b[n]] != 0xff {
		n++
	}
	if n != 7 && n != 8 || b[n-1] != '0' {
		return 0
	}
	size := n
	if n < len(b) && b[n] == ':' {
		n++
	}
	next := skipBlanks(b, n)
	for n = next; n < len(b) && alphanumeric[b[n]]; {
		n++
	}
	if n-next >= size {
		return 0
	}
	return next
}

func skipBlanks(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\t') {
		at++
	}
	return at
}
