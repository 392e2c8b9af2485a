package workspace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/repoaddr"
)

// Cache is a directory of bare mirrors, one per repository and branch, shared
// by any number of processes of one user. It is made when first used, with
// mode 0700.
//
//	Dir/<hash of repository and branch>/lock      flock: shared to pin, exclusive to change; its time is the last use
//	                                    g1, g2…   generations (see generation); the highest is current
//	                                    tmp-…     work in progress of whoever holds the lock exclusively
type Cache struct {
	Dir string
}

// maxPacks is the number of packs after which a generation is rewritten into
// one: git looks an object up in each pack in turn.
const maxPacks = 20

// Fetch returns the commit that a branch is at, in a mirror that holds the
// branch's history and nothing else, and that borrows nothing from the source.
// Call Release on the result. When the mirror is up to date already, this
// costs one git ls-remote.
//
// A branch that was rewritten, or a mirror that is damaged, gets a new
// generation. Errors are of ErrSource, ErrRemote or ErrHost, or the context's.
func (c Cache) Fetch(ctx context.Context, src Source) (*Base, error) {
	s, err := open(ctx, src)
	if err != nil {
		return nil, err
	}
	branch, oid, err := s.resolve(ctx, src.Base)
	if err != nil {
		return nil, err
	}
	e, err := c.entry(s.url, branch)
	if err != nil {
		return nil, err
	}
	b, err := e.pinCurrent(ctx, src.Repo, oid)
	if err != nil || b != nil {
		return b, hostError("use mirror of "+s.url, err)
	}
	b, err = e.update(ctx, s, src.Repo, oid)
	return b, hostError("update mirror of "+s.url, err)
}

// entry is the directory of one repository and branch.
type entry struct {
	dir    string
	branch string
}

func (c Cache) entry(key, branch string) (entry, error) {
	if !filepath.IsAbs(c.Dir) {
		return entry{}, unusable("give an absolute path", "cache directory %q is relative", c.Dir)
	}
	if err := ownDir(c.Dir); err != nil {
		return entry{}, err
	}
	sum := sha256.Sum256([]byte(key + "\x00" + branch))
	return entry{dir: filepath.Join(c.Dir, hex.EncodeToString(sum[:16])), branch: branch}, nil
}

// lock locks the entry, which may be removed by GC before we have it.
func (e entry) lock(ctx context.Context, how int) (*heldLock, error) {
	for {
		if err := os.Mkdir(e.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		f, err := lock(ctx, filepath.Join(e.dir, "lock"), how)
		if errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		now := time.Now()
		if err := os.Chtimes(f.Name(), now, now); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
}

// pinCurrent pins the current generation if it is sound and at oid.
func (e entry) pinCurrent(ctx context.Context, repo, oid string) (*Base, error) {
	l, err := e.lock(ctx, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if g := e.current(); g != nil && g.OID == oid && g.ref == oid {
		return g.pin(repo)
	}
	return nil, nil
}

// Pin pins a generation that an earlier Fetch returned, perhaps in a process
// that died, for a kick that started from oid. It is an error of ErrSource when
// the generation is gone or damaged.
func (c Cache) Pin(ctx context.Context, mirror, oid string) (*Base, error) {
	e := entry{dir: filepath.Dir(mirror)}
	if filepath.Dir(e.dir) != filepath.Clean(c.Dir) || !gitcmd.IsOID(oid) {
		return nil, unusable("take both from the kick's journal", "pin %q in mirror %q", oid, mirror)
	}
	gone := func(err error) error {
		return &Error{Kind: ErrSource, Op: "mirror " + mirror + " cannot be used any more", Err: err, Remedy: "fetch the kick's bundle into a clone of the repository"}
	}
	l, err := lock(ctx, filepath.Join(e.dir, "lock"), unix.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, gone(err)
	}
	if err != nil {
		return nil, hostError("pin mirror "+mirror, err)
	}
	defer l.Close()
	g, err := load(mirror)
	if err != nil {
		return nil, gone(err)
	}
	g.Refused = "" // that was said of its latest commit
	b, err := g.pin(g.Repo)
	if err != nil {
		return nil, hostError("pin mirror "+mirror, err)
	}
	b.OID = oid
	return b, nil
}

// current returns the highest generation, nil if there is none or it is
// damaged.
func (e entry) current() *generation {
	numbers, err := e.generations()
	if err != nil || len(numbers) == 0 {
		return nil
	}
	g, err := load(e.generation(numbers[len(numbers)-1]))
	if err != nil || g.Branch != e.branch {
		return nil
	}
	return g
}

func (e entry) generation(n int) string { return filepath.Join(e.dir, "g"+strconv.Itoa(n)) }

// generations returns the numbers of all generations, ascending.
func (e entry) generations() ([]int, error) {
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, d := range entries {
		if n, err := strconv.Atoi(strings.TrimPrefix(d.Name(), "g")); err == nil && strings.HasPrefix(d.Name(), "g") {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// update brings the current generation to what the remote has, which is oid or
// later, and pins it.
func (e entry) update(ctx context.Context, s *session, repo, oid string) (*Base, error) {
	l, err := e.lock(ctx, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if err := e.sweep(); err != nil {
		return nil, err
	}
	g := e.current()
	if g != nil && g.ref != g.OID { // killed between manifest and ref
		if err := g.writeRef(); err != nil {
			return nil, err
		}
	}
	if g == nil || g.OID != oid { // another process may have been faster
		next, err := e.advance(ctx, s, g)
		if err != nil && g != nil && ctx.Err() == nil && !errors.Is(err, ErrSource) {
			// The old generation may be damaged where load does not look.
			next, err = e.advance(ctx, s, nil)
		}
		if err != nil {
			return nil, err
		}
		g = next
	}
	b, err := g.pin(repo)
	if err == nil {
		// What cannot be removed now is no reason to stop; GC reports it.
		_, _ = e.removeSuperseded()
	}
	return b, err
}

// advance fetches from the remote into a repository of its own, which borrows
// from old if there is one, and makes the result part of old or a new
// generation. Whatever happens, old stays sound.
func (e entry) advance(ctx context.Context, s *session, old *generation) (*generation, error) {
	from := ""
	if old != nil {
		from = old.OID
	}
	tmp, err := e.newRepo(old)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // sweep removes what stays
	m := manifest{Repo: s.url, Branch: e.branch}
	if m.OID, err = e.fetchInto(ctx, s, tmp); err != nil {
		return nil, err
	}
	if err := m.inspect(ctx, tmp); err != nil {
		return nil, err
	}
	if old == nil {
		return e.install(tmp, m)
	}
	forward, err := isAncestor(ctx, tmp, from, m.OID)
	if err != nil {
		return nil, err
	}
	if forward && len(old.Packs)/2 < maxPacks {
		g := &generation{dir: old.dir, manifest: m}
		return g, errors.Join(g.adopt(tmp), g.seal(), g.writeRef())
	}
	alone, err := e.newRepo(nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(alone) }()
	local := newSession(repoaddr.Address{URL: tmp, Protocol: "file"})
	if _, err := e.fetchInto(ctx, local, alone); err != nil {
		return nil, err
	}
	return e.install(alone, m)
}

// newRepo makes an empty bare repository, or one that borrows from old and is
// at its commit.
func (e entry) newRepo(old *generation) (string, error) {
	g := gitDir{config: mirrorConfig, branch: e.branch}
	if old != nil {
		g.looseRef, g.alternates = old.OID, filepath.Join(old.dir, "objects")
	}
	root, err := os.OpenRoot(e.dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	// Never a name that a child of a killed process may still write to.
	name := "tmp-" + rand.Text()
	return filepath.Join(e.dir, name), g.write(root, name)
}

// fetchInto fetches the branch alone and returns where it is now.
func (e entry) fetchInto(ctx context.Context, s *session, dir string) (string, error) {
	name := "refs/heads/" + e.branch
	_, err := s.run(ctx, dir,
		"-c", "fetch.unpackLimit=1", // one pack per fetch, never loose objects
		"-c", "transfer.unpackLimit=1",
		"fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules",
		"--", s.url, "+"+name+":"+name)
	if err != nil {
		return "", err
	}
	b, err := readSmall(filepath.Join(dir, name), 4096)
	if errors.Is(err, fs.ErrNotExist) {
		// Git drops the ref with a warning and succeeds.
		return "", unusable("run git fetch --unshallow there, or name the repository that it was cloned from", "repository %s is a shallow clone and lacks history", s.url)
	}
	if err != nil {
		return "", err
	}
	oid := strings.TrimSuffix(string(b), "\n")
	if !gitcmd.IsOID(oid) {
		return "", fmt.Errorf("git wrote %q as the branch's commit", oid)
	}
	return oid, nil
}

func isAncestor(ctx context.Context, dir, ancestor, oid string) (bool, error) {
	err := gitcmd.Git{Dir: dir}.Run(ctx, nil, nil, "merge-base", "--is-ancestor", ancestor, oid)
	var g *gitcmd.Error
	if errors.As(err, &g) && g.ExitCode == 1 {
		return false, nil
	}
	return err == nil, err
}

// inspect notes what a workspace will lack, and what kick cannot start from.
func (m *manifest) inspect(ctx context.Context, dir string) error {
	g := gitcmd.Git{Dir: dir}
	out, err := g.Output(ctx, nil, "ls-tree", "-t", "-z", m.OID, "--", ".hive", PromptPath, ".gitmodules", ".gitattributes")
	if err != nil {
		return fmt.Errorf("look at the base's tree: %w", err)
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		entry, name, _ := strings.Cut(line, "\t")
		mode, _, _ := strings.Cut(entry, " ")
		switch {
		case name == ".hive" && mode != "040000":
			m.Refused = "has a .hive that is not a directory, where kick writes the agent's task"
		case name == PromptPath:
			m.Refused = "tracks " + PromptPath + ", where kick writes the agent's task"
		case name == ".gitmodules" && strings.HasPrefix(mode, "100"):
			m.Notes = append(m.Notes, "the repository has submodules; they stay empty in the workspace")
		case name == ".gitattributes" && strings.HasPrefix(mode, "100"):
			attributes, err := g.Output(ctx, nil, "cat-file", "blob", m.OID+":.gitattributes")
			if err != nil {
				return fmt.Errorf("read .gitattributes of the base: %w", err)
			}
			if strings.Contains(string(attributes), "filter=lfs") {
				m.Notes = append(m.Notes, "the repository keeps files in Git LFS; the workspace has their pointers, not their content")
			}
		}
	}
	return nil
}

// install makes a complete repository the current generation.
func (e entry) install(dir string, m manifest) (*generation, error) {
	numbers, err := e.generations()
	if err != nil {
		return nil, err
	}
	next := 1
	if len(numbers) > 0 {
		next = numbers[len(numbers)-1] + 1
	}
	g := &generation{dir: dir, manifest: m}
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "pin"), nil, 0o600),
		os.Mkdir(filepath.Join(dir, "borrowers"), 0o700),
		g.seal(),
	)
	if err != nil {
		return nil, err
	}
	g.dir = e.generation(next)
	if err := os.Rename(dir, g.dir); err != nil {
		return nil, err
	}
	return g, syncDir(e.dir)
}

// sweep removes what a killed process left. The caller holds the exclusive
// lock, so nobody works there.
func (e entry) sweep() error {
	left, err := filepath.Glob(filepath.Join(e.dir, "tmp-*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// removeSuperseded removes the generations before the current one that nobody
// uses, and returns the paths. The caller holds the exclusive lock.
func (e entry) removeSuperseded() ([]string, error) {
	numbers, err := e.generations()
	if err != nil || len(numbers) == 0 {
		return nil, err
	}
	return e.removeUnused(numbers[:len(numbers)-1])
}

func (e entry) removeUnused(numbers []int) (removed []string, err error) {
	for _, n := range numbers {
		dir := e.generation(n)
		if inUse(dir) {
			continue
		}
		// Renamed first, so that no half of it is ever taken for a generation.
		gone := filepath.Join(e.dir, "tmp-"+rand.Text())
		if rerr := os.Rename(dir, gone); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		removed = append(removed, dir)
		err = errors.Join(err, os.RemoveAll(gone))
	}
	return removed, err
}
