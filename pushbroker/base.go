package pushbroker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
)

// Budgets of one baseReader: what it reads to tell old findings from new ones.
const (
	maxBaseBlob  = 16 << 20  // of one file that is asked for by path
	maxBaseBytes = 512 << 20 // in all, of Contains
	maxBaseFiles = 10_000    // asked for by path
)

// baseReader is the Base of an inspection. Its child starts with the first
// question.
type baseReader struct {
	r       *objectReader // nil until asked
	git     gitcmd.Git
	commit  string
	tree    commitTree // its reader is set with r
	known   map[[32]byte]bool
	history []string // ids of all that base reaches, newest commit first; nil: not listed yet
	bytes   int64
	files   int
}

func (b *baseReader) reader(ctx context.Context) (*objectReader, error) {
	if b.r == nil {
		r, err := startObjectReader(ctx, b.git)
		if err != nil {
			return nil, err
		}
		b.r, b.tree.r = r, r
	}
	return b.r, nil
}

func (b *baseReader) close() { b.r.close() }

// Blob returns the file or link at path in the base commit's tree.
func (b *baseReader) Blob(ctx context.Context, path string) ([]byte, bool, error) {
	r, err := b.reader(ctx)
	if err != nil {
		return nil, false, err
	}
	e, ok, err := b.tree.entry(path)
	if err != nil || !ok || e.isTree() || e.mode == modeGitlink {
		return nil, false, err
	}
	if b.files++; b.files > maxBaseFiles {
		return nil, false, nil
	}
	infos, err := r.infos([]string{e.oid})
	if err != nil || infos[0].kind != "blob" || infos[0].size > maxBaseBlob {
		return nil, false, err
	}
	data, err := r.one(e.oid, "blob", maxBaseBlob)
	return data, err == nil, err
}

// Contains reports whether a file or commit that base reaches holds value.
func (b *baseReader) Contains(ctx context.Context, value []byte) (bool, error) {
	if len(value) == 0 {
		return false, nil
	}
	key := sha256.Sum256(value)
	if known, ok := b.known[key]; ok {
		return known, nil
	}
	found, err := b.search(ctx, value)
	if err != nil {
		return false, err
	}
	b.known[key] = found
	return found, nil
}

// searchStep is how many objects are asked for at once.
const searchStep = 256

func (b *baseReader) search(ctx context.Context, value []byte) (bool, error) {
	r, err := b.reader(ctx)
	if err != nil {
		return false, err
	}
	if b.history == nil {
		out, err := b.git.Output(ctx, nil, "rev-list", "--objects", "--no-object-names", b.commit)
		if err != nil {
			return false, fmt.Errorf("list the base's objects: %w", err)
		}
		b.history = strings.Fields(string(out))
	}
	for rest := b.history; len(rest) > 0; {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		step := rest[:min(searchStep, len(rest))]
		rest = rest[len(step):]
		infos, err := r.infos(step)
		if err != nil {
			return false, err
		}
		var ask []string
		for i, info := range infos {
			if info.kind == "tree" || info.size < int64(len(value)) || info.size > maxBaseBlob {
				continue
			}
			if b.bytes += info.size; b.bytes > maxBaseBytes {
				return false, nil
			}
			ask = append(ask, step[i])
		}
		found := false
		err = r.contents(ask, maxBaseBlob, func(_ int, _ string, data []byte) error {
			found = found || bytes.Contains(data, value)
			return nil
		})
		if found || err != nil {
			return found, err
		}
	}
	return false, nil
}
