package acceptance

import (
	"testing"

	"github.com/kickhq/kick/manager"
)

// TestReadingAttacks are repositories that turn on whoever reads them. kick
// publishes the work that is in them, or says that it cannot be read.
func TestReadingAttacks(t *testing.T) { attackAll(t, readingAttacks) }

var readingAttacks = []attack{
	// Settings and what they run.
	{name: "settings that run programs", script: `work; evil; e="$PWD/.git/evil"
		for k in core.fsmonitor core.pager core.editor core.sshCommand core.askPass core.gitProxy core.alternateRefsCommand diff.external diff.x.textconv diff.x.command \
			merge.x.driver filter.x.clean filter.x.smudge filter.x.process credential.helper gpg.program gpg.ssh.program sequence.editor interactive.diffFilter \
			uploadpack.packObjectsHook trailer.x.command pager.rev-list pager.log; do git config $k "$e"; done
		git config alias.rev-list "!$e"; git config log.showSignature true; git config commit.gpgSign true; git config core.hooksPath "$PWD/.git"
		printf '* filter=x diff=x merge=x\n' >.git/info/attributes
		git status >/dev/null 2>&1 || :; live
		touch work.txt; git diff HEAD >/dev/null 2>&1 || :; live`},
	{name: "hooks of every name", script: `work; evil; mkdir -p .git/hooks; for h in applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg post-commit \
			pre-rebase post-checkout post-merge pre-push pre-receive update post-receive post-update reference-transaction push-to-checkout pre-auto-gc post-rewrite \
			sendemail-validate fsmonitor-watchman post-index-change proc-receive; do cp .git/evil .git/hooks/$h; done
		git branch other; live; git status >/dev/null; touch work.txt; git status >/dev/null; live`},
	{name: "filter that rewrites content", script: `git config filter.x.clean 'sed s/work/rewritten/'; git config filter.x.smudge 'sed s/work/rewritten/'; git config filter.x.required true; work
		printf '* filter=x\n' >.git/info/attributes; touch work.txt; git diff HEAD | grep -q rewritten`},
	{name: "include of a host's file", script: `work; printf '[include]\n\tpath = %s/file\n[includeIf "gitdir:/"]\n\tpath = %s/file\n' "$HOST" "$HOST" >>.git/config
		git config extensions.worktreeConfig true; printf '[include]\n\tpath = %s/file\n' "$HOST" >.git/config.worktree; git config -l >/dev/null`},
	{name: "include of hostile settings", script: `work; evil; printf '[core]\n\tfsmonitor = %s/.git/evil\n' "$PWD" >.git/more
		printf '[includeIf "gitdir:**"]\n\tpath = more\n' >>.git/config; git status >/dev/null 2>&1; live
		git config extensions.worktreeConfig true; cp .git/more .git/config.worktree`},
	{name: "include of itself", script: `work; printf '[include]\n\tpath = config\n' >>.git/config; not git status 2>/dev/null`},
	{name: "rewritten addresses", script: `work; git config remote.origin.url http://127.0.0.1:$PORT/a; git config remote.origin.pushurl http://127.0.0.1:$PORT/b
		for p in / file:// http:// https:// ssh:// git@; do git config --add url.http://127.0.0.1:$PORT/x.insteadOf $p; git config --add url.http://127.0.0.1:$PORT/y.pushInsteadOf $p; done
		git config http.proxy http://127.0.0.1:$PORT; git config http.sslVerify false; git config http.extraHeader 'X: y'; git config http.curloptResolve "github.com:443:127.0.0.1"
		git config remote.origin.proxy http://127.0.0.1:$PORT; git config remote.origin.receivepack 'touch '$MARK';'; git config remote.origin.vcs evil; git config credential.helper store
		git config remote.pushDefault origin; git config branch.main.pushRemote origin; test "$(git ls-remote --get-url /x)" = http://127.0.0.1:$PORT/xx`},
	{name: "transport that runs a command", script: `work; git config protocol.allow always; git config protocol.ext.allow always; git config remote.origin.url "ext::touch $MARK"
		git fetch -q origin 2>/dev/null || :; live; git config submodule.recurse true; git config fetch.recurseSubmodules true`},
	{name: "pack-objects hook", script: `work; evil; printf '#!/bin/sh\n: >%s\nexec "$@"\n' "$MARK" >.git/evil; git config uploadpack.packObjectsHook "$PWD/.git/evil"
		git config --global uploadpack.packObjectsHook "$PWD/.git/evil"; git clone -q --no-local . "$HOME/c"; live`},

	// Other people's objects.
	{name: "alternates to the host's repository", script: `work; echo "$HOST/repo/.git/objects" >>.git/objects/info/alternates; echo "http://127.0.0.1:$PORT/objects" >.git/objects/info/http-alternates
		not git cat-file -e $VICTIM_BLOB`},
	{name: "commit of a private object by its id", want: manager.AgentFailed, script: `work; echo "$HOST/repo/.git/objects" >>.git/objects/info/alternates
		commit_tree $(printf "100644 blob $VICTIM_BLOB\tstolen\n" | git mktree --missing)`},
	{name: "private commit by its id", want: manager.AgentFailed, script: `work; echo "$HOST/repo/.git/objects" >>.git/objects/info/alternates; echo $VICTIM_COMMIT >.git/refs/heads/main`},
	{name: "alternates in a circle", script: `work; mkdir -p ../tmp/o/info 2>/dev/null || :; mkdir -p "$HOME/o/info"; echo "$PWD/.git/objects" >"$HOME/o/info/alternates"; echo "$HOME/o" >>.git/objects/info/alternates`},
	{name: "git directory is a file", want: manager.AgentFailed, script: `work; rm -rf .git; echo "gitdir: $HOST/repo/.git" >.git`},
	{name: "git directory is a link", want: manager.AgentFailed, script: `work; rm -rf .git; ln -s "$HOST/repo/.git" .git`},
	{name: "common directory elsewhere", script: `work; echo "$HOST/repo/.git" >.git/commondir; not git log 2>/dev/null`},
	{name: "work tree elsewhere", script: `work; mkdir -p .git/worktrees/x; echo "$HOST/repo/.git" >.git/worktrees/x/gitdir; echo "$HOST/repo/.git" >.git/worktrees/x/commondir; echo $VICTIM_COMMIT >.git/worktrees/x/HEAD
		git config core.worktree "$HOST"; not git status 2>/dev/null`},
	{name: "objects are a link to the host's", want: manager.AgentFailed, script: `work; rm -rf .git/objects; ln -s "$HOST/repo/.git/objects" .git/objects`},
	{name: ".hive is a link to the host", script: `work; rm -rf .hive; ln -s "$HOST" .hive`},
	{name: "doors are closed", script: `work; chmod 000 .git/objects .git/refs .git .`},
	{name: "linked work tree", script: `work; git worktree add -q -b x "$HOME/x"; cd "$HOME/x"; echo x >x; git add x; git commit -qm x`},
	{name: "absorbed submodule with hostile settings", script: `work; mkdir -p .git/modules; git init -q --bare .git/modules/sub; git -C .git/modules/sub config core.fsmonitor "touch $MARK"; git -C .git/modules/sub config core.worktree ../../../sub; mkdir sub; echo 'gitdir: ../.git/modules/sub' >sub/.git`},
	{name: "bare repository in place of .git", script: `work; git clone -q --bare . "$HOME/b"; rm -rf .git; mv "$HOME/b" .git`},
	{name: "repository with SHA-256 ids", want: manager.AgentFailed, script: `work; rm -rf .git; git init -q --object-format=sha256; git add -A; git -c user.name=x -c user.email=x commit -qm x`},
	{name: "refs are a link", script: `work; git pack-refs --all; rm -rf .git/refs; ln -s /etc .git/refs`},
	{name: "packed refs are a link", script: `work; rm -f .git/packed-refs; ln -s "$HOST/file" .git/packed-refs`},
	{name: "HEAD is a link", want: manager.AgentFailed, script: `work; rm .git/HEAD; ln -s "$HOST/repo/.git/HEAD" .git/HEAD`},
	{name: "HEAD is a FIFO", want: manager.AgentFailed, script: `work; rm .git/HEAD; mkfifo .git/HEAD`},
	{name: "FIFOs among refs and for the index", script: `work; mkfifo .git/refs/heads/fifo; rm .git/index; mkfifo .git/index; mkfifo .git/info/fifo; rm -f .git/info/exclude; mkfifo .git/info/exclude`},
	{name: "sparse files of a terabyte", script: `work; truncate -s 1T .git/index 2>/dev/null || truncate -s 100M .git/index; truncate -s 100M .git/packed-refs .git/info/exclude`},
	{name: "the base's objects are not the agent's to change", script: `work; b=$(tail -1 .git/objects/info/alternates); test -d "$b"
		not chmod u+w "$b"; not touch "$b/x"; not mv "$b" "$b.old"; f=$(find "$b" -type f | head -1); test -f "$f"; not ln "$f" .git/objects/stolen; not cp /dev/null "$f"; not chmod u+w "$f"`},

	// Lies about history.
	{name: "replaced commit", files: map[string]string{"work.txt": "work\n", "more.txt": "more\n"}, script: `work; a=$(git rev-parse HEAD); echo more >more.txt; git add -A; git commit -qm more; git replace HEAD $a; test -z "$(git ls-tree HEAD more.txt)"`},
	{name: "replaced commit that holds a token", want: manager.Refused, rules: []string{"github-token"}, deny: token, script: makeToken + `work; echo $T >t; git add t; git commit -qm t; git replace HEAD HEAD~1; test -z "$(git ls-tree HEAD t)"`},
	{name: "replaced tree", files: map[string]string{"work.txt": "work\n", "more.txt": "more\n"}, script: `work; a=$(git rev-parse HEAD^{tree}); echo more >more.txt; git add -A; git commit -qm more; git replace HEAD^{tree} $a`},
	{name: "replaced base", script: `work; git replace --graft HEAD; test "$(git rev-list --count HEAD)" = 1`},
	{name: "grafts", script: `work; git rev-parse HEAD >.git/info/grafts; test "$(git rev-list --count HEAD 2>/dev/null)" = 1`},
	{name: "shallow", script: `work; git rev-parse HEAD >.git/shallow; test "$(git rev-list --count HEAD)" = 1`},
	{name: "branch and tag of one name", script: `work; git tag main HEAD~1; git update-ref refs/heads/refs/heads/main HEAD~1; git update-ref refs/main HEAD~1; git update-ref refs/remotes/main HEAD~1`},
	{name: "branch named like an option", script: `work; git update-ref refs/heads/-x HEAD; git symbolic-ref HEAD refs/heads/-x`},
	{name: "branch named like a full ref", script: `work; git update-ref refs/heads/refs/heads/main HEAD; git symbolic-ref HEAD refs/heads/refs/heads/main`},
	{name: "branch named like kick's", script: `work; git update-ref refs/heads/kick/agent/k0000000000000 HEAD; git symbolic-ref HEAD refs/heads/kick/agent/k0000000000000`},
	{name: "symbolic refs in a circle", want: manager.AgentFailed, script: `work; git symbolic-ref refs/heads/a refs/heads/b; echo 'ref: refs/heads/a' >.git/refs/heads/b; echo 'ref: refs/heads/a' >.git/HEAD`},
	{name: "HEAD leads out of refs", want: manager.AgentFailed, script: `work; printf 'ref: refs/heads/../../../../etc/passwd\n' >.git/HEAD`},
	{name: "HEAD names a reflog entry", want: manager.AgentFailed, script: `work; printf 'ref: refs/heads/main@{1}\n' >.git/HEAD`},
	{name: "packed refs that contradict each other", script: `work; h=$(git rev-parse HEAD); b=$(git rev-parse HEAD~1); rm .git/refs/heads/main; printf "$b refs/heads/main\n$h refs/heads/main\n$h refs/heads/../x\n$h -x\n$h HEAD\n" >.git/packed-refs`},
	{name: "loose ref against packed ref", script: `work; b=$(git rev-parse HEAD~1); printf "$b refs/heads/main\n^$b\n" >.git/packed-refs; test $(cat .git/refs/heads/main) != $b`},

	// Lies of caches and stores.
	{name: "commit graph that hides a tree", want: manager.Refused, rules: []string{"protected-ci"}, script: `work; echo 'on: push' >.github/workflows/x.yml; git add -A; git commit -qm ci
		git commit-graph write --reachable 2>/dev/null; g=.git/objects/info/commit-graph; chmod u+w $g
		from=$(git rev-parse HEAD^{tree} | sed 's/../\\x&/g'); to=$(git rev-parse HEAD~1^{tree} | sed 's/../\\x&/g')
		LC_ALL=C sed -i "s/$from/$to/g" $g; n=$(($(wc -c <$g)-20)); head -c $n $g >g; unhex $(sha1sum g | cut -c1-40) >>g; cp g $g; rm g
		test "$(git rev-parse HEAD^{tree})" = "$(git rev-parse HEAD~1^{tree})" || test "$(git log -1 --format=%T)" = "$(git rev-parse HEAD~1^{tree})"`},
	{name: "corrupt commit graph, bitmap and index of packs", script: `work; git repack -qad --write-bitmap-index 2>/dev/null || git repack -qd; git multi-pack-index write 2>/dev/null; mkdir -p .git/objects/info
		for f in .git/objects/pack/multi-pack-index .git/objects/info/commit-graph; do printf 'garbage' >$f.x; rm -f $f; mv $f.x $f; done
		p=$(ls .git/objects/pack/*.pack | head -1); rm -f ${p%.pack}.rev ${p%.pack}.bitmap; printf garbage >${p%.pack}.rev; printf garbage >${p%.pack}.bitmap; printf garbage >${p%.pack}.mtimes`},
	{name: "index of another pack", want: manager.AgentFailed, script: `work; git repack -qd; p=$(ls .git/objects/pack/*.pack); echo x | git hash-object -w --stdin | git pack-objects -q .git/objects/pack/pack >/dev/null
		for q in .git/objects/pack/*.pack; do test $q = $p || cp -f ${q%.pack}.idx ${p%.pack}.idx; done; not git log 2>/dev/null`},
	{name: "loose object with other content", want: manager.Refused, rules: []string{"object-malformed"}, script: `work; h=$(git rev-parse HEAD:work.txt); o=$(echo lies | git hash-object -w --stdin); path() { echo .git/objects/$(echo $1 | cut -c1-2)/$(echo $1 | cut -c3-); }
		rm -f $(path $h); cp $(path $o) $(path $h)`},
	{name: "other content under a base object's id", script: `work; h=$(git rev-parse HEAD:README.md); o=$(echo lies | git hash-object -w --stdin); path() { echo .git/objects/$(echo $1 | cut -c1-2)/$(echo $1 | cut -c3-); }
		mkdir -p $(dirname $(path $h)); cp $(path $o) $(path $h)`},
	{name: "promisor that runs a command for a missing object", want: manager.AgentFailed, script: `work; h=$(git rev-parse HEAD:work.txt); rm -f .git/objects/$(echo $h | cut -c1-2)/$(echo $h | cut -c3-)
		git config core.repositoryFormatVersion 1; git config extensions.partialClone p; git config remote.p.url "ext::touch $MARK"; git config remote.p.promisor true; git config protocol.ext.allow always
		git cat-file -p $h 2>/dev/null || :; live`},
	{name: "unknown formats", script: `work; mkdir .git/reftable; echo garbage >.git/reftable/tables.list; printf '[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\trefStorage = reftable\n\tnoSuch = true\n' >>.git/config; not git status 2>/dev/null`},
	{name: "garbage packs and objects", script: `work; for i in 1 2 3; do h=$(printf "%040d" $i); printf 'PACK\0\0\0\2\377\377\377\377garbage' >.git/objects/pack/pack-$h.pack; printf '\377tOc\0\0\0\2garbage' >.git/objects/pack/pack-$h.idx; done
		mkdir -p .git/objects/11; printf garbage >.git/objects/11/11111111111111111111111111111111111111; : >.git/objects/11/22222222222222222222222222222222222222`},
	{name: "index version 4, split and sparse", script: `work; git update-index --index-version 4; git update-index --split-index; git config core.sparseCheckout true; echo '/work.txt' >.git/info/sparse-checkout; git config index.sparse true`},
	{name: "index that claims four billion entries", script: `work; printf 'DIRC\0\0\0\2\377\377\377\377' >.git/index`},

	// Size and time.
	{name: "bomb of 400 MB", want: manager.Refused, rules: []string{"limit-ingest"}, script: `head -c 400000000 /dev/zero >big; git -c core.bigFileThreshold=1m add big; git commit -qm big; rm big`},
	{name: "bomb of trees", want: manager.Refused, rules: []string{"limit-ingest"}, script: `t=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf "100644 blob $(blob x)\tf$i\n"; done | git mktree)
		for d in 1 2 3 4 5 6 7 8 9 10 11; do t=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf "040000 tree $t\td$i\n"; done | git mktree); done
		commit_tree $( (git ls-tree HEAD; printf "040000 tree $t\tzz\n") | git mktree)`},
	{name: "tree 1,200 deep", want: manager.Refused, rules: []string{"limit-ingest"}, script: `t=$(printf "100644 blob $(blob x)\tf\n" | git mktree); i=0; while [ $i -lt 1200 ]; do t=$(printf "040000 tree $t\td\n" | git mktree); i=$((i+1)); done; commit_tree $( (git ls-tree HEAD; printf "040000 tree $t\tzz\n") | git mktree)`},
	{name: "30,000 refs", want: manager.AgentFailed, script: `work; h=$(git rev-parse HEAD); i=0; while [ $i -lt 30000 ]; do echo "$h refs/heads/b$i"; i=$((i+1)); done >.git/packed-refs`},
	{name: "message of 2 MB", want: manager.Refused, rules: []string{"limit-ingest"}, script: `echo x >x; git add x; head -c 2000000 /dev/zero | tr '\0' a | git commit -qF -`},
	{name: "octopus with 40 arms", want: manager.Refused, rules: []string{"limit-ingest"}, script: `work; p=; i=0; while [ $i -lt 40 ]; do p="$p -p $(echo $i | git commit-tree HEAD^{tree} -p HEAD)"; i=$((i+1)); done; tip $(echo x | git commit-tree HEAD^{tree} $p)`},
	{name: "staged workflow beside blank lines at an end", files: map[string]string{"work.txt": "work\n\n\n"}, script: `printf 'work\n\n\n' >work.txt; git add work.txt; git commit -qm work; echo 'on: push' >.github/workflows/x.yml; git add -A`},
	{name: "ignored and untracked files stay", script: `work; echo '*.log' >.git/info/exclude; echo x >x.log; echo y >y.txt; git stash list`},
}
