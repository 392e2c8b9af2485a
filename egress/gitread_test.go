package egress

import (
	"compress/gzip"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
)

// Every way of fetching works by the address that people write.
func TestGitFetches(t *testing.T) {
	t.Parallel()
	f := newForge(t, "")
	commit := f.repository(t, "acme/lib.git", 300_000)
	g, a, port := openGit(t, f.config("example.com/acme/lib"), defaultLimits)
	for _, tt := range []struct {
		name string
		args []string // DIR is a new directory
	}{
		{"clone", []string{"clone", "-q", "https://example.com/acme/lib.git", "DIR"}},
		{"clone by the name that ssh has", []string{"clone", "-q", "git@example.com:acme/lib.git", "DIR"}},
		{"shallow clone", []string{"clone", "-q", "--depth=1", "ssh://git@example.com/acme/lib.git", "DIR"}},
		{"partial clone", []string{"clone", "-q", "--filter=blob:none", "--no-checkout", "https://example.com/acme/lib.git", "DIR"}},
		{"protocol version 0", []string{"-c", "protocol.version=0", "clone", "-q", "https://example.com/acme/lib.git", "DIR"}},
		{"protocol version 1", []string{"-c", "protocol.version=1", "clone", "-q", "https://example.com/acme/lib.git", "DIR"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "x")
			for i, arg := range tt.args {
				if arg == "DIR" {
					tt.args[i] = dir
				}
			}
			if out, err := gitIn(t, g, port, tt.args...); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if got := gitOutput(t, "-C", dir, "rev-parse", "HEAD"); got != commit {
				t.Errorf("HEAD is %s, want %s", got, commit)
			}
		})
	}
	records := a.records(t)
	if len(records) == 0 || len(records)%2 != 0 {
		t.Fatalf("%d records, want two for each request", len(records))
	}
	for i, r := range records {
		if r.Verdict != Allowed || r.Rule == "" || !strings.HasPrefix(r.Path, "/git/example.com/acme/lib") || (r.Event == Done) != (i%2 == 1) {
			t.Errorf("record %d is %+v", i, r)
		}
		if r.Event == Done && (r.End.Status != 200 || r.End.Got == 0 || r.End.Error != "" || (r.End.Sent == 0) != strings.HasSuffix(r.Path, "info/refs")) {
			t.Errorf("record %d ends with %+v", i, r.End)
		}
	}
	if s := g.Summary(); s.Allowed != len(records)/2 || s.Denied != 0 || s.Bytes < 4*300_000 {
		t.Errorf("summary %+v", s)
	}
}

// A second fetch tells what it has, in a compressed body.
func TestGitFetchOnTop(t *testing.T) {
	t.Parallel()
	f := newForge(t, "")
	f.repository(t, "acme/lib", 10)
	g, _, port := openGit(t, f.config("example.com/acme/lib"), defaultLimits)
	dir := filepath.Join(t.TempDir(), "x")
	if out, err := gitIn(t, g, port, "clone", "-q", "https://example.com/acme/lib", dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// So much to tell that git compresses it: it tells the newest first, and is done
	// when the forge knows one.
	var commits strings.Builder
	for i := range 60 {
		fmt.Fprintf(&commits, "commit refs/heads/main\ncommitter A <a@example.com> %d +0000\ndata 1\n.\n", time.Now().Unix()+60+int64(i))
		if i == 0 {
			commits.WriteString("from refs/heads/main^0\n")
		}
	}
	made := exec.CommandContext(t.Context(), "git", "-C", dir, "fast-import", "--quiet")
	made.Stdin = strings.NewReader(commits.String())
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bare := filepath.Join(f.dir, "acme/lib")
	tip := gitOutput(t, "-C", bare, "commit-tree", "main^{tree}", "-p", "main", "-m", "two")
	gitOutput(t, "-C", bare, "update-ref", "refs/heads/main", tip)
	if out, err := gitIn(t, g, port, "-C", dir, "fetch", "-q"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := gitOutput(t, "-C", dir, "rev-parse", "origin/main"); got != tip {
		t.Errorf("origin/main is %s, want %s", got, tip)
	}
	if !slices.ContainsFunc(f.requests(), func(r *http.Request) bool { return r.Header.Get("Content-Encoding") == "gzip" }) {
		t.Error("no body was compressed, so the test shows nothing of that")
	}
}

// A body in chunks, as git sends what is larger than its buffer.
func TestGitBodyInChunks(t *testing.T) {
	t.Parallel()
	f := newForge(t, "")
	f.repository(t, "acme/lib", 10)
	g, _, _ := openGit(t, f.config("example.com/acme/lib"), defaultLimits)
	got := exchange(t, g, "POST /git/example.com/acme/lib/git-upload-pack HTTP/1.1\r\nHost: h\r\nGit-Protocol: version=2\r\nConnection: close\r\n"+
		"Content-Type: application/x-git-upload-pack-request\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0014comman\r\ne\r\nd=ls-refs\n0000\r\n0\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.Contains(got, " refs/heads/main\n") {
		t.Errorf("answer %q", got)
	}
}

// What is refused is refused before the host hears of it, and in words that git
// shows.
func TestGitRefusals(t *testing.T) {
	t.Parallel()
	f := newForge(t, "")
	f.repository(t, "acme/lib", 10)
	f.repository(t, "acme/other", 10)
	g, a, port := openGit(t, f.config("example.com/acme/lib"), defaultLimits)
	dir := filepath.Join(t.TempDir(), "x")
	if out, err := gitIn(t, g, port, "clone", "-q", "https://example.com/acme/lib", dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before, told := len(f.requests()), len(a.records(t))
	for _, tt := range []struct {
		name, rule string
		args       []string
	}{
		{"push", "git-push", []string{"-C", dir, "push", "origin", "HEAD:refs/heads/x"}},
		{"another repository", "default-deny", []string{"ls-remote", "https://example.com/acme/other"}},
		{"a repository of a longer name", "default-deny", []string{"ls-remote", "https://example.com/acme/library"}},
		{"a repository whose name has the suffix", "default-deny", []string{"ls-remote", "https://example.com/acme/lib.git.git"}},
		{"an encoded name", "git-path", []string{"ls-remote", "https://example.com/acme/%6cib"}},
		{"a name that is empty", "git-form", []string{"ls-remote", "https://example.com/acme/.git"}},
		{"a group in a group", "git-path", []string{"ls-remote", "https://example.com/acme/group/lib"}},
		{"no owner", "git-path", []string{"ls-remote", "https://example.com/lib"}},
	} {
		out, err := gitIn(t, g, port, tt.args...)
		if err == nil || !strings.Contains(out, "remote: kick: "+tt.rule+": ") {
			t.Errorf("%s: %v, git says\n%s", tt.name, err, out)
		}
		records := a.records(t)[told:]
		told += len(records)
		if len(records) != 1 || records[0].Verdict != Denied || records[0].Rule != tt.rule || records[0].Event != Decided {
			t.Errorf("%s: audit %+v", tt.name, records)
		}
	}
	if n := len(f.requests()); n != before {
		t.Errorf("the host got %d requests", n-before)
	}
	if s := g.Summary(); s.Denied != 8 {
		t.Errorf("summary %+v", s)
	}
}

// What git would not send is refused, too.
func TestGitRequestsOfAnotherKind(t *testing.T) {
	t.Parallel()
	f := newForge(t, "")
	f.repository(t, "acme/lib", 10)
	g, _, _ := openGit(t, f.config("example.com/acme/lib"), defaultLimits)
	const lib = "/git/example.com/acme/lib/"
	post := "POST " + lib + "git-upload-pack HTTP/1.1\r\nHost: h\r\n"
	const kind = "Content-Type: application/x-git-upload-pack-request\r\n"
	for _, tt := range []struct{ name, raw, rule string }{
		{"dumb protocol", "GET " + lib + "info/refs HTTP/1.1\r\nHost: h\r\n", "git-dumb-http"},
		{"dumb protocol, HEAD", "GET " + lib + "HEAD HTTP/1.1\r\nHost: h\r\n", "git-dumb-http"},
		{"dumb protocol, object", "GET " + lib + "objects/info/packs HTTP/1.1\r\nHost: h\r\n", "git-dumb-http"},
		{"push, second request", "POST " + lib + "git-receive-pack HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n", "git-push"},
		{"two services", "GET " + lib + "info/refs?service=git-upload-pack&service=git-receive-pack HTTP/1.1\r\nHost: h\r\n", "git-request"},
		{"encoded service", "GET " + lib + "info/refs?service=git%2dreceive-pack HTTP/1.1\r\nHost: h\r\n", "git-request"},
		{"archive", "GET " + lib + "info/refs?service=git-upload-archive HTTP/1.1\r\nHost: h\r\n", "git-request"},
		{"POST of the first request", "POST " + lib + "info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n", "git-request"},
		{"first request with a body", "GET " + lib + "info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", "git-request"},
		{"GET of the second", "GET " + lib + "git-upload-pack HTTP/1.1\r\nHost: h\r\n", "git-request"},
		{"second with a query", strings.Replace(post, "pack HTTP", "pack?x HTTP", 1) + kind, "git-request"},
		{"another type", post + "Content-Type: application/json\r\n", "git-request"},
		{"two types", post + kind + kind, "git-request"},
		{"another encoding", post + kind + "Content-Encoding: br\r\n", "git-request"},
		{"two encodings", post + kind + "Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", "git-request"},
		{"parameters of the protocol", post + kind + "Git-Protocol: version=2:x=y\r\n", "git-request"},
		{"a port", "GET /git/example.com:22/acme/lib/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n", "git-path"},
		{"current directory", "GET /git/example.com/acme/./info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n", "git-path"},
		{"a user", "GET /git/me@example.com/acme/lib/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n", "git-path"},
		{"two slashes", "GET /git//example.com/acme/lib/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n", "git-path"},
		{"parent directory", "GET /git/example.com/acme/../other/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n", "git-path"},
		{"encoded slash", "GET /git/example.com/acme%2flib/x/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n", "git-path"},
		{"semicolon", "GET /git/example.com/acme/lib;x/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n", "git-path"},
		{"host in capitals", "GET /git/Example.com/acme/lib/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n", "git-path"},
		{"the API", "GET /git/example.com/api/v3/user HTTP/1.1\r\nHost: h\r\n", "git-path"},
		{"large files", "POST " + lib + "info/lfs/objects/batch HTTP/1.1\r\nHost: h\r\n", "git-lfs"},
	} {
		if got := exchange(t, g, tt.raw+"\r\n"); !strings.HasPrefix(got, "HTTP/1.1 403 ") || !strings.Contains(got, "\r\n\r\nkick: "+tt.rule+": ") {
			t.Errorf("%s: answer %q, want rule %s", tt.name, got, tt.rule)
		}
	}
	if n := len(f.requests()); n != 0 {
		t.Errorf("the host got %d requests", n)
	}
}

// The credential reaches the host and nobody else; nothing that the agent sends
// beside its fetch does.
func TestGitCredential(t *testing.T) {
	t.Parallel()
	const password = "pass-of-the-operator"
	f := newForge(t, password)
	commit := f.repository(t, "acme/own", 10)
	f.repository(t, "acme/lib", 10)
	cfg := f.config("example.com/acme/own", "example.com/acme/lib")
	var broken atomic.Bool
	cfg.GitCredential = func(_ context.Context, host, repo string) (string, string, error) {
		switch {
		case broken.Load():
			return "", "", errors.New("the App's key was revoked")
		case host == "example.com" && repo == "acme/own":
			return "x-access-token", password, nil
		}
		return "", "", nil
	}
	g, a, port := openGit(t, cfg, defaultLimits)
	out, err := gitIn(t, g, port, "-c", "http.extraHeader=Authorization: Bearer stolen", "-c", "http.extraHeader=Cookie: a=b",
		"-c", "http.extraHeader=X-Secret: s", "ls-remote", "https://example.com/acme/own", "main")
	if err != nil || !strings.HasPrefix(out, commit) {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, r := range f.requests() {
		if user, pass, _ := r.BasicAuth(); user != "x-access-token" || pass != password {
			t.Errorf("the host saw %q", r.Header["Authorization"])
		}
		for name := range r.Header {
			if !slices.Contains([]string{"Authorization", "User-Agent", "Accept", "Content-Type", "Content-Length", "Content-Encoding", "Git-Protocol", "Connection"}, name) {
				t.Errorf("the host saw the header %s: %q", name, r.Header[name])
			}
		}
	}
	seen := len(f.requests())
	if out, err = gitIn(t, g, port, "ls-remote", "https://example.com/acme/lib"); err == nil || !strings.Contains(out, "not found") || !strings.Contains(out, "there is no such repository, or it may not be read") {
		t.Errorf("without a credential: %v\n%s", err, out)
	}
	for _, r := range f.requests()[seen:] {
		if r.Header.Get("Authorization") != "" {
			t.Error("the credential went along with a fetch from another repository")
		}
	}
	broken.Store(true)
	if out, err = gitIn(t, g, port, "ls-remote", "https://example.com/acme/own"); err == nil || !strings.Contains(out, "get the credential to read https://example.com/acme/own") {
		t.Errorf("with no credential to be had: %v\n%s", err, out)
	}
	for _, r := range a.records(t) {
		if strings.Contains(fmt.Sprintf("%+v %+v", r, r.End), password) {
			t.Errorf("the password is in the audit: %+v", r)
		}
	}
}

// Nothing but git's own answer comes back.
func TestGitAnswers(t *testing.T) {
	t.Parallel()
	f := newForge(t, "")
	g, a, _ := openGit(t, f.config("example.com/acme/lib"), defaultLimits)
	const advertisement = "application/x-git-upload-pack-advertisement"
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		status int
		words  string
	}{
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://example.com/acme/renamed/info/refs?service=git-upload-pack", http.StatusMovedPermanently)
		}, 502, "was moved to https://example.com/acme/renamed: no redirect is followed"},
		{"redirect to the inside", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		}, 502, "no redirect is followed"},
		{"redirect to nowhere", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusFound) }, 502, "answered 302"},
		{"page", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "secret page")
		}, 502, `"text/html", which is not that of the smart protocol`},
		{"dumb host", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "secret page")
		}, 502, `"text/plain"`},
		{"compressed", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", advertisement)
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, "secret page")
			_ = z.Close()
		}, 502, `the encoding "gzip", which was not asked for`},
		{"asks for a password", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "secret page", http.StatusUnauthorized)
		}, 404, "there is no such repository"},
		{"not there", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret page", http.StatusNotFound) }, 404, "there is no such repository"},
		{"too many", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret page", http.StatusTooManyRequests) }, 429, "try again later"},
		{"broken", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "secret page", http.StatusInternalServerError)
		}, 502, "answered 500"},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 502, "fetch from https://example.com/acme/lib: "},
		{"sets a cookie", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", advertisement)
			w.Header().Set("Set-Cookie", "secret page")
		}, 200, ""},
	} {
		f.answer = tt.answer
		seen := len(f.requests())
		got := exchange(t, g, "GET /git/example.com/acme/lib/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", tt.status)) || !strings.Contains(got, tt.words) || strings.Contains(got, "secret page") || strings.Contains(got, "WWW-Auth") {
			t.Errorf("%s: answer %q", tt.name, got)
		}
		if n := len(f.requests()) - seen; n != 1 {
			t.Errorf("%s: the host got %d requests, want one", tt.name, n)
		}
		records := a.records(t)
		if last := records[len(records)-1]; last.Event != Done || last.End.Status != tt.status || (last.End.Error == "") != (tt.status == 200) {
			t.Errorf("%s: record %+v %+v", tt.name, last, last.End)
		}
	}
}

// A host at an address that is not public is not connected to.
func TestGitAddresses(t *testing.T) {
	t.Parallel()
	f := newForge(t, "")
	f.repository(t, "acme/lib", 10)
	cfg := f.config("example.com/acme/lib")
	for _, address := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:127.0.0.1", "fd00:ec2::254", "64:ff9b::7f00:1"} {
		cfg.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(address)}, nil
		}
		cfg.Dial = func(_ context.Context, _, to string) (net.Conn, error) {
			t.Errorf("the gateway dialled %s", to)
			return nil, errors.New("no")
		}
		g, _, port := openGit(t, cfg, defaultLimits)
		if out, err := gitIn(t, g, port, "ls-remote", "https://example.com/acme/lib"); err == nil || !strings.Contains(out, "remote: kick: address-") {
			t.Errorf("%s: %v\n%s", address, err, out)
		}
	}
	// A forge inside, at the addresses that the operator lists and at no other.
	for address, want := range map[string]bool{"10.20.0.7": true, "10.21.0.7": false, "140.82.112.3": false} {
		cfg = f.config("example.com/acme/lib")
		cfg.Policy.GitHosts = []policy.GitHost{{Host: "example.com", Addresses: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")}}}
		cfg.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(address)}, nil
		}
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, network, to string) (net.Conn, error) {
			if to != "10.20.0.7:443" {
				t.Errorf("the gateway dialled %s", to)
			}
			return dial(ctx, network, "93.184.215.14:443")
		}
		g, a, port := openGit(t, cfg, defaultLimits)
		out, err := gitIn(t, g, port, "ls-remote", "https://example.com/acme/lib")
		if (err == nil) != want || !want && !strings.Contains(out, "egress.git_hosts") {
			t.Errorf("%s: %v\n%s", address, err, out)
		}
		if rec := a.records(t)[0]; (rec.Verdict == Allowed) != want {
			t.Errorf("%s: %+v", address, rec)
		}
	}
	cfg = f.config("example.com/acme/lib")
	cfg.Roots = x509.NewCertPool()
	g, _, port := openGit(t, cfg, defaultLimits)
	if out, err := gitIn(t, g, port, "ls-remote", "https://example.com/acme/lib"); err == nil || !strings.Contains(out, "certificate") {
		t.Errorf("a host without a good certificate: %v\n%s", err, out)
	}
}

// What is too large or stands still ends, and git does not take it for whole.
func TestGitLimits(t *testing.T) {
	t.Parallel()
	f := newForge(t, "")
	f.repository(t, "acme/lib", 1<<20)
	lim := defaultLimits
	lim.git.answer, lim.git.ask = 512<<10, 4<<10
	g, a, port := openGit(t, f.config("example.com/acme/lib"), lim)
	last := func() Record {
		records := a.records(t)
		return records[len(records)-1]
	}
	dir := filepath.Join(t.TempDir(), "x")
	if out, err := gitIn(t, g, port, "clone", "-q", "https://example.com/acme/lib", dir); err == nil {
		t.Errorf("a clone of 1 MiB passed a limit of 512 KiB\n%s", out)
	}
	if r := last(); r.Event != Done || r.End.Got != 512<<10 || !strings.Contains(r.End.Error, "the answer is larger than the 524288 bytes") {
		t.Errorf("record %+v %+v", r, r.End)
	}

	const head = "POST /git/example.com/acme/lib/git-upload-pack HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-git-upload-pack-request\r\n"
	for name, raw := range map[string]string{
		"announced": head + "Content-Length: 5000\r\n\r\n" + strings.Repeat("x", 5000),
		"chunked":   head + "Transfer-Encoding: chunked\r\n\r\n1388\r\n" + strings.Repeat("x", 5000) + "\r\n0\r\n\r\n",
	} {
		if got := exchange(t, g, raw); !strings.HasPrefix(got, "HTTP/1.1 413 ") || !strings.Contains(got, "larger than the 4096 bytes that a fetch may send") {
			t.Errorf("%s: answer %q", name, got)
		}
		if r := last(); r.Event != Done || r.End.Status != 413 || r.End.Sent > 4<<10 {
			t.Errorf("%s: record %+v %+v", name, r, r.End)
		}
	}
}

func TestGitThatStandsStill(t *testing.T) {
	t.Parallel()
	f := newForge(t, "")
	release := make(chan struct{})
	var rest time.Duration
	f.answer = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if rest == 0 {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = io.WriteString(w, "001e# service=git-upload-pack\n0000")
			_ = http.NewResponseController(w).Flush()
		}
		<-release
	})
	t.Cleanup(func() { close(release) }) // before the server closes
	lim := defaultLimits
	lim.git.idle = 100 * time.Millisecond
	g, a, _ := openGit(t, f.config("example.com/acme/lib"), lim)
	const ask = "GET /git/example.com/acme/lib/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n\r\n"
	if got := exchange(t, g, ask); !strings.HasPrefix(got, "HTTP/1.1 200 ") || strings.HasSuffix(got, "\r\n0\r\n\r\n") {
		t.Errorf("answer %q, want one that breaks off", got)
	}
	rest = 1
	if got := exchange(t, g, ask); !strings.HasPrefix(got, "HTTP/1.1 502 ") || !strings.Contains(got, "nothing moved for 100ms") {
		t.Errorf("answer %q", got)
	}
	records := a.records(t)
	for _, r := range []Record{records[1], records[3]} {
		if r.Event != Done || r.End.Error != "nothing moved for 100ms" {
			t.Errorf("record %+v %+v", r, r.End)
		}
	}
}

// What is taken for a repository is the same to the policy and to the host.
func FuzzGitPath(f *testing.F) {
	for _, s := range []string{
		"/git/github.com/acme/lib/info/refs", "/git/github.com/acme/lib.git/git-upload-pack", "/git/gitlab.com/a/b/c/info/refs",
		"/git/github.com/acme/lib.git.git/info/refs", "/git/github.com/acme/../x/info/refs", "/git/github.com:22/acme/lib/info/refs",
		"/git/github.com/acme/info/refs/info/refs", "/git/github.com/acme/lib%2f/info/refs", "/git/github.com/acme/.git/info/refs",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		m := gitPath.FindStringSubmatch(path)
		if m == nil {
			return
		}
		c := newGitCall(m)
		u, err := url.Parse(c.url())
		if err != nil {
			t.Fatalf("%q: %v", path, err)
		}
		if u.Scheme != "https" || u.Host != c.host || u.User != nil || u.Fragment != "" || u.Path != "/"+c.repo+c.suffix+"/"+c.service || u.RawPath != "" || u.EscapedPath() != u.Path {
			t.Errorf("%q became %s", path, u)
		}
		if clean := u.JoinPath(); clean.Path != u.Path || c.repo == "" || strings.HasSuffix(c.repo, "/") {
			t.Errorf("%q became %s, which is %s", path, u, clean)
		}
	})
}
