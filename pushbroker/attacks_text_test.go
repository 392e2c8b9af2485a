package pushbroker

import "testing"

// textAttacks hide something in a text that people read.
var textAttacks = []attack{
	{name: "variation selectors carry a text", script: `printf 'nice \360\237\231\202\363\240\204\200\363\240\204\201\n' > x.md` + addAll, block: []string{"content-bidi"}},
	{name: "selectors in a message", script: `echo a > a; git add a; git commit -qm "$(printf 'nice \360\237\231\202\363\240\204\200\363\240\204\201')"`, block: []string{"commit-message"}},
	{name: "override in a UTF-16 file", script: `printf '\377\376i\0f\0\056\040x\0\n\0' > x.cs` + addAll, block: []string{"content-bidi"}, report: []string{"binary"}},
	{name: "escape sequence in a file", script: `printf 'ok\033[2Kno\n' > x.txt` + addAll, block: []string{"content-control"}},
	{name: "escape sequence in a file that is not UTF-8", script: `printf 'caf\351\033[2Kno\n' > x.txt` + addAll, block: []string{"content-control"}},
	{name: "another override beside a known one", script: `printf 'evil \342\200\256 x\n' >> docs/rtl.md` + addAll, block: []string{"content-bidi"}},
	{name: "another control in place of a known one", script: `printf 'a\342\201\246b\n' > docs/rtl.md` + addAll, block: []string{"content-bidi"}},
	{name: "zero-width space in code", script: `printf 'pass\342\200\213word\n' > x.go` + addAll, review: []string{"content-zero-width"}},
	{name: "zero-width space in agent instructions", script: `printf 'obey\342\200\213\n' > AGENTS.md` + addAll, block: []string{"content-agent"}, review: []string{"content-zero-width", "protected-agent"}},
	{name: "sign-off behind a carriage return", script: `echo a > a; git add a; git commit -q --cleanup=verbatim -m "$(printf 'x\rSigned-off-by: M <m@example.com>')"`, block: []string{"commit-message", "commit-sign-off"}},
	{name: "skip-checks behind a carriage return", script: `echo a > a; git add a; git commit -q --cleanup=verbatim -m "$(printf 'x\r\rskip-checks: true')"`, block: []string{"commit-message", "commit-skip-checks"}},
	{name: "trailer with two addresses", script: `echo a > a; git add a; git commit -qm 'x

Co-authored-by: M <m@example.com> <noreply@anthropic.com>'`, block: []string{"commit-sign-off"}},
	{name: "own sign-off with another address", script: `echo a > a; git add a; git commit -qm 'x

Signed-off-by: M <m@example.com> <kick@example.com>'`, block: []string{"commit-sign-off"}},
	{name: "message that closes an issue", script: `echo a > a; git add a; git commit -qm 'x

Closes #1 @octocat'`, report: []string{"commit-reference"}},
	{name: "LFS pointer behind an empty line", script: `printf '\nversion https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 1\n' > m.bin` + addAll, review: []string{"lfs-pointer"}},
	{name: "LFS pointer with an older name", script: `printf 'version http://git-media.io/v/2\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 1\n' > m.bin` + addAll, review: []string{"lfs-pointer"}},
	{name: "short name of a protected directory", script: `mkdir -p 'GITHUB~1/workflows'; echo x > 'GITHUB~1/workflows/x.yml'` + addAll, block: []string{"path-form"}},
	{name: "header that breaks before the identities", craft: header("tree TREE\nparent BASE\nparent BASE\n" + idents + "\nx\n"), block: []string{"commit-header"}},
}

// Text that looks like such and is honest.
func TestHonestTextPasses(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"emoji":               `printf '\342\235\244\357\270\217 1\357\270\217\342\203\243 \360\237\221\250\342\200\215\360\237\221\251\n' > x.md` + addAll,
		"a mark at the start": `printf '\357\273\277# title\n' > x.md` + addAll,
		"form feed":           `printf 'page\fpage\n' > x.c` + addAll,
		"latin-1":             `printf 'caf\351\n' > x.txt` + addAll,
		"known in the base":   `echo more >> docs/rtl.md` + addAll,
		"known line changed":  `printf 'a\342\200\256b c\n' > docs/rtl.md` + addAll,
		"known line moved":    `printf 'x\na\342\200\256b\n' > docs/rtl.md` + addAll,
		"random bytes":        `printf '\001\377\376\220abc\033z' > x.key` + addAll,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.sh(l.clone, script)
			if v := l.judge(l.bundle(), nil); !v.Pass {
				t.Errorf("findings %+v", v.Findings)
			}
		})
	}
}

// Where the base has a protected file as a link, what the link leads to is
// protected.
func TestProtectedByALink(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, base, work string
		rule             string
		pass             bool
	}{
		{"file", `ln -s docs/index.md CLAUDE.md` + addAll, `echo obey >> docs/index.md` + addAll, "protected-agent", false},
		{"file, deleted", `ln -s docs/index.md CLAUDE.md` + addAll, `git rm -q docs/index.md; git commit -qm gone`, "protected-agent", false},
		{"in .github", `rm .github/CODEOWNERS; echo '* @o' > owners.txt; ln -s ../owners.txt .github/CODEOWNERS` + addAll, `echo '* @evil' > owners.txt` + addAll, "protected-governance", false},
		{"directory", `ln -s docs .claude` + addAll, `echo x > docs/new.md` + addAll, "protected-agent", false},
		{"other file", `ln -s docs/index.md CLAUDE.md` + addAll, `echo x > docs/other.md` + addAll, "", true},
		{"link that is not protected", `ln -s docs/index.md start` + addAll, `echo x >> docs/index.md` + addAll, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.rebase(tc.base)
			l.sh(l.clone, tc.work)
			v := l.judge(l.bundle(), nil)
			if v.Pass != tc.pass || tc.rule != "" && !hasRule(v, tc.rule) {
				t.Errorf("pass %v, findings %+v", v.Pass, v.Findings)
			}
		})
	}
}

func hasRule(v Verdict, rule string) bool {
	for _, f := range v.Findings {
		if f.Rule == rule {
			return true
		}
	}
	return false
}
