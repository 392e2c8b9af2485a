package escape

import "unicode"

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
