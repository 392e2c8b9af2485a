package pushbroker

import (
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/policy"
)

// Work that an honest agent does: it passes, and nothing blocks or asks.
func TestHonestWorkPasses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, script string }{
		{"new file", `echo a > a; git add a; git commit -qm a`},
		{"edit of a long file as a thin pack", `echo x >> src/long.go; git commit -qam long`},
		{"two commits", `echo one > one.txt; git add -A; git commit -qm 'add one'; echo two >> one.txt; git commit -qam 'extend one'`},
		{"merge of own branch", `git checkout -qb side; echo s > s; git add s; git commit -qm s; git checkout -q main; echo t > t; git add t; git commit -qm t; git merge -q --no-ff -m 'merge side' side`},
		{"merge of base into older work", `git checkout -qb old HEAD~2; echo s > s; git add s; git commit -qm s; git merge -q --no-ff -m 'merge base' main`},
		{"octopus of own branches", `for b in a b c; do git checkout -qb $b main; echo $b > $b; git add $b; git commit -qm $b; done; git checkout -q main; git merge -q -m all a b c`},
		{"spaces and quotes", `echo x > "a file with 'quotes' and spaces.txt"; git add -A; git commit -qm 'odd name'`},
		{"relative link", `ln -s README.md docs-link; git add -A; git commit -qm link`},
		{"rename", `git mv docs/index.md docs/start.md; git commit -qm rename`},
		{"revert to older content", `git show HEAD~2:README.md > README.md; git commit -qam revert`},
		{"copy of a file", `cp src/long.go src/copy.go; git add -A; git commit -qm copy`},
		{"deletion", `git rm -q docs/index.md; git commit -qm gone`},
		{"file becomes directory", `git rm -q docs/index.md; mkdir docs/index.md; echo x > docs/index.md/x; git add -A; git commit -qm dir`},
		{"undone protected change is none of the net", `echo a > a; git add a; git commit -qm a; git rm -q a; git commit -qm 'not a'`},
		{"agent's own co-author line", `echo a > a; git add a; git commit -qm 'a

Co-authored-by: Claude <noreply@anthropic.com>'`},
		{"own sign-off", `echo a > a; git add a; git commit -qsm a`},
		{"existing right-to-left text", `echo more >> docs/rtl.md; git commit -qam rtl`},
		{"utf-8 names and messages", `echo a > 'ünï.txt'; git add -A; git commit -qm 'füge ünï hinzu 👨‍👩‍👧'`},
		{"empty message body", `echo a > a; git add a; git commit -q --allow-empty-message -m ''`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.sh(l.clone, tc.script)
			v := l.judge(l.bundle(), nil)
			if !v.Pass || v.Review {
				t.Errorf("findings: %+v", v.Findings)
			}
			if tip := l.sh(l.clone, "git rev-parse HEAD"); v.Tip != tip || v.Tree != l.sh(l.clone, "git rev-parse HEAD^{tree}") {
				t.Errorf("verdict is about %s, the work is %s", v.Tip, tip)
			}
		})
	}
}

// attack is a piece of work and the rules that must strike it.
type attack struct {
	name   string
	script string              // run in the clone
	craft  func(l *lab) string // or: makes a bundle itself
	block  []string            // rules, each of which must block
	review []string            // likewise
	report []string
	path   string // that the first finding names
}

func TestAttacks(t *testing.T) {
	t.Parallel()
	for _, tc := range slices.Concat(textAttacks, pathAttacks, entryAttacks, commitAttacks, historyAttacks, objectAttacks) {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			var bundle string
			if tc.craft != nil {
				bundle = tc.craft(l)
			} else {
				l.sh(l.clone, tc.script)
				bundle = l.bundle()
			}
			v := l.judge(bundle, nil)
			for level, want := range map[policy.Level][]string{policy.Block: tc.block, policy.Review: tc.review, policy.Report: tc.report} {
				got := rulesOf(v, level)
				slices.Sort(got)
				got = slices.Compact(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("%s: rules %v, want %v: %+v", level, got, want, v.Findings)
				}
			}
			if v.Pass != (len(tc.block) == 0 && len(tc.review) == 0) || v.Review != (len(tc.block) == 0 && len(tc.review) > 0) {
				t.Errorf("pass %v, review %v", v.Pass, v.Review)
			}
			if tc.path != "" && (len(v.Findings) == 0 || v.Findings[0].Path != tc.path) {
				t.Errorf("no finding names %q: %+v", tc.path, v.Findings)
			}
			for _, f := range v.Findings {
				if f.Message == "" || f.Remedy == "" || strings.HasSuffix(f.Message, ": ") {
					t.Errorf("finding is not whole: %+v", f)
				}
			}
		})
	}
}

const addAll = `; git add -A; git commit -qm e`

// withEntry commits a root tree that has one more entry, made without checks.
func withEntry(mode, kind, name, content string) string {
	return `h=$(printf '` + content + `' | git hash-object -w --stdin -t ` + kind + `); r=$(git rev-parse 'HEAD^{tree}')
		(git ls-tree -z $r; printf '` + mode + ` ` + kind + ` %s\t` + name + `\0' $h) | LC_ALL=C sort -z -k4 | git mktree -z > ../tree
		git update-ref HEAD $(echo x | git commit-tree $(cat ../tree) -p HEAD)`
}

var pathAttacks = []attack{
	{name: "control character in a name", script: `printf e > "$(printf 'bad\033[31mname.txt')"` + addAll, block: []string{"path-control"}, path: "bad\x1b[31mname.txt"},
	{name: "line break in a name", script: `printf e > "$(printf 'a\nb')"` + addAll, block: []string{"path-control"}, path: "a\nb"},
	{name: "right-to-left override in a name", script: `printf e > "$(printf 'a\342\200\256b')"` + addAll, block: []string{"path-control"}},
	{name: "name that is not UTF-8", script: `printf e > "$(printf 'a\377b')"` + addAll, block: []string{"path-encoding"}},
	{name: "trailing dot", script: `printf e > a.` + addAll, block: []string{"path-form"}},
	{name: "device name", script: `mkdir x; printf e > x/aux.txt` + addAll, block: []string{"path-form"}},
	{name: "stream name", script: `printf e > a:b` + addAll, block: []string{"path-form"}},
	{name: "name of 300 bytes", script: withEntry("100644", "blob", strings.Repeat("n", 300), "x"), block: []string{"path-length"}},
	{name: "case collision with the base", script: `printf e > docs/mixed.md` + addAll, block: []string{"path-collision"}, path: "docs/mixed.md"},
	{name: "normalisation collision", script: `printf 1 > "$(printf 'caf\303\251')"; printf 2 > "$(printf 'cafe\314\201')"` + addAll, block: []string{"path-collision"}},
	{name: "case collision of directories", script: `mkdir DOCS; printf e > DOCS/x` + addAll, block: []string{"path-collision"}},
	{name: ".hive committed", script: `mkdir .hive; printf e > .hive/report.json; git add -f .hive; git commit -qm e`, block: []string{"path-hive"}},
	{name: ".GIT by plumbing", script: `h=$(printf x | git hash-object -w --stdin); r=$(git rev-parse 'HEAD^{tree}'); t=$(printf '100644 blob %s\thooks\n' "$h" | git mktree); n=$( (git ls-tree $r; printf '040000 tree %s\t.GIT\n' "$t") | LC_ALL=C sort -k4 | git mktree); git update-ref HEAD $(echo x | git commit-tree $n -p HEAD)`, block: []string{"object-malformed"}},
	{name: "full-width .git", script: `mkdir "$(printf '\357\274\216git')"; printf e > "$(printf '\357\274\216git/config')"` + addAll, block: []string{"path-git"}},
	{name: "new workflow", script: `printf 'on: push\n' > .github/workflows/new.yml` + addAll, block: []string{"protected-ci"}, path: ".github/workflows/new.yml"},
	{name: "workflow with a name beyond ASCII", script: `printf 'on: push\n' > '.github/workflows/é.yml'` + addAll, block: []string{"protected-ci"}, path: ".github/workflows/é.yml"},
	{name: "workflow in another case", script: `mkdir -p .GitHub/workflows; printf 'on: push\n' > .GitHub/workflows/x.yml` + addAll, block: []string{"path-collision", "protected-ci"}},
	{name: "workflow moved away", script: `git mv .github/workflows/ci.yml docs/ci.yml; git commit -qm mv`, block: []string{"protected-ci"}, path: ".github/workflows/ci.yml"},
	{name: "workflow deleted", script: `git rm -q .github/workflows/ci.yml; git commit -qm rm`, block: []string{"protected-ci"}},
	{name: "workflow changed and changed back", script: `echo x >> .github/workflows/ci.yml; git commit -qam e; git revert -n HEAD; git commit -qm back`, block: []string{"protected-ci"}},
	{name: "old subtree in a new place", script: `git mv .github/workflows .circleci; git commit -qm mv`, block: []string{"protected-ci"}},
	{name: "ordinary subtree becomes CI", script: `t=$(git rev-parse HEAD:docs); git read-tree --prefix=.buildkite/ $t; git commit -qm e`, block: []string{"protected-ci"}},
	{name: "older workflow by a merge that keeps ours", script: `git checkout -qb old HEAD~1; echo s > s; git add s; git commit -qm s; git merge -q -s ours -m m main`, block: []string{"protected-ci"}},
	{name: "workflow in an evil merge", script: `git checkout -qb side; echo s > s; git add s; git commit -qm s; git checkout -q main; echo t > t; git add t; git commit -qm t; git merge -q --no-commit --no-ff side; echo x >> .github/workflows/ci.yml; git commit -qam m`, block: []string{"protected-ci"}},
	{name: "CI directory becomes a file", script: `git rm -rq .github; echo x > .github` + addAll, block: []string{"protected-ci", "protected-governance"}},
	{name: "CI directory becomes a submodule", script: `git rm -rq .github; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),.github; git commit -qm e`, block: []string{"gitlink", "protected-ci", "protected-governance"}},
	{name: "CI directory becomes a link", script: `git mv .github ci; ln -s ci .github` + addAll, block: []string{"protected-ci", "protected-governance"}},
	{name: "workflow becomes executable", script: `chmod +x .github/workflows/ci.yml; git commit -qam e`, block: []string{"protected-ci"}, report: []string{"new-executable"}},
	{name: "workflow becomes a link", script: `ln -sf ../../README.md .github/workflows/ci.yml; git commit -qam e`, block: []string{"protected-ci"}},
	{name: "CI directory with a trailing dot", script: `mkdir -p .github./workflows; echo x > .github./workflows/x.yml` + addAll, block: []string{"path-collision", "path-form", "protected-ci"}},
	{name: "CI directory with an ignored character", script: `d=$(printf '.git\342\200\215hub'); mkdir -p "$d/workflows"; echo x > "$d/workflows/x.yml"` + addAll, block: []string{"path-collision", "path-control", "protected-ci"}},
	{name: "pipeline of another CI, deep and in capitals", script: `mkdir -p a/b; echo x > a/b/JENKINSFILE` + addAll, block: []string{"protected-ci"}},
	{name: "composite action", script: `mkdir -p tools/x; echo x > tools/x/action.yaml` + addAll, block: []string{"protected-ci"}},
	{name: "code owners deleted", script: `git rm -q .github/CODEOWNERS; git commit -qm e`, block: []string{"protected-ci", "protected-governance"}},
	{name: "agent instructions in full-width letters", script: `echo x > "$(printf '\357\274\241GENTS.md')"` + addAll, review: []string{"protected-agent"}},
	{name: "attributes by plumbing, as an old blob", script: `git update-index --add --cacheinfo 100644,$(git rev-parse HEAD:README.md),sub/.gitattributes; git commit -qm e`, block: []string{"protected-git"}},
	{name: "code owners", script: `echo x > docs/CODEOWNERS` + addAll, block: []string{"protected-governance"}},
	{name: "attributes deep down", script: `echo '* -diff' > src/.gitattributes` + addAll, block: []string{"protected-git"}},
	{name: "submodule file", script: `printf '[submodule "x"]\n\tpath = x\n\turl = https://example.com/x.git\n' > .gitmodules` + addAll, block: []string{"protected-git"}},
	{name: "execute on open", script: `mkdir .vscode; echo '{}' > .vscode/tasks.json` + addAll, review: []string{"protected-open"}},
	{name: "dependency", script: `echo 'module x' > go.mod` + addAll, review: []string{"protected-build"}},
	{name: "agent instructions", script: `echo obey > AGENTS.md` + addAll, review: []string{"protected-agent"}},
	{name: "agent instructions as a link", script: `ln -s README.md CLAUDE.md` + addAll, review: []string{"protected-agent"}},
}

var entryAttacks = []attack{
	{name: "absolute link", script: `ln -s /etc/passwd l` + addAll, block: []string{"symlink-escape"}, path: "l"},
	{name: "escaping link", script: `ln -s ../../x src/l` + addAll, block: []string{"symlink-escape"}},
	{name: "link into .git", script: `ln -s .git/hooks l` + addAll, block: []string{"symlink-escape"}},
	{name: "old blob as a link", script: `printf /etc/passwd > p; git add p; git commit -qm p; git update-index --add --cacheinfo 120000,$(git rev-parse HEAD:p),l; git commit -qm l`, block: []string{"symlink-escape"}, path: "l"},
	{name: "base's file as a link", script: `git update-index --add --cacheinfo 120000,$(git rev-parse HEAD:src/long.go),l; git commit -qm l`, block: []string{"symlink-escape"}},
	{name: "link that leaves through another one", script: `mkdir a; ln -s .. a/up; ln -s a/up/../x l` + addAll, block: []string{"symlink-escape"}},
	{name: "link through a link of another case", script: `mkdir a; ln -s .. a/up; ln -s A/UP/../x l` + addAll, block: []string{"symlink-escape"}},
	{name: "two innocent links brought together by a merge", script: `mkdir -p a/b; echo x > a/b/x; git add -A; git commit -qm d; git checkout -qb side; ln -s a/b/../../x l; git add -A; git commit -qm l; git checkout -q main; git rm -qr a; mkdir a; ln -s .. a/b; git add -A; git commit -qm up; git merge -q --no-ff -m m side`, block: []string{"symlink-escape"}},
	{name: "directory under a link replaced by a link upward", script: `mkdir -p a/b; echo x > a/b/x; ln -s a/b/../../x l; git add -A; git commit -qm l; git rm -qr a/b; mkdir -p a; ln -s .. a/b; git add -A; git commit -qm up`, block: []string{"symlink-escape"}},
	{name: "link with an empty target", script: `git update-index --add --cacheinfo 120000,$(git hash-object -w --stdin </dev/null),l; git commit -qm l`, block: []string{"symlink-escape"}},
	{name: "link with a target of 70,000 bytes", script: `h=$(head -c 70000 /dev/zero | tr '\0' a | git hash-object -w --stdin); git update-index --add --cacheinfo 120000,$h,l; git commit -qm l`, block: []string{"symlink-escape"}},
	{name: "link that is not UTF-8", script: `ln -s "$(printf 'a\377')" l` + addAll, block: []string{"symlink-escape"}},
	{name: "link through .git in capitals", script: `ln -s docs/../.GIT/config l` + addAll, block: []string{"symlink-escape"}},
	{name: "link over a directory, and a file behind it", script: `git rm -rq docs; ln -s src docs; git add -A; git commit -qm l; rm docs; mkdir docs; echo x > docs/x` + addAll},
	{name: "submodule", script: `git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; git commit -qm s`, block: []string{"gitlink"}, path: "sub"},
	{name: "empty directory in a tree", craft: func(l *lab) string {
		l.object("tree", "")
		tree := l.object("tree", "40000 hidden\x00"+unhex(emptyTree))
		commit := l.object("commit", "tree "+tree+"\nparent "+l.base+"\n"+idents+"\nx\n")
		return l.rawBundle(commit, commit, tree, emptyTree)
	}, block: []string{"file-mode", "protected-ci", "protected-governance"}, report: []string{"deleted-test"}},
	{name: "setuid mode", craft: func(l *lab) string {
		return l.modeBundle("104755")
	}, block: []string{"object-malformed"}},
	{name: "group-writable mode", craft: func(l *lab) string {
		return l.modeBundle("100664")
	}, block: []string{"object-malformed"}},
	{name: "new executable", script: `printf '#!/bin/sh\n' > tool.sh; chmod +x tool.sh` + addAll, report: []string{"new-executable"}},
	{name: "binary", script: `printf 'a\0b' > a.bin` + addAll, report: []string{"binary"}},
	{name: "deleted test", script: `git rm -q src/main_test.go; git commit -qm gone`, report: []string{"deleted-test"}},
	{name: "LFS pointer", script: `printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n' > m.bin` + addAll, review: []string{"lfs-pointer"}},
	{name: "right-to-left override in code", script: `printf 'if a\342\200\256 {\n' > src/x.go` + addAll, block: []string{"content-bidi"}},
	{name: "file over the limit", script: `head -c 5300000 /dev/zero | tr '\0' a > big.txt` + addAll, block: []string{"limit-file-bytes"}, path: "big.txt"},
	{name: "large file deleted later", script: `head -c 5300000 /dev/zero | tr '\0' a > big.txt` + addAll + `; git rm -q big.txt; echo a > a` + addAll, block: []string{"limit-file-bytes"}, path: "big.txt"},
	{name: "too much in all", script: `for i in 1 2 3 4 5; do head -c 4500000 /dev/zero | tr '\0' $i > f$i.txt; done` + addAll, block: []string{"limit-total-bytes"}},
	{name: "too many files", script: `mkdir many; i=0; while [ $i -le 1000 ]; do echo $i > many/$i; i=$((i+1)); done` + addAll, block: []string{"limit-files"}},
	{name: "too many commits", script: `i=0; from='from HEAD^0'; while [ $i -le 100 ]; do printf 'commit refs/heads/main\ncommitter kick <kick@example.com> 1700000000 +0000\ndata 2\nc\n%s\nM 100644 inline f\ndata 4\n%03d\n\n' "$from" $i; from=; i=$((i+1)); done | git fast-import --quiet --force`, block: []string{"limit-commits"}},
}

// modeBundle is a commit whose tree has an entry with an odd mode.
func (l *lab) modeBundle(mode string) string {
	l.t.Helper()
	blob := l.object("blob", "x\n")
	tree := l.object("tree", mode+" x\x00"+unhex(blob))
	commit := l.object("commit", "tree "+tree+"\nparent "+l.base+"\n"+idents+"\nx\n")
	return l.rawBundle(commit, commit, tree, blob)
}

func unhex(s string) string {
	var b strings.Builder
	for i := 0; i+1 < len(s); i += 2 {
		v := strings.IndexByte("0123456789abcdef", s[i])<<4 | strings.IndexByte("0123456789abcdef", s[i+1])
		b.WriteByte(byte(v))
	}
	return b.String()
}

const (
	ident  = "kick <kick@example.com> 1700000000 +0000"
	idents = "author " + ident + "\ncommitter " + ident + "\n"
)

// header is a commit with a header of one's own on a tree that adds one file.
func header(lines string) func(l *lab) string {
	return func(l *lab) string {
		l.t.Helper()
		l.sh(l.clone, `echo a > a; git add a; git write-tree > ../tree`)
		tree := l.sh(l.dir, "cat tree")
		commit := l.object("commit", strings.NewReplacer("TREE", tree, "BASE", l.base).Replace(lines))
		return l.rawBundle(commit, commit, tree, l.sh(l.clone, "git rev-parse :a"))
	}
}

var commitAttacks = []attack{
	{name: "forged sign-off", script: `echo e > e; git add e; git -c user.name=Maintainer -c user.email=maintainer@example.com commit -qm 'e

Signed-off-by: Maintainer <maintainer@example.com>'`, block: []string{"commit-identity", "commit-sign-off"}},
	{name: "forged author", script: `echo e > e; git add e; git commit -qm e --author 'Maintainer <m@example.com>'`, block: []string{"commit-identity"}},
	{name: "foreign co-author", script: `echo e > e; git add e; git commit -qm 'e

co-authored-by: Maintainer <m@example.com>'`, block: []string{"commit-sign-off"}},
	{name: "skip-checks", script: `echo e > e; git add e; git commit -qm 'e

skip-checks: true'`, block: []string{"commit-skip-checks"}},
	{name: "skip ci", script: `echo e > e; git add e; git commit -qm 'e [skip ci]'`, review: []string{"commit-skip-ci"}},
	{name: "empty commit", script: `git commit -q --allow-empty -m retrigger`, block: []string{"commit-empty"}},
	{name: "escape sequence in a message", script: `echo e > e; git add e; git commit -qm "$(printf 'e\033[2Kx')"`, block: []string{"commit-message"}},
	{name: "signature", craft: header("tree TREE\nparent BASE\n" + idents + "gpgsig -----BEGIN PGP SIGNATURE-----\n x\n\nmsg\n"), block: []string{"commit-header"}},
	{name: "unknown header", craft: header("tree TREE\nparent BASE\n" + idents + "x-secret abc\n\nmsg\n"), block: []string{"commit-header"}},
	{name: "mergetag", craft: header("tree TREE\nparent BASE\n" + idents + "mergetag object BASE\n type commit\n\nmsg\n"), block: []string{"commit-header"}},
	{name: "encoding UTF-7", craft: header("tree TREE\nparent BASE\n" + idents + "encoding UTF-7\n\nmsg\n"), block: []string{"commit-header"}},
	{name: "time zone", craft: header("tree TREE\nparent BASE\nauthor kick <kick@example.com> 1700000000 -9999\ncommitter " + ident + "\n\nmsg\n"), block: []string{"commit-header"}},
	{name: "line break in an author", craft: header("tree TREE\nparent BASE\nauthor kick\n <kick@example.com> 1700000000 +0000\ncommitter " + ident + "\n\nmsg\n"), block: []string{"object-malformed"}},
	{name: "committer before author", craft: header("tree TREE\nparent BASE\ncommitter " + ident + "\nauthor " + ident + "\n\nmsg\n"), block: []string{"object-malformed"}},
	{name: "tree in capitals", craft: header("tree 4B825DC642CB6EB9A060E54BF8D69288FBEE4904\nparent BASE\n" + idents + "\nmsg\n"), block: []string{"object-malformed"}},
	{name: "carriage returns in a header", craft: header("tree TREE\nparent BASE\nauthor " + ident + "\r\ncommitter " + ident + "\r\n\nmsg\n"), block: []string{"object-malformed"}},
	{name: "two addresses", craft: header("tree TREE\nparent BASE\nauthor kick <kick@example.com> <m@example.com> 1700000000 +0000\ncommitter " + ident + "\n\nmsg\n"), block: []string{"object-malformed"}},
	{name: "continuation line without a header", craft: header("tree TREE\nparent BASE\n" + idents + " hidden\n\nmsg\n"), block: []string{"commit-header"}},
	{name: "second tree", craft: header("tree TREE\nparent BASE\n" + idents + "tree TREE\n\nmsg\n"), block: []string{"commit-header"}},
	{name: "NUL in a message", craft: header("tree TREE\nparent BASE\n" + idents + "\nmsg\x00hidden\n"), block: []string{"object-malformed"}},
	{name: "missing committer", craft: header("tree TREE\nparent BASE\nauthor " + ident + "\n\nmsg\n"), block: []string{"object-malformed"}},
	{name: "parent behind the author is none", craft: header("tree TREE\n" + idents + "parent BASE\n\nmsg\n"), block: []string{"history-rewritten", "history-unrelated"}},
}

var historyAttacks = []attack{
	{name: "amended base", script: `echo e > e; git add e; git commit -q --amend -m 'rewritten base'`, block: []string{"history-rewritten"}},
	{name: "unrelated root merged in", script: `git checkout -q --orphan o; git rm -rqf .; echo x > x; git add x; git commit -qm x; git checkout -qf main; git merge -q --allow-unrelated-histories -m m o`, block: []string{"history-unrelated"}},
	{name: "reset to an older commit", craft: func(l *lab) string {
		return l.rawBundle(l.sh(l.clone, "git rev-parse HEAD~1"), l.sh(l.clone, "git rev-parse HEAD~1"))
	}, block: []string{"history-rewritten"}},
	{name: "newer commit of the repository", craft: func(l *lab) string {
		// The mirror has moved on; the agent got hold of a newer commit.
		l.sh(l.clone, `echo up > up; git add up; git commit -qm upstream; git push -q origin HEAD:main; echo mine > mine; git add mine; git commit -qm mine`)
		return l.bundle()
	}, block: []string{"history-foreign"}},
	{name: "private branch merged in", craft: func(l *lab) string {
		// The agent got hold of a branch that the mirror knows and base lacks.
		l.sh(l.clone, `git checkout -qb private; echo private > p; git add p; git commit -qm private; git push -q origin private
			git checkout -q main; echo mine > mine; git add mine; git commit -qm mine; git merge -q --no-ff -m 'merge it' private`)
		return l.bundle()
	}, block: []string{"history-foreign"}},
	{name: "purged commit built upon", craft: func(l *lab) string {
		// Upstream took a commit back; a work that still holds it is none on base.
		old := l.base
		l.sh(l.mirror, `git update-ref refs/heads/main $(git -c user.name=Base -c user.email=base@example.com commit-tree -p main~1 -m again 'main^{tree}' < /dev/null)`)
		l.base = l.sh(l.mirror, "git rev-parse main")
		l.sh(l.clone, `echo mine > mine; git add mine; git commit -qm mine; git bundle create -q ../work.bundle ^`+old+`~1 HEAD`)
		return l.dir + "/work.bundle"
	}, block: []string{"history-rewritten"}},
	{name: "object of another branch by id", craft: func(l *lab) string {
		// A commit of the agent's uses a blob that only a newer base commit has.
		l.sh(l.clone, `echo private > p; git add p; git commit -qm private; git push -q origin HEAD:main
			b=$(git rev-parse HEAD:p); git reset -q --hard HEAD~1; git update-index --add --cacheinfo 100644,$b,stolen; git commit -qm steal`)
		return l.rawBundle(l.sh(l.clone, "git rev-parse HEAD"), l.sh(l.clone, "git rev-parse HEAD"), l.sh(l.clone, "git rev-parse HEAD^{tree}"))
	}, block: []string{"history-foreign"}},
}

var objectAttacks = []attack{
	{name: "stuffed blob", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		extra := l.object("blob", "PLANTED\n")
		return l.rawBundle(l.sh(l.clone, "git rev-parse HEAD"), strings.Fields(l.sh(l.clone, "git rev-parse HEAD HEAD^{tree} HEAD:a")+" "+extra)...)
	}, block: []string{"object-stuffing"}},
	{name: "stuffed commit", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		return l.rawBundle(l.sh(l.clone, "git rev-parse HEAD"), strings.Fields(l.sh(l.clone, "git rev-parse HEAD HEAD^{tree} HEAD:a; echo x | git commit-tree HEAD^{tree} -p HEAD"))...)
	}, block: []string{"object-stuffing"}},
	{name: "stuffed tag", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a; git tag -a -m t t`)
		return l.rawBundle(l.sh(l.clone, "git rev-parse HEAD"), strings.Fields(l.sh(l.clone, "git rev-parse HEAD HEAD^{tree} HEAD:a t"))...)
	}, block: []string{"object-stuffing"}},
	{name: "objects of base are no stuffing", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		return l.rawBundle(l.sh(l.clone, "git rev-parse HEAD"), strings.Fields(l.sh(l.clone, "git rev-parse HEAD HEAD^{tree} HEAD:a HEAD~1 HEAD~2^{tree} HEAD:src/long.go"))...)
	}},
	{name: "tag as the tip", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a; git tag -a -m t t`)
		return l.rawBundle(l.sh(l.clone, "git rev-parse t"), strings.Fields(l.sh(l.clone, "git rev-parse HEAD HEAD^{tree} HEAD:a t"))...)
	}, block: []string{"object-stuffing"}},
	{name: "tree as the tip", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		return l.rawBundle(l.sh(l.clone, "git rev-parse HEAD^{tree}"), strings.Fields(l.sh(l.clone, "git rev-parse HEAD HEAD^{tree} HEAD:a"))...)
	}, block: []string{"bundle-format"}},
	{name: "tip that is not there", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		return l.rawBundle(strings.Repeat("1", 40), strings.Fields(l.sh(l.clone, "git rev-parse HEAD HEAD^{tree} HEAD:a"))...)
	}, block: []string{"bundle-format"}},
	{name: "missing blob", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		return l.rawBundle(l.sh(l.clone, "git rev-parse HEAD"), strings.Fields(l.sh(l.clone, "git rev-parse HEAD HEAD^{tree}"))...)
	}, block: []string{"object-malformed"}},
	{name: "missing parent", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a; echo b > b; git add b; git commit -qm b`)
		return l.rawBundle(l.sh(l.clone, "git rev-parse HEAD"), strings.Fields(l.sh(l.clone, "git rev-parse HEAD HEAD^{tree} HEAD:a HEAD:b"))...)
	}, block: []string{"object-malformed"}},
	{name: "something behind the pack", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		b := l.bundle()
		l.sh(l.dir, "printf x >> "+b)
		return b
	}, block: []string{"bundle-format"}},
	{name: "much behind the pack", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		b := l.bundle()
		l.sh(l.dir, "head -c 100000 /dev/zero >> "+b)
		return b
	}, block: []string{"bundle-format"}},
	{name: "cut pack", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		b := l.bundle()
		l.sh(l.dir, "truncate -s -30 "+b)
		return b
	}, block: []string{"bundle-format"}},
	{name: "pack with a wrong sum", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
		b := l.bundle()
		l.sh(l.dir, "truncate -s -1 "+b+"; printf Z >> "+b)
		return b
	}, block: []string{"object-malformed"}},
	{name: "no bundle", craft: func(l *lab) string {
		b := l.dir + "/b"
		l.sh(l.dir, "head -c 4000 /dev/zero > b")
		return b
	}, block: []string{"bundle-format"}},
	{name: "two refs", craft: func(l *lab) string {
		l.sh(l.clone, `echo a > a; git add a; git commit -qm a; git branch other; git bundle create -q ../b ^`+l.base+` HEAD other`)
		return l.dir + "/b"
	}, block: []string{"bundle-format"}},
}
