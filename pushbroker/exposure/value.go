package exposure

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
)

// value is what an expression comes to. Of an unknown one, its beginning and
// whether it counts as true may be known all the same.
type value struct {
	kind  valueKind
	text  string // of a string; of an unknown one, how it begins
	num   float64
	bool  bool
	list  []value
	truth certainty // of an unknown one
	id    string    // two unknown ones with the same id are equal
	never []string  // what an unknown one is not
}

type valueKind int

const (
	unknownKind valueKind = iota
	nullKind
	boolKind
	numberKind
	stringKind
	listKind
)

var (
	unknown = value{truth: maybe}
	null    = value{kind: nullKind}
)

func text(s string) value      { return value{kind: stringKind, text: s} }
func number(n float64) value   { return value{kind: numberKind, num: n} }
func boolean(b bool) value     { return value{kind: boolKind, bool: b} }
func begins(with string) value { return value{text: with, truth: yes} }

func texts(list []string) value {
	v := value{kind: listKind}
	for _, s := range list {
		v.list = append(v.list, text(s))
	}
	return v
}

func fromTruth(c certainty) value {
	if c == maybe {
		return unknown
	}
	return boolean(c == yes)
}

func (v value) truthy() certainty {
	switch v.kind {
	case nullKind:
		return no
	case boolKind:
		return certain(v.bool)
	case numberKind:
		return certain(v.num != 0 && !math.IsNaN(v.num))
	case stringKind:
		return certain(v.text != "")
	case listKind:
		return yes
	}
	return v.truth
}

// equal compares as GitHub does: texts without regard to case, and values of
// two kinds as numbers.
func (v value) equal(w value) certainty {
	if v.kind == unknownKind || w.kind == unknownKind {
		if v.kind == unknownKind {
			v, w = w, v
		}
		if v.id != "" && v.id == w.id {
			return yes
		}
		if v.kind == stringKind && slices.ContainsFunc(w.never, func(s string) bool { return strings.EqualFold(s, v.text) }) {
			return no
		}
		if v.kind == stringKind && w.text != "" && !hasPrefixFold(v.text, w.text) {
			return no
		}
		return maybe
	}
	switch {
	case v.kind == listKind || w.kind == listKind:
		return maybe
	case v.kind == stringKind && w.kind == stringKind:
		return certain(strings.EqualFold(v.text, w.text))
	case v.kind == nullKind && w.kind == nullKind:
		return yes
	}
	return certain(v.number() == w.number())
}

func (v value) number() float64 {
	switch v.kind {
	case boolKind:
		if v.bool {
			return 1
		}
		return 0
	case nullKind:
		return 0
	case numberKind:
		return v.num
	case stringKind:
		if strings.TrimSpace(v.text) == "" {
			return 0
		}
		if n, err := strconv.ParseFloat(strings.TrimSpace(v.text), 64); err == nil {
			return n
		}
	}
	return math.NaN()
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// scope says what a context's property holds; unknown if it is not certain.
type scope func(path []string) value

// eval works the expression out as far as that is certain.
func (e *expr) eval(in scope) value {
	switch e.op {
	case "lit":
		return e.lit
	case "ctx":
		for _, p := range e.path {
			if p == "?" {
				return unknown
			}
		}
		return in(e.path)
	case "call":
		return e.evalCall(in)
	case "?":
		return unknown
	}
	a := e.args[0].eval(in)
	if e.op == "!" {
		return fromTruth(a.truthy().not())
	}
	b := e.args[1].eval(in)
	switch e.op {
	case "&&":
		return choose(a, b, no)
	case "||":
		return choose(a, b, yes)
	case "==":
		return fromTruth(a.equal(b))
	case "!=":
		return fromTruth(a.equal(b).not())
	}
	return compareNumbers(e.op, a, b)
}

// choose is "&&" if stop is no and "||" if it is yes: a, if its truth is stop,
// else b.
func choose(a, b value, stop certainty) value {
	switch a.truthy() {
	case stop:
		return a
	case stop.not():
		return b
	}
	// One of the two; if b's truth is stop too, so is that of either.
	if b.truthy() == stop {
		return value{truth: stop}
	}
	return unknown
}

func compareNumbers(op string, a, b value) value {
	if a.kind != numberKind || b.kind != numberKind {
		return unknown
	}
	switch op {
	case "<":
		return boolean(a.num < b.num)
	case "<=":
		return boolean(a.num <= b.num)
	case ">":
		return boolean(a.num > b.num)
	}
	return boolean(a.num >= b.num)
}

func (e *expr) evalCall(in scope) value {
	args := make([]value, len(e.args))
	for i, a := range e.args {
		args[i] = a.eval(in)
	}
	switch {
	case e.name == "always" && len(args) == 0:
		return boolean(true)
	case e.name == "contains" && len(args) == 2:
		return fromTruth(contains(args[0], args[1]))
	case e.name == "startswith" && len(args) == 2:
		return fromTruth(startsWith(args[0], args[1]))
	case e.name == "endswith" && len(args) == 2 && args[0].kind == stringKind && args[1].kind == stringKind:
		return boolean(strings.HasSuffix(strings.ToLower(args[0].text), strings.ToLower(args[1].text)))
	case e.name == "fromjson" && len(args) == 1 && args[0].kind == stringKind:
		return fromJSON(args[0].text)
	}
	return unknown
}

func contains(in, what value) certainty {
	switch {
	case in.kind == listKind:
		found := no
		for _, v := range in.list {
			found = max(found, v.equal(what))
		}
		return found
	case in.kind == stringKind && what.kind == stringKind:
		return certain(strings.Contains(strings.ToLower(in.text), strings.ToLower(what.text)))
	case in.kind == nullKind && what.kind == stringKind:
		return certain(what.text == "")
	}
	return maybe
}

func startsWith(s, prefix value) certainty {
	switch {
	case prefix.kind != stringKind:
		return maybe
	case s.kind == stringKind:
		return certain(hasPrefixFold(s.text, prefix.text))
	case s.kind == nullKind:
		return certain(prefix.text == "")
	case s.kind == unknownKind && hasPrefixFold(s.text, prefix.text):
		return yes
	case s.kind == unknownKind && !hasPrefixFold(prefix.text, s.text):
		return no
	}
	return maybe
}

// fromJSON reads a value, or a list of plain ones.
func fromJSON(s string) value {
	var v any
	if json.Unmarshal([]byte(s), &v) != nil {
		return unknown
	}
	list, ok := v.([]any)
	if !ok {
		return plain(v)
	}
	out := value{kind: listKind}
	for _, v := range list {
		out.list = append(out.list, plain(v))
	}
	return out
}

func plain(v any) value {
	switch v := v.(type) {
	case nil:
		return null
	case bool:
		return boolean(v)
	case float64:
		return number(v)
	case string:
		return text(v)
	}
	return unknown
}
