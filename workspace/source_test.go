package workspace

import (
	"strings"
	"testing"
)

func TestParseRepo(t *testing.T) {
	t.Parallel()
	for repo, scope := range map[string]string{
		"https://github.com:443/acme/api": "https://github.com", "http://[::1]:81/a": "http://[::1]:81",
		"ssh://git@github.com/acme/api": "", "git@github.com:acme/api.git": "", newRepo(t): "",
	} {
		a, err := parseRepo(repo)
		if got := scopeOf(a); err != nil || got != scope {
			t.Errorf("%s: a credential is bound to %q, want %q (%v)", repo, got, scope, err)
		}
	}
	_, err := parseRepo("https://bot:hunter2@github.com/acme/api")
	wantError(t, err, ErrSource, "user name or password")
}

// Git's own judgement is the measure, but for what kick refuses beyond it.
func TestCheckBranchAgreesWithGit(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"main", "feature/x", "a.b", "ümlaut", "a@b", "a{b", "feature/äöü-1", "x" + strings.Repeat("y", 150), "a'b\"c$(d);e&f|g", "a%b!c#d", "refs/heads/main", "@a",
		"", "-x", "--upload-pack=x", "a..b", "a@{b", "a b", "a~b", "a^b", "a:b", "a?b", "a*b", "a[b", `a\b`, "a.lock", "a.lock/b", ".a", "b/.a", "a//b", "/a", "a/", "a.", "a\x01b", "a\x7fb", "a\nb", "HEAD",
	} {
		ours := checkBranch(name)
		out, theirs := tryGit("/", nil, "check-ref-format", "--branch", name)
		if (ours == nil) != (theirs == nil) {
			t.Errorf("%q: kick says %v, git says %v %s", name, ours, theirs, out)
		}
	}
	for _, name := range []string{"@", "HEAD/x", strings.Repeat("x", 201)} {
		if err := checkBranch(name); err == nil {
			t.Errorf("%q passed", name)
		}
	}
}
