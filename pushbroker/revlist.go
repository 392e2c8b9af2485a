package pushbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kickhq/kick/internal/gitcmd"
)

// revList is a git rev-list that waits to be told what to list, so that its
// start costs no time of its own.
type revList struct {
	in   *os.File
	stop context.CancelFunc
	done chan struct{} // closed when the child has ended
	oids []string
	err  error
}

func startRevList(ctx context.Context, g gitcmd.Git, max int) (*revList, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	l := &revList{in: w, stop: stop, done: make(chan struct{})}
	out := &recordWriter{end: '\n', each: func(line []byte) error {
		if len(l.oids) >= max {
			return errTooManyObjects
		}
		if !gitcmd.IsOID(string(line)) {
			return fmt.Errorf("git rev-list printed %q", line)
		}
		l.oids = append(l.oids, string(line))
		return nil
	}}
	go func() {
		defer close(l.done)
		err := g.Run(ctx, r, out, "rev-list", "--objects", "--no-object-names", "--topo-order", "--reverse", "--stdin")
		l.err = errors.Join(err, r.Close())
	}()
	return l, nil
}

// list returns the objects of tip that base does not reach: the commits first,
// parents before children. It may be called once.
func (l *revList) list(tip, base string) ([]string, error) {
	_, werr := fmt.Fprintf(l.in, "%s\n^%s\n", tip, base)
	werr = errors.Join(werr, l.in.Close())
	<-l.done
	switch {
	case errors.Is(l.err, errTooManyObjects):
		return nil, errTooManyObjects
	case l.err != nil:
		return nil, fmt.Errorf("list new objects: %w", l.err)
	case werr != nil:
		return nil, fmt.Errorf("list new objects: %w", werr)
	}
	return l.oids, nil
}

// close ends the child, if it still runs, and waits for it.
func (l *revList) close() {
	l.stop()
	_ = l.in.Close()
	<-l.done
}

// dropReachable removes from need what base reaches. It reads all of base's
// history if it must, which costs a fraction of a second for 30,000 objects.
func dropReachable(ctx context.Context, g gitcmd.Git, base string, need map[string]error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &recordWriter{end: '\n', each: func(line []byte) error {
		delete(need, string(line))
		if len(need) == 0 {
			return errAllFound
		}
		return nil
	}}
	err := g.Run(ctx, nil, out, "rev-list", "--objects", "--no-object-names", base)
	if len(need) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the base's objects: %w", err)
	}
	return nil
}

var errAllFound = errors.New("all found")

// recordWriter hands on whole records, without the byte that ends each.
type recordWriter struct {
	end  byte
	rest []byte
	each func(record []byte) error
}

func (l *recordWriter) Write(p []byte) (int, error) {
	b := append(l.rest, p...)
	for {
		i := bytes.IndexByte(b, l.end)
		if i < 0 {
			l.rest = append([]byte(nil), b...)
			return len(p), nil
		}
		if err := l.each(b[:i]); err != nil {
			return 0, err
		}
		b = b[i+1:]
	}
}
