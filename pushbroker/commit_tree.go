package pushbroker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kickhq/kick/pushbroker/exposure"
)

// commitTree is the files of one commit, read from its tree objects.
type commitTree struct {
	r    *objectReader
	root string // id of the tree
	dirs map[string]map[string]treeEntry
}

var _ exposure.Tree = (*commitTree)(nil)

func newCommitTree(r *objectReader, root string) commitTree {
	return commitTree{r: r, root: root, dirs: map[string]map[string]treeEntry{}}
}

// dir reads one tree object.
func (t *commitTree) dir(oid string) (map[string]treeEntry, error) {
	if dir, ok := t.dirs[oid]; ok {
		return dir, nil
	}
	raw, err := t.r.one(oid, "tree", maxBaseBlob)
	if err != nil {
		return nil, err
	}
	entries, err := parseTree(raw, DefaultIngestLimits().TreeWidth)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", oid, err)
	}
	dir := byName(entries)
	t.dirs[oid] = dir
	return dir, nil
}

// entry finds a path; the empty one is the root.
func (t *commitTree) entry(path string) (treeEntry, bool, error) {
	e := treeEntry{mode: modeTree, oid: t.root}
	if path == "" {
		return e, true, nil
	}
	for name := range strings.SplitSeq(path, "/") {
		if !e.isTree() {
			return treeEntry{}, false, nil
		}
		dir, err := t.dir(e.oid)
		if err != nil {
			return treeEntry{}, false, err
		}
		var ok bool
		if e, ok = dir[name]; !ok {
			return treeEntry{}, false, nil
		}
	}
	return e, true, nil
}

// List returns the names in a directory, sorted.
func (t *commitTree) List(_ context.Context, path string) ([]string, error) {
	e, ok, err := t.entry(path)
	if err != nil || !ok || !e.isTree() {
		return nil, err
	}
	dir, err := t.dir(e.oid)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(dir))
	for name := range dir {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// Read returns a file's content; a link is none, nor is what exceeds
// exposure.MaxFile.
func (t *commitTree) Read(_ context.Context, path string) ([]byte, bool, error) {
	e, ok, err := t.entry(path)
	if err != nil || !ok || e.isTree() || e.mode == modeGitlink || e.mode == modeLink {
		return nil, false, err
	}
	infos, err := t.r.infos([]string{e.oid})
	if err != nil || infos[0].kind != "blob" || infos[0].size > exposure.MaxFile {
		return nil, false, err
	}
	data, err := t.r.one(e.oid, "blob", exposure.MaxFile)
	return data, err == nil, err
}
