package exposure

import (
	"regexp"
	"strings"
)

// filter is one branches, branches-ignore, paths or paths-ignore list.
type filter struct {
	patterns []pattern
	line     int
}

type pattern struct {
	re       *regexp.Regexp
	negative bool // "!" stands before it
}

// includes reports whether name passes a list of patterns of which the last
// that matches decides; "!" in front excludes.
// https://docs.github.com/actions/reference/workflow-syntax-for-github-actions#filter-pattern-cheat-sheet
func (f *filter) includes(name string) certainty {
	result, positive := no, false
	for _, p := range f.patterns {
		positive = positive || !p.negative
		switch m := p.matches(name); {
		case m == no:
		case p.negative:
			result = min(result, m.not())
		default:
			result = max(result, m)
		}
	}
	if !positive {
		return maybe // GitHub asks for one pattern without "!"
	}
	return result
}

// ignores reports whether name is in a list that knows no "!".
func (f *filter) ignores(name string) certainty {
	result := no
	for _, p := range f.patterns {
		if p.negative {
			return maybe
		}
		result = max(result, p.matches(name))
	}
	return result
}

// Bounds of one list: names and lists are shorter in practice.
const (
	maxPattern  = 1024 // bytes
	maxPatterns = 1000
)

func newFilter(patterns []string, line int) *filter {
	f := &filter{line: line}
	for i, p := range patterns {
		if i == maxPatterns {
			f.patterns = append(f.patterns, pattern{})
			break
		}
		body, negative := strings.CutPrefix(p, "!")
		var re *regexp.Regexp
		if len(p) <= maxPattern {
			re, _ = regexp.Compile(patternExpr(body)) // nil: it cannot be read
		}
		f.patterns = append(f.patterns, pattern{re, negative})
	}
	return f
}

// matches is maybe if the pattern cannot be read.
func (p pattern) matches(name string) certainty {
	if p.re == nil {
		return maybe
	}
	return certain(p.re.MatchString(name))
}

// patternExpr writes a pattern as a regular expression: "*" is any characters
// but "/", "**" any, "**/" any directories or none, "?" and "+" repeat what
// stands before them, "[a-z]" is one of its characters, "\" takes the next
// character as it is.
func patternExpr(p string) string {
	var b strings.Builder
	b.WriteString(`(?s)\A(?:`)
	for i := 0; i < len(p); i++ {
		switch c := p[i]; c {
		case '*':
			switch {
			case strings.HasPrefix(p[i:], "**/") && (i == 0 || p[i-1] == '/'):
				b.WriteString(`(?:.*/)?`)
				i += 2
			case strings.HasPrefix(p[i:], "**"):
				b.WriteString(`.*`)
				i++
			default:
				b.WriteString(`[^/]*`)
			}
		case '?', '+':
			b.WriteByte(c)
		case '[':
			end := strings.IndexByte(p[i:], ']')
			if end < 2 || strings.Trim(p[i+1:i+end], alphanumeric+"-_.") != "" {
				return `(` // does not compile: not a set that GitHub documents
			}
			b.WriteString("[" + strings.ReplaceAll(p[i+1:i+end], "_", `\_`) + "]")
			i += end
		case '\\':
			if i++; i == len(p) {
				return `(`
			}
			b.WriteString(regexp.QuoteMeta(p[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(p[i : i+1]))
		}
	}
	b.WriteString(`)\z`)
	return b.String()
}

const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
