package sandbox

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/gitcmd"
)

// sendWorkspace gives the shim a workspace that it cannot see: the files of its
// directory, and a pack of what the base reaches. Both are kick's own; no agent
// has written to them.
func sendWorkspace(ctx context.Context, to *frame.Writer, w Workspace) error {
	if w.Dir != "" {
		out := bufio.NewWriterSize(to.Stream(frame.Files), frame.MaxPayload)
		if err := errors.Join(sendFiles(ctx, out, w.Dir), out.Flush()); err != nil {
			return fmt.Errorf("send the files of %s: %w", w.Dir, err)
		}
	}
	if w.BaseOID != "" && w.Objects != "" {
		if err := sendObjects(ctx, to.Stream(frame.Pack), w); err != nil {
			return fmt.Errorf("send the objects of %s: %w", w.BaseOID, err)
		}
	}
	return to.Write(frame.Whole, nil)
}

// sendFiles writes a tar of a directory.
func sendFiles(ctx context.Context, to io.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	out := tar.NewWriter(to)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err := errors.Join(err, context.Cause(ctx)); err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return sendFile(out, root, name, info)
	})
	return errors.Join(err, out.Close())
}

func sendFile(out *tar.Writer, root *os.Root, name string, info fs.FileInfo) error {
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), Typeflag: tar.TypeReg, Size: info.Size(), Format: tar.FormatPAX}
	switch kind := info.Mode().Type(); kind {
	case 0:
	case fs.ModeDir:
		h.Typeflag, h.Size = tar.TypeDir, 0
	case fs.ModeSymlink:
		to, err := root.Readlink(name)
		if err != nil {
			return err
		}
		h.Typeflag, h.Size, h.Linkname = tar.TypeSymlink, 0, to
	default:
		return fmt.Errorf("%s is neither a file, a directory nor a link (%s)", name, kind)
	}
	if err := out.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(out, f)
	return err
}

// sendObjects writes a pack with all that the base reaches. Deltas are taken as
// they are in the mirror.
func sendObjects(ctx context.Context, to io.Writer, w Workspace) error {
	git := gitcmd.Git{Dir: filepath.Dir(w.Objects), Env: []string{"GIT_OBJECT_DIRECTORY=" + w.Objects}, Config: []string{"pack.threads=2", "pack.window=0"}}
	out := bufio.NewWriterSize(to, frame.MaxPayload)
	err := git.Run(ctx, strings.NewReader(w.BaseOID+"\n"), out, "pack-objects", "--revs", "--stdout", "--delta-base-offset", "--quiet")
	return errors.Join(err, out.Flush())
}

// checkpointMS is how often a checkpoint is made, in milliseconds; 0: never.
func (w Workspace) checkpointMS() int64 {
	if w.Sink == nil || w.Dir == "" || w.Checkpoint < 0 {
		return 0
	}
	return cmp.Or(w.Checkpoint, time.Minute).Milliseconds()
}

// checkSent refuses what a workspace that is sent cannot be.
func checkSent(s *LaunchSpec) error {
	if w := s.Workspace; w.Objects != "" && path.Base(w.Objects) != "objects" {
		return specError("base objects", fmt.Errorf("%q is not the directory objects of a repository", w.Objects), "Name that")
	}
	return nil
}
