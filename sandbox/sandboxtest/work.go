package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

// git runs the host's git in dir.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C",
		"GIT_AUTHOR_NAME=host", "GIT_AUTHOR_EMAIL=host@example.com", "GIT_COMMITTER_NAME=host", "GIT_COMMITTER_EMAIL=host@example.com",
	}
	out, err := cmd.Output()
	if err != nil {
		var words string
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			words = string(exit.Stderr)
		}
		t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, words)
	}
	return strings.TrimSuffix(string(out), "\n")
}

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// task is a repository, a workspace prepared from it, and a sink.
type task struct {
	base string // repository with one commit
	oid  string
	spec sandbox.LaunchSpec
	sink *memorySink
}

// workOn returns a run of script in a prepared workspace, with its base objects
// outside of it, as package workspace makes it.
func (s *suite) workOn(t *testing.T, script string) task {
	t.Helper()
	base := filepath.Join(t.TempDir(), "base")
	if err := os.Mkdir(base, 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, base, "init", "-q", "--template=", "-b", "main")
	writeFile(t, filepath.Join(base, "README.md"), "hello\n")
	writeFile(t, filepath.Join(base, "src/a.txt"), "a\n")
	git(t, base, "add", "-A")
	git(t, base, "commit", "-q", "-m", "base")
	oid := git(t, base, "rev-parse", "HEAD")

	spec := s.script(t, script)
	dir := spec.Workspace.Dir
	writeFile(t, filepath.Join(dir, ".git/config"), "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tlogallrefupdates = true\n[user]\n\tname = Agent\n\temail = agent@example.com\n")
	writeFile(t, filepath.Join(dir, ".git/HEAD"), "ref: refs/heads/main\n")
	writeFile(t, filepath.Join(dir, ".git/refs/heads/main"), oid+"\n")
	writeFile(t, filepath.Join(dir, ".git/objects/info/alternates"), sandbox.BaseObjectsPath+"\n")
	writeFile(t, filepath.Join(dir, ".git/info/exclude"), "/.hive/\n")
	writeFile(t, filepath.Join(dir, ".hive/kick-prompt.txt"), "do the task\n")
	spec.Workspace.BaseOID = oid
	spec.Workspace.Objects = filepath.Join(base, ".git/objects")
	k := task{base: base, oid: oid, spec: spec, sink: newMemorySink()}
	k.spec.Workspace.Sink = k.sink
	return k
}

const commitOne = `set -e
test "$(cat .hive/kick-prompt.txt)" = "do the task"
test -z "$(git status --porcelain)"
echo one >one.txt; git add one.txt; git commit -q -m one
`

// summary returns the work summary.
func (k task) summary(t *testing.T) sandbox.Work {
	t.Helper()
	var w sandbox.Work
	if err := json.Unmarshal(k.sink.content(sandbox.WorkSummary), &w); err != nil {
		t.Fatalf("work summary %q: %v", k.sink.content(sandbox.WorkSummary), err)
	}
	return w
}

// wantCommit fails unless the final bundle brings one commit with one.txt onto
// the base.
func (k task) wantCommit(t *testing.T) (clone string) {
	t.Helper()
	clone, refs := k.fetch(t, sandbox.FinalBundle)
	if len(refs) != 1 || refs["HEAD"] == "" {
		t.Fatalf("refs of the final bundle: %v", refs)
	}
	if got := git(t, clone, "show", refs["HEAD"]+":one.txt"); got != "one" {
		t.Errorf("one.txt is %q", got)
	}
	if got := git(t, clone, "rev-parse", refs["HEAD"]+"^"); got != k.oid {
		t.Errorf("the parent of the commit is %s, want the base %s", got, k.oid)
	}
	if w := k.summary(t); w.Head != refs["HEAD"] || w.Commits != 1 || w.Branch == "" {
		t.Errorf("summary %+v", w)
	}
	return clone
}

// fetch fetches a bundle into a fresh clone of the base.
func (k task) fetch(t *testing.T, a sandbox.Artifact) (clone string, refs map[string]string) {
	t.Helper()
	if !k.sink.whole(a) {
		t.Fatalf("there is no %s among %s", a, k.sink)
	}
	file := filepath.Join(t.TempDir(), "bundle")
	if err := os.WriteFile(file, k.sink.content(a), 0o600); err != nil {
		t.Fatal(err)
	}
	clone = filepath.Join(t.TempDir(), "clone")
	git(t, k.base, "clone", "-q", "--shared", "--no-checkout", "--template=", k.base, clone)
	git(t, clone, "bundle", "verify", "-q", file)
	refs = map[string]string{}
	for _, line := range strings.Split(git(t, clone, "bundle", "list-heads", file), "\n") {
		oid, name, _ := strings.Cut(line, " ")
		refs[name] = oid
	}
	if refs["HEAD"] != "" {
		git(t, clone, "fetch", "-q", file, "HEAD")
	} else {
		git(t, clone, "fetch", "-q", file, "refs/*:refs/got/*")
	}
	return clone, refs
}

// What the agent did comes back: commits, the rest, uncommitted files, reports.
func (s *suite) work(t *testing.T) {
	k := s.workOn(t, commitOne+`
git log --oneline >/dev/null
git checkout -q -b other; echo two >two.txt; git add two.txt; git commit -q -m two; git checkout -q main
echo stashed >>README.md; git stash -q
echo changed >>src/a.txt
echo untracked >untracked.txt
echo '{"ok":true}' >.hive/agent-report.json
git diff --stat >/dev/null
echo done
`)
	r := s.start(t, k.spec)
	o := r.wait()
	if o.err != nil || o.Reason != sandbox.ReasonExited || o.ExitCode != 0 {
		t.Fatalf("%v, %s, exit code %d, %s, stderr %q", o.err, o.Reason, o.ExitCode, o.Detail, o.stderr)
	}
	want := []sandbox.Artifact{sandbox.WorkSummary, sandbox.FinalBundle, sandbox.RestBundle, sandbox.DirtyArchive, sandbox.Report}
	if !slices.Equal(o.Artifacts, want) || len(o.Missing) > 0 {
		t.Errorf("artifacts %v, missing %v, want %v", o.Artifacts, o.Missing, want)
	}
	if !slices.Equal(o.events, []sandbox.EventKind{sandbox.EventProved, sandbox.EventStarted, sandbox.EventExited, sandbox.EventBundled, sandbox.EventFinished}) {
		t.Errorf("events %v", o.events)
	}
	k.wantCommit(t)
	w := k.summary(t)
	if w.Branch != "main" || w.Stashes != 1 || w.DirtyCount != 2 || !slices.Contains(w.Unpublished, "refs/heads/other") || len(w.Problems) > 0 {
		t.Errorf("summary %+v", w)
	}
	clone, refs := k.fetch(t, sandbox.RestBundle)
	if got := git(t, clone, "show", refs["refs/heads/other"]+":two.txt"); got != "two" {
		t.Errorf("two.txt on the other branch is %q", got)
	}
	if got := git(t, clone, "show", refs["refs/kick/uncommitted"]+":src/a.txt"); got != "a\nchanged" {
		t.Errorf("src/a.txt among the uncommitted changes is %q", got)
	}
	var all strings.Builder
	for _, oid := range refs {
		all.WriteString(git(t, clone, "show", oid+":README.md"))
	}
	if !strings.Contains(all.String(), "stashed") {
		t.Errorf("the stash is not in the rest: %v", refs)
	}
	files := untar(t, k.sink.content(sandbox.DirtyArchive))
	if files["untracked.txt"] != "untracked\n" || files["src/a.txt"] != "a\nchanged\n" || len(files) != 2 {
		t.Errorf("archive %q", files)
	}
	if got := k.sink.report("agent-report.json"); got != "{\"ok\":true}\n" {
		t.Errorf("report %q", got)
	}
}

func untar(t *testing.T, b []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content)
	}
}

func (s *suite) workUntouched(t *testing.T) {
	k := s.workOn(t, "git status --porcelain; git rev-parse HEAD; cat README.md")
	o := s.succeed(t, k.spec)
	if o.stdout != k.oid+"\nhello\n" {
		t.Errorf("stdout %q", o.stdout)
	}
	if !slices.Equal(o.Artifacts, []sandbox.Artifact{sandbox.WorkSummary}) || len(o.Missing) > 0 {
		t.Errorf("artifacts %v, missing %v", o.Artifacts, o.Missing)
	}
	if w := k.summary(t); w.Head != k.oid || w.Commits != 0 || w.DirtyCount != 0 {
		t.Errorf("summary %+v", w)
	}
}

func (s *suite) workAfterTimeout(t *testing.T) {
	k := s.workOn(t, commitOne+stubborn)
	k.spec.Limits.Wall = 6 * time.Second // a commit and four processes, on a busy machine
	o := s.run(t, k.spec)
	if o.Reason != sandbox.ReasonTimeout {
		t.Errorf("reason %s, %s, stderr %q", o.Reason, o.Detail, o.stderr)
	}
	k.wantCommit(t)
}

func (s *suite) workAfterCancel(t *testing.T) {
	k := s.workOn(t, commitOne+stubborn)
	r := s.start(t, k.spec)
	r.waitFor("all run\n")
	r.cancel()
	if o := r.wait(); o.err != nil || o.Reason != sandbox.ReasonCancelled {
		t.Errorf("%v, %s, %s", o.err, o.Reason, o.Detail)
	}
	k.wantCommit(t)
}

func (s *suite) workAfterMemoryLimit(t *testing.T) {
	k := s.workOn(t, commitOne+"exec ./probe memory 1000000000")
	b, err := os.ReadFile(s.probe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.spec.Workspace.Dir, "probe"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	k.spec.Command[2] = strings.Replace(k.spec.Command[2], `test -z "$(git status --porcelain)"`, ":", 1) // the probe is untracked
	k.spec.Limits.Memory = 128 << 20
	if o := s.run(t, k.spec); o.Reason != sandbox.ReasonOutOfMemory {
		t.Errorf("reason %s, %s, stderr %q", o.Reason, o.Detail, o.stderr)
	}
	k.wantCommit(t)
}

// Without a command only the artifacts are made, and the workspace stays as it
// is: this is how work is salvaged.
func (s *suite) workOnly(t *testing.T) {
	k := s.workOn(t, commitOne+"echo dirty >dirty.txt")
	k.spec.Workspace.Sink = nil
	if o := s.succeed(t, k.spec); len(o.Artifacts) != 0 || len(o.Missing) != 0 {
		t.Errorf("without a sink: artifacts %v, missing %v", o.Artifacts, o.Missing)
	}
	before := tree(t, k.spec.Workspace.Dir)
	k.spec.Command, k.spec.Workspace.Sink = nil, k.sink
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if res, err := s.launcher.Run(cancelled, k.spec); err == nil || len(res.Artifacts) > 0 {
		t.Errorf("a cancelled run has taken out %v, %v", res.Artifacts, err)
	}
	o := s.run(t, k.spec)
	if !slices.Equal(o.Artifacts, []sandbox.Artifact{sandbox.WorkSummary, sandbox.FinalBundle, sandbox.RestBundle, sandbox.DirtyArchive}) || len(o.Missing) > 0 {
		t.Errorf("artifacts %v, missing %v", o.Artifacts, o.Missing)
	}
	if o.StdoutBytes != 0 || !o.Started.IsZero() || len(o.Isolation.Properties) == 0 || len(o.Isolation.Missing()) > 0 {
		t.Errorf("result %+v", o.Result)
	}
	k.wantCommit(t)
	if after := tree(t, k.spec.Workspace.Dir); after != before {
		t.Errorf("the workspace changed from\n%s\nto\n%s", before, after)
	}
}

// tree lists a directory with sizes and times.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&b, p, info.Mode(), info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// An artifact over its limit breaks off and is named; the others come.
func (s *suite) workTooLarge(t *testing.T) {
	k := s.workOn(t, commitOne+"head -c 300000 /dev/urandom >big; git add big; git commit -q -m big; echo x >small.txt")
	k.spec.Limits.Bundle = 100_000
	o := s.succeed(t, k.spec)
	if k.sink.whole(sandbox.FinalBundle) || !k.sink.whole(sandbox.DirtyArchive) || !k.sink.whole(sandbox.WorkSummary) {
		t.Errorf("artifacts %s", k.sink)
	}
	missing := strings.Join(o.Missing, "\n")
	if !strings.Contains(missing, string(sandbox.FinalBundle)) || !strings.Contains(missing, "100000") {
		t.Errorf("missing %q", o.Missing)
	}
	if slices.Contains(o.Artifacts, sandbox.FinalBundle) || !slices.Contains(o.Artifacts, sandbox.DirtyArchive) {
		t.Errorf("artifacts %v", o.Artifacts)
	}
}

func (s *suite) workUnlimited(t *testing.T) {
	k := s.workOn(t, commitOne)
	k.spec.Limits.Bundle, k.spec.Limits.Disk, k.spec.Limits.Memory, k.spec.Limits.Processes = -1, -1, -1, -1
	if o := s.succeed(t, k.spec); len(o.Missing) > 0 {
		t.Errorf("missing %q", o.Missing)
	}
	k.wantCommit(t)
}

// A sink that fails costs its artifact and nothing else.
func (s *suite) sinkFails(t *testing.T) {
	k := s.workOn(t, commitOne+"echo x >small.txt")
	k.sink.refuse, k.sink.breakAfter = sandbox.RestBundle, sandbox.DirtyArchive
	o := s.succeed(t, k.spec)
	missing := strings.Join(o.Missing, "\n")
	for _, a := range []sandbox.Artifact{sandbox.RestBundle, sandbox.DirtyArchive} {
		if !strings.Contains(missing, string(a)) || slices.Contains(o.Artifacts, a) {
			t.Errorf("%s: artifacts %v, missing %q", a, o.Artifacts, o.Missing)
		}
	}
	if !k.sink.aborted[sandbox.DirtyArchive] {
		t.Error("the archive's writer was not aborted")
	}
	k.wantCommit(t)
}

// The base's objects can be read and not written.
func (s *suite) baseObjects(t *testing.T) {
	k := s.workOn(t, `
o=`+sandbox.BaseObjectsPath+`
find $o -type f | head -1 | xargs cat >/dev/null || echo cannot read
touch $o/x 2>/dev/null && echo wrote
for f in $o/*/*; do rm -f $f 2>/dev/null && [ ! -e $f ] && echo removed; chmod 666 $f 2>/dev/null && echo changed; break; done
git fsck >/dev/null 2>&1 || echo fsck
`)
	if o := s.succeed(t, k.spec); o.stdout != "" {
		t.Errorf("stdout %q", o.stdout)
	}
	git(t, k.base, "fsck", "--strict")
}

// A base that is not there stops the run before the command starts.
func (s *suite) badBase(t *testing.T) {
	k := s.workOn(t, "echo ran")
	k.spec.Workspace.BaseOID = strings.Repeat("1", 40)
	o := s.start(t, k.spec).wait()
	if o.err == nil || o.Reason != sandbox.ReasonStartFailed || !o.Started.IsZero() || o.stdout != "" {
		t.Errorf("error %v, result %+v, stdout %q", o.err, o.Result, o.stdout)
	}
	if o.err != nil && !strings.Contains(o.err.Error(), strings.Repeat("1", 40)) {
		t.Errorf("the error does not name the base: %v", o.err)
	}
}
