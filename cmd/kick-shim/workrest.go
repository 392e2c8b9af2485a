package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// maxWalked is how many commits are held to tell what HEAD and the base reach.
// With more, nothing is left out of the rest.
const maxWalked = 200_000

// newCommits returns the commits of base..HEAD and their number. Of more than
// maxWalked, the set is nil.
func (v *view) newCommits() (map[string]bool, int, error) {
	set, n := map[string]bool{}, 0
	if v.head == "" || v.head == v.base {
		return set, 0, nil
	}
	err := v.revList([]string{v.head, "^" + v.base}, func(oid string, _ []string) {
		if n++; n <= maxWalked {
			set[oid] = true
		}
	})
	if n > maxWalked || err != nil {
		set = nil
	}
	return set, n, err
}

// revList calls f for each commit of a range with its parents.
func (v *view) revList(revs []string, f func(oid string, parents []string)) error {
	lines := &records{sep: '\n', f: func(line string) {
		if ids := strings.Fields(line); len(ids) > 0 {
			f(ids[0], ids[1:])
		}
	}}
	in := strings.NewReader(strings.Join(revs, "\n") + "\n")
	return v.ask(in, lines, "rev-list", "--parents", "--stdin")
}

// cand is something beside HEAD that may hold work.
type cand struct {
	ref           // as it goes into the bundle
	label  string // name of the ref in the workspace; empty for what is not one
	logged bool   // only a reflog names it
	commit string // what it peels to; empty if that is no commit
	isTag  bool   // it is a tag object
}

// candidates returns all that may hold work beside HEAD and its branch. mine
// are the commits of base..HEAD.
func (v *view) candidates(mine map[string]bool) []cand {
	var cands []cand
	seen := map[string]bool{v.base: true, v.head: true}
	for _, name := range slices.Sorted(maps.Keys(v.refs)) {
		oid := v.refs[name]
		if oid == v.base || name == "refs/heads/"+v.branch {
			continue
		}
		inBundle := name
		if rest, ok := strings.CutPrefix(name, "refs/kick/"); ok {
			inBundle = "refs/kick/other/" + rest // the rest of refs/kick is for names of our own making
		}
		seen[oid] = true
		cands = append(cands, cand{ref: ref{oid, inBundle}, label: name})
	}
	for i, oid := range v.stashes {
		seen[oid] = true
		cands = append(cands, cand{ref: ref{oid, fmt.Sprintf("refs/kick/stash/%d", i)}})
	}
	for _, r := range v.detached {
		if !seen[r.oid] && !mine[r.oid] {
			seen[r.oid] = true
			cands = append(cands, cand{ref: r})
		}
	}
	for i, oid := range v.logged {
		if !seen[oid] && !mine[oid] {
			seen[oid] = true
			cands = append(cands, cand{ref: ref{oid, fmt.Sprintf("refs/kick/reflog/%d", i)}, logged: true})
		}
	}
	return cands
}

// others returns the refs for all that the base does not reach, HEAD's own
// branch apart: branches, tags, stashes, linked work trees, and commits that
// only HEAD's reflog still names.
func (v *view) others(mine map[string]bool, sum *work) []ref {
	cands, err := v.peel(v.candidates(mine), sum)
	if err != nil {
		sum.problem("look at the other refs: %v; the repository is kept as %s", err, keptRepository)
		sum.partial = true
		return nil
	}
	if len(cands) == 0 {
		return nil
	}
	fresh, err := v.fresh(cands)
	if err != nil {
		sum.problem("tell which refs hold new commits: %v; all of them are kept", err)
	}
	known := fresh != nil && mine != nil
	reached := map[string]bool{}
	var refs []ref
	for _, c := range cands {
		_, isNew := fresh[c.commit]
		if known && !isNew && (c.logged || c.commit != "" && !c.isTag && !mine[c.commit]) {
			continue // the base reaches it, or HEAD does and it is no ref
		}
		if c.logged && reached[c.commit] {
			continue
		}
		if c.label != "" && (isNew || !known) && len(sum.Unpublished) < maxListed {
			sum.Unpublished = append(sum.Unpublished, c.label)
		}
		markReached(c.commit, fresh, reached)
		refs = append(refs, c.ref)
	}
	return refs
}

// peel fills in what the candidates are and drops those whose object is not
// there.
func (v *view) peel(cands []cand, sum *work) ([]cand, error) {
	if len(cands) == 0 {
		return nil, nil
	}
	var in bytes.Buffer
	for _, c := range cands {
		fmt.Fprintf(&in, "%s^{}\n", c.oid)
	}
	var lines []string
	out := &records{sep: '\n', f: func(line string) { lines = append(lines, line) }}
	if err := v.ask(&in, out, "cat-file", "--batch-check=%(objectname) %(objecttype)"); err != nil {
		return nil, err
	}
	if len(lines) != len(cands) {
		return nil, fmt.Errorf("git cat-file answered %d of %d questions", len(lines), len(cands))
	}
	var kept []cand
	for i, c := range cands {
		oid, kind, _ := strings.Cut(lines[i], " ")
		if !validOID(oid) {
			if !c.logged {
				sum.problem("%s names %s, an object that is missing", clip(c.name, 200), c.oid)
			}
			continue
		}
		c.isTag = oid != c.oid
		if kind == "commit" {
			c.commit = oid
		}
		kept = append(kept, c)
	}
	return kept, nil
}

// fresh returns the commits that neither the base nor HEAD reaches, with their
// parents, or nil if they are too many.
func (v *view) fresh(cands []cand) (map[string][]string, error) {
	revs := []string{"^" + v.base}
	if v.head != "" {
		revs = append(revs, "^"+v.head)
	}
	for _, c := range cands {
		if c.commit != "" {
			revs = append(revs, c.commit)
		}
	}
	fresh := map[string][]string{}
	err := v.revList(revs, func(oid string, parents []string) {
		if len(fresh) <= maxWalked {
			fresh[oid] = parents
		}
	})
	if err == nil && len(fresh) > maxWalked {
		err = errors.New("more than " + fmt.Sprint(maxWalked) + " commits")
	}
	if err != nil {
		return nil, err
	}
	return fresh, nil
}

// markReached adds oid and all its fresh ancestors to reached.
func markReached(oid string, fresh map[string][]string, reached map[string]bool) {
	todo := []string{oid}
	for len(todo) > 0 {
		oid, todo = todo[len(todo)-1], todo[:len(todo)-1]
		if parents, ok := fresh[oid]; ok && !reached[oid] {
			reached[oid] = true
			todo = append(todo, parents...)
		}
	}
}
