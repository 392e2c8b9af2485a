package scan

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
)

// unpacker opens one kind of compressed bytes. A further kind is a further row.
// What is packed and not compressed (tar, ar, stored members of a zip archive)
// needs none: it is searched as it stands, and so are the names in an archive.
// bzip2 has none: it decodes 12 MB/s, so that one file could cost five seconds;
// it is one of the closed.
type unpacker struct {
	name  string
	magic string // with which such bytes begin
	rare  int    // which byte of magic is rarest in text
	// open returns a reader of what data, which begins with magic, holds; in
	// reads data, and is behind the stream when that is read to its end. errOpaque says that data is of this kind and cannot be opened.
	open func(b *budget, data []byte, in *bytes.Reader) (io.Reader, error)
}

var unpackers = []unpacker{
	{"gzip", "\x1f\x8b\x08", 0, openGzip},
	{"zip", "PK\x03\x04", 2, openZipMember},
	{"xz", "\xfd7zXZ\x00", 0, openXZ},
	{"zstd", "\x28\xb5\x2f\xfd", 3, openZstd},
	{"zlib", "x\x01", 1, openZlib}, {"zlib", "x^", 1, openZlib}, {"zlib", "x\x9c", 1, openZlib}, {"zlib", "x\xda", 1, openZlib},
}

// next returns where the next magic bytes in b are, or -1.
func (u *unpacker) next(b []byte) int {
	for at := u.rare; at < len(b); at++ {
		i := bytes.IndexByte(b[at:], u.magic[u.rare])
		if i < 0 {
			return -1
		}
		at += i
		if b[at-u.rare] == u.magic[0] && bytes.HasPrefix(b[at-u.rare:], []byte(u.magic)) {
			return at - u.rare
		}
	}
	return -1
}

// closed are the first bytes of what compresses and is not opened here. A file,
// or a member of an archive, that begins so asks for a review.
var closed = []struct{ name, magic string }{
	{"bzip2", "BZh"}, {"7z", "7z\xbc\xaf\x27\x1c"}, {"rar", "Rar!\x1a\x07"}, {"lz4", "\x04\x22\x4d\x18"}, {"lz4", "\x02\x21\x4c\x18"},
	{"lzip", "LZIP\x01"}, {"lzma", "\x5d\x00\x00\x80\x00"}, {"cabinet", "MSCF\x00\x00\x00\x00"}, {"compress", "\x1f\x9d\x90"},
}

// closedKind names the kind of closed bytes that data is, or is empty.
func closedKind(data []byte) string {
	for _, c := range closed {
		if !bytes.HasPrefix(data, []byte(c.magic)) {
			continue
		}
		// "BZh" may begin a text: a block's mark, or the stream's end, follows the level.
		if c.name == "bzip2" && (len(data) < 10 || string(data[4:10]) != "1AY&SY" && string(data[4:10]) != "\x17\x72\x45\x38\x50\x90") {
			continue
		}
		return c.name
	}
	return ""
}

// errOpaque says that bytes are compressed or encrypted in a way that cannot be
// undone here.
var errOpaque = errors.New("cannot be opened")

// maxWindow caps what xz and zstd keep of what they decoded: the windows of
// xz -9 (64 MiB) and of zstd -19 (8 MiB) pass, those of zstd --ultra --long do not.
const maxWindow = 64 << 20

// minPacked is how many bytes a stream of a kind has at least.
const minPacked = 16

// packed reports whether data holds the magic bytes of a kind.
func packed(data []byte) bool {
	if len(data) < minPacked {
		return false
	}
	for i := range unpackers {
		if unpackers[i].next(data) >= 0 {
			return true
		}
	}
	return false
}

// maxQuine is the longest content that is compared with what was unpacked before:
// there are archives that hold themselves. The budget ends longer ones.
const maxQuine = 64 << 10

// openCost is what one attempt to open takes from the budget of bytes; most
// fail at once, and hostile bytes may hold a magic every three bytes.
const openCost = 1 << 10

// unpack returns a view of each compressed stream in v's text, wherever in it
// the stream begins: neither name nor place decides, only magic bytes. Of a zip
// archive every member is found by its own header, also one that the archive's
// directory does not list. Archives in archives are bounded by the budget alone.
func unpack(v *view, b *budget) []*view {
	var children []*view
	for i := range unpackers {
		u := &unpackers[i]
		for at := 0; ; {
			next := u.next(v.text[at:])
			if next < 0 {
				break
			}
			at += next
			if !b.take(openCost) {
				return children
			}
			content, used, opaque := u.unpack(v.text, at, b)
			if opaque && v.depth == 0 { // elsewhere chance bytes look so
				b.opaque = u.name
			}
			if len(content) > 0 && (len(content) > maxQuine || b.first(content, v.depth)) {
				children = append(children, &view{text: content, depth: v.depth, parent: v, whole: span{at, at}, how: u.name})
			}
			if b.spent != "" {
				return children
			}
			at += used
		}
	}
	return children
}

// unpack returns what the stream at text[at] holds, and after how many bytes to
// look for more: behind the stream if it is sound, else after its first byte.
// What is damaged counts up to where the damage is.
func (u *unpacker) unpack(text []byte, at int, b *budget) (content []byte, used int, opaque bool) {
	data := text[at:]
	in := bytes.NewReader(data)
	r, err := u.open(b, data, in)
	if err == nil {
		if bytes.HasSuffix(text[:at], []byte("IDAT")) {
			r = io.LimitReader(r, maxPixels)
		}
		content, err = b.read(r)
	}
	if err == nil {
		return content, max(len(data)-in.Len(), 1), false
	}
	for _, known := range []error{errOpaque, xz.ErrMemlimit, xz.ErrOptions, zstd.ErrUnknownDictionary, zstd.ErrWindowSizeExceeded} {
		opaque = opaque || errors.Is(err, known)
	}
	return content, 1, opaque
}

// maxPixels caps what is read of the pixels of a PNG image, of which there may
// be more than the budget allows.
const maxPixels = 256 << 10

// openZlib opens what zlib compresses: streams of Python and git, of PDF, and
// of PNG, of whose pixels the first are searched.
func openZlib(b *budget, _ []byte, in *bytes.Reader) (io.Reader, error) {
	if b.zlib == nil {
		var err error
		b.zlib, err = zlib.NewReader(in)
		return b.zlib, err
	}
	return b.zlib, b.zlib.(zlib.Resetter).Reset(in, nil)
}

func openGzip(_ *budget, _ []byte, in *bytes.Reader) (io.Reader, error) {
	return gzip.NewReader(in)
}

// openXZ and openZstd use one decoder for all of an item's streams: each
// stream may ask for a window of 64 MiB.
func openXZ(b *budget, _ []byte, in *bytes.Reader) (io.Reader, error) {
	if b.xz == nil {
		var err error
		b.xz, err = xz.NewReader(in, maxWindow)
		return b.xz, err
	}
	return b.xz, b.xz.Reset(in)
}

func openZstd(b *budget, _ []byte, in *bytes.Reader) (io.Reader, error) {
	if b.zstd == nil {
		var err error
		b.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.IgnoreChecksum(true))
		if err != nil {
			return nil, err
		}
	}
	return b.zstd, b.zstd.Reset(in)
}

// openZipMember opens the member whose local header begins data (APPNOTE.TXT,
// 4.3.7). One that is compressed as another kind is found by that kind's magic.
func openZipMember(_ *budget, data []byte, in *bytes.Reader) (io.Reader, error) {
	const header, stored, deflated, zstandard, xzip = 30, 0, 8, 93, 95
	if len(data) < header {
		return nil, io.ErrUnexpectedEOF
	}
	field := func(at int) int { return int(binary.LittleEndian.Uint16(data[at:])) }
	begin := header + field(26) + field(28)
	if version := field(4); begin > len(data) || version > 63 { // 63 is the newest: these are chance bytes
		return nil, io.ErrUnexpectedEOF
	}
	if _, err := in.Seek(int64(begin), io.SeekStart); err != nil {
		return nil, err
	}
	switch method := field(8); {
	case field(6)&1 != 0: // encrypted
		return nil, errOpaque
	case method == deflated:
		return flate.NewReader(in), nil
	case method == stored:
		// By itself, so that neither the name nor the next header touches it.
		// Its size may stand behind it, and be wrong.
		return bytes.NewReader(data[begin : begin+nextHeader(data[begin:])]), nil
	case method == zstandard, method == xzip:
		return bytes.NewReader(nil), nil
	default:
		return nil, errOpaque
	}
}

// nextHeader returns where the next header of a zip archive begins in b.
func nextHeader(b []byte) int {
	for at := 0; ; at += len("PK") {
		next := bytes.Index(b[at:], []byte("PK"))
		if next < 0 || at+next+4 > len(b) {
			return len(b)
		}
		at += next
		switch string(b[at+2 : at+4]) {
		case "\x01\x02", "\x03\x04", "\x07\x08":
			return at
		}
	}
}
