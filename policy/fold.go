package policy

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Fold maps path to the form under which file systems and forges may take it
// for another one: compatibility-normalised and case-folded as in Unicode,
// without characters that HFS+ ignores, and without the trailing dots and
// spaces and the stream suffix that NTFS drops from each component. Two paths
// with one fold collide somewhere.
func Fold(path string) string {
	if plain(path) {
		return path
	}
	s := strings.Map(func(r rune) rune {
		if Invisible(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(path, "\uFFFD"))
	s = norm.NFKC.String(cases.Fold().String(norm.NFKC.String(s)))
	parts := strings.Split(s, "/")
	for i, part := range parts {
		if part == "." || part == ".." {
			continue
		}
		if stream := strings.IndexByte(part, ':'); stream > 0 {
			part = part[:stream]
		}
		parts[i] = strings.TrimRight(part, ". ")
	}
	return strings.Join(parts, "/")
}

// plain reports whether Fold leaves path as it is, which is so for most paths.
func plain(path string) bool {
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case c >= utf8.RuneSelf, 'A' <= c && c <= 'Z', c == ':', c < ' ':
			return false
		case (c == '.' || c == ' ') && (i+1 == len(path) || path[i+1] == '/'):
			return false
		}
	}
	return true
}

// Bidi reports whether r changes the order in which text is shown
// (CVE-2021-42574): the explicit embeddings, overrides, isolates and marks.
func Bidi(r rune) bool {
	return 0x202A <= r && r <= 0x202E || 0x2066 <= r && r <= 0x2069 ||
		r == 0x200E || r == 0x200F || r == 0x061C
}

// Invisible reports whether r shows nothing by itself: format characters
// (among them Bidi, zero-width and tag characters), variation selectors and
// fillers.
func Invisible(r rune) bool {
	if r < 0x80 {
		return false
	}
	return unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Variation_Selector, r) ||
		0xE0000 <= r && r <= 0xE0FFF || r == 0x115F || r == 0x1160 || r == 0x3164 || r == 0xFFA0 || r == 0x034F
}

// Control reports whether r is a control character, C0 or C1, or ends a line.
func Control(r rune) bool {
	return r < 0x20 || 0x7F <= r && r <= 0x9F || r == 0x2028 || r == 0x2029
}
