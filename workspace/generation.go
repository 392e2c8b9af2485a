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

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/gitcmd"
)

// generation is one bare mirror of one branch. Objects are only ever added to
// it, and only when the branch was fast-forwarded.
//
// Beside git's own files it holds "kick.json" (manifest), "pin", on which each
// user of the generation holds a shared lock, and "borrowers", a file per
// prepared workspace with its path.
type generation struct {
	dir string
	ref string // what the branch's ref says, as load read it
	manifest
}

// manifest is what a generation must hold, so that damage shows without
// reading objects.
type manifest struct {
	Repo    string           `json:"repo"` // as git was given it
	Branch  string           `json:"branch"`
	OID     string           `json:"oid"`
	Packs   map[string]int64 `json:"packs"` // size in bytes of each .pack and .idx
	Notes   []string         `json:"notes,omitempty"`
	Refused string           `json:"refused,omitempty"` // why no workspace can start from OID
}

// mirrorConfig makes objects readable for every uid, whatever the umask: the
// sandbox's uid reads them through a read-only mount. Cache.Dir above is 0700.
const mirrorConfig = `[core]
	repositoryformatversion = 0
	filemode = true
	bare = true
	sharedRepository = 0644
`

const maxManifest = 4 << 20

// load reads a generation and checks it. It costs a few system calls a pack.
// Any error means that the generation cannot be trusted.
func load(dir string) (*generation, error) {
	b, err := readSmall(filepath.Join(dir, "kick.json"), maxManifest)
	if err != nil {
		return nil, err
	}
	g := &generation{dir: dir}
	if err := json.Unmarshal(b, &g.manifest); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if !gitcmd.IsOID(g.OID) || checkBranch(g.Branch) != nil {
		return nil, errors.New("manifest names no commit or no branch")
	}
	for name, want := range map[string]string{"HEAD": "ref: refs/heads/" + g.Branch + "\n", "config": mirrorConfig} {
		got, err := readSmall(filepath.Join(dir, name), 4096)
		if err != nil {
			return nil, err
		}
		if string(got) != want {
			return nil, fmt.Errorf("%s was altered", name)
		}
	}
	for _, unwanted := range []string{"objects/info/alternates", "shallow", "packed-refs"} {
		if _, err := os.Lstat(filepath.Join(dir, unwanted)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s does not belong here", unwanted)
		}
	}
	for name := range g.Packs {
		if base, isPack := strings.CutSuffix(name, ".pack"); isPack {
			if err := g.checkPack(base); err != nil {
				return nil, err
			}
		}
	}
	return g, g.readRef()
}

// checkPack compares the sizes with the manifest, and the checksum that ends
// the pack with the one that the index remembers: a file that a crash or a
// full disk cut, or filled with zeros, has another.
func (g *generation) checkPack(base string) error {
	pack, err := g.tail(base+".pack", 20)
	if err != nil {
		return err
	}
	idx, err := g.tail(base+".idx", 40)
	if err != nil {
		return err
	}
	if !bytes.Equal(pack, idx[:20]) {
		return fmt.Errorf("%s.pack does not match its index", base)
	}
	return nil
}

func (g *generation) tail(name string, n int64) ([]byte, error) {
	f, err := os.Open(filepath.Join(g.dir, "objects/pack", name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	want, ok := g.Packs[name]
	if !ok || info.Size() != want || want < n {
		return nil, fmt.Errorf("%s has %d bytes, want %d", name, info.Size(), want)
	}
	b := make([]byte, n)
	_, err = f.ReadAt(b, want-n)
	return b, err
}

// readRef reads the branch's ref. It differs from OID when an update was
// killed between manifest and ref.
func (g *generation) readRef() error {
	b, err := readSmall(filepath.Join(g.dir, "refs/heads", g.Branch), 4096)
	if err != nil {
		return err
	}
	g.ref = strings.TrimSuffix(string(b), "\n")
	if !gitcmd.IsOID(g.ref) {
		return errors.New("the branch's ref was altered")
	}
	return nil
}

func (g *generation) writeRef() error {
	root, err := os.OpenRoot(g.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return replaceFile(root, "refs/heads/"+g.Branch, g.OID+"\n", 0o644)
}

// seal writes the manifest of what is in the object directory now.
func (g *generation) seal() error {
	packDir := filepath.Join(g.dir, "objects/pack")
	entries, err := os.ReadDir(packDir)
	if err != nil {
		return err
	}
	g.Packs = map[string]int64{}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".pack" || ext == ".idx" {
			info, err := e.Info()
			if err != nil {
				return err
			}
			g.Packs[e.Name()] = info.Size()
		}
	}
	b, err := json.MarshalIndent(g.manifest, "", "\t")
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(g.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := replaceFile(root, "kick.json", string(b), 0o600); err != nil {
		return err
	}
	return errors.Join(syncDir(packDir), syncDir(g.dir))
}

// adopt moves the packs of a repository that borrowed from g into g. A pack
// comes into use with its index, so that goes last.
func (g *generation) adopt(from string) error {
	for _, ext := range []string{".pack", ".rev", ".idx"} {
		names, err := filepath.Glob(filepath.Join(from, "objects/pack/pack-*"+ext))
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := os.Rename(name, filepath.Join(g.dir, "objects/pack", filepath.Base(name))); err != nil {
				return err
			}
		}
	}
	return nil
}

// pin keeps the generation from being removed until the file is closed. The
// caller holds the entry's lock.
func (g *generation) pin(repo string) (*Base, error) {
	if g.Refused != "" {
		return nil, unusable("use another base branch, or change it there first", "branch %q of %s %s", g.Branch, g.Repo, g.Refused)
	}
	f, err := os.OpenFile(filepath.Join(g.dir, "pin"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Base{
		Repo: repo, Branch: g.Branch, OID: g.OID, Mirror: g.dir, Notes: g.Notes,
		borrowers: filepath.Join(g.dir, "borrowers"), release: (&heldLock{f}).Close,
	}, nil
}

// inUse reports whether somebody holds a pin, or a prepared workspace that
// borrows from the generation still exists. The caller holds the entry's lock
// exclusively, so no pin can come.
func inUse(dir string) bool {
	f, err := tryLock(filepath.Join(dir, "pin"))
	if errors.Is(err, fs.ErrNotExist) {
		return false // never completed
	}
	if f == nil {
		return true
	}
	defer f.Close()
	borrowers, err := os.ReadDir(filepath.Join(dir, "borrowers"))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	for _, b := range borrowers {
		record := filepath.Join(dir, "borrowers", b.Name())
		path, err := readSmall(record, 8192)
		if err != nil {
			return true
		}
		if _, err := os.Lstat(string(path)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
		if os.Remove(record) != nil {
			return true
		}
	}
	return false
}

// readSmall reads a regular file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", filepath.Base(path), limit)
	}
	return b, err
}
