package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kickhq/kick/internal/frame"
)

// receive takes the workspace from the host: its files, and the objects of the
// base where the sandbox would see them otherwise. Nothing of an agent has run yet,
// and the host is believed; os.Root keeps a mistake within the workspace.
func receive(in *frame.Reader, cfg frame.Config) error {
	files := &parts{in: in, kind: frame.Files}
	if err := unpack(files, cfg.WorkDir); err != nil {
		return err
	}
	if cfg.Objects != "" {
		baseObjects = cfg.Objects
		if err := borrow(cfg.WorkDir); err != nil {
			return err
		}
	}
	next := files
	if files.next == frame.Pack {
		next = &parts{in: in, kind: frame.Pack, rest: files.payload}
		if err := indexPack(next, cfg); err != nil {
			return err
		}
	}
	switch {
	case next.next == frame.Stop:
		return errors.New("stopped by the host before the command started")
	case next.next != frame.Whole:
		return fmt.Errorf("frame %q where the end of the workspace was due", next.next)
	}
	return nil
}

// borrow has the workspace borrow objects from where this program puts them, if it
// borrows any.
func borrow(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	const alternates = ".git/objects/info/alternates"
	if _, err := root.Lstat(alternates); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return root.WriteFile(alternates, []byte(baseObjects+"\n"), 0o644)
}

// parts reads the payloads of frames of one kind, up to the first of another.
type parts struct {
	in      *frame.Reader
	kind    frame.Type
	rest    []byte
	next    frame.Type // the other kind; 0 before it has come
	payload []byte     // and what is in it
}

func (p *parts) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if p.next != 0 {
			return 0, io.EOF
		}
		t, payload, err := p.in.Read()
		switch {
		case errors.Is(err, io.EOF):
			return 0, io.ErrUnexpectedEOF
		case err != nil:
			return 0, err
		case t == p.kind:
			p.rest = payload
		default:
			p.next, p.payload = t, append([]byte(nil), payload...)
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// unpack makes the files of a tar in dir, and reads to the end of the parts.
func unpack(in *parts, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	files := tar.NewReader(in)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, in)
			return err
		}
		if err == nil {
			err = unpackFile(root, h, files)
		}
		if err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
	}
}

func unpackFile(root *os.Root, h *tar.Header, content io.Reader) error {
	name, mode := filepath.Clean(h.Name), fs.FileMode(h.Mode)&fs.ModePerm
	switch h.Typeflag {
	case tar.TypeDir:
		if name == "." {
			return nil // the launcher has made it
		}
		return root.Mkdir(name, mode|0o700)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode|0o200)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Chmod(mode), f.Close())
	}
	return fmt.Errorf("%s is of the kind %q", name, h.Typeflag)
}

// indexPack puts the objects of the base where the workspace borrows them from.
func indexPack(pack io.Reader, cfg frame.Config) error {
	git, err := findGit(cfg)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(baseObjects, "pack"), 0o755); err != nil {
		return err
	}
	r := runner{git: git, dir: cfg.WorkDir, max: checkoutMax,
		env: append(gitEnv(), "GIT_DIR="+cfg.WorkDir+"/.git", "GIT_OBJECT_DIRECTORY="+baseObjects)}
	// Neither is anything synced: the sandbox does not outlive its kick.
	_, err = r.run(context.Background(), pack, "-c", "core.fsync=none", "index-pack", "--stdin", "--threads=2")
	return err
}
