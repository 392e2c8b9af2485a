package exposure

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// secretUse is a place where a workflow uses a secret. The name "*" stands for
// all of the repository's.
type secretUse struct {
	name string
	line int
}

// secretsIn finds the secrets that the values below nodes name, each once.
// GITHUB_TOKEN is left out: what it can do is judged by its rights. A step that
// is skipped counts, since its job's runner gets the secret all the same.
func secretsIn(nodes ...*yaml.Node) []secretUse {
	var out []secretUse
	add := func(name string, line int) {
		if name != "GITHUB_TOKEN" && !slices.ContainsFunc(out, func(s secretUse) bool { return s.name == name }) {
			out = append(out, secretUse{name, line})
		}
	}
	for _, n := range nodes {
		walk(n, func(n *yaml.Node) {
			for _, name := range secretNames(n.Value) {
				add(name, n.Line)
			}
		})
	}
	return out
}

func secretNames(s string) []string {
	if !strings.Contains(s, "${{") {
		return nil
	}
	var names []string
	found, ok := segments(s)
	if !ok && strings.Contains(strings.ToLower(s), "secrets") {
		names = append(names, "*")
	}
	for _, seg := range found {
		e, err := parseExpr(seg)
		if err != nil {
			if strings.Contains(strings.ToLower(seg), "secrets") {
				names = append(names, "*")
			}
			continue
		}
		e.contexts(func(path []string) {
			switch {
			case path[0] != "secrets":
			case len(path) == 1 || path[1] == "*" || path[1] == "?":
				names = append(names, "*")
			default:
				names = append(names, strings.ToUpper(path[1]))
			}
		})
	}
	return names
}

// handed are the secrets that a caller hands to a reusable workflow. Nil is the
// workflow at the top, which has the repository's.
type handed struct {
	all   bool // secrets: inherit, by a caller that has all
	line  int
	names map[string][]secretUse // the callee's name: the repository's secrets behind it
}

// handedBy reads "secrets" of a job that calls. outer is what the job has
// itself.
func handedBy(n *yaml.Node, outer *handed) *handed {
	h := &handed{names: map[string][]secretUse{}}
	if n == nil {
		return h
	}
	h.line = n.Line
	if n.Kind != yaml.MappingNode { // inherit
		if outer == nil {
			h.all = true
			return h
		}
		inherited := *outer
		return &inherited
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := strings.ToUpper(resolve(n.Content[i]).Value)
		h.names[name] = outer.through(secretsIn(n.Content[i+1]))
	}
	return h
}

// through turns the names that a callee uses into the repository's.
func (h *handed) through(used []secretUse) []secretUse {
	if h == nil || h.all {
		return used
	}
	var out []secretUse
	add := func(list []secretUse) {
		for _, s := range list {
			if !slices.ContainsFunc(out, func(o secretUse) bool { return o.name == s.name }) {
				out = append(out, s)
			}
		}
	}
	for _, u := range used {
		if u.name == "*" {
			add(h.everything())
			continue
		}
		for _, s := range h.names[u.name] {
			add([]secretUse{{s.name, u.line}})
		}
	}
	return out
}

// everything is all that is handed over.
func (h *handed) everything() []secretUse {
	if h.all {
		return []secretUse{{"*", h.line}}
	}
	var out []secretUse
	for _, name := range sortedKeys(h.names) {
		out = append(out, h.names[name]...)
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// tokenRights are what a job's GITHUB_TOKEN can do.
type tokenRights struct {
	unset bool     // no permissions anywhere: the repository's setting counts
	write []string // scopes; "all"
	oidc  bool
	line  int
}

// unsetToken is what is said of a token whose rights no file tells.
const unsetToken = "no permissions are set, and the repository's default is not known"

// String says what the token can write; "" if nothing.
func (t tokenRights) String() string {
	switch {
	case t.unset:
		return unsetToken
	case len(t.write) == 0:
		return ""
	}
	return strings.Join(t.write, ", ") + ": write"
}

// rights are the job's permissions, else the workflow's, else the default; a
// called workflow has at most its caller's.
func (v *visit) rights(w *workflow, j *job, from *tokenRights) tokenRights {
	p := j.token
	if p == nil {
		p = w.token
	}
	if p == nil {
		if from != nil {
			return *from
		}
		return tokenRights{unset: !v.set.ReadToken, line: j.line}
	}
	t := tokenRights{unset: p.odd, write: p.write, oidc: p.oidc, line: p.line}
	if from == nil || from.unset {
		return t
	}
	t.oidc = t.oidc && from.oidc
	switch {
	case t.unset || slices.Contains(t.write, "all"):
		t.unset, t.write = false, from.write
	case !slices.Contains(from.write, "all"):
		t.write = slices.DeleteFunc(slices.Clone(t.write), func(s string) bool { return !slices.Contains(from.write, s) })
	}
	return t
}

// hostedRunner are the labels of GitHub's own runners, the larger ones by their
// usual names included.
// https://docs.github.com/actions/reference/runners/github-hosted-runners
var hostedRunner = regexp.MustCompile(`^(ubuntu|windows|macos)-(latest|slim|[0-9]+(\.[0-9]+)?)(-(arm|arm64|intel|large|xlarge|[a-z]{2}[0-9]{4}|[0-9]+-?cores?))*$`)

// foreignRunner names what of runs-on is not known to be GitHub's; "" if all of
// it is.
func (v *visit) foreignRunner(j *job) (string, int) {
	if j.runsOn == nil {
		return "", 0
	}
	n := j.runsOn
	if n.Kind == yaml.MappingNode {
		if g := child(n, "group"); g != nil {
			return "runner group " + g.Value, n.Line
		}
		if n = child(n, "labels"); n == nil {
			return "runs-on without labels", j.runsOn.Line
		}
	}
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	for _, item := range list {
		item = resolve(item)
		labels, ok := v.expand(item.Value, j)
		if !ok {
			return "runner " + item.Value + ", decided when it runs", item.Line
		}
		for _, l := range labels {
			if !v.hosted(strings.ToLower(l)) {
				return "runner " + l, item.Line
			}
		}
	}
	return "", 0
}

func (v *visit) hosted(label string) bool {
	return hostedRunner.MatchString(label) || slices.ContainsFunc(v.set.Hosted, func(pattern string) bool {
		ok, _ := path.Match(strings.ToLower(pattern), label)
		return ok
	})
}

// environments names the environments of a job, and reports whether one of them
// is not known to be guarded.
func (v *visit) environments(j *job) (names []string, unguarded bool) {
	n := j.environment
	if n == nil {
		return nil, false
	}
	if n.Kind == yaml.MappingNode {
		n = child(n, "name")
	}
	if n == nil {
		return []string{"without a name"}, true
	}
	names, ok := v.expand(n.Value, j)
	if !ok {
		return []string{n.Value}, true
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" }) // no environment
	for _, name := range names {
		if !slices.ContainsFunc(v.set.Guarded, func(g string) bool { return strings.EqualFold(g, name) }) {
			return names, true
		}
	}
	return names, false
}

// maxExpanded is how many values one text may stand for; a matrix has at most
// 256 jobs.
const maxExpanded = 256

// expand returns all values that a text may have: its expressions are replaced
// by what the matrix lists or what is certain. ok is false if they are decided
// elsewhere.
func (v *visit) expand(s string, j *job) (values []string, ok bool) {
	found, ok := segments(s)
	if !ok {
		return nil, false
	}
	values = []string{""}
	for _, seg := range found {
		before, rest, _ := strings.Cut(s, "${{")
		s = rest[len(seg)+2:]
		e, err := parseExpr(seg)
		if err != nil {
			return nil, false
		}
		options, ok := v.options(e, j)
		if !ok || len(options)*len(values) > maxExpanded {
			return nil, false
		}
		var next []string
		for _, head := range values {
			for _, o := range options {
				next = append(next, head+before+o)
			}
		}
		values = next
	}
	for i := range values {
		values[i] += s
	}
	return values, true
}

// options are the texts that an expression may come to.
func (v *visit) options(e *expr, j *job) ([]string, bool) {
	if val := e.eval(v.scope); val.kind == stringKind {
		return []string{val.text}, true
	}
	switch {
	case e.op == "ctx" && e.path[0] == "matrix" && len(e.path) > 1:
		return matrixValues(j.matrix, e.path[1:])
	case e.op == "||":
		b, ok := v.options(e.args[1], j)
		if e.args[0].eval(v.scope).truthy() == no {
			return b, ok
		}
		a, aok := v.options(e.args[0], j)
		return append(a, b...), ok && aok
	case e.op == "&&":
		return v.options(e.args[1], j)
	}
	return nil, false
}

// matrixValues are the values of matrix.a.b, in its list and under include.
func matrixValues(matrix *yaml.Node, property []string) ([]string, bool) {
	var items []*yaml.Node
	if list := child(matrix, property[0]); list != nil {
		if list.Kind != yaml.SequenceNode {
			return nil, false
		}
		items = append(items, list.Content...)
	}
	if include := child(matrix, "include"); include != nil {
		if include.Kind != yaml.SequenceNode {
			return nil, false
		}
		for _, entry := range include.Content {
			if n := child(entry, property[0]); n != nil {
				items = append(items, n)
			}
		}
	}
	var out []string
	for _, n := range items {
		n = resolve(n)
		for _, p := range property[1:] {
			if n = child(n, p); n == nil {
				break
			}
		}
		if n == nil || n.Kind != yaml.ScalarNode || strings.Contains(n.Value, "${{") {
			return nil, false
		}
		out = append(out, n.Value)
	}
	return out, len(out) > 0
}
