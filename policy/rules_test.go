package policy

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRulesHitTheirExamples(t *testing.T) {
	t.Parallel()
	for _, r := range Rules() {
		t.Run(r.ID, func(t *testing.T) {
			t.Parallel()
			if r.Reason == "" || r.Remedy == "" || weight(r.Level) == 0 && r.Level != Report {
				t.Errorf("row is not whole: %+v", r)
			}
			if r.match == nil {
				return
			}
			if len(r.Matches) == 0 || len(r.Misses) == 0 {
				t.Fatal("a rule needs examples that match and that miss")
			}
			for i, s := range r.Matches {
				if r.Match(s) == "" {
					t.Errorf("match %d is missed: %s", i, show(s))
				}
			}
			for i, s := range r.Misses {
				if what := r.Match(s); what != "" {
					t.Errorf("miss %d is struck (%s): %s", i, what, show(s))
				}
			}
		})
	}
}

func show(s Subject) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func TestRulesWithoutMatchAreKnown(t *testing.T) {
	t.Parallel()
	raised := map[string]bool{}
	for _, r := range slices.Concat(ingestRules, ciRules) {
		raised[r.ID] = true
	}
	for _, r := range Rules() {
		if (r.match == nil) != raised[r.ID] {
			t.Errorf("rule %s has no match and is not in the table of those that are raised elsewhere", r.ID)
		}
	}
}

func TestOrdinaryChangesStrikeNothing(t *testing.T) {
	t.Parallel()
	p := Default().For("", "")
	for _, s := range []Subject{
		added("src/main.go"), edited("README.md"), deleted("docs/old.md"), added("deploy.yml"),
		added("a file with 'quotes' and spaces.txt"), link("docs-link", "README.md"),
		message("Fix the parser\n\nIt dropped the last line.\n"),
		{Work: &Work{Files: 3, Commits: 1, Bytes: 1000}},
	} {
		if f := p.Judge(s, time.Now()); len(f) > 0 {
			t.Errorf("%s: %v", show(s), f)
		}
	}
}

// Git is the judge of which names it takes for .git on HFS+ and NTFS: whatever
// its strict check refuses, the table must refuse too.
func TestGitLikeCoversFsck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(in []byte, args ...string) ([]byte, error) {
		cmd := exec.Command("git", append([]string{"--git-dir=" + dir}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1"}
		if in != nil {
			r, w, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			go func() { w.Write(in); w.Close() }()
			cmd.Stdin = r
			defer r.Close()
		}
		return cmd.CombinedOutput()
	}
	if _, err := git(nil, "init", "-q", "--bare"); err != nil {
		t.Fatal(err)
	}
	empty, err := git([]byte{}, "hash-object", "-w", "--stdin")
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, name := range []string{
		".git", ".GIT", ".Git", "git~1", "GIT~1", ".git ", ".git.", ".git...", ".git::$INDEX_ALLOCATION", ".git:x",
		".g\u200cit", ".\u200dgit", ".gi\ufefft", ".\u202agit", ".git\u206f", "git", ".gitx", "x.git", "git~10", ".gi t",
	} {
		tree := []byte("100644 " + name + "\x00" + string(unhex(t, string(empty[:40]))))
		id, err := git(tree, "hash-object", "-w", "--literally", "-t", "tree", "--stdin")
		if err != nil {
			t.Fatal(err)
		}
		ids[string(id[:40])] = name
	}
	out, err := git(nil, "fsck", "--strict", "--no-dangling")
	if err == nil {
		t.Fatal("git finds nothing wrong with such names")
	}
	refused := 0
	for id, name := range ids {
		if !strings.Contains(string(out), "in tree "+id+": hasDotgit") {
			continue
		}
		refused++
		if !gitLike(name) {
			t.Errorf("git refuses %q, gitLike does not", name)
		}
	}
	if refused < 8 {
		t.Errorf("git refused %d names only: the test does not test", refused)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	out := make([]byte, len(s)/2)
	for i := range out {
		for _, c := range s[2*i : 2*i+2] {
			out[i] <<= 4
			switch {
			case '0' <= c && c <= '9':
				out[i] |= byte(c - '0')
			case 'a' <= c && c <= 'f':
				out[i] |= byte(c-'a') + 10
			default:
				t.Fatalf("not hex: %q", s)
			}
		}
	}
	return out
}

func TestFold(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		{"src/main.go", "src/main.go"},
		{"README.md", "readme.md"},
		{".GitHub./Workflows /x", ".github/workflows/x"},
		{"../x", "../x"},
		{"cafe\u0301", "caf\u00e9"},
		{"STRASSE", "strasse"}, {"straße", "strasse"},
		{"．ｇｉｔ", ".git"},
		{"a\u200bb", "ab"},
		{"x:stream", "x"},
		{"bad\xff", "bad\uFFFD"},
		{"\u212aelvin", "kelvin"},
	} {
		if got := Fold(tc.in); got != tc.want {
			t.Errorf("Fold(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

func FuzzFold(f *testing.F) {
	for _, s := range []string{"a/b", ".GIT /x", "ﬀ", "\xff", "İ", "a\u0345", "x:y/z."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		once := Fold(s)
		if slow := foldAny(s); slow != once {
			t.Errorf("%q folds to %q, the long way to %q", s, once, slow)
		}
		for _, r := range rules {
			r.Match(added(s))
			r.Match(deleted(s))
			r.Match(link("a", s))
			r.Match(message(s))
		}
	})
}

func TestGlob(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern, path string
		want          bool
	}{
		{"Makefile", "makefile", true}, {"Makefile", "a/b/makefile", true}, {"Makefile", "makefile/x", true}, {"secrets", "a/secrets/b/c", true}, {"/db/schema", "db/schema/x.sql", true}, {"/db/schema", "a/db/schema", false}, {"secrets", "secrets.md", false},
		{"/LICENSE", "license", true}, {"/LICENSE", "a/license", false},
		{"docs/**", "docs/a/b", true}, {"docs/**", "docs", true}, {"docs/**", "docsx/a", false}, {"docs/**", "a/docs/b", false},
		{"**/.vscode/**", ".vscode/x", true}, {"**/.vscode/**", "a/b/.vscode/c/d", true}, {"**/.vscode/**", "a/vscode/x", false},
		{"*.mk", "a/b.mk", true}, {"a/*/c", "a/b/c", true}, {"a/*/c", "a/b/b/c", false}, {"a/**/c", "a/c", true}, {"a/**/c", "a/x/y/c", true},
		{"[ab].txt", "b.txt", true}, {"**", "anything/at/all", true},
	} {
		g, err := ParseGlob(tc.pattern)
		if err != nil {
			t.Errorf("%q: %v", tc.pattern, err)
			continue
		}
		if got := g.Match(tc.path); got != tc.want {
			t.Errorf("%q matches %q: %v, want %v", tc.pattern, tc.path, got, tc.want)
		}
	}
	for _, bad := range []string{"", "/", "a//b", "a/", `a\b`, "a/../b", "./a", "[a", "a**b", "**/a/**/b/**/c/**/d/**/e", "!docs/**", "src/{a,b}/**", "[[:alpha:]]", " ", "a/\u200b"} {
		if _, err := ParseGlob(bad); err == nil {
			t.Errorf("pattern %q is taken", bad)
		}
	}
}
