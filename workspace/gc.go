package workspace

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/gitcmd"
)

// Keep says which mirrors GC keeps although nobody uses them now.
type Keep struct {
	Unused time.Duration // since the last Fetch. 0: remove every mirror that nobody uses
	Bytes  int64         // of all mirrors together; the least recently fetched go first. 0: no limit
}

// GC removes superseded generations and mirrors that Keep does not keep, and
// returns the directories that it removed. What is pinned, or what a prepared
// workspace borrows from, stays, and so does a mirror that is being fetched.
func (c Cache) GC(ctx context.Context, keep Keep) (removed []string, err error) {
	if _, err := os.Lstat(c.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err := ownDir(c.Dir); err != nil {
		return nil, err
	}
	entries, err := c.entries()
	if err != nil {
		return nil, hostError("list mirrors", err)
	}
	var total int64
	for i := range entries {
		gone, gerr := entries[i].collect(keep.Unused)
		removed, err = append(removed, gone...), errors.Join(err, gerr)
		entries[i].bytes = treeSize(entries[i].dir)
		total += entries[i].bytes
	}
	for _, e := range entries {
		if keep.Bytes <= 0 || total <= keep.Bytes || ctx.Err() != nil {
			break
		}
		gone, gerr := e.collect(0)
		removed, err = append(removed, gone...), errors.Join(err, gerr)
		total -= e.bytes - treeSize(e.dir)
	}
	return removed, hostError("remove mirrors", errors.Join(err, ctx.Err()))
}

type agedEntry struct {
	entry
	used  time.Time
	bytes int64
}

// entries lists the cache, least recently used first, and removes what a
// killed GC left.
func (c Cache) entries() ([]agedEntry, error) {
	names, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, err
	}
	var entries []agedEntry
	for _, n := range names {
		dir := filepath.Join(c.Dir, n.Name())
		if strings.HasPrefix(n.Name(), "removed-") {
			err = errors.Join(err, os.RemoveAll(dir))
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, "lock")); err == nil {
			entries = append(entries, agedEntry{entry: entry{dir: dir}, used: info.ModTime()})
		} else {
			_ = os.Remove(dir) // only if empty: killed before it made the lock
		}
	}
	slices.SortFunc(entries, func(a, b agedEntry) int { return cmp.Compare(a.used.UnixNano(), b.used.UnixNano()) })
	return entries, err
}

// collect removes what nobody uses of an entry: superseded generations, and
// all of it when it was last used longer ago than unused.
func (e agedEntry) collect(unused time.Duration) (removed []string, err error) {
	l, err := tryLock(filepath.Join(e.dir, "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if l == nil {
		return nil, err
	}
	defer l.Close()
	if err := e.sweep(); err != nil {
		return nil, err
	}
	if time.Since(e.used) < unused {
		return e.removeSuperseded()
	}
	numbers, err := e.generations()
	if err != nil {
		return nil, err
	}
	removed, err = e.removeUnused(numbers)
	if err != nil || len(removed) < len(numbers) {
		return removed, err
	}
	// Renamed first: a process that waits for the lock then finds it gone and
	// makes a new entry, which we do not touch.
	gone := filepath.Join(filepath.Dir(e.dir), "removed-"+rand.Text())
	if err := os.Rename(e.dir, gone); err != nil {
		return removed, err
	}
	return removed, os.RemoveAll(gone)
}

func treeSize(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed by another process meanwhile
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n
}

// Verify reads every object of every current mirror and returns what is wrong,
// one sentence a mirror. A damaged mirror is marked, and the next Fetch builds
// it anew; kicks that use it now are not disturbed.
func (c Cache) Verify(ctx context.Context) (problems []string, err error) {
	if _, err := os.Lstat(c.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	entries, err := c.entries()
	if err != nil {
		return nil, hostError("list mirrors", err)
	}
	for _, e := range entries {
		damage, err := e.verify(ctx)
		if err != nil {
			return problems, hostError("verify "+e.dir, err)
		}
		if damage != "" {
			problems = append(problems, damage)
		}
	}
	return problems, nil
}

func (e entry) verify(ctx context.Context) (damage string, err error) {
	l, err := lock(ctx, filepath.Join(e.dir, "lock"), unix.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	numbers, err := e.generations()
	if err != nil || len(numbers) == 0 {
		return "", errors.Join(err, l.Close())
	}
	dir := e.generation(numbers[len(numbers)-1])
	g, err := load(dir)
	if err != nil { // marked enough: the next Fetch sees it too
		return fmt.Sprintf("mirror %s is damaged (%v) and will be built anew", dir, err), l.Close()
	}
	pin, err := lock(ctx, filepath.Join(dir, "pin"), unix.LOCK_SH)
	if err != nil {
		return "", errors.Join(err, l.Close())
	}
	defer pin.Close()
	if err := l.Close(); err != nil {
		return "", err
	}
	bad := g.readAll(ctx)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if bad == nil {
		return "", nil
	}
	mark := filepath.Join(dir, "kick.json")
	if err := os.Rename(mark, mark+".damaged"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return fmt.Sprintf("mirror %s of branch %q of %s is damaged (%v) and will be built anew", dir, g.Branch, g.Repo, bad), nil
}

// readAll checks the content of every pack and that no object of the branch is
// missing. Unlike git fsck it does not mind old objects of odd form, which are
// the remote's matter.
func (g *generation) readAll(ctx context.Context) error {
	git := gitcmd.Git{Dir: g.dir}
	args := []string{"verify-pack", "--"}
	for name := range g.Packs {
		if strings.HasSuffix(name, ".idx") {
			args = append(args, filepath.Join(g.dir, "objects/pack", name))
		}
	}
	if err := git.Run(ctx, nil, nil, args...); err != nil {
		return err
	}
	return git.Run(ctx, nil, nil, "rev-list", "--objects", "--quiet", g.OID, "--")
}
