package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// bundle is a git bundle that is being made: a header of ours and the pack of
// one git pack-objects, which is what git-bundle(1) does with one process more.
// The one prerequisite is the base.
type bundle struct {
	header []byte
	pack   *bufio.Reader
	cmd    *exec.Cmd
	ctx    context.Context
	cancel context.CancelCauseFunc
	words  *capped
	err    error // it could not be started
	waited bool
}

// startBundle starts to make a bundle of all that the refs reach and the base
// does not.
func (v *view) startBundle(refs []ref) *bundle {
	b := &bundle{words: &capped{max: 2 << 10, drop: true}}
	var h, in bytes.Buffer
	h.WriteString("# v2 git bundle\n")
	if len(v.base) == 64 {
		h.Reset()
		h.WriteString("# v3 git bundle\n@object-format=sha256\n")
	}
	fmt.Fprintf(&h, "-%s base\n", v.base)
	fmt.Fprintf(&in, "^%s\n", v.base)
	for _, r := range refs {
		fmt.Fprintf(&h, "%s %s\n", r.oid, r.name)
		fmt.Fprintf(&in, "%s\n", r.oid)
	}
	h.WriteString("\n")
	b.header = h.Bytes()
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	b.cmd = v.command(b.ctx, "pack-objects", "--revs", "--thin", "--stdout", "--delta-base-offset", "-q")
	b.cmd.Stdin, b.cmd.Stderr = &in, b.words
	out, err := b.cmd.StdoutPipe()
	if err == nil {
		err = b.cmd.Start()
	}
	if err != nil {
		b.err, b.waited = fmt.Errorf("start git pack-objects: %w", err), true
		out = io.NopCloser(strings.NewReader(""))
	}
	b.pack = bufio.NewReaderSize(&stallReader{b, out, v}, frame.MaxPayload)
	return b
}

// stallReader ends a bundle whose git has stopped: the first byte comes when
// all objects are found, and the others one after the other.
type stallReader struct {
	b    *bundle
	r    io.Reader
	view *view
}

func (s *stallReader) Read(p []byte) (int, error) {
	limit := s.view.max
	if s.view.hung.Load() {
		limit = time.Second // in the same place, most likely
	}
	t := time.AfterFunc(limit, func() {
		s.view.hung.Store(true)
		s.b.cancel(fmt.Errorf("%w after %v without a byte", errKilled, limit))
	})
	defer t.Stop()
	return s.r.Read(p)
}

// begun waits until the pack begins, which is after git has found all objects.
func (b *bundle) begun() error {
	if _, err := b.pack.Peek(1); err != nil {
		return b.wait()
	}
	return nil
}

// wait returns how the making ended; the pack was read to its end.
func (b *bundle) wait() error {
	if b.waited {
		return b.err
	}
	b.waited = true
	b.err = gitError(b.ctx, b.cmd.Wait(), []string{"pack-objects"}, b.words)
	b.cancel(nil)
	return b.err
}

// refused tells whether git ended by itself since it could not read an object,
// and would again.
func (b *bundle) refused() bool {
	s := b.cmd.ProcessState
	return s != nil && s.ExitCode() > 0 && !strings.Contains(strings.ToLower(b.words.String()), "out of memory")
}

// close ends a bundle, whether or not it was sent.
func (b *bundle) close() {
	if b != nil && !b.waited {
		b.cancel(errors.New("not wanted any more"))
		_ = b.wait()
	}
}

// startRest starts the bundle of everything that is not in the final one. Refs
// that git cannot read to the ground are named and left out.
func (v *view) startRest(refs []ref, sum *work) *bundle {
	if len(refs) == 0 {
		return nil
	}
	b := v.startBundle(refs)
	err := b.begun()
	if err == nil {
		return b
	}
	if len(refs) > maxListed {
		sum.problem("bundle the other refs: %v; the repository is kept as %s", err, keptRepository)
		sum.partial = true
		return nil
	}
	var whole []ref
	for _, r := range refs {
		in := strings.NewReader("^" + v.base + "\n" + r.oid + "\n")
		if err := v.ask(in, io.Discard, "rev-list", "--objects", "--quiet", "--stdin"); err != nil {
			sum.problem("bundle %s: %v; the repository is kept as %s", clip(r.name, 200), err, keptRepository)
			sum.partial = true
			continue
		}
		whole = append(whole, r)
	}
	if len(whole) == 0 || len(whole) == len(refs) {
		sum.problem("bundle the other refs: %v; the repository is kept as %s", err, keptRepository)
		sum.partial = true
		return nil
	}
	return v.startBundle(whole)
}

// sendBundle sends b, if there is one.
func (c *collector) sendBundle(kind string, b *bundle) error { return c.sendBundleAs(kind, "", b) }

func (c *collector) sendBundleAs(kind, name string, b *bundle) error {
	if b == nil {
		return nil
	}
	return c.send(kind, name, func(w io.Writer) error {
		if err := b.begun(); err != nil {
			return err
		}
		if _, err := w.Write(b.header); err != nil {
			return err
		}
		if _, err := b.pack.WriteTo(w); err != nil {
			return err
		}
		return b.wait()
	})
}

func (c *collector) sendJSON(kind string, v any) error {
	return c.send(kind, "", func(w io.Writer) error { return json.NewEncoder(w).Encode(v) })
}

// send sends one artifact. An error of make ends the artifact as broken off;
// an error of the stream to the host is returned.
func (c *collector) send(kind, name string, make func(io.Writer) error) error {
	if err := c.out.WriteJSON(frame.Begin, frame.ArtifactHeader{Kind: kind, Name: name}); err != nil {
		return err
	}
	a := &artifactWriter{w: c.out.Stream(frame.Data), limited: c.cfg.ArtifactMax > 0, left: c.cfg.ArtifactMax}
	buf := bufio.NewWriterSize(a, frame.MaxPayload)
	err := errors.Join(make(buf), buf.Flush())
	if a.err != nil {
		return a.err
	}
	var end frame.ArtifactEnd
	if errors.Is(err, errFull) {
		end.Error = fmt.Sprintf("larger than the limit of %d bytes", c.cfg.ArtifactMax)
	} else if err != nil {
		end.Error = clip(err.Error(), 1<<10)
	}
	return c.out.WriteJSON(frame.End, end)
}

var errFull = errors.New("artifact is full")

// artifactWriter holds an artifact to its size and keeps the stream's error
// apart from all others.
type artifactWriter struct {
	w       io.Writer
	limited bool
	left    int64
	err     error
}

func (a *artifactWriter) Write(p []byte) (int, error) {
	full := a.limited && int64(len(p)) > a.left
	if full {
		p = p[:a.left]
	}
	n, err := a.w.Write(p)
	a.left -= int64(n)
	if err != nil {
		a.err = err
		return n, err
	}
	if full {
		return n, errFull
	}
	return n, nil
}
