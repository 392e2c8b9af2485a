package pushbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/lazyregexp"
)

// severities are git's checks that are warnings or less by default and that
// must stop here. A git that does not know one says so before it reads
// anything; the check is then left out for the life of this process. The
// change rules look for all of these, too.
// https://git-scm.com/docs/git-fsck#_fsck_messages
var severities = struct {
	sync.Mutex
	ids []string
}{ids: []string{
	"badFilemode", "gitattributesSymlink", "gitignoreSymlink", "mailmapSymlink",
	"gitmodulesParse", "nulInCommit",
}}

func strictFlag() string {
	severities.Lock()
	defer severities.Unlock()
	if len(severities.ids) == 0 {
		return "--strict"
	}
	return "--strict=" + strings.Join(severities.ids, "=error,") + "=error"
}

// dropSeverity leaves a check out, and reports whether it was in.
func dropSeverity(id string) bool {
	severities.Lock()
	defer severities.Unlock()
	before := len(severities.ids)
	severities.ids = slices.DeleteFunc(slices.Clone(severities.ids), func(s string) bool { return strings.EqualFold(s, id) })
	return len(severities.ids) < before
}

var unknownSeverity = lazyregexp.New(`Unhandled message id: (\w+)`)

// index has git check the pack and write it into the quarantine, and reads
// what is in it from the index that git made.
func (in *ingest) index(ctx context.Context) error {
	var out bytes.Buffer
	for {
		out.Reset()
		err := in.git(in.q.Dir).Run(ctx, in.bundle, &out, "index-pack", "--stdin", "--fix-thin", "--threads=1",
			fmt.Sprintf("--max-input-size=%d", in.lim.PackBytes), strictFlag())
		if err == nil {
			break
		}
		var gerr *gitcmd.Error
		if errors.As(err, &gerr) {
			if m := unknownSeverity.FindStringSubmatch(gerr.Stderr); m != nil && dropSeverity(m[1]) {
				if _, err := in.bundle.Seek(in.head.Size, io.SeekStart); err != nil {
					return fmt.Errorf("read bundle: %w", err)
				}
				continue
			}
		}
		return in.indexError(ctx, err)
	}
	name, ok := strings.CutPrefix(out.String(), "pack\t")
	name, ok2 := strings.CutSuffix(name, "\n")
	if !ok || !ok2 || !gitcmd.IsOID(name) {
		return fmt.Errorf("git index-pack printed %q", out.String())
	}
	end, err := in.bundle.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("read bundle: %w", err)
	}
	entries, err := readPackIndex(filepath.Join(in.q.Dir, "objects/pack/pack-"+name+".idx"), 2*in.lim.Objects)
	if errors.Is(err, errTooManyObjects) {
		return refuse("limit-ingest", "the completed pack has more than %d objects", 2*in.lim.Objects)
	}
	if err != nil {
		return fmt.Errorf("read pack index: %w", err)
	}
	in.own = make(map[string]bool, len(entries))
	appended := 0
	for _, e := range entries {
		// What git appends to a thin pack begins where the sum was.
		thin := e.offset >= uint64(end-in.head.Size-20)
		if thin {
			appended++
		}
		in.own[e.oid] = thin
	}
	if len(entries)-appended != int(in.head.PackObjects) {
		return fmt.Errorf("the pack's header says %d objects, its index has %d and %d added", in.head.PackObjects, len(entries)-appended, appended)
	}
	return nil
}

// hostTrouble are git's words for what is the host's fault, not the pack's.
var hostTrouble = lazyregexp.New(`(?i)no space left|read-only file system|permission denied|input/output error|too many open files|unable to create temporary|cannot fork|disk quota`)

// indexError tells a refused pack from a broken host.
func (in *ingest) indexError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("index the pack: %w", context.Cause(ctx))
	}
	var gerr *gitcmd.Error
	if !errors.As(err, &gerr) || hostTrouble.MatchString(gerr.Stderr) {
		return fmt.Errorf("index the pack: %w", err)
	}
	if sig := endedBy(gerr.Err); sig != 0 {
		switch sig {
		case syscall.SIGXCPU, syscall.SIGKILL, syscall.SIGXFSZ, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGABRT:
			return refuse("limit-ingest", "git was ended by %v while it checked the pack", sig)
		}
		return fmt.Errorf("index the pack: %w", err)
	}
	text := gerr.Stderr
	switch {
	case text == "":
		return fmt.Errorf("index the pack: %w", err)
	case strings.Contains(text, "exceeds maximum allowed size"), strings.Contains(text, "out of memory"), strings.Contains(text, "mmap failed"), strings.Contains(text, "Cannot allocate memory"):
		return refuse("limit-ingest", "%s", firstLines(text))
	}
	if err := in.mirrorFault(ctx, text); err != nil {
		return err
	}
	return refuse("object-malformed", "%s", firstLines(text))
}

// mirrorFault tells damage of the mirror, on which the work builds, from a
// fault of the work. It costs a walk over base's history, and is asked only
// when there is a fault.
func (in *ingest) mirrorFault(ctx context.Context, text string) error {
	err := in.git(in.q.Mirror).Run(ctx, nil, nil, "rev-list", "--objects", "--quiet", in.w.BaseOID)
	if err == nil && strings.Contains(text, in.q.Mirror) {
		err = errors.New(firstLines(text))
	}
	if err != nil {
		return fmt.Errorf("mirror %s is damaged: %w: remove it and run the kick again", in.q.Mirror, err)
	}
	return nil
}

func endedBy(err error) syscall.Signal {
	var exit interface{ Sys() any }
	if !errors.As(err, &exit) {
		return 0
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal()
	}
	return 0
}

// firstLines is the beginning of what git said, escaped, on one line.
func firstLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > 2 {
		lines = lines[:2]
	}
	s := strings.Join(lines, "; ")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return escape.String(s)
}
