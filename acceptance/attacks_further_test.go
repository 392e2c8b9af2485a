package acceptance

import (
	"testing"

	"github.com/kickhq/kick/manager"
)

// TestFurtherAttacks are shapes beyond the catalogue: what only several commits
// make hostile, names that some program reads in another way, and ends that no
// honest git leaves.
func TestFurtherAttacks(t *testing.T) {
	attackAll(t, []attack{
		{name: "link that leads out once its directory is moved up", want: manager.Refused, rules: []string{"symlink-escape"},
			script: `mkdir -p a/b; ln -s ../../README.md a/b/l; git add -A; git commit -qm one; git mv a/b b; git commit -qm two`},
		{name: "one blob as a file and as a link", want: manager.Refused, rules: []string{"symlink-escape"},
			script: `b=$(blob ../../etc/passwd); git update-index --add --cacheinfo 100644,$b,a --cacheinfo 120000,$b,z; git commit -qm x`},
		{name: "link into .git by a short name", want: manager.Refused, rules: []string{"symlink-escape"}, script: `ln -s 'git~1/config' l; git add -A; git commit -qm x`},
		{name: "link into .git with an ignored character", want: manager.Refused, rules: []string{"symlink-escape"}, script: `ln -s "$(printf '.g\342\200\214it/config')" l; git add -A; git commit -qm x`},
		{name: "link into .git of a directory above", want: manager.Refused, rules: []string{"symlink-escape"}, script: `mkdir d; ln -s ../.git/config d/l; git add -A; git commit -qm x`},
		{name: "root tree is the empty tree", want: manager.Refused, rules: []string{"protected-ci", "protected-governance"},
			script: `commit_tree $(git hash-object -w -t tree /dev/null)`},
		{name: "attributes by a short name", want: manager.Refused, rules: []string{"path-form"}, script: `echo '* -diff' >'GITATT~1'; git add -A; git commit -qm x`},
		{name: "workflow with backslashes", want: manager.Refused, rules: []string{"path-form"}, script: `echo 'on: push' >'.github\workflows\x.yml'; git add -A; git commit -qm x`},
		{name: "report with a hostile name", script: `work; echo '{"summary":"x"}' >".hive/agent-report-$(printf '\033[2J\n::error::').json"`},
		{name: "skip-checks behind a separator of Unicode", want: manager.Refused, rules: []string{"commit-message", "commit-skip-checks"},
			script: `echo x >x; git add x; git commit -qm "$(printf 'x\n\nx\342\200\250skip-checks: true')"`},
		{name: "HEAD is a tag", want: manager.Refused, rules: []string{"object-stuffing"}, script: `work; git tag -a -m t v1; t=$(git rev-parse v1); echo $t >.git/HEAD`},
		{name: "merge whose first parent is the base", files: map[string]string{"work.txt": "work\n"}, script: `work; a=$(git rev-parse HEAD); tip $(echo merge | git commit-tree $a^{tree} -p $a~1 -p $a)`},
		{name: "names that git reads as patterns", want: manager.Refused, rules: []string{"path-form"}, script: `echo a >':(top)x'; echo b >'*'; git --literal-pathspecs add -A; git commit -qm x`},
		{name: "names like options", files: map[string]string{"--upload-pack=x": "a\n", "-rf": "b\n"}, script: `echo a >./--upload-pack=x; echo b >./-rf; git add -A; git commit -qm x`},
		{name: "message of 900 kB in one line", files: map[string]string{"x": "x\n"}, script: `echo x >x; git add x; head -c 900000 /dev/zero | tr '\0' m | git commit -qF -`},
		{name: "subject of dots", files: map[string]string{"x": "x\n"}, script: `echo x >x; git add x; git commit -qm ...`},
		{name: "commit dated before its parents", files: map[string]string{"x": "x\n"}, script: `echo x >x; git add x; GIT_AUTHOR_DATE='1980-01-01T00:00:00Z' GIT_COMMITTER_DATE='1980-01-01T00:00:00Z' git commit -qm x`},
		{name: "commit of 500 trailers", files: map[string]string{"x": "x\n"}, script: `echo x >x; git add x; { echo x; echo; i=0; while [ $i -lt 500 ]; do echo "Note-$i: y"; i=$((i+1)); done; } | git commit -qF -`},
		{name: "release by a trailer", want: manager.Refused, rules: []string{"commit-release"}, script: `echo x >x; git add x; git commit -qm "$(printf 'x\n\nRelease-As: 9.9.9')"`},
		{name: "file and directory that differ in a trailing slash alone", want: manager.Refused, rules: []string{"object-malformed"},
			script: `b=$(blob x); t=$(entry 100644 y $b | literally tree); u=$({ entry 100644 x $b; entry 40000 x $t; } | literally tree); commit_tree $u`},
		{name: "HEAD by way of two symbolic refs", want: manager.AgentFailed, script: `work; a=$(git rev-parse HEAD); git symbolic-ref HEAD refs/heads/a; git update-ref refs/heads/a $a; git symbolic-ref refs/heads/b refs/heads/a; git symbolic-ref HEAD refs/heads/b`},
	})
}
