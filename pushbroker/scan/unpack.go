package scan

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// unpacker opens one kind of compressed or packed bytes. A further kind is a
// further row.
type unpacker struct {
	name string
	// whole says that opening it where it first begins opens all that follows.
	whole bool
	// find returns where such bytes begin in data, or -1.
	find func(data []byte) int
	// open calls member with the content of each member, and the name that the
	// archive gives it. Its error ends the archive; what came before counts.
	open func(data []byte, member func(name string, r io.Reader) error) error
}

var unpackers = []unpacker{
	{name: "gzip", find: magic("\x1f\x8b\x08"), open: openGzip},
	{name: "zip", whole: true, find: magic("PK\x03\x04"), open: openZip},
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
			err := u.open(data[at:], func(name string, r io.Reader) error {
				content, err := b.read(r)
				if len(content) > 0 {
					children = append(children, &view{text: content, depth: v.depth + 1, parent: v, whole: span{at, at}, how: u.name})
				}
				if name != "" {
					children = append(children, &view{text: []byte(name), depth: maxDepth, parent: v, whole: span{at, at}, how: u.name})
				}
				return err
			})
			switch {
			case errors.As(err, new(errTooMany)):
				b.exceed("archive members")
			case err == nil && u.whole, b.spent != "":
				return children
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
		return openZipMember(data, member)
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

// openZipMember opens the one member whose local header begins data, for an
// archive whose directory is cut off or wrong. unpack finds the next one.
func openZipMember(data []byte, member func(string, io.Reader) error) error {
	const header = 30 // APPNOTE.TXT, 4.3.7
	if len(data) < header {
		return io.ErrUnexpectedEOF
	}
	field := func(at int) int { return int(binary.LittleEndian.Uint16(data[at:])) }
	begin := header + field(26) + field(28)
	if begin > len(data) {
		return io.ErrUnexpectedEOF
	}
	if field(8) != int(zip.Deflate) {
		return zip.ErrAlgorithm // stored members are searched as they stand
	}
	r := flate.NewReader(bytes.NewReader(data[begin:]))
	if err := member(string(data[header:header+field(26)]), r); err != nil {
		return err
	}
	return zip.ErrFormat // there may be another one behind
}

// maxMembers caps the members of one archive.
const maxMembers = 10_000

type errTooMany struct{ n int }

func (e errTooMany) Error() string { return fmt.Sprintf("an archive of %d members", e.n) }
