package pushbroker

import (
	"slices"
	"testing"

	"github.com/kickhq/kick/policy"
)

// rebase makes what the script commits in the clone the new base.
func (l *lab) rebase(script string) {
	l.t.Helper()
	l.sh(l.clone, script+`; git push -q origin HEAD:main`)
	l.base = l.sh(l.clone, "git rev-parse HEAD")
}

// A repository can have directories that are one elsewhere. What is added to
// one of them can collide with the other's; what was there before is nobody's
// fault.
func TestCollisionsInTheWholeTree(t *testing.T) {
	t.Parallel()
	const both = `mkdir Docs2 docs2; echo a > Docs2/a; echo b > docs2/b; echo c > docs2/README; echo d > docs2/Readme` + addAll
	for _, tc := range []struct {
		name, script string
		want         []string // paths that are struck
	}{
		{"below the other directory", `echo x > Docs2/B` + addAll, []string{"Docs2/B"}},
		{"deeper below", `mkdir -p Docs2/d docs2/D; echo x > Docs2/d/x` + addAll + `; echo y > docs2/D/X` + addAll, []string{"Docs2/d", "Docs2/d/x", "docs2/D", "docs2/D/X"}},
		{"only in a merge", `git checkout -qb s; mkdir docs2/n; echo x > docs2/n/x` + addAll + `; git checkout -q main; echo y > Docs2/N` + addAll + `; git merge -q --no-ff -m m s`, []string{"Docs2/N", "docs2/n"}},
		{"a new name that is no collision", `echo x > Docs2/c` + addAll, nil},
		{"an edit of what collides already", `echo x > docs2/README` + addAll, nil},
		{"an edit beside", `echo x > README.md` + addAll, nil},
		{"moved within", `git mv Docs2/a docs2/A; git commit -qm mv`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.rebase(both)
			l.sh(l.clone, tc.script)
			v := l.judge(l.bundle(), nil)
			var got []string
			for _, f := range v.Findings {
				if f.Rule == "path-collision" && f.Level == policy.Block {
					got = append(got, f.Path)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("struck %q, want %q: %+v", got, tc.want, v.Findings)
			}
		})
	}
}

// Links of the base that lead astray are the base's; a new link through one is
// not.
func TestLinksThroughTheBases(t *testing.T) {
	t.Parallel()
	const links = `mkdir x; ln -s .. x/up; ln -s /etc out; ln -s x/up/../y gone; mkdir deep; ln -s ../x/up deep/top` + addAll
	for _, tc := range []struct {
		name, script string
		want         []string
	}{
		{"through an absolute one", `ln -s out/passwd l` + addAll, []string{"l"}},
		{"through one that leads up", `ln -s x/up/../y l` + addAll, []string{"l"}},
		{"through two", `ln -s deep/top/../y l` + addAll, []string{"l"}},
		{"within the repository", `ln -s x/up/README.md l; ln -s ../deep/top/src x/src` + addAll, nil},
		{"a loop", `ln -s b a; ln -s a b` + addAll, nil},
		{"another link changes", `ln -s README.md l` + addAll + `; ln -sf docs l` + addAll, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.rebase(links)
			l.sh(l.clone, tc.script)
			v := l.judge(l.bundle(), nil)
			var got []string
			for _, f := range v.Findings {
				got = append(got, f.Path)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("struck %q, want %q: %+v", got, tc.want, v.Findings)
			}
		})
	}
}
