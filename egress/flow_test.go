package egress

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// TestFlow covers the ends of a direction: at its most, beyond it, and when the
// other side ends in good form although the passage is over.
func TestFlow(t *testing.T) {
	t.Parallel()
	over := errors.New("too much")
	for _, c := range []struct {
		length int
		want   error
	}{{0, nil}, {99, nil}, {100, nil}, {101, over}, {100_000, over}} {
		for name, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "with the end": iotest.DataErrReader} {
			x := newPassage(context.Background(), time.Hour, time.Hour)
			f := x.flow(100, over)
			got, err := io.ReadAll(f.reader(wrap(strings.NewReader(strings.Repeat("x", c.length)))))
			if !errors.Is(err, c.want) || len(got) != min(c.length, 100) || f.n.Load() != int64(len(got)) || (f.err() != nil) != (c.want != nil) {
				t.Errorf("%d bytes, %s: got %d, counted %d, %v, %v", c.length, name, len(got), f.n.Load(), err, f.err())
			}
			x.end()
		}
	}
	x := newPassage(context.Background(), time.Hour, time.Hour)
	defer x.end()
	cut := errors.New("the kick is over")
	x.stop(cut)
	if got, err := io.ReadAll(x.flow(100, over).reader(strings.NewReader("whole?"))); !errors.Is(err, cut) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestPassageEnds has both times of a passage end it, in words, as a time does.
func TestPassageEnds(t *testing.T) {
	t.Parallel()
	for want, x := range map[string]*passage{
		"it took longer than 1ms": newPassage(context.Background(), time.Millisecond, time.Hour),
		"nothing moved for 1ms":   newPassage(context.Background(), time.Hour, time.Millisecond),
		"nothing moved for 2ms": func() *passage {
			x := newPassage(context.Background(), time.Hour, time.Hour)
			x.allow(2 * time.Millisecond)
			return x
		}(),
		context.Canceled.Error(): func() *passage {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return newPassage(ctx, time.Hour, time.Hour)
		}(),
	} {
		<-x.ctx.Done()
		err := context.Cause(x.ctx)
		if err.Error() != want || errors.Is(err, context.DeadlineExceeded) == errors.Is(err, context.Canceled) {
			t.Errorf("%v, want %q", err, want)
		}
		x.end()
	}
}

// TestRelay passes on what comes, in small parts while little comes and in large
// ones while much does.
func TestRelay(t *testing.T) {
	t.Parallel()
	sizes := []int{1, 100, 4 << 10, 4 << 10, 64 << 10, 200 << 10, 10, 1, 4<<10 - 1, 0, 70 << 10, 3}
	var all, got bytes.Buffer
	pr, pw := io.Pipe()
	go func() {
		for i, n := range sizes {
			part := bytes.Repeat([]byte{byte('a' + i)}, n)
			all.Write(part)
			_, _ = pw.Write(part)
		}
		_ = pw.CloseWithError(io.EOF)
	}()
	largest := 0
	if err := relay(pr, func(p []byte) error {
		largest = max(largest, len(p))
		got.Write(p)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), all.Bytes()) || largest != 64<<10 {
		t.Errorf("%d of %d bytes, in parts of up to %d", got.Len(), all.Len(), largest)
	}
	failed := errors.New("the other side is gone")
	if err := relay(strings.NewReader("x"), func([]byte) error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	if err := relay(iotest.ErrReader(failed), func([]byte) error { return nil }); !errors.Is(err, failed) {
		t.Error(err)
	}
}
