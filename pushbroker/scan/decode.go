package scan

import (
	"bytes"
	"math/bits"
	"sort"
	"sync"
)

// view is one text to search: an item's bytes, or what was decoded from them.
type view struct {
	text   []byte
	depth  int
	parent *view
	pieces []piece // where text comes from, in order; nil: all of it from whole
	whole  span    // in parent
	how    string  // "base64", …, for messages; empty for the item itself
	// disguised are the places of what the engine recognized in text, and is to
	// be derived.
	disguised []disguised
}

type span struct{ from, to int }

// piece is a decoded stretch of a view's text and where it was in the parent's.
// Around it the text repeats a little of the parent's, so that an expression
// sees the name before a value and what ends it.
type piece struct {
	at  span // in the view's text, the decoded part alone
	raw span // in the parent's text
	how string
}

// locate maps a hit to the item's own bytes. how names the outermost encoding,
// ok is false if the hit lies wholly in repeated text and so is none.
func (v *view) locate(from, to int) (at span, how string, ok bool) {
	at = span{from, to}
	for ; v.parent != nil; v = v.parent {
		if v.pieces == nil {
			at, how = v.whole, v.how
			continue
		}
		i := sort.Search(len(v.pieces), func(i int) bool { return v.pieces[i].at.to > at.from })
		if i == len(v.pieces) || v.pieces[i].at.from >= at.to {
			return span{}, "", false
		}
		at, how = v.pieces[i].raw, v.pieces[i].how
	}
	return at, how, true
}

const (
	// maxDepth allows an encoding within an encoding, and one of the rewrites
	// (literals joined, zero-width characters removed) besides. Archives do not
	// count.
	maxDepth = 3
	// contextBefore and contextAfter are how much of the parent's line a piece
	// repeats: gitleaks' longest name, 50, 20 more and an operator.
	contextBefore, contextAfter = 96, 8
	// keyAfter is the same for the first line of a private key.
	keyAfter = 4 << 10
	// minRun is the shortest stretch that is taken for base64 or hexadecimal:
	// a secret of 12 bytes.
	minRun = 16
	// minPrintable is the shortest stretch of printable bytes for which decoded
	// bytes are looked at; random bytes have one in about 1 of 20,000 runs.
	minPrintable = 12
)

// rewriter collects the pieces of one derived view.
type rewriter struct {
	parent  *view
	child   view
	budget  *budget
	scratch []byte // for the next decoded stretch; add copies it
	buf     []byte // for the lines of a wrapped run
	lists   [bases]list
	done    [kinds]int // where in the parent's text each reader goes on
}

// add appends decoded, found at raw in the parent.
func (w *rewriter) add(raw span, decoded []byte, how string) {
	w.addWith(contextAfter, raw, decoded, how)
}

// addText does the same for text of which a part alone was encoded: what
// follows it may be the body of a key.
func (w *rewriter) addText(raw span, decoded []byte, how string) {
	after := contextAfter
	if bytes.Contains(decoded, []byte("-----BEGIN")) {
		after = keyAfter
	}
	w.addWith(after, raw, decoded, how)
}

func (w *rewriter) addWith(after int, raw span, decoded []byte, how string) {
	if !w.budget.take(len(decoded) + contextBefore + after) {
		return
	}
	text := w.parent.text
	before := max(raw.from-contextBefore, 0)
	if i := bytes.LastIndexByte(text[before:raw.from], '\n'); i >= 0 {
		before += i + 1
	}
	c := &w.child
	c.text = append(c.text, text[before:raw.from]...)
	from := len(c.text)
	c.text = append(c.text, decoded...)
	c.pieces = append(c.pieces, piece{span{from, len(c.text)}, raw, how})
	c.text = append(c.text, text[raw.to:min(raw.to+after, len(text))]...)
	c.text = append(c.text, "\n\x00\n"...)
}

// derive returns the views that v's text holds in encoded form.
func derive(v *view, b *budget) []*view {
	if v.depth >= maxDepth {
		return unpack(v, b)
	}
	w := &rewriter{parent: v, budget: b, child: view{text: (*texts.Get().(*[]byte))[:0], depth: v.depth + 1, parent: v}}
	w.undisguise()
	w.read()
	children := unpack(v, b)
	for i := range w.child.pieces {
		p := &w.child.pieces[i]
		if decoded := w.child.text[p.at.from:p.at.to]; packed(decoded) {
			sub := &view{text: decoded, depth: v.depth + 1, parent: v, whole: p.raw, how: p.how}
			children = append(children, unpack(sub, b)...)
		}
	}
	if len(w.child.pieces) > 0 {
		return append(children, &w.child)
	}
	texts.Put(&w.child.text)
	return children
}

// texts are buffers of derived views; release gives one back.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// release ends the use of v's text. Its places remain, for its children.
func (v *view) release() {
	if v.pieces != nil && cap(v.text) <= 1<<20 {
		buf := v.text[:0]
		v.text = nil
		texts.Put(&buf)
	}
}

// Letters of base64, both alphabets, as values of six bits; 0xff: none.
var sixBits = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range 26 {
		t['A'+i], t['a'+i] = byte(i), byte(26+i)
	}
	for i := range 10 {
		t['0'+i] = byte(52 + i)
	}
	t['+'], t['-'], t['/'], t['_'] = 62, 62, 63, 63
	return t
}()

// fourBits are the values of hexadecimal digits; 0xff: none.
var fourBits = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range 10 {
		t['0'+i] = byte(i)
	}
	for i := range 6 {
		t['a'+i], t['A'+i] = byte(10+i), byte(10+i)
	}
	return t
}()

// kind is what a byte may begin or end.
type kind byte

const (
	letter kind = iota // of base64, also of hexadecimal and base32
	mark               // of the letters of base64, one between two tokens of a list as well
	plain
	blank // ends a word
	escape
	equals // an escape of quoted-printable
	quote
	guised // of a character of UTF-8 that is invisible, or a letter in another guise
	zero   // of UTF-16 or UTF-32
	number // of no byte: a list begins with letters or a quote
	kinds
)

var kindOf = func() (t [256]kind) {
	for i := range t {
		switch c := byte(i); {
		case alphanumeric[c]:
			t[c] = letter
		case sixBits[c] != 0xff:
			t[c] = mark
		case c == 0:
			t[c] = zero
		case isSpace(c):
			t[c] = blank
		case escapeByte[c]:
			t[c] = escape
		case quoteMark[c]:
			t[c] = quote
		case c == '=':
			t[c] = equals
		case guiseByte[c]:
			t[c] = guised
		default:
			t[c] = plain
		}
	}
	return t
}()

// read passes over the text once, and calls a reader where something encoded
// may begin.
func (w *rewriter) read() {
	text := w.parent.text
	block, before := classify(text), classes{}
	for at := 0; at < len(text); at += blockLen {
		next := classify(text[min(at+blockLen, len(text)):])
		for marks := block.event | block.tokens(before, next); marks != 0; marks &= marks - 1 {
			w.readAt(at + bits.TrailingZeros64(marks))
		}
		for runs := runsOf(minWrapped, block.letter, next.letter); runs != 0; runs &= runs - 1 {
			if from := at + bits.TrailingZeros64(runs); from >= w.done[letter] {
				to := from + minWrapped
				for to < len(text) && kindOf[text[to]] <= mark {
					to++
				}
				w.done[letter] = w.run(from, to)
			}
		}
		for words := runsOf(minWord, block.solid, next.solid); words != 0; words &= words - 1 {
			if from := at + bits.TrailingZeros64(words); from >= w.done[blank] {
				to := from + minWord
				for to < len(text) && kindOf[text[to]] != blank && kindOf[text[to]] != zero {
					to++
				}
				w.done[blank] = to
				w.base85(from, to)
			}
		}
		before, block = block, next
	}
}

// readAt reads what may begin at i.
func (w *rewriter) readAt(i int) {
	text := w.parent.text
	k := kindOf[text[i]]
	if i < w.done[k] && k != letter {
		return
	}
	switch k {
	case letter:
		w.listAt(i)
	case zero:
		w.done[k] = w.narrow(i)
	case escape:
		if escaped(text[i:]) || splitsLine(text, i) {
			w.done[k] = w.stretch(i, k, unescapeAll, "escapes")
		}
	case equals:
		if quotedPrintable(text, i) {
			w.done[k] = w.stretch(i, k, unquoteAll, "quoted-printable")
		}
	case quote:
		w.done[k] = w.joinLiterals(i)
		w.listAt(i)
	case guised:
		if _, n := guise(text[i:]); n > 0 {
			w.done[k] = w.dropGuises(i)
		}
	}
}

// listAt reads a list of bytes if one begins at at.
func (w *rewriter) listAt(at int) {
	if at >= w.done[number] && beginsList(w.parent.text[at:]) {
		w.done[number] = w.list(at)
	}
}

// run decodes a stretch of letters of base64, over line ends where the whole
// line is one, at every alignment, and what of it is hexadecimal, base32 or
// binary. It returns where the stretch ends.
func (w *rewriter) run(from, to int) (end int) {
	text := w.parent.text
	run, end := text[from:to], to
	if to < len(text) && wrapByte[text[to]] {
		if joined, after := wrapped(text, from, to, w.buf); after > to {
			run, end, w.buf = joined, after, joined
		}
	}
	if len(run) < minRun || oneLetter(run) {
		return end
	}
	for n := 0; n < 6 && end < len(text) && text[end] == '='; n++ {
		end++ // padding, which would hide from an expression that a value ends here
	}
	raw := span{from, end}
	w.digits(run, raw)
	for off := range 4 {
		if plausible(run[off:]) {
			w.scratch = unbase64(w.scratch[:0], run[off:])
			w.keep(raw, w.scratch, "base64")
		}
	}
	return end
}

// oneLetter reports whether a long run repeats one letter, as what is compressed
// does that was zeros.
func oneLetter(run []byte) bool {
	const lead = 8
	return len(run) >= 256 && bytes.Count(run[lead:], run[lead:lead+1]) == len(run)-lead
}

// numeral is a way to write bytes with 2, 16 or 32 digits.
type numeral struct {
	name string
	bits int // of a digit
	// shifts are the digits at which a byte may begin, least those of
	// minPrintable bytes.
	shifts, least int
	value         *[256]byte // of each digit; 0xff: none
}

var numerals = []numeral{
	{"hexadecimal", 4, 2, 2 * minPrintable, &fourBits},
	{"base32", 5, 8, 8*minPrintable/5 + 1, digitsOf("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")},
	{"base32", 5, 8, 8*minPrintable/5 + 1, digitsOf("abcdefghijklmnopqrstuvwxyz234567")},
	{"base32", 5, 8, 8*minPrintable/5 + 1, digitsOf("0123456789ABCDEFGHIJKLMNOPQRSTUV")},
	{"base32", 5, 8, 8*minPrintable/5 + 1, digitsOf("0123456789abcdefghijklmnopqrstuv")},
	{"binary", 1, 8, 8 * minPrintable, digitsOf("01")},
}

func digitsOf(alphabet string) *[256]byte {
	t := &[256]byte{}
	for i := range t {
		t[i] = 0xff
	}
	for i, c := range []byte(alphabet) {
		t[c] = byte(i)
	}
	return t
}

// digits decodes the stretches of a run that are digits alone. They may stand
// behind letters that only base64 has, as in a path.
func (w *rewriter) digits(run []byte, raw span) {
	for n := range numerals {
		num := &numerals[n]
		for i := 0; i+num.least <= len(run); {
			if num.value[run[i+num.least-1]] == 0xff {
				i += num.least
				continue
			}
			from := i
			for i < len(run) && num.value[run[i]] != 0xff {
				i++
			}
			if i-from < num.least || num.bits == 5 && hexadecimal(run[from:i]) {
				i++
				continue
			}
			for shift := range num.shifts {
				w.scratch = num.decode(w.scratch[:0], run[from+shift:i])
				w.keep(raw, w.scratch, num.name)
			}
		}
	}
}

// decode appends the bytes that digits write.
func (n *numeral) decode(out, digits []byte) []byte {
	value, bits := 0, 0
	for _, c := range digits {
		value = value<<n.bits | int(n.value[c])
		if bits += n.bits; bits >= 8 {
			bits -= 8
			out = append(out, byte(value>>bits))
			value &= 1<<bits - 1
		}
	}
	return out
}

// keep adds decoded bytes that hold something to look at.
func (w *rewriter) keep(raw span, decoded []byte, how string) {
	if readable(decoded) || packed(decoded) {
		w.add(raw, decoded, how)
	}
}

// readable reports whether b holds minPrintable printable bytes in a row, or
// with one zero between each, as UTF-16 has it.
func readable(b []byte) bool {
	run, zeros := 0, 0
	for _, c := range b {
		switch {
		case asciiText(c):
			if run++; run >= minPrintable {
				return true
			}
			zeros = 0
		case c == 0 && zeros == 0:
			zeros++
		default:
			run, zeros = 0, 0
		}
	}
	return false
}

// plausible lets a short run pass only if it begins with printable bytes; most
// runs in source text are names, which decode to noise.
func plausible(run []byte) bool {
	if len(run) >= 64 {
		return true
	}
	if len(run) < minRun {
		return false
	}
	printable := 0
	for i := 0; i+4 <= len(run); i += 4 {
		if i > 0 && (sixBits[run[i]]>>5|sixBits[run[i+1]]>>3|sixBits[run[i+2]]>>1)&1 != 0 {
			printable = 0 // a byte of the three is above 127
			continue
		}
		b := decode4(run[i:])
		n, zeros := 0, 0
		for _, c := range b {
			if asciiText(c) {
				n++
			} else if c == 0 {
				zeros++ // UTF-16
			}
		}
		if i == 0 && packedBegin(b) {
			return true
		}
		if n+zeros < 3 || n == 0 {
			printable = 0
		} else if printable += 3; printable >= minPrintable-3 {
			return true
		}
	}
	return false
}

// packedBegin reports whether the magic bytes of an archive begin with b.
func packedBegin(b [3]byte) bool {
	for i := range unpackers {
		if magic := unpackers[i].magic; magic[:min(len(magic), 3)] == string(b[:min(len(magic), 3)]) {
			return true
		}
	}
	return false
}

func decode4(s []byte) [3]byte {
	a, b, c, d := sixBits[s[0]], sixBits[s[1]], sixBits[s[2]], sixBits[s[3]]
	return [3]byte{a<<2 | b>>4, b<<4 | c>>2, c<<6 | d}
}

// unbase64 appends what run decodes to.
func unbase64(out, run []byte) []byte {
	for len(run) >= 4 {
		b := decode4(run)
		out = append(out, b[0], b[1], b[2])
		run = run[4:]
	}
	switch len(run) {
	case 2:
		out = append(out, sixBits[run[0]]<<2|sixBits[run[1]]>>4)
	case 3:
		out = append(out, sixBits[run[0]]<<2|sixBits[run[1]]>>4, sixBits[run[1]]<<4|sixBits[run[2]]>>2)
	}
	return out
}

func hexadecimal(run []byte) bool {
	for _, c := range run {
		if fourBits[c] == 0xff {
			return false
		}
	}
	return true
}

// minWrapped is the shortest line of wrapped base64 but for the last.
const minWrapped = 8

// wrapped continues a run over line ends: each further line is white space,
// quotes or comment marks, and letters of base64 to its end.
func wrapped(text []byte, from, to int, buf []byte) (joined []byte, end int) {
	joined, end = buf[:0], to
	for {
		i, newline := end, false
		for i < len(text) && i-end < 80 && wrapByte[text[i]] {
			newline = newline || text[i] == '\n'
			i++
		}
		start := i
		for i < len(text) && sixBits[text[i]] != 0xff {
			i++
		}
		last := i == len(text) || text[i] == '='
		whole := last || wrapByte[text[i]]
		if !newline || start == i || !whole || !last && i-start < minWrapped && !endsLine(text, i) {
			return joined, end
		}
		if len(joined) == 0 {
			joined = append(joined, text[from:to]...)
		}
		joined, end = append(joined, text[start:i]...), i
		if i-start < minWrapped {
			return joined, end
		}
	}
}

// wrapByte are the bytes between the lines of wrapped base64.
var wrapByte = set(" \t\r\n\"'\\#*>|")

// set is a table of the bytes of s.
func set(s string) (t [256]bool) {
	for _, c := range []byte(s) {
		t[c] = true
	}
	return t
}

func endsLine(text []byte, i int) bool {
	for i < len(text) && (text[i] == '"' || text[i] == '\'' || text[i] == '\r') {
		i++
	}
	return i == len(text) || text[i] == '\n'
}
