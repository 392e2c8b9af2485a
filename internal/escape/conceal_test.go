package escape

import "testing"

func TestConcealed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"plain": -1, "": -1, "übersetzt": -1, "日本語": -1,
		"right\u200fto left mark":   -1,
		"if a\u202e {":              4,
		"\u2066x\u2069":             0,
		"❤\ufe0f and 1\ufe0f\u20e3": -1,
		"葛\U000E0100":               -1,
		"🏴\U000E0067\U000E007F":     -1,
		"a\U000E0041":               1,
		"🙂\U000E0110":               4,
		"🙂\ufe0f\ufe01":             7,
		"a\ufe01b":                  1,
		"\ufe0f":                    0,
		"👨\u200d👩":                  -1,
		"bad \xe2\xff bytes":        -1,
	} {
		if at, r := Concealed(text); at != want {
			t.Errorf("%q: U+%04X at %d, want %d", text, r, at, want)
		}
	}
}

func TestZeroWidth(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"plain": -1, "\ufeffwith a mark": -1, "a\ufeff": 1,
		"pass\u200bword": 4, "a\u2060": 1, "\u3164": 0,
		"👨\u200d👩": -1, "می\u200cخواهم": -1, "a\u200db": 1, "ی\u200c\u200c": 5,
	} {
		if at, r := ZeroWidth(text); at != want {
			t.Errorf("%q: U+%04X at %d, want %d", text, r, at, want)
		}
	}
}

func FuzzConcealed(f *testing.F) {
	f.Add("a\u202e\ufe0f\U000E0041\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, find := range []func(string) (int, rune){Concealed, ZeroWidth} {
			if at, r := find(s); at >= len(s) || at >= 0 && !Invisible(r) {
				t.Errorf("%q: U+%04X at %d", s, r, at)
			}
		}
	})
}
