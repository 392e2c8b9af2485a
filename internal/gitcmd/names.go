package gitcmd

import (
	"strconv"
	"strings"
)

// MaxBranchName keeps a ref's lock file within the 255 bytes of a file name.
const MaxBranchName = 200

// BranchNameFault holds a branch's name, without refs/heads/, to git's rules and
// a few of our own, and returns what is wrong with it, as the end of a
// sentence. Empty: nothing.
func BranchNameFault(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > MaxBranchName:
		return "is longer than " + strconv.Itoa(MaxBranchName) + " bytes"
	case strings.HasPrefix(name, "-"):
		return "looks like an option"
	case name == "@" || name == "HEAD" || strings.HasPrefix(name, "HEAD/"):
		return "is a reserved name"
	case strings.Contains(name, "..") || strings.Contains(name, "@{"):
		return `holds ".." or "@{"`
	case strings.HasSuffix(name, "."):
		return "ends in a dot"
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c == 0x7f || strings.IndexByte(`~^:?*[\`, c) >= 0 {
			return "holds " + strconv.QuoteRune(rune(c))
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return `has a component that is empty, starts with "." or ends in ".lock"`
		}
	}
	return ""
}

// ZeroOID is what git writes where there is no object.
const ZeroOID = "0000000000000000000000000000000000000000"

// IsOID reports whether s is a full SHA-1 id in lower-case hex, not all zero.
func IsOID(s string) bool {
	return len(s) == len(ZeroOID) && s != ZeroOID && strings.Trim(s, "0123456789abcdef") == ""
}
