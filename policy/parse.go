package policy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kickhq/kick/internal/smallfile"
)

// MaxFile is the largest policy file that is read, 1 MiB.
const MaxFile = 1 << 20

// Load reads a policy file.
func Load(path string) (*Policy, error) {
	data, err := smallfile.Read(path, MaxFile)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return Parse(path, data)
}

// Parse reads a policy from data; name is what errors call it. Nothing is
// guessed: an unknown key, a wrong type, a second value for a key, an anchor
// or a second document is an error with its line. All errors are returned, in
// the order of their lines, or the first of very many.
func Parse(name string, data []byte) (*Policy, error) {
	d := &decoder{name: name}
	p := &Policy{name: name}
	if len(data) > MaxFile {
		d.failAt(0, fmt.Errorf("%s: larger than %d bytes: split or shorten it", name, MaxFile))
	} else if root := d.root(data); root != nil {
		d.policy(root, p)
		d.checkExceptions(p)
	}
	if len(d.errs) > 0 {
		return nil, d.all()
	}
	p.fillDefaults()
	return p, nil
}

type decoder struct {
	name string
	errs []mistake
}

// mistake is an error at a line; 0: in the whole file.
type mistake struct {
	line int
	err  error
}

// maxMistakes is how many are kept, and maxShown how many of them are told.
const (
	maxMistakes = 1000
	maxShown    = 20
)

func (d *decoder) failAt(line int, err error) {
	if len(d.errs) < maxMistakes {
		d.errs = append(d.errs, mistake{line, err})
	}
}

func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	d.failAt(n.Line, fmt.Errorf("%s:%d: %s", d.name, n.Line, fmt.Sprintf(format, args...)))
}

// all joins the mistakes in the order of their lines.
func (d *decoder) all() error {
	slices.SortStableFunc(d.errs, func(a, b mistake) int { return cmp.Compare(a.line, b.line) })
	var out []error
	for _, m := range d.errs[:min(len(d.errs), maxShown)] {
		out = append(out, m.err)
	}
	if more := len(d.errs) - maxShown; more > 0 {
		out = append(out, fmt.Errorf("%s: %d more mistakes: mend these first", d.name, more))
	}
	return errors.Join(out...)
}

func (d *decoder) root(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0 {
		d.failAt(0, fmt.Errorf("%s: empty: a policy begins with \"version: %d\"", d.name, Version))
		return nil
	}
	if err == nil {
		var second yaml.Node
		if derr := dec.Decode(&second); derr == nil {
			d.fail(&second, "a second document begins here: keep one document in a file")
			return nil
		} else if !errors.Is(derr, io.EOF) {
			err = derr
		}
	}
	if err != nil {
		d.failAt(0, fmt.Errorf("%s: not YAML: %w", d.name, err))
		return nil
	}
	if !d.noAnchors(&doc) {
		return nil
	}
	return doc.Content[0]
}

// noAnchors refuses anchors and aliases: a few of them stand for gigabytes,
// and a policy is read by people.
func (d *decoder) noAnchors(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		d.fail(n, "anchors and aliases are not allowed: write the value out")
		return false
	}
	for _, c := range n.Content {
		if !d.noAnchors(c) {
			return false
		}
	}
	return true
}

// field decodes the value of one key.
type field func(v *yaml.Node)

// mapping decodes a mapping whose keys are all in fields.
func (d *decoder) mapping(n *yaml.Node, what string, fields map[string]field) {
	d.pairs(n, what, func(k, v *yaml.Node) {
		f, ok := fields[k.Value]
		if !ok {
			d.fail(k, "unknown key %q in %s: the keys are %s", k.Value, what, keys(fields))
			return
		}
		f(v)
	})
}

func (d *decoder) pairs(n *yaml.Node, what string, each func(k, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, "%s is %s: write a mapping of keys to values", what, kind(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			d.fail(k, "a key of %s is %s: write a word", what, kind(k))
			continue
		}
		if line, dup := seen[k.Value]; dup {
			d.fail(k, "key %q of %s stands on line %d already: keep one", k.Value, what, line)
			continue
		}
		seen[k.Value] = k.Line
		each(k, v)
	}
}

func (d *decoder) list(n *yaml.Node, what string, each func(v *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, "%s is %s: write a list", what, kind(n))
		return
	}
	for _, v := range n.Content {
		each(v)
	}
}

func (d *decoder) str(n *yaml.Node, what string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" && n.Tag != "!!timestamp" {
		d.fail(n, "%s is %s: write a text, in quotes if it looks like something else", what, kind(n))
		return "", false
	}
	if strings.TrimSpace(n.Value) == "" {
		d.fail(n, "%s is empty: write it or remove the key", what)
		return "", false
	}
	return n.Value, true
}

func (d *decoder) strs(n *yaml.Node, what string, check func(string) error) []string {
	out := []string{}
	d.list(n, what, func(v *yaml.Node) {
		s, ok := d.str(v, "an entry of "+what)
		if !ok {
			return
		}
		if check != nil {
			if err := check(s); err != nil {
				d.fail(v, "%s: %v", what, err)
				return
			}
		}
		if slices.Contains(out, s) {
			d.fail(v, "%s has %q twice: keep one", what, s)
			return
		}
		out = append(out, s)
	})
	if len(out) == 0 && n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		d.fail(n, "%s is empty: list something or remove the key", what)
	}
	return out
}

func (d *decoder) globs(n *yaml.Node, what string) []Glob {
	out := []Glob{}
	d.strs(n, what, func(s string) error {
		g, err := ParseGlob(s)
		out = append(out, g)
		return err
	})
	return out
}

func (d *decoder) level(n *yaml.Node, what string, allowed ...Level) Level {
	s, ok := d.str(n, what)
	if !ok {
		return ""
	}
	if !slices.Contains(allowed, Level(s)) {
		d.fail(n, "%s is %q: write %s", what, s, oneOf(allowed))
		return ""
	}
	return Level(s)
}

func (d *decoder) count(n *yaml.Node, what string) int64 {
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || v <= 0 || v > 1<<40 {
		d.fail(n, "%s is %s: write a whole number above 0", what, kind(n))
		return 0
	}
	return v
}

// size reads a count of bytes: a whole number, or one with KiB, MiB or GiB.
func (d *decoder) size(n *yaml.Node, what string) int64 {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		for _, u := range []struct {
			name  string
			shift uint
		}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}} {
			num, ok := strings.CutSuffix(n.Value, u.name)
			if !ok {
				continue
			}
			v, err := strconv.ParseUint(strings.TrimSpace(num), 10, 20)
			if err == nil && v > 0 {
				return int64(v) << u.shift
			}
		}
		d.fail(n, "%s is %q: write bytes as a whole number, or a whole number and KiB, MiB or GiB", what, n.Value)
		return 0
	}
	return d.count(n, what)
}

func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "empty"
		}
		return strconv.Quote(n.Value)
	}
	return "not a value"
}

func keys(fields map[string]field) string {
	names := make([]string, 0, len(fields))
	for k := range fields {
		names = append(names, k)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func oneOf(levels []Level) string {
	names := make([]string, len(levels))
	for i, l := range levels {
		names[i] = string(l)
	}
	return strings.Join(names, " or ")
}
