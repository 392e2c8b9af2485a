package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// rootfs reads a root file system: a directory, or a tar file, which may be
// compressed with gzip.
func (t *tree) rootfs(from string) error {
	f, err := os.Open(from)
	if err != nil {
		return &InputError{fmt.Sprintf("root file system: %v", err)}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = t.directory(from)
	} else {
		err = t.archive(f)
	}
	if err != nil {
		return &InputError{fmt.Sprintf("root file system %s: %v", from, err)}
	}
	if len(t.nodes) == 0 {
		return &InputError{fmt.Sprintf("root file system %s: it is empty", from)}
	}
	return nil
}

// archive reads a tar, plain or in gzip.
func (t *tree) archive(r io.Reader) error {
	in := bufio.NewReaderSize(r, 1<<20)
	switch magic, _ := in.Peek(6); { // a short file is no archive, which the reader below says
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		return t.entries(z, nil)
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ")), bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), bytes.HasPrefix(magic, []byte("BZh")):
		return errors.New("it is compressed, and not with gzip: give the plain tar")
	}
	return t.entries(in, nil)
}

// entries adds what a tar holds, but for the paths that skip names.
func (t *tree) entries(r io.Reader, skip func(path string) bool) error {
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if skip != nil && skip(strings.TrimPrefix(path.Clean("/"+h.Name), "/")) {
			continue
		}
		if err := t.header(h, in); err != nil {
			return err
		}
	}
}

// directory reads a directory and follows no link in it.
func (t *tree) directory(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	inodes := map[inode]string{}
	return fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := int64(info.Mode().Perm())
		if info.Mode()&fs.ModeSetuid != 0 {
			mode |= 0o4000
		}
		if info.Mode()&fs.ModeSetgid != 0 {
			mode |= 0o2000
		}
		if info.Mode()&fs.ModeSticky != 0 {
			mode |= 0o1000
		}
		switch info.Mode().Type() {
		case 0:
			id, several := inodeOf(info)
			if to, again := inodes[id]; several && again {
				return t.link(p, to)
			}
			if capable(filepath.Join(dir, p)) {
				t.dropped.Capabilities++
			}
			f, err := root.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			inodes[id] = p
			return t.file(p, mode, f)
		case fs.ModeDir:
			return t.dir(p, mode)
		case fs.ModeSymlink:
			to, err := root.Readlink(p)
			if err != nil {
				return err
			}
			return t.symlink(p, to)
		}
		t.dropped.Special++
		return nil
	})
}

// inode is a file, whatever its names.
type inode struct{ dev, ino uint64 }

// inodeOf returns the file's identity and whether it has several names.
func inodeOf(info fs.FileInfo) (inode, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}, false
	}
	return inode{st.Dev, st.Ino}, st.Nlink > 1
}

// capable tells whether a file has file capabilities.
func capable(path string) bool {
	n, err := unix.Lgetxattr(path, "security.capability", nil)
	return err == nil && n > 0
}
