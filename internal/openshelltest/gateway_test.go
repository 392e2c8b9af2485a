package openshelltest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/openshellapi"
	"github.com/kickhq/kick/internal/openshellapi/wire"
)

// section checks that the page on the wire has the section that a test is of.
func section(t *testing.T, name string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/openshell-wire.md")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(name) + `$`).Match(page) {
		t.Errorf("docs/openshell-wire.md has no section %q", name)
	}
}

func dial(t *testing.T, to openshellapi.Connection) openshellapi.Gateway {
	t.Helper()
	c, err := openshellapi.Dial(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func wantCode(t *testing.T, what string, err error, want openshellapi.Code) {
	t.Helper()
	if openshellapi.CodeOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func request(name string) openshellapi.CreateRequest {
	return openshellapi.CreateRequest{Name: name, Image: Image, Command: []string{"sleep", "600"}, Labels: map[string]string{"kick.id": name}}
}

// ready waits until a sandbox is in a phase.
func waitFor(t *testing.T, c openshellapi.Gateway, name string, phase openshellapi.Phase) openshellapi.Sandbox {
	t.Helper()
	var last openshellapi.Sandbox
	err := c.Watch(testContext(t), name, func(e openshellapi.Event) bool {
		if e.Sandbox != nil {
			last = *e.Sandbox
		}
		return last.Phase != phase
	})
	if err != nil || last.Phase != phase {
		t.Fatalf("%v, %+v, want %s", err, last, phase)
	}
	return last
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// run runs a command and returns what came.
func run(t *testing.T, c openshellapi.Gateway, r openshellapi.ExecRequest, stdin string) (stdout, stderr string, exit int) {
	t.Helper()
	x, err := c.Exec(testContext(t), r)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for len(stdin) > 0 {
			n := min(len(stdin), openshellapi.MaxStdin)
			if x.Send([]byte(stdin[:n])) != nil {
				return
			}
			stdin = stdin[n:]
		}
		_ = x.CloseSend()
	}()
	for {
		e, err := x.Recv()
		if errors.Is(err, io.EOF) {
			return stdout, stderr, exit
		}
		if err != nil {
			t.Fatal(err)
		}
		stdout, stderr = stdout+string(e.Stdout), stderr+string(e.Stderr)
		if e.Exit != nil {
			exit = *e.Exit
		}
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"Creation", "Phases", "Watching", "Running commands", "Deletion"} {
		section(t, s)
	}
	g := Start(t, Options{})
	c := dial(t, g.Connection)
	ctx := testContext(t)
	s, err := c.Create(ctx, request("one"))
	if err != nil || s.Phase != openshellapi.Provisioning || s.Conditions[0].Reason != "SupervisorNotConnected" {
		t.Fatalf("%+v, %v", s, err)
	}
	_, err = c.Create(ctx, request("one"))
	wantCode(t, "a name that is taken", err, openshellapi.CodeExists)
	if s := waitFor(t, c, "one", openshellapi.Ready); s.Labels["kick.id"] != "one" {
		t.Errorf("%+v", s)
	}

	out, errOut, code := run(t, c, openshellapi.ExecRequest{Name: "one", Command: []string{"sh", "-c", `echo "$1"; echo err >&2; wc -c; exit 7`, "sh", "it's $HOME"}}, strings.Repeat("x", 3<<20))
	if out != "it's $HOME\n3145728\n" || errOut != "err\n" || code != 7 {
		t.Errorf("%q, %q, %d", out, errOut, code)
	}
	if _, _, code := run(t, c, openshellapi.ExecRequest{Name: "one", Command: []string{"sh", "-c", "kill -9 $$"}}, ""); code != 137 {
		t.Errorf("a signal gives %d", code)
	}
	if _, _, code := run(t, c, openshellapi.ExecRequest{Name: "one", Command: []string{"sleep", "60"}, Timeout: 100 * time.Millisecond}, ""); code != 124 {
		t.Errorf("a timeout gives %d", code)
	}
	if out, _, _ := run(t, c, openshellapi.ExecRequest{Name: "one", Command: []string{"true"}}, strings.Repeat("x", 1<<20)); out != "" {
		t.Errorf("who does not read gives %q", out)
	}
	x, err := c.Exec(ctx, openshellapi.ExecRequest{Name: "one"})
	if err == nil {
		_, err = x.Recv()
	}
	wantCode(t, "no command", err, openshellapi.CodeInvalid)
	x, err = c.Exec(ctx, openshellapi.ExecRequest{Name: "one", Command: []string{"cat"}})
	if err == nil {
		if err = x.Send(make([]byte, 1<<20+1)); err == nil {
			for err == nil {
				_, err = x.Recv()
			}
		}
	}
	wantCode(t, "a message over 1 MiB", err, openshellapi.CodeExhausted)

	list, err := c.List(ctx, map[string]string{"kick.id": "one"})
	if other, _ := c.List(ctx, map[string]string{"kick.id": "two"}); err != nil || len(list) != 1 || len(other) != 0 {
		t.Errorf("%+v, %+v, %v", list, other, err)
	}
	if err := c.Delete(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, "one"); err != nil {
		t.Errorf("again: %v", err)
	}
	for {
		_, err := c.Get(ctx, "one")
		if openshellapi.CodeOf(err) == openshellapi.CodeNotFound {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The caller's going away ends the command's process group, and what has left
// the group lives on (Running commands).
func TestCallerGone(t *testing.T) {
	t.Parallel()
	section(t, "Running commands")
	g := Start(t, Options{})
	c := dial(t, g.Connection)
	if _, err := c.Create(testContext(t), request("gone")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, c, "gone", openshellapi.Ready)
	ctx, cancel := context.WithCancel(testContext(t))
	script := "setsid sh -c 'echo up; exec sleep 31 >/dev/null 2>&1' & sleep 32 & wait" // it says so when it has left
	x, err := c.Exec(ctx, openshellapi.ExecRequest{Name: "gone", Command: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := x.Recv(); err != nil || string(e.Stdout) != "up\n" {
		t.Fatalf("%+v, %v", e, err)
	}
	cancel()
	for alive := true; alive; {
		out, _, _ := run(t, c, openshellapi.ExecRequest{Name: "gone", Command: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"}}, "")
		if !strings.Contains(out, "sleep 31") {
			t.Fatalf("what left the group has ended: %q", out)
		}
		alive = strings.Contains(out, "sleep 32")
	}
}

func TestMainProcess(t *testing.T) {
	t.Parallel()
	section(t, "Phases")
	g := Start(t, Options{})
	c := dial(t, g.Connection)
	for name, tt := range map[string]struct {
		script string
		phase  openshellapi.Phase
		code   int
	}{"zero": {"exit 0", openshellapi.Completed, 0}, "seven": {"exit 7", openshellapi.Failed, 7}, "nine": {"kill -9 $$", openshellapi.Failed, 137}} {
		r := request(name)
		r.Command = []string{"sh", "-c", tt.script}
		if _, err := c.Create(testContext(t), r); err != nil {
			t.Fatal(err)
		}
		if s := waitFor(t, c, name, tt.phase); s.ExitCode == nil || *s.ExitCode != tt.code || s.Conditions[0].Reason != "MainProcessExited" {
			t.Errorf("%s: %+v", name, s)
		}
		x, err := c.Exec(testContext(t), openshellapi.ExecRequest{Name: name, Command: []string{"true"}})
		if err == nil {
			_, err = x.Recv()
		}
		wantCode(t, name, err, openshellapi.CodePrecondition)
	}
}

func TestValidation(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"Names and limits", "Creation", "Policy", "Driver configuration"} {
		section(t, s)
	}
	g := Start(t, Options{})
	c := dial(t, g.Connection)
	for name, tt := range map[string]struct {
		change func(*openshellapi.CreateRequest)
		want   openshellapi.Code
	}{
		"20 characters":    {func(r *openshellapi.CreateRequest) { r.Name = strings.Repeat("a", 20) }, openshellapi.CodeInvalid},
		"upper case":       {func(r *openshellapi.CreateRequest) { r.Name = "A" }, openshellapi.CodeInvalid},
		"two hyphens":      {func(r *openshellapi.CreateRequest) { r.Name = "a--b" }, openshellapi.CodeInvalid},
		"a hyphen at last": {func(r *openshellapi.CreateRequest) { r.Name = "a-" }, openshellapi.CodeInvalid},
		"a long label":     {func(r *openshellapi.CreateRequest) { r.Labels = map[string]string{"a": strings.Repeat("a", 64)} }, openshellapi.CodeInvalid},
		"a long note":      {func(r *openshellapi.CreateRequest) { r.Annotations = map[string]string{"a": strings.Repeat("a", 8193)} }, openshellapi.CodeInvalid},
		"its own variable": {func(r *openshellapi.CreateRequest) { r.Environment = map[string]string{"OPENSHELL_X": ""} }, openshellapi.CodeInvalid},
		"a line break":     {func(r *openshellapi.CreateRequest) { r.Environment = map[string]string{"X": "a\nb"} }, openshellapi.CodeInvalid},
		"a long argument":  {func(r *openshellapi.CreateRequest) { r.Command = []string{strings.Repeat("a", 33<<10)} }, openshellapi.CodeInvalid},
		"version 2":        {func(r *openshellapi.CreateRequest) { r.Policy = &openshellapi.Policy{Version: 2} }, openshellapi.CodeInvalid},
		"a parent": {func(r *openshellapi.CreateRequest) {
			r.Policy = &openshellapi.Policy{Version: 1, Filesystem: openshellapi.Filesystem{ReadOnly: []string{"/a/../b"}}}
		}, openshellapi.CodeInvalid},
		"all to write": {func(r *openshellapi.CreateRequest) {
			r.Policy = &openshellapi.Policy{Version: 1, Filesystem: openshellapi.Filesystem{ReadWrite: []string{"/"}}}
		}, openshellapi.CodeInvalid},
		"a top-level wildcard": {func(r *openshellapi.CreateRequest) {
			r.Policy = policyOf(openshellapi.Endpoint{Host: "*.com", Access: "full", Protocol: "rest"})
		}, openshellapi.CodeInvalid},
		"the API server's port": {func(r *openshellapi.CreateRequest) {
			r.Policy = policyOf(openshellapi.Endpoint{Host: "a.test", Access: "full", Protocol: "rest", Ports: []uint32{6443}})
		}, openshellapi.CodeInvalid},
		"rest alone": {func(r *openshellapi.CreateRequest) {
			r.Policy = policyOf(openshellapi.Endpoint{Host: "a.test", Protocol: "rest"})
		}, openshellapi.CodeInvalid},
		"another image":    {func(r *openshellapi.CreateRequest) { r.Image = "other" }, openshellapi.CodePrecondition},
		"a driver's words": {func(r *openshellapi.CreateRequest) { r.DriverConfig = map[string]any{"kubernetes": map[string]any{}} }, openshellapi.CodePrecondition},
	} {
		r := request("v")
		tt.change(&r)
		_, err := c.Create(testContext(t), r)
		wantCode(t, name, err, tt.want)
	}
	if left := g.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func policyOf(e openshellapi.Endpoint) *openshellapi.Policy {
	e.Enforcement = openshellapi.Enforce
	if e.Ports == nil {
		e.Ports = []uint32{443}
	}
	return &openshellapi.Policy{Version: 1, Landlock: openshellapi.Landlock{Compatibility: openshellapi.HardRequirement},
		Network: map[string]openshellapi.NetworkRule{"kick": {Name: "kick", Endpoints: []openshellapi.Endpoint{e}, Binaries: []openshellapi.Binary{{Path: "/usr/bin/curl"}}}}}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	section(t, "Credentials")
	t.Run("tokens", func(t *testing.T) {
		t.Parallel()
		g := Start(t, Options{Tokens: map[string]User{"good": {}, "old": {Expired: true}, "reader": {Scopes: []string{"sandbox:read"}}}})
		for token, want := range map[string][3]openshellapi.Code{
			"good":   {"", "", ""},
			"old":    {openshellapi.CodeUnauthenticated, openshellapi.CodeUnauthenticated, openshellapi.CodeUnauthenticated},
			"wrong":  {openshellapi.CodeUnauthenticated, openshellapi.CodeUnauthenticated, openshellapi.CodeUnauthenticated},
			"":       {openshellapi.CodeUnauthenticated, openshellapi.CodeUnauthenticated, openshellapi.CodeUnauthenticated},
			"reader": {"", "", openshellapi.CodePermission},
		} {
			other := g.Connection
			other.Token = ""
			if token != "" {
				other.Token = t.TempDir() + "/token"
				if err := os.WriteFile(other.Token, []byte(token), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c := dial(t, other)
			if _, err := c.Health(testContext(t)); err != nil {
				t.Errorf("health is open to all: %v", err)
			}
			wantCode(t, token+" asks who it is", c.User(testContext(t)), want[0])
			_, err := c.List(testContext(t), nil)
			wantCode(t, token+" lists", err, want[1])
			wantCode(t, token+" deletes", c.Delete(testContext(t), "x"), want[2])
		}
	})
	t.Run("mtls", func(t *testing.T) {
		t.Parallel()
		g := Start(t, Options{MTLS: true})
		if err := dial(t, g.Connection).User(testContext(t)); err != nil {
			t.Error(err)
		}
		other := g.Connection
		other.Cert, other.Key = "", ""
		wantCode(t, "no certificate", dial(t, other).User(testContext(t)), openshellapi.CodeUnauthenticated)
		other.CA = ""
		wantCode(t, "an authority that nobody knows", dial(t, other).User(testContext(t)), openshellapi.CodeUnavailable)
	})
	t.Run("workspace", func(t *testing.T) {
		t.Parallel()
		g := Start(t, Options{})
		other := g.Connection
		other.Workspace = "other"
		_, err := dial(t, other).List(testContext(t), nil)
		wantCode(t, "another workspace", err, openshellapi.CodePermission)
	})
}

// A policy is enforced for hosts, methods and programs, comes back as it was
// given, and what it denies is in the log (Policy, Reading a policy back, Logs).
func TestNetwork(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"Policy", "Reading a policy back", "Logs"} {
		section(t, s)
	}
	upstream := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "upstream saw "+r.Method) }))
	defer upstream.Close()
	network := egress.Config{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("140.82.112.5")}, nil
		},
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, upstream.Listener.Addr().String())
		},
		Roots: upstream.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs,
	}
	g := Start(t, Options{Network: network})
	c := dial(t, g.Connection)
	r := request("net")
	r.Policy = policyOf(openshellapi.Endpoint{Host: "example.com", Protocol: "rest", Access: "read-only"})
	if _, err := c.Create(testContext(t), r); err != nil {
		t.Fatal(err)
	}
	e, err := c.Policy(testContext(t), "net")
	if err != nil || !e.Own || e.Strange != "" || e.Hash == "" {
		t.Fatalf("%+v, %v", e, err)
	}
	if d := r.Policy.Difference(e.Policy); d != "" {
		t.Errorf("it came back with a difference: %s", d)
	}
	waitFor(t, c, "net", openshellapi.Ready)
	for _, tt := range []struct {
		command string
		want    string
	}{
		{"curl -sS --max-time 20 https://example.com/x", "upstream saw GET"},
		{"curl -sS --max-time 20 -X POST https://example.com/x", "403"},
		{"curl -sS --max-time 20 https://other.test/", "403"},
		{"cp /usr/bin/curl /tmp/mine && /tmp/mine -sS --max-time 20 https://example.com/x", "403"},
		{"curl -sS --noproxy '*' --max-time 5 https://140.82.112.5/", "curl: ("},
	} {
		out, errOut, _ := run(t, c, openshellapi.ExecRequest{Name: "net", Command: []string{"sh", "-c", tt.command + " -w ' %{http_code}'"}}, "")
		if !strings.Contains(out+errOut, tt.want) {
			t.Errorf("%s: %q, %q, want %s", tt.command, out, errOut, tt.want)
		}
	}
	logs, err := c.Logs(testContext(t), "net", 100)
	if err != nil {
		t.Fatal(err)
	}
	denied := map[string]bool{}
	for _, l := range logs {
		denied[l.Fields["http_method"]+" "+l.Fields["dst_host"]+" "+l.Fields["binary"]] = true
	}
	for _, want := range []string{"POST example.com /usr/bin/curl", " example.com /tmp/mine"} {
		if !denied[want] {
			t.Errorf("the log does not tell of %q: %v", want, denied)
		}
	}
}

// An endpoint whose TLS is skipped is a plain way for the programs of its own rule, and
// for nobody else (Policy).
func TestRelayed(t *testing.T) {
	t.Parallel()
	section(t, "Policy")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1<<10))
			_, _ = io.WriteString(c, "no TLS at all\n")
			c.Close()
		}
	}()
	g := Start(t, Options{Network: egress.Config{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("140.82.112.5")}, nil
		},
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, l.Addr().String())
		},
	}})
	c := dial(t, g.Connection)
	r := request("relayed")
	r.Policy = policyOf(openshellapi.Endpoint{Host: "example.com", Protocol: "rest", Access: "read-only"})
	r.Policy.Network["own"] = openshellapi.NetworkRule{
		Name:      "own",
		Endpoints: []openshellapi.Endpoint{{Host: "kick.example.com", Ports: []uint32{8377}, Enforcement: openshellapi.Enforce, Relayed: true}},
		Binaries:  []openshellapi.Binary{{Path: "/tmp/mine"}},
	}
	if _, err := c.Create(testContext(t), r); err != nil {
		t.Fatal(err)
	}
	e, err := c.Policy(testContext(t), "relayed")
	if err != nil || e.Strange != "" || r.Policy.Difference(e.Policy) != "" {
		t.Fatalf("%+v, %v", e, err)
	}
	e.Policy.Network["own"].Endpoints[0].Relayed = false
	if r.Policy.Difference(e.Policy) == "" {
		t.Error("it does not differ from one that is not relayed")
	}
	waitFor(t, c, "relayed", openshellapi.Ready)
	script := `cp /usr/bin/curl /tmp/mine
for p in /tmp/mine /usr/bin/curl; do $p -sS --http0.9 --max-time 20 -p -x $HTTPS_PROXY http://kick.example.com:8377/ 2>&1; done
/tmp/mine -sS -o /dev/null -w 'mine elsewhere %{http_connect}' --max-time 20 https://example.com/ 2>/dev/null`
	out, errOut, _ := run(t, c, openshellapi.ExecRequest{Name: "relayed", Command: []string{"sh", "-c", script}}, "")
	if strings.Count(out, "no TLS at all") != 1 || !strings.Contains(out, "403") || !strings.Contains(out, "mine elsewhere 403") {
		t.Errorf("%q, %q", out, errOut)
	}
}

// Every policy that kick compiles is taken as it is, and read back the same.
func TestCompiledPolicies(t *testing.T) {
	t.Parallel()
	section(t, "Policy")
	files, err := filepath.Glob("../../policy/testdata/openshell/*.yaml")
	if err != nil || len(files) < 9 {
		t.Fatalf("%d policies, %v", len(files), err)
	}
	c := dial(t, Start(t, Options{Faults: &Faults{NotReady: "ContainerStarting"}}).Connection) // nothing has to run
	for i, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p, err := openshellapi.ParsePolicy(b)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		q := request(fmt.Sprint("p", i))
		q.Policy = p
		if _, err := c.Create(testContext(t), q); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		e, err := c.Policy(testContext(t), q.Name)
		if err != nil || e.Strange != "" || p.Difference(e.Policy) != "" {
			t.Errorf("%s: %v, %q, %q", file, err, e.Strange, p.Difference(e.Policy))
		}
	}
}

// The generations that kick does not speak with are told by the version, and by
// the answer to a name that is not there.
func TestGenerations(t *testing.T) {
	t.Parallel()
	section(t, "Generations")
	v, err := dial(t, Start(t, Options{Version: "0.0.111"}).Connection).Health(testContext(t))
	if err != nil || openshellapi.CheckVersion(v, "") == nil {
		t.Errorf("%q, %v", v, err)
	}
	_, err = dial(t, Start(t, Options{Faults: &Faults{Renamed: true}}).Connection).Health(testContext(t))
	wantCode(t, "a gateway of another name", err, openshellapi.CodeUnimplemented)
}

// A fault is what it says: each is seen by a plain client.
func TestFaults(t *testing.T) {
	t.Parallel()
	f := &Faults{ExecEnds: 1, WatchEnds: 2, LogLines: 50, Config: func(r *wire.GetSandboxConfigResponse) { r.PolicySource = wire.PolicySource_POLICY_SOURCE_GLOBAL }}
	g := Start(t, Options{Faults: f})
	c := dial(t, g.Connection)
	if _, err := c.Create(testContext(t), request("f")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, c, "f", openshellapi.Ready)
	f.Gaps.Store(1)
	exec := func() error {
		x, err := c.Exec(testContext(t), openshellapi.ExecRequest{Name: "f", Command: []string{"echo", "hello"}})
		for err == nil {
			_, err = x.Recv()
		}
		return err
	}
	wantCode(t, "a gap", exec(), openshellapi.CodeUnavailable)
	wantCode(t, "a stream that ends", exec(), openshellapi.CodeUnavailable)
	if e, err := c.Policy(testContext(t), "f"); err != nil || e.Own {
		t.Errorf("%+v, %v", e, err)
	}
	if logs, err := c.Logs(testContext(t), "f", 10); err != nil || len(logs) != 10 {
		t.Errorf("%d lines, %v", len(logs), err)
	}
	err := c.Watch(testContext(t), "f", func(openshellapi.Event) bool {
		_ = c.Delete(testContext(t), "f") // a change, and so a second event
		return true
	})
	wantCode(t, "a watch that breaks off", err, openshellapi.CodeUnavailable)
}
