package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// baseObjects is where the runtimes mount the base's objects, as package
// sandbox says; the workspace's own pointer to it may be gone.
var baseObjects = "/run/kick/base/objects"

// view is a git directory of our own over the objects of a hostile one. What
// git reads as settings (config, hooks, attributes, replace refs, grafts,
// shallow) is ours; objects, index and ignore rules are the workspace's. So no
// setting of the repository runs a program here, hides a commit or hangs git.
type view struct {
	runner
	hung atomic.Bool // git took too long once, so it is not asked any more
	root *os.Root
	dir  string // the work tree
	tmp  string

	index        string // a copy of the workspace's, which status makes
	base         string
	head, branch string            // of the workspace; empty if there is none
	refs         map[string]string // name to id
	stashes      []string          // ids, latest first
	detached     []ref             // of linked work trees
	logged       []string          // ids that HEAD was at, latest first
}

// questionMax bounds one question to git, of which the largest repositories
// take seconds. Where git expects an object there may be a FIFO, and an open of
// that never ends; then the files shall still come in the time that hosts allow.
const questionMax = 40 * time.Second

// ask runs git with in as its input and its output to out.
func (v *view) ask(in io.Reader, out io.Writer, args ...string) error {
	if v.hung.Load() {
		return fmt.Errorf("git %s: not asked, since git hung before", args[0])
	}
	err := v.stream(context.Background(), in, out, args...)
	if errors.Is(err, errKilled) {
		v.hung.Store(true)
	}
	return err
}

// openView makes the view of the repository in root.
func openView(cfg frame.Config, root *os.Root, patience time.Duration, sum *work) (_ *view, err error) {
	if !validOID(cfg.BaseOID) {
		return nil, fmt.Errorf("the base %q is not a full commit id", cfg.BaseOID)
	}
	for _, dir := range []string{".git", ".git/objects"} {
		if info, err := root.Lstat(dir); err != nil {
			return nil, fmt.Errorf("%s is missing", dir)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("%s is not a directory (%s)", dir, info.Mode().Type())
		}
	}
	v := &view{root: root, dir: cfg.WorkDir, base: cfg.BaseOID}
	r := refReader{root: root, hex: len(v.base), sum: sum}
	v.refs = r.all()
	if v.head, v.branch, err = r.head(v.refs); err != nil {
		sum.problem("read HEAD: %v", err)
	}
	if v.stashes = r.log("refs/stash"); len(v.stashes) == 0 && v.refs["refs/stash"] != "" {
		v.stashes = []string{v.refs["refs/stash"]}
	}
	delete(v.refs, "refs/stash")
	v.detached = r.worktrees()
	if v.logged = r.log("HEAD"); len(v.logged) > maxLogged {
		sum.problem("HEAD was at %d commits: those before the last %d are looked for in refs only", len(v.logged), maxLogged)
		v.logged = v.logged[:maxLogged]
	}
	if v.git, err = findGit(cfg); err != nil {
		return nil, err
	}
	if v.tmp, err = tempDir(); err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	if err := v.write(); err != nil {
		v.close()
		return nil, err
	}
	v.index = filepath.Join(v.tmp, "index")
	v.env = append(gitEnv(), "GIT_DIR="+v.tmp, "GIT_WORK_TREE="+v.dir, "GIT_INDEX_FILE="+v.index, "GIT_OPTIONAL_LOCKS=0")
	v.runner.dir, v.max = v.dir, patience
	return v, nil
}

// tempDir makes a directory where there is room. A sandbox that collects after
// its agent may find a full /tmp.
func tempDir() (string, error) {
	var errs []error
	for _, parent := range []string{os.TempDir(), "/dev/shm"} {
		dir, err := os.MkdirTemp(parent, "kick-collect-")
		if err == nil {
			probe := filepath.Join(dir, "probe")
			if err = os.WriteFile(probe, make([]byte, 64<<10), 0o600); err == nil {
				return dir, os.Remove(probe)
			}
			err = errors.Join(err, os.RemoveAll(dir))
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// close removes the view. What stays goes with the sandbox.
func (v *view) close() { _ = os.RemoveAll(v.tmp) }

// write fills the private git directory.
func (v *view) write() error {
	version, format := 0, ""
	if len(v.base) == 64 {
		version, format = 1, "[extensions]\n\tobjectformat = sha256\n"
	}
	config := fmt.Sprintf(`[core]
	repositoryformatversion = %d
	bare = false
	filemode = true
	symlinks = true
	logallrefupdates = false
	hooksPath = /dev/null
	fsmonitor = false
	untrackedCache = false
	attributesFile = /dev/null
	excludesFile = /dev/null
	commitGraph = false
	multiPackIndex = false
	compression = 1
	bigFileThreshold = 1m
	fsync = none
%s[pack]
	useBitmaps = false
	windowMemory = 64m
	deltaCacheSize = 32m
	threads = 2
[gc]
	auto = 0
`, version, format)
	head := v.head
	if head == "" {
		head = "ref: refs/heads/unborn"
	}
	exclude, err := readSmall(v.root, ".git/info/exclude", 1<<20)
	if err != nil {
		exclude = nil // what it would have hidden is then uncommitted work
	}
	alternates := v.dir + "/.git/objects\n"
	if _, err := os.Stat(baseObjects); err == nil {
		alternates += baseObjects + "\n"
	}
	for _, dir := range []string{"objects/info", "objects/pack", "refs", "info"} {
		if err := os.MkdirAll(filepath.Join(v.tmp, dir), 0o700); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"config":                  config,
		"HEAD":                    head + "\n",
		"objects/info/alternates": alternates,
		"info/exclude":            string(exclude) + "\n/" + hiveDir + "/\n",
	} {
		if err := os.WriteFile(filepath.Join(v.tmp, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return v.linkSharedIndex()
}

// linkSharedIndex links the other part of a split index, which git looks for
// beside its settings.
func (v *view) linkSharedIndex() error {
	d, err := v.root.Open(".git")
	if err != nil {
		return err
	}
	defer d.Close()
	for linked := 0; linked < 16; {
		entries, err := d.ReadDir(1000)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "sharedindex.") || !e.Type().IsRegular() {
				continue
			}
			if err := os.Symlink(filepath.Join(v.dir, ".git", e.Name()), filepath.Join(v.tmp, e.Name())); err != nil {
				return err
			}
			linked++
		}
		if err != nil || len(entries) == 0 {
			return nil // the end, or a directory that cannot be read on
		}
	}
	return nil
}
