package spelling

import (
	"slices"
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 300)
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"main", "main", 0}, {"mian", "main", 2}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2},
		{long, long, 0}, {long, long + "b", 301},
	} {
		if got := Distance(tc.a, tc.b); got != tc.want {
			t.Errorf("from %.10q to %.10q: %d, want %d", tc.a, tc.b, got, tc.want)
		}
		if got := Distance(tc.b, tc.a); got != tc.want {
			t.Errorf("from %.10q to %.10q: %d, want %d", tc.b, tc.a, got, tc.want)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	names := []string{"embedded", "podman", "kubejob"}
	for wanted, want := range map[string]string{"embeded": "embedded", "pod-man": "podman", "kubjob": "kubejob", "docker": "", "": ""} {
		if got := Nearest(wanted, names); got != want {
			t.Errorf("%q: %q, want %q", wanted, got, want)
		}
	}
	Sort("podmen", names)
	if !slices.Equal(names, []string{"podman", "embedded", "kubejob"}) {
		t.Errorf("sorted: %q", names)
	}
}
