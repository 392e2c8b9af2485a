package scan

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
)

// budget bounds what searching one item may cost. It counts bytes and not time,
// so that the same item gets the same findings on a slow machine. When it is
// spent, the search stops and the item gets a finding that says so.
type budget struct {
	ctx   context.Context
	left  int64  // decoded bytes
	work  int64  // bytes that expressions may still read
	spent string // why the search stopped early; empty: it did not
	// opaque is the kind of what could not be opened; empty: nothing.
	opaque string

	seen  map[unpacked]bool
	chunk []byte     // for what is read first
	xz    *xz.Reader // nil before the first stream
	zlib  io.ReadCloser
	zstd  *zstd.Decoder
}

// errSpent ends a search whose budget is spent.
var errSpent = errors.New("the item's budget is spent")

// take asks for n more decoded bytes.
func (b *budget) take(n int) bool {
	if b.spent != "" {
		return false
	}
	if b.left -= int64(n); b.left < 0 {
		b.exceed("it decodes to too many bytes")
		return false
	}
	return true
}

// match asks for an expression to read n bytes.
func (b *budget) match(n int) error {
	if err := b.ctx.Err(); err != nil {
		return err
	}
	if b.work -= int64(n); b.work < 0 {
		b.exceed("too much of it looks like a secret")
		return errSpent
	}
	return nil
}

func (b *budget) exceed(why string) {
	if b.spent == "" {
		b.spent = why
	}
}

// first reports whether content was not unpacked before at this depth.
func (b *budget) first(content []byte, depth int) bool {
	key := unpacked{sha256.Sum256(content), depth}
	if b.seen[key] {
		return false
	}
	if b.seen == nil {
		b.seen = map[unpacked]bool{}
	}
	b.seen[key] = true
	return true
}

// unpacked names what was unpacked.
type unpacked struct {
	digest [sha256.Size]byte
	depth  int
}

// minRepeated is the shortest part of a stream of which a third copy in a row is
// left out: bombs consist of such.
const minRepeated = 4 << 10

// read reads a compressed stream to its end, to where it is damaged, or until
// the budget is spent.
func (b *budget) read(r io.Reader) ([]byte, error) {
	const chunk = 32 << 10
	if b.chunk == nil {
		b.chunk = make([]byte, chunk)
	}
	out := b.chunk[:0] // until it is full: most streams are small, or none
	for {
		if cap(out)-len(out) < chunk/2 {
			out = slices.Grow(out, max(chunk, len(out)))
		}
		n, err := r.Read(out[len(out):min(len(out)+chunk, cap(out))])
		if !b.take(n) {
			return b.own(out), errSpent
		}
		if at := len(out); at < 2*n || n < minRepeated || !bytes.Equal(out[at-n:at], out[at:at+n]) || !bytes.Equal(out[at-2*n:at-n], out[at:at+n]) {
			out = out[:at+n]
		}
		switch {
		case err == io.EOF:
			return b.own(out), nil
		case err != nil:
			return b.own(out), err
		case b.ctx.Err() != nil:
			return b.own(out), b.ctx.Err()
		}
	}
}

// own returns out in memory of its own.
func (b *budget) own(out []byte) []byte {
	if len(out) > 0 && &out[0] == &b.chunk[0] {
		return bytes.Clone(out)
	}
	return out
}

// close gives back what the decoders hold.
func (b *budget) close() {
	if b.zstd != nil {
		b.zstd.Close()
	}
}
