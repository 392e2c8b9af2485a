package pushbroker

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/policy"
)

// Histories made at random, in which content, directories and whole trees come
// back at other places and times, and merges take what they like. git's own
// list of what a push would send is what Ingest must arrive at, every object
// of it in a place that Inspect looks at, and every path of which the tip
// differs from base must be judged in some commit.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			l := randomLab(t, rand.New(rand.NewPCG(seed, 7)))
			q, err := Ingest(context.Background(), filepath.Join(l.dir, "q"), l.work(l.bundle()), IngestLimits{})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			want := strings.Fields(l.sh(l.clone, "git rev-list --objects --no-object-names HEAD ^"+l.base))
			got := slices.Clone(q.Objects)
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%d objects, git lists %d", len(got), len(want))
			}
			judged := map[string]bool{}
			for _, c := range q.history.changes {
				judged[c.path] = true
			}
			net := l.sh(l.clone, "git diff-tree -r --no-renames --name-only "+l.base+" HEAD")
			for path := range strings.FieldsSeq(net) {
				if !judged[path] {
					t.Errorf("%s differs from base and is judged in no commit", path)
				}
			}
			if n := len(strings.Fields(net)); n != len(q.history.net) {
				t.Errorf("%d net changes, git has %d", len(q.history.net), n)
			}
			if _, err := Inspect(context.Background(), q, l.work(""), policy.Default(), &wordScanner{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// snapshot is a tree: content by path.
type snapshot map[string]string

var somePaths = []string{"a", "b", "c/x", "c/y", "c/d/z", "e/x", "e/y", "e/d/z", "f", "f/x", "g/h/i/j", "b/x"}

// mutate changes a few paths; a path that is a directory of another one takes
// its place.
func (s snapshot) mutate(r *rand.Rand) snapshot {
	n := snapshot{}
	for p, c := range s {
		n[p] = c
	}
	for range 1 + r.IntN(3) {
		p := somePaths[r.IntN(len(somePaths))]
		if r.IntN(3) == 0 {
			delete(n, p)
			continue
		}
		for q := range n {
			if strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/") {
				delete(n, q)
			}
		}
		n[p] = fmt.Sprintf("content %d\n", r.IntN(8))
	}
	return n
}

func randomLab(t *testing.T, r *rand.Rand) *lab {
	t.Helper()
	dir := t.TempDir()
	l := &lab{t: t, dir: dir, mirror: filepath.Join(dir, "mirror"), clone: filepath.Join(dir, "clone")}
	var commits []snapshot
	write := func(name string, next func() ([]int, snapshot), count int) {
		var b strings.Builder
		for range count {
			parents, tree := next()
			commits = append(commits, tree)
			fmt.Fprintf(&b, "commit refs/heads/w%d\nmark :%d\ncommitter kick <kick@example.com> %d +0000\ndata 2\nc\n", len(commits), len(commits), 1700000000+len(commits))
			for i, p := range parents {
				fmt.Fprintf(&b, "%s :%d\n", []string{"from", "merge"}[min(i, 1)], p+1)
			}
			b.WriteString("deleteall\n")
			for _, p := range slices.Sorted(maps.Keys(tree)) {
				fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", p, len(tree[p]), tree[p])
			}
			b.WriteString("\n")
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The base's history: a line of commits with some merges, the last one is base.
	write("base", func() ([]int, snapshot) {
		last := len(commits) - 1
		switch {
		case last < 0:
			return nil, snapshot{"a": "content 0\n"}.mutate(r)
		case last > 2 && r.IntN(4) == 0:
			return []int{last, r.IntN(last)}, commits[r.IntN(last)].mutate(r)
		}
		return []int{last}, commits[last].mutate(r)
	}, 12)
	base := len(commits) - 1
	// The work: on base or on something older, with merges of either; at last a
	// merge of all that has base as an ancestor.
	const work = 8
	write("work", func() ([]int, snapshot) {
		switch n := len(commits); {
		case n == base+1:
			return []int{base}, commits[base].mutate(r)
		case n == base+work:
			return []int{base + 1, n - 1}, commits[r.IntN(n)].mutate(r)
		case r.IntN(3) == 0:
			return []int{n - 1, r.IntN(n - 1)}, commits[r.IntN(n)]
		case r.IntN(3) == 0:
			p := r.IntN(n)
			return []int{p}, commits[p].mutate(r)
		default:
			return []int{n - 1}, commits[r.IntN(n)].mutate(r)
		}
	}, work)
	l.sh(dir, fmt.Sprintf(`top=$PWD; git init -q --bare all; git --git-dir=all fast-import --quiet --export-marks=marks < base
		git --git-dir=all fast-import --quiet --import-marks=marks < work
		git init -q --bare -b main mirror; git --git-dir=mirror fetch -q --no-tags $top/all refs/heads/w%d:refs/heads/main
		git clone -q mirror clone; cd clone; git fetch -q $top/all refs/heads/w%d; git reset -q --hard FETCH_HEAD`, base+1, len(commits)))
	l.base = l.sh(l.mirror, "git rev-parse main")
	return l
}
