package acceptance

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/manager"
)

// What the tests of several runtimes have in common.

// ends are agents, one for each way in which a kick can end.
var ends = []agentCase{
	{name: "a commit", want: manager.Published, script: "echo hi >f; git add f; git commit -qm f"},
	{name: "two commits and a file left", want: manager.Published, script: "for i in 1 2; do echo $i >f; git add f; git commit -qm $i; done; echo left >g"},
	{name: "no network", want: manager.Published, flags: []string{"--network", "none"}, script: "echo hi >f; git add f; git commit -qm f"},
	{name: "nothing", want: manager.Nothing, empty: true, script: "true"},
	{name: "only uncommitted work", want: manager.Nothing, script: "echo left >g"},
	{name: "another branch and a stash", want: manager.Nothing, script: "git checkout -qb other; echo o >o; git add o; git commit -qm o; git checkout -q -; echo s >README.md; git stash -q"},
	{name: "a failure", want: manager.AgentFailed, script: "echo hi >f; git add f; git commit -qm f; exit 3"},
	{name: "a signal", want: manager.AgentFailed, empty: true, script: "kill -KILL $$"},
	{name: "no such command", want: manager.RuntimeError, empty: true},
	{name: "a time limit", want: manager.TimedOut, flags: []string{"--timeout", "3s"}, script: "echo hi >f; git add f; git commit -qm f; sleep 60"},
	{name: "too much memory", want: manager.AgentFailed, empty: true, flags: []string{"--memory", "64MiB"}, script: "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}"},
	{name: "a key in an intermediate commit", want: manager.Refused, script: "printf 'id = AKIA%s\\n' V6NQ2RSTW4XYZ7LM >c; git add c; git commit -qm one; echo >c; git commit -qam two"},
	{name: "a workflow", want: manager.Refused, script: "mkdir -p .github/workflows; echo 'on: push' >.github/workflows/x.yml; git add -A; git commit -qm ci"},
}

// everyAgent are ends and some of agentCases, or with KICK_SOAK=1 all of them.
func everyAgent() []agentCase {
	cases := slices.Clone(ends)
	for _, c := range agentCases {
		if c.few || os.Getenv("KICK_SOAK") == "1" {
			cases = append(cases, c)
		}
	}
	return cases
}

// asEmbedded compares a runtime with the embedded one.
type asEmbedded struct {
	runtime string
	flags   []string // of kick run, by which it is chosen
	dir     string   // where the remotes are made
	seed    string   // what they are copies of
	command func(args ...string) *exec.Cmd
	serial  bool   // one agent after the other
	kills   string // the agent that is killed for what the embedded sandbox only refuses
}

// run runs each agent in the embedded sandbox and on the runtime. Each kick ends as
// it must, and both say the same of it.
func (a asEmbedded) run(t *testing.T, cases []agentCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if !a.serial {
				t.Parallel()
			}
			e := a.kick(t, c, "embedded", nil)
			o := a.kick(t, c, a.runtime, a.flags)
			for _, field := range []string{"outcome", "exitCode", "agent", "base", "baseCommit", "commits", "files", "findings", "reason", "agentExit", "unpublished", "missing", "egress"} {
				if field == "agentExit" && c.name == a.kills {
					continue
				}
				if !reflect.DeepEqual(e[field], o[field]) {
					t.Errorf("%s: embedded %v, %s %v", field, e[field], a.runtime, o[field])
				}
			}
			delete(o, "image")
			if names, want := slices.Sorted(maps.Keys(o)), slices.Sorted(maps.Keys(e)); !slices.Equal(names, want) {
				t.Errorf("%s's object has %q, embedded's %q", a.runtime, names, want)
			}
			if isolation := o["isolation"].(map[string]any); isolation["runtime"] != a.runtime || c.want != manager.RuntimeError && len(isolation["properties"].([]any)) == 0 {
				t.Errorf("isolation %v", isolation)
			}
		})
	}
}

// kick runs an agent against a remote of its own, and returns what kick says in
// JSON, less what two kicks can never have the same.
func (a asEmbedded) kick(t *testing.T, c agentCase, runtime string, flags []string) map[string]any {
	t.Helper()
	bare := filepath.Join(a.dir, strings.ReplaceAll(c.name, " ", "-")+"-"+runtime+".git")
	run(t, "", "cp", "-rp", a.seed, bare)
	before := run(t, bare, "git", "for-each-ref")
	command := []string{"sh", "-c", c.marked(t)}
	if c.script == "" {
		command = []string{"no-such-command"}
	}
	o, output := objectOf(t, a.command(slices.Concat([]string{"run", "-o", "json", "--repo", bare, "--publish", "branch", "--timeout", "60s"}, c.flags, flags, []string{"--"}, command)...))
	c.check(t, bare, before, outcomeOf(t, o), output)
	for _, f := range o["findings"].([]any) {
		f := f.(map[string]any)
		delete(f, "commit")
		f["message"] = commitID.ReplaceAllString(f["message"].(string), "COMMIT")
	}
	return o
}

// commitID is a commit's id, which has the time in it.
var commitID = regexp.MustCompile(`\b[0-9a-f]{40}\b`)

// objectOf runs a kick and returns what it says in JSON, which must have its exit
// code, and all of its output.
func objectOf(t *testing.T, cmd *exec.Cmd) (o map[string]any, output string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the object has the exit code
	output = stderr.String() + stdout.String()
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if got := float64(cmd.ProcessState.ExitCode()); got != o["exitCode"] {
		t.Errorf("exit code %v, the object says %v", got, o["exitCode"])
	}
	return o, output
}

// outcomeOf is the same in kick's own type.
func outcomeOf(t *testing.T, object map[string]any) (o manager.Outcome) {
	t.Helper()
	b, err := json.Marshal(object)
	if err := errors.Join(err, json.Unmarshal(b, &o)); err != nil {
		t.Fatal(err)
	}
	return o
}

// pageBlocks returns the sh blocks of a page of docs/, of which there are so many
// at least.
func pageBlocks(t *testing.T, page string, least int) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, b := range strings.Split(string(text), "```sh\n")[1:] {
		code, _, found := strings.Cut(b, "```")
		if !found {
			t.Fatalf("a block without an end: %.40q", b)
		}
		blocks = append(blocks, code)
	}
	if len(blocks) < least {
		t.Fatalf("the page has %d blocks", len(blocks))
	}
	return blocks
}
