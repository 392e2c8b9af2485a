package exposure

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// code is what is known of agent-written code in a job.
type code struct {
	present bool   // the workspace holds files of the branch
	runs    string // how they, or the agent's words, are executed; empty: not
}

// code follows a job's steps. dirty tells that artifacts of this run hold what
// the agent wrote.
func (v *visit) code(j *job, dirty bool) code {
	f := &follower{visit: v, job: j, dirty: dirty}
	for _, n := range j.images {
		if n == nil || v.o.trusted() {
			continue
		}
		if _, ok := v.expand(n.Value, j); !ok {
			f.found("the image %s is decided when it runs, and may be made of the branch (line %d)", n.Value, n.Line)
		}
	}
	f.steps(j.steps, 0)
	return f.code
}

// follower follows steps, those of composite actions included.
type follower struct {
	*visit
	job   *job
	dirty bool
	code  code
}

func (f *follower) found(format string, args ...any) {
	if f.code.runs == "" {
		f.code.runs = fmt.Sprintf(format, args...)
	}
}

func (f *follower) steps(steps []step, depth int) {
	for _, s := range steps {
		if s.cond.holds(f.scope) == no {
			continue
		}
		if word := injected(s); word != "" {
			f.found("a step puts ${{ %s }}, which the agent wrote, into a script (line %d)", word, s.line)
		}
		switch {
		case s.run != "":
			f.script(s)
		case s.uses != "":
			f.action(s, depth)
		}
	}
}

// script follows a "run". Whatever it says may use the files that are there.
func (f *follower) script(s step) {
	if f.fetches(s) {
		f.code.present = true
		f.found("`run` fetches the branch (line %d)", s.line)
		return
	}
	if f.code.present {
		f.found("`run` works on the branch's files (line %d)", s.line)
	}
}

// headRefs are how a script or a checkout names the head of a pull request or
// of the run that it follows.
var headRefs = []string{
	"head.sha", "head.ref", "head_ref", "head_sha", "head_branch", "refs/pull/", "pr checkout", "merge_commit_sha", "head_commit.id",
}

func mentionsHead(s string) bool {
	s = strings.ToLower(s)
	return slices.ContainsFunc(headRefs, func(h string) bool { return strings.Contains(s, h) })
}

func mentions(s string, words ...string) bool {
	s = strings.ToLower(s)
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s, w) })
}

// fetches reports whether a script brings files of the branch: where the run is
// of the branch, by any clone; where it is of the default branch, by a command
// that names the head.
func (f *follower) fetches(s step) bool {
	if f.dirty && mentions(s.run, "gh run download", "/artifacts/") {
		return true
	}
	if f.o.trusted() {
		all := s.run + "\n" + s.env
		return mentions(s.run, "git ", "gh ", "curl ", "wget ") && mentionsHead(all) || mentions(s.run, "git fetch", "git pull") && mentions(all, "pull/")
	}
	return mentions(s.run, "git clone", "git fetch", "git pull", "git checkout", "gh repo clone", "pr checkout", "/archive/", "tarball", "zipball")
}

// idle are actions that execute nothing of the workspace. Setup actions do if
// they manage a cache: they ask the package manager where it is, and that may be
// a script of the repository.
var idle = []string{
	"actions/add-to-project", "actions/cache", "actions/cache/restore", "actions/cache/save", "actions/create-github-app-token",
	"actions/dependency-review-action", "actions/first-interaction", "actions/labeler", "actions/setup-dotnet", "actions/setup-go", "actions/setup-java",
	"actions/setup-node", "actions/setup-python", "actions/stale", "actions/upload-artifact", "amannn/action-semantic-pull-request",
	"aws-actions/configure-aws-credentials", "azure/login", "docker/login-action", "docker/metadata-action", "docker/setup-buildx-action",
	"docker/setup-qemu-action", "dorny/paths-filter", "github/codeql-action/upload-sarif", "google-github-actions/auth", "hashicorp/setup-terraform",
	"step-security/harden-runner", "tj-actions/changed-files",
}

func (f *follower) action(s step, depth int) {
	name, _, _ := strings.Cut(s.uses, "@")
	name = strings.ToLower(name)
	switch {
	case strings.HasPrefix(name, "./"):
		f.local(s, depth)
	case name == "actions/checkout":
		f.code.present = f.code.present || f.checksOut(s)
	case strings.Contains(path.Base(name), "download-") && strings.Contains(name, "artifact"):
		f.code.present = f.code.present || f.dirty
	case strings.Contains(name, "checkout") || strings.HasPrefix(name, "google/oss-fuzz/"): // CIFuzz
		f.code.present = true
		f.found("%s may check the branch out and run it (line %d)", s.uses, s.line)
	case name == "actions/github-script":
		f.scriptAction(s)
	case slices.Contains(idle, name) && (s.with["cache"] == "" || s.with["cache"] == "false"):
	case f.code.present:
		f.found("%s works on the branch's files (line %d)", s.uses, s.line)
	}
}

// scriptAction follows JavaScript that is written in the workflow.
func (f *follower) scriptAction(s step) {
	script := s.with["script"]
	if f.dirty && mentions(script, "downloadartifact") {
		f.code.present = true
	}
	if f.code.present && mentions(script, "require(", "import(", "import ", "exec", "spawn", "eval") {
		f.found("github-script works on the branch's files (line %d)", s.line)
	}
}

// checksOut reports whether a checkout brings the branch's files.
func (f *follower) checksOut(s step) bool {
	ref := s.with["ref"]
	if repo := s.with["repository"]; repo != "" {
		switch {
		case strings.Contains(repo, "${{"):
			// The same repository, or one that is not known.
		case f.push.Repo == "" || !strings.EqualFold(repo, f.push.Repo):
			return mentionsHead(ref)
		default: // by its name: its default branch, if no other is asked for
			if ref == "" {
				return false
			}
		}
	}
	if ref == "" {
		return !f.o.trusted()
	}
	if values, ok := f.expand(ref, f.job); ok {
		return slices.ContainsFunc(values, func(r string) bool {
			return r == "" && !f.o.trusted() || r != "" && f.isHead(r)
		})
	}
	found, ok := segments(ref)
	if !ok || len(found) != 1 {
		return true
	}
	e, err := parseExpr(found[0])
	return err != nil || !f.isBase(e)
}

// isHead compares a literal ref with the branch; a commit's id is of what was
// there when the workflow was written.
func (f *follower) isHead(ref string) bool {
	return strings.TrimPrefix(ref, "refs/heads/") == f.push.Branch || strings.HasPrefix(ref, "refs/pull/")
}

// isBase reports whether an expression names the base or the default branch for
// certain.
func (f *follower) isBase(e *expr) bool {
	switch strings.Join(e.path, ".") {
	case "github.event.pull_request.base.sha", "github.event.pull_request.base.ref", "github.base_ref", "github.event.repository.default_branch":
		// Without a pull request those are empty, which stands for the branch.
		return f.o.onPullRequest() || strings.HasSuffix(e.path[len(e.path)-1], "branch")
	case "github.sha", "github.ref", "github.ref_name":
		return f.o.trusted()
	}
	return false
}

// local follows an action of this repository.
func (f *follower) local(s step, depth int) {
	if f.code.present {
		f.found("the action %s is a file of the branch (line %d)", s.uses, s.line)
		return
	}
	if !f.o.trusted() { // without a checkout it is not there, and the step fails
		return
	}
	f.calls++
	if depth >= maxCallDepth || f.calls > maxCalls {
		f.found("actions call one another more often than is followed (line %d)", s.line)
		return
	}
	for _, name := range []string{"action.yml", "action.yaml"} {
		data, ok, err := f.repo.tree.Read(f.ctx, path.Join(path.Clean(strings.TrimPrefix(s.uses, "./")), name))
		if err == nil && !ok {
			continue
		}
		var root *yaml.Node
		if err == nil {
			root, err = parseYAML(data)
		}
		if err != nil {
			f.found("the action %s cannot be read (line %d)", s.uses, s.line)
			return
		}
		steps := child(child(root, "runs"), "steps")
		if steps == nil { // JavaScript or an image: of the base, like the workflow
			return
		}
		list, err := readSteps(steps)
		if err != nil {
			f.found("the action %s cannot be read (line %d)", s.uses, s.line)
			return
		}
		f.steps(list, depth+1)
		return
	}
}

// agentWords are texts of an event that the agent wrote: kick quotes them in the
// pull request, and commits carry them. The branch's name is kick's own.
var agentWords = []string{
	"github", "github.event", "github.event.pull_request", "github.event.pull_request.title", "github.event.pull_request.body",
	"github.event.head_commit", "github.event.head_commit.message", "github.event.commits", "github.event.workflow_run.display_title",
	"github.event.workflow_run.head_commit.message", "github.event.workflow_run.head_commit", "github.event.workflow_run",
	"github.event.issue", "github.event.issue.title", "github.event.issue.body",
}

// injected returns the agent's words that a step puts into a script, where they
// are executed.
func injected(s step) string {
	script := s.run
	if strings.HasPrefix(strings.ToLower(s.uses), "actions/github-script@") {
		script = s.with["script"]
	}
	found, _ := segments(script)
	for _, seg := range found {
		e, err := parseExpr(seg)
		if err != nil {
			continue
		}
		word := ""
		e.contexts(func(path []string) {
			name := strings.Join(path, ".")
			if slices.Contains(agentWords, name) || strings.HasPrefix(name, "github.event.commits.") {
				word = name
			}
		})
		if word != "" && !e.harmless() {
			return word
		}
	}
	return ""
}

// harmless reports whether the expression comes to true, false or a number
// whatever it reads.
func (e *expr) harmless() bool {
	switch e.op {
	case "!", "==", "!=", "<", "<=", ">", ">=":
		return true
	case "&&", "||":
		return e.args[0].harmless() && e.args[1].harmless()
	case "call":
		return slices.Contains([]string{"contains", "startswith", "endswith", "always", "success", "failure", "cancelled"}, e.name)
	case "lit":
		return true
	}
	return false
}
