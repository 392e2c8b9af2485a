package escape

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Concealed finds the first character of text that shows another text than
// there is: one that reorders (embeddings, overrides, isolates), or one that
// writes in characters without a shape (tags, variation selectors). What honest
// text has of them is let through: right-to-left marks, the tags of a flag
// behind U+1F3F4, one selector behind a character that has variants. It returns
// the character's offset, or -1.
func Concealed(text string) (at int, r rune) {
	if !mayHide(text) {
		return -1, 0
	}
	var before rune
	flag := false
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		tag, selector := 0xE0000 <= r && r <= 0xE007F, isSelector(r)
		switch {
		case 0x202A <= r && r <= 0x202E, 0x2066 <= r && r <= 0x2069, tag && !flag:
			return i, r
		case selector && (isSelector(before) || !hasVariants(before, r)):
			return i, r
		}
		flag = r == 0x1F3F4 || tag && flag
		before = r
		i += n
	}
	return -1, 0
}

// mayHide reports whether a text has a lead byte of a character that Concealed
// looks for: U+2000, U+F000 and U+E0000 and their neighbours.
func mayHide(text string) bool {
	for _, b := range []byte{0xE2, 0xEF, 0xF3} {
		if strings.IndexByte(text, b) >= 0 {
			return true
		}
	}
	return false
}

func isSelector(r rune) bool { return 0xFE00 <= r && r <= 0xFE0F || 0xE0100 <= r && r <= 0xE01EF }

// hasVariants reports whether a variation selector can stand behind r: one of
// the supplement behind an ideograph, another one behind anything that is not
// a letter of ASCII, for digits are the beginning of keycaps.
func hasVariants(r, selector rune) bool {
	if selector >= 0xE0100 {
		return unicode.Is(unicode.Han, r)
	}
	return r >= utf8.RuneSelf || '0' <= r && r <= '9' || r == '#' || r == '*'
}

// ZeroWidth finds the first character of text that takes no room and joins or
// parts nothing: zero-width spaces, joiners behind ASCII, fillers, a byte order
// mark in the midst. It returns the character's offset, or -1.
func ZeroWidth(text string) (at int, r rune) {
	before := rune(0)
	for i, r := range text {
		switch {
		case r < 0x115F: // most text
		case r == 0x200B, 0x2060 <= r && r <= 0x2064, r == 0x180E, r == 0xFEFF && i > 0,
			r == 0x115F, r == 0x1160, r == 0x3164, r == 0xFFA0,
			(r == 0x200C || r == 0x200D) && (before < utf8.RuneSelf || before == r):
			return i, r
		}
		before = r
	}
	return -1, 0
}
