package acceptance

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/internal/modeltest"
	"github.com/kickhq/kick/manager"
)

// addHello is what the scripted model asks an agent to do.
const addHello = `printf 'hello\n' >hello.txt && git add hello.txt && git commit -qm 'Add a greeting'`

// provider is a scripted model with the policy that leads to it and the key
// that only kick has.
type provider struct {
	*modeltest.Server
	key, policy, state string
	onResult           func()
	onStream           func(r *http.Request)
}

// keyVariable is the variable of kick's own that holds the key.
const keyVariable = "TEST_MODEL_KEY"

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{key: rand.Text(), state: filepath.Join(t.TempDir(), "s")}
	p.Server = modeltest.Start(t, modeltest.Options{Key: p.key, Command: addHello, OnResult: func() {
		if p.onResult != nil {
			p.onResult()
		}
	}, OnStream: func(r *http.Request) {
		if p.onStream != nil {
			p.onStream(r)
		}
	}})
	var b strings.Builder
	b.WriteString("version: 1\negress:\n  models:\n")
	for name, path := range map[string]string{"openai": "/v1", "anthropic": "", "gemini": ""} {
		fmt.Fprintf(&b, "    - {provider: %s, endpoint: %q, addresses: [127.0.0.1/32], key_env: %s, names: [test-model]}\n", name, p.URL+path, keyVariable)
	}
	p.policy = filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(p.policy, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// kick runs a known agent on the hub with this model, and returns the directory
// of the kick too.
func (p *provider) kick(t *testing.T, h *hub, kind string, args ...string) (manager.Outcome, string) {
	t.Helper()
	o, _ := runKickWith(t, []string{keyVariable + "=" + p.key}, p.state, p.args(h, kind, args...)...)
	return o, filepath.Join(p.state, "kicks", o.ID)
}

// args are those of kick run for a known agent with this model.
func (p *provider) args(h *hub, kind string, args ...string) []string {
	return append(append(args, h.args...), "--policy", p.policy, "--agent-kind", kind, "-p", "Add a greeting")
}

// wantPullRequest holds a kick to the one that the scripted model leads to. The
// agent may ask the model for more than answers by paths that are named.
func (p *provider) wantPullRequest(t *testing.T, h *hub, o manager.Outcome, dir string, wire modeltest.Wire, more ...string) {
	t.Helper()
	if o.Outcome != manager.Published || o.PullRequest == "" || o.Commits != 1 {
		log, _ := os.ReadFile(filepath.Join(dir, "transcript.log"))
		audit, _ := os.ReadFile(filepath.Join(dir, "egress.jsonl"))
		t.Fatalf("%s: %s\n%s%s", o.Outcome, o.Error, log, audit)
	}
	if got := run(t, h.repo.Dir, "git", "show", "refs/heads/"+o.Branch+":hello.txt"); got != "hello\n" {
		t.Errorf("hello.txt is %q", got)
	}
	results := 0
	for _, c := range p.Calls() {
		if c.Wire != wire && !slices.Contains(more, c.Path) || c.Key() != p.key {
			t.Errorf("the model got %s %s in format %q, with a key that is right: %v", c.Method, c.Path, c.Wire, c.Key() == p.key)
		}
		for name, values := range c.Header {
			if strings.Contains(strings.Join(values, " "), credential.DummyKey) {
				t.Errorf("the model got the agent's dummy key in %s", name)
			}
		}
		if c.Result {
			results++
		}
	}
	if results != 1 {
		t.Errorf("%d of %d calls bring a command's result, want 1", results, len(p.Calls()))
	}
	if out, _ := exec.Command("grep", "-rlF", p.key, dir).CombinedOutput(); len(out) > 0 {
		t.Errorf("the key is in the state directory:\n%s", out)
	}
}

// audit reads what the gateway wrote down.
func audit(t *testing.T, dir string) (records []egress.Record) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "egress.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var r egress.Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		records = append(records, r)
	}
	return records
}

// scripted builds the scripted agent, under the names of the real ones.
func scripted(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		run(t, "..", "go", "build", "-o", filepath.Join(dir, name), "./internal/modeltest/agent")
	}
	return dir
}

// TestKinds has a scripted agent complete a kick through each wire format. The
// model saw the key; nothing in the sandbox has it, neither in the memory nor
// the environment of any process, nor in any file.
func TestKinds(t *testing.T) {
	t.Parallel()
	wires := map[string]modeltest.Wire{"codex": modeltest.Responses, "claude": modeltest.Messages, "copilot": modeltest.Chat, "gemini": modeltest.Gemini}
	bin := scripted(t, "codex", "claude", "copilot", "gemini")
	for kind, wire := range wires {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p, h := newProvider(t), newHub(t, githubtest.Options{})
			searched := 0
			p.onResult = func() { searched = searchSandbox(t, filepath.Join(bin, kind), p.key) }
			o, dir := p.kick(t, h, kind, "--program-dir", bin)
			p.wantPullRequest(t, h, o, dir, wire)
			if searched == 0 {
				t.Error("no process of the sandbox was searched for the key")
			}
			for _, r := range audit(t, dir) {
				if r.Verdict != egress.Allowed {
					t.Errorf("denied: %+v", r)
				}
			}
			if e := o.Egress; e == nil || e.Allowed != 2 || e.Denied != 0 || e.Tokens != 30 || e.Bytes == 0 {
				t.Errorf("egress %+v", e)
			}
		})
	}
}

// searchSandbox looks for the key in the sandbox in which the program runs, and
// returns how many of its processes it saw. The dummy key must be found where
// the real one is not: else the search proves nothing.
func searchSandbox(t *testing.T, program, key string) (processes int) {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Error(err)
	}
	var space, root string
	for _, p := range procs {
		if exe, err := os.Readlink(p + "/exe"); err == nil && exe == program {
			space, _ = os.Readlink(p + "/ns/pid")
			root = p + "/root"
		}
	}
	if space == "" {
		t.Errorf("no process runs %s", program)
		return 0
	}
	dummy := map[string]bool{}
	look := func(where string, data []byte) {
		if bytes.Contains(data, []byte(key)) {
			t.Errorf("the key is in %s", where)
		}
		if bytes.Contains(data, []byte(credential.DummyKey)) {
			dummy[where] = true
		}
	}
	for _, p := range procs {
		if s, err := os.Readlink(p + "/ns/pid"); err != nil || s != space {
			continue
		}
		processes++
		for _, name := range []string{"/environ", "/cmdline"} {
			if data, err := os.ReadFile(p + name); err == nil {
				look(p+name, data)
			}
		}
		n := readMemory(t, p, look)
		if exe, _ := os.Readlink(p + "/exe"); exe == program && (!dummy[p+"/environ"] || !dummy[p+"/mem"]) {
			t.Errorf("of %d bytes of the agent's memory and of its environment, some lack the dummy key: found in %v", n, dummy)
		}
	}
	for _, dir := range []string{"/workspace", "/home", "/tmp", "/run", "/etc", "/dev/shm", "/var"} {
		err := filepath.WalkDir(root+dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				if data, err := os.ReadFile(path); err == nil {
					look(path, data)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	return processes
}

// readMemory shows all readable memory of a process, and returns its size.
func readMemory(t *testing.T, proc string, show func(where string, data []byte)) (size int) {
	t.Helper()
	maps, err := os.ReadFile(proc + "/maps")
	if err != nil {
		t.Logf("%v", err) // the shim's, for an ordinary user
		return 0
	}
	mem, err := os.Open(proc + "/mem")
	if err != nil {
		t.Logf("%v", err)
		return 0
	}
	defer func() { _ = mem.Close() }() // only read
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[v") { // the kernel's own: vdso, vvar, vsyscall
			continue
		}
		var from, to int64
		var rights string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights); err != nil {
			t.Errorf("%q: %v", line, err)
			continue
		}
		const largest = 256 << 20 // reserved and empty where there is more
		if rights[0] != 'r' || to-from > largest {
			continue
		}
		data := make([]byte, to-from)
		n, _ := mem.ReadAt(data, from)
		show(proc+"/mem", data[:n])
		size += n
	}
	return size
}
