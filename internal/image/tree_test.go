package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"testing"
)

// entry is one of an archive: a header with its content.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content}
}

func dir(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func symlink(name, to string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}}
}

func hardlink(name, to string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}}
}

// archive writes a tar.
func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.Typeflag == tar.TypeReg {
			e.Size = int64(len(e.content))
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func emptyTree(t testing.TB) *tree {
	t.Helper()
	tr, err := newTree(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// list writes the tree as a layer, reads it again, and returns a line for each
// entry. It fails on what no layer may hold.
func list(t testing.TB, tr *tree) []string {
	t.Helper()
	var b bytes.Buffer
	if err := tr.write(&b, DefaultTime); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]byte{}
	var lines []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		p := strings.TrimSuffix(h.Name, "/")
		switch {
		case p == "" || path.Clean("/"+p) != "/"+p || strings.HasPrefix(path.Base(p), whiteout):
			t.Errorf("path %q", h.Name)
		case kinds[p] != 0:
			t.Errorf("%q stands twice", p)
		case path.Dir(p) != "." && kinds[path.Dir(p)] != tar.TypeDir:
			t.Errorf("%q has no directory before it", p)
		case h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "":
			t.Errorf("%q belongs to %d %d %q %q", p, h.Uid, h.Gid, h.Uname, h.Gname)
		case h.Mode&^0o1777 != 0 || h.Mode&0o1000 != 0 && h.Typeflag != tar.TypeDir:
			t.Errorf("%q has mode %o", p, h.Mode)
		case !h.ModTime.Equal(DefaultTime):
			t.Errorf("%q is of %v", p, h.ModTime)
		case h.Typeflag == tar.TypeLink && kinds[h.Linkname] != tar.TypeReg:
			t.Errorf("%q is a link to %q, which is no file before it", p, h.Linkname)
		}
		kinds[p] = h.Typeflag
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%c %o %s %s%s", h.Typeflag, h.Mode, h.Name, h.Linkname, content)))
	}
}

func TestArchive(t *testing.T) {
	t.Parallel()
	setuid := file("su", "x")
	setuid.Mode, setuid.Uid, setuid.Uname = 0o6755, 1000, "joe"
	sticky := dir("tmp")
	sticky.Mode = 0o3777
	capable := file("ping", "x")
	capable.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01"}
	device := entry{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "vda", Devmajor: 254}}
	pipe := entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}}
	for _, tc := range []struct {
		name    string
		entries []entry
		want    []string
		dropped Dropped
	}{
		{"sorted", []entry{file("b", "1"), dir("./"), file("a-b", "2"), file("./a/c", "3")}, []string{
			"5 755 a/", "0 644 a/c 3", "0 644 a-b 2", "0 644 b 1",
		}, Dropped{}},
		{"the last of a name counts", []entry{file("a", "1"), file("/a", "2")}, []string{"0 644 a 2"}, Dropped{}},
		{"a hard link that stands first has the content", []entry{file("z", "1"), hardlink("a", "./z"), hardlink("m", "z")}, []string{
			"0 644 a 1", "1 644 m a", "1 644 z a",
		}, Dropped{}},
		{"links may lead anywhere in the image", []entry{symlink("a", "../../etc/passwd"), symlink("b", "/nowhere")}, []string{
			"2 777 a ../../etc/passwd", "2 777 b /nowhere",
		}, Dropped{}},
		{"rights are dropped", []entry{setuid, sticky, capable}, []string{"0 644 ping x", "0 755 su x", "5 1777 tmp/"}, Dropped{SetID: 2, Capabilities: 1}},
		{"devices are dropped", []entry{device, pipe, file("a", "")}, []string{"0 644 a"}, Dropped{Special: 2}},
		{"names of all kinds", []entry{file("F\u0151 \\ 'x'\n", "1"), file("\xff", "2")}, []string{"0 644 F\u0151 \\ 'x'\n 1", "0 644 \xff 2"}, Dropped{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tr := emptyTree(t)
			if err := tr.archive(bytes.NewReader(archive(t, tc.entries...))); err != nil {
				t.Fatal(err)
			}
			if got := list(t, tr); strings.Join(got, "|") != strings.Join(tc.want, "|") {
				t.Errorf("%q\nwant %q", got, tc.want)
			}
			if tr.dropped != tc.dropped {
				t.Errorf("dropped %+v, want %+v", tr.dropped, tc.dropped)
			}
		})
	}
}

func TestHostileArchive(t *testing.T) {
	t.Parallel()
	whole := archive(t, file("a", strings.Repeat("x", 5000)))
	for _, tc := range []struct {
		name    string
		archive []byte
		want    string
	}{
		{"leads up", archive(t, file("a/../../etc/passwd", "x")), "leads up"},
		{"leads up in between", archive(t, file("a/../b", "x")), "leads up"},
		{"through a link", archive(t, symlink("a", "/etc"), file("a/passwd", "x")), `lies below "a", which is no directory`},
		{"below a file", archive(t, file("a", "x"), file("a/b", "x")), `lies below "a", which is no directory`},
		{"a link in place of a directory", archive(t, dir("a"), file("a/b", "x"), symlink("a", "/etc")), "stands twice"},
		{"a directory in place of a link", archive(t, symlink("a", "/etc"), dir("a")), "stands twice"},
		{"a root that is a file", archive(t, file(".", "x")), "the root"},
		{"a hard link to nothing", archive(t, hardlink("a", "/etc/shadow")), "no file before it"},
		{"a hard link to itself", archive(t, hardlink("a", "a")), "no file before it"},
		{"a hard link to a directory", archive(t, dir("d"), hardlink("a", "d")), "no file before it"},
		{"a hard link that leads up", archive(t, hardlink("a", "../../etc/shadow")), "leads up"},
		{"a hard link to a link", archive(t, symlink("l", "/etc/shadow"), hardlink("a", "l")), "no file before it"},
		{"removes a file of a lower layer", archive(t, file("etc/.wh.passwd", "")), ".wh."},
		{"removes all of a lower layer", archive(t, file("etc/.wh..wh..opq", "")), ".wh."},
		{"in a directory that removes", archive(t, file(".wh.x/a", "")), ".wh."},
		{"a long name", archive(t, file(strings.Repeat("n", 256), "x")), "name of 256 bytes"},
		{"a long path", archive(t, file(strings.Repeat("n/", 2100)+"n", "x")), "path of 4201 bytes"},
		{"too many files", archive(t, file("1", ""), file("2", ""), file("3", ""), file("4", ""), file("5", "")), "more than 4 files"},
		{"too many directories that stand nowhere", archive(t, file("1/2/3/4/5", "")), "more than 4 files"},
		{"too large", archive(t, file("1", strings.Repeat("x", 6000)), file("2", strings.Repeat("x", 6000))), "more than 10000 bytes"},
		{"cut", whole[:3000], "unexpected EOF"},
		{"no archive", []byte(strings.Repeat("x", 600)), "invalid tar header"},
		{"xz", []byte("\xfd7zXZ\x00"), "not with gzip"},
		{"gzip of nothing", []byte("\x1f\x8b"), "EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tr := emptyTree(t)
			tr.maxEntries, tr.maxBytes = 4, 10_000
			err := tr.archive(bytes.NewReader(tc.archive))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// FuzzArchive feeds hostile root file systems: what is taken makes a layer that
// holds list's rules, and the same one again.
func FuzzArchive(f *testing.F) {
	f.Add(archive(f, file("b", "1"), dir("a"), hardlink("a/c", "b"), symlink("d", "../x")))
	f.Add(archive(f, file("a/../b", "x")))
	f.Add(archive(f, symlink("a", "/etc"), file("a/passwd", "x")))
	f.Add(archive(f, file("etc/.wh.passwd", "")))
	f.Add([]byte("\x1f\x8b\x08"))
	f.Fuzz(func(t *testing.T, in []byte) {
		tr := emptyTree(t)
		tr.maxEntries, tr.maxBytes = 1000, 1<<20
		if tr.archive(bytes.NewReader(in)) != nil {
			return
		}
		list(t, tr)
		var one, two bytes.Buffer
		if err := errors.Join(tr.write(&one, DefaultTime), tr.write(&two, DefaultTime)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one.Bytes(), two.Bytes()) {
			t.Error("the same tree gave two layers")
		}
	})
}
