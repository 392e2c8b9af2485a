package policy

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/kickhq/kick/internal/escape"
)

// Fold maps path to the form under which file systems and forges may take it
// for another one: compatibility-normalised and case-folded as in Unicode,
// without characters that HFS+ ignores, and without the trailing dots and
// spaces and the stream suffix that NTFS drops from each component. Two paths
// with one fold collide somewhere.
func Fold(path string) string {
	if plain(path) {
		return strings.ToLower(path)
	}
	return foldAny(path)
}

func foldAny(path string) string {
	s := strings.Map(func(r rune) rune {
		if escape.Invisible(r) {
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

// plain reports whether Fold only lowers the case of path's letters, which is
// so for most paths: strings.ToLower is quick there.
func plain(path string) bool {
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case c >= utf8.RuneSelf, c == ':', c < ' ', c == 0x7F:
			return false
		case (c == '.' || c == ' ') && (i+1 == len(path) || path[i+1] == '/'):
			return false
		}
	}
	return true
}
