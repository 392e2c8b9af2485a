package scan

import (
	"bytes"
	"strings"
	"sync"

	"github.com/kickhq/kick/policy"
)

// hit is a strike of one rule in one text.
type hit struct {
	rule       int // index into ruleTable; heldRule for a held value
	held       int // index into Held.names, if so
	match      int // start of the expression's match
	start, end int // of the secret
	level      policy.Level
}

const heldRule = -1

// anchorRef says whose literal an id of the engine's index is.
type anchorRef struct {
	rule, anchor int
	disguise     disguise // in which the literal is; 0: in none
	held         *heldForm
}

// engine looks for rules and held values in plain bytes. It is for use by many
// goroutines at once.
type engine struct {
	index *index
	refs  []anchorRef
}

func newEngine(held *Held) *engine {
	e := &engine{}
	var lits []literal
	add := func(l literal, ref anchorRef) {
		lits = append(lits, l)
		e.refs = append(e.refs, ref)
	}
	for i := range ruleTable {
		for j, a := range ruleTable[i].anchors {
			add(literal{a.lit, a.fold}, anchorRef{rule: i, anchor: j})
			for _, d := range disguises {
				if ruleTable[i].disguisable(&a) {
					add(literal{d.of(a.lit), a.fold}, anchorRef{rule: i, anchor: j, disguise: d})
				}
			}
		}
		for _, g := range ruleTable[i].gate {
			add(literal{g, true}, anchorRef{rule: i, anchor: -1})
		}
	}
	forms := held.literals()
	for i := range forms {
		add(forms[i].literal, anchorRef{rule: heldRule, held: &forms[i]})
	}
	e.index = newIndex(lits)
	return e
}

// pass is the state of one search through one text.
type pass struct {
	text      []byte
	path      string
	hits      []hit
	windows   [len(ruleTable)]window
	touched   []int // rules with a window
	spaces    runs
	lines     runs
	disguised []disguised
	option    window // text[option.from:] has its next option of curl at option.to
}

// window is where a rule's expression has yet to run; to == 0: nowhere.
type window struct{ from, to int }

var passes = sync.Pool{New: func() any { return &pass{} }}

// find returns the hits in v's text, in no order, and notes in v what stands there
// in disguise. path is the item's path, for the few rules that have a condition
// on it.
func (e *engine) find(b *budget, v *view, path string) ([]hit, error) {
	p := passes.Get().(*pass)
	defer func() {
		for _, r := range p.touched {
			p.windows[r] = window{}
		}
		v.disguised = p.disguised
		p.text, p.path, p.hits, p.disguised, p.touched = nil, "", nil, nil, p.touched[:0]
		p.spaces.n, p.lines.n, p.option = 0, 0, window{}
		passes.Put(p)
	}()
	p.text, p.path = v.text, path

	var err error
	e.index.find(v.text, func(id, start int) bool {
		err = e.strike(b, p, id, start)
		return err == nil
	})
	for _, r := range p.touched {
		if err == nil {
			err = p.run(b, r)
		}
	}
	return p.hits, err
}

// strike notes where a rule has to look, and looks where it noted before if
// that is a place apart.
func (e *engine) strike(b *budget, p *pass, id, start int) error {
	ref, end := e.refs[id], start+len(e.index.entries[id].text)
	if ref.rule == heldRule {
		if ref.held.whole != "" {
			var ok bool
			if start, end, ok = ref.held.around(p.text, start); !ok {
				return nil
			}
		}
		p.hits = append(p.hits, hit{rule: heldRule, held: ref.held.owner, match: start, start: start, end: end, level: policy.Block})
		return nil
	}
	if ref.disguise != 0 {
		p.strikeDisguised(ref, start, end)
		return nil
	}
	r := &ruleTable[ref.rule]
	w := &p.windows[ref.rule]
	from, to := 0, len(p.text)
	if ref.anchor >= 0 {
		a := &r.anchors[ref.anchor]
		rest := p.text[end:]
		value := r.maxLen
		if r.assign {
			if value = assignFollows(rest, r); value == 0 {
				return nil
			}
		}
		if a.tailMin > 0 && !a.tailFollows(rest) {
			if r.certain {
				p.strikeSplit(a, start, end)
			}
			return nil
		}
		if r.verify == "userinfo" && !userinfoFollows(rest) {
			return nil
		}
		switch {
		case r.begins:
			return p.runAt(b, ref.rule, start, min(end+value+margin, len(p.text)))
		case a.lit == "curl":
			if w.from <= start && end <= w.to {
				return nil
			}
			if to = p.command(end); to == 0 {
				return nil
			}
			from = max(start-margin, 0)
		case r.reach != toEnd:
			from, to = p.around(r, start, end)
		}
	}
	if w.to == 0 {
		p.touched = append(p.touched, ref.rule)
		*w = window{from, to}
		return nil
	}
	if from <= w.to {
		w.from, w.to = min(w.from, from), max(w.to, to)
		return nil
	}
	err := p.run(b, ref.rule)
	*w = window{from, to}
	return err
}

// tailFollows reports whether the bytes after an anchor are those that must be.
func (a *anchor) tailFollows(rest []byte) bool {
	if len(rest) < a.tailMin {
		return false
	}
	for _, c := range rest[:a.tailMin] {
		if !a.tailHas(c) {
			return false
		}
	}
	return true
}

// tailHas reports whether c may be among the bytes that must follow an anchor.
func (a *anchor) tailHas(c byte) bool {
	return c < 128 && tailClasses[a.tail-1][c>>6]&(1<<(c&63)) != 0
}

// nameByte are the bytes between a name and its operator, valueByte those that
// a value may hold, plainByte those of them that names are made of.
var nameByte, operatorByte, quoteByte, valueByte, plainByte [256]bool

func init() {
	for c := range 256 {
		b := byte(c)
		letter := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_'
		nameByte[b] = letter || strings.IndexByte(" \t\n\r\f.-'\"", b) >= 0
		operatorByte[b] = strings.IndexByte("=>:|?,", b) >= 0
		quoteByte[b] = strings.IndexByte("`'\"= \t\n\r\f>:|,", b) >= 0
		plainByte[b] = letter && (b < '0' || b > '9') || b == '.' || b == '-'
		valueByte[b] = letter || strings.IndexByte(".=-/+%:~|", b) >= 0
	}
}

// assignFollows returns where in rest the value ends, if an operator and a value
// can follow a name, and else 0: a condition that is needed for a match, and
// that few texts meet.
func assignFollows(rest []byte, r *rule) (end int) {
	i := 0
	for i < len(rest) && i < 23 && nameByte[rest[i]] {
		i++
	}
	if i >= len(rest) || !operatorByte[rest[i]] {
		return 0
	}
	i++
	// What is skipped may be a part of the value where it is "=".
	need := r.minSecret
	for n := 0; i < len(rest) && n < 9 && quoteByte[rest[i]]; n++ {
		if rest[i] == '=' {
			need--
		}
		i++
	}
	from := i
	plain := r.verify == "generic" // which takes no value of letters and these alone
	for i < len(rest) && i-from < max(r.maxLen, r.minSecret) && valueByte[rest[i]] {
		plain = plain && plainByte[rest[i]]
		i++
	}
	if i-from < need || plain {
		return 0
	}
	for r.unbounded > 0 && i < len(rest) && sixBits[rest[i]] != 0xff {
		i++
	}
	return i
}

const (
	// commandLines is how many newlines may lie between curl and its option.
	commandLines = 11
	// maxOption caps an option's value behind the command's last line.
	maxOption = 4 << 10
)

// command returns where a match ends at the latest that begins with curl before
// end, or 0 if no option follows that could hold a login.
func (p *pass) command(end int) (to int) {
	if end < p.option.from || end > p.option.to {
		p.option = window{end, end + nextOption(p.text[end:])}
	}
	if p.option.to == len(p.text) {
		return 0
	}
	follows := false
	for range commandLines + 1 {
		if end > len(p.text) {
			break
		}
		_, to = p.lines.around(p.text, end, isNewline)
		follows = follows || p.option.to <= to
		end = to + 1
	}
	if !follows {
		return 0
	}
	return min(to+maxOption, len(p.text))
}

// nextOption returns where in b the next -u, --user, -H or --header is, or len(b).
func nextOption(b []byte) int {
	for at := 0; ; at++ {
		next := bytes.IndexByte(b[at:], '-')
		if next < 0 {
			return len(b)
		}
		at += next
		if at == 0 || !isSpace(b[at-1]) {
			continue
		}
		for _, option := range []string{"-u", "-H", "--user", "--header"} {
			if bytes.HasPrefix(b[at:], []byte(option)) {
				return at
			}
		}
	}
}

// margin is what a window has beyond what a match needs, so that a match that
// is wanted never touches the window's edge, where expressions see a word
// boundary or an end that is none.
const margin = 64

// around returns the window in which every match lies that holds the anchor at
// [start,end).
func (p *pass) around(r *rule, start, end int) (from, to int) {
	from, to = max(start-r.maxLen-margin, 0), min(end+r.maxLen+margin, len(p.text))
	if r.reach == bounded {
		return from, to
	}
	known, stop := &p.spaces, isSpace
	if r.reach == toNewline {
		known, stop = &p.lines, isNewline
	}
	from, to = start, end
	for range r.unbounded {
		from, _ = known.around(p.text, max(from-r.maxLen-margin, 0), stop)
		_, to = known.around(p.text, min(to+r.maxLen+margin, len(p.text)), stop)
	}
	return max(from-r.maxLen-margin, 0), min(to+r.maxLen+margin, len(p.text))
}

func isSpace(c byte) bool   { return c == ' ' || c >= '\t' && c <= '\r' }
func isNewline(c byte) bool { return c == '\n' }

// runs remembers stretches of a text that hold no stop byte, so that a long
// line is walked once and not for every strike in it.
type runs struct {
	last [16]window
	n    int
}

func (k *runs) around(text []byte, at int, stop func(byte) bool) (from, to int) {
	for _, w := range k.last[:min(k.n, len(k.last))] {
		if w.from <= at && at <= w.to {
			return w.from, w.to
		}
	}
	from, to = at, at
	for from > 0 && !stop(text[from-1]) {
		from--
	}
	for to < len(text) && !stop(text[to]) {
		to++
	}
	k.last[k.n%len(k.last)] = window{from, to}
	k.n++
	return from, to
}

// verifyCost is a verifier's share of the budget: it may read 32 KiB, some
// twenty times as fast as an expression does.
const verifyCost = 2 << 10

// run runs a rule's expression in its window, or, if it has no literal of its
// own, where the window holds digits enough.
func (p *pass) run(b *budget, index int) error {
	w := p.windows[index]
	r := &ruleTable[index]
	if r.minHex == 0 {
		return p.runIn(b, index, w)
	}
	next := window{}
	for i := w.from; i+r.minHex <= w.to; i++ {
		if fourBits[p.text[i+r.minHex-1]] == 0xff {
			i += r.minHex - 1
			continue
		}
		from := i
		for i < w.to && fourBits[p.text[i]] != 0xff {
			i++
		}
		if i-from < r.minHex {
			continue
		}
		from, to := max(from-r.maxLen-margin, w.from), min(i+r.maxLen+margin, w.to)
		if from > next.to {
			if err := p.runIn(b, index, next); err != nil {
				return err
			}
			next.from = from
		}
		next.to = to
	}
	return p.runIn(b, index, next)
}

func (p *pass) runIn(b *budget, index int, w window) error {
	c := compile(index)
	if w.to == 0 || c.path != nil && !c.path.MatchString(p.path) {
		return nil
	}
	if err := b.match(w.to - w.from); err != nil {
		return err
	}
	for _, m := range c.expr.FindAllSubmatchIndex(p.text[w.from:w.to], -1) {
		if m[0] == 0 && w.from > 0 {
			continue
		}
		if err := p.take(b, index, w, m, m[0]+w.from); err != nil {
			return err
		}
	}
	return nil
}

// runAt runs the expression of a rule whose matches begin with its anchor, at
// start; no match goes beyond to.
func (p *pass) runAt(b *budget, index, start, to int) error {
	if err := b.match(to - start); err != nil {
		return err
	}
	m := compile(index).expr.FindSubmatchIndex(p.text[start:to])
	if m == nil {
		return nil
	}
	match := start
	for ruleTable[index].assign && match > 0 && start-match < maxLead && leadByte(p.text[match-1]) {
		match--
	}
	return p.take(b, index, window{start, to}, m, match)
}

// maxLead is the length of lead, leadByte are its bytes.
const maxLead = 50

func leadByte(c byte) bool {
	return c == '.' || c == '-' || c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// take adds a hit for the submatches m of window w, which begin at match, if
// what they hold is a secret.
func (p *pass) take(b *budget, index int, w window, m []int, match int) error {
	r := &ruleTable[index]
	if r.verify != "" {
		if err := b.match(verifyCost); err != nil {
			return err
		}
	}
	if m[1] == w.to-w.from && w.to < len(p.text) {
		return nil
	}
	start, end := secretOf(r, m)
	h := hit{rule: index, match: match, start: start + w.from, end: end + w.from, level: r.level()}
	if p.accept(r, compile(index), &h, match, m[1]+w.from) {
		p.hits = append(p.hits, h)
	}
	return nil
}

// secretOf returns where the secret of match m is.
func secretOf(r *rule, m []int) (start, end int) {
	if r.group > 0 {
		return m[2*r.group], m[2*r.group+1]
	}
	for g := 2; g < len(m); g += 2 {
		if m[g] >= 0 && m[g+1] > m[g] {
			return m[g], m[g+1]
		}
	}
	return m[0], m[1]
}

// accept decides whether what an expression matched is a secret, and may lower
// its level.
func (p *pass) accept(r *rule, c *compiled, h *hit, start, end int) bool {
	secret := p.text[h.start:h.end]
	if r.entropy > 0 && entropy(secret) <= r.entropy {
		return false
	}
	if r.stop && holdsStopWord(secret) || r.verify != "" && !verifiers[r.verify](p.text, h) {
		return false
	}
	// Expressions last, since they cost most.
	if matchesAny(c.allow, secret) || len(c.allowMatch) > 0 && matchesAny(c.allowMatch, p.text[start:end]) {
		return false
	}
	// Only the shortest form counts: else whoever writes a token could write
	// "example" after it.
	core := secret[:min(len(secret), max(r.minSecret, 8))]
	if placeholder(core) {
		h.level = policy.Report
	}
	return true
}
