package scan

import (
	"context"
	"fmt"
	"io"
	"time"
)

// budget bounds what decoding one item may cost. When it is spent, decoding
// stops and the item gets a finding that says so.
type budget struct {
	ctx      context.Context
	deadline time.Time
	left     int64  // decoded bytes
	spent    string // what ran out; empty: nothing
}

// take asks for n more decoded bytes.
func (b *budget) take(n int) bool {
	if b.spent != "" {
		return false
	}
	if b.left -= int64(n); b.left < 0 {
		b.exceed("bytes")
		return false
	}
	return true
}

func (b *budget) exceed(what string) {
	if b.spent == "" {
		b.spent = what
	}
}

// read reads one member of an archive. What is damaged counts up to where the
// damage is; an error means that the budget is spent.
func (b *budget) read(r io.Reader) ([]byte, error) {
	var out []byte
	chunk := make([]byte, 32<<10)
	for {
		n, err := r.Read(chunk)
		if !b.take(n) {
			return out, fmt.Errorf("decode budget: %s", b.spent)
		}
		out = append(out, chunk[:n]...)
		if err != nil {
			return out, nil
		}
		if expired(b.ctx, b.deadline) != nil {
			b.exceed("time")
			return out, fmt.Errorf("decode budget: %s", b.spent)
		}
	}
}
