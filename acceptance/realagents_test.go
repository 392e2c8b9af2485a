package acceptance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/internal/modeltest"
)

// realAgent is an agent as its vendor publishes it.
type realAgent struct {
	kind string
	wire modeltest.Wire
	// asks are the paths that it asks the model for beside answers, and reads
	// those that it asks the gateway for beside its model.
	asks, reads []string
}

var realAgents = []realAgent{
	{kind: "codex", wire: modeltest.Responses},
	{kind: "claude", wire: modeltest.Messages},
	{kind: "gemini", wire: modeltest.Gemini},
	{kind: "copilot", wire: modeltest.Chat},
	{kind: "goose", wire: modeltest.Chat, asks: []string{"/v1/models"}},
	{kind: "opencode", wire: modeltest.Chat, reads: []string{"/@opencode-ai%2fplugin"}},
}

// TestRealAgents runs the agents themselves, installed from npm, in the embedded
// sandbox against the scripted model: each edits a file and commits, and there
// is a pull request. None sends a datagram, so none asks a name server, and none
// connects to anything but the gateway, whose audit has their calls of the model
// and nothing else that was let through.
//
// The packages are 670 MB to download, once for each version. Opt out with
// KICK_SKIP_REAL_AGENTS=1.
func TestRealAgents(t *testing.T) {
	t.Parallel()
	if os.Getenv("KICK_SKIP_REAL_AGENTS") == "1" {
		t.Skip("KICK_SKIP_REAL_AGENTS is 1")
	}
	if testing.Short() {
		t.Skip("a short run")
	}
	for _, a := range realAgents {
		t.Run(a.kind, func(t *testing.T) {
			dir, program := a.install(t)
			p, h := newProvider(t), newHub(t, githubtest.Options{})
			o, kick := p.kick(t, h, a.kind, "--program-dir", a.watched(t, program), "--program-dir", dir)
			p.wantPullRequest(t, h, o, kick, a.wire, a.asks...)
			a.wantQuiet(t, kick)
		})
	}
}

// install downloads the package, unless it is there, and returns its directory
// and the program in it.
func (a realAgent) install(t *testing.T) (dir, program string) {
	t.Helper()
	k, ok := agents.Find(a.kind)
	if !ok || k.Tested == "" {
		t.Fatalf("kind %s has no tested version", a.kind)
	}
	pack, program, err := k.NPM.For(k.Tested, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(cacheDir(t), "agents")
	dir = filepath.Join(cache, strings.NewReplacer("/", "-", "@", "-").Replace(strings.TrimPrefix(pack, "@")), "package")
	program = filepath.Join(dir, program)
	if _, err := os.Stat(program); err == nil {
		return dir, program
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	cmd := exec.Command("npm", "pack", "--silent", "--pack-destination", tmp, pack)
	cmd.Stderr = os.Stderr
	name, err := cmd.Output()
	if err != nil {
		t.Fatalf("npm pack %s: %v: set KICK_SKIP_REAL_AGENTS=1 where npm packages cannot be had", pack, err)
	}
	run(t, tmp, "tar", "-xzf", strings.TrimSpace(string(name)))
	run(t, tmp, "chmod", "-R", "a+rX", "package")
	if err := os.Remove(filepath.Join(tmp, strings.TrimSpace(string(name)))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("the package %s has no such program: %v", pack, err)
	}
	return dir, program
}

// cacheDir is where downloads are kept, as the Makefile says.
func cacheDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("KICK_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "kick")
}

// counters begins the counters of the sandbox's network in the transcript.
const counters = "counters of the network at the end"

// watched makes a directory with a command of the agent's name that runs the
// program and then writes the counters of the sandbox's network down.
func (a realAgent) watched(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	if k, _ := agents.Find(a.kind); k.NPM.Script {
		program = "node " + program
	}
	script := fmt.Sprintf("#!/bin/sh\n%s \"$@\"\nstatus=$?\necho\necho '%s'\ncat /proc/net/snmp\nexit $status\n", program, counters)
	if err := os.WriteFile(filepath.Join(dir, a.kind), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// wantQuiet wants no datagram, no packet without a route, and an audit with
// calls of the model alone.
func (a realAgent) wantQuiet(t *testing.T, dir string) {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(dir, "transcript.log"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(log), counters)
	if !found {
		t.Fatalf("the transcript has no counters:\n%s", log)
	}
	n := snmp(t, table)
	if n["Udp OutDatagrams"] != 0 || n["Ip OutNoRoutes"] != 0 {
		t.Errorf("%d datagrams, %d packets that found no route", n["Udp OutDatagrams"], n["Ip OutNoRoutes"])
	}
	if n["Tcp ActiveOpens"] == 0 || n["Tcp OutSegs"] == 0 {
		t.Errorf("the counters do not see the connections to the gateway:\n%s", table)
	}
	if n["Tcp AttemptFails"] != 0 {
		t.Errorf("%d connections to something else on loopback", n["Tcp AttemptFails"])
	}
	calls := 0
	for _, r := range audit(t, dir) {
		switch {
		case r.Verdict == egress.Allowed && strings.HasPrefix(r.Path, "/model/"):
			calls++
		case r.Verdict == egress.Denied && r.Form == egress.OriginForm && len(a.reads) > 0 && r.Path == a.reads[0]:
		default:
			t.Errorf("%s %s %s%s: %s by %s", r.Form, r.Method, r.Host, r.Path, r.Verdict, r.Rule)
		}
	}
	if calls == 0 {
		t.Error("the audit has no call of the model")
	}
}

// snmp reads the table of /proc/net/snmp: for each protocol a line of names and
// one of values.
func snmp(t *testing.T, table string) map[string]int {
	t.Helper()
	values := map[string]int{}
	var names []string
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasSuffix(fields[0], ":") {
			continue
		}
		if len(names) != len(fields) || names[0] != fields[0] {
			names = fields
			continue
		}
		for i, f := range fields[1:] {
			var v int
			if _, err := fmt.Sscan(f, &v); err != nil {
				t.Errorf("%s %s: %v", fields[0], names[i+1], err)
			}
			values[strings.TrimSuffix(fields[0], ":")+" "+names[i+1]] = v
		}
		names = nil
	}
	return values
}
