// Package shape reads off a regular expression what a fast scanner needs to
// know before it runs it: literals that every match holds, what must follow
// them, and how far a match can reach. The rule generator uses it; the scanner
// itself does not.
package shape

import (
	"regexp/syntax"
	"sort"
	"strings"
)

const (
	// MinAnchor is the shortest literal that the scanner's prefilter takes.
	MinAnchor = 3
	// maxSet caps the literals that an expression is expanded to.
	maxSet = 160
)

// Class is a set of ASCII bytes.
type Class [2]uint64

// Has reports whether c is in the class.
func (c Class) Has(b byte) bool { return b < 128 && c[b>>6]&(1<<(b&63)) != 0 }

func (c *Class) add(b byte) { c[b>>6] |= 1 << (b & 63) }

// Anchor is a literal that a match holds.
type Anchor struct {
	Lit     string // lower case if Fold
	Fold    bool   // compare without regard to case
	Tail    Class  // bytes that must follow, TailMin of them; 0: anything
	TailMin int
}

// Reach says how unbounded parts of a match end.
type Reach byte

// The reaches.
const (
	Bounded   Reach = iota // there are none
	ToSpace                // they hold no white space
	ToNewline              // they hold no newline
	ToEnd                  // they may hold anything
)

// Shape is what is known of one expression.
type Shape struct {
	Anchors   []Anchor // every match holds at least one; empty: none found
	MaxLen    int      // bytes of a match, each unbounded part counted as its minimum
	Unbounded int      // number of unbounded parts
	Reach     Reach
	MinSecret int // fewest bytes of the first group, or of the match if there is none
}

// Of analyses expr; its error is that of regexp/syntax.
func Of(expr string) (Shape, error) {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return Shape{}, err
	}
	var s Shape
	s.MaxLen, s.Unbounded, s.Reach = size(re)
	s.MinSecret = minLen(re)
	if g := firstGroup(re); g != nil {
		s.MinSecret = minLen(g)
	}
	s.Anchors = required(re)
	sort.Slice(s.Anchors, func(i, j int) bool { return s.Anchors[i].Lit < s.Anchors[j].Lit })
	return s, nil
}

func firstGroup(re *syntax.Regexp) *syntax.Regexp {
	if re.Op == syntax.OpCapture {
		return re
	}
	for _, sub := range re.Sub {
		if g := firstGroup(sub); g != nil {
			return g
		}
	}
	return nil
}

func minLen(re *syntax.Regexp) int {
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1
	case syntax.OpCapture, syntax.OpPlus:
		return minLen(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min * minLen(re.Sub[0])
	case syntax.OpConcat:
		n := 0
		for _, sub := range re.Sub {
			n += minLen(sub)
		}
		return n
	case syntax.OpAlternate:
		n := minLen(re.Sub[0])
		for _, sub := range re.Sub[1:] {
			n = min(n, minLen(sub))
		}
		return n
	}
	return 0
}

// size returns the longest match in bytes, the unbounded parts and their reach.
func size(re *syntax.Regexp) (bytes, unbounded int, reach Reach) {
	switch re.Op {
	case syntax.OpLiteral:
		return len(string(re.Rune)), 0, Bounded
	case syntax.OpCharClass:
		// Case folding adds U+017F and U+212A, which no key holds; a negated
		// class really matches any rune.
		if re.Rune[len(re.Rune)-1] > 0x2200 {
			return 4, 0, Bounded
		}
		return 1, 0, Bounded
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 4, 0, Bounded
	case syntax.OpCapture, syntax.OpQuest:
		return size(re.Sub[0])
	case syntax.OpStar, syntax.OpPlus:
		return unboundedSize(re.Sub[0], 1)
	case syntax.OpRepeat:
		if re.Max < 0 {
			return unboundedSize(re.Sub[0], max(re.Min, 1))
		}
		b, u, r := size(re.Sub[0])
		return b * re.Max, u * re.Max, r
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			b, u, r := size(sub)
			bytes, unbounded, reach = bytes+b, unbounded+u, max(reach, r)
		}
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			b, u, r := size(sub)
			bytes, unbounded, reach = max(bytes, b), max(unbounded, u), max(reach, r)
		}
	}
	return bytes, unbounded, reach
}

func unboundedSize(sub *syntax.Regexp, times int) (int, int, Reach) {
	b, _, _ := size(sub)
	reach := ToEnd
	switch sub.Op {
	case syntax.OpCharClass, syntax.OpLiteral:
		reach = ToSpace
		for _, c := range " \t\f\v\r" {
			if holds(sub, c) {
				reach = ToNewline
			}
		}
		if holds(sub, '\n') {
			reach = ToEnd
		}
	case syntax.OpAnyCharNotNL:
		reach = ToNewline
	}
	return b * times, 1, reach
}

func holds(re *syntax.Regexp, c rune) bool {
	if re.Op == syntax.OpLiteral {
		return strings.ContainsRune(string(re.Rune), c)
	}
	for i := 0; i < len(re.Rune); i += 2 {
		if re.Rune[i] <= c && c <= re.Rune[i+1] {
			return true
		}
	}
	return false
}

// set is a list of strings of which one must be there.
type set struct {
	lits []string
	fold bool
}

func (s set) shortest() int {
	n := 1 << 20
	for _, l := range s.lits {
		n = min(n, len(l))
	}
	return n
}

// exact returns all strings that re matches, if they are few.
func exact(re *syntax.Regexp) (set, bool) {
	switch re.Op {
	case syntax.OpLiteral:
		s := string(re.Rune)
		if re.Flags&syntax.FoldCase != 0 {
			return set{[]string{strings.ToLower(s)}, true}, true
		}
		return set{[]string{s}, false}, true
	case syntax.OpCharClass:
		return classSet(re, 36)
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return set{lits: []string{""}}, true
	case syntax.OpCapture:
		return exact(re.Sub[0])
	case syntax.OpQuest:
		s, ok := exact(re.Sub[0])
		if !ok {
			return set{}, false
		}
		s.lits = append([]string{""}, s.lits...)
		return s, true
	case syntax.OpConcat:
		acc := set{lits: []string{""}}
		for _, sub := range re.Sub {
			s, ok := exact(sub)
			if !ok {
				return set{}, false
			}
			if acc, ok = cross(acc, s); !ok {
				return set{}, false
			}
		}
		return acc, true
	case syntax.OpAlternate:
		var all set
		for _, sub := range re.Sub {
			s, ok := exact(sub)
			if !ok || len(all.lits)+len(s.lits) > maxSet {
				return set{}, false
			}
			all.lits, all.fold = append(all.lits, s.lits...), all.fold || s.fold
		}
		return normal(all), true
	}
	return set{}, false
}

// classSet lists the bytes of a class of at most limit letters.
func classSet(re *syntax.Regexp, limit int) (set, bool) {
	var both [128]bool
	n := 0
	for c := range byte(128) {
		if holds(re, rune(c)) {
			both[c] = true
			n++
		}
	}
	fold := false
	for c := 'a'; c <= 'z'; c++ {
		fold = fold || both[c] && both[c-32]
	}
	var out set
	out.fold = fold
	for c := range byte(128) {
		upper := c >= 'A' && c <= 'Z'
		switch {
		case both[c] && !(fold && upper):
			out.lits = append(out.lits, string(rune(c)))
		case both[c] && !both[c+32]:
			out.lits = append(out.lits, string(rune(c+32)))
		}
	}
	if n == 0 || len(out.lits) > limit || re.Rune[len(re.Rune)-1] > 0x2200 {
		return set{}, false
	}
	return out, true
}

func cross(a, b set) (set, bool) {
	if len(a.lits)*len(b.lits) > maxSet {
		return set{}, false
	}
	out := set{fold: a.fold || b.fold}
	for _, x := range a.lits {
		for _, y := range b.lits {
			out.lits = append(out.lits, x+y)
		}
	}
	return normal(out), true
}

func normal(s set) set {
	seen := map[string]bool{}
	out := set{fold: s.fold}
	for _, l := range s.lits {
		if s.fold {
			l = strings.ToLower(l)
		}
		if !seen[l] {
			seen[l] = true
			out.lits = append(out.lits, l)
		}
	}
	return out
}

// required returns the best literals that every match of re holds, or nil.
func required(re *syntax.Regexp) []Anchor {
	switch re.Op {
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min == 0 {
			return nil
		}
		return required(re.Sub[0])
	case syntax.OpAlternate:
		var all []Anchor
		for _, sub := range re.Sub {
			a := required(sub)
			if a == nil || len(all)+len(a) > maxSet {
				return nil
			}
			all = append(all, a...)
		}
		return all
	case syntax.OpLiteral, syntax.OpConcat:
		return requiredOfConcat(flatten(re, nil))
	}
	return nil
}

func flatten(re *syntax.Regexp, out []*syntax.Regexp) []*syntax.Regexp {
	if re.Op == syntax.OpConcat || re.Op == syntax.OpCapture {
		for _, sub := range re.Sub {
			out = flatten(sub, out)
		}
		return out
	}
	return append(out, re)
}

func requiredOfConcat(parts []*syntax.Regexp) []Anchor {
	var best []Anchor
	take := func(a []Anchor) {
		if score(a) > score(best) {
			best = a
		}
	}
	run := set{lits: []string{""}}
	for _, p := range append(parts, nil) {
		if p != nil {
			if e, ok := exact(p); ok {
				if longer, ok := cross(run, e); ok {
					run = longer
					continue
				}
			}
		}
		tail, n := tailOf(p)
		if n > 0 && run.shortest() < MinAnchor {
			if first, ok := classSet(p.Sub[0], 40); ok {
				if longer, ok := cross(run, first); ok {
					run, n = longer, n-1
				}
			}
		}
		take(anchors(run, tail, n))
		if p != nil {
			take(required(p))
		}
		run = set{lits: []string{""}}
	}
	return best
}

// tailOf returns the class of a repeated class and how often it comes at least.
func tailOf(p *syntax.Regexp) (Class, int) {
	if p == nil || (p.Op != syntax.OpRepeat && p.Op != syntax.OpPlus) || p.Sub[0].Op != syntax.OpCharClass {
		return Class{}, 0
	}
	sub := p.Sub[0]
	if sub.Rune[len(sub.Rune)-1] > 0x2200 {
		return Class{}, 0
	}
	n := p.Min
	if p.Op == syntax.OpPlus {
		n = 1
	}
	var c Class
	for b := range byte(128) {
		if holds(sub, rune(b)) {
			c.add(b)
		}
	}
	return c, n
}

func anchors(s set, tail Class, n int) []Anchor {
	if s.shortest() < MinAnchor {
		return nil
	}
	var out []Anchor
	for _, l := range s.lits {
		a := Anchor{Lit: l, Fold: s.fold}
		if n > 0 {
			a.Tail, a.TailMin = tail, n
		}
		out = append(out, a)
	}
	return out
}

// score prefers long literals, then those with a long tail, then few.
func score(anchors []Anchor) int {
	if anchors == nil {
		return -1 << 20
	}
	n := 1 << 20
	for _, a := range anchors {
		n = min(n, 100*min(len(a.Lit), 8)+10*min(a.TailMin, 20))
	}
	return n - len(anchors)
}
