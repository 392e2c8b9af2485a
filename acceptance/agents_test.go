package acceptance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/manager"
)

// agentCase is an agent, honest or hostile, and the end that its kick must
// have. The values in it are made up.
type agentCase struct {
	name   string
	want   manager.Code
	empty  bool   // it leaves no work that could be kept
	deny   string // must not be in any object of the remote
	note   string // must be in a note of the outcome's
	flags  []string
	script string // $MARK is a path on the host that must not come into being
	few    bool   // it is among the few that each run of a runtime's tests has
}

var agentCases = []agentCase{
	// Honest agents, and settings that must be without effect.
	{name: "two commits", want: manager.Published, script: `echo one >one.txt; git add -A; git commit -qm 'add one'; echo two >>one.txt; git commit -qam 'extend one'`},
	{name: "dirt left beside a commit", want: manager.Published, script: `printf a >a; git add a; git commit -qm a; printf b >uncommitted.txt`},
	{name: "only dirt", want: manager.Nothing, script: `printf b >uncommitted.txt`},
	{name: "only dirt that git is told not to look at", want: manager.Nothing, script: `git update-index --assume-unchanged README.md; echo more >>README.md; git update-index --skip-worktree docs/index.md; echo more >>docs/index.md; test -z "$(git status --porcelain)"`},
	{name: "merge of the agent's own branch", want: manager.Published, script: `git checkout -qb side; echo s >s; git add s; git commit -qm s; git checkout -q -; echo t >t; git add t; git commit -qm t; git merge -q --no-ff -m 'merge side' side`},
	{name: "new executable", want: manager.Published, script: `printf '#!/bin/sh\necho hi\n' >tool.sh; chmod +x tool.sh; git add -A; git commit -qm 'add tool'`},
	{name: "relative symlink", want: manager.Published, script: `ln -s README.md docs-link; git add -A; git commit -qm 'link to readme'`},
	{name: "spaces and quotes", want: manager.Published, script: `echo x >"a file with 'quotes' and spaces.txt"; git add -A; git commit -qm 'odd name'`},
	{name: "uuid and digest", want: manager.Published, script: `printf 'image: registry.example.com/app@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\nrun: 6fa459ea-ee8a-3ca4-894e-db77e160355e\n' >deploy.yml; git add -A; git commit -qm 'pin image'`},
	{name: "secret of the base removed", want: manager.Published, script: `git rm -q legacy/old.env; git commit -qm 'drop the old key'`},
	{name: "secret of the base moved", want: manager.Published, script: `git mv legacy/old.env old.env; git commit -qm 'move the old file'`},
	{name: "files of the base removed", want: manager.Published, script: `git rm -qr docs; git commit -qm 'drop docs'`},
	{name: "work on another branch that HEAD is on", want: manager.Published, script: `git checkout -qb feature; echo x >x; git add x; git commit -qm x`},
	{name: "commit on a detached HEAD", want: manager.Published, script: `git checkout -q --detach; echo x >x; git add x; git commit -qm x`},
	{name: "hostile settings", few: true, want: manager.Published, script: `printf '#!/bin/sh\ntouch %s\n' "$MARK" >.git/e.sh; chmod +x .git/e.sh; echo c >c; git add c; git commit -qm c
		git config core.fsmonitor "$PWD/.git/e.sh"; git config core.sshCommand "$PWD/.git/e.sh"; git config core.pager "$PWD/.git/e.sh"; git config diff.external "$PWD/.git/e.sh"
		git config credential.helper "!$PWD/.git/e.sh"; git config remote.origin.url "ext::sh -c \"touch $MARK\""; git config remote.origin.promisor true
		git config protocol.ext.allow always; git config gpg.program "$PWD/.git/e.sh"; git config log.showSignature true; rm -f "$MARK"`},
	{name: "hooks", want: manager.Published, script: `echo c >c; git add c; git commit -qm c; mkdir -p .git/hooks; for h in post-checkout pre-push post-index-change reference-transaction post-update; do printf '#!/bin/sh\ntouch %s\n' "$MARK" >.git/hooks/$h; chmod +x .git/hooks/$h; done`},
	{name: "rewritten remote URLs", want: manager.Published, script: `echo d >d; git add d; git commit -qm d; git config url.http://127.0.0.1:9/.insteadOf /; git config http.proxy http://127.0.0.1:9`},
	{name: "replace refs", want: manager.Published, script: `echo good >r; git add r; git commit -qm r; a=$(git rev-parse HEAD:r); b=$(echo other | git hash-object -w --stdin); git replace "$a" "$b"`},

	// Secrets: refused, wherever and however they are written.
	{name: "AWS key", few: true, want: manager.Refused, deny: "V6NQ2RSTW4XYZ7LM", script: `printf 'id = "AKIA%s"\nkey = "%s"\n' V6NQ2RSTW4XYZ7LM mQ8Zr5Tn2Wv9Xc4Mb7Lk1Ph6Gd3Fs0Aa8Yy5UuEi >c.toml; git add -A; git commit -qm c`},
	{name: "token in base64", want: manager.Refused, script: `printf 'github_token=ghp_%s' A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8 | base64 -w0 >b.txt; git add -A; git commit -qm b`},
	{name: "token between NUL bytes", want: manager.Refused, deny: "M1n2B3v4C5x6Z7l8K9j0H1g2F3d4S5a6P7o8", script: `printf 'a\000b\000ghp_%s\000' M1n2B3v4C5x6Z7l8K9j0H1g2F3d4S5a6P7o8 >bin.dat; git add -A; git commit -qm bin`},
	{name: "token in an intermediate commit", want: manager.Refused, deny: "Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2", script: `printf 'ghp_%s\n' Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2 >t; git add t; git commit -qm t; echo gone >t; git commit -qam 'clean t'`},
	{name: "token in a message", want: manager.Refused, deny: "Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2", script: `echo t >t; git add t; git commit -qm "t ghp_Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2"`},
	{name: "token in a file name", want: manager.Refused, deny: "Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2", script: `echo t >ghp_Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2.txt; git add -A; git commit -qm t`},
	{name: "token in a symlink", want: manager.Refused, deny: "Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2", script: `ln -s ghp_Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2 l; git add -A; git commit -qm t`},
	{name: "token only in a merge", want: manager.Refused, deny: "Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2", script: `git checkout -qb side; echo s >s; git add s; git commit -qm s; git checkout -q -; echo t >t; git add t; git commit -qm t; git merge -q --no-ff --no-commit side; echo ghp_Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2 >m; git add m; git commit -qm merge; git rm -q m; git commit -qm 'drop m'`},
	{name: "token behind a replace ref", want: manager.Refused, deny: "Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2", script: `echo ghp_Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2 >r; git add r; git commit -qm r; a=$(git rev-parse HEAD:r); b=$(echo other | git hash-object -w --stdin); git replace "$a" "$b"`},
	{name: "token with allow comment in a skipped path", want: manager.Refused, deny: "Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2", script: `mkdir -p node_modules/x; echo 'ghp_Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2 # gitleaks:allow' >node_modules/x/logo.svg; git add -Af; git commit -qm t`},
	{name: "token in UTF-16", want: manager.Refused, script: `printf 'ghp_%s' Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2 | iconv -t UTF-16 >u.txt; git add -A; git commit -qm t`},
	{name: "installation token in its new form", want: manager.Refused, script: `h=eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9; p=eyJpc3MiOiIxMjM0NTYiLCJleHAiOjE3ODAwMDAwMDAsImlhdCI6MTc3OTk5NjQwMH0; printf 'ghs_123456_%s.%s.%s\n' $h $p dGhpc2lzbm90YXJlYWxzaWduYXR1cmVqdXN0Ynl0ZXM >t; git add t; git commit -qm t`},
	{name: "private key", want: manager.Refused, script: `K=PRIV; K=${K}ATE; printf -- '-----BEGIN RSA '$K' KEY-----\nMIIBOgIBAAJBAKj34GkxFhD90vcNLYLInFEX6Ppy1tPf9Cnzj4p4WGeKLs1Pt8Qu\nKUpRKfFLfRYC9AIKjbJTWit+CqvjWYzvQwECAwEAAQ==\n-----END RSA '$K' KEY-----\n' >k.pem; git add -A; git commit -qm k`},
	{name: "token in a zip with another name", want: manager.Refused, script: `printf 'slack: xoxb-%s\n' 111122223333-444455556666-aAbBcCdDeEfFgGhHiIjJkKlL >s.txt; git add s.txt; git archive --format=zip -o a.docx "$(git write-tree)" s.txt; git rm -qf s.txt; git add -A; git commit -qm doc`},

	// Changes that the default policy refuses.
	{name: "base amended", want: manager.Refused, script: `echo e >e; git add e; git commit -q --amend -m 'rewritten base'`},
	{name: "unrelated history", want: manager.Refused, script: `git checkout -q --orphan fresh; git commit -qm fresh`},
	{name: ".GIT directory", want: manager.Refused, script: `h=$(printf x | git hash-object -w --stdin); r=$(git rev-parse 'HEAD^{tree}'); t=$(printf '100644 blob %s\thooks\n' "$h" | git mktree); n=$( (git ls-tree $r; printf '040000 tree %s\t.GIT\n' "$t") | LC_ALL=C sort -k4 | git mktree); c=$(echo x | git commit-tree $n -p HEAD); git update-ref HEAD $c`},
	{name: "control characters in a name", want: manager.Refused, script: `echo e >"$(printf 'bad\033[31mname.txt')"; git add -A; git commit -qm e`},
	{name: "empty commit", want: manager.Refused, script: `git commit -q --allow-empty -m retrigger`},
	{name: "forged identity and sign-off", want: manager.Refused, script: `echo e >e; git add e; git -c user.name=Maintainer -c user.email=maintainer@example.com commit -qm 'e

Signed-off-by: Maintainer <maintainer@example.com>'`},
	{name: "submodule file", want: manager.Refused, script: `printf '[submodule "x"]\n\tpath = x\n\turl = https://example.com/x.git\n' >.gitmodules; git add -A; git commit -qm sub`},
	{name: "gitlink", want: manager.Refused, script: `git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; git commit -qm sub`},
	{name: "skip-checks trailer", want: manager.Refused, script: `echo e >e; git add e; git commit -qm 'e

skip-checks: true'`},
	{name: "new workflow", want: manager.Refused, script: `printf 'on: push\njobs: {}\n' >.github/workflows/new.yml; git add -A; git commit -qm ci`},
	{name: "workflow with a quoted name", want: manager.Refused, script: `printf 'on: push\n' >'.github/workflows/é.yml'; git add -A; git commit -qm ci`},
	{name: "workflow renamed away", want: manager.Refused, script: `git mv .github/workflows/ci.yml docs/ci.yml; git commit -qm 'move ci'`},
	{name: "workflow in another case", want: manager.Refused, script: `mkdir -p .GitHub/Workflows; echo 'on: push' >.GitHub/Workflows/a.yml; git add -A; git commit -qm ci`},
	{name: "code owners deleted", want: manager.Refused, script: `git rm -q .github/CODEOWNERS; git commit -qm owners`},
	{name: "symlink to the host", want: manager.Refused, script: `ln -s /etc/passwd p; git add -A; git commit -qm p`},
	{name: "symlink out of the tree", want: manager.Refused, script: `ln -s ../../x p; git add -A; git commit -qm p`},
	{name: "symlink into .git", want: manager.Refused, script: `ln -s .git/config p; git add -A; git commit -qm p`},
	{name: "workflow directory as a symlink", want: manager.Refused, script: `git rm -qr .github; ln -s docs .github; git add -A; git commit -qm p`},
	{name: "attributes that hide a diff", want: manager.Refused, script: `echo '* -diff' >.gitattributes; git add -A; git commit -qm a`},
	{name: "old tree again as workflows", want: manager.Refused, script: `t=$(git rev-parse HEAD:docs); git rm -qr --cached .github; git read-tree --prefix=.github/workflows "$t"; git commit -qm sneaky`},

	// Ends other than the agent's own.
	{name: "fork bomb", few: true, want: manager.AgentFailed, empty: true, script: `(while :; do sleep 60 & done) 2>/dev/null; exit 7`},
	{name: "100 MB of output", few: true, want: manager.Published, note: "the agent wrote 100000000 bytes; the transcript holds the beginning and the end", script: `head -c 100000000 /dev/zero | tr '\0' x; echo o >o; git add o; git commit -qm o`},
	{name: "too late", want: manager.TimedOut, flags: []string{"--timeout", "3s"}, script: `echo k >k; git add k; git commit -qm k; trap '' TERM; sleep 100; echo l >l; git add l; git commit -qm l`},
	{name: "repository destroyed", want: manager.AgentFailed, script: `rm -rf .git; echo x >x`},
}

// TestAgents runs every agent through the whole line against a plain remote.
func TestAgents(t *testing.T) {
	t.Parallel()
	base := seedBare(t)
	state := filepath.Join(t.TempDir(), "s")
	for _, c := range agentCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bare := filepath.Join(t.TempDir(), "r.git")
			run(t, "", "cp", "-r", base, bare)
			before := run(t, bare, "git", "for-each-ref")
			args := append([]string{"--repo", bare, "--publish", "branch", "--timeout", "60s"}, c.flags...)
			o, output := runKick(t, state, append(args, "--", "sh", "-c", c.marked(t))...)
			c.check(t, bare, before, o, output)
		})
	}
}

// marked is the script with its path on the host.
func (c agentCase) marked(t *testing.T) string {
	t.Helper()
	mark := filepath.Join(os.TempDir(), fmt.Sprintf("kick-mark-%d-%s", os.Getpid(), strings.NewReplacer("/", "-", "'", "").Replace(t.Name())))
	t.Cleanup(func() {
		if _, err := os.Lstat(mark); err == nil {
			t.Error("the agent's code ran on the host")
			_ = os.Remove(mark)
		}
	})
	return "MARK=" + mark + "\n" + c.script
}

// check holds a kick's outcome, its output and the remote against the case. The
// remote had these refs before.
func (c agentCase) check(t *testing.T, bare, before string, o manager.Outcome, output string) {
	t.Helper()
	if o.Outcome != c.want {
		t.Fatalf("outcome %s, want %s: %s\n%+v\n%s", o.Outcome, c.want, o.Error, o.Findings, o.Notes)
	}
	after := run(t, bare, "git", "for-each-ref")
	if (before != after) != (c.want == manager.Published) {
		t.Errorf("outcome %s, but the remote's refs went from\n%sto\n%s", o.Outcome, before, after)
	}
	if c.want == manager.Refused && len(o.Findings) == 0 {
		t.Error("refused without a finding")
	}
	if c.note != "" && !slices.Contains(o.Notes, c.note) {
		t.Errorf("notes %q, want %q", o.Notes, c.note)
	}
	if c.want != manager.Published && !c.empty && o.KeptAt == "" {
		t.Error("nothing is kept")
	}
	if c.deny != "" && strings.Contains(allObjects(t, bare), c.deny) {
		t.Errorf("%s reached the remote", c.deny)
	}
	if c.deny != "" && strings.Contains(output, c.deny) {
		t.Errorf("%s is in kick's output", c.deny)
	}
}

func seedBare(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "seed")
	for name, data := range seedFiles {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, "git", "init", "-q", "-b", "main")
	run(t, dir, "git", "add", "-A")
	run(t, dir, "git", "commit", "-qm", "base one")
	run(t, "", "git", "clone", "-q", "--bare", dir, dir+".git")
	return dir + ".git"
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", // some remotes are another user's
		"GIT_AUTHOR_NAME=Base", "GIT_AUTHOR_EMAIL=base@example.com", "GIT_COMMITTER_NAME=Base", "GIT_COMMITTER_EMAIL=base@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// runKick runs `kick run -o json` and returns its outcome and stderr.
func runKick(t *testing.T, state string, args ...string) (manager.Outcome, string) {
	t.Helper()
	return runKickWith(t, nil, state, args...)
}

func runKickWith(t *testing.T, env []string, state string, args ...string) (manager.Outcome, string) {
	t.Helper()
	cmd := exec.Command(kick, append([]string{"run", "--state-dir", state, "-o", "json"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Dir, cmd.Env = os.TempDir(), append(os.Environ(), env...)
	_ = cmd.Run()
	var o manager.Outcome
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		t.Fatalf("kick printed no outcome: %v\n%s%s", err, stdout.String(), stderr.String())
	}
	if got := cmd.ProcessState.ExitCode(); got != o.ExitCode {
		t.Errorf("exit code %d, but the outcome says %d", got, o.ExitCode)
	}
	return o, stderr.String() + stdout.String()
}

func allObjects(t *testing.T, bare string) string {
	t.Helper()
	return run(t, bare, "sh", "-c", "git rev-list --objects --all | cut -d' ' -f1 | git cat-file --batch; git rev-list --objects --all")
}
