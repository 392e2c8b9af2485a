package sandbox

import "testing"

// What escaped makes is one line of printable ASCII, however often it is done, and
// readable where a cluster quotes a name.
func TestEscaped(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                         "",
		`pods "kick-k1" forbidden`: `pods "kick-k1" forbidden`,
		`a\b`:                      `a\b`,
		"a\nb\t\x1b[31m\x00":       `a\nb\t\x1b[31m\x00`,
		"\xff\u202eé":              `\xff\u202e\u00e9`,
		"\r::error::":              `\r::error::`,
	} {
		if got := escaped(in); got != want || escaped(got) != want {
			t.Errorf("%q is %q, and again %q, want %q", in, got, escaped(got), want)
		}
	}
}
