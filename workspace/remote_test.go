package workspace

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/repoaddr"
)

const testToken = "ghs_1234567_eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJraWNrIn0.c2lnbmF0dXJl-_" // of the form that GitHub mints

// bigRepo has a file of random bytes, so that its pack is larger than any
// buffer on the way.
func bigRepo(t *testing.T) string {
	t.Helper()
	repo := newRepo(t)
	addNoise(t, repo)
	return repo
}

func addNoise(t *testing.T, repo string) string {
	t.Helper()
	noise := make([]byte, 1<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	return commit(t, repo, "noise", string(noise))
}

func TestFetchOverHTTP(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	url := gitServer(t, filepath.Dir(repo), testToken, nil) + "/repo"
	asked := 0
	src := Source{Repo: url, Credential: func(context.Context) (string, string, error) {
		asked++
		return "x-access-token", testToken, nil
	}}
	first := fetch(t, c, src)
	tip := commit(t, repo, "a", "a")
	if b := fetch(t, c, src); b.OID != tip || b.Mirror != first.Mirror {
		t.Errorf("got %+v", b)
	}
	if asked != 2 {
		t.Errorf("credential was asked for %d times in two fetches", asked)
	}
	git(t, first.Mirror, "fsck", "--strict")
}

func TestFetchOverHTTPRefused(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	url := gitServer(t, filepath.Dir(repo), testToken, nil)
	moved := gitServer(t, filepath.Dir(repo), "", func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, url+r.URL.RequestURI(), http.StatusMovedPermanently)
		})
	})
	broken := gitServer(t, filepath.Dir(repo), "", func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusBadGateway) })
	})
	echo := gitServer(t, filepath.Dir(repo), "", func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "" {
				w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			}
			_, password, _ := r.BasicAuth()
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, "you said %s \x1b[31m\n", password)
		})
	})
	const wrong = "wrong-password"
	for _, c := range []struct {
		name, url, password string
		kind                error
		says                []string
	}{
		{"no credential", url + "/repo", "", ErrRemote, []string{"no credential that " + url + " accepts"}},
		{"wrong credential", url + "/repo", wrong, ErrRemote, []string{"credential was refused"}},
		{"no such repository", url + "/nope", testToken, ErrSource, []string{"not found", "check the URL"}},
		{"redirect", moved + "/repo", testToken, ErrSource, []string{"present URL"}},
		{"server error", broken + "/repo", testToken, ErrRemote, []string{"502"}},
		{"server that repeats the credential", echo + "/repo", testToken, ErrRemote, []string{"credential was refused"}},
		{"nothing listens", "http://127.0.0.1:1/repo", testToken, ErrRemote, []string{"network"}},
		{"line break in the credential", url + "/repo", testToken + "\nhost=evil", ErrSource, []string{"control characters"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			src := Source{Repo: c.url, Base: "main"}
			if c.password != "" {
				src.Credential = func(context.Context) (string, string, error) { return "x-access-token", c.password, nil }
			}
			_, err := newCache(t).Fetch(timeout(t, time.Minute), src)
			wantError(t, err, c.kind, c.says...)
			if strings.Contains(err.Error(), testToken) || strings.Contains(err.Error(), wrong) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("error repeats what it must not: %q", err)
			}
		})
	}
	t.Run("credential that cannot be had", func(t *testing.T) {
		t.Parallel()
		cause := errors.New("mint: 403")
		_, err := newCache(t).Fetch(t.Context(), Source{Repo: url + "/repo", Credential: func(context.Context) (string, string, error) { return "", "", cause }})
		wantError(t, err, cause, "get credential for "+url)
	})
}

// A credential for one host is not offered to another.
func TestCredentialIsBoundToTheHost(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	var mu sync.Mutex
	var seen []string
	other := gitServer(t, filepath.Dir(repo), "something else", func(h http.Handler) http.Handler { return h })
	spy := gitServer(t, filepath.Dir(repo), "", func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			seen = append(seen, r.Header.Get("Authorization"))
			mu.Unlock()
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "no", http.StatusUnauthorized)
		})
	})
	// The session believes that its credential is for other, and asks spy.
	s := newSession(repoaddr.Address{URL: spy + "/repo", Protocol: "http", Host: strings.TrimPrefix(other, "http://")})
	s.git.User, s.git.Password = "x-access-token", testToken
	if _, err := s.list(t.Context(), "--heads", "--", s.url); err == nil {
		t.Fatal("no error")
	}
	offered := func() string {
		mu.Lock()
		defer mu.Unlock()
		if len(seen) == 0 {
			t.Fatal("the host was not asked")
		}
		return strings.Join(seen, "")
	}
	if got := offered(); got != "" {
		t.Errorf("the other host saw %q", got)
	}
	s.git.Origin = spy
	if _, err := s.list(t.Context(), "--heads", "--", s.url); err == nil {
		t.Fatal("no error")
	}
	if offered() == "" {
		t.Error("its own host saw no credential: this test is void")
	}
}

// gate lets a response through until the pack flows, and holds it there.
type gate struct {
	reached chan struct{} // closed when the pack flows
	open    chan struct{} // closed to let it go on
	once    sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&gatedWriter{ResponseWriter: w, g: g, done: r.Context().Done()}, r)
	})
}

type gatedWriter struct {
	http.ResponseWriter
	g    *gate
	done <-chan struct{}
	n    int
}

func (w *gatedWriter) Write(p []byte) (int, error) {
	if w.n += len(p); w.n > 200<<10 {
		w.ResponseWriter.(http.Flusher).Flush()
		w.g.once.Do(func() { close(w.g.reached) })
		select {
		case <-w.g.open:
		case <-w.done:
		}
	}
	return w.ResponseWriter.Write(p)
}

// While a fetch runs, the token is in no argument and no environment of any
// process below; afterwards it is in no file.
func TestTokenIsNowhere(t *testing.T) {
	t.Parallel()
	repo, c, g := bigRepo(t), newCache(t), newGate()
	url := gitServer(t, filepath.Dir(repo), testToken, g.wrap) + "/repo"
	type result struct {
		b   *Base
		err error
	}
	done := make(chan result, 1)
	ctx := timeout(t, 2*time.Minute)
	go func() {
		b, err := c.Fetch(ctx, Source{Repo: url, Base: "main", Credential: func(context.Context) (string, string, error) {
			return "x-access-token", testToken, nil
		}})
		done <- result{b, err}
	}()
	select {
	case <-g.reached:
	case r := <-done:
		t.Fatalf("fetch ended early: %v", r.err)
	}
	secrets := []string{testToken, base64.StdEncoding.EncodeToString([]byte("x-access-token:" + testToken))}
	found := false
	for _, pid := range descendants(t, os.Getpid()) {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || !bytes.Contains(env, []byte("GIT_ALLOW_PROTOCOL=http")) {
			continue // the server's, or another test's
		}
		for _, file := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				continue // ended
			}
			if bytes.Contains(b, []byte("remote-http")) && bytes.Contains(b, []byte(url)) {
				found = true
			}
			for _, s := range secrets {
				if bytes.Contains(b, []byte(s)) {
					t.Errorf("%s of process %d holds the token", file, pid)
				}
			}
		}
	}
	if !found {
		t.Error("no git-remote-http was seen: this test is void")
	}
	close(g.open)
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.b.Release()
	files := 0
	walk(t, c.Dir, func(path string, info os.FileInfo) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		files++
		for _, s := range secrets {
			if bytes.Contains(b, []byte(s)) {
				t.Errorf("%s holds the token", path)
			}
		}
	})
	if files < 6 {
		t.Errorf("only %d files were searched", files)
	}
}

// descendants returns the ids of all processes below pid.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	children := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')'):]), " ")
		fields := strings.Fields(rest)
		if len(fields) < 2 {
			continue
		}
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], child)
	}
	var all []int
	for todo := []int{pid}; len(todo) > 0; {
		next := children[todo[0]]
		todo = append(todo[1:], next...)
		all = append(all, next...)
	}
	return all
}

// kill -9 in mid-fetch leaves what was there before, and nothing else once
// somebody fetches again.
func TestKilledFetch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		warm bool
	}{{"first fetch", false}, {"incremental fetch", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			repo, cache, g := newRepo(t), newCache(t), newGate()
			url := gitServer(t, filepath.Dir(repo), testToken, g.wrap) + "/repo"
			f := fetcher{Cache: cache.Dir, Repo: url, Base: "main", Password: testToken}
			before := ""
			if c.warm {
				b := fetch(t, cache, f.source())
				before = b.Mirror
			}
			tip := addNoise(t, repo)
			cmd := f.command(t)
			cmd.Stderr = io.Discard
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-g.reached
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) {
				t.Fatalf("fetcher was not killed in mid-fetch: %v", err)
			}
			close(g.open)
			left, err := filepath.Glob(filepath.Join(cache.Dir, "*", "tmp-*"))
			if err != nil || len(left) == 0 {
				t.Errorf("nothing was in progress: this test is void (%v)", err)
			}
			b := fetch(t, cache, f.source())
			if b.OID != tip || c.warm && b.Mirror != before {
				t.Errorf("got %+v", b)
			}
			git(t, b.Mirror, "fsck", "--strict")
			if left, _ := filepath.Glob(filepath.Join(cache.Dir, "*", "tmp-*")); len(left) != 0 {
				t.Errorf("left over: %s", left)
			}
		})
	}
}

// Several processes use one mirror while the branch moves and is rewritten:
// each gets a whole commit that the branch was at, and keeps it.
func TestConcurrentProcesses(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	const processes, times = 3, 4
	tips := []string{git(t, repo, "rev-parse", "HEAD")}
	type result struct {
		out []byte
		err error
	}
	results := make(chan result)
	for range processes {
		cmd := fetcher{Cache: c.Dir, Repo: repo, Base: "main", Times: times}.command(t)
		go func() {
			out, err := cmd.Output()
			results <- result{out, err}
		}()
	}
	var got []fetched
	for round, left := 0, processes; left > 0; round++ {
		select {
		case r := <-results:
			if r.err != nil {
				t.Errorf("fetcher: %v", r.err)
			}
			got = append(got, parseFetched(t, r.out)...)
			left--
		default:
			if round%2 == 0 { // rewrite all but the root in one step, so that the branch always exists
				git(t, repo, "update-ref", "refs/heads/main", git(t, repo, "commit-tree", "HEAD^{tree}", "-p", tips[0], "-m", fmt.Sprint("round ", round)))
			} else {
				commit(t, repo, "file", fmt.Sprint(round))
			}
			tips = append(tips, git(t, repo, "rev-parse", "HEAD"))
		}
	}
	if len(got) != processes*times {
		t.Errorf("%d fetches, want %d", len(got), processes*times)
	}
	mirrors := map[string]bool{}
	for _, f := range got {
		if f.Error != "" {
			t.Error(f.Error)
		} else if !slices.Contains(tips, f.OID) {
			t.Errorf("%s was never the branch's tip", f.OID)
		}
		mirrors[f.Mirror] = true
	}
	if len(mirrors) < 2 {
		t.Error("no generation was superseded: this test is void")
	}
	b := fetch(t, c, Source{Repo: repo, Base: "main"})
	if b.OID != tips[len(tips)-1] {
		t.Errorf("in the end %s, want %s", b.OID, tips[len(tips)-1])
	}
	if _, err := c.GC(t.Context(), Keep{Unused: time.Hour}); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.Dir, "*", "g*")); len(left) != 1 {
		t.Errorf("generations in the end: %s", left)
	}
}

// A pin of another process holds, and ends with that process.
func TestPinOfAnotherProcess(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	src := Source{Repo: repo, Base: "main"}
	cmd := fetcher{Cache: c.Dir, Repo: repo, Base: "main", Hold: true}.command(t)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4096)
	n, err := stdout.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	held := parseFetched(t, line[:n])[0]
	git(t, repo, "commit", "-q", "--amend", "-m", "rewritten")
	fetch(t, c, src)
	if _, err := c.GC(t.Context(), Keep{}); err != nil {
		t.Error(err)
	}
	git(t, held.Mirror, "cat-file", "-e", held.OID)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	stdin.Close()
	removed, err := c.GC(t.Context(), Keep{Unused: time.Hour})
	if err != nil || !slices.Equal(removed, []string{held.Mirror}) {
		t.Errorf("removed %s, %v; want %s", removed, err, held.Mirror)
	}
}

// What git and curl say, as recorded, and what kick makes of it.
func TestExplain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, stderr string
		kind         error
		says         string
	}{
		{"dubious", "fatal: detected dubious ownership in repository at '/srv/r/.git'\nTo add an exception", ErrSource, "safe.directory /srv/r/.git"},
		{"no username", "fatal: could not read Username for 'https://h': terminal prompts disabled", ErrRemote, "https://h accepts"},
		{"403", "error: RPC failed; HTTP 403\nfatal: unable to access 'https://h/a/': The requested URL returned error: 403", ErrRemote, "refused"},
		{"github 404", "remote: Repository not found.\nfatal: repository 'https://h/a/' not found", ErrSource, "check the URL"},
		{"disk", "error: unable to write file: No space left on device\nfatal: x", ErrHost, "free disk space"},
		{"dns", "fatal: unable to access 'https://h/a/': Could not resolve host: h", ErrRemote, "network"},
		{"certificate", "fatal: unable to access 'https://h/a/': SSL certificate problem: self-signed certificate", ErrRemote, "certificates"},
		{"ssh key", "git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.", ErrRemote, "ssh"},
		{"ssh host key", "Host key verification failed.\nfatal: Could not read from remote repository.", ErrRemote, "ssh"},
		{"unknown", "fatal: something new", ErrRemote, "something new"},
		{"nothing said", "", ErrRemote, "exit status 128"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSession(repoaddr.Address{URL: "https://h/a", Protocol: "https", Host: "h"})
			s.git.Password = testToken
			err := s.explain(t.Context(), &gitcmd.Error{Args: []string{"fetch"}, ExitCode: 128, Stderr: c.stderr, Err: errors.New("exit status 128")})
			wantError(t, err, c.kind, c.says, "https://h/a")
		})
	}
}
