package wrap

import (
	"slices"
	"testing"

	"github.com/mattn/go-runewidth"
)

func TestText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in    string
		width int
		want  []string
	}{
		{"", 10, []string{""}},
		{"one two three", 8, []string{"one two", "three"}},
		{"a/path/wider/than/the/line x", 10, []string{"a/path/wid", "er/than/th", "e/line x"}},
		{"日本語の文", 4, []string{"日本", "語の", "文"}},
		{"  spaces \n and lines ", 40, []string{"spaces and lines"}},
	} {
		if got := Text(tc.in, tc.width); !slices.Equal(got, tc.want) {
			t.Errorf("%q at %d: %q, want %q", tc.in, tc.width, got, tc.want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("日本 a", 2)
	f.Fuzz(func(t *testing.T, s string, width int) {
		if width < 2 || width > 200 || len(s) > 1000 {
			return
		}
		for _, l := range Text(s, width) {
			if n := runewidth.StringWidth(l); n > width {
				t.Errorf("%q has %d columns of %d", l, n, width)
			}
		}
	})
}
