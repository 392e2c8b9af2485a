package acceptance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/manager"
)

// kickOutput runs a command of kick and returns all that it printed, and its
// exit code.
func kickOutput(t *testing.T, dir string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(kick, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestLookingAtAttacks looks at a hostile kick's work with each command that
// shows it, and gets it back with the commands that kick prints. Nothing runs,
// nothing is written elsewhere, and no character of it moves a terminal.
func TestLookingAtAttacks(t *testing.T) {
	t.Parallel()
	bare, state, v := seedBare(t), filepath.Join(t.TempDir(), "s"), newVictim(t)
	mark := filepath.Join(t.TempDir(), "mark")
	o, output := runKick(t, state, "--repo", bare, "--publish", "branch", "--", "sh", "-ec", v.env(t, mark)+prelude+`
		esc=$(printf '\033]0;owned\007\033[2J\302\233m\342\200\256'); nl=$(printf '\n.'); nl=${nl%.}
		echo x >"a$esc"; echo y >"b${nl}::error::y"; printf '* diff=x filter=x\n' >.gitattributes; printf 'x\033[31m\r\233y\n' >shown.txt
		git add -A; git commit -qm "subject $esc" -m "body${nl}::set-output name=x::y"
		git branch '$(touch${IFS}'"\$MARK"')'; git branch "a;touch\$IFS$MARK;"; git branch "q'\"x"; git tag -- "x&y"
		git checkout -q -b side; echo s >"s$esc"; git add -A; git commit -qm "side $esc"; git checkout -q main
		echo stashed >>README.md; git stash -q; echo dirt >"dirt$esc"; ln -s "$HOST/file" link; ln -s /tmp up; mkdir -p sub/.git/hooks; evil; cp .git/evil sub/.git/hooks/post-checkout
		git config core.fsmonitor "$PWD/.git/evil"; printf '\033]0;owned\007\033[2J\n::error::x\n\302\233m'; printf '%s' "$esc" >&2`)
	if o.Outcome != manager.Refused {
		t.Fatalf("outcome %s: %s\n%s", o.Outcome, o.Error, output)
	}
	for _, args := range [][]string{{"show", "last"}, {"show", "last", "-o", "json"}, {"logs", "last"}, {"diff", "last"}, {"diff", "last", "--stat"}, {"ls"}, {"ls", "-o", "json"}, {"salvage", "last"}, {"gc"}} {
		out, code := kickOutput(t, "/", append(args, "--state-dir", state)...)
		if code != 0 {
			t.Errorf("kick %q: exit code %d\n%s", args, code, out)
		}
		wantPlain(t, out)
		if strings.Contains(out, "\n::") {
			t.Errorf("kick %q prints a command of a CI log:\n%s", args, out)
		}
	}
	clone := filepath.Join(t.TempDir(), "clone")
	run(t, "", "git", "clone", "-q", bare, clone)
	hooks := run(t, clone, "ls", ".git/hooks")
	commands := o.RestoreCommands()
	if len(commands) != 3 {
		t.Fatalf("commands %q", commands)
	}
	for _, c := range commands {
		run(t, clone, "sh", "-ec", c)
	}
	run(t, clone, "sh", "-c", "git log --all -p; git status; git stash list")
	refs := run(t, clone, "git", "for-each-ref", "--format=%(refname)")
	for _, want := range []string{"refs/heads/kick-restored/" + o.ID, "/side\n", "stash"} {
		if !strings.Contains(refs, want) {
			t.Errorf("%q was not got back:\n%s", want, refs)
		}
	}
	if now := run(t, clone, "ls", ".git/hooks"); now != hooks {
		t.Errorf("hooks after the restoration:\n%s", now)
	}
	if all := run(t, clone, "sh", "-c", "grep -rl "+private+" . || :"); all != "" {
		t.Errorf("a file of the host is in\n%s", all)
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("the attack's code ran on the host")
	}
}

// TestInspectingAttacks has kick inspect look at a repository whose settings
// are hostile, as one that a CI job was handed may be.
func TestInspectingAttacks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mark := filepath.Join(dir, "mark")
	repo := filepath.Join(dir, "repo")
	run(t, "", "git", "clone", "-q", seedBare(t), repo)
	run(t, repo, "sh", "-ec", "MARK="+mark+prelude+makeToken+`
		git config user.name kick; git config user.email kick@example.com; git checkout -q -b work; work
		echo $T >t; git add t; git commit -qm t; echo 'on: push' >.github/workflows/x.yml; git add -A; git commit -qm ci
		git replace HEAD~1 HEAD~2; git replace HEAD HEAD~2; git rev-parse main >.git/info/grafts; echo '* filter=x diff=x' >.git/info/attributes
		evil; for k in core.fsmonitor core.pager core.sshCommand core.alternateRefsCommand diff.external diff.x.textconv filter.x.clean filter.x.smudge gpg.program alias.rev-parse uploadpack.packObjectsHook pager.bundle; do git config $k "$PWD/.git/evil"; done
		git config log.showSignature true; git config core.hooksPath "$PWD/.git"; git config remote.p.url "ext::touch $MARK"; git config protocol.ext.allow always
		git config transfer.fsckObjects false; git config core.commitGraph true; git status >/dev/null 2>&1 || :; live`)
	out, code := kickOutput(t, repo, "inspect", "--state-dir", filepath.Join(t.TempDir(), "s"), "main..work")
	if code != manager.Refused.ExitCode() || !strings.Contains(out, "github-token") || !strings.Contains(out, "protected-ci") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if strings.Contains(out, token) {
		t.Errorf("the token is printed:\n%s", out)
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("a setting of the repository ran a program")
	}
}
