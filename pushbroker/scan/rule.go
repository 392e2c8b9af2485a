package scan

import (
	"math"
	"regexp"
	"strings"
	"sync"

	"github.com/kickhq/kick/policy"
)

//go:generate go run ./internal/gen zz_rules.go

// rule is one row of the generated table. Rows are static data: the table
// costs nothing at start, and an expression is compiled when it first strikes.
type rule struct {
	id      string
	what    string // completes "this is …"
	expr    string
	certain bool // blocks; otherwise it asks a person
	own     bool // kick's, not gitleaks'
	group   int  // of the secret; 0: the first that is not empty, or the match

	anchors []anchor // every match holds one
	gate    []string // if there are no anchors: words of which the text holds one, lower case
	assign  bool     // the anchor is followed by an operator and a value
	begins  bool     // a match begins with the anchor, or with letters of its name
	minHex  int      // if there are no anchors: every match holds so many hexadecimal digits in a row
	path    string   // expression that the item's path must match

	maxLen    int // bytes of a match, each unbounded part counted as its minimum
	unbounded int
	reach     reach
	minSecret int

	entropy    float64 // bits a byte that the secret must exceed
	verify     string  // see verify.go
	allow      []string
	allowMatch []string
	stop       bool // stopWords apply
}

// anchor is a literal that a match holds, and what must follow it.
type anchor struct {
	lit     string
	fold    bool
	tail    int // index into tailClasses plus one
	tailMin int
}

// reach says how the unbounded parts of a match end; it mirrors shape.Reach.
type reach byte

const (
	bounded reach = iota
	toSpace
	toNewline
	toEnd
)

func (r *rule) level() policy.Level {
	if r.certain {
		return policy.Block
	}
	return policy.Review
}

// compiled is what a rule needs once one of its anchors struck.
type compiled struct {
	once       sync.Once
	expr, path *regexp.Regexp // expr matches from its text's first byte alone if the rule begins with its anchor
	allow      []*regexp.Regexp
	allowMatch []*regexp.Regexp
}

var compiledRules [len(ruleTable)]compiled

// lead is how gitleaks' rules for a name and a value begin: with what stands in
// the name before the word that tells. The engine steps over it backwards.
const lead = `[\w.-]{0,50}?`

// compile panics on an expression that does not compile; the table's test
// compiles every one.
func compile(i int) *compiled {
	c := &compiledRules[i]
	c.once.Do(func() {
		r := &ruleTable[i]
		expr := r.expr
		if r.begins {
			expr = `^(?:` + strings.Replace(expr, lead, "", 1) + `)`
		}
		c.expr = regexp.MustCompile(expr)
		if r.path != "" {
			c.path = regexp.MustCompile(r.path)
		}
		allow := r.allow
		if !r.certain {
			allow = append(append([]string{}, allow...), globalAllow...)
		}
		for _, a := range allow {
			c.allow = append(c.allow, regexp.MustCompile(a))
		}
		for _, a := range r.allowMatch {
			c.allowMatch = append(c.allowMatch, regexp.MustCompile(a))
		}
	})
	return c
}

func matchesAny(list []*regexp.Regexp, b []byte) bool {
	for _, re := range list {
		if re.Match(b) {
			return true
		}
	}
	return false
}

// stopIndex finds stop words.
var stopIndex = sync.OnceValue(func() *index {
	var lits []literal
	for _, w := range strings.Split(stopWords, "\n") {
		if len(w) >= minLiteral {
			lits = append(lits, literal{text: w, fold: true})
		}
	}
	return newIndex(lits)
})

func holdsStopWord(b []byte) bool {
	found := false
	stopIndex().find(b, func(int, int) bool { found = true; return false })
	return found
}

// entropy is Shannon's, in bits a byte.
func entropy(b []byte) float64 {
	if len(b) == 0 {
		return 0
	}
	var count [256]int
	for _, c := range b {
		count[c]++
	}
	var sum float64
	for _, n := range count {
		if n > 0 {
			p := float64(n) / float64(len(b))
			sum -= p * math.Log2(p)
		}
	}
	return sum
}
