package escape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON writes v to w as indented JSON in which every character that does not
// show is a \u escape. Its readers get the very same strings; a terminal that
// it is printed to gets no control character and no reordered text. The
// encoding/json package escapes C0 alone: a C1 character or an override of the
// writing direction would pass.
func JSON(w io.Writer, v any) error {
	var enc bytes.Buffer
	e := json.NewEncoder(&enc)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	var b strings.Builder
	for p := enc.Bytes(); len(p) > 0; {
		r, n := utf8.DecodeRune(p)
		switch {
		case r < 0x7F || !hidden(r):
			b.Write(p[:n])
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		p = p[n:]
	}
	_, err := io.WriteString(w, b.String())
	return err
}
