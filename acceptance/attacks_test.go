package acceptance

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/policy"
)

// attack is something hostile that an agent does inside of the real sandbox,
// and the right end of its kick. docs/security/attacks.md lists them all.
type attack struct {
	name string
	// script runs under sh -e after the prelude. It must fail if it cannot
	// build the attack: the kick then ends as agent-failed, and so does the test.
	script string
	want   manager.Code // default: Published
	rules  []string     // that block or ask for a review, no more and no less
	// files are what the published branch changes: contents by path, "-" for a
	// deletion. Default: work.txt, as the prelude's work makes it.
	files map[string]string
	deny  string   // must be in no object of the remote and in no output
	gone  string   // must be in no object of the remote
	flags []string // of kick run
	empty bool     // nothing is left that could be kept
	note  string   // must be in the outcome's error, notes or findings
}

// prelude are shell functions for the scripts.
const prelude = `
work() { echo work >work.txt; git add work.txt; git commit -qm work; }
live() { test -e "$MARK" || { echo "the attack has no effect" >&2; exit 9; }; rm -f "$MARK"; }
not() { if "$@" 2>/dev/null; then echo "succeeded: $*" >&2; exit 9; fi; }
evil() { printf '#!/bin/sh\n: >%s\ncat\n' "$MARK" >.git/evil; chmod +x .git/evil; }
unhex() { s=$1; while [ -n "$s" ]; do r=${s#??}; printf "\\$(printf %03o 0x"${s%"$r"}")"; s=$r; done; }
entry() { printf "$1 $2\\0"; unhex "$3"; }
literally() { git hash-object -w --literally -t "$1" --stdin; }
blob() { printf "$1" | git hash-object -w --stdin; }
tip() { git update-ref HEAD "$1"; }
commit_tree() { tip "$(echo attack | git commit-tree "$1" -p HEAD)"; }
`

// victim is what an attack could hit on the host: a private repository and
// file, a listener, and a file that hostile code would make.
type victim struct {
	dir   string
	port  int
	calls atomic.Int32
}

// private is in the victim's repository and file, and in nothing else.
const private = "PRIVATE-OF-THE-HOST"

func newVictim(t *testing.T) *victim {
	t.Helper()
	v := &victim{dir: t.TempDir()}
	run(t, v.dir, "git", "init", "-q", "-b", "main", "repo")
	for _, file := range []string{"repo/file", "file"} {
		if err := os.WriteFile(filepath.Join(v.dir, file), []byte(private+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, filepath.Join(v.dir, "repo"), "git", "add", "-A")
	run(t, filepath.Join(v.dir, "repo"), "git", "commit", "-qm", private)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v.port = ln.Addr().(*net.TCPAddr).Port
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			v.calls.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
		if n := v.calls.Load(); n > 0 {
			t.Errorf("something called the attacker's listener %d times", n)
		}
	})
	return v
}

// env are the variables of the scripts that lead to the victim.
func (v *victim) env(t *testing.T, mark string) string {
	repo := filepath.Join(v.dir, "repo")
	id := func(rev string) string { return strings.TrimSpace(run(t, repo, "git", "rev-parse", rev)) }
	return fmt.Sprintf("MARK=%s HOST=%s PORT=%d VICTIM_BLOB=%s VICTIM_COMMIT=%s\n", mark, v.dir, v.port, id("HEAD:file"), id("HEAD"))
}

// attackAll runs each attack through the whole line against a plain remote.
func attackAll(t *testing.T, attacks []attack) {
	t.Parallel()
	base, v := seedBare(t), newVictim(t)
	state := filepath.Join(t.TempDir(), "s")
	for i, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			bare := filepath.Join(t.TempDir(), "r.git")
			run(t, "", "cp", "-r", base, bare)
			mark := filepath.Join(os.TempDir(), fmt.Sprintf("kick-mark-%d-%s-%d", os.Getpid(), t.Name()[:8], i))
			t.Cleanup(func() { _ = os.Remove(mark) })
			args := append([]string{"--repo", bare, "--publish", "branch", "--timeout", "120s"}, a.flags...)
			o, output := runKick(t, state, append(args, "--", "sh", "-ec", v.env(t, mark)+prelude+a.script)...)
			a.check(t, bare, base, o, output)
			if _, err := os.Lstat(mark); err == nil {
				t.Error("the attack's code ran on the host")
			}
			if t.Failed() {
				t.Logf("%.9000s", output)
			}
		})
	}
}

func (a attack) check(t *testing.T, bare, base string, o manager.Outcome, output string) {
	t.Helper()
	want := a.want
	if want == "" {
		want = manager.Published
	}
	if o.Outcome != want {
		t.Fatalf("outcome %s, want %s: %s", o.Outcome, want, o.Error)
	}
	var rules []string
	for _, f := range o.Findings {
		if f.Level != policy.Report {
			rules = append(rules, f.Rule)
		}
	}
	slices.Sort(rules)
	rules = slices.Compact(rules)
	if wanted := slices.Sorted(slices.Values(a.rules)); !slices.Equal(rules, wanted) {
		t.Errorf("rules %v, want %v: %+v", rules, wanted, o.Findings)
	}
	if a.note != "" && !strings.Contains(fmt.Sprint(o.Error, o.Notes, o.Findings, o.Missing), a.note) {
		t.Errorf("nothing says %q: %s %q", a.note, o.Error, o.Notes)
	}
	a.checkRemote(t, bare, base, o)
	for _, secret := range []string{a.deny, private} {
		if secret != "" && strings.Contains(output, secret) {
			t.Errorf("%s is in kick's output", secret)
		}
	}
	wantPlain(t, output)
	if want != manager.Published && !a.empty && o.KeptAt == "" {
		t.Error("nothing is kept")
	}
}

// wantPlain wants an output without a character that a terminal acts on.
func wantPlain(t *testing.T, output string) {
	t.Helper()
	if i := strings.IndexFunc(output, func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || 0x7f <= r && r < 0xa0 || r == 0x202e
	}); i >= 0 {
		t.Errorf("a control character reaches the terminal: %q", output[max(0, i-20):min(len(output), i+20)])
	}
	if !utf8.ValidString(output) {
		t.Errorf("bytes that are no UTF-8 reach the terminal: %q", output)
	}
}

// checkRemote holds that the remote has what it had and, of a publication,
// one branch with these changes and not one object more.
func (a attack) checkRemote(t *testing.T, bare, base string, o manager.Outcome) {
	t.Helper()
	const all = "git cat-file --batch-all-objects --batch-check='%(objectname)' --unordered | sort -u"
	const refs = "git for-each-ref --format='%(refname) %(objectname)'"
	before := strings.Fields(run(t, base, "sh", "-c", all))
	wantRefs := run(t, base, "sh", "-c", refs)
	var gain []string
	if o.Outcome == manager.Published {
		wantRefs += "refs/heads/kick/agent/" + o.ID + " " + o.Commit + "\n"
		gain = strings.Fields(run(t, bare, "git", "rev-list", "--objects", "--no-object-names", o.Commit, "^main"))
	}
	sorted := func(s string) []string { return slices.Sorted(strings.Lines(s)) }
	if got := run(t, bare, "sh", "-c", refs); !slices.Equal(sorted(got), sorted(wantRefs)) {
		t.Errorf("the remote's refs are\n%swant\n%s", got, wantRefs)
	}
	want := slices.Compact(slices.Sorted(slices.Values(append(before, gain...))))
	if got := strings.Fields(run(t, bare, "sh", "-c", all)); !slices.Equal(got, want) {
		t.Errorf("the remote has %d objects, want %d", len(got), len(want))
	}
	content := run(t, bare, "sh", "-c", "git cat-file --batch-all-objects --batch")
	for _, secret := range []string{a.deny, a.gone, private} {
		if secret != "" && strings.Contains(content, secret) {
			t.Errorf("%s reached the remote", secret)
		}
	}
	if o.Outcome != manager.Published {
		return
	}
	files := a.files
	if files == nil {
		files = map[string]string{"work.txt": "work\n"}
	}
	got := map[string]string{}
	for _, path := range strings.Split(strings.Trim(run(t, bare, "git", "diff", "--name-only", "--no-renames", "-z", "main", o.Commit), "\x00"), "\x00") {
		got[path] = "-"
		if run(t, bare, "git", "ls-tree", o.Commit, "--", path) != "" {
			got[path] = run(t, bare, "git", "show", o.Commit+":"+path)
		}
	}
	if !maps.Equal(got, files) {
		t.Errorf("the branch changes %q, want %q", got, files)
	}
}
