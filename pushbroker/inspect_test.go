package pushbroker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/policy"
)

var update = flag.Bool("update", false, "write the golden files anew")

// wordScanner finds the words PLANTED-..., as a real scanner finds secrets:
// certain ones in capitals, possible ones in lower case, and what base holds
// already is not new.
type wordScanner struct {
	items []string
	fail  error
}

func (s *wordScanner) Digest() string     { return "words:1" }
func (s *wordScanner) HeldDigest() string { return "held:0" }

func (s *wordScanner) Scan(ctx context.Context, it Item) ([]policy.Finding, error) {
	s.items = append(s.items, fmt.Sprintf("%s %s %q", it.Kind, it.Path, it.Data[:min(len(it.Data), 40)]))
	var found []policy.Finding
	for word, level := range map[string]policy.Level{"PLANTED": policy.Block, "planted": policy.Review, "KNOWN-VALUE-1": policy.Block} {
		i := bytes.Index(it.Data, []byte(word))
		if i < 0 {
			continue
		}
		old, err := it.Base.Contains(ctx, []byte(word))
		if err != nil {
			return nil, err
		}
		if old {
			continue
		}
		found = append(found, policy.Finding{
			Rule: "word", Level: level, Message: "a planted word", Remedy: "Remove it.",
			Line: 1 + bytes.Count(it.Data[:i], []byte("\n")), Fingerprint: "fp:" + word,
		})
	}
	return found, s.fail
}

// Every byte that would leave is scanned, wherever it hides.
func TestEveryPlaceIsScanned(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, script string
		branch       string
		path, place  string
		level        policy.Level
		none         bool
	}{
		{name: "file", script: `echo x PLANTED > f` + addAll, path: "f"},
		{name: "possible", script: `echo x planted > f` + addAll, path: "f", level: policy.Review},
		{name: "deleted later", script: `echo PLANTED > f` + addAll + `; git rm -q f; echo a > a` + addAll, path: "f"},
		{name: "binary", script: `printf 'a\0PLANTED' > f` + addAll, path: "f"},
		{name: "empty directory entry", script: `mkdir -p a/b/c; echo PLANTED > a/b/c/f` + addAll, path: "a/b/c/f"},
		{name: "only in a merge", script: `git checkout -qb s; echo s > s` + addAll + `; git checkout -q main; echo t > t` + addAll + `; git merge -q --no-commit --no-ff s; echo PLANTED > m; git add m; git commit -qm m`, path: "m"},
		{name: "message", script: `echo a > a; git add a; git commit -qm 'x PLANTED'`, place: "commit"},
		{name: "author", script: `echo a > a; git add a; git -c user.name=PLANTED commit -qm x`, place: "commit"},
		{name: "path", script: `echo a > PLANTED` + addAll, path: "PLAN… (redacted)", place: "path"},
		{name: "directory", script: `mkdir PLANTED; echo a > PLANTED/a` + addAll, path: "PLAN… (redacted)", place: "path"},
		{name: "directory without files", script: withEntry("040000", "tree", "PLANTED", ""), path: "PLAN… (redacted)", place: "path"},
		{name: "link", script: `ln -s PLANTED l` + addAll, path: "l", place: "symlink-target"},
		{name: "link and file", script: `printf PLANTED > f; ln -s PLANTED a` + addAll, path: "a"},
		{name: "branch", script: `echo a > a` + addAll, branch: "kick/PLANTED", place: "branch"},
		{name: "no attribute hides it", script: `echo x > src/q; echo PLANTED > f; printf '* -diff\n' > .git/info/attributes` + addAll, path: "f"},
		{name: "known to base is not new", script: `cp legacy/old.env copy.env; echo more >> copy.env` + addAll, none: true},
		{name: "deletion of a known one", script: `git rm -q legacy/old.env; git commit -qm rm`, none: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.sh(l.clone, tc.script)
			w := l.work(l.bundle())
			if tc.branch != "" {
				w.Branch = tc.branch
			}
			v, err := l.try(w, nil, &wordScanner{})
			if err != nil {
				t.Fatal(err)
			}
			var hits []policy.Finding
			for _, f := range v.Findings {
				if f.Rule == "word" {
					hits = append(hits, f)
				}
			}
			if tc.none {
				if len(hits) > 0 {
					t.Errorf("found %+v", hits)
				}
				return
			}
			want := tc.level
			if want == "" {
				want = policy.Block
			}
			if len(hits) != 1 || hits[0].Level != want || hits[0].Path != tc.path || hits[0].Place != tc.place || tc.branch == "" && hits[0].Commit == "" {
				t.Errorf("found %+v", hits)
			}
			if v.Pass {
				t.Error("passed")
			}
		})
	}
}

// A verdict is stored, printed and sent on: whatever a rule quotes, no part of
// it holds the secret that a scanner found there.
func TestVerdictHoldsNoSecret(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"link target":               `ln -s /x/PLANTED l` + addAll,
		"link target as a file too": `printf /x/PLANTED > f; ln -s /x/PLANTED l` + addAll,
		"through a link":            `ln -s ../PLANTED a; ln -s a/x l` + addAll,
		"path that must not be":     `echo x > 'PLANTED?'` + addAll,
		"path with control":         `echo x > "$(printf 'PLANTED\tx')"` + addAll,
		"path that collides":        `mkdir d; echo x > d/PLANTED; echo y > d/planTED` + addAll,
		"trailer": `echo a > a; git add a; git commit -qm 'x

Signed-off-by: PLANTED <p@example.com>'`,
		"skip-checks": `echo a > a; git add a; git commit -qm 'x

skip-checks: PLANTED'`,
		"author":         `echo a > a; git add a; git -c user.name=PLANTED commit -qm x`,
		"message":        `echo a > a; git add a; git commit -qm 'PLANTED'`,
		"protected path": `mkdir .github/PLANTED; echo x > .github/PLANTED/x` + addAll,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.sh(l.clone, script)
			v := l.judge(l.bundle(), nil, &wordScanner{})
			if v.Pass || !slices.Contains(rulesOf(v, policy.Block), "word") {
				t.Fatalf("verdict %+v", v)
			}
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			b = bytes.ReplaceAll(b, []byte("fp:PLANTED"), nil)
			if i := bytes.Index(b, []byte("PLANTED")); i >= 0 {
				t.Errorf("the verdict has it: %s", b[max(i-200, 0):min(i+50, len(b))])
			}
		})
	}
}

func TestEachItemIsScannedOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `echo same > a; echo same > b; mkdir d; echo same > d/c; ln -s a l; echo more >> README.md; git add -A; git commit -qm one; git mv a e; git commit -qm two`)
	s := &wordScanner{}
	v := l.judge(l.bundle(), nil, s)
	if !v.Pass {
		t.Fatalf("findings %+v", v.Findings)
	}
	var kinds []string
	for _, it := range s.items {
		if !strings.HasPrefix(it, "commit") {
			kinds = append(kinds, it)
		}
	}
	slices.Sort(kinds)
	want := []string{
		`blob README.md "# demo\nmore\nmore\n"`, `blob a "same\n"`,
		`branch  "kick/claude/k0000000000000"`,
		`path a "a"`, `path b "b"`, `path d/c "d/c"`, `path e "e"`, `path l "l"`,
		`symlink-target l "a"`,
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("items\n%s\nwant\n%s", strings.Join(kinds, "\n"), strings.Join(want, "\n"))
	}
}

func TestScannerThatFailsEndsTheInspection(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
	broken := errors.New("budget spent")
	if v, err := l.try(l.work(l.bundle()), nil, &wordScanner{fail: broken}); !errors.Is(err, broken) || v.Pass {
		t.Errorf("verdict %+v, error %v", v, err)
	}
}

// slowScanner takes as long as it may.
type slowScanner struct{ wordScanner }

func (s *slowScanner) Scan(ctx context.Context, _ Item) ([]policy.Finding, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Work that takes too long to judge is refused, and is no failure of kick's.
// The test changes a limit of the package and runs alone.
func TestInspectionThatTakesTooLongRefuses(t *testing.T) {
	l := newLab(t)
	l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
	before := inspectTime
	inspectTime = 200 * time.Millisecond
	defer func() { inspectTime = before }()
	v := l.judge(l.bundle(), nil, &slowScanner{})
	if got := rulesOf(v, policy.Block); v.Pass || v.Review || !slices.Equal(got, []string{"limit-ingest"}) {
		t.Errorf("verdict %+v", v)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	q, err := Ingest(context.Background(), filepath.Join(l.dir, "q"), l.work(l.bundle()), IngestLimits{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := Inspect(ctx, q, l.work(""), nil, &slowScanner{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled inspection: %v", err)
	}
}

func TestPolicyDecides(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `echo 'on: push' > .github/workflows/docs.yml; echo PLANTED > f; git add -A; git commit -qm x`)
	bundle := l.bundle()
	for _, tc := range []struct {
		name, file    string
		pass, review  bool
		block, report []string
	}{
		{name: "default", file: "version: 1\n", block: []string{"protected-ci", "word"}},
		{name: "levels", file: "version: 1\nchanges: {rules: {protected-ci: report}}\nsecrets: {certain: review}\n", review: true, report: []string{"protected-ci"}},
		{name: "scope of another repository", file: "version: 1\nchanges: {scopes: [{repos: [acme/other], rules: {protected-ci: report}}]}\nsecrets: {certain: report}\n", block: []string{"protected-ci"}, report: []string{"word"}},
		{name: "scope", file: "version: 1\nchanges: {scopes: [{repos: [acme/demo], agents: [claude], rules: {protected-ci: report}}]}\nsecrets: {certain: report}\n", pass: true, report: []string{"protected-ci", "word"}},
		{name: "exceptions", file: "version: 1\nchanges: {exceptions: [{rule: protected-ci, paths: [\".github/workflows/docs.yml\"], reason: docs, expires: 2999-01-01}]}\nsecrets: {exceptions: [{fingerprint: \"fp:PLANTED\", reason: test data, expires: 2999-01-01}]}\n", pass: true, report: []string{"protected-ci", "word"}},
		{name: "expired", file: "version: 1\nchanges: {exceptions: [{rule: protected-ci, reason: docs, expires: 2020-01-01}]}\nsecrets: {certain: report}\n", block: []string{"protected-ci"}, report: []string{"exception-expired", "word"}},
		{name: "allowed paths", file: "version: 1\nchanges: {allow_only: [\"src/**\"], rules: {protected-ci: report}}\nsecrets: {certain: report}\n", block: []string{"path-not-allowed", "path-not-allowed"}, report: []string{"protected-ci", "word"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pol, err := policy.Parse("policy.yaml", []byte(tc.file))
			if err != nil {
				t.Fatal(err)
			}
			v := l.judge(bundle, pol, &wordScanner{})
			block, report := rulesOf(v, policy.Block), rulesOf(v, policy.Report)
			slices.Sort(block)
			slices.Sort(report)
			if v.Pass != tc.pass || v.Review != tc.review || !slices.Equal(block, tc.block) || !slices.Equal(report, tc.report) {
				t.Errorf("pass %v, review %v, block %v, report %v", v.Pass, v.Review, block, report)
			}
			if v.Digests["policy"] != pol.Digest() || v.Digests["held-values"] != "held:0" || v.Digests["base"] != l.base || v.Digests["scanner"] == "" {
				t.Errorf("digests %v", v.Digests)
			}
			if (v.Digests["day"] != "") != strings.Contains(tc.file, "expires") {
				t.Errorf("digests %v", v.Digests)
			}
		})
	}
}

func TestInspectIsDeterministic(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `for i in 1 2 3 4 5; do echo PLANTED $i > f$i; ln -s /x l$i; echo $i > .github/w$i; git add -A; git commit -qm c$i; done`)
	bundle := l.bundle()
	var first []byte
	for range 3 {
		b, err := json.Marshal(l.judge(bundle, nil, &wordScanner{}))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		} else if !bytes.Equal(first, b) {
			t.Fatalf("verdicts differ:\n%s\n%s", first, b)
		}
	}
}

func TestVerdictSaysWhatChanged(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `echo one > one; git add one; git commit -qm 'Add one

body'; printf 'two\n' >> README.md; sed -i 's/line 7 /line seven /' src/long.go; git rm -q docs/index.md; rm src/main.go; ln -s long.go src/main.go; git add -A; git commit -qm 'More'`)
	v := l.judge(l.bundle(), nil)
	want := []Change{{"M", "README.md", "100644"}, {"D", "docs/index.md", ""}, {"A", "one", "100644"}, {"M", "src/long.go", "100644"}, {"T", "src/main.go", "120000"}}
	got := slices.Clone(v.Changes)
	slices.SortFunc(got, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	if !slices.Equal(got, want) {
		t.Errorf("changes %+v", got)
	}
	if v.Commits != 2 || v.Files != 5 || !slices.Equal(v.Subjects, []string{"Add one", "More"}) {
		t.Errorf("verdict %+v", v)
	}
	stat := l.sh(l.clone, "git diff --no-renames --shortstat "+l.base+" HEAD")
	if want := fmt.Sprintf("%d insertions(+), %d deletions(-)", v.Added, v.Removed); !strings.Contains(stat, want) {
		t.Errorf("git says %q, the verdict %q", stat, want)
	}
}

func TestInspectNeedsAnOpenQuarantine(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
	w := l.work(l.bundle())
	q, err := Ingest(context.Background(), filepath.Join(l.dir, "q"), w, IngestLimits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(q.Close(), q.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(context.Background(), q, w, nil); err == nil {
		t.Error("a closed quarantine was inspected")
	}
}

func TestBase(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tree := l.sh(l.clone, "git rev-parse HEAD^{tree}")
	b := &baseReader{commit: l.base, tree: newCommitTree(nil, tree), known: map[[32]byte]bool{}}
	b.git.Dir = l.mirror
	defer b.close()
	ctx := context.Background()
	for path, want := range map[string]string{"docs/index.md": "# docs\n", "docs": "", "nope": "", "docs/index.md/x": "", "": ""} {
		data, ok, err := b.Blob(ctx, path)
		if err != nil || string(data) != want || ok != (want != "") {
			t.Errorf("%q: %q, %v, %v", path, data, ok, err)
		}
	}
	for value, want := range map[string]bool{"KNOWN-VALUE-1": true, "old workflow": true, "base two": true, "nowhere": false, "": false} {
		if got, err := b.Contains(ctx, []byte(value)); got != want || err != nil {
			t.Errorf("%q: %v, %v", value, got, err)
		}
	}
}

// A table shows a rule once, with its first places, and fits every width.
func TestWriteTableOfMany(t *testing.T) {
	t.Parallel()
	var v Verdict
	for i := range 93 {
		f := policy.NewFinding("protected-ci", "added (/.github/**)")
		f.Path, f.Commit = fmt.Sprintf(".github/workflows/%03d.yml", i), strings.Repeat("a", 40)
		v.Findings = append(v.Findings, f)
	}
	wide := policy.NewFinding("path-control", "U+001B at byte 4")
	wide.Path = strings.Repeat("漢字\x1b[2J\u202e", 30) + strings.Repeat("x", 200)
	v.Findings = append(v.Findings, wide)
	for _, width := range []int{0, 1, 60, 80, 100, 120, 500} {
		var out bytes.Buffer
		if err := v.WriteTable(&out, TableOptions{Width: width}); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		if n := strings.Count(text, "where .github"); n != maxPlaces || !strings.Contains(text, "and 88 more of rule protected-ci") || strings.Count(text, "protected-ci\n") != 1 {
			t.Errorf("width %d: %d places:\n%s", width, n, text)
		}
		limit := min(max(width, 60), 120)
		if width == 0 {
			limit = 80
		}
		for line := range strings.Lines(text) {
			if n := runewidth.StringWidth(strings.TrimSuffix(line, "\n")); n > limit {
				t.Errorf("width %d: %d columns: %q", width, n, line)
			}
		}
		if strings.ContainsAny(text, "\x1b\u202e") {
			t.Errorf("width %d: hostile text came through:\n%q", width, text)
		}
	}
}

func TestWriteTable(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `mkdir -p "a very long directory name/that goes on/and on and on/until it is wider than the table/itself"
		echo PLANTED > "a very long directory name/that goes on/and on and on/until it is wider than the table/itself/file.txt"
		echo x > .github/workflows/new.yml; echo e > "$(printf 'bad\033[31mname\n::error::x')"; echo x > go.mod; echo s > t.sh; chmod +x t.sh
		git add -A; git commit -qm 'x'`)
	refused := l.judge(l.bundle(), nil, &wordScanner{})
	l2 := newLab(t)
	l2.sh(l2.clone, `echo a > a; git add a; git commit -qm a`)
	for name, v := range map[string]Verdict{
		"refused": refused,
		"passed":  l2.judge(l2.bundle(), nil),
		"ingest":  refuse("history-rewritten", "the base is no ancestor of the last commit").Verdict(Work{BaseOID: l.base}),
	} {
		for _, colour := range []bool{false, true} {
			var out bytes.Buffer
			if err := v.WriteTable(&out, TableOptions{Colour: colour}); err != nil {
				t.Fatal(err)
			}
			plain := out.String()
			if colour {
				var b strings.Builder
				e := escape.NewWriter(&b)
				_, _ = e.Write(out.Bytes())
				if plain = b.String(); plain == out.String() {
					t.Errorf("%s: there is no colour", name)
				}
			}
			golden := filepath.Join("testdata", "verdict-"+name+".txt")
			if *update && !colour {
				if err := os.WriteFile(golden, []byte(plain), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || plain != string(want) {
				t.Errorf("%s differs from %s (%v); -update writes it anew:\n%s", name, golden, err, plain)
			}
			for line := range strings.SplitSeq(plain, "\n") {
				if n := len([]rune(line)); n > 80 {
					t.Errorf("%s: %d columns: %q", name, n, line)
				}
				if strings.HasPrefix(strings.TrimSpace(line), "::") || strings.Contains(line, "\x1b") {
					t.Errorf("%s: hostile text came through: %q", name, line)
				}
			}
		}
	}
}
