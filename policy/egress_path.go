package policy

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/kickhq/kick/internal/lazyregexp"
)

// maxURLPath is the longest path that is decided about; proxies and servers
// commonly refuse lines above 8 KiB.
const maxURLPath = 8 << 10

// unclearPath says why servers may take a path for another one than it reads,
// or nothing. Where all paths are allowed, less can be made of it: whole.
func unclearPath(p string, whole bool) string {
	switch {
	case !strings.HasPrefix(p, "/"):
		return "it does not begin with /"
	case len(p) > maxURLPath:
		return fmt.Sprintf("it is longer than %d bytes", maxURLPath)
	}
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case c == ';' && !whole:
			return "it holds a semicolon"
		case c <= ' ' || c >= 0x7f || strings.IndexByte("\"#<>?[\\]^`{|}", c) >= 0:
			return "it holds a character that has to be percent-encoded"
		case c == '%':
			if why := unclearEscape(p[i:], whole); why != "" {
				return why
			}
		}
	}
	segments := strings.Split(p[1:], "/")
	for i, s := range segments {
		s, _, _ = strings.Cut(s, ";")
		switch {
		case s == "." || s == "..":
			return "it holds a dot segment"
		case s == "" && i < len(segments)-1:
			return "it holds an empty segment"
		}
	}
	return ""
}

// unclearEscape looks at the percent-encoded byte that s begins with.
func unclearEscape(s string, whole bool) string {
	if len(s) < 3 {
		return "it holds a broken percent-encoding"
	}
	d, err := url.PathUnescape(s[:3])
	switch {
	case err != nil:
		return "it holds a broken percent-encoding"
	case d == "." || d == "\\" || d < " " || d == "\x7f":
		return fmt.Sprintf("it holds %s", s[:3])
	case !whole && (d == "/" || d == ";" || d == "%" || unreserved.MatchString(d)):
		return fmt.Sprintf("it holds %s", s[:3])
	}
	return ""
}

var (
	unreserved  = lazyregexp.New(`^[A-Za-z0-9._~-]+$`)
	pathLiteral = lazyregexp.New(`^[A-Za-z0-9._~!$&'()+,=:@-]+$`)
)

// checkURLPath checks a path pattern.
func checkURLPath(s string) error {
	const remedy = `begin with /, write segments of letters, digits and ._~!$&'()+,=:@-, "*" for any one segment or "**" for one or more`
	segments := strings.Split(strings.TrimPrefix(s, "/"), "/")
	deep := 0
	for _, seg := range segments {
		switch {
		case seg == "**":
			deep++
		case seg == "" && len(segments) == 1, seg == "*":
		case seg == "" && strings.HasSuffix(s, "/") && !strings.Contains(s, "//"):
			return fmt.Errorf("%q ends with a slash: write %q for all below it", s, s+"**")
		case seg == "." || seg == ".." || !pathLiteral.MatchString(seg):
			return fmt.Errorf("%q is no path pattern: %s", s, remedy)
		}
	}
	switch {
	case !strings.HasPrefix(s, "/") || len(s) > 512:
		return fmt.Errorf("%q is no path pattern: %s", s, remedy)
	case deep > 2:
		return fmt.Errorf("%q has more than two \"**\": write it with two at most", s)
	}
	return nil
}

// pathPattern is a pattern in parts: literals, one (any segment) and star (any
// number of segments).
type pathPattern []string

const (
	one  = "*"
	star = "**"
)

func parsePath(s string) pathPattern {
	var p pathPattern
	for _, seg := range strings.Split(strings.TrimPrefix(s, "/"), "/") {
		if seg == "**" {
			p = append(p, one)
			seg = star
		}
		p = append(p, seg)
	}
	return p
}

// matches decides about a path that is not unclear.
func (p pathPattern) matches(path string) bool {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range segments {
		d, err := url.PathUnescape(s)
		if err != nil {
			return false
		}
		segments[i] = d
	}
	return p.match(segments)
}

func (p pathPattern) match(segments []string) bool {
	if len(p) == 0 {
		return len(segments) == 0
	}
	if p[0] == star {
		return p[1:].match(segments) || len(segments) > 0 && p.match(segments[1:])
	}
	return len(segments) > 0 && (p[0] == one || p[0] == segments[0]) && p[1:].match(segments[1:])
}

// meets reports whether a path matches both.
func (p pathPattern) meets(q pathPattern) bool {
	switch {
	case len(p) > 0 && p[0] == star:
		return p[1:].meets(q) || len(q) > 0 && p.meets(q[1:])
	case len(q) > 0 && q[0] == star:
		return q.meets(p)
	case len(p) == 0 || len(q) == 0:
		return len(p) == len(q)
	}
	return (p[0] == one || q[0] == one || p[0] == q[0]) && p[1:].meets(q[1:])
}

// fresh is a segment that no pattern names.
const fresh = "kick-any-segment"

// witnesses are paths such that whatever patterns match all of them match all
// that p matches. Other patterns have at most depth parts.
func (p pathPattern) witnesses(depth int) []string {
	list := [][]string{nil}
	for _, part := range p {
		var next [][]string
		for _, w := range list {
			switch part {
			case one:
				next = append(next, append(slices.Clip(w), fresh))
			case star:
				for n := 0; n <= depth; n++ {
					next = append(next, append(slices.Clip(w), slices.Repeat([]string{fresh}, n)...))
				}
			default:
				next = append(next, append(slices.Clip(w), part))
			}
		}
		list = next
	}
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = "/" + strings.Join(w, "/")
	}
	return out
}

// covers reports whether p matches all that q matches.
func (p pathPattern) covers(q pathPattern) bool {
	return !slices.ContainsFunc(q.witnesses(len(p)+1), func(w string) bool { return !p.matches(w) })
}
