package pushbroker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/kickhq/kick/internal/gitcmd"
)

// objectInfo is what git says of an object without reading it.
type objectInfo struct {
	kind string // "blob", "tree", "commit" or "tag"; empty: the repository has none of that id
	size int64  // inflated
}

// objectReader is one git cat-file that answers many questions. It is for one
// goroutine at a time.
type objectReader struct {
	in     *os.File
	out    *bufio.Reader
	outEnd *os.File
	cancel context.CancelFunc
	done   chan struct{} // closed at the end of the child
	ended  error         // what it ended with, once done
	broken error         // set when an answer was left half read
}

// startObjectReader starts the child, which waits for questions. It ends with
// ctx, or at close.
func startObjectReader(ctx context.Context, g gitcmd.Git) (*objectReader, error) {
	qr, qw, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	ar, aw, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make pipe: %w", err), qr.Close(), qw.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &objectReader{in: qw, out: bufio.NewReaderSize(ar, 64<<10), outEnd: ar, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		err := g.Run(ctx, qr, aw, "cat-file", "--batch-command", "--buffer")
		// Once closed here, a question is answered by EPIPE and EOF.
		r.ended = errors.Join(err, qr.Close(), aw.Close())
	}()
	return r, nil
}

// close ends the child and waits for it.
func (r *objectReader) close() {
	if r == nil {
		return
	}
	_ = r.in.Close()
	if r.broken != nil {
		r.cancel()
	}
	select {
	case <-r.done:
	case <-time.After(2 * time.Second): // it has nothing left to do
		r.cancel()
		<-r.done
	}
	r.cancel()
	_ = r.outEnd.Close()
}

// ask sends questions of one kind and has the child answer them.
func (r *objectReader) ask(question string, oids []string) error {
	if r.broken != nil {
		return r.broken
	}
	buf := make([]byte, 0, len(oids)*(len(question)+42)+6)
	for _, oid := range oids {
		buf = append(append(append(append(buf, question...), ' '), oid...), '\n')
	}
	buf = append(buf, "flush\n"...)
	if _, err := r.in.Write(buf); err != nil {
		return r.fail(err)
	}
	return nil
}

// fail marks the reader as broken, and prefers the child's own words.
func (r *objectReader) fail(err error) error {
	if r.broken != nil {
		return r.broken
	}
	_ = r.in.Close()
	r.cancel()
	select {
	case <-r.done:
		var gerr *gitcmd.Error
		if errors.As(r.ended, &gerr) && gerr.Stderr != "" {
			err = fmt.Errorf("%w: %w", err, r.ended)
		}
	case <-time.After(5 * time.Second):
	}
	r.broken = fmt.Errorf("read objects: %w", noEOF(err))
	return r.broken
}

// answer reads one line of answer for oid.
func (r *objectReader) answer(oid string) (objectInfo, error) {
	line, err := r.out.ReadSlice('\n')
	if err != nil {
		return objectInfo{}, r.fail(err)
	}
	fields := bytes.Fields(line)
	if len(fields) == 2 && string(fields[0]) == oid && string(fields[1]) == "missing" {
		return objectInfo{}, nil
	}
	if len(fields) != 3 || string(fields[0]) != oid {
		return objectInfo{}, r.fail(fmt.Errorf("git cat-file answered %q for %s", line, oid))
	}
	size, err := strconv.ParseInt(string(fields[2]), 10, 64)
	if err != nil || size < 0 {
		return objectInfo{}, r.fail(fmt.Errorf("git cat-file answered %q for %s", line, oid))
	}
	return objectInfo{kind: string(fields[1]), size: size}, nil
}

// infos returns type and size of each object.
func (r *objectReader) infos(oids []string) ([]objectInfo, error) {
	if len(oids) == 0 {
		return nil, nil
	}
	if err := r.ask("info", oids); err != nil {
		return nil, err
	}
	infos := make([]objectInfo, len(oids))
	for i, oid := range oids {
		var err error
		if infos[i], err = r.answer(oid); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// contents reads each object and hands it to each, in order. An object that is
// missing, or larger than max, is an error; data is valid during the call.
func (r *objectReader) contents(oids []string, max int64, each func(i int, kind string, data []byte) error) error {
	if len(oids) == 0 {
		return nil
	}
	if err := r.ask("contents", oids); err != nil {
		return err
	}
	var buf []byte
	for i, oid := range oids {
		info, err := r.answer(oid)
		if err != nil {
			return err
		}
		if info.kind == "" {
			return r.fail(fmt.Errorf("object %s is missing", oid))
		}
		if info.size > max {
			return r.fail(fmt.Errorf("object %s has %d bytes, more than %d", oid, info.size, max))
		}
		n := int(info.size) + 1
		if cap(buf) < n {
			buf = make([]byte, n)
		}
		buf = buf[:n]
		if _, err := io.ReadFull(r.out, buf); err != nil {
			return r.fail(err)
		}
		if buf[n-1] != '\n' {
			return r.fail(fmt.Errorf("git cat-file broke off in %s", oid))
		}
		if err := each(i, info.kind, buf[:n-1:n-1]); err != nil {
			if i+1 < len(oids) {
				r.broken = fmt.Errorf("read objects: given up: %w", err)
			}
			return err
		}
	}
	return nil
}

// one reads one object of a kind.
func (r *objectReader) one(oid, kind string, max int64) ([]byte, error) {
	var data []byte
	err := r.contents([]string{oid}, max, func(_ int, k string, b []byte) error {
		if k != kind {
			return fmt.Errorf("object %s is a %s, not a %s", oid, k, kind)
		}
		data = bytes.Clone(b)
		return nil
	})
	return data, err
}
