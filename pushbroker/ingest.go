package pushbroker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/policy"
)

// Ingest takes the work's bundle, as data, into a new quarantine repository at
// dir, which must not exist, and learns what the new commits are and change.
// It holds every cap of lim before it reads what the cap is about; the zero
// lim stands for DefaultIngestLimits.
//
// It returns ErrNothing if the work ends at the base, a *Refusal if the work
// must not or cannot be taken, and another error if the broker failed. On an
// error, dir is removed. Otherwise the caller closes the Quarantine and
// removes dir.
func Ingest(ctx context.Context, dir string, w Work, lim IngestLimits) (*Quarantine, error) {
	lim = lim.orDefault()
	if !gitcmd.IsOID(w.BaseOID) {
		return nil, fmt.Errorf("ingest: base %q is no full lower-case SHA-1 id: repositories with SHA-256 ids are not supported", escape.String(w.BaseOID))
	}
	bundle, head, err := openBundle(w.Bundle, lim)
	if err != nil {
		return nil, wrapIngest(err)
	}
	defer bundle.Close()
	if head.Tip == w.BaseOID {
		return nil, ErrNothing
	}
	if err := Borrow(dir, w.Mirror); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	in := &ingest{w: w, lim: lim, bundle: bundle, head: head}
	in.q = &Quarantine{Dir: dir, Mirror: w.Mirror, BaseOID: w.BaseOID, Tip: head.Tip, history: &history{}}
	if err := in.run(ctx); err != nil {
		_ = in.q.Close()
		if rerr := os.RemoveAll(dir); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return nil, wrapIngest(err)
	}
	return in.q, nil
}

func wrapIngest(err error) error {
	var r *Refusal
	if errors.As(err, &r) {
		return r
	}
	return fmt.Errorf("ingest: %w", err)
}

// Close ends the git child that reads the quarantine. The directory stays.
func (q *Quarantine) Close() error {
	q.objects.close()
	q.objects = nil
	return nil
}

// openBundle opens the bundle, reads its header, holds the caps by what the
// pack says of itself, and leaves the file at the beginning of the pack.
func openBundle(path string, lim IngestLimits) (_ *os.File, head BundleHeader, err error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, head, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	head, err = ParseBundleHeader(bufio.NewReader(f))
	if err != nil {
		return nil, head, refuse("bundle-format", "%v", err)
	}
	pack := size - head.Size
	switch {
	case pack > lim.PackBytes:
		return nil, head, refuse("limit-ingest", "the pack has %d bytes, more than %d", pack, lim.PackBytes)
	case int64(head.PackObjects) > int64(lim.Objects):
		return nil, head, refuse("limit-ingest", "the pack has %d objects, more than %d", head.PackObjects, lim.Objects)
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, head.Size+packHeaderSize, pack-packHeaderSize), 64<<10)
	if err := scanPack(r, head.PackObjects, lim); err != nil {
		return nil, head, err
	}
	if _, err := f.Seek(head.Size, io.SeekStart); err != nil {
		return nil, head, fmt.Errorf("open bundle: %w", err)
	}
	return f, head, nil
}

// ReadBundleHeader reads the header of the bundle at path. It returns a
// *Refusal if the file is no bundle that Ingest takes.
func ReadBundleHeader(path string) (BundleHeader, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return BundleHeader{}, err
	}
	defer f.Close()
	head, err := ParseBundleHeader(bufio.NewReader(f))
	if err != nil {
		return head, refuse("bundle-format", "%v", err)
	}
	return head, nil
}

// openRegular opens a file that is no link, pipe or device.
func openRegular(path string) (_ *os.File, size int64, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open bundle: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, fmt.Errorf("open bundle: %w", err)
	}
	return f, st.Size(), nil
}

// Borrow makes an empty bare repository at dir, which must not exist, that
// borrows the objects of the one at mirror. It does what git init with an
// empty template does, without a child.
func Borrow(dir, mirror string) error {
	if !filepath.IsAbs(dir) || !filepath.IsAbs(mirror) {
		return fmt.Errorf("quarantine %q and mirror %q must be absolute paths", dir, mirror)
	}
	// The alternates file has a line for a path, a comment at # and a C-quoted form.
	if strings.ContainsAny(mirror, "\n\"") {
		return fmt.Errorf("mirror path %q has a line break or quote: choose another state directory", mirror)
	}
	if st, err := os.Stat(filepath.Join(mirror, "objects")); err != nil || !st.IsDir() {
		return fmt.Errorf("mirror %s has no objects: prepare the base again", mirror)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make quarantine: %w", err)
	}
	for _, d := range []string{"objects/info", "objects/pack", "refs/heads"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return fmt.Errorf("make quarantine: %w", err)
		}
	}
	for name, text := range map[string]string{
		"HEAD":                    "ref: refs/heads/none\n",
		"config":                  "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n\tcommitGraph = false\n",
		"objects/info/alternates": filepath.Join(mirror, "objects") + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("make quarantine: %w", err)
		}
	}
	return nil
}

// ingest is one run of Ingest.
type ingest struct {
	w      Work
	lim    IngestLimits
	bundle *os.File // at the pack
	head   BundleHeader
	q      *Quarantine

	own     map[string]bool // objects of the pack; true: git added it to complete a thin pack
	newOIDs []string        // S, as git lists it: commits first, parents before children
}

func (in *ingest) git(dir string) gitcmd.Git {
	return gitcmd.Git{
		Dir:    dir,
		Config: []string{"core.packedGitWindowSize=16m", "core.packedGitLimit=256m", "pack.threads=1"},
		Limits: gitcmd.Limits{CPU: in.lim.CPU, Memory: in.lim.Memory, FileSize: uint64(2*in.lim.PackBytes) + 64<<20, Alone: true},
	}
}

func (in *ingest) run(ctx context.Context) error {
	// This reader outlives Ingest; the rest has its deadline.
	var err error
	if in.q.objects, err = startObjectReader(ctx, in.git(in.q.Dir)); err != nil {
		return err
	}
	late := refuse("limit-ingest", "taking it in needs more than %v", in.lim.Deadline)
	ctx, cancel := context.WithTimeoutCause(ctx, in.lim.Deadline, late)
	defer cancel()
	// A reader that hangs is ended with the deadline, too.
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), late) {
			in.q.objects.cancel()
		}
	})
	defer stop()
	revs, err := startRevList(ctx, in.git(in.q.Dir), in.lim.Objects+in.lim.Commits)
	if err != nil {
		return err
	}
	defer revs.close()
	for _, step := range []func(context.Context) error{
		in.index,
		in.checkObjects,
		func(context.Context) error { return in.listNew(revs) },
		in.checkHistory,
		in.checkSet,
	} {
		if err := step(ctx); err != nil {
			if errors.Is(context.Cause(ctx), late) {
				return late
			}
			return err
		}
	}
	return nil
}

// checkObjects caps what the pack holds, by what git says of it without
// reading it.
func (in *ingest) checkObjects(context.Context) error {
	oids := make([]string, 0, len(in.own))
	for oid := range in.own {
		oids = append(oids, oid)
	}
	infos, err := in.q.objects.infos(oids)
	if err != nil {
		return err
	}
	in.q.history.info = make(map[string]objectInfo, len(oids))
	var total int64
	for i, oid := range oids {
		info := infos[i]
		switch {
		case info.kind == "":
			return fmt.Errorf("object %s is in the pack's index and not in the quarantine", oid)
		case info.size > in.lim.ObjectBytes:
			return refuse("limit-ingest", "a %s has %d bytes, more than %d", info.kind, info.size, in.lim.ObjectBytes)
		case info.kind == "commit" && info.size > in.lim.CommitBytes:
			return refuse("limit-ingest", "a commit has %d bytes, more than %d", info.size, in.lim.CommitBytes)
		case info.kind == "tag":
			return refuse("object-stuffing", "tag object %s", oid)
		}
		if total += info.size; total > in.lim.TotalBytes {
			return refuse("limit-ingest", "the objects have more than %d bytes, inflated", in.lim.TotalBytes)
		}
		in.q.history.info[oid] = info
	}
	tip, err := in.q.objects.infos([]string{in.q.Tip})
	if err != nil {
		return err
	}
	switch tip[0].kind {
	case "commit":
		return nil
	case "":
		return refuse("bundle-format", "its ref names %s, which it does not hold", in.q.Tip)
	}
	return refuse("bundle-format", "its ref names a %s, not a commit", tip[0].kind)
}

// listNew fills in S.
func (in *ingest) listNew(revs *revList) error {
	oids, err := revs.list(in.q.Tip, in.w.BaseOID)
	if errors.Is(err, errTooManyObjects) {
		return refuse("limit-ingest", "the work has more than %d objects", in.lim.Objects+in.lim.Commits)
	}
	if err != nil {
		return err
	}
	if len(oids) == 0 {
		// The tip is an older commit of the base's own history.
		return refuseWork(policy.Work{Rewritten: true})
	}
	in.newOIDs, in.q.Objects = oids, oids
	return nil
}

// checkHistory reads the new commits and compares their trees.
func (in *ingest) checkHistory(ctx context.Context) error {
	h, q := in.q.history, in.q
	var unknown []string // of S, and not in the pack
	for _, oid := range in.newOIDs {
		if _, ok := in.own[oid]; !ok {
			unknown = append(unknown, oid)
		}
	}
	infos, err := q.objects.infos(unknown)
	if err != nil {
		return err
	}
	for i, oid := range unknown {
		h.info[oid] = infos[i]
	}
	for _, oid := range in.newOIDs {
		if h.info[oid].kind == "commit" {
			q.Commits = append(q.Commits, oid)
		}
	}
	if len(q.Commits) > in.lim.Commits {
		return refuse("limit-ingest", "the work has %d commits, more than %d", len(q.Commits), in.lim.Commits)
	}
	if err := h.checkCommits(q.objects, in.lim, q.Commits, in.w.BaseOID); err != nil {
		return err
	}
	if err := in.checkForeign(ctx); err != nil {
		return err
	}
	trees := map[string]string{}
	for _, c := range h.commits {
		trees[c.OID] = c.Tree
	}
	treeOf := func(commit string) (string, error) {
		if t, ok := trees[commit]; ok {
			return t, nil
		}
		raw, err := q.objects.one(commit, "commit", in.lim.CommitBytes)
		if err != nil {
			return "", err
		}
		c, err := ParseCommit(raw)
		if err != nil {
			return "", fmt.Errorf("commit %s of the base's history: %w", commit, err)
		}
		trees[commit] = c.Tree
		return c.Tree, nil
	}
	baseTree, err := treeOf(in.w.BaseOID)
	if err != nil {
		return err
	}
	return walkHistory(newTreeCache(q.objects, in.lim), h, baseTree, treeOf)
}

// checkForeign refuses commits that the mirror knows outside of base, and
// fails if it does not know base. A mirror that ends at base, as it mostly
// does, needs no child to answer.
func (in *ingest) checkForeign(ctx context.Context) error {
	if endsAt(in.q.Mirror, in.w.BaseOID) {
		return nil
	}
	mirror, err := startObjectReader(ctx, in.git(in.q.Mirror))
	if err != nil {
		return err
	}
	defer mirror.close()
	known, err := mirror.infos(append([]string{in.w.BaseOID}, in.q.Commits...))
	if err != nil {
		return err
	}
	if known[0].kind != "commit" {
		return fmt.Errorf("mirror %s does not hold the base commit %s: prepare the base again", in.q.Mirror, in.w.BaseOID)
	}
	for i, oid := range in.q.Commits {
		if known[1+i].kind != "" {
			return refuseWork(policy.Work{Foreign: "commit " + oid})
		}
	}
	return nil
}

// checkSet holds S, the pack and the walk against each other: each object of S
// is in the pack or reachable from base; each object of the pack is in S or
// reachable from base; each object of S was seen by the walk, which is what
// Inspect will look at, or is reachable from base.
func (in *ingest) checkSet(ctx context.Context) error {
	h := in.q.history
	inS := make(map[string]bool, len(in.newOIDs))
	need := map[string]error{}
	for _, oid := range in.newOIDs {
		inS[oid] = true
		_, own := in.own[oid]
		if _, seen := h.first[oid]; !seen {
			need[oid] = fmt.Errorf("object %s would be pushed and was seen in no commit", oid)
		} else if !own {
			need[oid] = refuseWork(policy.Work{Foreign: "object " + oid})
		}
	}
	for oid := range in.own {
		if !inS[oid] && !h.baseSeen[oid] {
			need[oid] = refuse("object-stuffing", "%s %s", h.info[oid].kind, oid)
		}
	}
	if len(need) == 0 {
		return nil
	}
	if err := dropReachable(ctx, in.git(in.q.Mirror), in.w.BaseOID, need); err != nil {
		return err
	}
	for _, oid := range slices.Sorted(maps.Keys(need)) {
		return need[oid]
	}
	return nil
}
