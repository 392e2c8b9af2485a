package scan

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// unpacker opens one kind of compressed or packed bytes. A further kind is a
// further row.
type unpacker struct {
	name string
	// find returns where such bytes begin in data, or -1.
	find func(data []byte) int
	// open calls member with the content of each member, and the name that the
	// archive gives it. Its error ends the archive; what came before counts.
	open func(data []byte, member func(name string, r io.Reader) error) error
}

var unpackers = []unpacker{
	{"gzip", magic("\x1f\x8b\x08"), openGzip},
	{"zip", magic("PK\x03\x04"), openZip},
}

func magic(prefix string) func([]byte) int {
	return func(data []byte) int { return bytes.Index(data, []byte(prefix)) }
}

// packed reports whether data begins with the magic bytes of an archive.
func packed(data []byte) bool {
	for _, u := range unpackers {
		if u.find(data[:min(len(data), 4)]) == 0 {
			return true
		}
	}
	return false
}

// maxStreams caps how many places of one text are tried for one kind.
const maxStreams = 64

// unpack returns a view of each member of each archive in v's text, wherever
// in it the archive begins: neither name nor place decides, only magic bytes.
func unpack(v *view, b *budget) []*view {
	var children []*view
	for _, u := range unpackers {
		data, at := v.text, 0
		for range maxStreams {
			i := u.find(data[at:])
			if i < 0 {
				break
			}
			at += i
			members := 0
			err := u.open(data[at:], func(name string, r io.Reader) error {
				content, err := b.read(r)
				members++
				if len(content) > 0 {
					children = append(children, &view{text: content, depth: v.depth + 1, parent: v, whole: span{at, at}, how: u.name})
				}
				if name != "" {
					children = append(children, &view{text: []byte(name), depth: maxDepth, parent: v, whole: span{at, at}, how: u.name})
				}
				return err
			})
			if err == nil && u.name == "zip" {
				break // the directory at the end covers all
			}
			at++
		}
	}
	return children
}

func openGzip(data []byte, member func(string, io.Reader) error) error {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return member(z.Name+"\n"+z.Comment, z)
}

func openZip(data []byte, member func(string, io.Reader) error) error {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	if len(z.File) > maxMembers {
		return errTooMany{len(z.File)}
	}
	for _, f := range z.File {
		text := f.Name + "\n" + f.Comment
		r, err := f.Open()
		if err != nil { // encrypted, or a method that is not known
			r = io.NopCloser(bytes.NewReader(nil))
		}
		err = member(text, r)
		r.Close()
		if err != nil {
			return err
		}
	}
	return member(z.Comment, bytes.NewReader(nil))
}

// maxMembers caps the members of one archive.
const maxMembers = 10_000

type errTooMany struct{ n int }

func (e errTooMany) Error() string { return fmt.Sprintf("an archive of %d members", e.n) }
