package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/frame"
)

// sent is what a host would send: the headers as a tar, each file with its name
// for content, and then further frames.
func sent(t *testing.T, headers []tar.Header, then ...frame.Type) *frame.Reader {
	t.Helper()
	var all bytes.Buffer
	w := frame.NewWriter(&all)
	files := tar.NewWriter(w.Stream(frame.Files))
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if err := files.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := files.Write([]byte(h.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	for _, f := range then {
		if err := w.Write(f, nil); err != nil {
			t.Fatal(err)
		}
	}
	return frame.NewReader(&all)
}

func TestReceive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := sent(t, []tar.Header{
		{Name: ".", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "d", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "d/program", Typeflag: tar.TypeReg, Mode: 0o755},
		{Name: "d/read-only", Typeflag: tar.TypeReg, Mode: 0o444},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
	}, frame.Whole)
	if err := receive(in, frame.Config{WorkDir: dir}); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"d/program": 0o755, "d/read-only": 0o444} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		info, err2 := os.Stat(filepath.Join(dir, name))
		if errors.Join(err, err2) != nil || string(b) != name || info.Mode() != mode {
			t.Errorf("%s: %q, mode %v, %v", name, b, info.Mode(), errors.Join(err, err2))
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "link")); err != nil || to != "/etc" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
}

func TestReceiveRefuses(t *testing.T) {
	t.Parallel()
	file := tar.Header{Name: "x", Typeflag: tar.TypeReg, Mode: 0o644}
	for name, c := range map[string]struct {
		in   *frame.Reader
		want string
	}{
		"a way out":             {sent(t, []tar.Header{{Name: "../x", Typeflag: tar.TypeReg, Mode: 0o644}}, frame.Whole), "escapes"},
		"a way out over a link": {sent(t, []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/x", Typeflag: tar.TypeReg}}, frame.Whole), "escapes"},
		"a device":              {sent(t, []tar.Header{{Name: "dev", Typeflag: tar.TypeChar}}, frame.Whole), "kind"},
		"a file twice":          {sent(t, []tar.Header{file, file}, frame.Whole), "exists"},
		"another frame":         {sent(t, []tar.Header{file}, frame.Ack), "was due"},
		"the word to stop":      {sent(t, []tar.Header{file}, frame.Stop), "stopped by the host"},
		"no end":                {sent(t, []tar.Header{file}), io.ErrUnexpectedEOF.Error()},
	} {
		if err := receive(c.in, frame.Config{WorkDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// What an agent has locked is opened for the collector, and nothing that a link
// leads to.
func TestOpenUp(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	deep := filepath.Join(dir, "a/b")
	if err := errors.Join(os.MkdirAll(deep, 0o755), os.WriteFile(filepath.Join(deep, "f"), nil, 0), os.Chmod(deep, 0),
		os.Chmod(other, 0), os.Symlink(other, filepath.Join(dir, "link")), os.Chmod(dir, 0)); err != nil {
		t.Fatal(err)
	}
	openUp(dir)
	for name, want := range map[string]os.FileMode{dir: 0o700, deep: 0o700, filepath.Join(deep, "f"): 0o400, other: 0} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", name, info, err, want)
		}
	}
}
