// Package lazyregexp has regular expressions that are compiled when they are
// first used. Most of a program's expressions are of no use to one run of it,
// and compiling all of them was a tenth of the time from the start of kick to
// its first git.
package lazyregexp

import (
	"regexp"
	"sync"
)

// Regexp is an expression as in package regexp.
type Regexp struct {
	expr string
	get  func() *regexp.Regexp
}

// New returns an expression, which must be valid: its first use panics
// otherwise.
func New(expr string) *Regexp {
	return &Regexp{expr: expr, get: sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

// String returns the text of the expression.
func (r *Regexp) String() string { return r.expr }

// MatchString reports whether s holds a match.
func (r *Regexp) MatchString(s string) bool { return r.get().MatchString(s) }

// FindString returns the text of the first match, or "".
func (r *Regexp) FindString(s string) string { return r.get().FindString(s) }

// FindStringSubmatch returns the first match and its groups, or nil.
func (r *Regexp) FindStringSubmatch(s string) []string { return r.get().FindStringSubmatch(s) }

// FindAllStringSubmatch returns at most n matches and their groups; all if n is negative.
func (r *Regexp) FindAllStringSubmatch(s string, n int) [][]string {
	return r.get().FindAllStringSubmatch(s, n)
}

// ReplaceAllString returns src with all matches replaced, as by package regexp.
func (r *Regexp) ReplaceAllString(src, repl string) string {
	return r.get().ReplaceAllString(src, repl)
}

// ReplaceAllStringFunc is regexp's.
func (r *Regexp) ReplaceAllStringFunc(src string, repl func(string) string) string {
	return r.get().ReplaceAllStringFunc(src, repl)
}
