package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/kickhq/kick/internal/frame"
)

// maxArchiveDepth is how deep directories are followed; each level holds one
// descriptor.
const maxArchiveDepth = 256

// archive writes a tar of a hostile tree: files, directories and symbolic
// links as they lie there, nothing followed, nothing else.
type archive struct {
	tar   *tar.Writer
	room  int64 // for contents; used when limited
	limit bool
	left  int // left out
	first string
}

// sendArchive sends the uncommitted files, if there are any, or the whole work
// tree where git could not tell. An archive that leaves something out ends as
// broken off, with what is missing.
func (c *collector) sendArchive() error {
	if c.root == nil || !c.whole && len(c.dirt.files)+len(c.dirt.nested) == 0 {
		return nil
	}
	return c.send(dirtyArchive, "", func(w io.Writer) error {
		a := &archive{tar: tar.NewWriter(w), room: c.cfg.ArtifactMax, limit: c.cfg.ArtifactMax > 0}
		if err := a.write(c); err != nil {
			return err
		}
		if err := a.tar.Close(); err != nil {
			return err
		}
		if a.left > 0 {
			return fmt.Errorf("%d paths are left out, the first is %q: unreadable, too large or too deep", a.left, clip(a.first, 200))
		}
		return nil
	})
}

func (a *archive) write(c *collector) error {
	if c.whole {
		if err := a.children(c.root, "", 0); err != nil || c.view != nil && !c.sum.partial {
			return err
		}
		return a.repository(c.root)
	}
	for _, p := range c.dirt.files {
		if err := a.add(c.root, p, p, 0); err != nil {
			return err
		}
	}
	for _, p := range c.dirt.nested {
		if err := a.add(c.root, p, p, 0); err != nil {
			return err
		}
	}
	return nil
}

func (a *archive) leave(name string) error {
	if a.left++; a.left == 1 {
		a.first = name
	}
	return nil
}

// keptRepository is where the repository is in an archive, if git could not
// read it: not under a name that git would take for a repository's, and one
// that nothing else in the archive has.
const keptRepository = hiveDir + "/git"

// repository adds the repository as it lies there: there may be commits in it
// that are nowhere else.
func (a *archive) repository(root *os.Root) error {
	info, err := root.Lstat(".git")
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil // a link or a file says where it went; what is in the work tree is kept anyway
	}
	return a.add(root, ".git", keptRepository, 0)
}

// children adds all that is in a directory. The repository and what kick keeps
// in .hive are left out at the top.
func (a *archive) children(dir *os.Root, prefix string, depth int) error {
	if depth > maxArchiveDepth {
		return a.leave(prefix)
	}
	f, err := dir.Open(".")
	if err != nil {
		return a.leave(prefix)
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(1000)
		for _, name := range names {
			if prefix == "" && (name == ".git" || name == hiveDir) {
				continue
			}
			if err := a.add(dir, name, prefix+name, depth); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return a.leave(prefix)
		}
	}
}

// add adds the entry name of dir as full. Its error is of the archive's writer.
func (a *archive) add(dir *os.Root, name, full string, depth int) error {
	info, err := dir.Lstat(name)
	if err != nil {
		return a.leave(full)
	}
	h := &tar.Header{Name: full, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch info.Mode().Type() {
	case 0:
		return a.addFile(dir, name, h)
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = dir.Readlink(name); err != nil {
			return a.leave(full)
		}
		return a.header(h)
	case fs.ModeDir:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
		if err := a.header(h); err != nil {
			return err
		}
		sub, err := dir.OpenRoot(name)
		if err != nil {
			return a.leave(full)
		}
		defer sub.Close()
		return a.children(sub, full+"/", depth+1)
	default:
		return nil // a device, FIFO or socket has no content, so nothing is lost
	}
}

// header writes h. What tar cannot express is left out.
func (a *archive) header(h *tar.Header) error {
	err := a.tar.WriteHeader(h)
	if errors.Is(err, tar.ErrHeader) {
		return a.leave(h.Name)
	}
	return err
}

func (a *archive) addFile(dir *os.Root, name string, h *tar.Header) error {
	f, info, err := openRegular(dir, name)
	if err != nil {
		return a.leave(h.Name)
	}
	defer f.Close()
	// A sparse file of a terabyte would fill the archive with nothing.
	if a.limit && info.Size() > a.room {
		return a.leave(h.Name)
	}
	a.room -= info.Size()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	left := a.left
	if err := a.header(h); err != nil || a.left > left {
		return err
	}
	n, err := io.Copy(a.tar, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%q ended after %d of %d bytes", clip(h.Name, 200), n, h.Size)
	}
	return err
}

// maxReports is how many reports are sent.
const maxReports = 16

// findReports returns the paths of the agent's reports. Where both directories
// have one of a name, that in .hive is taken: a commit may have brought the
// other.
func findReports(root *os.Root, sum *work) []string {
	var found []string
	seen := map[string]bool{}
	for _, dir := range []string{hiveDir, "."} {
		for _, name := range reportsIn(root, dir) {
			switch {
			case seen[name]:
			case len(found) == maxReports:
				sum.problem("more than %d agent reports: the others are left out", maxReports)
				return found
			default:
				seen[name] = true
				found = append(found, path.Join(dir, name))
			}
		}
	}
	return found
}

func reportsIn(root *os.Root, dir string) []string {
	if info, err := root.Lstat(dir); err != nil || !info.IsDir() {
		return nil
	}
	f, err := root.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	var names []string
	for {
		entries, err := f.ReadDir(1000)
		for _, e := range entries {
			if e.Type().IsRegular() && frame.IsReportName(e.Name()) && len(names) <= maxReports {
				names = append(names, e.Name())
			}
		}
		if err != nil || len(entries) == 0 {
			return names
		}
	}
}

func (c *collector) sendReports() error {
	for _, p := range c.reports {
		err := c.send(reportKind, path.Base(p), func(w io.Writer) error {
			b, err := readSmall(c.root, p, frame.MaxReportSize)
			if err != nil {
				return err
			}
			_, err = w.Write(b)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
