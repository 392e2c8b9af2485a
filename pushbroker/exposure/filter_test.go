package exposure

import (
	"strings"
	"testing"
)

// The rows are GitHub's own examples, from the filter pattern cheat sheet of its
// workflow syntax, and the corners between them.
func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ pattern, matches, misses string }{
		{"feature/*", "feature/my-branch feature/your-branch", "feature/a/b feature"},
		{"feature/**", "feature/beta-a/my-branch feature/your-branch", "feature features/x"},
		{"main", "main", "Main main2 x/main"},
		{"'*'", "", "x"},
		{"*", "main releases", "all/the/branches"},
		{"**", "all/the/branches every/tag main", ""},
		{"*feature", "mona-feature feature ver-10-feature", "x/feature feature2"},
		{"v2*", "v2 v2.0 v2.9", "v1 v2/x"},
		{"v[12].[0-9]+.[0-9]+", "v1.10.1 v2.0.0", "v3.0.0 v1.x.0"},
		{"*.jsx?", "page.js page.jsx", "page.jsxx a/page.js"},
		{"**.js", "index.js js/index.js src/js/app.js", "index.jsx"},
		{"docs/*", "docs/README.md docs/file.txt", "docs/a/b"},
		{"docs/**", "docs/README.md docs/mona/octocat.txt", "docs"},
		{"docs/**/*.md", "docs/README.md docs/mona/hello-world.md docs/a/markdown/file.md", "docs/a.txt"},
		{"**/docs/**", "docs/hello.md dir/docs/my-file.txt space/docs/plan/space.doc", "mydocs/a"},
		{"**/README.md", "README.md js/README.md", "README.mdx myREADME.md"},
		{"**/*src/**", "a/src/app.js my-src/code/js/app.js", "srcs/x"},
		{"**/*-post.md", "my-post.md path/their-post.md", "post.md"},
		{"**/migrate-*.sql", "migrate-10909.sql db/migrate-v1.0.sql db/sept/migrate-v1.sql", "migrate.sql"},
		{"[CB]at", "Cat Bat", "Rat at"},
		{"a.b", "a.b", "axb"},
		{`wip\*`, "wip*", "wip wipx"},
		{"kick/**", "kick/fixer/k0000000000001", "kick kicks/x"},
	} {
		f := newFilter([]string{row.pattern}, 1)
		for _, name := range strings.Fields(row.matches) {
			if f.includes(name) != yes {
				t.Errorf("%s misses %s", row.pattern, name)
			}
		}
		for _, name := range strings.Fields(row.misses) {
			if f.includes(name) != no {
				t.Errorf("%s matches %s", row.pattern, name)
			}
		}
	}
	for _, odd := range []string{"[", "[]", "a[!b]", "a++", "x\\", "+", strings.Repeat("a", maxPattern+1)} {
		if got := newFilter([]string{odd}, 1).includes("x"); got != maybe {
			t.Errorf("%q is %d, and cannot be read", odd, got)
		}
	}
}

func TestPatternLists(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]certainty{
		"releases/** !releases/**-alpha":                      no,
		"!releases/**-alpha releases/**":                      yes,
		"releases/** !releases/**-alpha releases/beta/**":     yes,
		"releases/** ![ releases/none":                        maybe,
		"!releases/**":                                        maybe,
		"main [":                                              maybe,
		strings.Repeat("main ", maxPatterns+1):                maybe,
		"main " + strings.Repeat("x ", 10) + "releases/be*/*": yes,
	} {
		if got := newFilter(strings.Fields(list), 1).includes("releases/beta/3-alpha"); got != want {
			t.Errorf("%.60s: %d, want %d", list, got, want)
		}
	}
	if got := newFilter([]string{"releases/**", "!x"}, 1).ignores("releases/1"); got != maybe {
		t.Errorf("an exclusion in a list of exclusions is %d", got)
	}
}
