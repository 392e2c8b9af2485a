package pushbroker

import (
	"strings"
	"unicode/utf8"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/policy"
)

// Hostile text reaches a pull request in two ways only: in a code frame of
// several lines, or in a code span of one. There, neither Markdown nor HTML is
// read, so no image loads, no comment hides and no link misleads. What GitHub
// may read from the raw text all the same (mentions, references to issues,
// closing keywords, addresses) is broken by a blank that everybody sees.

var defang = []struct {
	match *lazyregexp.Regexp
	put   string
}{
	{lazyregexp.New(`@([A-Za-z0-9])`), "@ $1"},                                  // @user, @org/team
	{lazyregexp.New(`#([0-9])`), "# $1"},                                        // #1, org/repo#1
	{lazyregexp.New(`(?i)\b(GH-)([0-9])`), "$1 $2"},                             // GH-1
	{lazyregexp.New(`:/(/+)`), ": /$1"},                                         // addresses, also those of issues
	{lazyregexp.New(`(?i)\bwww\.`), "www ."},                                    // GitHub links these without a scheme
	{lazyregexp.New(`(?m)^([ \t]*/)([A-Za-z])`), "$1 $2"},                       // /merge, for bots that read line by line
	{lazyregexp.New(`<!--`), "<! --"},                                           // for those who read the raw text
	{lazyregexp.New(`(?i)/(issues|pull|pulls|discussions)/([0-9])`), "/$1/ $2"}, // an address without a scheme
	// Trackers beside GitHub close "fixes ENG-12"; a plain "UTF-8" stays as it is.
	{lazyregexp.New(`(?i)\b((?:close|fix|resolve|complete|implement)(?:s|es|d|ed|ing)?:?\s+[A-Z][A-Z0-9]{1,9}-)([0-9])`), "$1 $2"},
	// A squash merge makes a message of title and text, which release bots read.
	{lazyregexp.New(`(?im)^([ \t]*(?:skip-checks|release-as|autorelease))(:)`), "$1 $2"},
	{lazyregexp.New(`(?i)(BEGIN_|END_)(COMMIT_OVERRIDE|NESTED_COMMIT)`), "$1 $2"},
}

func defanged(s string) string {
	for _, d := range defang {
		s = d.match.ReplaceAllString(s, d.put)
	}
	return policy.WithoutSkipMarks(s) // which CI reads after a squash merge
}

// visible takes out what shows nothing or is not text, and keeps line breaks
// if asked.
func visible(s string, lines bool) string {
	s = strings.ToValidUTF8(s, "�")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' && lines:
			return r
		case r == '\n' || r == '\t' || r == '\r' && !lines:
			return ' '
		case escape.Control(r) || escape.Invisible(r):
			return -1
		}
		return r
	}, s)
}

// cutTo cuts s to n characters and says so.
func cutTo(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	return strings.TrimSpace(string(r[:n-1])) + "…"
}

// plain makes one line of text for a place where Markdown is not read, like a
// title.
func plain(s string, n int) string {
	return defanged(cutTo(strings.Join(strings.Fields(visible(s, false)), " "), n))
}

// code makes a code span of one line, also for a cell of a table.
func code(s string) string {
	s = plain(s, maxName)
	if s == "" {
		return ""
	}
	// A bar ends a table's cell even in a code span; the other bar looks alike.
	s = strings.ReplaceAll(s, "|", "¦")
	fence := strings.Repeat("`", longestRun(s, '`')+1)
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") {
		s = " " + s + " "
	}
	return fence + s + fence
}

// frame makes a code frame of several lines. Long lines are wrapped, since a
// frame does not; what follows a wrap is at the beginning of a line, and so all
// is made harmless after that.
func frame(s string) string {
	s = cutTo(strings.TrimSpace(visible(strings.ReplaceAll(s, "\r\n", "\n"), true)), maxQuote)
	var lines []string
	for line := range strings.SplitSeq(s, "\n") {
		lines = append(lines, wrapLine(strings.TrimRight(line, " "), 100)...)
	}
	if len(lines) > maxLines {
		lines = append(lines[:maxLines], "…")
	}
	s = defanged(strings.Join(lines, "\n"))
	fence := strings.Repeat("`", max(3, longestRun(s, '`')+1))
	return fence + "text\n" + s + "\n" + fence + "\n"
}

func wrapLine(line string, width int) []string {
	var out []string
	for {
		r := []rune(line)
		if len(r) <= width {
			return append(out, line)
		}
		at := width
		for i := width; i > width/2; i-- {
			if r[i] == ' ' {
				at = i
				break
			}
		}
		out = append(out, string(r[:at]))
		line = strings.TrimLeft(string(r[at:]), " ")
	}
}

func longestRun(s string, c rune) int {
	longest, n := 0, 0
	for _, r := range s {
		if r != c {
			n = 0
			continue
		}
		n++
		longest = max(longest, n)
	}
	return longest
}
