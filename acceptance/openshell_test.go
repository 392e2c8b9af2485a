package acceptance

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/openshelltest"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/sandbox"
)

// openShellUser is a user of kick whose openshell command knows one gateway.
type openShellUser struct {
	dir string
	g   *openshelltest.Gateway
}

func newOpenShellUser(t *testing.T, o openshelltest.Options) openShellUser {
	t.Helper()
	u := openShellUser{t.TempDir(), openshelltest.Start(t, o)}
	u.choose(t, "local", u.g.Connection.Endpoint)
	return u
}

// choose makes a gateway the active one of the openshell command.
func (u openShellUser) choose(t *testing.T, name, endpoint string) {
	t.Helper()
	at := filepath.Join(u.dir, ".config/openshell")
	own := filepath.Join(at, "gateways", name)
	if err := os.MkdirAll(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		filepath.Join(at, "active_gateway"): name + "\n",
		filepath.Join(own, "metadata.json"): fmt.Sprintf(`{"name":%q,"gateway_endpoint":%q,"auth_mode":"plaintext"}`, name, endpoint),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// command is kick, as the user.
func (u openShellUser) command(args ...string) *exec.Cmd {
	cmd := exec.Command(kick, append(args[:1:1], append([]string{"--state-dir", filepath.Join(u.dir, "state")}, args[1:]...)...)...)
	cmd.Dir = u.dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + u.dir}
	return cmd
}

// object is what a kick says in JSON.
func (u openShellUser) object(t *testing.T, bare string, args ...string) map[string]any {
	t.Helper()
	cmd := u.command(append([]string{"run", "-o", "json", "--repo", bare, "--publish", "branch"}, args...)...)
	o, _ := objectOf(t, cmd)
	return o
}

var onOpenShell = []string{"--runtime", "openshell", "--image", openshelltest.Image, "--openshell-telemetry-off"}

// TestOpenShell runs the same kicks in the embedded sandbox and in sandboxes of the
// conformance gateway, and compares what came of them.
func TestOpenShell(t *testing.T) {
	t.Parallel()
	u := newOpenShellUser(t, openshelltest.Options{})
	t.Run("kicks", func(t *testing.T) {
		asEmbedded{runtime: "openshell", flags: onOpenShell, dir: t.TempDir(), seed: seedBare(t), command: u.command, kills: "fork bomb"}.run(t, everyAgent())
	})
	if left := u.g.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestOpenShellAudit: a refused write is in the kick's audit, with the sandbox and
// the program.
func TestOpenShellAudit(t *testing.T) {
	t.Parallel()
	// The gateway looks a host up before it answers; the write never gets there.
	network := egress.Config{Resolve: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("140.82.112.5")}, nil
	}}
	u := newOpenShellUser(t, openshelltest.Options{Network: network})
	file := filepath.Join(u.dir, "policy.yaml")
	if err := os.WriteFile(file, []byte("version: 1\negress:\n  hosts:\n    - {host: example.com, terminate: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bare := seedBare(t)
	o := u.object(t, bare, slices.Concat([]string{"--policy", file}, onOpenShell, []string{"--", "sh", "-c", "curl -sS -o /dev/null -X POST https://example.com/repos; true"})...)
	id, _ := o["id"].(string)
	b, err := os.ReadFile(filepath.Join(u.dir, "state/kicks", id, "openshell.jsonl"))
	if err != nil {
		t.Fatalf("%v: %v", err, o)
	}
	found := false
	for line := range strings.Lines(string(b)) {
		var l struct {
			Sandbox string            `json:"sandbox"`
			Fields  map[string]string `json:"fields"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		found = found || l.Sandbox == id && l.Fields["binary"] == "/usr/bin/curl" && l.Fields["http_method"] == "POST" && l.Fields["action"] == "denied"
	}
	if notes := fmt.Sprint(o["notes"]); !found || !strings.Contains(notes, "the gateway denied 1 requests") {
		t.Errorf("the refusal is not attributed:\n%s\n%s", b, notes)
	}
}

// TestOpenShellModels: without a route for models in the gateway, the agent's calls go by
// the shim through the gateway to kick's own, which has the key. Nobody else in the
// sandbox gets anything there, and what is no model stays the gateway's.
func TestOpenShellModels(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	network := egress.Config{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("140.82.112.5")}, nil
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			var d net.Dialer
			return d.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		},
	}
	u := newOpenShellUser(t, openshelltest.Options{Network: network})
	config := func(from string) string {
		file := filepath.Join(t.TempDir(), "kick.yaml")
		text := fmt.Sprintf(`agent_sandbox:
  enabled: true
  runtime: openshell
  image: %q
  openshell: {telemetry_off: true, egress_gateway: "gateway.kick.example:20000-20999", egress_from: %s}
agents:
  caller: {sandbox: {enabled: true}}
`, openshelltest.Image, from)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const script = `url=http://127.0.0.1:8378/model/openai/v1/responses
curl -sS --max-time 30 -o /dev/null -w 'model %{http_code}\n' -H 'Content-Type: application/json' -d '{"model":"test-model","input":"x","stream":true}' $url
curl -sS --max-time 30 -o /dev/null -w 'host %{http_code}\n' -x http://127.0.0.1:8378 http://example.com/
for p in $(seq 20000 20003); do curl -sSk --max-time 20 -o /dev/null -w 'direct %{http_connect} %{http_code}\n' -x $HTTPS_PROXY https://gateway.kick.example:$p/ 2>/dev/null; done
env | grep -i proxy | sort
echo authorities $(env | grep -e CA_BUNDLE -e SSL_ -e CAINFO -e EXTRA_CA)`
	ask := func(from string) (o map[string]any, said string) {
		cmd := u.command("run", "-o", "json", "--config", config(from), "--agent", "caller", "--policy", p.policy, "--repo", seedBare(t), "--publish", "none", "--", "sh", "-c", script)
		cmd.Env = append(cmd.Env, keyVariable+"="+p.key)
		return objectOf(t, cmd)
	}
	o, said := ask("127.0.0.0/8")
	id, _ := o["id"].(string)
	log, _ := os.ReadFile(filepath.Join(u.dir, "state/kicks", id, "transcript.log"))
	for _, want := range []string{"model 200\n", "host 403\n", "HTTPS_PROXY=http://127.0.0.1:3128\n", "NO_PROXY=127.0.0.1,", "authorities\n"} {
		if !strings.Contains(string(log), want) {
			t.Fatalf("no %q in\n%s\n%s", want, log, said)
		}
	}
	if answers := regexp.MustCompile(`direct \d+ [1-9]`).FindAll(log, -1); len(answers) > 0 || !strings.Contains(string(log), "direct 403 000") {
		t.Errorf("others than the shim are answered by the gateway:\n%s", log)
	}
	calls := p.Calls()
	if len(calls) != 1 || calls[0].Key() != p.key {
		t.Errorf("the model got %d calls", len(calls))
	}
	allowed := 0
	for _, r := range audit(t, filepath.Join(u.dir, "state/kicks", id)) {
		if r.Verdict == egress.Allowed && strings.HasPrefix(r.Path, "/model/openai/") {
			allowed++
		}
	}
	if counts, _ := o["egress"].(map[string]any); allowed == 0 || counts["allowed"] == nil {
		t.Errorf("the audit has %d calls of the model, the result %v", allowed, o["egress"])
	}

	// Where connections come from another network than was said, no agent starts.
	o, said = ask("192.0.2.0/24")
	if !strings.Contains(said, "egress gateway") || !strings.Contains(fmt.Sprint(o["notes"]), "egress_from") || o["agentExit"] != nil {
		t.Errorf("%v\n%s", o, said)
	}
	if left := u.g.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestOpenShellAway: what is wrong with the gateway is said once, also where the look
// for what dead kicks have left finds the same.
func TestOpenShellAway(t *testing.T) {
	t.Parallel()
	u := openShellUser{dir: t.TempDir()}
	u.choose(t, "local", "http://127.0.0.1:1")
	out, _ := u.command(slices.Concat([]string{"run", "--publish", "none", "--repo", seedBare(t)}, onOpenShell, []string{"--", "true"})...).CombinedOutput()
	if n := strings.Count(string(out), "reach the OpenShell gateway"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, out)
	}
}

// TestOpenShellCrash kills kick in mid-run. `kick gc` takes the work out of the
// sandbox, whichever gateway is the active one by then, and deletes it; of one that is
// gone it says so, and so does `kick salvage`.
func TestOpenShellCrash(t *testing.T) {
	t.Parallel()
	const isGone, another = "the sandbox is gone", "another gateway is active"
	for _, name := range []string{"the sandbox is there", isGone, another} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newOpenShellUser(t, openshelltest.Options{})
			killInMidRun(t, u)
			gone := name == isGone
			switch name {
			case isGone:
				u.g.Lose()
			case another:
				u.choose(t, "other", openshelltest.Start(t, openshelltest.Options{}).Connection.Endpoint)
			}
			out, err := u.command("gc", "-o", "json").Output()
			var report manager.GCReport
			if err != nil && !gone || json.Unmarshal(out, &report) != nil || len(report.Recovered) != 1 || len(report.Problems) > 0 != gone {
				t.Fatalf("%v\n%s", err, out)
			}
			o := report.Recovered[0]
			if o.Outcome != manager.Interrupted || !gone && (o.Commits != 1 || len(o.Missing) > 0) || gone && !strings.Contains(strings.Join(o.Missing, " "), "its sandbox is gone") {
				t.Errorf("%+v", o)
			}
			if left := u.g.Sandboxes(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			out, err = u.command("salvage", "last").CombinedOutput()
			if err != nil || strings.Contains(string(out), "could not be taken out") != gone || strings.Contains(string(out), "left no work") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// killInMidRun kills a kick whose agent has made a commit.
func killInMidRun(t *testing.T, u openShellUser) {
	t.Helper()
	cmd := u.command(slices.Concat([]string{"run", "--publish", "none", "--repo", seedBare(t)}, onOpenShell, []string{"--", "sh", "-c", "echo x >x; git add x; git commit -qm x; echo ready; exec sleep 600"})...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := waitForLine(said, "ready")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if len(u.g.Sandboxes()) != 1 {
		t.Fatalf("the sandboxes are %q after\n%s", u.g.Sandboxes(), log)
	}
}

// TestOpenShellDoctor: every property is proved on a live sandbox, and what the
// operator has not said is missing.
func TestOpenShellDoctor(t *testing.T) {
	t.Parallel()
	u := newOpenShellUser(t, openshelltest.Options{})
	out, err := u.command("doctor", "--runtime", "openshell", "--image", openshelltest.Image, "--openshell-telemetry-off").CombinedOutput()
	if strings.Contains(string(out), "not ready") && !strings.Contains(string(out), "git-") || !strings.Contains(string(out), "telemetry") || !strings.Contains(string(out), "openshell gateway") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = u.command("doctor", "--runtime", "openshell", "--image", openshelltest.Image).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "openshell.telemetry_off") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestOpenShellDoctorForAgent: the gateway, the token and the image are those of
// kick.yaml, where the openshell command knows none.
func TestOpenShellDoctorForAgent(t *testing.T) {
	t.Parallel()
	g := openshelltest.Start(t, openshelltest.Options{Tokens: map[string]openshelltest.User{"secret": {}}})
	dir := t.TempDir()
	doctor := func(endpoint string) string {
		file := filepath.Join(dir, "kick.yaml")
		text := fmt.Sprintf("agent_sandbox:\n  runtime: openshell\n  image: %q\n  openshell: {endpoint: %q, token: %q, telemetry_off: true}\nagents:\n  scanner: {sandbox: {enabled: true}}\n",
			openshelltest.Image, endpoint, g.Connection.Token)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(kick, "doctor", "--agent", "scanner", "--state-dir", filepath.Join(dir, "state"))
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
		out, _ := cmd.CombinedOutput() // the host's git may be one with holes
		return string(out)
	}
	if out := doctor(g.Connection.Endpoint); !strings.Contains(out, g.Connection.Endpoint) || !strings.Contains(out, "read back from the gateway and compared") {
		t.Errorf("nothing was proved on the gateway of kick.yaml:\n%s", out)
	}
	if out := doctor("https://127.0.0.1:1"); !strings.Contains(out, "reach the OpenShell gateway at https://127.0.0.1:1") {
		t.Errorf("another gateway was asked:\n%s", out)
	}
	if left := g.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// waitForLine reads up to a line that ends so, and returns what was read.
func waitForLine(r io.Reader, end string) string {
	var log strings.Builder
	lines := bufio.NewScanner(io.TeeReader(r, &log))
	for lines.Scan() && !strings.HasSuffix(lines.Text(), end) {
	}
	return log.String()
}

// TestOpenShellLarge: a workspace that is larger than the memory that kick may take
// goes to the sandbox, and what the agent leaves, also larger than that, comes back.
// With KICK_SOAK=1 it has 1 GiB.
func TestOpenShellLarge(t *testing.T) {
	t.Parallel()
	const most = 128 << 10 // KiB of kick's own memory
	size := 192
	if os.Getenv("KICK_SOAK") == "1" {
		size = 1 << 10
	}
	left := min(size, 400) << 20 // an artifact has 512 MiB at most
	u := newOpenShellUser(t, openshelltest.Options{})
	tree := filepath.Join(u.dir, "tree")
	run(t, "", "git", "clone", "-q", seedBare(t), tree)
	f, err := os.Create(filepath.Join(tree, "large"))
	if err == nil {
		_, err = io.CopyN(f, rand.Reader, int64(size)<<20)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	run(t, tree, "git", "-c", "core.compression=0", "add", "large")
	run(t, tree, "git", "-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "large")
	cmd := u.command(slices.Concat([]string{"run", "-o", "json", "--publish", "none", "--repo", tree, "--timeout", "5m"}, onOpenShell,
		[]string{"--", "sh", "-c", fmt.Sprintf("wc -c <large >size; git add size; git commit -qm size; head -c %d large >left", left)})...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	peak := watchPeak(cmd.Process.Pid)
	err = cmd.Wait()
	used := <-peak
	if err != nil || !strings.Contains(stdout.String(), `"commits": 1`) || strings.Contains(stdout.String(), `"missing"`) {
		t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	archives, err := filepath.Glob(filepath.Join(u.dir, "state/kicks/*/*", string(sandbox.DirtyArchive)))
	if err != nil || len(archives) != 1 {
		t.Fatalf("archives %q, %v", archives, err)
	}
	if fi, err := os.Stat(archives[0]); err != nil || fi.Size() < int64(left) {
		t.Errorf("%v: %d bytes came back of %d", err, fi.Size(), left)
	}
	t.Logf("%d MiB went, %d MiB came back, and kick took %d KiB", size, left>>20, used)
	if used == 0 || used > most {
		t.Errorf("kick took %d KiB, more than %d", used, most)
	}
}

// watchPeak yields the most memory that a process had resident, in KiB, when it has
// ended.
func watchPeak(pid int) <-chan int {
	peak := make(chan int, 1)
	go func() {
		last := 0
		for {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, rest, ok := strings.Cut(string(b), "VmHWM:")
			if err != nil || !ok {
				peak <- last
				return
			}
			_, _ = fmt.Sscan(rest, &last) // the kernel's own form
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return peak
}

// TestOpenShellPage: the kick.yaml of docs/openshell.md is one that kick takes, and so is
// what it has for models, in its place.
func TestOpenShellPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/openshell.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```yaml\n")
	if len(blocks) != 3 {
		t.Fatalf("the page has %d blocks of YAML", len(blocks)-1)
	}
	whole, _, _ := strings.Cut(blocks[1], "```")
	models, _, _ := strings.Cut(blocks[2], "```")
	_, models, _ = strings.Cut(models, "  openshell:\n") // beside the other keys
	for block, wants := range map[string][]string{
		whole: {"sandbox.openshell.endpoint", "https://openshell.example:8080", "sandbox.openshell.telemetry_off", "/run/kick/openshell-token"},
		strings.ReplaceAll(whole, "    inference: true\n", models): {"kick.example.internal:8377-8392", "10.244.0.0/16"},
	} {
		file := filepath.Join(t.TempDir(), "kick.yaml")
		if err := os.WriteFile(file, []byte(block+"agents:\n  scanner: {sandbox: {enabled: true}}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		out := run(t, "", kick, "config", "show", "--config", file, "--resolved", "scanner")
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("it has no %s:\n%s", want, out)
			}
		}
	}
}
