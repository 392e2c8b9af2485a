package image

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Limits of one layer. A root file system comes from elsewhere, so what it may
// cost is bounded.
const (
	maxEntries = 1 << 20
	maxBytes   = 16 << 30
)

// Limits of Linux.
const (
	maxPath = 4096 // PATH_MAX
	maxName = 255  // NAME_MAX
)

// whiteout begins the name of a file that removes another one when a layer is
// unpacked (OCI image specification, layer.md).
const whiteout = ".wh."

// tree is the content of one layer. The content of files lies in a spool, a
// file without a name.
type tree struct {
	nodes  map[string]*node
	spool  *os.File
	size   int64
	inodes int
	// The limits of this tree.
	maxEntries int
	maxBytes   int64
	// canonical is where a path leads when top directories are links; nil: there
	// are none.
	canonical func(string) string
	dropped   Dropped
}

// Dropped counts what was not taken over into the image.
type Dropped struct {
	SetID        int `json:"setid,omitempty"`        // files and directories that lost setuid or setgid
	Capabilities int `json:"capabilities,omitempty"` // files that lost file capabilities
	Special      int `json:"special,omitempty"`      // devices, pipes and sockets
}

func (d Dropped) plus(o Dropped) Dropped {
	return Dropped{d.SetID + o.SetID, d.Capabilities + o.Capabilities, d.Special + o.Special}
}

// node is one file, directory or symbolic link.
type node struct {
	kind   byte  // tar.TypeReg, tar.TypeDir or tar.TypeSymlink
	mode   int64 // permission bits, and the sticky bit of a directory
	target string
	// inode is the same for all names of one file.
	inode       int
	offset, len int64 // in the spool
}

// newTree makes a tree whose spool lies in dir.
func newTree(dir string) (*tree, error) {
	f, err := os.CreateTemp(dir, "kick-image-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &tree{nodes: map[string]*node{}, spool: f, maxEntries: maxEntries, maxBytes: maxBytes}, nil
}

func (t *tree) close() error { return t.spool.Close() }

// clean checks a path of an archive and returns it relative to the root and
// through the links of top directories. The root itself is "".
func (t *tree) clean(p string) (string, error) {
	switch {
	case len(p) > maxPath:
		return "", fmt.Errorf("a path of %d bytes, more than %d: %.60q", len(p), maxPath, p)
	case strings.ContainsRune(p, 0):
		return "", fmt.Errorf("a path with a NUL byte: %.60q", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "..":
			return "", fmt.Errorf("a path that leads up: %q", p)
		case len(part) > maxName:
			return "", fmt.Errorf("a name of %d bytes, more than %d: %.60q", len(part), maxName, p)
		case strings.HasPrefix(part, whiteout):
			return "", fmt.Errorf("%q begins with %s, which in an image removes a file: rename it", p, whiteout)
		}
	}
	p = strings.TrimPrefix(path.Clean("/"+p), "/")
	if t.canonical != nil {
		p = t.canonical(p)
	}
	return p, nil
}

// header adds one entry of an archive, whose content r has.
func (t *tree) header(h *tar.Header, r io.Reader) error {
	if _, has := h.PAXRecords["SCHILY.xattr.security.capability"]; has {
		t.dropped.Capabilities++
	}
	mode := h.Mode & 0o7777
	switch h.Typeflag {
	case tar.TypeReg:
		return t.file(h.Name, mode, r)
	case tar.TypeDir:
		return t.dir(h.Name, mode)
	case tar.TypeSymlink:
		return t.symlink(h.Name, h.Linkname)
	case tar.TypeLink:
		return t.link(h.Name, h.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		t.dropped.Special++
		return nil
	case tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("%q is of type %q, which kick does not know", h.Name, h.Typeflag)
}

func (t *tree) file(name string, mode int64, r io.Reader) error {
	n := &node{kind: tar.TypeReg, mode: t.plain(mode), inode: t.inodes, offset: t.size}
	t.inodes++
	var err error
	if n.len, err = io.Copy(io.NewOffsetWriter(t.spool, t.size), io.LimitReader(r, t.maxBytes-t.size+1)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if t.size += n.len; t.size > t.maxBytes {
		return fmt.Errorf("more than %d bytes in files", t.maxBytes)
	}
	return t.put(name, n)
}

func (t *tree) dir(name string, mode int64) error {
	sticky := mode & 0o1000
	return t.put(name, &node{kind: tar.TypeDir, mode: t.plain(mode) | sticky})
}

func (t *tree) symlink(name, target string) error {
	if target == "" || len(target) > maxPath || strings.ContainsRune(target, 0) {
		return fmt.Errorf("%s is a link to no path: %.60q", name, target)
	}
	return t.put(name, &node{kind: tar.TypeSymlink, mode: 0o777, target: target})
}

// link adds a further name of a file.
func (t *tree) link(name, to string) error {
	p, err := t.clean(to)
	if err != nil {
		return err
	}
	n := t.nodes[p]
	if n == nil || n.kind != tar.TypeReg {
		return fmt.Errorf("%s is a hard link to %s, which is no file before it in the archive", name, to)
	}
	other := *n
	return t.put(name, &other)
}

// plain drops setuid, setgid and sticky.
func (t *tree) plain(mode int64) int64 {
	if mode&0o6000 != 0 {
		t.dropped.SetID++
	}
	return mode & 0o777
}

func (t *tree) put(name string, n *node) error {
	p, err := t.clean(name)
	if err != nil {
		return err
	}
	if p == "" {
		if n.kind != tar.TypeDir {
			return fmt.Errorf("%q is the root and no directory", name)
		}
		return nil
	}
	if err := t.parents(p); err != nil {
		return err
	}
	if old := t.nodes[p]; old != nil && (old.kind == tar.TypeDir) != (n.kind == tar.TypeDir) {
		return fmt.Errorf("%q stands twice, once as a directory", name)
	}
	t.nodes[p] = n
	if len(t.nodes) > t.maxEntries {
		return fmt.Errorf("more than %d files", t.maxEntries)
	}
	return nil
}

// parents makes the directories above p that are missing.
func (t *tree) parents(p string) error {
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		switch n := t.nodes[dir]; {
		case n == nil:
			t.nodes[dir] = &node{kind: tar.TypeDir, mode: 0o755}
		case n.kind != tar.TypeDir:
			return fmt.Errorf("%q lies below %q, which is no directory", p, dir)
		default:
			return nil
		}
	}
	return nil
}

// text adds a file that kick makes.
func (t *tree) text(name, content string) error {
	return t.file(name, 0o644, strings.NewReader(content))
}

// has tells whether there is something of that name.
func (t *tree) has(name string) bool { return t.nodes[name] != nil }

// open reads a file of the tree.
func (t *tree) open(name string) (io.Reader, bool) {
	n := t.nodes[name]
	if n == nil || n.kind != tar.TypeReg {
		return nil, false
	}
	return io.NewSectionReader(t.spool, n.offset, n.len), true
}

// old is the text of a file that kick adds to, with an end of its last line. It is
// empty if there is no such file.
func (t *tree) old(name string) (string, error) {
	r, ok := t.open(name)
	if !ok {
		return "", nil
	}
	text, err := io.ReadAll(io.LimitReader(r, 1<<20))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	return string(text), err
}

// below returns the paths of all files below a directory, in order.
func (t *tree) below(dir string) []string {
	var found []string
	for p, n := range t.nodes {
		if n.kind == tar.TypeReg && strings.HasPrefix(p, dir+"/") {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	return found
}

// write writes the tree as the tar of a layer. The same tree gives the same
// bytes: entries are sorted, everything belongs to root, and has one time.
func (t *tree) write(w io.Writer, at time.Time) error {
	tw := tar.NewWriter(w)
	first := map[int]string{}
	for _, p := range sortedPaths(t.nodes) {
		n := t.nodes[p]
		h := &tar.Header{Typeflag: n.kind, Name: p, Mode: n.mode, Linkname: n.target, ModTime: at}
		switch n.kind {
		case tar.TypeDir:
			h.Name += "/"
		case tar.TypeReg:
			if to, again := first[n.inode]; again {
				h.Typeflag, h.Linkname = tar.TypeLink, to
				break
			}
			first[n.inode] = p
			h.Size = n.len
		}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if h.Size > 0 {
			if _, err := io.Copy(tw, io.NewSectionReader(t.spool, n.offset, n.len)); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
	}
	return tw.Close()
}

// sortedPaths sorts by name after name, so that a directory stands right before
// what is in it.
func sortedPaths(nodes map[string]*node) []string {
	return slices.SortedFunc(maps.Keys(nodes), func(a, b string) int {
		n := min(len(a), len(b))
		for i := range n {
			if a[i] != b[i] {
				return cmp.Compare(rank(a[i]), rank(b[i]))
			}
		}
		return cmp.Compare(len(a), len(b))
	})
}

func rank(c byte) int {
	if c == '/' {
		return math.MinInt
	}
	return int(c)
}
