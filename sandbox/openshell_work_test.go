package sandbox_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/openshelltest"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/workspace"
)

// No command can end its own shim; one that ends all the same costs the run, and not
// the work.
func TestOpenShellShim(t *testing.T) {
	t.Parallel()
	r := onOpenShell(t, openshelltest.Options{}, "for s in KILL STOP TERM INT SEGV; do kill -$s $PPID 2>/dev/null && echo sent $s; done; echo ran", nil)
	if r.err != nil || r.Reason != sandbox.ReasonExited || r.stdout != "ran\n" {
		t.Errorf("%v, %+v, %q", r.err, r.Result, r.stdout)
	}

	dir := filepath.Join(t.TempDir(), "out")
	sink, err := workspace.NewDirSink(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	r = onOpenShell(t, openshelltest.Options{}, "echo mine >file; echo ready; exec sleep 100", func(_ *sandbox.OpenShellConfig, s *sandbox.LaunchSpec) {
		s.Workspace.Sink = sink
		s.Stdout = onFirstWrite(func() { killShim(t, s.ID) })
	})
	r.wantError(t, sandbox.ErrRuntime, "the shim has ended")
	if r.Reason != sandbox.ReasonLost || len(r.Missing) > 0 || !slices.Contains(r.Artifacts, sandbox.DirtyArchive) {
		t.Errorf("%+v", r.Result)
	}
	if b, err := os.ReadFile(filepath.Join(dir, string(sandbox.DirtyArchive))); !bytes.Contains(b, []byte("mine\n")) {
		t.Errorf("the archive has %d bytes, %v", len(b), err)
	}
}

// What a sandbox that is lost had at its last checkpoint is there: commits, other
// branches and changes that are not committed.
func TestOpenShellCheckpoint(t *testing.T) {
	t.Parallel()
	base, w := baseRepository(t)
	dir := filepath.Join(t.TempDir(), "out")
	kept, err := workspace.NewDirSink(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	g := openshelltest.Start(t, openshelltest.Options{})
	l, err := sandbox.NewOpenShell(openShellConfig(g))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bundle := filepath.Join(dir, string(sandbox.Checkpoint))
	all := []string{" refs/kick/head\n", " refs/heads/other\n", " refs/kick/uncommitted\n"}
	w.Checkpoint, w.Sink = 100*time.Millisecond, &watchedSink{kept, func() {
		heads := gitIn(t, base, "bundle", "list-heads", bundle)
		if !slices.ContainsFunc(all, func(ref string) bool { return !strings.Contains(heads, ref) }) {
			g.Lose()
		}
	}}
	const script = `git commit -qm one --allow-empty; git checkout -qb other; git commit -qm two --allow-empty; git checkout -q main; echo changed >>README; exec sleep 100`
	res, err := l.Run(t.Context(), sandbox.LaunchSpec{
		ID: "c" + random(), Image: openshelltest.Image, Command: []string{"sh", "-c", script}, Env: map[string]string{"PATH": sandboxPath},
		Workspace: w, Limits: sandbox.Limits{Wall: time.Minute},
	})
	if !errors.Is(err, sandbox.ErrRuntime) || res.Reason != sandbox.ReasonLost || res.Checkpoint.IsZero() || len(res.Artifacts) > 0 || !strings.Contains(strings.Join(res.Missing, " "), "its sandbox is gone") {
		t.Errorf("%v, %+v", err, res)
	}
	gitIn(t, base, "bundle", "verify", "-q", bundle)
}

// watchedSink tells of each checkpoint that is whole.
type watchedSink struct {
	sandbox.Sink
	came func()
}

func (s *watchedSink) Create(a sandbox.Artifact, name string) (sandbox.SinkWriter, error) {
	w, err := s.Sink.Create(a, name)
	if err == nil && a == sandbox.Checkpoint {
		w = &watchedWriter{w, s.came}
	}
	return w, err
}

type watchedWriter struct {
	sandbox.SinkWriter
	came func()
}

func (w *watchedWriter) Close() error {
	err := w.SinkWriter.Close()
	w.came()
	return err
}

// gitIn runs the host's git.
func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@a.test", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@a.test")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// baseRepository is a repository with one commit, and a workspace of it.
func baseRepository(t *testing.T) (base string, w sandbox.Workspace) {
	t.Helper()
	base = t.TempDir()
	gitIn(t, base, "init", "-q", "-b", "main")
	if err := os.WriteFile(filepath.Join(base, "README"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	gitIn(t, base, "add", "README")
	gitIn(t, base, "commit", "-qm", "base")
	w = sandbox.Workspace{Dir: t.TempDir(), BaseOID: strings.TrimSpace(gitIn(t, base, "rev-parse", "HEAD")), Objects: filepath.Join(base, ".git/objects")}
	gitIn(t, w.Dir, "init", "-q", "--template=", "-b", "main")
	for name, content := range map[string]string{
		".git/refs/heads/main":         w.BaseOID + "\n",
		".git/objects/info/alternates": sandbox.BaseObjectsPath + "\n",
		".git/config":                  "[core]\n\trepositoryformatversion = 0\n\tbare = false\n[user]\n\tname = a\n\temail = a@a.test\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(w.Dir, name)), 0o755), os.WriteFile(filepath.Join(w.Dir, name), []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return base, w
}

// onFirstWrite is a writer that calls a function once.
type onFirstWrite func()

func (f onFirstWrite) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// killShim kills the server among the processes of a sandbox, which are this host's.
func killShim(t *testing.T, id string) {
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, exe := range exes {
		pid, err := strconv.Atoi(strings.Split(exe, "/")[2])
		to, _ := os.Readlink(exe) // one that is gone is not it
		args, _ := os.ReadFile(filepath.Dir(exe) + "/cmdline")
		if err == nil && to == "/tmp/kick-"+id+"/kick-shim" && bytes.Contains(args, []byte("guest-serve")) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Error("there is no shim")
}
