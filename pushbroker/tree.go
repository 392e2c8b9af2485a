package pushbroker

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
)

// treeEntry is one entry of a tree, with the mode as it is written there:
// git's own commands show 100664 as 100644.
type treeEntry struct {
	name string
	mode uint32
	oid  string
}

const (
	modeTree    = 0o040000
	modeLink    = 0o120000
	modeGitlink = 0o160000
	modeType    = 0o170000
)

func (e treeEntry) isTree() bool { return e.mode&modeType == modeTree }

var errTreeWidth = errors.New("too many entries")

// parseTree reads a tree object with at most width entries.
func parseTree(raw []byte, width int) ([]treeEntry, error) {
	// "100644 x" and a NUL and an id are 29 bytes; longer names only make it fewer.
	entries := make([]treeEntry, 0, min(len(raw)/29+1, width))
	for len(raw) > 0 {
		if len(entries) == width {
			return nil, errTreeWidth
		}
		sp := bytes.IndexByte(raw, ' ')
		if sp < 5 || sp > 6 || raw[0] == '0' {
			return nil, fmt.Errorf("entry %d has no mode", len(entries)+1)
		}
		var mode uint32
		for _, c := range raw[:sp] {
			if c < '0' || c > '7' {
				return nil, fmt.Errorf("entry %d has no octal mode", len(entries)+1)
			}
			mode = mode<<3 | uint32(c-'0')
		}
		raw = raw[sp+1:]
		nul := bytes.IndexByte(raw, 0)
		if nul <= 0 || len(raw) < nul+21 || bytes.IndexByte(raw[:nul], '/') >= 0 {
			return nil, fmt.Errorf("entry %d has no name or id", len(entries)+1)
		}
		entries = append(entries, treeEntry{name: string(raw[:nul]), mode: mode, oid: hex.EncodeToString(raw[nul+1 : nul+21])})
		raw = raw[nul+21:]
	}
	return entries, nil
}
