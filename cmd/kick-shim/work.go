package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// The kinds of artifacts, as package sandbox names them.
const (
	finalBundle  = "final.bundle"
	restBundle   = "rest.bundle"
	dirtyArchive = "dirty.tar"
	workSummary  = "work.json"
	reportKind   = "report"
)

// work is the content of the work summary, in the shape of sandbox.Work.
type work struct {
	Head        string   `json:"head,omitempty"`
	Branch      string   `json:"branch,omitempty"`
	Commits     int      `json:"commits"`
	Unpublished []string `json:"unpublished,omitempty"`
	Stashes     int      `json:"stashes,omitempty"`
	Dirty       []string `json:"dirty,omitempty"`
	DirtyCount  int      `json:"dirtyCount,omitempty"`
	Problems    []string `json:"problems,omitempty"`

	partial bool // some refs were not read: the bundles lack what only they name
}

// Limits of the summary, which is for people.
const (
	maxListed   = 100 // paths and refs that are named
	maxProblems = 20
)

func (s *work) problem(format string, args ...any) {
	if len(s.Problems) < maxProblems {
		s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
	}
}

// promptFile is the task. The host wrote it before the checkout, and a base
// commit that tracks a file of that name must not replace it.
const (
	hiveDir    = ".hive"
	promptFile = hiveDir + "/kick-prompt.txt"
	maxPrompt  = 1 << 20
)

// checkoutMax is far above what the largest repositories take (Linux, 93,000
// files, takes seconds); it only ends a git that hangs.
const checkoutMax = 10 * time.Minute

// checkout makes the work tree and the index of cfg.BaseOID in cfg.WorkDir, a
// repository skeleton that the host wrote. It uses one git process: parallel
// checkout was measured slower on local disks (190 ms against 140 ms for 5,000
// files on two cores), since its workers cost more than the writes.
func checkout(cfg frame.Config) error {
	if cfg.BaseOID == "" {
		return nil
	}
	if !validOID(cfg.BaseOID) {
		return fmt.Errorf("check out %q: not a full commit id", cfg.BaseOID)
	}
	root, err := os.OpenRoot(cfg.WorkDir)
	if err != nil {
		return fmt.Errorf("check out %s: %w", cfg.BaseOID, err)
	}
	defer root.Close()
	prompt, err := readSmall(root, promptFile, maxPrompt)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the task: %w", err)
	}
	git, err := findGit(cfg)
	if err != nil {
		return err
	}
	ctx := context.Background()
	env := append(gitEnv(), "GIT_DIR="+cfg.WorkDir+"/.git", "GIT_WORK_TREE="+cfg.WorkDir)
	g := runner{git: git, env: env, dir: cfg.WorkDir, max: checkoutMax}
	// The workspace does not outlive its kick, so nothing is synced to disk.
	opts := []string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.fsync=none", "-c", "checkout.workers=1", "-c", "advice.detachedHead=false"}
	if _, err := g.run(ctx, nil, append(opts, "reset", "--quiet", "--hard", "--no-recurse-submodules", cfg.BaseOID)...); err != nil {
		return fmt.Errorf("check out %s: %w", cfg.BaseOID, err)
	}
	if prompt == nil {
		return nil
	}
	return restorePrompt(ctx, root, g, prompt)
}

// restorePrompt puts the task back where the base commit has a file of its
// name, and hides the difference from git, so that no agent commits it.
func restorePrompt(ctx context.Context, root *os.Root, g runner, prompt []byte) error {
	const remedy = "remove it from the base branch, kick keeps the task there"
	info, err := root.Lstat(hiveDir)
	if err != nil {
		return fmt.Errorf("look for the task after the checkout: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("the base commit tracks %s as something other than a directory: %s", hiveDir, remedy)
	}
	if now, err := readSmall(root, promptFile, maxPrompt); err == nil && bytes.Equal(now, prompt) {
		return nil
	}
	if info, err := root.Lstat(promptFile); err == nil && info.IsDir() {
		return fmt.Errorf("the base commit tracks %s as a directory: %s", promptFile, remedy)
	}
	if err := root.Remove(promptFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put the task back after the checkout: %w", err)
	}
	if err := root.WriteFile(promptFile, prompt, 0o644); err != nil {
		return fmt.Errorf("write the task after the checkout: %w", err)
	}
	if _, err := g.run(ctx, nil, "update-index", "--skip-worktree", "--", promptFile); err != nil {
		return fmt.Errorf("hide the task from git: %w", err)
	}
	return nil
}

// collect sends what the agent left in cfg.WorkDir: the summary, the bundles,
// the archive and the reports, in this order. The workspace is hostile and may
// be read-only. The error is of the stream to the host alone; whatever else
// goes wrong is in the summary or in the end of its artifact.
func collect(cfg frame.Config, w *frame.Writer) error {
	c := &collector{cfg: cfg, out: w, maxDirty: maxDirty, patience: questionMax}
	defer c.close()
	return c.run()
}

func (c *collector) run() error {
	c.look()
	if err := c.sendJSON(workSummary, c.sum); err != nil {
		return err
	}
	if err := c.sendBundle(finalBundle, c.final); err != nil {
		return err
	}
	if err := c.sendBundle(restBundle, c.rest); err != nil {
		return err
	}
	if err := c.sendArchive(); err != nil {
		return err
	}
	return c.sendReports()
}

// collector holds what look found until it is sent.
type collector struct {
	cfg      frame.Config
	out      *frame.Writer
	maxDirty int
	patience time.Duration // with git, for one question

	root *os.Root
	view *view // nil when git cannot be asked
	sum  work

	final, rest *bundle // nil: nothing to send
	dirt        dirt
	whole       bool     // archive the whole work tree
	reports     []string // paths of reports
}

func (c *collector) close() {
	c.final.close()
	c.rest.close()
	if c.view != nil {
		c.view.close()
	}
	if c.root != nil {
		c.root.Close()
	}
}

// look finds out what there is, so that the summary can come first.
func (c *collector) look() {
	var err error
	if c.root, err = os.OpenRoot(c.cfg.WorkDir); err != nil {
		c.sum.problem("open the workspace: %v", err)
		return
	}
	c.reports = findReports(c.root, &c.sum)
	if c.cfg.BaseOID == "" {
		c.whole = true
		return
	}
	if c.view, err = openView(c.cfg, c.root, c.patience, &c.sum); err != nil {
		c.sum.problem("read the repository: %v; the whole work tree is archived instead, and the repository as %s", err, keptRepository)
		c.whole = true
		return
	}
	c.ask(c.view)
	c.whole = c.whole || c.sum.partial
}

// ask asks git everything that the summary needs. The usual kick, a clean tree
// with new commits and no other refs, costs three git processes, side by side.
func (c *collector) ask(v *view) {
	c.sum.Head, c.sum.Branch, c.sum.Stashes = v.head, v.branch, len(v.stashes)
	if v.head != "" && v.head != v.base {
		c.final = v.startBundle([]ref{{v.head, "HEAD"}})
	}
	status := make(chan statusResult, 1)
	go func() { status <- v.status(c.maxDirty) }()
	mine, count, err := v.newCommits()
	switch {
	case err != nil:
		c.sum.problem("count the commits: %v", err)
	case count == 0:
		c.final.close() // HEAD is at the base or before it
		c.final = nil
	}
	c.sum.Commits = count
	rest := v.others(mine, &c.sum)
	if r, ok := c.uncommitted(v, <-status); ok {
		rest = append(rest, r)
	}
	c.rest = v.startRest(rest, &c.sum)
	if c.final != nil {
		c.checkFinal()
	}
}

// checkFinal takes commits that git cannot read to the ground for what a broken
// repository has: no later try would make a bundle of them. What may be otherwise
// the next time, such as a git that took too long, the bundle's end says.
func (c *collector) checkFinal() {
	err := c.final.begun()
	if err == nil || !c.final.refused() {
		return
	}
	c.sum.problem("read the commits: %v; the whole work tree is archived instead, and the repository as %s", err, keptRepository)
	c.final = nil
	c.sum.Head, c.sum.Commits, c.sum.partial = "", 0, true
}

// uncommitted notes the uncommitted changes and makes a commit of them.
func (c *collector) uncommitted(v *view, st statusResult) (ref, bool) {
	if st.err != nil {
		c.sum.problem("look for uncommitted changes: %v; the whole work tree is archived instead", st.err)
		c.whole = true
		return ref{}, false
	}
	c.sum.DirtyCount = st.count
	for _, e := range st.entries[:min(len(st.entries), maxListed)] {
		c.sum.Dirty = append(c.sum.Dirty, e.path)
	}
	if st.count > len(st.entries) {
		c.sum.problem("%d uncommitted paths are too many for a commit (at most %d); the whole work tree is archived instead", st.count, c.maxDirty)
		c.whole = true
		return ref{}, false
	}
	c.dirt = sortDirt(c.root, st.entries, &c.sum)
	for _, dir := range v.submodules(c.root, &c.sum) {
		if !slices.Contains(c.dirt.nested, dir) {
			c.dirt.nested = append(c.dirt.nested, dir)
		}
	}
	if len(c.dirt.index) == 0 {
		return ref{}, false
	}
	oid, err := v.commitDirt(c.dirt.index)
	if err != nil {
		c.sum.problem("make a commit of the uncommitted changes: %v; the archive has them", err)
		return ref{}, false
	}
	return ref{oid, "refs/kick/uncommitted"}, true
}
