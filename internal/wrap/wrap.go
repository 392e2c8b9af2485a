// Package wrap breaks text for people into lines that fit a terminal.
package wrap

import (
	"strings"

	"github.com/mattn/go-runewidth"
)

// Text breaks text into lines of at most width columns, at spaces where it can.
func Text(text string, width int) []string {
	var lines []string
	line, used := "", 0
	flush := func() {
		lines = append(lines, line)
		line, used = "", 0
	}
	for word := range strings.FieldsSeq(text) {
		w := runewidth.StringWidth(word)
		if used > 0 && used+1+w > width {
			flush()
		}
		if used > 0 {
			line, used = line+" ", used+1
		}
		for w > width { // a word wider than the line, such as a path
			head := runewidth.Truncate(word, width-used, "")
			if head == "" {
				flush()
				continue
			}
			line += head
			flush()
			word = word[len(head):]
			w = runewidth.StringWidth(word)
		}
		line, used = line+word, used+w
	}
	if used > 0 || len(lines) == 0 {
		flush()
	}
	return lines
}
