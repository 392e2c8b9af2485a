package exposure

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// expr is a node of an expression of GitHub Actions.
// https://docs.github.com/actions/reference/workflows-and-actions/expressions
type expr struct {
	op   string // "lit", "ctx" (a context and its properties), "call", "?" (a value that is not followed), or an operator
	lit  value
	path []string // of ctx, in lower case: "github", "event", …; "*" is a filter, "?" an index that is computed
	name string   // of call, in lower case
	args []*expr
}

// Bounds of one expression: GitHub takes 21,000 characters, and nobody nests so
// deep.
const (
	maxExpr      = 21000
	maxExprDepth = 50
)

var errExpr = errors.New("not an expression")

// parseExpr reads an expression, without the "${{" and "}}" around it.
func parseExpr(text string) (*expr, error) {
	if len(text) > maxExpr {
		return nil, fmt.Errorf("%w: longer than %d bytes", errExpr, maxExpr)
	}
	p := &exprParser{rest: text}
	p.next()
	e, err := p.or(0)
	if err != nil {
		return nil, err
	}
	if p.tok.kind != 0 {
		return nil, p.unexpected()
	}
	return e, nil
}

// token kinds; an operator or bracket is its own first byte.
const (
	tokBad    = -1
	tokIdent  = 'a'
	tokNumber = '0'
	tokString = '\''
)

type token struct {
	kind int // 0: the end
	text string
}

type exprParser struct {
	rest string
	tok  token
}

func (p *exprParser) unexpected() error { return fmt.Errorf("%w: near %.20q", errExpr, p.tok.text) }

// next reads one token.
func (p *exprParser) next() {
	s := strings.TrimLeft(p.rest, " \t\r\n")
	take := func(kind, n int) {
		p.tok, p.rest = token{kind, s[:n]}, s[n:]
	}
	switch {
	case s == "":
		p.tok, p.rest = token{}, ""
	case s[0] == '\'':
		n := 1
		for n < len(s) {
			if s[n] != '\'' {
				n++
			} else if strings.HasPrefix(s[n:], "''") {
				n += 2
			} else {
				break
			}
		}
		if n >= len(s) {
			take(tokBad, len(s))
			return
		}
		p.tok, p.rest = token{tokString, strings.ReplaceAll(s[1:n], "''", "'")}, s[n+1:]
	case isDigit(s[0]) || (s[0] == '-' || s[0] == '+' || s[0] == '.') && len(s) > 1 && (isDigit(s[1]) || s[1] == '.'):
		take(tokNumber, 1+span(s[1:], func(c byte) bool { return isIdent(c) || c == '.' || c == '+' }))
	case isIdent(s[0]) && s[0] != '-':
		take(tokIdent, span(s, isIdent))
	case len(s) > 1 && (s[:2] == "==" || s[:2] == "!=" || s[:2] == "&&" || s[:2] == "||" || s[:2] == "<=" || s[:2] == ">="):
		take(int(s[0]), 2)
	case strings.IndexByte("!<>()[].,*", s[0]) >= 0:
		take(int(s[0]), 1)
	default:
		take(tokBad, 1)
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isIdent(c byte) bool { return c == '_' || strings.IndexByte(alphanumeric+"-", c) >= 0 }

func span(s string, in func(byte) bool) int {
	n := 0
	for n < len(s) && in(s[n]) {
		n++
	}
	return n
}

// binary reads a chain of operators of one rank.
func (p *exprParser) binary(depth int, operand func(int) (*expr, error), ops ...string) (*expr, error) {
	left, err := operand(depth)
	for err == nil {
		op := ""
		for _, o := range ops {
			if p.tok.text == o && p.tok.kind == int(o[0]) {
				op = o
			}
		}
		if op == "" {
			return left, nil
		}
		p.next()
		var right *expr
		right, err = operand(depth)
		left = &expr{op: op, args: []*expr{left, right}}
	}
	return nil, err
}

func (p *exprParser) or(depth int) (*expr, error)    { return p.binary(depth, p.and, "||") }
func (p *exprParser) and(depth int) (*expr, error)   { return p.binary(depth, p.equal, "&&") }
func (p *exprParser) equal(depth int) (*expr, error) { return p.binary(depth, p.compare, "==", "!=") }
func (p *exprParser) compare(depth int) (*expr, error) {
	return p.binary(depth, p.unary, "<", "<=", ">", ">=")
}

func (p *exprParser) unary(depth int) (*expr, error) {
	if depth > maxExprDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d", errExpr, maxExprDepth)
	}
	if p.tok.kind == '!' && p.tok.text == "!" {
		p.next()
		e, err := p.unary(depth + 1)
		return &expr{op: "!", args: []*expr{e}}, err
	}
	e, err := p.primary(depth)
	for err == nil && (p.tok.kind == '.' || p.tok.kind == '[') {
		e, err = p.property(e, depth)
	}
	return e, err
}

func (p *exprParser) primary(depth int) (*expr, error) {
	t := p.tok
	p.next()
	switch t.kind {
	case tokString:
		return &expr{op: "lit", lit: text(t.text)}, nil
	case tokNumber:
		n, err := strconv.ParseFloat(strings.TrimPrefix(t.text, "+"), 64)
		if err != nil { // hexadecimal and the like
			return &expr{op: "?"}, nil
		}
		return &expr{op: "lit", lit: number(n)}, nil
	case '(':
		e, err := p.or(depth + 1)
		if err == nil {
			err = p.expect(')')
		}
		return e, err
	case tokIdent:
		name := strings.ToLower(t.text)
		if p.tok.kind == '(' {
			return p.call(name, depth)
		}
		switch name {
		case "true", "false":
			return &expr{op: "lit", lit: boolean(name == "true")}, nil
		case "null":
			return &expr{op: "lit", lit: null}, nil
		case "nan", "infinity":
			return &expr{op: "?"}, nil
		}
		return &expr{op: "ctx", path: []string{name}}, nil
	}
	p.tok = t
	return nil, p.unexpected()
}

func (p *exprParser) expect(kind int) error {
	if p.tok.kind != kind {
		return p.unexpected()
	}
	p.next()
	return nil
}

func (p *exprParser) call(name string, depth int) (*expr, error) {
	e := &expr{op: "call", name: name}
	p.next()
	for p.tok.kind != ')' {
		if len(e.args) > 0 {
			if err := p.expect(','); err != nil {
				return nil, err
			}
		}
		arg, err := p.or(depth + 1)
		if err != nil {
			return nil, err
		}
		e.args = append(e.args, arg)
	}
	p.next()
	return e, nil
}

// property reads ".name", ".*" or "[index]".
func (p *exprParser) property(of *expr, depth int) (*expr, error) {
	dot := p.tok.kind == '.'
	p.next()
	name := "?"
	var index *expr
	if dot {
		if p.tok.kind != tokIdent && p.tok.kind != '*' {
			return nil, p.unexpected()
		}
		name = strings.ToLower(p.tok.text)
		p.next()
	} else {
		if p.tok.kind == '*' {
			name = "*"
			p.next()
		} else {
			var err error
			if index, err = p.or(depth + 1); err != nil {
				return nil, err
			}
			if index.op == "lit" && index.lit.kind == stringKind {
				name = strings.ToLower(index.lit.text)
			}
		}
		if err := p.expect(']'); err != nil {
			return nil, err
		}
	}
	// The parts are kept as arguments, so that what they read is seen.
	e := &expr{op: "?", args: []*expr{of}}
	if of.op == "ctx" {
		e = &expr{op: "ctx", path: append(slices.Clone(of.path), name), args: slices.Clone(of.args)}
	}
	if index != nil {
		e.args = append(e.args, index)
	}
	return e, nil
}

// contexts calls each for every context property that the expression reads.
func (e *expr) contexts(each func(path []string)) {
	if e.op == "ctx" {
		each(e.path)
	}
	for _, a := range e.args {
		a.contexts(each)
	}
}

// segments returns the expressions between "${{" and "}}" of a text. ok is
// false if one has no end.
func segments(s string) (found []string, ok bool) {
	for {
		_, rest, more := strings.Cut(s, "${{")
		if !more {
			return found, true
		}
		end, quoted := -1, false
		for i := 0; i < len(rest); i++ {
			if rest[i] == '\'' {
				quoted = !quoted
			} else if !quoted && strings.HasPrefix(rest[i:], "}}") {
				end = i
				break
			}
		}
		if end < 0 {
			return found, false
		}
		found, s = append(found, rest[:end]), rest[end+2:]
	}
}

// calls calls each for every function that the expression calls.
func (e *expr) calls(each func(name string)) {
	if e.op == "call" {
		each(e.name)
	}
	for _, a := range e.args {
		a.calls(each)
	}
}
