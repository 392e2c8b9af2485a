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

// emptyTree is the id of the tree without entries.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

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

// treeCache reads each tree once. It is for one goroutine at a time.
type treeCache struct {
	r     *objectReader
	lim   IngestLimits
	trees map[string][]treeEntry
	held  int // entries in trees
}

func newTreeCache(r *objectReader, lim IngestLimits) *treeCache {
	return &treeCache{r: r, lim: lim, trees: map[string][]treeEntry{}}
}

// maxHeldEntries bounds the memory of read trees, to some 200 MB.
const maxHeldEntries = 1 << 20

// tree reads a tree object; the empty id stands for no tree.
func (c *treeCache) tree(oid string) ([]treeEntry, error) {
	if oid == "" {
		return nil, nil
	}
	if t, ok := c.trees[oid]; ok {
		return t, nil
	}
	raw, err := c.r.one(oid, "tree", c.lim.ObjectBytes)
	if err != nil {
		return nil, err
	}
	t, err := parseTree(raw, c.lim.TreeWidth)
	switch {
	case errors.Is(err, errTreeWidth):
		return nil, refuse("limit-ingest", "a directory has more than %d entries", c.lim.TreeWidth)
	case err != nil:
		return nil, refuse("object-malformed", "tree %s: %v", oid, err)
	}
	if c.held += len(t); c.held > maxHeldEntries {
		return nil, refuse("limit-ingest", "the directories to compare have more than %d entries", maxHeldEntries)
	}
	c.trees[oid] = t
	return t, nil
}
