package pushbroker

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/policy"
)

// squashed ingests the agent's commits, inspects them, squashes and inspects
// again.
func (l *lab) squashed(script string) (q *Quarantine, first, v Verdict) {
	l.t.Helper()
	l.sh(l.clone, script)
	w := l.work(l.bundle())
	q, err := Ingest(l.t.Context(), filepath.Join(l.t.TempDir(), "quarantine"), w, IngestLimits{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = q.Close() })
	if first, err = Inspect(l.t.Context(), q, w, nil, &wordScanner{}); err != nil {
		l.t.Fatal(err)
	}
	if err := q.Squash(l.t.Context(), w, first, "Add a file"); err != nil {
		l.t.Fatal(err)
	}
	if v, err = Inspect(l.t.Context(), q, w, nil, &wordScanner{}); err != nil {
		l.t.Fatal(err)
	}
	return q, first, v.WithLeftBehind(first)
}

const (
	withWord        = "echo 'key = PLANTED' > conf; git add conf; git commit -qm 'add conf'"
	secretInBetween = withWord + "; git rm -q conf; echo hi > new.txt; git add new.txt; git commit -qm 'use the vault'"
)

func TestSquashLeavesASecretBehind(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tree := func() string { return l.sh(l.clone, "git rev-parse HEAD^{tree}") }
	q, first, v := l.squashed(secretInBetween)
	if !first.Blocks() {
		t.Fatalf("the work as it came: %+v", first)
	}
	if !v.Pass || v.Tip != q.Tip || v.Tree != tree() || v.Base != l.base || v.Commits != 1 || v.Files != 1 {
		t.Errorf("the squashed work: %+v", v)
	}
	if got := rulesOf(v, policy.Report); len(got) == 0 || !strings.Contains(v.Findings[0].Message, "left behind") || v.Findings[0].Path != "conf" {
		t.Errorf("what was left behind: %+v", v.Findings)
	}
	for _, oid := range q.Objects {
		if body := l.sh(q.Dir, "git cat-file -p "+oid); strings.Contains(body, "PLANTED") {
			t.Errorf("object %s holds the secret", oid)
		}
	}
	want := "kick <kick@example.com> 0 +0000\nkick <kick@example.com> 0 +0000\n" + l.base + "\nAdd a file\n\n* add conf\n* use the vault"
	if got := l.sh(q.Dir, "git log -1 --format='%an <%ae> %ad%n%cn <%ce> %cd%n%P%n%B' --date=raw "+q.Tip); got != want {
		t.Errorf("the commit is\n%s\nwant\n%s", got, want)
	}
}

// TestSquashKeepsNothingBack: what is in the net tree blocks as ever, in files
// and in the message.
func TestSquashKeepsNothingBack(t *testing.T) {
	t.Parallel()
	_, _, v := newLab(t).squashed(withWord + "; echo hi > new.txt; git add new.txt; git commit -qm more")
	if !v.Blocks() {
		t.Errorf("a secret in the net tree: %+v", v)
	}
	_, first, v := newLab(t).squashed("echo a > a; git add a; git commit -qm 'key PLANTED'")
	if !first.Blocks() || !v.Pass || slices.Contains(v.Subjects, first.Subjects[0]) {
		t.Errorf("a secret in the only message: %+v", v)
	}
	_, _, v = newLab(t).squashed(withWorkflow + "; echo a > a; git add a; git commit -qm more")
	if !slices.Contains(rulesOf(v, policy.Block), "protected-ci") {
		t.Errorf("a workflow in the net tree: %+v", v)
	}
}

func TestSquashOfMerge(t *testing.T) {
	t.Parallel()
	q, _, v := newLab(t).squashed("git switch -qc side; echo a > a; git add a; git commit -qm a; git switch -q main; echo b > b; git add b; git commit -qm b; git merge -q --no-edit side")
	if !v.Pass || len(q.Commits) != 1 || v.Files != 2 {
		t.Errorf("%+v", v)
	}
}

func TestSquashKeepsOneMessage(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	q, _, _ := l.squashed("echo a > a; git add a; printf 'add a\\n\\nBecause of b.\\n' | git commit -qF -")
	if got := l.sh(q.Dir, "git log -1 --format=%B "+q.Tip); got != "add a\n\nBecause of b." {
		t.Errorf("message %q", got)
	}
}

// TestSquashIsTheSameTwice is what makes a repetition find its own branch.
func TestSquashIsTheSameTwice(t *testing.T) {
	t.Parallel()
	const script = "GIT_COMMITTER_DATE='1700000001 +0000' git commit -q --allow-empty -m x; " + oneFile
	a, _, _ := newLab(t).squashed(script)
	b, _, _ := newLab(t).squashed(script)
	if a.Tip != b.Tip {
		t.Errorf("%s and %s", a.Tip, b.Tip)
	}
}

func TestSquashOfNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	q := l.quarantine(oneFile + "; git revert --no-edit HEAD")
	if err := q.Squash(t.Context(), l.work(""), Verdict{}, "x"); !errors.Is(err, ErrNothing) {
		t.Errorf("got %v", err)
	}
}

// TestPublishSquashed pushes the one commit, and nothing of the others.
func TestPublishSquashed(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, secretInBetween)
	first := s.req.Quarantine.Tip
	s.must(s.req.Quarantine.Squash(t.Context(), s.work(""), Verdict{}, "Add a file"))
	if _, err := Publish(t.Context(), s.req); reasonOf(err) != ReasonUsage {
		t.Fatalf("the verdict is about other commits: %v", err)
	}
	s.req.Verdict = passing(s.req.Quarantine)
	if _, err := Publish(t.Context(), s.req); err != nil {
		t.Fatal(err)
	}
	if got := s.repo.Ref("refs/heads/" + kickBranch); got != s.req.Quarantine.Tip || s.repo.Ref(first) != "" {
		t.Errorf("the branch is at %s; the agent's commit: %q", got, s.repo.Ref(first))
	}
}
