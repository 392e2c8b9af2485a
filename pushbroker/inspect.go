package pushbroker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/policy"
)

// inspectTime is how long one inspection may take. What the ingest limits let
// in takes seconds; more is an attack on a scanner or a rule.
var inspectTime = 5 * time.Minute

// Inspect judges all that the push would give to the remote: every new commit,
// every path and entry that it changes against any parent, every new object's
// bytes and the branch's name. pol is the whole policy; nil stands for
// policy.Default. Scanners see each item once, in a fixed order.
//
// The verdict is about q and nothing else; Publish pushes q's tip by its id.
// An error means that no verdict could be reached.
func Inspect(ctx context.Context, q *Quarantine, w Work, pol *policy.Policy, scanners ...Scanner) (Verdict, error) {
	if q.history == nil || q.objects == nil {
		return Verdict{}, errors.New("inspect: the quarantine is closed: ingest the bundle again")
	}
	if pol == nil {
		pol = policy.Default()
	}
	in := newInspection(q, w, pol.For(w.Repo, w.Agent), scanners)
	defer in.base.close()
	late := refuse("limit-ingest", "inspecting it needs more than %v", inspectTime)
	ctx, cancel := context.WithTimeoutCause(ctx, inspectTime, late)
	defer cancel()
	var refusal *Refusal
	switch err := in.run(ctx); {
	case err != nil && errors.Is(context.Cause(ctx), late):
		in.found.add(late.Findings...)
	case errors.As(err, &refusal):
		in.found.add(refusal.Findings...)
	case err != nil:
		return Verdict{}, fmt.Errorf("inspect: %w", err)
	}
	return in.finish(pol), nil
}

// inspection is one run of Inspect.
type inspection struct {
	q        *Quarantine
	h        *history
	w        Work
	pol      *policy.Policy // for this repository and agent
	scanners []Scanner
	now      time.Time
	base     *baseReader
	verdict  Verdict

	blobs   map[string]*policy.Blob // new ones
	targets map[string]string       // of symbolic links, by blob id; filled by target

	folded   map[string]map[string]treeEntry // for linkTree
	allLinks map[string][]linkAt             // by commit
	found    findings

	secrets secretPlaces
}

func newInspection(q *Quarantine, w Work, pol *policy.Policy, scanners []Scanner) *inspection {
	lim := DefaultIngestLimits()
	return &inspection{
		q: q, h: q.history, w: w, pol: pol, scanners: scanners, now: time.Now(),
		base: &baseReader{
			git:    gitcmd.Git{Dir: q.Mirror, Limits: gitcmd.Limits{CPU: lim.CPU, Memory: lim.Memory, Alone: true}},
			commit: q.BaseOID, tree: newCommitTree(nil, q.history.baseTree), known: map[[32]byte]bool{},
		},
		blobs: map[string]*policy.Blob{}, targets: map[string]string{},
		folded: map[string]map[string]treeEntry{}, allLinks: map[string][]linkAt{},
		found: newFindings(), secrets: newSecretPlaces(),
	}
}

func (in *inspection) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		in.work, in.branch, in.commits, in.content, in.paths, in.entries, in.ci,
		func(context.Context) error { return in.countLines() },
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (in *inspection) judge(s policy.Subject) {
	for _, f := range in.pol.Judge(s, in.now) {
		in.found.add(f)
	}
}

// work judges the push as a whole.
func (in *inspection) work(context.Context) error {
	for _, oid := range in.q.Objects {
		in.verdict.Bytes += in.h.info[oid].size
	}
	in.verdict.Commits = len(in.q.Commits)
	in.verdict.Files = len(in.h.net)
	in.judge(policy.Subject{Work: &policy.Work{Files: in.verdict.Files, Bytes: in.verdict.Bytes, Commits: in.verdict.Commits}})
	return nil
}

func (in *inspection) branch(ctx context.Context) error {
	if in.w.Branch == "" {
		return nil
	}
	return in.scan(ctx, Item{Kind: BranchItem, Data: []byte(in.w.Branch)}, "branch")
}

// maxSubjects is how many first lines of messages a verdict lists.
const maxSubjects = 50

// commits judges and scans every commit as the bytes that it is.
func (in *inspection) commits(ctx context.Context) error {
	trees := map[string]string{}
	for i := range in.h.commits {
		if err := ctx.Err(); err != nil {
			return err
		}
		c := &in.h.commits[i]
		trees[c.OID] = c.Tree
		empty, err := in.isEmpty(c, trees)
		if err != nil {
			return err
		}
		in.judge(policy.Subject{CommitID: c.OID, Commit: &policy.Commit{
			Header: c.Header, Author: c.Author, Committer: c.Committer, Message: c.Message, Parents: len(c.Parents), Empty: empty,
			Expect: policy.Identity{Name: in.w.IdentityName, Email: in.w.IdentityEmail},
		}})
		if len(in.verdict.Subjects) < maxSubjects {
			in.verdict.Subjects = append(in.verdict.Subjects, c.Subject())
		}
	}
	// The bytes are read again, since Ingest does not hold them.
	return in.q.objects.contents(in.q.Commits, DefaultIngestLimits().ObjectBytes, func(i int, _ string, raw []byte) error {
		oid := in.q.Commits[i]
		return in.scan(ctx, Item{Kind: CommitItem, OID: oid, Commit: oid, Data: raw}, "commit")
	})
}

// isEmpty reports whether a commit has the tree of each of its parents.
func (in *inspection) isEmpty(c *Commit, trees map[string]string) (bool, error) {
	for _, p := range c.Parents {
		t, ok := trees[p]
		if !ok {
			raw, err := in.q.objects.one(p, "commit", DefaultIngestLimits().ObjectBytes)
			if err != nil {
				return false, err
			}
			parent, err := ParseCommit(raw)
			if err != nil {
				return false, fmt.Errorf("commit %s of the base's history: %w", p, err)
			}
			t = parent.Tree
			trees[p] = t
		}
		if t != c.Tree {
			return false, nil
		}
	}
	return true, nil
}

// content reads every new blob once, scans it where it first appears, and
// keeps what change rules want to know of it.
func (in *inspection) content(ctx context.Context) error {
	var oids []string
	limit := in.pol.Changes.Limits.FileBytes
	for _, oid := range in.q.Objects {
		info := in.h.info[oid]
		if info.kind != "blob" {
			continue
		}
		oids = append(oids, oid)
		if p := in.h.first[oid]; info.size > limit {
			f := policy.NewFinding("limit-file-bytes", fmt.Sprintf("%d bytes, limit %d", info.size, limit))
			f.Commit, f.Path = in.commitID(p.commit), p.path
			in.found.add(in.pol.Apply(f, in.now)...)
		}
	}
	return in.q.objects.contents(oids, DefaultIngestLimits().ObjectBytes, func(i int, _ string, data []byte) error {
		oid := oids[i]
		p := in.h.first[oid]
		it := Item{Kind: BlobItem, OID: oid, Commit: in.commitID(p.commit), Path: p.path, Mode: p.mode, Data: data}
		if p.asLink {
			in.targets[oid] = string(data)
		}
		if p.asFile {
			in.blobs[oid] = factsOf(data)
			return in.scan(ctx, it, "")
		}
		it.Kind = SymlinkItem
		return in.scan(ctx, it, "symlink-target")
	})
}

func (in *inspection) commitID(i int) string {
	if i < 0 || i >= len(in.h.commits) {
		return ""
	}
	return in.h.commits[i].OID
}

// paths scans every path that the work adds, and judges those that some file
// system takes for another one.
func (in *inspection) paths(ctx context.Context) error {
	seen := map[string]bool{}
	for _, c := range in.h.changes {
		if c.old.mode != 0 || seen[c.path] {
			continue
		}
		seen[c.path] = true
		it := Item{Kind: PathItem, Commit: in.commitID(c.commit), Path: c.path, Mode: c.new.mode, Data: []byte(c.path)}
		if err := in.scan(ctx, it, "path"); err != nil {
			return err
		}
	}
	for _, c := range in.h.clashes {
		in.judge(policy.Subject{CommitID: in.commitID(c.commit), Names: &policy.Names{Path: c.path, Other: c.other}})
	}
	return nil
}

// entries judges every changed entry. Links are judged once more in the tip's
// tree, where a merge may have brought two together that no commit had.
func (in *inspection) entries(ctx context.Context) error {
	changes := in.h.changes[:len(in.h.changes):len(in.h.changes)]
	for _, c := range in.h.net {
		if c.new.mode == modeLink {
			c.commit = len(in.h.commits) - 1
			changes = append(changes, c)
		}
	}
	aliases, err := in.aliases()
	if err != nil {
		return err
	}
	for _, c := range changes {
		if err := ctx.Err(); err != nil {
			return err
		}
		ch := policy.Change{Path: c.path, Aliases: aliases.of(c.path), Old: c.old.mode, New: c.new.mode}
		if c.new.mode == modeLink {
			var err error
			if ch.Leads, err = in.leads(ctx, c); err != nil {
				return err
			}
			ch.Target = in.targets[c.new.oid]
		} else if facts := in.blobs[c.new.oid]; facts != nil {
			b := *facts
			if b.Bidi != "" || b.ZeroWidth != "" || b.Control != "" {
				if b, err = in.withoutKnown(ctx, b, c); err != nil {
					return err
				}
			}
			ch.Blob = &b
		}
		in.judge(policy.Subject{CommitID: in.commitID(c.commit), Change: &ch})
	}
	return nil
}

// withoutKnown leaves out of a change's facts what the base's file has as well.
func (in *inspection) withoutKnown(ctx context.Context, b policy.Blob, c change) (policy.Blob, error) {
	base, ok, err := in.base.Blob(ctx, c.path)
	if err != nil || !ok {
		return b, err
	}
	data, err := in.q.objects.one(c.new.oid, "blob", DefaultIngestLimits().ObjectBytes)
	if err != nil {
		return b, err
	}
	return withoutKnown(b, data, base), nil
}

// scan hands one item to every scanner.
func (in *inspection) scan(ctx context.Context, it Item, at string) error {
	it.Base = in.base
	for _, s := range in.scanners {
		found, err := s.Scan(ctx, it)
		if err != nil {
			return fmt.Errorf("scan %s %s: %w", it.Kind, it.OID, err)
		}
		for _, f := range found {
			if f.Commit == "" {
				f.Commit = it.Commit
			}
			if f.Path == "" {
				f.Path = it.Path
			}
			in.secrets.note(it, f)
			if f.Place == "" {
				f.Place = at
			}
			in.found.add(in.pol.ApplySecret(f, in.now)...)
		}
	}
	return nil
}

// maxChanges is how many changed paths a verdict lists.
const maxChanges = 1000

func (in *inspection) finish(whole *policy.Policy) Verdict {
	v := &in.verdict
	v.Base, v.Tip, v.Tree = in.q.BaseOID, in.q.Tip, in.h.tipTree
	v.Findings = in.found.sorted(in.h.commits)
	for i, f := range v.Findings {
		v.Findings[i].Path, v.Findings[i].Message = in.secrets.path(f.Path), in.secrets.message(f)
	}
	for i := range v.Subjects {
		if in.secrets.commits[in.h.commits[i].OID] {
			v.Subjects[i] = redacted("", 1)
		}
	}
	v.decide()
	v.Changes = []Change{}
	for _, c := range in.h.net[:min(len(in.h.net), maxChanges)] {
		n := c.net()
		n.Path = in.secrets.path(n.Path)
		v.Changes = append(v.Changes, n)
	}
	v.Digests = map[string]string{"policy": whole.Digest(), "base": in.q.BaseOID}
	sum := sha256.New()
	for _, s := range in.scanners {
		fmt.Fprintf(sum, "%s\n", s.Digest())
		if h, ok := s.(HeldValues); ok {
			v.Digests["held-values"] = h.HeldDigest()
		}
	}
	v.Digests["scanner"] = hex.EncodeToString(sum.Sum(nil))
	if in.pol.HasEnds() {
		v.Digests["day"] = in.now.UTC().Format(time.DateOnly)
	}
	return *v
}

// net is the change as a verdict lists it.
func (c change) net() Change {
	n := Change{Path: c.path}
	if c.new.mode != 0 {
		n.Mode = fmt.Sprintf("%06o", c.new.mode)
	}
	switch {
	case c.old.mode == 0:
		n.Status = "A"
	case c.new.mode == 0:
		n.Status = "D"
	case c.old.mode&modeType != c.new.mode&modeType:
		n.Status = "T"
	default:
		n.Status = "M"
	}
	return n
}
