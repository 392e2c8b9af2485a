package scan

import (
	"context"
	"errors"
	"io"

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

	xz   *xz.Reader // nil before the first stream
	zstd *zstd.Decoder
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

// read reads a compressed stream to its end, to where it is damaged, or until
// the budget is spent.
func (b *budget) read(r io.Reader) ([]byte, error) {
	var out []byte
	chunk := make([]byte, 32<<10)
	for {
		n, err := r.Read(chunk)
		if !b.take(n) {
			return out, errSpent
		}
		out = append(out, chunk[:n]...)
		switch {
		case err == io.EOF:
			return out, nil
		case err != nil:
			return out, err
		case b.ctx.Err() != nil:
			return out, b.ctx.Err()
		}
	}
}

// close gives back what the decoders hold.
func (b *budget) close() {
	if b.zstd != nil {
		b.zstd.Close()
	}
}
