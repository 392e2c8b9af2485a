package scan

import (
	"bytes"
	"slices"
)

// disguise is a way to hide a token that leaves its first letters recognizable.
// The engine strikes on them as it does on a rule's literal, so that bytes which
// are not disguised cost nothing; the text around is then derived.
type disguise byte

const (
	reversed disguise = iota + 1
	rotated           // by 13 letters
	split             // over lines
)

// disguises are those whose literals differ from the rule's.
var disguises = []disguise{reversed, rotated}

// maxDisguised is how much text around a literal is derived if a match has no
// bound: a private key.
const maxDisguised = 4 << 10

// disguised is a place where a literal stands in disguise, and where its text may
// lie around it.
type disguised struct {
	disguise
	span
	joined []byte // of a value that is split: its parts
}

var disguiseNames = map[disguise]string{reversed: "reversed text", rotated: "rot13", split: "a value split over lines"}

// of returns lit in a disguise.
func (d disguise) of(lit string) string {
	out := []byte(lit)
	switch d {
	case reversed:
		slices.Reverse(out)
	case rotated:
		for i, c := range out {
			out[i] = rot13(c)
		}
	}
	return string(out)
}

func rot13(c byte) byte {
	if l := c | 0x20; l >= 'a' && l <= 'm' {
		return c + 13
	} else if l >= 'n' && l <= 'z' {
		return c - 13
	}
	return c
}

// disguisable reports whether a rule's literal is looked for in disguise: that of
// a certain secret, if it is long enough to be rare.
func (r *rule) disguisable(a *anchor) bool {
	return r.certain && !r.assign && len(a.lit) >= 4 && a.tailMin+len(a.lit) >= 10
}

// strikeDisguised notes a literal at [start,end) that is in disguise, if what
// must follow it does.
func (p *pass) strikeDisguised(ref anchorRef, start, end int) {
	r := &ruleTable[ref.rule]
	a := &r.anchors[ref.anchor]
	for i := range a.tailMin {
		at := end + i
		if ref.disguise == reversed {
			at = start - 1 - i
		}
		if at < 0 || at >= len(p.text) {
			return
		}
		c := p.text[at]
		if ref.disguise == rotated {
			c = rot13(c)
		}
		if !a.tailHas(c) {
			return
		}
	}
	reach := r.maxLen + margin
	if r.unbounded > 0 || reach > maxDisguised {
		reach = maxDisguised
	}
	p.disguise(disguised{ref.disguise, span{max(start-reach, 0), min(end+reach, len(p.text))}, nil})
}

// disguise adds a place, or extends the last one of its kind.
func (p *pass) disguise(d disguised) {
	for i := len(p.disguised) - 1; i >= 0; i-- {
		if last := &p.disguised[i]; last.disguise == d.disguise {
			if d.from < last.to && d.disguise != split {
				last.to = max(last.to, d.to)
				return
			}
			break
		}
	}
	p.disguised = append(p.disguised, d)
}

const (
	// maxSplits is how often a value may be split, and maxSplitGap how many bytes
	// may stand between two parts: a line's end, comment marks, quotes, blanks.
	maxSplits, maxSplitGap = 3, 80
	// maxSplit caps a value that is split.
	maxSplit = 1 << 10
)

var splitByte = set(" \t\r\n\"'`\\#*>|,;+/.-<!()[]&")

// strikeSplit notes a literal at [start,end) behind which a line ends within what
// must follow. Words in lines of their own are none: digits are among them, or
// both cases.
func (p *pass) strikeSplit(a *anchor, start, end int) {
	rest := p.text[end:min(end+maxSplit, len(p.text))]
	var parts []byte
	to := 0
	for split := 0; split <= maxSplits; split++ {
		from := to
		for to < len(rest) && a.tailHas(rest[to]) {
			to++
		}
		gap := to
		for gap < len(rest) && gap-to < maxSplitGap && splitByte[rest[gap]] {
			gap++
		}
		if bytes.IndexByte(rest[to:gap], '\n') < 0 && len(parts)+to-from < a.tailMin {
			return
		}
		if parts = append(parts, rest[from:to]...); len(parts) >= a.tailMin {
			break
		}
		to = gap
	}
	n := count(parts)
	if len(parts) < a.tailMin || n.digit == 0 && (n.upper == 0 || n.lower == 0) || words(parts) {
		return
	}
	line := len(rest)
	if i := bytes.IndexByte(rest[to:], '\n'); i >= 0 {
		line = to + i
	}
	joined := slices.Concat(p.text[start:end], parts, rest[to:line])
	p.disguise(disguised{split, span{start, end + line}, joined})
}

// undisguise derives what stands in disguise.
func (w *rewriter) undisguise() {
	text := w.parent.text
	for _, d := range w.parent.disguised {
		out := append(w.scratch[:0], text[d.from:d.to]...)
		switch d.disguise {
		case reversed:
			slices.Reverse(out)
		case rotated:
			for i, c := range out {
				out[i] = rot13(c)
			}
		case split:
			out = append(out[:0], d.joined...)
		}
		w.scratch = out
		w.addWith(contextAfter, d.span, out, disguiseNames[d.disguise])
	}
}
