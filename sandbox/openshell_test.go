package sandbox_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/openshellapi"
	"github.com/kickhq/kick/internal/openshellapi/wire"
	"github.com/kickhq/kick/internal/openshelltest"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// openShellRan is a run on a gateway, with what it said.
type openShellRan struct {
	sandbox.Result
	err    error
	stdout string
	logs   []sandbox.RuntimeLog
	g      *openshelltest.Gateway
}

// onOpenShell runs a script in a sandbox of a gateway of its own. change may be nil.
func onOpenShell(t *testing.T, o openshelltest.Options, script string, change func(*sandbox.OpenShellConfig, *sandbox.LaunchSpec)) openShellRan {
	t.Helper()
	g := openshelltest.Start(t, o)
	ran := openShellRan{g: g}
	c := openShellConfig(g)
	var out bytes.Buffer
	spec := sandbox.LaunchSpec{
		ID: "h" + random(), Agent: "hostile", Image: openshelltest.Image, Command: []string{"sh", "-c", script}, Env: map[string]string{"PATH": sandboxPath},
		Workspace: sandbox.Workspace{Dir: t.TempDir()}, Limits: sandbox.Limits{Wall: time.Minute}, Stdout: &out, Stderr: &out,
		OnLog: func(l sandbox.RuntimeLog) { ran.logs = append(ran.logs, l) },
	}
	if change != nil {
		change(&c, &spec)
	}
	l, err := sandbox.NewOpenShell(c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	ran.Result, ran.err = l.Run(ctx, spec)
	ran.stdout = out.String()
	if left := g.Sandboxes(); len(left) > 0 && (o.Faults == nil || !o.Faults.Undead) {
		t.Errorf("left: %q", left)
	}
	return ran
}

// random is a part of a name.
func random() string { return strings.ToLower(rand.Text()[:8]) }

const sandboxPath = "/usr/local/bin:/usr/bin:/bin"

func openShellConfig(g *openshelltest.Gateway) sandbox.OpenShellConfig {
	return sandbox.OpenShellConfig{
		Shim:       func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(sandbox.Shim())), nil },
		Connection: g.Connection, Image: openshelltest.Image, TelemetryOff: true,
	}
}

func (r openShellRan) wantError(t *testing.T, kind error, words ...string) {
	t.Helper()
	if !errors.Is(r.err, kind) {
		t.Errorf("error %v, want %v", r.err, kind)
	}
	if !r.Started.IsZero() && r.Reason != sandbox.ReasonLost {
		t.Errorf("the command has run: %+v", r.Result)
	}
	if r.err != nil {
		explained(t, r.err.Error())
	}
	for _, w := range words {
		if r.err == nil || !strings.Contains(r.err.Error(), w) {
			t.Errorf("error %v, want %q", r.err, w)
		}
	}
}

// openShellPage are what docs/openshell.md explains, as patterns of what kick says.
var openShellPage = sync.OnceValue(func() (list []*regexp.Regexp) {
	page, err := os.ReadFile("../docs/openshell.md")
	if err != nil {
		panic(err) // there is no page: nothing can be held against it
	}
	_, table, _ := strings.Cut(string(page), "| what kick says | what it means |\n|---|---|\n")
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") {
			break
		}
		said, _, _ := strings.Cut(line[2:], " | ")
		for i, text := range strings.Split(said, "`") {
			if i%2 == 1 {
				list = append(list, regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(text), "…", "(?s:.*)")))
			}
		}
	}
	return list
})

// explained holds what kick says against the page.
func explained(t *testing.T, said string) {
	t.Helper()
	if !slices.ContainsFunc(openShellPage(), func(p *regexp.Regexp) bool { return p.MatchString(said) }) {
		t.Errorf("docs/openshell.md does not explain %q", said)
	}
}

// The page explains each property that can be missing, and what the preflight finds of an
// image.
func TestOpenShellPage(t *testing.T) {
	t.Parallel()
	if n := len(openShellPage()); n < 30 {
		t.Fatalf("the page has %d rows", n)
	}
	for _, name := range sandbox.OpenShellProperties {
		if name == "policy" || name == "no-network" {
			continue // each cause has a row, which the tests of these find
		}
		explained(t, name+": whatever is wrong with it")
	}
	bin := t.TempDir()
	for _, c := range []struct{ program, want string }{{"", "the image has no git"}, {"git", "cannot be written"}} {
		if c.program != "" {
			if err := os.WriteFile(filepath.Join(bin, c.program), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("/bin/sh", "-c", sandbox.PreflightScript)
		cmd.Env = []string{"PATH=" + bin} // and no touch
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%v, %q, want %q", err, out, c.want)
		}
		explained(t, string(out))
	}
}

// A gateway of another generation gets no policy, and no other call than the one
// for its version.
func TestOpenShellGenerations(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		o      openshelltest.Options
		accept string
		want   string // "" is fine
	}{
		"first":          {openshelltest.Options{Version: "0.0.111"}, "0.0.111", "first generation"},
		"third":          {openshelltest.Options{Faults: &openshelltest.Faults{Renamed: true}}, "", "later generation"},
		"next":           {openshelltest.Options{Version: "0.2.0"}, "", "openshell.accept_version"},
		"next, accepted": {openshelltest.Options{Version: "0.2.0"}, "0.2.0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := onOpenShell(t, tt.o, "echo ran", func(c *sandbox.OpenShellConfig, _ *sandbox.LaunchSpec) { c.Connection.AcceptVersion = tt.accept })
			if tt.want == "" {
				if r.err != nil || r.stdout != "ran\n" {
					t.Errorf("%v, %q", r.err, r.stdout)
				}
				return
			}
			r.wantError(t, sandbox.ErrRuntime, tt.want)
			for _, call := range []string{"GetCurrentUser", "CreateSandbox"} {
				if n := r.g.Calls(call); n > 0 {
					t.Errorf("%d calls of %s", n, call)
				}
			}
		})
	}
}

func TestOpenShellCredential(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(bad, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := openshelltest.Options{Tokens: map[string]openshelltest.User{"right": {}, "reader": {Scopes: []string{"sandbox:read", "config:read"}}}}
	r := onOpenShell(t, o, "echo ran", func(c *sandbox.OpenShellConfig, _ *sandbox.LaunchSpec) { c.Connection.Token = bad })
	r.wantError(t, sandbox.ErrRuntime, "unauthenticated", "openshell.token")
	reader := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(reader, []byte(`{"access_token":"reader"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r = onOpenShell(t, o, "echo ran", func(c *sandbox.OpenShellConfig, _ *sandbox.LaunchSpec) { c.Connection.Token = reader })
	r.wantError(t, sandbox.ErrRuntime, "permission denied", "sandbox:write")
	if n := strings.Count(r.err.Error(), "the sandbox"); n != 1 || r.g.Calls("DeleteSandbox") > 0 {
		t.Errorf("what was refused is said %d times, and was deleted %d times: %v", n, r.g.Calls("DeleteSandbox"), r.err)
	}
	r = onOpenShell(t, o, "echo ran", func(c *sandbox.OpenShellConfig, _ *sandbox.LaunchSpec) { c.Connection.Token = reader + "-none" })
	r.wantError(t, sandbox.ErrRuntime, reader+"-none: no such file", "set openshell.token")
}

// What is wrong with the line is said without what gRPC wraps around it.
func TestOpenShellUnreachable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		o    openshelltest.Options
		c    sandbox.OpenShellConnection
		want string
	}{
		{openshelltest.Options{}, sandbox.OpenShellConnection{Endpoint: "http://127.0.0.1:1"}, "unavailable: dial tcp 127.0.0.1:1: connect: connection refused. See"},
		{openshelltest.Options{MTLS: true}, sandbox.OpenShellConnection{}, "unavailable: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"},
	} {
		r := onOpenShell(t, tt.o, "echo ran", func(c *sandbox.OpenShellConfig, _ *sandbox.LaunchSpec) {
			if tt.c.Endpoint == "" {
				tt.c.Endpoint = c.Connection.Endpoint // and none of its authority
			}
			c.Connection = tt.c
		})
		r.wantError(t, sandbox.ErrRuntime, tt.want)
	}
}

// A gateway that does not hold what it was asked for runs nothing.
func TestOpenShellPolicyReadBack(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*wire.GetSandboxConfigResponse)
		want   string
	}{
		"dropped enforcement": {func(r *wire.GetSandboxConfigResponse) {
			r.Policy.NetworkPolicies["kick"].Endpoints[0].Enforcement = wire.NetworkEnforcementMode_NETWORK_ENFORCEMENT_MODE_AUDIT
		}, "enforcement=audit"},
		"the gateway's own": {func(r *wire.GetSandboxConfigResponse) { r.PolicySource = wire.PolicySource_POLICY_SOURCE_GLOBAL }, "of the whole gateway"},
		"nothing":           {func(r *wire.GetSandboxConfigResponse) { r.Policy = nil }, "there is no policy"},
		"more": {func(r *wire.GetSandboxConfigResponse) {
			r.Policy.NetworkPolicies["x"] = &wire.NetworkPolicyRule{Endpoints: []*wire.NetworkEndpoint{{Host: "evil.test\x1b[2J"}}}
		}, "network rules: has x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &openshelltest.Faults{Config: tt.change}
			r := onOpenShell(t, openshelltest.Options{Faults: f}, "echo ran", func(_ *sandbox.OpenShellConfig, s *sandbox.LaunchSpec) { s.Egress.Policy = readPolicy(t) })
			r.wantError(t, sandbox.ErrIsolation, tt.want)
			if n := r.g.Calls("ExecSandboxInteractive"); n > 0 {
				t.Errorf("%d commands were run", n)
			}
		})
	}
}

// readPolicy is a policy that lets curl read example.com.
func readPolicy(t *testing.T) string {
	t.Helper()
	e := policy.Egress{Hosts: []policy.Host{{Host: "example.com", Terminate: true}}}
	p, err := e.OpenShell([]string{"/usr/bin/curl"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.YAML()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The reaper deletes what a dead kick of this host has left, and what is past its
// deadline, and nothing else.
func TestOpenShellReap(t *testing.T) {
	t.Parallel()
	g := openshelltest.Start(t, openshelltest.Options{})
	c, err := openshellapi.Dial(g.Connection)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	suffix := random()
	here := sandbox.ClaimOwner(t)
	later, earlier := time.Now().Add(time.Hour).Format(time.RFC3339), time.Now().Add(-time.Hour).Format(time.RFC3339)
	for id, s := range map[string]struct{ owner, deadline, label string }{
		"dead-" + suffix:    {here, later, "dead-" + suffix},
		"foreign-" + suffix: {"0.1.elsewher", later, "foreign-" + suffix},
		"old-" + suffix:     {"0.1.elsewher", earlier, "old-" + suffix},
		"odd-" + suffix:     {here, earlier, "another-" + suffix},
	} {
		_, err := c.Create(t.Context(), openshellapi.CreateRequest{Name: id, Image: openshelltest.Image, Command: []string{"sleep", "600"},
			Labels: map[string]string{"kick.managed": "yes", "kick.id": s.label, "kick.owner": s.owner}, Annotations: map[string]string{"kick.deadline": s.deadline}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Create(t.Context(), openshellapi.CreateRequest{Name: "theirs-" + suffix, Image: openshelltest.Image, Command: []string{"sleep", "600"}}); err != nil {
		t.Fatal(err)
	}
	l, err := sandbox.NewOpenShell(openShellConfig(g))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	removed, err := l.Reap(t.Context())
	if err != nil || strings.Join(removed, " ") != "dead-"+suffix+" old-"+suffix {
		t.Errorf("removed %q, %v", removed, err)
	}
	if left := strings.Join(g.Sandboxes(), " "); left != "foreign-"+suffix+" odd-"+suffix+" theirs-"+suffix {
		t.Errorf("left %q", left)
	}
}

// What the policy allows works, what it does not is refused, and the log says what,
// by which program and in which sandbox.
func TestOpenShellPolicy(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "upstream saw "+r.Method+"\n") }))
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
	script := `for m in GET POST; do curl -sS --max-time 20 -o /dev/stdout -w ' %{http_code}\n' -X $m https://example.com/repos; done`
	r := onOpenShell(t, openshelltest.Options{Network: network}, script, func(_ *sandbox.OpenShellConfig, s *sandbox.LaunchSpec) {
		s.Egress.Policy = readPolicy(t)
	})
	if r.err != nil || !strings.Contains(r.stdout, "upstream saw GET\n 200") || !strings.Contains(r.stdout, " 403") || strings.Contains(r.stdout, "saw POST") {
		t.Errorf("%v, %+v, %q", r.err, r.Result, r.stdout)
	}
	found := false
	for _, l := range r.logs {
		found = found || l.Fields["binary"] == "/usr/bin/curl" && l.Fields["http_method"] == "POST" && l.Fields["dst_host"] == "example.com" && strings.HasPrefix(l.Sandbox, "h")
	}
	if !found {
		t.Errorf("the refusal is not attributed: %+v", r.logs)
	}
}

// Preflight tells of the kernel, and of what was refused from within.
func TestOpenShellPreflight(t *testing.T) {
	t.Parallel()
	g := openshelltest.Start(t, openshelltest.Options{Network: egress.Config{Resolve: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("140.82.112.5")}, nil
	}}})
	l, err := sandbox.NewOpenShell(openShellConfig(g))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	iso, err := l.Preflight(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"no-network": "a POST to api.github.com, which may be read, was refused; example.com, which nothing allows, was refused",
		"landlock":   "Landlock ABI ",
	} {
		i := slices.IndexFunc(iso.Properties, func(p sandbox.Property) bool { return p.Name == name })
		if i < 0 || iso.Properties[i].Status != sandbox.Enforced || !strings.Contains(iso.Properties[i].Evidence, want) {
			t.Errorf("%s: %+v", name, iso.Properties)
		}
	}
}

// A gateway that gives policies back as they were and enforces none is found by
// preflight, from within.
func TestOpenShellPreflightLies(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewTLSServer(http.NotFoundHandler())
	defer upstream.Close()
	g := openshelltest.Start(t, openshelltest.Options{Faults: &openshelltest.Faults{Lax: true}, Network: egress.Config{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("140.82.112.5")}, nil
		},
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, upstream.Listener.Addr().String())
		},
	}})
	l, err := sandbox.NewOpenShell(openShellConfig(g))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	iso, err := l.Preflight(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(iso.Properties, func(p sandbox.Property) bool { return p.Name == "no-network" })
	if i < 0 || iso.Properties[i].Status != sandbox.Missing {
		t.Fatalf("%+v", iso.Properties)
	}
	explained(t, "no-network: "+iso.Properties[i].Evidence)
}

// A program whose file is not the one that was named runs nothing, nor does a link to it.
func TestOpenShellPrograms(t *testing.T) {
	t.Parallel()
	real, err := filepath.EvalSymlinks("/usr/bin/git")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(real)
	if err != nil {
		t.Fatal(err)
	}
	digest := fmt.Sprintf("%x", sha256.Sum256(b))
	for name, tt := range map[string]struct {
		programs map[string]string
		want     string
	}{
		"that file":    {map[string]string{real: digest}, ""},
		"another file": {map[string]string{real: strings.Repeat("0", 64)}, "is " + real + " " + digest},
		"a link":       {map[string]string{"/proc/self/root" + real: digest}, "is " + real},
		"no file":      {map[string]string{"/usr/bin/nothing": digest}, "is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := onOpenShell(t, openshelltest.Options{}, "echo ran", func(_ *sandbox.OpenShellConfig, s *sandbox.LaunchSpec) {
				s.Egress.Policy, s.Egress.Programs = readPolicy(t), tt.programs
			})
			if tt.want != "" {
				r.wantError(t, sandbox.ErrIsolation, tt.want, "openshell.binaries")
			} else if r.err != nil || r.stdout != "ran\n" {
				t.Errorf("%v, %q", r.err, r.stdout)
			}
		})
	}
}

// What cannot be had is refused before anything is made.
func TestOpenShellRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*sandbox.OpenShellConfig, *sandbox.LaunchSpec)
		kind   error
		want   string
	}{
		"an image by tag":     {func(_ *sandbox.OpenShellConfig, s *sandbox.LaunchSpec) { s.Image = "agent:latest" }, sandbox.ErrSpec, "not pinned"},
		"a program directory": {func(_ *sandbox.OpenShellConfig, s *sandbox.LaunchSpec) { s.ProgramDirs = []string{"/opt"} }, sandbox.ErrSpec, "image"},
		"a policy that audits": {func(_ *sandbox.OpenShellConfig, s *sandbox.LaunchSpec) {
			s.Egress.Policy = strings.ReplaceAll(readPolicy(t), "enforcement: enforce", "enforcement: audit")
		}, sandbox.ErrSpec, "blocks nothing"},
		"a policy without network": {func(_ *sandbox.OpenShellConfig, s *sandbox.LaunchSpec) {
			s.Egress.Policy, s.Network = readPolicy(t), sandbox.NetworkNone
		}, sandbox.ErrSpec, "mode none"},
		"no word on telemetry": {func(c *sandbox.OpenShellConfig, _ *sandbox.LaunchSpec) { c.TelemetryOff = false }, sandbox.ErrIsolation, "openshell.telemetry_off"},
		"nobody there":         {func(c *sandbox.OpenShellConfig, _ *sandbox.LaunchSpec) { c.Connection.Endpoint = "http://127.0.0.1:1" }, sandbox.ErrRuntime, "openshell status"},
		"plaintext to another": {func(c *sandbox.OpenShellConfig, _ *sandbox.LaunchSpec) { c.Connection.Endpoint = "http://gateway.test" }, sandbox.ErrSpec, "not encrypted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onOpenShell(t, openshelltest.Options{}, "echo ran", tt.change).wantError(t, tt.kind, tt.want)
		})
	}
	if e := (sandbox.Egress{Policy: "version: 1"}); e.Policy != "" {
		l, err := sandbox.NewEmbedded(sandbox.EmbeddedConfig{Shim: bytes.NewReader(sandbox.Shim())})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := l.Run(t.Context(), sandbox.LaunchSpec{ID: "e" + random(), Command: []string{"true"}, Egress: e}); !errors.Is(err, sandbox.ErrSpec) {
			t.Errorf("the embedded runtime takes a policy that it does not enforce: %v", err)
		}
	}
}
