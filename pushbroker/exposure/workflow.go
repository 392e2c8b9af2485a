package exposure

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxFile is the largest file that is read, 1 MiB.
const MaxFile = 1 << 20

// Bounds of one file; aliases count as what they stand for.
const (
	maxNodes = 50_000
	maxDepth = 60
	maxJobs  = 500 // in one file; GitHub runs at most 256 of one matrix
)

// workflow is a workflow file, as far as it matters here.
type workflow struct {
	path   string
	name   string // the path, if it has none
	events []event
	token  *permissions
	env    *yaml.Node
	jobs   []*job
}

// event is one entry of "on".
type event struct {
	name  string
	line  int
	types []string // nil: the event's default
	// Filters; nil if absent.
	branches, branchesIgnore, paths, pathsIgnore *filter
	tags                                         bool     // tags or tags-ignore are set
	workflows                                    []string // of workflow_run
}

// permissions are what a workflow or job gives to its token.
type permissions struct {
	line  int
	write []string // scopes that can write, without id-token; "all" for write-all
	oidc  bool     // id-token: write
	odd   bool     // could not be read
}

type job struct {
	id          string
	line        int
	cond        condition
	needs       []string
	token       *permissions
	environment *yaml.Node
	runsOn      *yaml.Node
	images      []*yaml.Node // of container and services
	matrix      *yaml.Node
	uses        *yaml.Node // a reusable workflow
	secrets     *yaml.Node // what is handed to it
	steps       []step
	node        *yaml.Node // the whole
}

type step struct {
	line int
	cond condition
	uses string
	run  string
	with map[string]string
	env  string // values, one a line
	node *yaml.Node
}

// condition is an "if".
type condition struct {
	text string // empty: none
	line int
	odd  bool // neither a text nor a plain value
}

// read reads a workflow file. Nothing is guessed: what GitHub would refuse is an
// error, since another reader than ours decides whether it runs.
func read(file string, data []byte) (*workflow, error) {
	root, err := parseYAML(data)
	if err != nil {
		return nil, err
	}
	w := &workflow{path: file, name: file}
	if err := w.read(root); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *workflow) read(root *yaml.Node) error {
	var on, jobs *yaml.Node
	err := pairs(root, "the workflow", func(key string, k, v *yaml.Node) error {
		switch key {
		case "name":
			if v.Value != "" {
				w.name = v.Value
			}
		case "on":
			on = v
		case "permissions":
			w.token = readPermissions(v)
		case "env":
			w.env = v
		case "jobs":
			jobs = v
		}
		return nil
	})
	if err != nil {
		return err
	}
	if on == nil {
		return errors.New(`it has no "on"`)
	}
	if w.events, err = readEvents(on); err != nil || jobs == nil {
		return err
	}
	return pairs(jobs, `"jobs"`, func(_ string, k, v *yaml.Node) error {
		if len(w.jobs) == maxJobs {
			return fmt.Errorf("line %d: there are more than %d jobs", k.Line, maxJobs)
		}
		j, err := readJob(k, v)
		w.jobs = append(w.jobs, j)
		return err
	})
}

func parseYAML(data []byte) (*yaml.Node, error) {
	if len(data) > MaxFile {
		return nil, fmt.Errorf("it is larger than %d bytes", MaxFile)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		return nil, errors.New("it is empty")
	case err != nil:
		return nil, fmt.Errorf("it is not YAML: %w", err)
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has more than one document")
	}
	left := maxNodes
	if err := measure(doc.Content[0], maxDepth, &left); err != nil {
		return nil, err
	}
	return resolve(doc.Content[0]), nil
}

// measure bounds what walking the nodes costs, with every alias followed.
func measure(n *yaml.Node, depth int, left *int) error {
	if *left--; *left < 0 {
		return fmt.Errorf("line %d: it has more than %d values", n.Line, maxNodes)
	}
	if depth == 0 {
		return fmt.Errorf("line %d: it is nested deeper than %d", n.Line, maxDepth)
	}
	if n.Kind == yaml.AliasNode {
		return measure(n.Alias, depth-1, left)
	}
	for _, c := range n.Content {
		if err := measure(c, depth-1, left); err != nil {
			return err
		}
	}
	return nil
}

// resolve follows an alias; an alias of an alias cannot be written.
func resolve(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// pairs calls each for the keys of a mapping, in lower case.
func pairs(n *yaml.Node, what string, each func(key string, k, v *yaml.Node) error) error {
	if n = resolve(n); n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: %s is no mapping", n.Line, what)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := resolve(n.Content[i]), resolve(n.Content[i+1])
		key := strings.ToLower(k.Value)
		switch {
		case k.Kind != yaml.ScalarNode || k.Value == "<<":
			return fmt.Errorf("line %d: a key of %s is no word", k.Line, what)
		case seen[key]:
			return fmt.Errorf("line %d: %s has %q twice", k.Line, what, k.Value)
		}
		seen[key] = true
		if err := each(key, k, v); err != nil {
			return err
		}
	}
	return nil
}

// words reads a word or a list of words.
func words(n *yaml.Node, what string) ([]string, error) {
	n = resolve(n)
	switch n.Kind {
	case yaml.ScalarNode:
		return []string{n.Value}, nil
	case yaml.SequenceNode:
		out := []string{}
		for _, c := range n.Content {
			if c = resolve(c); c.Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("line %d: %s has an entry that is no word", c.Line, what)
			}
			out = append(out, c.Value)
		}
		return out, nil
	}
	return nil, fmt.Errorf("line %d: %s is no list of words", n.Line, what)
}

// readEvents reads "on": a word, a list, or a mapping.
func readEvents(n *yaml.Node) ([]event, error) {
	if n.Kind != yaml.MappingNode {
		names, err := words(n, `"on"`)
		slices.Sort(names)
		names = slices.Compact(names)
		if err != nil || len(names) == 0 || slices.Contains(names, "") {
			return nil, errors.Join(err, fmt.Errorf(`line %d: "on" names no event`, n.Line))
		}
		var out []event
		for _, name := range names {
			out = append(out, event{name: strings.ToLower(name), line: n.Line})
		}
		return out, nil
	}
	var out []event
	err := pairs(n, `"on"`, func(key string, k, v *yaml.Node) error {
		e := event{name: key, line: k.Line}
		switch {
		case key == "schedule" || key == "workflow_dispatch" || key == "workflow_call" || v.Tag == "!!null":
			// What they hold does not matter here.
		case v.Kind != yaml.MappingNode:
			return fmt.Errorf("line %d: %s is no mapping", v.Line, k.Value)
		default:
			if err := e.read(v); err != nil {
				return err
			}
		}
		out = append(out, e)
		return nil
	})
	return out, err
}

func (e *event) read(n *yaml.Node) error {
	return pairs(n, e.name, func(key string, k, v *yaml.Node) error {
		if v.Tag == "!!null" {
			return nil
		}
		list, err := words(v, key)
		if err != nil {
			return err
		}
		f := newFilter(list, k.Line)
		switch key {
		case "types":
			e.types = list
		case "branches":
			e.branches = f
		case "branches-ignore":
			e.branchesIgnore = f
		case "tags", "tags-ignore":
			e.tags = true
		case "paths":
			e.paths = f
		case "paths-ignore":
			e.pathsIgnore = f
		case "workflows":
			e.workflows = list
		default:
			return fmt.Errorf("line %d: %s has the unknown key %q", k.Line, e.name, k.Value)
		}
		return nil
	})
}

// readPermissions reads "permissions". What it does not understand counts as
// write.
func readPermissions(n *yaml.Node) *permissions {
	p := &permissions{line: n.Line}
	switch n.Kind {
	case yaml.ScalarNode:
		switch n.Value {
		case "read-all":
		case "write-all":
			p.write, p.oidc = []string{"all"}, true
		default:
			p.odd = true
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			scope, v := resolve(n.Content[i]).Value, resolve(n.Content[i+1])
			switch {
			case v.Value == "read" || v.Value == "none":
			case scope == "id-token":
				p.oidc = true
			default:
				p.write = append(p.write, scope)
			}
		}
	default:
		p.odd = true
	}
	return p
}

func readJob(k, n *yaml.Node) (*job, error) {
	j := &job{id: k.Value, line: k.Line, node: n}
	var err error
	return j, pairs(n, "job "+k.Value, func(key string, _, v *yaml.Node) error {
		switch key {
		case "if":
			j.cond = readCondition(v)
		case "needs":
			j.needs, err = words(v, "needs")
		case "permissions":
			j.token = readPermissions(v)
		case "environment":
			j.environment = v
		case "runs-on":
			j.runsOn = v
		case "container":
			j.images = append(j.images, image(v))
		case "services":
			err = pairs(v, "services", func(_ string, _, v *yaml.Node) error {
				j.images = append(j.images, image(v))
				return nil
			})
		case "strategy":
			j.matrix = child(v, "matrix")
		case "uses":
			j.uses = v
		case "secrets":
			j.secrets = v
		case "steps":
			j.steps, err = readSteps(v)
		}
		return err
	})
}

// image is the image's name of a container or service.
func image(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.MappingNode {
		return child(n, "image")
	}
	return n
}

// child returns the value of a key, or nil.
func child(n *yaml.Node, key string) *yaml.Node {
	n = resolve(n)
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if strings.EqualFold(resolve(n.Content[i]).Value, key) {
			return resolve(n.Content[i+1])
		}
	}
	return nil
}

func readCondition(n *yaml.Node) condition {
	plain := n.Kind == yaml.ScalarNode && strings.HasPrefix(n.Tag, "!!")
	return condition{text: n.Value, line: n.Line, odd: !plain}
}

func readSteps(n *yaml.Node) ([]step, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: steps is no list", n.Line)
	}
	var out []step
	for _, c := range n.Content {
		c = resolve(c)
		s := step{line: c.Line, node: c, with: map[string]string{}}
		err := pairs(c, "a step", func(key string, _, v *yaml.Node) error {
			switch key {
			case "if":
				s.cond = readCondition(v)
			case "uses":
				s.uses = strings.TrimSpace(v.Value)
			case "run":
				s.run = v.Value
			case "env":
				s.env = strings.Join(scalars(v, nil), "\n")
			case "with":
				if v.Kind == yaml.MappingNode {
					for i := 0; i+1 < len(v.Content); i += 2 {
						s.with[strings.ToLower(resolve(v.Content[i]).Value)] = strings.Join(scalars(v.Content[i+1], nil), "\n")
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// scalars lists all plain values below a node.
func scalars(n *yaml.Node, out []string) []string {
	walk(n, func(n *yaml.Node) { out = append(out, n.Value) })
	return out
}

// walk calls each for the plain values below a node, keys included.
func walk(n *yaml.Node, each func(*yaml.Node)) {
	if n = resolve(n); n == nil {
		return
	}
	if n.Kind == yaml.ScalarNode {
		each(n)
	}
	for _, c := range n.Content {
		walk(c, each)
	}
}

// isWorkflow tells a file that GitHub takes for a workflow from its name.
func isWorkflow(name string) bool {
	ext := path.Ext(name)
	return ext == ".yml" || ext == ".yaml"
}
