package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// passage bounds what passes for one request or tunnel: the whole time, and
// the time in which nothing moves in either direction.
type passage struct {
	ctx     context.Context // ends with the passage; its cause is in words
	stop    context.CancelCauseFunc
	cancel  context.CancelFunc
	silence time.Duration
	timer   *time.Timer
}

func newPassage(ctx context.Context, total, silence time.Duration) *passage {
	x := &passage{}
	ctx, x.cancel = context.WithTimeoutCause(ctx, total, overtimeError(fmt.Sprintf("it took longer than %s", total)))
	x.ctx, x.stop = context.WithCancelCause(ctx)
	x.allow(silence)
	return x
}

// overtimeError tells which time is over.
type overtimeError string

func (e overtimeError) Error() string        { return string(e) }
func (e overtimeError) Is(target error) bool { return target == context.DeadlineExceeded }

// allow changes the time in which nothing need move, while nothing does.
func (x *passage) allow(silence time.Duration) {
	if x.timer != nil {
		x.timer.Stop()
	}
	x.silence = silence
	x.timer = time.AfterFunc(silence, func() { x.stop(overtimeError(fmt.Sprintf("nothing moved for %s", silence))) })
}

// end lets go of the passage's timers. It is called once, when all is over.
func (x *passage) end() {
	x.timer.Stop()
	x.stop(nil)
	x.cancel()
}

// moved tells that something passed.
func (x *passage) moved() { x.timer.Reset(x.silence) }

// hold has a request live as long as the passage: the server's own limits are
// for requests and refusals that are short. The answer may begin before the
// body has ended; else the server would close the body then, under a transport
// that still reads it. A body that does not come is given up with the passage,
// since who reads it would wait on. What release leaves to the server, which
// sends and reads rests, has the time of silence.
func (x *passage) hold(w http.ResponseWriter) (release func(), err error) {
	rc := http.NewResponseController(w)
	if err := errors.Join(rc.EnableFullDuplex(), rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{})); err != nil {
		return nil, err
	}
	// Their errors are of a connection that is gone.
	stop := context.AfterFunc(x.ctx, func() {
		now := time.Now()
		_ = errors.Join(rc.SetReadDeadline(now), rc.SetWriteDeadline(now.Add(lastWords)))
	})
	return func() {
		if stop() {
			limit := time.Now().Add(x.silence)
			_ = errors.Join(rc.SetReadDeadline(limit), rc.SetWriteDeadline(limit))
		}
	}, nil
}

// lastWords is the time for the answer that an passage was cut.
const lastWords = 5 * time.Second

// flow is one direction of an passage. It counts what is read, and fails with
// over on more than most bytes.
type flow struct {
	x    *passage
	most int64
	over error
	n    atomic.Int64 // bytes; a transport may read on while the answer comes
	cut  atomic.Bool  // there were more
}

func (x *passage) flow(most int64, over error) *flow { return &flow{x: x, most: most, over: over} }

// err is over if the flow was cut by it.
func (f *flow) err() error {
	if f.cut.Load() {
		return f.over
	}
	return nil
}

func (f *flow) reader(r io.Reader) io.Reader { return &flowReader{f, r} }

func (f *flow) body(b io.ReadCloser) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{f.reader(b), b}
}

type flowReader struct {
	f *flow
	r io.Reader
}

// Read passes on as much as the flow may have. What ends when the passage is
// over was cut: the other side, seeing that, may end in good form.
func (r *flowReader) Read(p []byte) (int, error) {
	f := r.f
	left := f.most - f.n.Load()
	if int64(len(p)) > left {
		p = p[:left+1]
	}
	n, err := r.r.Read(p)
	if n > 0 {
		f.x.moved()
	}
	if err != nil && f.x.ctx.Err() != nil {
		err = context.Cause(f.x.ctx)
	}
	if int64(n) > left {
		f.cut.Store(true)
		n, err = int(left), f.over
	}
	f.n.Add(int64(n))
	return n, err
}

// Buffers that flows pass through: a small one while little comes, as the events
// of a model that writes, and a large one while much does. Each is used again.
var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, 4<<10); return &b }}
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}
)

// relay reads r to its end and hands each part to pass at once. An error is that
// of either.
func relay(r io.Reader, pass func(p []byte) error) error {
	small := smallBuffers.Get().(*[]byte)
	defer smallBuffers.Put(small)
	var large *[]byte // nil: little comes
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for buf := *small; ; {
		n, err := r.Read(buf)
		if n > 0 {
			if err := pass(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case large == nil && n == len(buf):
			large = largeBuffers.Get().(*[]byte)
			buf = *large
		case large != nil && n < len(*small):
			largeBuffers.Put(large)
			large, buf = nil, *small
		}
	}
}
