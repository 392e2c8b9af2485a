package workspace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/sandbox"
)

// DirSink keeps what a sandbox hands back as files of one directory: each
// artifact under the name that is its sandbox.Artifact, reports under their
// own. While it is written, an artifact has ".partial" after its name, and a
// bundle or an archive that broke off keeps it: part of the work is better
// than none. A file without it is whole, and durable unless it is the summary,
// which is for messages only.
type DirSink struct {
	dir     string
	root    *os.Root
	left    int64 // bytes that may still be written
	max     int64
	whole   map[string]bool // kept through this sink
	reports int             // begun so far

	checkpoint int64 // bytes of the one that is kept
}

var _ sandbox.Sink = (*DirSink)(nil)

// maxReports bounds the report files of one kick.
const maxReports = 16

var reportName = lazyregexp.New(`^agent-report[A-Za-z0-9._-]{0,100}\.json$`)

// NewDirSink returns a sink that writes to dir, which is made with mode 0700 if
// absent and must be the caller's own. max is the number of bytes that all
// artifacts together may have. Close it after use.
func NewDirSink(dir string, max int64) (*DirSink, error) {
	if max <= 0 {
		return nil, unusable("give the number of bytes that a kick may hand back", "sink with a cap of %d bytes", max)
	}
	if err := ownDir(dir); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, hostError("open directory for the kick's work", err)
	}
	return &DirSink{dir: dir, root: root, left: max, max: max, whole: map[string]bool{}}, nil
}

// Close releases the directory; the files stay.
func (s *DirSink) Close() error { return s.root.Close() }

// Path returns where a whole artifact lies, and whether it is there.
func (s *DirSink) Path(a sandbox.Artifact) (string, bool) {
	info, err := s.root.Lstat(string(a))
	return filepath.Join(s.dir, string(a)), err == nil && info.Mode().IsRegular()
}

// Create begins an artifact. One that came through this sink already is
// refused. One that is there from an earlier sink, such as that of a process
// which died, gets ".earlier" after its name once the new one is whole.
func (s *DirSink) Create(a sandbox.Artifact, name string) (sandbox.SinkWriter, error) {
	w := &sinkFile{sink: s, name: string(a)}
	switch a {
	case sandbox.FinalBundle, sandbox.RestBundle, sandbox.DirtyArchive:
		w.keepPartial = true
	case sandbox.Checkpoint:
		w.replaces = true
	case sandbox.WorkSummary:
		w.fleeting = true
	case sandbox.Report:
		if !reportName.MatchString(name) {
			return nil, fmt.Errorf("report name %.120q is not agent-report*.json", name)
		}
		w.name = name
		if s.reports++; s.reports > maxReports {
			return nil, fmt.Errorf("more than %d reports", maxReports)
		}
	default:
		return nil, fmt.Errorf("unknown artifact %.60q", a)
	}
	if s.whole[w.name] {
		return nil, fmt.Errorf("%s came before", w.name)
	}
	for n := 1; ; n++ {
		w.partial = w.name + ".partial"
		if n > 1 { // an earlier attempt broke off
			w.partial += fmt.Sprint(n)
		}
		f, err := s.root.OpenFile(w.partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) && n < 10 {
			continue
		}
		if err != nil {
			return nil, hostError("keep "+w.name, err)
		}
		w.f = f
		return w, nil
	}
}

// sinkFile is one artifact being written.
type sinkFile struct {
	sink          *DirSink
	f             *os.File // nil once closed
	name, partial string
	keepPartial   bool
	fleeting      bool  // it need not survive a power failure
	replaces      bool  // the one that came before
	size          int64 // bytes
	err           error // first failure; the artifact is not whole
}

func (w *sinkFile) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if int64(len(p)) > w.sink.left {
		w.err = fmt.Errorf("keep %s: the kick hands back more than %d bytes: raise the limit on bundles, or let the agent commit less", w.name, w.sink.max)
		return 0, w.err
	}
	n, err := w.f.Write(p)
	w.sink.left -= int64(n)
	w.size += int64(n)
	if err != nil {
		w.err = hostError("keep "+w.name, err)
	}
	return n, w.err
}

// Close makes the artifact durable and gives it its name. After a failed write
// it is Abort, and returns that failure.
func (w *sinkFile) Close() error {
	if w.err != nil {
		return errors.Join(w.err, w.Abort())
	}
	if w.f == nil {
		return fs.ErrClosed
	}
	var err error
	if !w.fleeting {
		err = w.f.Sync()
	}
	if cerr := w.f.Close(); err == nil {
		err = cerr
	}
	w.f = nil
	if err == nil && !w.replaces {
		err = w.sink.root.Rename(w.name, w.name+".earlier")
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		err = w.sink.root.Rename(w.partial, w.name)
	}
	if err == nil && w.replaces {
		w.sink.left += w.sink.checkpoint
		w.sink.checkpoint = w.size
	} else if err == nil {
		w.sink.whole[w.name] = true
	}
	if err == nil {
		if !w.fleeting {
			err = syncDir(w.sink.dir)
		}
	}
	return hostError("keep "+w.name, err)
}

// Abort ends an artifact that broke off.
func (w *sinkFile) Abort() error {
	if w.f == nil {
		return nil
	}
	err := w.f.Sync()
	if cerr := w.f.Close(); err == nil {
		err = cerr
	}
	w.f = nil
	if !w.keepPartial {
		err = w.sink.root.Remove(w.partial)
	}
	if w.replaces {
		w.sink.left += w.size
	}
	return hostError("keep "+w.partial, err)
}

// DropCheckpoint removes the checkpoint, when all that it holds has come otherwise.
func (s *DirSink) DropCheckpoint() error {
	err := s.root.Remove(string(sandbox.Checkpoint))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return hostError("remove the checkpoint", err)
}

// Caps of work.json, which hostile code wrote: 1 MiB, as many entries as a
// message can show, and names as long as git and Linux allow.
const (
	maxWorkJSON = 1 << 20
	maxWorkList = 1000
	maxWorkText = 4096
)

// Work reads what the sandbox said of the workspace. It is a claim; its texts
// are raw, so escape them before showing. The error is fs.ErrNotExist if none
// came.
func (s *DirSink) Work() (sandbox.Work, error) {
	f, err := s.root.Open(string(sandbox.WorkSummary))
	if err != nil {
		return sandbox.Work{}, fmt.Errorf("read the sandbox's work summary: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxWorkJSON+1))
	if err != nil {
		return sandbox.Work{}, hostError("read the sandbox's work summary", err)
	}
	w, err := parseWork(b)
	if err != nil {
		return sandbox.Work{}, fmt.Errorf("the sandbox's work summary is not usable: %w", err)
	}
	return w, nil
}

func parseWork(b []byte) (sandbox.Work, error) {
	if len(b) > maxWorkJSON {
		return sandbox.Work{}, fmt.Errorf("longer than %d bytes", maxWorkJSON)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var w sandbox.Work
	if err := d.Decode(&w); err != nil {
		return sandbox.Work{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return sandbox.Work{}, errors.New("something follows the object")
	}
	if w.Head != "" && !gitcmd.IsOID(w.Head) {
		return sandbox.Work{}, errors.New("head is not a commit id")
	}
	if w.Commits < 0 || w.Stashes < 0 || w.DirtyCount < 0 {
		return sandbox.Work{}, errors.New("a count is negative")
	}
	texts := []string{w.Branch}
	for _, list := range [][]string{w.Unpublished, w.Dirty, w.Problems} {
		if len(list) > maxWorkList {
			return sandbox.Work{}, fmt.Errorf("a list has more than %d entries", maxWorkList)
		}
		texts = append(texts, list...)
	}
	for _, t := range texts {
		if len(t) > maxWorkText || strings.ContainsRune(t, 0) {
			return sandbox.Work{}, fmt.Errorf("a text is longer than %d bytes or holds NUL", maxWorkText)
		}
	}
	return w, nil
}
