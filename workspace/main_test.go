package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/gitcmd"
)

// Tests that need another process run this binary again as a fetcher.
const fetcherEnv = "KICK_WORKSPACE_TEST_FETCHER"

// fetcher is what the other process is to do.
type fetcher struct {
	Cache, Repo, Base, Password string
	Times                       int
	Umask                       int
	Tmpfs                       string // size of a small file system that is mounted at Cache
	Hold                        bool   // keep the pin until stdin ends
	Remove                      string // instead of fetching, Remove this directory
}

// fetched is a line that it prints for each fetch.
type fetched struct {
	OID, Mirror, Error string
	Host               bool // the error is of ErrHost
}

func TestMain(m *testing.M) {
	if spec := os.Getenv(fetcherEnv); spec != "" {
		if err := fetchHere(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if template != "" {
		_ = os.RemoveAll(template)
	}
	os.Exit(code)
}

func fetchHere(spec string) error {
	var f fetcher
	if err := json.Unmarshal([]byte(spec), &f); err != nil {
		return err
	}
	if f.Umask != 0 {
		unix.Umask(f.Umask)
	}
	if f.Tmpfs != "" {
		if err := unix.Mount("tmpfs", f.Cache, "tmpfs", 0, "mode=700,size="+f.Tmpfs); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
	}
	if f.Remove != "" {
		return Remove(f.Remove)
	}
	for range f.Times {
		b, err := Cache{Dir: f.Cache}.Fetch(context.Background(), f.source())
		line := fetched{}
		if err != nil {
			line.Error, line.Host = err.Error(), errors.Is(err, ErrHost)
		} else {
			line.OID, line.Mirror = b.OID, b.Mirror
			git := gitcmd.Git{Dir: b.Mirror}
			if err := git.Run(context.Background(), nil, nil, "rev-list", "--objects", "--quiet", b.OID); err != nil {
				line.Error = "pinned base is not whole: " + err.Error()
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
			return err
		}
		if f.Hold {
			var b [1]byte
			_, _ = os.Stdin.Read(b[:])
		}
		if b != nil {
			if err := b.Release(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f fetcher) source() Source {
	src := Source{Repo: f.Repo, Base: f.Base}
	if f.Password != "" {
		src.Credential = func(context.Context) (string, string, error) { return "x-access-token", f.Password, nil }
	}
	return src
}

func (f fetcher) command(t *testing.T) *exec.Cmd {
	t.Helper()
	if f.Times == 0 {
		f.Times = 1
	}
	spec, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fetcherEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	return cmd
}

// inNamespaces makes cmd the root of its own user and mount namespace, so that
// it may mount.
func inNamespaces(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return cmd
}

func (f fetcher) run(t *testing.T) []fetched {
	t.Helper()
	out, err := f.command(t).Output()
	if err != nil {
		t.Fatalf("fetcher: %v", err)
	}
	return parseFetched(t, out)
}

func parseFetched(t *testing.T, out []byte) []fetched {
	t.Helper()
	var lines []fetched
	d := json.NewDecoder(bytes.NewReader(out))
	for d.More() {
		var l fetched
		if err := d.Decode(&l); err != nil {
			t.Fatalf("fetcher wrote %q: %v", out, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// git runs git in dir as a person would, without the host's configuration.
func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := tryGit(dir, nil, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

func tryGit(dir string, env []string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.org",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.org",
		"GIT_ALLOW_PROTOCOL=file",
	}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// template is a repository that newRepo copies: git init and commit cost more
// than most of what is tested.
var (
	template     string
	makeTemplate sync.Once
)

// newRepo makes a repository with one commit on main.
func newRepo(t testing.TB) string {
	t.Helper()
	makeTemplate.Do(func() {
		dir, err := os.MkdirTemp("", "workspace-test-")
		if err != nil {
			t.Fatal(err)
		}
		template = dir
		git(t, "/", "init", "-q", "--template=", "-b", "main", dir)
		commit(t, dir, "README", "hello\n")
	})
	dir := filepath.Join(t.TempDir(), "repo")
	if err := os.CopyFS(dir, os.DirFS(template)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// commit commits one file on the branch that is checked out.
func commit(t testing.TB, repo, name, content string) string {
	t.Helper()
	path := filepath.Join(repo, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	git(t, repo, "add", "-f", "--", name)
	git(t, repo, "commit", "-q", "-m", "change "+name)
	return git(t, repo, "rev-parse", "HEAD")
}

func newCache(t testing.TB) Cache {
	t.Helper()
	return Cache{Dir: filepath.Join(t.TempDir(), "mirrors")}
}

func fetch(t testing.TB, c Cache, src Source) *Base {
	t.Helper()
	b, err := c.Fetch(t.Context(), src)
	if err != nil {
		t.Fatalf("Fetch: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Release(); err != nil {
			t.Errorf("Release: %v", err)
		}
	})
	return b
}

// wantError checks the kind of an error and that it says each of words.
func wantError(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if !errors.Is(err, kind) {
		t.Errorf("error is not of kind %q: %v", kind, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error does not say %q: %v", w, err)
		}
	}
}

// gitServer serves the repositories below root over smart HTTP, as GitHub
// does, to whoever has the password (empty: to all).
func gitServer(t *testing.T, root, password string, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	var h http.Handler = &cgi.Handler{
		Path: filepath.Join(git(t, "/", "--exec-path"), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"},
		// Clients that a test kills are no news.
		Stderr: io.Discard,
		Logger: log.New(io.Discard, "", 0),
	}
	if wrap != nil {
		h = wrap(h)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, got, _ := r.BasicAuth(); password != "" && got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
