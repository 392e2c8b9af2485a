package pushbroker

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/policy"
)

// maxTarget is the longest link target that is read; the rule's limit is lower.
const maxTarget = 64 << 10

// maxFollowed is how many links a path may go through, as on Linux.
const maxFollowed = 40

// linkTree follows links in one commit's tree. A link that is innocent as text
// can lead out of the repository through another one: where "up" points to
// "..", "up/../x" does.
type linkTree struct {
	*treeCache
	root   string                          // id of the commit's tree
	folded map[string]map[string]treeEntry // entries of a tree, by folded name
	target func(oid string) (target string, err error)
}

// route is where a link leads.
type route struct {
	why     string   // it must not be; empty: it may
	through []string // paths of the links on the way
	depth   int      // of the directory that it ends at, the top's being 0; -1: at a file, or nowhere
	end     string   // path that it ends at; empty: at the top, or nowhere
}

// follow resolves the target of the link at path, which is in the tree. A name
// that is not in the tree counts as a directory: it may come later.
func (t *linkTree) follow(path, target string) (route, error) {
	r := route{depth: -1}
	names := strings.Split(path, "/")
	names = names[:len(names)-1]
	dirs := []string{t.root} // ids of the top and of names; "": not in the tree
	for _, name := range names {
		e, err := t.entry(dirs[len(dirs)-1], name)
		if err != nil {
			return r, err
		}
		dirs = append(dirs, e.treeID())
	}
	for rest := strings.Split(target, "/"); len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch {
		case name == "" || name == ".":
			continue
		case name == ".." && len(names) == 0:
			r.why = fmt.Sprintf("%q leaves the repository through %q", target, strings.Join(r.through, `", "`))
			return r, nil
		case name == "..":
			dirs, names = dirs[:len(dirs)-1], names[:len(names)-1]
			continue
		}
		e, err := t.entry(dirs[len(dirs)-1], name)
		if err != nil {
			return r, err
		}
		switch {
		case e.mode != modeLink:
			if e.name != "" && !e.isTree() && e.mode != modeGitlink {
				r.end = strings.Join(append(names, e.name), "/")
				return r, nil // a file
			}
			dirs, names = append(dirs, e.treeID()), append(names, name)
		case len(r.through) == maxFollowed:
			return r, nil // nothing can open it
		default:
			at := strings.Join(append(slices.Clone(names), e.name), "/")
			next, err := t.target(e.oid)
			if err != nil {
				return r, err
			}
			r.through = append(r.through, at)
			if bad := policy.BadTarget(at, next); bad != "" {
				r.why = fmt.Sprintf("it goes through the link %q: %s", at, bad)
				return r, nil
			}
			rest = append(strings.Split(next, "/"), rest...)
		}
	}
	r.depth, r.end = len(names), strings.Join(names, "/")
	return r, nil
}

// entry finds a name in a tree, or else one that some file system takes for it.
func (t *linkTree) entry(tree, name string) (treeEntry, error) {
	entries, err := t.tree(tree)
	if err != nil {
		return treeEntry{}, err
	}
	for _, as := range []string{name, name + "/"} { // git sorts directories with a slash
		i := sort.Search(len(entries), func(i int) bool { return entries[i].sortName() >= as })
		if i < len(entries) && entries[i].name == name {
			return entries[i], nil
		}
	}
	byFold, ok := t.folded[tree]
	if !ok {
		byFold = make(map[string]treeEntry, len(entries))
		for _, e := range entries {
			byFold[policy.Fold(e.name)] = e
		}
		t.folded[tree] = byFold
	}
	return byFold[policy.Fold(name)], nil
}

func (e treeEntry) sortName() string {
	if e.isTree() {
		return e.name + "/"
	}
	return e.name
}

// linkTree is the tree of a commit, by its index.
func (in *inspection) linkTree(tree string) *linkTree {
	return &linkTree{treeCache: in.h.trees, root: tree, folded: in.folded, target: in.target}
}

// target reads the target of a link. One that is too long is empty here, which
// the rule refuses, too.
func (in *inspection) target(oid string) (string, error) {
	if t, ok := in.targets[oid]; ok {
		return t, nil
	}
	infos, err := in.q.objects.infos([]string{oid})
	if err != nil {
		return "", err
	}
	in.targets[oid] = ""
	if infos[0].kind != "blob" || infos[0].size > maxTarget {
		return "", nil
	}
	data, err := in.q.objects.one(oid, "blob", maxTarget)
	in.targets[oid] = string(data)
	return in.targets[oid], err
}

// leads says why the link of a change must not lead where it does, by the
// other links of its commit, or is empty.
func (in *inspection) leads(ctx context.Context, c change) (string, error) {
	target, err := in.target(c.new.oid)
	if err != nil || policy.BadTarget(c.path, target) != "" {
		return "", err // as text alone it is refused already
	}
	t := in.linkTree(in.h.commits[c.commit].Tree)
	r, err := t.follow(c.path, target)
	if err != nil || r.why != "" || r.depth < 0 || r.depth > strings.Count(c.path, "/") {
		return r.why, err
	}
	// It leads upward, so a path through it has less room for ".." than it seems.
	links, err := in.linksOf(ctx, in.h.commits[c.commit].OID)
	if err != nil {
		return "", err
	}
	for _, l := range links {
		other, err := in.target(l.oid)
		if err != nil {
			return "", err
		}
		now, err := t.follow(l.path, other)
		if err != nil {
			return "", err
		}
		if now.why != "" && slices.Contains(now.through, c.path) {
			return fmt.Sprintf("it makes the link %q leave the repository", l.path), nil
		}
	}
	return "", nil
}

// linkAt is a link of a tree.
type linkAt struct{ path, oid string }

// linksOf lists the links of a commit's whole tree.
func (in *inspection) linksOf(ctx context.Context, commit string) ([]linkAt, error) {
	if links, ok := in.allLinks[commit]; ok {
		return links, nil
	}
	var links []linkAt
	out := &recordWriter{end: 0, each: func(record []byte) error {
		entry, path, _ := bytes.Cut(record, []byte("\t"))
		if oid, ok := bytes.CutPrefix(entry, []byte("120000 blob ")); ok {
			links = append(links, linkAt{path: string(path), oid: string(oid)})
		}
		return nil
	}}
	lim := DefaultIngestLimits()
	g := gitcmd.Git{Dir: in.q.Dir, Limits: gitcmd.Limits{CPU: lim.CPU, Memory: lim.Memory}}
	if err := g.Run(ctx, nil, out, "ls-tree", "-r", "-z", "--full-tree", commit); err != nil {
		return nil, fmt.Errorf("list the links of commit %s: %w", commit, err)
	}
	in.allLinks[commit] = links
	return links, nil
}

// aliases are the base's links with a protected path, by where they lead:
// whoever changes docs/agents.md where CLAUDE.md is a link to it changes
// CLAUDE.md.
type aliases map[string][]string

// of lists the links by which a path is known.
func (a aliases) of(path string) []string {
	var out []string
	for end, links := range a {
		switch rest, below := strings.CutPrefix(path, end+"/"); {
		case path == end:
			out = append(out, links...)
		case below:
			for _, l := range links {
				out = append(out, l+"/"+rest)
			}
		}
	}
	slices.Sort(out)
	return out
}

// aliases looks where such links are in practice: at the top and in .github.
func (in *inspection) aliases() (aliases, error) {
	t := in.linkTree(in.h.baseTree)
	top, err := t.tree(in.h.baseTree)
	if err != nil {
		return nil, err
	}
	out := aliases{}
	look := func(dir string, entries []treeEntry) error {
		for _, e := range entries {
			if e.mode != modeLink || !policy.Protected(dir+e.name) {
				continue
			}
			target, err := in.target(e.oid)
			if err != nil {
				return err
			}
			r, err := t.follow(dir+e.name, target)
			if err != nil {
				return err
			}
			if r.why == "" && r.end != "" {
				out[r.end] = append(out[r.end], dir+e.name)
			}
		}
		return nil
	}
	if err := look("", top); err != nil {
		return nil, err
	}
	for _, e := range top {
		if e.name == ".github" && e.isTree() {
			entries, err := t.tree(e.oid)
			if err != nil {
				return nil, err
			}
			return out, look(".github/", entries)
		}
	}
	return out, nil
}
