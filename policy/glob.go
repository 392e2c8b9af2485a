package policy

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/kickhq/kick/internal/lazyregexp"
)

// Glob is a pattern over folded paths. A pattern without a slash matches a
// name at any depth ("Makefile", "*.mk"); one with a slash matches from the
// top of the repository ("docs/**", "/LICENSE"). A segment "**" stands for any
// number of segments, so that "**/.vscode/**" is that directory at any depth;
// at the end it also matches the directory's own name, which a link or a
// submodule may take. Within a segment, "*", "?" and "[a-z]" are as in path.Match.
// In a policy file, a pattern that ends with a plain name ("secrets",
// "/db/schema") also matches all that is below a directory of that name.
type Glob struct {
	text  string
	segs  []string
	below bool
}

// maxStars bounds the "**" of one pattern, and with it the cost of a match.
const maxStars = 4

// braces are a list as a shell has it: "{a,b}".
var braces = lazyregexp.New(`\{[^{}]*,[^{}]*\}`)

// ParseGlob checks and compiles a pattern of a policy file.
func ParseGlob(pattern string) (Glob, error) {
	g, err := parseGlob(pattern)
	if err == nil {
		g.below = !strings.ContainsAny(g.segs[len(g.segs)-1], "*?[")
	}
	return g, err
}

func parseGlob(pattern string) (Glob, error) {
	g := Glob{text: pattern}
	switch {
	case pattern == "":
		return g, errors.New("a path pattern is empty: write, for example, docs/**")
	case strings.Contains(pattern, `\`):
		return g, fmt.Errorf("path pattern %q has a backslash: separate with / and do not escape", pattern)
	case strings.HasPrefix(pattern, "!"):
		return g, fmt.Errorf("path pattern %q begins with !, which excludes nothing here: leave it out, and list what is meant", pattern)
	case braces.MatchString(pattern):
		return g, fmt.Errorf("path pattern %q has a list in braces, which stands for itself here: write one pattern for each", pattern)
	case strings.Contains(pattern, ":"):
		return g, fmt.Errorf("path pattern %q has a colon, which no path that can be checked out everywhere has: remove it", pattern)
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
		folded := Fold(seg)
		if folded == "" {
			return g, fmt.Errorf("path pattern %q has a segment %q, which matches no path: remove it", pattern, seg)
		}
		for _, s := range []string{seg, folded} {
			if _, err := path.Match(s, "x"); err != nil {
				return g, fmt.Errorf("path pattern %q: segment %q: %w: close the bracket", pattern, seg, err)
			}
		}
		g.segs = append(g.segs, folded)
	}
	return g, nil
}

// String returns the pattern as it was written.
func (g Glob) String() string { return g.text }

// MarshalText makes a Glob appear as its pattern in JSON.
func (g Glob) MarshalText() ([]byte, error) { return []byte(g.text), nil }

// Match reports whether the pattern matches a path that Fold has folded.
func (g Glob) Match(folded string) bool {
	return g.match(strings.Split(folded, "/"))
}

func (g Glob) match(segs []string) bool { return matchSegments(g.segs, segs, g.below) }

// matchSegments reports whether pat matches segs or, with below, what segs
// begins with.
func matchSegments(pat, segs []string, below bool) bool {
	for len(pat) > 0 {
		if pat[0] == "**" {
			if len(pat) == 1 {
				return true
			}
			for i := range segs {
				if matchSegments(pat[1:], segs[i:], below) {
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
	return len(segs) == 0 || below
}

func mustGlobs(patterns ...string) []Glob {
	globs := make([]Glob, len(patterns))
	for i, p := range patterns {
		g, err := parseGlob(p)
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
		if g.match(segs) {
			return g.text
		}
	}
	return ""
}
