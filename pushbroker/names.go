package pushbroker

import (
	"strings"

	"github.com/kickhq/kick/policy"
)

// clash is a path that a new commit adds, and another one of the same tree
// that some file system takes for it.
type clash struct {
	commit      int
	path, other string
}

// nameWalk looks for clashes in the whole tree of a commit, in the directories
// that differ from base's. Where base has two directories with one folded
// path, such as Docs and docs, they are looked at as the one that they are
// elsewhere.
type nameWalk struct {
	*walker
	commit int
	done   map[string]bool                 // twins that were compared
	bases  map[string]map[string]treeEntry // base's directories by their ids
	seen   map[[2]string]bool              // paths of clashes
}

func newNameWalk(w *walker) *nameWalk {
	return &nameWalk{walker: w, done: map[string]bool{}, bases: map[string]map[string]treeEntry{}, seen: map[[2]string]bool{}}
}

// twin is one of the directories with one folded path. path ends with a slash
// or is empty, tree is the commit's and base the base's, by their ids.
type twin struct{ path, tree, base string }

// member is an entry of one of them, with base's of the same path.
type member struct {
	path      string
	new, base treeEntry
}

func (m member) added() bool { return m.base.name == "" }

func (w *nameWalk) compare(dirs []twin, depth int) error {
	if !w.fresh(dirs) {
		return nil
	}
	if err := w.budget(depth); err != nil {
		return err
	}
	var members []member
	for _, d := range dirs {
		var err error
		if members, err = w.members(members, d); err != nil {
			return err
		}
	}
	for _, group := range sameNames(members) {
		w.report(group)
		var below []twin
		for _, m := range group {
			if id := m.new.treeID(); id != "" {
				below = append(below, twin{path: m.path + "/", tree: id, base: m.base.treeID()})
			}
		}
		if err := w.compare(below, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// fresh reports whether the directories have to be looked at: one of them
// differs from base's, and no commit had the same before.
func (w *nameWalk) fresh(dirs []twin) bool {
	differs := false
	var key strings.Builder
	for _, d := range dirs {
		differs = differs || d.tree != d.base
		key.WriteString(d.path + "\x00" + d.tree)
	}
	if !differs || w.done[key.String()] {
		return false
	}
	w.done[key.String()] = true
	return true
}

func (w *nameWalk) members(to []member, d twin) ([]member, error) {
	entries, err := w.tree(d.tree)
	if err != nil {
		return nil, err
	}
	bases, ok := w.bases[d.base]
	if !ok {
		t, err := w.tree(d.base)
		if err != nil {
			return nil, err
		}
		bases = byName(t)
		w.bases[d.base] = bases
	}
	for _, e := range entries {
		to = append(to, member{path: d.path + e.name, new: e, base: bases[e.name]})
	}
	return to, nil
}

// sameNames groups the members whose names fold to one. Only groups with a new
// name, or with a directory that differs, matter; of a large directory these
// are few.
func sameNames(members []member) [][]member {
	place := map[string]int{} // in groups
	for _, m := range members {
		if m.added() || m.new.isTree() && m.new.oid != m.base.oid {
			place[policy.Fold(m.new.name)] = -1
		}
	}
	var groups [][]member
	if len(place) == 0 {
		return nil
	}
	for _, m := range members {
		fold := policy.Fold(m.new.name)
		at, ok := place[fold]
		if !ok {
			continue
		}
		if at < 0 {
			at = len(groups)
			place[fold], groups = at, append(groups, nil)
		}
		groups[at] = append(groups[at], m)
	}
	return groups
}

func (w *nameWalk) report(group []member) {
	for i, m := range group {
		if len(group) == 1 || !m.added() {
			continue
		}
		other := group[0].path
		if i == 0 {
			other = group[1].path
		}
		if at := [2]string{m.path, other}; !w.seen[at] {
			w.seen[at] = true
			w.h.clashes = append(w.h.clashes, clash{commit: w.commit, path: m.path, other: other})
		}
	}
}
