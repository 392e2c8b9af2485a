package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/internal/lazyregexp"
)

const (
	// maxWork bounds the values that are looked at, aliases followed: a file of
	// 1 MiB could otherwise repeat a large block a hundred thousand times. Each
	// 16 bytes of a value count as one more, since each is searched for
	// credentials at about 1 MB/s.
	maxWork = 100_000
	// maxProblems bounds the report on one file.
	maxProblems = 100
)

// Problem is one thing that is wrong with a file.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line"`   // 1-based; 0 when the whole file is meant
	Column int    `json:"column"` // 1-based, in characters; 0 when not known
	Path   string `json:"path"`   // e.g. agents.scanner.sandbox.timeout_s
	What   string `json:"what"`   // what is wrong
	Remedy string `json:"remedy"` // what to do
}

func (p Problem) Error() string {
	s := p.File
	if p.Line > 0 {
		s += ":" + strconv.Itoa(p.Line)
		if p.Column > 0 {
			s += ":" + strconv.Itoa(p.Column)
		}
	}
	if p.Path != "" {
		s += ": " + p.Path
	}
	return s + ": " + p.What + "; " + p.Remedy
}

// Problems is everything that is wrong with a file, in the order of its lines.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// place is a node and the path of keys that leads to it.
type place struct {
	node *yaml.Node
	path string
}

func (p place) child(key string, n *yaml.Node) place {
	if p.path != "" {
		key = p.path + "." + key
	}
	return place{node: n, path: key}
}

// decoder collects the problems of one file.
type decoder struct {
	file     string
	problems Problems
	work     int  // see maxWork
	stopped  bool // maxWork is reached
}

func (d *decoder) problem(p place, what, remedy string) {
	if len(d.problems) == maxProblems {
		return
	}
	d.problems = append(d.problems, Problem{
		File: d.file, Line: p.node.Line, Column: p.node.Column, Path: p.path, What: what, Remedy: remedy,
	})
}

func (d *decoder) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return d.problems
}

var syntaxLine = lazyregexp.New(`^(?:yaml: )?(?:[a-z ]*error: )?line (\d+): (.*)`)

// parse returns the root node of the only document, or nil: then the file is
// empty or not YAML, and the latter is a problem.
func (d *decoder) parse(data []byte) *yaml.Node {
	if len(data) > MaxFileSize {
		d.problem(place{node: &yaml.Node{}}, "is larger than 1 MiB", "remove what does not belong there")
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		switch err = dec.Decode(&second); {
		case errors.Is(err, io.EOF):
			return doc.Content[0]
		case err == nil:
			d.problem(place{node: &second}, "a second document begins", "keep one document, without a second ---")
			return nil
		}
	}
	at, what := &yaml.Node{}, strings.TrimPrefix(err.Error(), "yaml: ")
	if m := syntaxLine.FindStringSubmatch(err.Error()); m != nil {
		at.Line, _ = strconv.Atoi(m[1])
		what = m[2]
	}
	d.problem(place{node: at}, "not valid YAML: "+shown(what), "correct the syntax in or next to this line")
	return nil
}

// visit counts a node and follows an alias. It returns nil when the file makes
// too much of its aliases.
func (d *decoder) visit(p place) *yaml.Node {
	n := p.node
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	d.work += 1 + len(n.Value)/16
	if d.work < maxWork {
		return n
	}
	if !d.stopped {
		d.problem(p, "the aliases of this file expand to too much", "write fewer aliases")
	}
	d.stopped = true
	return nil
}

// isNull reports whether a key was written without a value.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// entry is one key of a mapping with its value.
type entry struct {
	key   string
	place place // of the value
	at    place // of the key
}

// mapping returns the entries of a mapping, each key once. A key without a
// value where a mapping belongs is an empty mapping.
func (d *decoder) mapping(p place) []entry {
	n := d.visit(p)
	if n == nil || isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.problem(p, "is "+kindOf(n)+", but a mapping belongs here", "write keys and values below it, indented")
		return nil
	}
	var entries []entry
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		kn := n.Content[i]
		at := p.child(keyName(kn.Value), kn)
		switch {
		case d.visit(at) == nil:
			return entries
		case kn.ShortTag() == "!!merge":
			d.problem(at, "merge keys are not supported", "put what all agents share into agent_sandbox")
		case kn.Kind != yaml.ScalarNode || kn.Value == "":
			d.problem(at, "a key is "+kindOf(kn), "write a plain name as the key")
		case lines[kn.Value] > 0:
			d.problem(at, fmt.Sprintf("is there twice, first in line %d", lines[kn.Value]), "remove one of the two")
		default:
			lines[kn.Value] = kn.Line
			entries = append(entries, entry{key: kn.Value, place: p.child(keyName(kn.Value), n.Content[i+1]), at: at})
		}
	}
	return entries
}

var plainKey = lazyregexp.New(`^[A-Za-z0-9_-]{1,64}$`)

func keyName(key string) string {
	if plainKey.MatchString(key) {
		return key
	}
	return shown(key)
}

// scalar returns the text of a value that is not a mapping, a list or empty.
// Whatever stands in a kick.yaml is not secret: a credential is a problem
// wherever it is.
func (d *decoder) scalar(p place, want string) (*yaml.Node, bool) {
	n := d.visit(p)
	if n == nil {
		return nil, false
	}
	if isNull(n) {
		d.problem(p, "has no value", "write "+want+", or remove the key")
		return nil, false
	}
	if n.Kind != yaml.ScalarNode {
		d.problem(p, "is "+kindOf(n)+", but "+want+" belongs here", "write "+want)
		return nil, false
	}
	if kind := credential.Kind(n.Value); kind != "" {
		d.problem(p, "looks like "+kind, "revoke it if it is real, and keep it out of this file: nothing secret enters a sandbox")
		return nil, false
	}
	return n, true
}

// text reads a string. A number or a boolean has to be quoted, so that what is
// read is what was meant.
func (d *decoder) text(p place, want string) (string, bool) {
	n, ok := d.scalar(p, want)
	if !ok {
		return "", false
	}
	if n.ShortTag() != "!!str" {
		d.problem(p, "is "+kindOf(n)+", but "+want+" belongs here", "put it in quotes if it is meant as text")
		return "", false
	}
	if strings.ContainsRune(n.Value, 0) {
		d.problem(p, "holds a NUL character", "remove it")
		return "", false
	}
	return n.Value, true
}

func (d *decoder) boolean(p place) (value, ok bool) {
	n, ok := d.scalar(p, "true or false")
	if !ok {
		return false, false
	}
	switch {
	case n.ShortTag() != "!!bool":
		d.problem(p, "is "+kindOf(n)+", but true or false belongs here", "write true or false, without quotes")
		return false, false
	default:
		return strings.EqualFold(n.Value, "true"), true
	}
}

// integer reads a whole number from low to high.
func (d *decoder) integer(p place, low, high int64, unit string) (int64, bool) {
	want := fmt.Sprintf("a whole number of %s from %d to %d", unit, low, high)
	n, ok := d.scalar(p, want)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if n.ShortTag() != "!!int" || err != nil || strconv.FormatInt(v, 10) != n.Value || v < low || v > high {
		d.problem(p, "is "+shown(n.Value), "write "+want)
		return 0, false
	}
	return v, true
}

// list reads a list of strings.
func (d *decoder) list(p place, want string) ([]place, bool) {
	n := d.visit(p)
	if n == nil {
		return nil, false
	}
	if n.Kind != yaml.SequenceNode {
		d.problem(p, "is "+kindOf(n)+", but a list belongs here", "write "+want+" as a list: [a, b]")
		return nil, false
	}
	items := make([]place, len(n.Content))
	for i, c := range n.Content {
		items[i] = place{node: c, path: fmt.Sprintf("%s[%d]", p.path, i)}
	}
	return items, true
}

// source says where a value came from.
func (d *decoder) source(p place) string { return sourceOf(d.file, p) }

// kindOf names what a node is.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.ShortTag() {
	case "!!null":
		return "empty"
	case "!!bool":
		return "a boolean"
	case "!!int", "!!float":
		return "a number"
	case "!!timestamp":
		return "a date"
	case "!!str":
		return "text"
	}
	return "of the type " + shown(n.Tag)
}

// shown quotes text of the file for a message, cut short, and never repeats a
// credential.
func shown(s string) string {
	if credential.LooksLike(s) {
		return "(hidden: looks like a credential)"
	}
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return strconv.Quote(s)
}
