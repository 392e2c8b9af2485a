package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Caps on what a hostile repository can make us hold. The largest repositories
// in public use have some 100,000 refs, all of them fetched; an agent makes a
// handful.
const (
	maxRefs       = 20_000
	maxRefDepth   = 32
	maxPackedRefs = 16 << 20 // bytes
	maxReflog     = 4 << 20  // bytes, of the end
	maxLogged     = 1000     // commits of HEAD's reflog
	maxWorktrees  = 100
)

// ref is a name for an object in a bundle.
type ref struct{ oid, name string }

// refReader reads the refs of a hostile git directory as data. No git does it,
// since a FIFO among the refs would hang it, and a setting would send it
// elsewhere.
type refReader struct {
	root *os.Root // the work tree
	hex  int      // length of an id
	sum  *work
}

// head returns the commit that HEAD names and the branch that it is on, each
// empty if there is none.
func (r refReader) head(refs map[string]string) (oid, branch string, err error) {
	b, err := readSmall(r.root, ".git/HEAD", 4<<10)
	if err != nil {
		return "", "", err
	}
	oid, target := r.parse(b)
	if oid != "" {
		return oid, "", nil
	}
	branch, ok := strings.CutPrefix(target, "refs/heads/")
	if !ok || !validRef(target) {
		return "", "", fmt.Errorf(".git/HEAD names neither a commit nor a branch")
	}
	return refs[target], branch, nil
}

// parse reads the content of a loose ref: an id, or the name of another ref.
func (r refReader) parse(b []byte) (oid, target string) {
	s := strings.TrimRight(string(b), "\n\r \t")
	if t, ok := strings.CutPrefix(s, "ref:"); ok {
		return "", strings.TrimLeft(t, " \t")
	}
	if len(s) == r.hex && validOID(s) {
		return s, ""
	}
	return "", ""
}

// all returns every direct ref under refs/ by its name.
func (r refReader) all() map[string]string {
	refs := map[string]string{}
	if b, err := readSmall(r.root, ".git/packed-refs", maxPackedRefs); err == nil {
		r.packed(b, refs)
	} else if !errors.Is(err, fs.ErrNotExist) {
		r.sum.problem("read .git/packed-refs: %v; the repository is archived as %s too", err, keptRepository)
		r.sum.partial = true
	}
	if info, err := r.root.Lstat(".git/refs"); err != nil || !info.IsDir() {
		r.sum.problem(".git/refs is not a directory")
		return refs
	}
	r.walk("refs", refs, 0)
	if len(refs) >= maxRefs {
		r.sum.problem("more than %d refs: the repository is archived as %s too", maxRefs, keptRepository)
		r.sum.partial = true
	}
	return refs
}

func (r refReader) packed(b []byte, refs map[string]string) {
	for line := range bytes.Lines(b) {
		oid, name, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		if ok && len(oid) == r.hex && validOID(oid) && validRef(name) && len(refs) < maxRefs {
			refs[name] = oid
		}
	}
}

func (r refReader) walk(dir string, refs map[string]string, depth int) {
	if depth > maxRefDepth {
		r.sum.problem(".git/%s is nested too deep", clip(dir, 200))
		return
	}
	f, err := r.root.Open(".git/" + dir)
	if err != nil {
		r.sum.problem("read .git/%s: %v", clip(dir, 200), err)
		return
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(1000)
		for _, e := range entries {
			if len(refs) >= maxRefs {
				return
			}
			name := dir + "/" + e.Name()
			switch {
			case e.IsDir():
				r.walk(name, refs, depth+1)
			case !e.Type().IsRegular() || strings.HasSuffix(name, ".lock"):
			case !validRef(name):
				r.sum.problem("the name of the ref %q is not valid", clip(name, 200))
			default:
				r.loose(name, refs)
			}
		}
		if err != nil || len(entries) == 0 {
			return
		}
	}
}

func (r refReader) loose(name string, refs map[string]string) {
	b, err := readSmall(r.root, ".git/"+name, 4<<10)
	if err != nil {
		r.sum.problem("read the ref %s: %v", clip(name, 200), err)
		return
	}
	oid, target := r.parse(b)
	if oid == "" && target == "" {
		r.sum.problem("the ref %s holds no commit id", clip(name, 200))
		return
	}
	if oid != "" {
		refs[name] = oid
	}
}

// log returns the ids that a reflog names, the latest first and each once.
func (r refReader) log(name string) []string {
	f, info, err := openRegular(r.root, ".git/logs/"+name)
	if err != nil {
		return nil // there is none, or nothing that git made
	}
	defer f.Close()
	start := max(0, info.Size()-maxReflog)
	b, err := io.ReadAll(io.NewSectionReader(f, start, maxReflog))
	if err != nil {
		return nil
	}
	return r.parseLog(b)
}

func (r refReader) parseLog(b []byte) []string {
	var ids []string
	seen := map[string]bool{strings.Repeat("0", r.hex): true}
	lines := slices.Collect(bytes.Lines(b))
	slices.Reverse(lines)
	for _, line := range lines {
		if len(line) < 2*r.hex+2 || line[r.hex] != ' ' || line[2*r.hex+1] != ' ' {
			continue
		}
		oid := string(line[r.hex+1 : 2*r.hex+1])
		if validOID(oid) && !seen[oid] {
			seen[oid] = true
			ids = append(ids, oid)
		}
	}
	return ids
}

// worktrees returns the commits of detached linked work trees. Branches of
// such trees are refs of the repository itself.
func (r refReader) worktrees() []ref {
	const dir = ".git/worktrees"
	if info, err := r.root.Lstat(dir); err != nil || !info.IsDir() {
		return nil
	}
	f, err := r.root.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	entries, _ := f.ReadDir(maxWorktrees)
	var refs []ref
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		b, err := readSmall(r.root, path.Join(dir, e.Name(), "HEAD"), 4<<10)
		if err != nil {
			continue
		}
		if oid, _ := r.parse(b); oid != "" {
			refs = append(refs, ref{oid, fmt.Sprintf("refs/kick/worktree/%d", len(refs))})
		}
	}
	return refs
}

// validOID reports whether s is a full SHA-1 or SHA-256 id.
func validOID(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// validRef reports whether git would take name as the name of a ref, by the
// rules of git-check-ref-format(1).
func validRef(name string) bool {
	if len(name) > 1024 || !strings.HasPrefix(name, "refs/") || strings.Contains(name, "..") || strings.Contains(name, "@{") {
		return false
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c == 0x7f || strings.IndexByte(`~^:?*[\`, c) >= 0 {
			return false
		}
	}
	for _, part := range strings.Split(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}
