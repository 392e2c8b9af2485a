package scan

import "strings"

// minLiteral is the shortest literal that an index takes: it looks at three
// bytes at a time.
const minLiteral = 3

// literal is one string that an index looks for.
type literal struct {
	text string
	fold bool // text is lower case, and ASCII case does not count
}

// index finds many literals in one pass. Every literal is filed under one of
// its trigrams, the one that is rarest in source text; the pass rolls a
// trigram of 64 letter classes over the text and asks a 32 KiB bitmap, so most
// bytes cost one shift, one load and one test. An Aho-Corasick automaton over
// the same literals needs the text in lower case and took four times as
// long on Go's source, since each of its steps waits for the one before.
type index struct {
	bits    [1 << trigramBits / 64]uint64
	heads   [1 << trigramBits]uint16 // index into entries plus one
	entries []entry
}

type entry struct {
	literal
	id   int
	off  int    // of the trigram in the literal
	next uint16 // index into entries plus one
}

const (
	classBits   = 6
	trigramBits = 3 * classBits
	trigramMask = 1<<trigramBits - 1
)

// letterClass folds case, and puts what hardly any literal holds into the last
// class. Class 0 is kept for "before the text", so that no literal strikes
// there.
var letterClass = func() (t [256]uint8) {
	for i := range t {
		t[i] = 63
	}
	for i, c := range "abcdefghijklmnopqrstuvwxyz0123456789_-.:/=\"'~+@<>%|&#$ \\,;{}" {
		t[c] = uint8(i + 1)
		if c >= 'a' && c <= 'z' {
			t[c-32] = uint8(i + 1)
		}
	}
	return t
}()

// rarity orders letters from common to rare in source text.
const rarity = "etinaorslcdupmfgh.bvywk_xj-zq"

func newIndex(lits []literal) *index {
	x := &index{}
	for id, l := range lits {
		if len(l.text) < minLiteral {
			panic("literal shorter than a trigram: " + l.text)
		}
		off, best := 0, -1
		for i := range len(l.text) - 2 {
			score := 0
			for _, c := range []byte(l.text[i : i+3]) {
				r := strings.IndexByte(rarity, lower(c))
				if r < 0 {
					r = len(rarity) / 2
				}
				score += r
			}
			if score > best {
				off, best = i, score
			}
		}
		h := 0
		for _, c := range []byte(l.text[off : off+3]) {
			h = h<<classBits | int(letterClass[c])
		}
		x.bits[h>>6] |= 1 << (h & 63)
		x.entries = append(x.entries, entry{l, id, off, x.heads[h]})
		x.heads[h] = uint16(len(x.entries))
	}
	return x
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 32
	}
	return c
}

// find calls strike with the id and the start of each literal in text, until
// strike returns false.
func (x *index) find(text []byte, strike func(id, start int) bool) {
	h := uint32(0)
	for i, c := range text {
		h = (h<<classBits | uint32(letterClass[c])) & trigramMask
		if x.bits[h>>6]&(1<<(h&63)) == 0 {
			continue
		}
		for n := x.heads[h]; n != 0; {
			e := &x.entries[n-1]
			n = e.next
			start := i - 2 - e.off
			if start >= 0 && e.at(text[start:]) && !strike(e.id, start) {
				return
			}
		}
	}
}

// at reports whether text begins with the literal.
func (l *literal) at(text []byte) bool {
	if len(text) < len(l.text) {
		return false
	}
	if !l.fold {
		return string(text[:len(l.text)]) == l.text
	}
	for i := range len(l.text) {
		if lower(text[i]) != l.text[i] {
			return false
		}
	}
	return true
}
