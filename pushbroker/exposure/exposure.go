// Package exposure decides which workflows of a repository would run for a
// branch that kick pushes and for its pull request, before anybody looks, and
// what agent-written code could reach there: secrets, a token that can write,
// an identity (OIDC), a runner of the operator's own.
//
// It reads the workflows as data and evaluates only what is certain; the rest
// counts as "may run". A workflow that cannot be read is in the report too.
package exposure

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Push is the branch and the pull request that kick is about to make.
type Push struct {
	Repo        string // "owner/name" on the forge; empty: not known
	Branch      string
	Base        string // branch
	PullRequest bool   // there will be one, of the same repository
	Draft       bool   // it is certain to be a draft
	Issue       bool   // an issue may be opened in the pull request's place
	// Labels are those that kick may add.
	Labels []string
	// Changed are the paths that differ between base and work. Nil: not known.
	Changed []string
}

// Settings are what the operator says of the repository; no file of it tells.
type Settings struct {
	// ReadToken says that the token of a workflow without permissions can only
	// read. That is a setting of the repository or its organisation.
	ReadToken bool
	// Guarded are the environments in which a job of the branch does not start
	// before a person approves.
	Guarded []string
	// Hosted are labels of runners, beyond GitHub's own, that live for one job
	// and reach nothing of the operator's; "*" as in path.Match.
	Hosted []string
}

// Tree is the files of one commit.
type Tree interface {
	// List returns the names in a directory, sorted; none if there is no such
	// directory.
	List(ctx context.Context, dir string) ([]string, error)
	// Read returns a file's content; ok is false if there is none.
	Read(ctx context.Context, path string) (data []byte, ok bool, err error)
}

// Report is what would run.
type Report struct {
	Branch      string     `json:"branch"`
	Base        string     `json:"base"`
	PullRequest bool       `json:"pullRequest"`
	Workflows   []Workflow `json:"workflows"` // by path
	Services    []Service  `json:"services"`  // beside GitHub Actions
}

// Workflow is one workflow file.
type Workflow struct {
	Path string `json:"path"`
	Name string `json:"name,omitempty"`
	// Unreadable says why it cannot be judged.
	Unreadable string `json:"unreadable,omitempty"`
	// Idle says why it does not run; empty: it does, or may.
	Idle string `json:"idle,omitempty"`
	Jobs []Job  `json:"jobs,omitempty"` // those that run or may run
}

// Job is one job of a workflow.
type Job struct {
	ID   string `json:"id"`
	Line int    `json:"line"`
	// Triggers are the events that start it, each with the reason.
	Triggers []Trigger `json:"triggers"`
	// Code says how agent-written code runs in it; empty: it does not.
	Code string `json:"code,omitempty"`
	// Exposes is what that code could reach; empty without Code.
	Exposes []Reach `json:"exposes,omitempty"`
	// Waits names the guarded environment whose approval it waits for.
	Waits string `json:"waits,omitempty"`
}

// Exposed reports whether agent-written code would reach something.
func (j Job) Exposed() bool { return len(j.Exposes) > 0 }

// Trigger is an event that starts a workflow.
type Trigger struct {
	Event   string `json:"event"`
	Line    int    `json:"line"` // of its entry under "on"
	Why     string `json:"why,omitempty"`
	Certain bool   `json:"certain"` // false: it may
}

// Kind is a kind of Reach.
type Kind string

// What agent-written code could reach.
const (
	Secret      Kind = "secret"
	Token       Kind = "token"       // GITHUB_TOKEN that can write
	OIDC        Kind = "oidc"        // id-token: write, an identity at a cloud
	Runner      Kind = "runner"      // a runner that is not GitHub's
	Environment Kind = "environment" // its secrets, without a known approval
)

// Reach is one thing that agent-written code could reach.
type Reach struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	Line int    `json:"line,omitempty"` // where the workflow gives it
	In   string `json:"in,omitempty"`   // file of that line, if it is another
}

const workflowDir = ".github/workflows"

// Bounds of one repository. A workflow beyond them is reported as unreadable.
const (
	maxWorkflows  = 300
	maxTotalBytes = 8 << 20
)

// Judge reads the workflows of two commits. Runs of the pushed branch take
// tip's; runs of the default branch, such as those of pull_request_target, take
// base's, which stands for it. A nil tip is base: the work changes none.
func Judge(ctx context.Context, base, tip Tree, p Push, s Settings) (Report, error) {
	r := Report{Branch: p.Branch, Base: p.Base, PullRequest: p.PullRequest, Workflows: []Workflow{}}
	repos := []*repository{{tree: base, trusted: true, untrusted: tip == nil}}
	if tip != nil {
		repos = append(repos, &repository{tree: tip, untrusted: true})
	}
	var judges []*judge
	for _, repo := range repos {
		if err := repo.load(ctx); err != nil {
			return r, err
		}
		for _, f := range repo.files {
			if f.w == nil {
				r.Workflows = append(r.Workflows, Workflow{Path: f.path, Unreadable: f.err.Error()})
				continue
			}
			judges = append(judges, &judge{repo: repo, w: f.w, push: p, set: s, jobs: map[string]*Job{}})
		}
	}
	if err := start(ctx, judges, p.occurrences()); err != nil {
		return r, err
	}
	for _, j := range judges {
		w := Workflow{Path: j.w.path, Name: j.w.name}
		w.Jobs, w.Idle = j.result()
		r.Workflows = append(r.Workflows, w)
	}
	r.Workflows = merge(r.Workflows)
	var err error
	r.Services, err = External(ctx, base)
	return r, err
}

// maxChain is how many workflows may follow one another by workflow_run, by
// GitHub's rule.
const maxChain = 3

// start judges what the occurrences start, and what follows that.
func start(ctx context.Context, judges []*judge, next []occurrence) error {
	for level := 0; len(next) > 0 && level <= maxChain; level++ {
		started := next
		next = nil
		for _, j := range judges {
			for _, o := range started {
				if takes := j.repo.trusted && o.trusted() || j.repo.untrusted && !o.trusted(); !takes {
					continue
				}
				runs, err := j.start(ctx, o)
				if err != nil {
					return err
				}
				follow := occurrence{event: "workflow_run", via: j.w.name, viaEvent: o.event}
				if runs && !slices.Contains(next, follow) {
					next = append(next, follow)
				}
			}
		}
	}
	return nil
}

// merge puts together what two trees say of one file.
func merge(list []Workflow) []Workflow {
	slices.SortStableFunc(list, func(a, b Workflow) int { return strings.Compare(a.Path, b.Path) })
	var out []Workflow
	for _, w := range list {
		if n := len(out); n > 0 && out[n-1].Path == w.Path {
			last := &out[n-1]
			last.Jobs = append(last.Jobs, w.Jobs...)
			if last.Idle != "" || w.Idle == "" {
				last.Idle = w.Idle
			}
			if last.Unreadable == "" {
				last.Unreadable = w.Unreadable
			}
			continue
		}
		out = append(out, w)
	}
	return out
}

// repository is the workflows of one commit.
type repository struct {
	tree               Tree
	trusted, untrusted bool // which occurrences take its files
	files              []file
	bytes              int
}

type file struct {
	path string
	w    *workflow // nil: err says why
	err  error
}

func (r *repository) load(ctx context.Context) error {
	names, err := r.tree.List(ctx, workflowDir)
	if err != nil {
		return fmt.Errorf("list %s: %w", workflowDir, err)
	}
	for _, name := range names {
		if !isWorkflow(name) {
			continue
		}
		f := file{path: path.Join(workflowDir, name)}
		if len(r.files) >= maxWorkflows {
			f.err = fmt.Errorf("there are more than %d workflows", maxWorkflows)
		} else if f.w, f.err, err = r.read(ctx, f.path); err != nil {
			return err
		}
		r.files = append(r.files, f)
		if len(r.files) > maxWorkflows {
			break
		}
	}
	return nil
}

// read returns a workflow, or why there is none to judge.
func (r *repository) read(ctx context.Context, path string) (w *workflow, fault, err error) {
	data, ok, err := r.tree.Read(ctx, path)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	if r.bytes += len(data); r.bytes > maxTotalBytes {
		return nil, fmt.Errorf("all workflows together are larger than %d bytes", maxTotalBytes), nil
	}
	if !ok {
		return nil, fmt.Errorf("it is no file, or larger than %d bytes", MaxFile), nil
	}
	w, fault = read(path, data)
	return w, fault, nil
}

// find returns a workflow of the same commit.
func (r *repository) find(path string) *workflow {
	for _, f := range r.files {
		if f.path == path {
			return f.w
		}
	}
	return nil
}
