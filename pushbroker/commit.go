package pushbroker

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/policy"
)

// Commit is a commit object.
type Commit struct {
	OID       string
	Tree      string
	Parents   []string
	Author    policy.Identity
	Committer policy.Identity
	Message   string
	// Header says what in the header is outside of the strict grammar, or is
	// empty. Tree and Parents are right all the same, as git reads them.
	Header string
}

// ParseCommit reads a commit object. It fails only if git itself would not
// take it for a commit. The strict grammar is
//
//	tree ID, parent ID ..., author IDENT, committer IDENT, [encoding UTF-8]
//
// with nothing else: further headers can carry anything past a review, among
// them signatures that no one made.
func ParseCommit(raw []byte) (Commit, error) {
	var c Commit
	head, message, ok := bytes.Cut(raw, []byte("\n\n"))
	if !ok {
		// A commit with an empty message may end with its header.
		head, message = bytes.TrimSuffix(raw, []byte("\n")), nil
	}
	c.Message = string(message)
	lines := strings.Split(string(head), "\n")
	tree, ok := strings.CutPrefix(lines[0], "tree ")
	if !ok || !gitcmd.IsOID(tree) {
		return c, errors.New("it does not begin with a tree")
	}
	c.Tree = tree
	next := 1
	for ; next < len(lines); next++ {
		id, ok := strings.CutPrefix(lines[next], "parent ")
		if !ok {
			break
		}
		if !gitcmd.IsOID(id) {
			return c, fmt.Errorf("line %d names no parent", next+1)
		}
		c.Parents = append(c.Parents, id)
	}
	c.Header = c.parseRest(lines, next)
	return c, nil
}

// parseRest reads the lines behind the parents, and says what is wrong.
func (c *Commit) parseRest(lines []string, next int) string {
	for i, p := range c.Parents {
		for _, q := range c.Parents[:i] {
			if p == q {
				return "a parent is named twice"
			}
		}
	}
	for _, id := range []struct {
		key string
		to  *policy.Identity
	}{{"author ", &c.Author}, {"committer ", &c.Committer}} {
		if next >= len(lines) {
			return "there is no " + strings.TrimSpace(id.key)
		}
		value, ok := strings.CutPrefix(lines[next], id.key)
		if !ok {
			return fmt.Sprintf("line %d is not the %sline", next+1, id.key)
		}
		var err error
		if *id.to, err = parseIdent(value); err != nil {
			return fmt.Sprintf("%s: %v", strings.TrimSpace(id.key), err)
		}
		next++
	}
	if next < len(lines) && strings.HasPrefix(lines[next], "encoding ") {
		if !strings.EqualFold(lines[next], "encoding utf-8") {
			return fmt.Sprintf("line %d: the encoding is not UTF-8", next+1)
		}
		next++
	}
	if next < len(lines) {
		key, _, _ := strings.Cut(lines[next], " ")
		if len(key) > 40 {
			key = key[:40]
		}
		return fmt.Sprintf("line %d: %q is not allowed", next+1, key)
	}
	return ""
}

// parseIdent reads "name <mail> seconds zone".
func parseIdent(s string) (policy.Identity, error) {
	var id policy.Identity
	open, end := strings.Index(s, " <"), strings.LastIndex(s, "> ")
	if open < 0 || end < open {
		return id, errors.New("it is not of the form name <mail> time zone")
	}
	id.Name, id.Email = s[:open], s[open+2:end]
	for _, part := range []string{id.Name, id.Email} {
		if !utf8.ValidString(part) || strings.ContainsAny(part, "<>") {
			return id, errors.New("the name or address is not valid UTF-8, or has angle brackets")
		}
		for _, r := range part {
			if escape.Control(r) || escape.Invisible(r) {
				return id, fmt.Errorf("the name or address has U+%04X", r)
			}
		}
	}
	when, zone, ok := strings.Cut(s[end+2:], " ")
	sec, err := strconv.ParseUint(when, 10, 64)
	if !ok || err != nil || strconv.FormatUint(sec, 10) != when || sec > maxTime {
		return id, errors.New("the time is not one between 1970 and 2106 in plain seconds")
	}
	if len(zone) != 5 || zone[0] != '+' && zone[0] != '-' {
		return id, errors.New("the time zone is not of the form +0000")
	}
	hhmm, err := strconv.ParseUint(zone[1:], 10, 16)
	if err != nil || hhmm > 1400 || hhmm%100 > 59 {
		return id, errors.New("the time zone is beyond 14 hours")
	}
	return id, nil
}

// maxTime is the last second that 32 bits hold, in 2106.
const maxTime = 1<<32 - 1

// Subject is the first line of the message.
func (c *Commit) Subject() string {
	s, _, _ := strings.Cut(strings.TrimLeft(c.Message, "\n"), "\n")
	return s
}
