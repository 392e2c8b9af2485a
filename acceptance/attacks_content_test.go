package acceptance

import (
	"strings"
	"testing"

	"github.com/kickhq/kick/manager"
)

// TestContentAttacks are commits that are themselves the attack. What git's
// own commands refuse to make is made by the plumbing, byte by byte.
func TestContentAttacks(t *testing.T) { attackAll(t, contentAttacks) }

// refused is an attack that these rules end. The token, where there is one, is
// not printed.
func refused(name, script string, rules ...string) attack {
	return attack{name: name, script: script, want: manager.Refused, rules: rules, deny: token}
}

// malformed commits a root tree with one entry of that mode and name, which
// git's strict check refuses.
func malformed(name, mode, entry string) attack {
	return refused(name, `commit_tree $(entry `+mode+` '`+entry+`' $(blob x) | literally tree)`, "object-malformed")
}

// named commits a file whose path is made by printf.
func named(name, path string, rules ...string) attack {
	return refused(name, `p=$(printf '`+path+`'); case $p in */*) mkdir -p "${p%/*}";; esac; echo x >"$p"; git add -f "$p"; git commit -qm x`, rules...)
}

// headed commits with a header of its own.
func headed(name, header string, rules ...string) attack {
	return refused(name, `work; t=$(git rev-parse HEAD^{tree}); p=$(git rev-parse HEAD~1); w="$(git config user.name) <$(git config user.email)>"
		tip $(printf "`+strings.NewReplacer("\n", `\n`).Replace(header)+`" | literally commit)`, rules...)
}

const (
	plainHead = "tree $t\nparent $p\nauthor $w 1700000000 +0000\ncommitter $w 1700000000 +0000\n"
	// token has the form of a GitHub token and is made up; scripts join it.
	token     = "Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2"
	makeToken = `T=ghp_` + token + `; `
)

var contentAttacks = []attack{
	// Paths.
	malformed("entry .git", "100644", ".git"),
	malformed("entry git~1", "100644", "git~1"),
	malformed("entry .git with an ignored character", "100644", `.g\342\200\214it`),
	malformed("entry .git with a stream", "100644", ".git::$INDEX_ALLOCATION"),
	malformed("entry .git with a space", "100644", ".git "),
	malformed("entry with a backslash to .git", "100644", `a\\.git\\x`),
	malformed("entry ..", "100644", ".."),
	malformed("entry .", "100644", "."),
	malformed("entry with a slash", "100644", "a/b"),
	{name: "entry without a name", want: manager.AgentFailed, script: `commit_tree $(entry 100644 '' $(blob x) | literally tree)`},
	{name: "blob as a tree", want: manager.AgentFailed, script: `commit_tree $(entry 40000 x $(blob x) | literally tree)`},
	malformed("zero-padded mode", "0100644", "x"),
	malformed("set-user-ID mode", "104755", "x"),
	malformed("group-writable mode", "100664", "x"),
	malformed("mode of a socket", "140644", "x"),
	malformed("mode beyond 32 bits", "40000100644", "x"),
	malformed("link as .gitmodules", "120000", ".gitmodules"),
	malformed("link as .gitattributes", "120000", ".gitattributes"),
	refused("the same entry twice", `b=$(blob x); commit_tree $( (entry 100644 x $b; entry 100644 x $b) | literally tree)`, "object-malformed"),
	refused("entries out of order", `b=$(blob x); commit_tree $( (entry 100644 y $b; entry 100644 x $b) | literally tree)`, "object-malformed"),
	refused(".git in a subdirectory", `s=$(entry 100644 hooks $(blob x) | literally tree); s=$(entry 40000 .GiT $s | literally tree); commit_tree $( (git ls-tree HEAD; printf "040000 tree $s\tzz\n") | git mktree)`, "object-malformed"),
	named("escape sequence in a path", `a\033]0;title\007b`, "path-control"),
	named("carriage return in a path", `a\rb`, "path-control"),
	named("zero-width character in a path", `a\342\200\213b`, "path-control"),
	named("tag character in a path", `a\363\240\201\201b`, "path-control"),
	named("path that is not UTF-8", `x/\300\257y`, "path-encoding"),
	named("path with a surrogate", `a\355\240\200b`, "path-encoding"),
	named("trailing space in a directory", `dir /f`, "path-form"),
	named("trailing dot in a directory", `dir./f`, "path-form"),
	named("device name with an extension", `src/nul.tar.gz`, "path-form"),
	named("backslash in a path", `a\\b`, "path-form"),
	named("short name of .github", `GITHUB~1/workflows/x.yml`, "path-form"),
	named("full-width .git", `\357\274\216git/config`, "path-git"),
	named("full-width .github", `\357\274\216github/workflows/x.yml`, "path-collision", "protected-ci"),
	named("file in .hive", `.hive/x`, "path-hive"),
	refused("case collision deep in the base", `mkdir -p SRC; echo x >SRC/other.go; git add -A; git commit -qm x`, "path-collision"),
	refused("case collision of a file with a directory", `echo x >DOCS; git add -A; git commit -qm x`, "path-collision"),
	refused("ligature collision", `echo 1 >"$(printf '\357\254\201le')"; echo 2 >file; git add -A; git commit -qm x`, "path-collision"),
	refused("path of 5,000 bytes", `t=$(printf "100644 blob $(blob x)\tf\n" | git mktree); n=$(printf '%0200d' 1); i=0; while [ $i -lt 25 ]; do t=$(printf "040000 tree $t\t$n\n" | git mktree); i=$((i+1)); done
		commit_tree $( (git ls-tree HEAD; printf "040000 tree $t\tzz\n") | git mktree)`, "path-length"),

	// Entries.
	refused("link out through another link", `mkdir -p a/b; ln -s ../.. a/b/top; ln -s top/.. a/b/out; git add -A; git commit -qm x`, "symlink-escape"),
	refused("link to a device", `ln -s /dev/zero l; git add -A; git commit -qm x`, "symlink-escape"),
	refused("link to a Windows path", `ln -s 'C:\x' l; git add -A; git commit -qm x`, "symlink-escape"),
	refused("link with a line break", `ln -s "$(printf 'a\nb')" l; git add -A; git commit -qm x`, "symlink-escape"),
	refused("link in place of a directory", `git rm -rq src; ln -s docs src; git add -A; git commit -qm x; ln -sfn ../../etc src; git commit -qam x`, "symlink-escape"),
	refused("file of the base as a link", `git update-index --add --cacheinfo 120000,$(git rev-parse HEAD:docs/index.md),l; git commit -qm x`, "symlink-escape"),
	refused("submodule in place of a directory", `git rm -rq docs; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),docs; git commit -qm x`, "gitlink"),
	refused("repository in the repository", `git init -q sub; (cd sub; git config user.name x; git config user.email x@example.com; echo x >x; git add x; git commit -qm x); git add sub 2>/dev/null; git commit -qm x`, "gitlink"),
	refused("attributes in another case", `mkdir -p a; echo '*.go -diff linguist-generated export-subst filter=x' >a/.GitAttributes; git add -A; git commit -qm x`, "protected-git"),
	refused("LFS pointer to a foreign object", `printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 99999999999\n' >m.bin; git add -A; git commit -qm x`, "lfs-pointer"),
	refused("LFS pointer behind an empty line", `printf '\nversion https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 1\n' >m.bin; git add -A; git commit -qm x`, "lfs-pointer"),
	refused("LFS pointer of the oldest form", `printf 'version http://git-media.io/v/2\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 1\n' >m.bin; git add -A; git commit -qm x`, "lfs-pointer"),
	{name: "LFS object that no commit names", deny: "HIDDEN-IN-LFS", script: `work; mkdir -p .git/lfs/objects/4d/7a; echo HIDDEN-IN-LFS >.git/lfs/objects/4d/7a/x; git config lfs.url http://127.0.0.1:$PORT/`},
	{name: "attributes of the repository alone", deny: "", script: `echo '* -diff filter=x working-tree-encoding=UTF-16' >.git/info/attributes; git config filter.x.clean cat; echo work >work.txt; git -c core.attributesFile=/dev/null add work.txt 2>/dev/null || git update-index --add --cacheinfo 100644,$(blob 'work\n'),work.txt; git update-index --add --cacheinfo 100644,$(blob 'work\n'),work.txt; git commit -qm work`},

	// History.
	refused("workflow that a merge alone brings", `git checkout -qb side; echo s >s; git add s; git commit -qm s; git checkout -q -; work; git merge -q --no-ff --no-commit side; echo 'on: push' >.github/workflows/x.yml; git add -A; git commit -qm m; git rm -q .github/workflows/x.yml; git commit -qm gone`, "protected-ci"),
	refused("workflow in one arm of an octopus", `for b in a b c; do git checkout -qb $b main; echo $b >$b; git add $b; git commit -qm $b; done; echo x >>.github/workflows/ci.yml; git commit -qam e; git checkout -q main; git merge -q -m all a b c; git checkout -q main -- . ; git rev-parse HEAD`, "protected-ci"),
	refused("merge of an unrelated history", `git checkout -q --orphan o; git rm -rqf .; echo x >x; git add x; git commit -qm x; git checkout -qf main; git merge -q --allow-unrelated-histories -m m o`, "history-unrelated"),
	refused("base squashed away", `t=$(git rev-parse HEAD^{tree}); echo w >w; git add w; tip $(echo x | git commit-tree $(git write-tree))`, "history-rewritten", "history-unrelated"),
	refused("parent behind the author", `work; t=$(git rev-parse HEAD^{tree}); w="$(git config user.name) <$(git config user.email)> 1700000000 +0000"
		tip $(printf "tree $t\nauthor $w\ncommitter $w\nparent $(git rev-parse HEAD~1)\n\nx\n" | literally commit)`, "history-rewritten", "history-unrelated"),

	// Commit objects.
	headed("signature that nobody made", plainHead+"gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQEzBAABCAAdFiEE\n -----END PGP SIGNATURE-----\n\nx\n", "commit-header"),
	headed("SHA-256 signature", plainHead+"gpgsig-sha256 x\n\nx\n", "commit-header"),
	headed("mergetag", plainHead+"mergetag object $p\n type commit\n tag x\n\nx\n", "commit-header"),
	headed("header of one's own", plainHead+"hidden content\n\nx\n", "commit-header"),
	headed("second tree", plainHead+"tree $p\n\nx\n", "commit-header"),
	headed("encoding UTF-7", plainHead+"encoding UTF-7\n\n+AGEAYg-\n", "commit-header"),
	headed("encoding twice", plainHead+"encoding UTF-8\nencoding UTF-8\n\nx\n", "commit-header"),
	headed("parent twice", "tree $t\nparent $p\nparent $p\nauthor $w 1700000000 +0000\ncommitter $w 1700000000 +0000\n\nx\n", "commit-header"),
	headed("NUL in a message", plainHead+"\nx\\000y\n", "object-malformed"),
	headed("date before 1970", "tree $t\nparent $p\nauthor $w -1 +0000\ncommitter $w 1700000000 +0000\n\nx\n", "object-malformed"),
	headed("date that overflows", "tree $t\nparent $p\nauthor $w 99999999999999999999 +0000\ncommitter $w 1700000000 +0000\n\nx\n", "object-malformed"),
	headed("no author", "tree $t\nparent $p\ncommitter $w 1700000000 +0000\n\nx\n", "object-malformed"),
	headed("angle bracket in a name", "tree $t\nparent $p\nauthor a<b $w 1700000000 +0000\ncommitter $w 1700000000 +0000\n\nx\n", "object-malformed"),
	headed("date after 2106", strings.Replace(plainHead, "1700000000", "4294967296", 1)+"\nx\n", "commit-header"),
	headed("date in the year 292277026596", strings.Replace(plainHead, "1700000000", "9223372036854775807", 1)+"\nx\n", "commit-header"),
	headed("time zone beyond 14 hours", strings.Replace(plainHead, "+0000", "-9959", 1)+"\nx\n", "commit-header"),
	headed("message that is not UTF-8", plainHead+"\na\\377b\n", "commit-message"),
	refused("override of direction in a message", `echo x >x; git add x; git commit -qm "$(printf 'a\342\200\256b')"`, "commit-message"),
	refused("escape sequence in an author", `echo x >x; git add x; GIT_AUTHOR_NAME=$(printf 'a\033[31mb') git commit -qm x`, "commit-header", "commit-identity"),
	refused("committer of another", `echo x >x; git add x; GIT_COMMITTER_NAME=Maintainer GIT_COMMITTER_EMAIL=m@example.com git commit -qm x`, "commit-identity"),
	refused("name of another, address of its own", `echo x >x; git add x; git -c user.name='GitHub' commit -qm x`, "commit-identity"),
	refused("review trailers", `echo x >x; git add x; git commit -qm "$(printf 'x\n\nReviewed-by: M <m@example.com>\nAcked-by: M <m@example.com>\nTested-by: M <m@example.com>')"`, "commit-sign-off"),
	refused("co-author of another", `echo x >x; git add x; git commit -qm "$(printf 'x\n\nCo-Authored-By: M <m@example.com>')"`, "commit-sign-off"),
	refused("co-author with a second, allowed address", `echo x >x; git add x; git commit -qm "$(printf 'x\n\nCo-authored-by: M <m@example.com> <noreply@anthropic.com>')"`, "commit-sign-off"),
	refused("sign-off behind a carriage return", `echo x >x; git add x; git commit -qm "$(printf 'x\n\ny\rSigned-off-by: M <m@example.com>\r')"`, "commit-message", "commit-sign-off"),
	refused("skip-checks behind a carriage return", `echo x >x; git add x; git commit -qm "$(printf 'x\n\ny\r\rskip-checks: true')"`, "commit-message", "commit-skip-checks"),
	{name: "closing words and mentions", note: "commit-reference", files: map[string]string{"x": "x\n"}, script: `echo x >x; git add x; git commit -qm x -m 'Closes #1, fixes acme/api#2 for @octocat'`},
	refused("every mark that skips CI", `for m in '[skip ci]' '[ci skip]' '[no ci]' '[skip actions]' '[actions skip]' '***NO_CI***'; do echo "$m" >x; git add x; git commit -qm "$m"; done`, "commit-skip-ci"),
	refused("skip-checks with odd spaces", `echo x >x; git add x; git commit -qm "$(printf 'x\n\nSKIP-checks:    true')"`, "commit-skip-checks"),

	// Secrets; more of them are in TestAgents.
	{name: "token in notes and tags", deny: token, script: makeToken + `work; git tag v1; git tag -a -m "$T" v2; git notes add -m "$T"; git branch "b/$T"; git stash list`},
	{name: "token in another branch", deny: token, script: makeToken + `git checkout -qb side; echo $T >t; git add t; git commit -qm t; git checkout -q -; work`},
	{name: "token in what is not committed", deny: token, script: makeToken + `work; echo $T >t; echo $T >>.git/info/exclude; echo $T >.git/description; git config user.token $T`},
	refused("token in an author", makeToken+`echo x >x; git add x; GIT_AUTHOR_NAME=$T git commit -qm x`, "commit-identity", "github-token"),
	refused("token in a header", makeToken+`work; w="$(git config user.name) <$(git config user.email)> 1700000000 +0000"; tip $(printf "tree $(git rev-parse HEAD^{tree})\nparent $(git rev-parse HEAD~1)\nauthor $w\ncommitter $w\nx-note $T\n\nx\n" | literally commit)`, "commit-header", "github-token"),
	refused("token in what other rules quote", makeToken+`ln -s "/$T" l; mkdir d; echo 1 >"d/$T"; echo 2 >"d/$(echo $T | tr A-Z a-z)"; echo 3 >"d/$T "; printf 'version https://git-lfs.github.com/spec/v1\noid %s\nsize 1\n' $T >m.bin; git add -A; git commit -qm "$(printf 'x\n\nSigned-off-by: %s <a@example.com>' $T)"`,
		"commit-sign-off", "github-token", "lfs-pointer", "path-collision", "path-form", "symlink-escape"),
	refused("token as a header's name", makeToken+`work; w="$(git config user.name) <$(git config user.email)> 1700000000 +0000"; tip $(printf "tree $(git rev-parse HEAD^{tree})\nparent $(git rev-parse HEAD~1)\nauthor $w\ncommitter $w\n$T x\n\nx\n" | literally commit)`, "commit-header", "github-token"),
	refused("token in a directory's name", makeToken+`mkdir "$T"; echo x >"$T/x"; git add -A; git commit -qm x`, "github-token"),
	refused("token as a link's target", makeToken+`ln -s "$T" l; git add -A; git commit -qm x`, "github-token"),
	refused("token in a tree that is replaced later", makeToken+`mkdir d; echo $T >d/t; git add -A; git commit -qm x; git rm -rq d; echo x >d; git add -A; git commit -qm y`, "github-token"),
	refused("token in wrapped base64", makeToken+`echo "token=$T" | base64 -w 20 >t; git add -A; git commit -qm x`, "github-token"),
	refused("token in gzip with another name", makeToken+`echo "token=$T" | gzip -n >photo.jpg; git add -A; git commit -qm x`, "github-token"),
	refused("token in base64 of gzip", makeToken+`echo "token=$T" | gzip -n | base64 -w0 >t.txt; git add -A; git commit -qm x`, "github-token"),
	refused("token in hexadecimal", makeToken+`echo "token=$T" | od -An -v -tx1 | tr -d ' \n' >t; git add -A; git commit -qm x`, "github-token"),
	refused("token with a zero-width character", makeToken+`printf '%s\342\200\213%s\n' ghp_Z9y8X7w6V5u4T3s2R1 q0P9o8N7m6L5k4J3h2 >t; git add -A; git commit -qm x`, "content-zero-width", "github-token"),
	refused("token in a split literal", makeToken+`printf 'x = "%s" + "%s"\n' ghp_Z9y8X7w6V5u4T3s2R1 q0P9o8N7m6L5k4J3h2 >t.js; git add -A; git commit -qm x`, "github-token"),
	refused("token in a file that attributes hide", makeToken+`echo '* -diff binary' >.git/info/attributes; echo $T >t; git add -A; git commit -qm x`, "github-token"),

	// The same where kick makes one commit of the work.
	{name: "token that a squash leaves behind", flags: []string{"--squash"}, deny: token, script: makeToken + `echo $T >t; git add t; git commit -qm "t $T"; git rm -q t; work`},
	{name: "token that a squash keeps", flags: []string{"--squash"}, want: manager.Refused, rules: []string{"github-token"}, deny: token, script: makeToken + `work; echo $T >t; git add t; git commit -qm t`},
	{name: "workflow that a squash keeps", flags: []string{"--squash"}, want: manager.Refused, rules: []string{"protected-ci"}, script: `work; echo 'on: push' >.github/workflows/x.yml; git add -A; git commit -qm x`},
	{name: "sign-off that a squash drops", flags: []string{"--squash"}, gone: "maintainer@example.com", script: `work; echo x >>work.txt; git add -A; git commit -qm "$(printf 'Signed-off-by: M <maintainer@example.com>\n\n[skip ci]\nskip-checks: true')"; echo work >work.txt; git commit -qam back`},
	{name: "squash of a rewritten base", flags: []string{"--squash"}, want: manager.Refused, rules: []string{"history-rewritten", "history-unrelated"}, script: `echo x >x; git add x; git commit -q --amend -m x`},

	// Text that deceives.
	refused("isolates in code", `printf 'if x \342\201\246 // \342\201\251 {\n' >x.go; git add -A; git commit -qm x`, "content-bidi"),
	refused("tag characters in instructions for agents", `printf 'be nice\363\240\201\201\363\240\201\202\n' >AGENTS.md; git add -A; git commit -qm x`, "content-bidi", "protected-agent"),
	refused("text hidden in variation selectors", `printf 'nice \360\237\231\202\363\240\204\200\363\240\204\201\n' >x.md; git add -A; git commit -qm "$(printf 'nice \360\237\231\202\363\240\204\200\363\240\204\201')"`, "commit-message", "content-bidi"),
	refused("override of direction in UTF-16", `printf '\377\376i\0f\0\056\040x\0\n\0' >x.cs; git add -A; git commit -qm x`, "content-bidi"),
	{name: "escape sequences in output", script: `work; printf '\033]0;owned\007\033[2J\r::error::x\n##[error]y\n\302\233 31m\342\200\256'; printf '\033]52;c;AAAA\007' >&2`},
	{name: "binary file", files: map[string]string{"a.bin": "a\x00b"}, script: `printf 'a\000b' >a.bin; git add -A; git commit -qm x`, note: "binary"},
	refused("file over the limit", `head -c 5300000 /dev/zero | tr '\0' a >big; git add -A; git commit -qm x; git rm -q big; work`, "limit-file-bytes"),
	refused("too much in all", `for i in 1 2 3 4 5; do head -c 4500000 /dev/zero | tr '\0' $i >f$i; done; git add -A; git commit -qm x`, "limit-total-bytes"),
}
