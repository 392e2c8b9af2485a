package pushbroker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/kickhq/kick/internal/gitcmd"
)

// baseFiles reads what the repository itself says about pull requests: from the
// tree of one commit that the agent did not make.
type baseFiles struct{ commitTree }

// filesAt reads the tree of a commit that q knows. Close it.
func (q *Quarantine) filesAt(ctx context.Context, commit string) (*baseFiles, error) {
	lim := DefaultIngestLimits()
	// A reader of its own: q's is for one goroutine.
	r, err := startObjectReader(ctx, gitcmd.Git{Dir: q.Dir, Limits: gitcmd.Limits{CPU: lim.CPU, Memory: lim.Memory, Alone: true}})
	if err != nil {
		return nil, err
	}
	raw, err := r.one(commit, "commit", lim.ObjectBytes)
	if err != nil {
		r.close()
		return nil, err
	}
	c, err := ParseCommit(raw)
	if err != nil {
		r.close()
		return nil, fmt.Errorf("commit %s: %w", commit, err)
	}
	return &baseFiles{newCommitTree(r, c.Tree)}, nil
}

func (f *baseFiles) close() { f.r.close() }

const modeFile = 0o100000

var errTooLarge = errors.New("the file is too large")

// read returns the file at path. fs.ErrNotExist: there is none, or it is no
// regular file; errTooLarge: it has more than most bytes.
func (f *baseFiles) read(path string, most int64) ([]byte, error) {
	e, ok, err := f.entry(path)
	if err != nil {
		return nil, err
	}
	if !ok || e.mode&modeType != modeFile {
		return nil, fs.ErrNotExist
	}
	infos, err := f.r.infos([]string{e.oid})
	if err != nil {
		return nil, err
	}
	if infos[0].size > most {
		return nil, errTooLarge
	}
	return f.r.one(e.oid, "blob", most)
}
