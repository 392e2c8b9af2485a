package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// maxDirty is how many uncommitted paths are held. An installed dependency
// tree that is not ignored has some 50,000.
const maxDirty = 100_000

// entry is one uncommitted path.
type entry struct {
	path string
	kind entryKind
}

type entryKind byte

const (
	fileEntry   entryKind = iota // a file or symbolic link, or what was one
	goneEntry                    // not in the work tree any more
	nestedEntry                  // a directory with a repository of its own
)

// statusResult is what git status found; count also counts what was not held.
type statusResult struct {
	entries []entry
	count   int
	err     error
}

// status asks git for all uncommitted paths outside .hive, and holds limit of
// them.
func (v *view) status(limit int) statusResult {
	var st statusResult
	if st.err = v.copyIndex(); st.err != nil {
		return st
	}
	if st.err = v.unhide(); st.err != nil {
		return st
	}
	out := &records{sep: 0, f: func(rec string) {
		e, ok := parseStatus(rec)
		if !ok || inHive(e.path) {
			return
		}
		if st.count++; st.count <= limit {
			st.entries = append(st.entries, e)
		}
	}}
	st.err = v.ask(nil, out, "status", "--porcelain=v2", "-z",
		"--untracked-files=all", "--no-renames", "--ignore-submodules=dirty")
	return st
}

func inHive(name string) bool {
	return name == hiveDir || strings.HasPrefix(name, hiveDir+"/")
}

// maxIndex is what an index of two million files takes. git reads it whole.
const maxIndex = 256 << 20

// copyIndex copies the workspace's index, if there is one. The copy has the time
// of the original, by which git tells which files may have changed unseen since.
func (v *view) copyIndex() error {
	f, info, err := openRegular(v.root, ".git/index")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info.Size() > maxIndex {
		return fmt.Errorf(".git/index has %d bytes, at most %d are read", info.Size(), maxIndex)
	}
	out, err := os.OpenFile(v.index, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(f, maxIndex))
	return errors.Join(err, out.Close(), os.Chtimes(v.index, info.ModTime(), info.ModTime()))
}

// maxMarked bounds the names of files that git was told not to look at.
const maxMarked = 64 << 20

// unhide takes the marks off the index's copy that tell git not to look at a
// file (update-index --assume-unchanged and --skip-worktree). A file that is not
// in the work tree keeps the second one: a sparse checkout left it out.
func (v *view) unhide() error {
	assumed, skipped := &capped{max: maxMarked}, &capped{max: maxMarked}
	var full error
	dirs := dirKinds{root: v.root, known: map[string]dirKind{}}
	out := &records{sep: 0, f: func(rec string) {
		tag, name, _ := strings.Cut(rec, " ")
		if tag == "H" || full != nil || inHive(name) {
			return
		}
		if tag == "h" || tag == "s" {
			_, full = assumed.Write([]byte(name + "\x00"))
		}
		if tag != "S" && tag != "s" || full != nil || dirs.kind(path.Dir(name)) != realDir {
			return
		}
		if _, err := v.root.Lstat(name); err == nil {
			_, full = skipped.Write([]byte(name + "\x00"))
		}
	}}
	if err := v.ask(nil, out, "ls-files", "-v", "-z"); err != nil || full != nil {
		return errors.Join(err, full)
	}
	for mark, names := range map[string]*capped{"--no-assume-unchanged": assumed, "--no-skip-worktree": skipped} {
		if names.Len() == 0 {
			continue
		}
		if err := v.ask(names, io.Discard, "update-index", mark, "-z", "--stdin"); err != nil {
			return err
		}
	}
	return nil
}

// parseStatus parses one record of git status --porcelain=v2 -z --no-renames.
func parseStatus(rec string) (entry, bool) {
	kind, rest, _ := strings.Cut(rec, " ")
	var fields int // before the path
	switch kind {
	case "?":
		if p, ok := strings.CutSuffix(rest, "/"); ok {
			return entry{p, nestedEntry}, p != ""
		}
		return entry{rest, fileEntry}, rest != ""
	case "1":
		fields = 7 // XY sub mH mI mW hH hI
	case "u":
		fields = 9 // XY sub m1 m2 m3 mW h1 h2 h3
	default:
		return entry{}, false
	}
	f := strings.SplitN(rest, " ", fields+1)
	if len(f) != fields+1 || f[fields] == "" {
		return entry{}, false
	}
	e := entry{path: f[fields]}
	mode := f[4]
	if kind == "u" {
		mode = f[5]
	}
	switch mode {
	case "000000":
		e.kind = goneEntry
	case "160000":
		e.kind = nestedEntry
	}
	return e, true
}

// records calls f for each record that is written to it.
type records struct {
	sep  byte
	f    func(string)
	rest []byte
}

// maxRecord is far above the longest path that Linux takes, 4 KiB.
const maxRecord = 1 << 20

func (r *records) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexByte(p, r.sep)
		if i < 0 {
			break
		}
		r.f(string(append(r.rest, p[:i]...)))
		r.rest, p = r.rest[:0], p[i+1:]
	}
	if len(r.rest)+len(p) > maxRecord {
		return 0, errors.New("git's output has an endless line")
	}
	r.rest = append(r.rest, p...)
	return n, nil
}

// maxDirtBytes bounds the files in the commit of uncommitted changes. Its
// objects lie in a temporary directory, which is memory.
const maxDirtBytes = 256 << 20

// dirt is the uncommitted changes, sorted by what can be done with them.
type dirt struct {
	files  []string // for the archive, as they lie there
	nested []string // for the archive, with all that is below
	index  []string // for the commit; also paths that are gone
}

// sortDirt sorts the uncommitted paths. git would stop at the first file that
// it cannot read, so those that it gets were opened before.
func sortDirt(root *os.Root, entries []entry, sum *work) dirt {
	var d dirt
	var left []string
	room := int64(maxDirtBytes)
	dirs := dirKinds{root: root, known: map[string]dirKind{}}
	for _, e := range entries {
		where := dirs.kind(path.Dir(e.path))
		switch {
		case where == linkDir:
			// The link has an entry of its own, and git drops what the index
			// has below its name.
			continue
		case e.kind == goneEntry:
			d.index = append(d.index, e.path)
			continue
		case where != realDir:
			continue
		}
		if e.kind == nestedEntry {
			d.nested = append(d.nested, e.path)
			continue
		}
		d.files = append(d.files, e.path)
		size, err := committable(root, e.path)
		if err != nil || size > room {
			left = append(left, e.path)
			continue
		}
		room -= size
		d.index = append(d.index, e.path)
	}
	if len(left) > 0 {
		sum.problem("%d uncommitted files cannot be read, or are too large for a commit (%d MiB together), the first is %q", len(left), maxDirtBytes>>20, clip(left[0], 200))
	}
	return d
}

// committable returns the size of what git can make a blob of.
func committable(root *os.Root, name string) (int64, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return 0, err
	}
	if info.Mode().Type() == fs.ModeSymlink {
		return 0, nil
	}
	f, info, err := openRegular(root, name)
	if err != nil {
		return 0, err
	}
	return info.Size(), f.Close()
}

// dirKinds tells directories from paths that lead through a symbolic link.
type dirKinds struct {
	root  *os.Root
	known map[string]dirKind
}

type dirKind byte

const (
	realDir dirKind = iota
	linkDir         // a link, or below one
	noDir           // not there, or a file
)

func (d dirKinds) kind(dir string) dirKind {
	if dir == "." {
		return realDir
	}
	k, ok := d.known[dir]
	if ok {
		return k
	}
	if k = d.kind(path.Dir(dir)); k == realDir {
		info, err := d.root.Lstat(dir)
		switch {
		case err == nil && info.Mode().Type() == fs.ModeSymlink:
			k = linkDir
		case err != nil || !info.IsDir():
			k = noDir
		}
	}
	d.known[dir] = k
	return k
}

// submodules returns the directories of submodules. git is not asked what is
// uncommitted in them, since it would read their settings for that.
func (v *view) submodules(root *os.Root, sum *work) []string {
	_, err1 := root.Lstat(".gitmodules")
	_, err2 := root.Lstat(".git/modules")
	if err1 != nil && err2 != nil {
		return nil
	}
	var dirs []string
	kinds := dirKinds{root: root, known: map[string]dirKind{}}
	out := &records{sep: 0, f: func(rec string) {
		meta, name, ok := strings.Cut(rec, "\t")
		if !ok || !strings.HasPrefix(meta, "160000 ") || len(dirs) >= maxDirty || kinds.kind(name) != realDir {
			return
		}
		if f, err := root.Open(name); err == nil {
			if names, _ := f.Readdirnames(1); len(names) > 0 {
				dirs = append(dirs, name)
			}
			f.Close()
		}
	}}
	if err := v.ask(nil, out, "ls-files", "--stage", "-z"); err != nil {
		sum.problem("look for submodules: %v", err)
	}
	return dirs
}

// commitDirt makes a commit of HEAD and the paths, with the index's copy as a
// start, and returns its id. Index and objects are in the private directory.
func (v *view) commitDirt(paths []string) (string, error) {
	g := v.runner
	g.env = append(slices.Clip(g.env), "GIT_AUTHOR_NAME=kick", "GIT_AUTHOR_EMAIL=kick@localhost", "GIT_COMMITTER_NAME=kick", "GIT_COMMITTER_EMAIL=kick@localhost")
	ctx := context.Background()
	in := strings.NewReader(strings.Join(paths, "\x00") + "\x00")
	if _, err := g.run(ctx, in, "update-index", "--add", "--remove", "--replace", "-z", "--stdin"); err != nil {
		return "", err
	}
	tree, err := g.run(ctx, nil, "write-tree")
	if err != nil {
		return "", err
	}
	args := []string{"commit-tree", "-m", "Uncommitted changes", strings.TrimSpace(string(tree))}
	if v.head != "" {
		args = append(args, "-p", v.head)
	}
	oid, err := g.run(ctx, nil, args...)
	return strings.TrimSpace(string(oid)), err
}
