package pushbroker

import (
	"fmt"
	"slices"

	"github.com/kickhq/kick/policy"
)

// history is what the new commits are and change.
type history struct {
	commits  []Commit              // parents first
	info     map[string]objectInfo // of S, and of what else the pack holds
	changes  []change              // of every new commit against each parent, where the result is not what base has
	clashes  []clash               // names that the new commits' trees have twice
	first    map[string]place      // of each object on a new side: where it appears first
	net      []change              // base..tip
	baseTree string
	tipTree  string
	baseSeen map[string]bool // objects that base's tree was seen to hold
	trees    *treeCache
}

// change is one leaf entry of a commit that differs from a parent's.
type change struct {
	commit   int // index into commits; -1: net
	path     string
	old, new leaf
}

// leaf is one side of a change. The zero leaf is absence.
type leaf struct {
	mode uint32
	oid  string
}

// hasContent reports whether the leaf is a file or a link.
func (l leaf) hasContent() bool {
	return l.mode != 0 && l.mode != modeGitlink && l.mode&modeType != modeTree
}

// place is where an object appears.
type place struct {
	commit int
	path   string
	mode   uint32

	// In which roles it appears, anywhere.
	asLink, asFile bool
}

// walker compares trees.
type walker struct {
	*treeCache
	h      *history
	visits int
	done   map[visit]bool
}

// visit is a comparison that was made already, in any commit.
type visit struct{ new, old, base, path string }

// budget counts one more directory that is compared.
func (w *walker) budget(depth int) error {
	if depth > w.lim.TreeDepth {
		return refuse("limit-ingest", "directories are more than %d deep", w.lim.TreeDepth)
	}
	if w.visits++; w.visits > w.lim.Visits {
		return refuse("limit-ingest", "more than %d directories are to be compared", w.lim.Visits)
	}
	return nil
}

// walkHistory compares every new commit with each of its parents, and the tip
// with base. What a commit has exactly as base has it is no change of this
// work, whatever the other parents have; a merge of base into older work is so.
func walkHistory(trees *treeCache, h *history, baseTree string, treeOf func(commit string) (string, error)) error {
	w := &walker{treeCache: trees, h: h, done: map[visit]bool{}}
	names := newNameWalk(w)
	h.trees = w.treeCache
	h.first, h.baseSeen = map[string]place{}, map[string]bool{}
	h.baseTree, h.tipTree = baseTree, h.commits[len(h.commits)-1].Tree
	for i, c := range h.commits {
		h.first[c.OID] = place{commit: i}
		if c.Tree != baseTree {
			h.see(c.Tree, place{commit: i, mode: modeTree})
		}
		for _, p := range c.Parents {
			parent, err := treeOf(p)
			if err != nil {
				return err
			}
			d := diff{w: w, commit: i, out: &h.changes}
			if err := d.trees("", c.Tree, parent, baseTree, 0); err != nil {
				return err
			}
		}
		names.commit = i
		if err := names.compare([]twin{{tree: c.Tree, base: baseTree}}, 0); err != nil {
			return err
		}
	}
	d := diff{w: w, commit: -1, out: &h.net}
	return d.trees("", h.tipTree, baseTree, baseTree, 0)
}

// see notes that an object appears at p.
func (h *history) see(oid string, p place) {
	at, ok := h.first[oid]
	if !ok {
		at = p
	}
	at.asLink = at.asLink || p.mode == modeLink
	at.asFile = at.asFile || p.mode != modeLink
	h.first[oid] = at
}

// diff is one comparison.
type diff struct {
	w      *walker
	commit int
	out    *[]change
}

// trees compares the directory prefix of three trees by the ids of its tree in
// each; empty ids stand for absence.
func (d *diff) trees(prefix, new, old, base string, depth int) error {
	if new == old || d.commit >= 0 && new == base {
		return nil
	}
	v := visit{new, old, base, prefix}
	if d.commit >= 0 {
		if d.w.done[v] {
			return nil
		}
		d.w.done[v] = true
	}
	if err := d.w.budget(depth); err != nil {
		return err
	}
	var sides [3][]treeEntry
	for i, oid := range []string{new, old, base} {
		var err error
		if sides[i], err = d.w.tree(oid); err != nil {
			return err
		}
	}
	olds, bases := byName(sides[1]), byName(sides[2])
	if base != "" {
		d.w.h.baseSeen[base] = true
		for _, e := range sides[2] {
			d.w.h.baseSeen[e.oid] = true
		}
	}
	for _, n := range sides[0] {
		o, b := olds[n.name], bases[n.name]
		delete(olds, n.name)
		if err := d.entry(prefix+n.name, n, o, b, depth); err != nil {
			return err
		}
	}
	for _, o := range sides[1] {
		if _, gone := olds[o.name]; !gone {
			continue
		}
		if err := d.entry(prefix+o.name, treeEntry{}, o, bases[o.name], depth); err != nil {
			return err
		}
	}
	return nil
}

func byName(t []treeEntry) map[string]treeEntry {
	m := make(map[string]treeEntry, len(t))
	for _, e := range t {
		m[e.name] = e
	}
	return m
}

// entry compares one name of a directory. An entry that is a tree on one side
// and a file on the other is both a file's change and a directory's.
func (d *diff) entry(path string, n, o, b treeEntry, depth int) error {
	if n.mode == o.mode && n.oid == o.oid || d.commit >= 0 && n.mode == b.mode && n.oid == b.oid {
		return nil
	}
	if len(path) > d.w.lim.PathBytes {
		return refuse("limit-ingest", "a path has more than %d bytes", d.w.lim.PathBytes)
	}
	if d.commit >= 0 && n.name != "" && n.mode != modeGitlink {
		d.w.h.see(n.oid, place{commit: d.commit, path: path, mode: n.mode})
	}
	nl, ol, bl := n.leaf(), o.leaf(), b.leaf()
	if nl != ol && !(d.commit >= 0 && nl == bl) {
		if *d.out = append(*d.out, change{commit: d.commit, path: path, old: ol, new: nl}); len(*d.out) > d.w.lim.Changes {
			return refuse("limit-ingest", "the commits change more than %d paths", d.w.lim.Changes)
		}
	}
	return d.trees(path+"/", n.treeID(), o.treeID(), b.treeID(), depth+1)
}

// leaf is the entry as a change has it. A directory is none, unless it is
// empty: git writes no such entry, and nothing below it would show its name.
func (e treeEntry) leaf() leaf {
	if e.isTree() && e.oid != emptyTree {
		return leaf{}
	}
	return leaf{mode: e.mode, oid: e.oid}
}

func (e treeEntry) treeID() string {
	if e.isTree() && e.oid != emptyTree {
		return e.oid
	}
	return ""
}

// checkCommits reads and checks the new commits. They are parents first.
func (h *history) checkCommits(r *objectReader, lim IngestLimits, oids []string, base string) error {
	h.commits = make([]Commit, 0, len(oids))
	err := r.contents(oids, lim.CommitBytes, func(i int, kind string, raw []byte) error {
		if kind != "commit" {
			return fmt.Errorf("object %s is a %s, not a commit", oids[i], kind)
		}
		c, err := ParseCommit(raw)
		if err != nil {
			return refuse("object-malformed", "commit %s: %v", oids[i], err)
		}
		c.OID = oids[i]
		if len(c.Parents) > lim.Parents {
			return refuse("limit-ingest", "commit %s has %d parents, more than %d", c.OID, len(c.Parents), lim.Parents)
		}
		h.commits = append(h.commits, c)
		return nil
	})
	if err != nil {
		return err
	}
	work := policy.Work{Rewritten: true}
	for _, c := range h.commits {
		if len(c.Parents) == 0 && work.Unrelated == "" {
			work.Unrelated = "commit " + c.OID
		}
		// Base is an ancestor of the tip exactly if a new commit has it as a
		// parent: every commit between the two is new, since base reaches
		// none that has base itself as an ancestor.
		if slices.Contains(c.Parents, base) {
			work.Rewritten = false
		}
	}
	return refuseWork(work)
}

// refuseWork refuses work that a rule with a fixed level strikes.
func refuseWork(work policy.Work) error {
	var found []policy.Finding
	for _, r := range policy.Rules() {
		if what := r.Match(policy.Subject{Work: &work}); what != "" && r.Fixed {
			found = append(found, policy.NewFinding(r.ID, what))
		}
	}
	if len(found) > 0 {
		return &Refusal{Findings: found}
	}
	return nil
}
