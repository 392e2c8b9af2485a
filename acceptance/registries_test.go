package acceptance

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// registries are the hosts of the presets, in small: an npm registry, a Go
// module proxy, a Python index with its files, and a git host, with one package
// each. All stand behind one address.
type registries struct {
	*httptest.Server
	roots *x509.CertPool
}

var registriesAddress = netip.MustParseAddr("93.184.215.14")

func newRegistries(t *testing.T) *registries {
	t.Helper()
	mux := http.NewServeMux()
	serveNPM(mux)
	serveGo(t, mux)
	servePyPI(t, mux)
	serveGit(t, mux)
	cert := hostCertificate(t, "registry.npmjs.org", "proxy.golang.org", "pypi.org", "files.pythonhosted.org", "github.com")
	s := httptest.NewUnstartedServer(mux)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	r := &registries{s, x509.NewCertPool()}
	r.roots.AddCert(cert.Leaf)
	return r
}

// hostCertificate is one that signs itself.
func hostCertificate(t *testing.T, hosts ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "registries of a test"}, DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func serveFile(mux *http.ServeMux, place, contentType string, data []byte) {
	mux.HandleFunc("GET "+place, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(data)
	})
}

// file is one of an archive.
type file struct{ name, content string }

func zipped(t *testing.T, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, f := range files {
		w, err := z.Create(f.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// serveNPM serves one package as npm's registry does.
func serveNPM(mux *http.ServeMux) {
	var tgz bytes.Buffer
	z := gzip.NewWriter(&tgz)
	w := tar.NewWriter(z)
	for _, f := range []file{
		{"package/package.json", `{"name":"greeting","version":"1.0.0","main":"index.js"}`},
		{"package/index.js", `module.exports = "hello from npm"`},
	} {
		_ = w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.content)), Typeflag: tar.TypeReg})
		_, _ = io.WriteString(w, f.content)
	}
	_, _ = w.Close(), z.Close()
	sum := sha512.Sum512(tgz.Bytes())
	const tarball = "registry.npmjs.org/greeting/-/greeting-1.0.0.tgz"
	document, _ := json.Marshal(map[string]any{
		"name": "greeting", "dist-tags": map[string]string{"latest": "1.0.0"},
		"versions": map[string]any{"1.0.0": map[string]any{
			"name": "greeting", "version": "1.0.0", "main": "index.js",
			"dist": map[string]string{"tarball": "https://" + tarball, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])},
		}},
	})
	serveFile(mux, "registry.npmjs.org/greeting", "application/json", document)
	serveFile(mux, tarball, "application/octet-stream", tgz.Bytes())
}

// serveGo serves one module by the GOPROXY protocol.
func serveGo(t *testing.T, mux *http.ServeMux) {
	t.Helper()
	const place, mod = "proxy.golang.org/example.org/greeting/@v/", "module example.org/greeting\n\ngo 1.21\n"
	serveFile(mux, place+"list", "text/plain", []byte("v1.0.0\n"))
	serveFile(mux, place+"v1.0.0.info", "application/json", []byte(`{"Version":"v1.0.0","Time":"2026-01-02T03:04:05Z"}`))
	serveFile(mux, place+"v1.0.0.mod", "text/plain", []byte(mod))
	serveFile(mux, place+"v1.0.0.zip", "application/zip", zipped(t,
		file{"example.org/greeting@v1.0.0/go.mod", mod},
		file{"example.org/greeting@v1.0.0/greeting.go", "package greeting\n\nconst Text = \"hello from go\"\n"}))
}

// servePyPI serves one wheel by a simple index (PEP 503).
func servePyPI(t *testing.T, mux *http.ServeMux) {
	t.Helper()
	const wheel, dir = "greeting-1.0.0-py3-none-any.whl", "greeting-1.0.0.dist-info/"
	data := zipped(t,
		file{"greeting.py", "text = 'hello from pip'\n"},
		file{dir + "METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0.0\n"},
		file{dir + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		file{dir + "RECORD", ""})
	page := fmt.Sprintf(`<!DOCTYPE html><html><body><a href="https://files.pythonhosted.org/packages/%s#sha256=%x">%[1]s</a></body></html>`, wheel, sha256.Sum256(data))
	serveFile(mux, "pypi.org/simple/greeting/", "text/html", []byte(page))
	serveFile(mux, "files.pythonhosted.org/packages/"+wheel, "application/octet-stream", data)
}

// serveGit serves the repository acme/lib with git's own server.
func serveGit(t *testing.T, mux *http.ServeMux) {
	t.Helper()
	root := t.TempDir()
	run(t, "", "cp", "-r", seedBare(t), filepath.Join(root, "acme-lib"))
	if err := os.Mkdir(filepath.Join(root, "acme"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(root, "acme-lib"), filepath.Join(root, "acme", "lib")); err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path:   filepath.Join(strings.TrimSpace(run(t, "", "git", "--exec-path")), "git-http-backend"),
		Env:    []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"},
		Stderr: io.Discard,
	}
	mux.Handle("github.com/", backend)
}

// sandboxed runs a script in the embedded sandbox, with a gateway that lets
// through what the presets say.
func (s *registries) sandboxed(t *testing.T, script string, presets ...string) (output string, ok bool, records []egress.Record) {
	t.Helper()
	launcher := embedded(t)
	var audit bytes.Buffer // written until Close, read after
	id := kickid.New()
	gateway, err := egress.Listen(t.Context(), filepath.Join(t.TempDir(), "egress"), egress.Config{
		Kick: id, Agent: "builder", Policy: policy.Egress{Presets: presets}, Audit: &audit, Roots: s.roots,
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			return []netip.Addr{registriesAddress}, nil
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != registriesAddress.String()+":443" {
				return nil, fmt.Errorf("the gateway dialled %s", address)
			}
			return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	goroot := strings.TrimSpace(run(t, "", "go", "env", "GOROOT"))
	spec := sandbox.LaunchSpec{
		ID: id, Command: []string{"/bin/sh", "-ec", script},
		Env: map[string]string{
			"PATH": goroot + "/bin:/usr/local/bin:/usr/bin:/bin", "HOME": sandbox.HomeDir, "TMPDIR": "/tmp", "LANG": "C.UTF-8",
			// The checksum database would have to sign the module.
			"GOSUMDB": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0",
			"GIT_TERMINAL_PROMPT": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NPM_CONFIG_UPDATE_NOTIFIER": "false",
			// A denial does not go away by waiting.
			"NPM_CONFIG_FETCH_RETRIES": "0", "PIP_RETRIES": "0",
		},
		Egress: sandbox.Egress{Socket: gateway.Socket(), Port: agents.GatewayPort},
	}
	if !strings.HasPrefix(goroot, "/usr/") {
		spec.ProgramDirs = []string{goroot}
	}
	maps.Copy(spec.Env, agents.ProxyEnvironment())
	if gateway.Terminates() {
		maps.Copy(spec.Env, egress.TrustEnvironment(sandbox.EgressTrustPath))
	}
	gateway.SetGitEnvironment(spec.Env, agents.GatewayPort)
	var out bytes.Buffer
	shown := escape.NewWriter(&out)
	spec.Stdout, spec.Stderr = shown, shown
	res, err := launcher.Run(t.Context(), spec)
	if cerr := gateway.Close(); err != nil || cerr != nil {
		t.Fatalf("%v %v", err, cerr)
	}
	if err := shown.Flush(); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(audit.String()) {
		var r egress.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("audit line %q: %v", line, err)
		}
		records = append(records, r)
	}
	return out.String(), res.Reason == sandbox.ReasonExited && res.ExitCode == 0, records
}

// Package managers work as they come, through the preset of their registry.
func TestPackageManagersThroughPresets(t *testing.T) {
	t.Parallel()
	s := newRegistries(t)
	for _, tt := range []struct {
		name, preset, script, want string
		needs                      []string // programs of this host
	}{
		{"npm install", "npm", `mkdir p; cd p; echo '{"name":"p","version":"1.0.0"}' >package.json
			npm install greeting; node -p 'require("greeting")'`, "hello from npm", []string{"npm", "--version"}},
		{"go build", "go", `mkdir p; cd p; printf 'module p\n\ngo 1.21\n' >go.mod
			printf 'package main\n\nimport "example.org/greeting"\n\nfunc main() { println(greeting.Text) }\n' >main.go
			go get example.org/greeting@latest; go build -o p .; ./p`, "hello from go", []string{"go", "version"}},
		{"pip download", "pypi", `python3 -m pip download --no-cache-dir greeting
			PYTHONPATH=greeting-1.0.0-py3-none-any.whl python3 -c 'import greeting; print(greeting.text)'`, "hello from pip", []string{"/usr/bin/python3", "-m", "pip", "--version"}},
		{"git fetch", "github-read", `git init -q p; cd p; git fetch -q https://github.com/acme/lib main; git log --format=%s FETCH_HEAD`, "base one", []string{"git", "version"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if out, err := exec.Command(tt.needs[0], tt.needs[1:]...).CombinedOutput(); err != nil {
				if os.Getenv("CI") != "" {
					t.Fatalf("%q: %v\n%s", tt.needs, err, out)
				}
				t.Skipf("%q: %v\n%s", tt.needs, err, out)
			}
			out, ok, records := s.sandboxed(t, tt.script, tt.preset)
			if !ok || !strings.Contains(out, tt.want) {
				t.Fatalf("the script failed, or did not print %q:\n%s\naudit: %+v", tt.want, out, records)
			}
			if !slices.ContainsFunc(records, func(r egress.Record) bool { return r.Event == egress.Done && r.Rule == "preset:"+tt.preset }) {
				t.Errorf("no record of preset:%s: %+v", tt.preset, records)
			}

			// Without its preset it goes nowhere, and neither does another host with it.
			other := map[bool]string{true: "npm", false: "pypi"}[tt.preset != "npm"]
			if out, ok, records = s.sandboxed(t, tt.script, other); ok || strings.Contains(out, tt.want) {
				t.Errorf("with the preset %s alone, the script did well:\n%s", other, out)
			}
			if !slices.ContainsFunc(records, func(r egress.Record) bool { return r.Verdict == egress.Denied && r.Rule == "default-deny" }) {
				t.Errorf("no denial in the audit: %+v", records)
			}
			if slices.ContainsFunc(records, func(r egress.Record) bool { return r.Verdict == egress.Allowed }) {
				t.Errorf("something was allowed: %+v", records)
			}
		})
	}
}

// What a preset does not have is denied with the rule, in what the agent sees
// and in the audit: other hosts, and writing.
func TestOutsideThePresets(t *testing.T) {
	t.Parallel()
	s := newRegistries(t)
	for _, tt := range []struct{ name, script, host, rule, says string }{
		{"host", `curl -sS --fail-with-body https://exfiltrate.example.net/`, "exfiltrate.example.net:443", "default-deny", "403"},
		{"plain host", `curl -sS --fail-with-body http://exfiltrate.example.net/`, "exfiltrate.example.net", "default-deny", "exfiltrate.example.net"},
		{"writing", `curl -sS --fail-with-body -X PUT -d x https://registry.npmjs.org/greeting`, "registry.npmjs.org", "method", "method"},
		{"push", `git init -q p; cd p; git -c user.name=a -c user.email=a@example.com commit -q --allow-empty -m x; git push https://github.com/acme/lib HEAD:refs/heads/x`, "127.0.0.1:3128", "git-push", "remote: kick: git-push: Pushing to https://github.com/acme/lib is not permitted"},
		{"another git host", `git ls-remote https://git.example.net/acme/lib`, "git.example.net:443", "default-deny", "403"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, ok, records := s.sandboxed(t, tt.script, "npm", "github-read")
			if ok || !strings.Contains(out, tt.says) {
				t.Errorf("the script did well, or did not say %q:\n%s", tt.says, out)
			}
			if !slices.ContainsFunc(records, func(r egress.Record) bool {
				return r.Verdict == egress.Denied && r.Rule == tt.rule && r.Host == tt.host
			}) {
				t.Errorf("no denial of %s by %s: %+v", tt.host, tt.rule, records)
			}
		})
	}
}
