package pushbroker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/policy"
)

// factsOf says what change rules want to know of a file's content.
func factsOf(data []byte) *policy.Blob {
	b := &policy.Blob{Size: int64(len(data)), LFS: lfsPointer(data), Binary: isBinary(data)}
	if text, ok := textOf(data); ok {
		b.Bidi, b.ZeroWidth, b.Control = onLine(text, kinds[0]), onLine(text, kinds[1]), onLine(text, kinds[2])
	}
	return b
}

// kinds are the characters that factsOf looks for, in text.
var kinds = []func(text string) (at int, r rune){escape.Concealed, escape.ZeroWidth, actsOnTerminal}

// withoutKnown leaves out what data has from the base's file at the same path:
// lines that are there too, and for each line that is gone, one with the same
// character in its place.
func withoutKnown(b policy.Blob, data, base []byte) policy.Blob {
	now, _ := textOf(data)
	old, ok := textOf(base)
	if !ok {
		return b
	}
	nowLines, oldLines := linesOf(now), linesOf(old)
	for i, fact := range []*string{&b.Bidi, &b.ZeroWidth, &b.Control} {
		if *fact == "" {
			continue
		}
		*fact = ""
		gone := map[rune]int{}
		for _, line := range linesNotIn(nowLines, oldLines) {
			if at, r := kinds[i](line.text); at >= 0 {
				gone[r]++
			}
		}
		for _, line := range linesNotIn(oldLines, nowLines) {
			at, r := kinds[i](line.text)
			if at < 0 {
				continue
			}
			if gone[r]--; gone[r] < 0 {
				*fact = fmt.Sprintf("U+%04X on line %d", r, line.number)
				break
			}
		}
	}
	return b
}

// textLine is a line of a text, from 1, with the line feed before it: what is
// allowed at a text's start is not so at a line's.
type textLine struct {
	number int
	text   string
}

func linesOf(text string) []textLine {
	var lines []textLine
	for part := range strings.SplitSeq(text, "\n") {
		if len(lines) > 0 {
			part = "\n" + part
		}
		lines = append(lines, textLine{len(lines) + 1, part})
	}
	return lines
}

// linesNotIn returns the lines of a whose text is not in b.
func linesNotIn(b, a []textLine) []textLine {
	known := map[string]bool{}
	for _, l := range b {
		known[l.text] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(l textLine) bool { return known[l.text] })
}

// lfsPointer returns the object id of a Git LFS pointer, or "".
// https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: a pointer is at
// most 1,024 bytes and begins with its version. git-lfs itself passes over
// empty lines, and knows the names that it had before.
func lfsPointer(data []byte) string {
	data = bytes.TrimLeft(data, " \t\r\n")
	if len(data) > 1024 || !bytes.HasPrefix(data, []byte("version ")) {
		return ""
	}
	version, rest, _ := strings.Cut(string(data), "\n")
	if !slices.ContainsFunc([]string{"git-lfs", "hawser", "git-media"}, func(name string) bool { return strings.Contains(version, name) }) {
		return ""
	}
	for line := range strings.SplitSeq(rest, "\n") {
		oid, ok := strings.CutPrefix(line, "oid ")
		if !ok {
			continue
		}
		oid = strings.TrimSpace(oid)
		if hash, ok := strings.CutPrefix(oid, "sha256:"); !ok || len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "" {
			return "an id of another form" // which may be a secret, so it is not shown
		}
		return oid
	}
	return ""
}

// textOf is a file's content as text, if it is one: UTF-16 with a byte order
// mark is decoded, as editors do.
func textOf(data []byte) (text string, ok bool) {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte{0xFF, 0xFE}):
		order = binary.LittleEndian
	case bytes.HasPrefix(data, []byte{0xFE, 0xFF}):
		order = binary.BigEndian
	case isBinary(data):
		return "", false
	default:
		return string(data), true
	}
	units := make([]uint16, 0, len(data)/2)
	for rest := data[2:]; len(rest) >= 2; rest = rest[2:] {
		units = append(units, order.Uint16(rest))
	}
	return string(utf16.Decode(units)), true
}

// actsOnTerminal finds the first control character that a text file has no use
// for. In a file that is not UTF-8, whose text nobody knows, only the beginning
// of an escape sequence counts.
func actsOnTerminal(text string) (at int, r rune) {
	valid := utf8.ValidString(text)
	for i, r := range text {
		switch {
		case !escape.Control(r) || strings.ContainsRune("\t\n\r\f\u0085\u2028\u2029", r):
		case valid, r == 0x1B && i+1 < len(text) && strings.IndexByte("[]P_^X", text[i+1]) >= 0:
			return i, r
		}
	}
	return -1, 0
}

// onLine names the character that find finds and its line, or is empty.
func onLine(text string, find func(string) (int, rune)) string {
	at, r := find(text)
	if at < 0 {
		return ""
	}
	return fmt.Sprintf("U+%04X on line %d", r, 1+strings.Count(text[:at], "\n"))
}
