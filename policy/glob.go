package policy

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// Glob is a pattern over folded paths. A pattern without a slash matches a
// name at any depth ("Makefile", "*.mk"); one with a slash matches from the
// top of the repository ("docs/**", "/LICENSE"). A segment "**" stands for any
// number of segments, so that "**/.vscode/**" is that directory at any depth;
// at the end it also matches the directory's own name, which a link or a
// submodule may take. Within a segment, "*", "?" and "[a-z]" are as in path.Match.
type Glob struct {
	text string
	segs []string
}

// maxStars bounds the "**" of one pattern, and with it the cost of a match.
const maxStars = 4

// ParseGlob checks and compiles a pattern.
func ParseGlob(pattern string) (Glob, error) {
	g := Glob{text: pattern}
	switch {
	case pattern == "":
		return g, errors.New("a path pattern is empty: write, for example, docs/**")
	case strings.Contains(pattern, `\`):
		return g, fmt.Errorf("path pattern %q has a backslash: separate with / and do not escape", pattern)
	case strings.HasSuffix(pattern, "/"):
		return g, fmt.Errorf("path pattern %q ends with a slash: write %q for all that is below it", pattern, pattern+"**")
	}
	body := strings.TrimPrefix(pattern, "/")
	if !strings.Contains(pattern, "/") {
		body = "**/" + body
	}
	stars := 0
	for _, seg := range strings.Split(body, "/") {
		switch seg {
		case "", ".", "..":
			return g, fmt.Errorf("path pattern %q has a segment %q, which matches no path: remove it", pattern, seg)
		case "**":
			if stars++; stars > maxStars {
				return g, fmt.Errorf("path pattern %q has more than %d \"**\": split it", pattern, maxStars)
			}
			g.segs = append(g.segs, seg)
			continue
		}
		if strings.Contains(seg, "**") {
			return g, fmt.Errorf("path pattern %q mixes ** with other characters in one segment: write * there", pattern)
		}
		if _, err := path.Match(seg, "x"); err != nil {
			return g, fmt.Errorf("path pattern %q: segment %q: %w: close the bracket", pattern, seg, err)
		}
		g.segs = append(g.segs, Fold(seg))
	}
	return g, nil
}

// String returns the pattern as it was written.
func (g Glob) String() string { return g.text }

// MarshalText makes a Glob appear as its pattern in JSON.
func (g Glob) MarshalText() ([]byte, error) { return []byte(g.text), nil }

// Match reports whether the pattern matches a path that Fold has folded.
func (g Glob) Match(folded string) bool {
	return matchSegments(g.segs, strings.Split(folded, "/"))
}

func matchSegments(pat, segs []string) bool {
	for len(pat) > 0 {
		if pat[0] == "**" {
			if len(pat) == 1 {
				return true
			}
			for i := range segs {
				if matchSegments(pat[1:], segs[i:]) {
					return true
				}
			}
			return false
		}
		if len(segs) == 0 {
			return false
		}
		if ok, _ := path.Match(pat[0], segs[0]); !ok {
			return false
		}
		pat, segs = pat[1:], segs[1:]
	}
	return len(segs) == 0
}

func mustGlobs(patterns ...string) []Glob {
	globs := make([]Glob, len(patterns))
	for i, p := range patterns {
		g, err := ParseGlob(p)
		if err != nil {
			panic(err)
		}
		globs[i] = g
	}
	return globs
}

// firstMatch returns the pattern that matches folded, or "".
func firstMatch(globs []Glob, folded string) string {
	segs := strings.Split(folded, "/")
	for _, g := range globs {
		if matchSegments(g.segs, segs) {
			return g.text
		}
	}
	return ""
}
