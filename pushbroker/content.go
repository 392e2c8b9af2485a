package pushbroker

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// lfsPointer returns the object id of a Git LFS pointer, or "".
// https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: a pointer is at
// most 1,024 bytes and begins with its version.
func lfsPointer(data []byte) string {
	if len(data) > 1024 || !bytes.HasPrefix(data, []byte("version ")) {
		return ""
	}
	version, rest, _ := strings.Cut(string(data), "\n")
	if !strings.Contains(version, "git-lfs") && !strings.Contains(version, "hawser") {
		return ""
	}
	for line := range strings.SplitSeq(rest, "\n") {
		if oid, ok := strings.CutPrefix(line, "oid "); ok {
			return oid
		}
	}
	return ""
}

// bidiIn finds the first character of text that reorders what is shown:
// embeddings, overrides and isolates. Left-to-right and right-to-left marks
// stand in honest translations; tag characters stand in flags, behind U+1F3F4.
func bidiIn(text []byte) string {
	if bytes.IndexByte(text, 0xE2) < 0 && bytes.IndexByte(text, 0xF3) < 0 {
		return ""
	}
	flag := false
	for i := 0; i < len(text); {
		if text[i] < utf8.RuneSelf {
			flag = false
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		tag := 0xE0000 <= r && r <= 0xE007F
		if 0x202A <= r && r <= 0x202E || 0x2066 <= r && r <= 0x2069 || tag && !flag {
			return fmt.Sprintf("U+%04X on line %d", r, 1+bytes.Count(text[:i], []byte("\n")))
		}
		flag = r == 0x1F3F4 || tag && flag
		i += n
	}
	return ""
}
