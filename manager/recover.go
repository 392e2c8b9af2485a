package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/workspace"
)

// Recover ends a kick whose process died: its work is taken out of the live
// workspace by a fresh sandbox and kept, the remote is asked whether a push
// that had begun arrived, and the outcome is written. A kick that has an
// outcome already is left alone, unless it is unfinished: not all of its work
// could be taken out, or the remote could not be asked. That is tried again.
// One that runs is ErrBusy.
func (m *Manager) Recover(ctx context.Context, id string) (Outcome, error) {
	if o, err := m.State.Outcome(id); err == nil {
		if m.State.unfinished(o) {
			return m.tryAgain(ctx, o)
		}
		return o, m.State.forget(id)
	} else if !errors.Is(err, os.ErrNotExist) {
		return o, err
	}
	k, err := m.State.lockKick(id)
	if err != nil {
		return Outcome{}, err
	}
	entries, err := readJournal(k.Path("journal.jsonl"))
	if err != nil {
		return Outcome{}, errors.Join(err, k.close())
	}
	get := func(event, name string) string { v, _ := field(entries, event, name); return v }
	r := &run{m: m, k: k, start: time.Now(), work: m.State.workOf(id)}
	r.runtimeOf(entries)
	r.out = Outcome{
		ID: id, Agent: get("kick", "agent"), Repo: get("kick", "repo"),
		Base: get("prepared", "branch"), BaseCommit: get("prepared", "commit"),
		Findings: []policy.Finding{}, Timings: map[string]float64{}, Started: r.start.UTC(),
	}
	if len(entries) > 0 {
		r.out.Started = entries[0].Time
	}
	r.out.Squashed, _ = strconv.Atoi(get("squashed", "commits")) // 0: it was not
	if counts, err := egress.CompleteAudit(k.Path("egress.jsonl")); err == nil {
		r.out.Egress = &counts
	} else if !errors.Is(err, os.ErrNotExist) { // it had no gateway
		r.note("egress", err)
	}
	if err := r.salvage(ctx, entries); err != nil {
		return Outcome{}, errors.Join(err, k.close())
	}
	// A killed inspection leaves its objects; the bundle has them too.
	r.note("remove the quarantine", os.RemoveAll(k.Path("quarantine.git")))
	r.settle(ctx, entries)
	if code := Code(get("outcome", "outcome")); r.out.Outcome == "" && code != "" && code != Published {
		// It had ended, and its result could not be written: a full disk.
		r.fail(code, errors.New("the record of how it ended was lost; its journal has the outcome alone"))
	}
	if r.out.Outcome == "" {
		last := "it began"
		if len(entries) > 0 {
			last = entries[len(entries)-1].Event
		}
		r.fail(Interrupted, fmt.Errorf("kick itself was killed (last journal entry: %s)", last))
	}
	return r.finish()
}

// unfinished reports whether there is more to do for a kick that has an
// outcome.
func (s *State) unfinished(o Outcome) bool { return o.Unsettled || s.unsalvaged(o) }

// unsalvaged reports whether work of an ended kick is in its live workspace
// alone, as after a full disk.
func (s *State) unsalvaged(o Outcome) bool {
	if len(o.Missing) == 0 {
		return false
	}
	return exists(filepath.Join(s.workOf(o.ID), ".git"))
}

// nextFor is what can be done about the work of a kick that is missing.
func (s *State) nextFor(o Outcome) string {
	if s.unsalvaged(o) {
		return "`kick salvage " + o.ID + "` tries again"
	}
	if work := s.workOf(o.ID); len(o.Missing) > 0 && exists(work) {
		return "it is not a repository any more, so take what you need from " + work
	}
	return "nothing has it any more, and what had come before is kept"
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// workOf is where a kick's live workspace is or was.
func (s *State) workOf(id string) string {
	// Without a journal, it is where it is by default.
	entries, _ := readJournal(filepath.Join(s.KickDir(id), "journal.jsonl"))
	if work, ok := field(entries, "kick", "work"); ok && work != "" {
		return work
	}
	return filepath.Join(s.KickDir(id), "work")
}

// tryAgain takes out and finishes what an earlier attempt could not. How the
// kick ended stays as it is, unless its work turns out to be published.
func (m *Manager) tryAgain(ctx context.Context, o Outcome) (Outcome, error) {
	k, err := m.State.lockKick(o.ID)
	if err != nil {
		return o, err
	}
	entries, err := readJournal(k.Path("journal.jsonl"))
	if err != nil {
		return o, errors.Join(err, k.close())
	}
	r := &run{m: m, k: k, start: time.Now(), work: m.State.workOf(o.ID), out: o}
	r.runtimeOf(entries)
	r.out.Notes = slices.DeleteFunc(slices.Clone(o.Notes), func(n string) bool { return strings.HasPrefix(n, leftInPlace) || strings.HasPrefix(n, unsettledNote) })
	if m.State.unsalvaged(o) {
		r.out.Missing = nil
		if err := r.salvage(ctx, entries); err != nil {
			return o, errors.Join(err, k.close())
		}
	}
	if o.Unsettled {
		r.out.Outcome, r.out.Error, r.out.Remedy, r.out.PublishReason, r.out.RetryAfter = "", "", "", "", 0
		r.settle(ctx, entries)
	}
	if r.out.Outcome == "" {
		r.out.Outcome, r.out.Error, r.out.Remedy, r.out.PublishReason, r.out.RetryAfter = o.Outcome, o.Error, o.Remedy, o.PublishReason, o.RetryAfter
	}
	return r.finish()
}

// runtimeOf takes from the journal what the kick was to run on.
func (r *run) runtimeOf(entries []Entry) {
	get := func(name string) string { v, _ := field(entries, "kick", name); return v }
	r.req.Runtime, r.req.Image = get("runtime"), get("image")
	r.req.Podman = sandbox.PodmanChoice{Socket: get("podmanSocket"), OCIRuntime: get("ociRuntime")} // its network is the agent's alone
	// What is no JSON was no kick's of that runtime.
	_ = json.Unmarshal([]byte(get("kubernetes")), &r.req.Kubernetes)
	_ = json.Unmarshal([]byte(get("kubevirt")), &r.req.KubeVirt)
	_ = json.Unmarshal([]byte(get("openshell")), &r.req.OpenShell.Choice)
	r.req.AcceptWeaker = strings.Fields(get("accepted"))
}

// salvage takes the work out of a live workspace that a dead kick left.
func (r *run) salvage(ctx context.Context, entries []Entry) error {
	if _, err := os.Lstat(r.work); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	sink, err := workspace.NewDirSink(r.k.Path("out"), artifactsMax(sandbox.Limits{}))
	if err != nil {
		return err
	}
	r.sink = sink
	if _, err := os.Lstat(filepath.Join(r.work, ".git")); errors.Is(err, os.ErrNotExist) || r.out.BaseCommit == "" {
		// The kick died before its workspace was whole: no agent ran in it.
		r.takeWork(sandbox.Result{})
		return nil
	}
	launcher, err := r.m.launcher(r.req)
	if err != nil {
		return fmt.Errorf("salvage kick %s: %w", r.k.ID, err)
	}
	mirror, _ := field(entries, "prepared", "mirror")
	res, err := workspace.Salvage(ctx, launcher, workspace.SalvageRequest{
		ID: r.k.ID, Agent: r.out.Agent, Image: r.req.Image, Dir: r.work, Mirror: mirror, BaseOID: r.out.BaseCommit, Sink: sink,
		AcceptWeaker: r.req.AcceptWeaker,
	})
	if err != nil {
		return fmt.Errorf("salvage kick %s: %w", r.k.ID, err)
	}
	_, started := field(entries, agentStarted, "")
	if r.lost = res.Reason == sandbox.ReasonLost; r.lost && (!started || r.came()) {
		res.Missing = nil // there was none, or all of it had come
	}
	r.out.Missing = res.Missing
	r.takeWork(res)
	return nil
}

// came tells whether all of the work is on this host that the sandbox has announced,
// which it does before it sends any: kick may have been killed while it removed the
// sandbox.
func (r *run) came() bool {
	w, err := r.sink.Work()
	if err != nil {
		return false // none was announced, or nobody can tell what
	}
	for a, some := range map[sandbox.Artifact]bool{
		sandbox.FinalBundle: w.Commits > 0, sandbox.RestBundle: len(w.Unpublished)+w.Stashes > 0, sandbox.DirtyArchive: w.DirtyCount > 0,
	} {
		if _, there := r.sink.Path(a); some && !there {
			return false
		}
	}
	return true
}

// forget removes the mark of a kick that has an outcome.
func (s *State) forget(id string) error {
	err := os.Remove(s.activePath(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// GCReport is what a collection did.
type GCReport struct {
	Recovered []Outcome `json:"recovered,omitempty"` // dead kicks that now have an outcome
	Running   []string  `json:"running,omitempty"`   // kicks that were left alone
	Removed   []string  `json:"removed,omitempty"`   // what dead sandboxes had left, old kicks, mirrors
	Problems  []string  `json:"problems,omitempty"`
}

// GC ends dead kicks, removes what dead sandboxes left behind, and removes
// kicks that ended longer ago than olderThan together with their kept work, if
// olderThan is positive. Mirrors that no kick used for mirrorsUnused go too.
func (m *Manager) GC(ctx context.Context, olderThan, mirrorsUnused time.Duration) (GCReport, error) {
	var rep GCReport
	problem := func(err error) {
		if err != nil {
			rep.Problems = append(rep.Problems, err.Error())
		}
	}
	reap := func(r sandbox.Reaper) {
		names, err := r.Reap(ctx)
		rep.Removed = append(rep.Removed, names...)
		problem(err)
	}
	for _, l := range m.Launchers {
		if reaper, ok := l.(sandbox.Reaper); ok {
			reap(reaper)
		}
	}
	problem(m.reapGateways(reap))
	ids, err := m.State.Kicks()
	if err != nil {
		return rep, err
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			break // the rest stays as it is
		}
		if o, err := m.State.Outcome(id); err == nil && !m.State.unfinished(o) {
			problem(m.State.forget(id))
			continue
		}
		o, err := m.Recover(ctx, id)
		switch {
		case errors.Is(err, ErrBusy):
			rep.Running = append(rep.Running, id)
		case err != nil:
			problem(err)
		default:
			rep.Recovered = append(rep.Recovered, o)
			if o.Unsettled {
				problem(fmt.Errorf("kick %s: its publication is not finished: %s: `kick gc` tries again", id, o.why()))
			}
			if len(o.Missing) > 0 {
				problem(fmt.Errorf("kick %s: not all of its work could be taken out: %s: %s", id, strings.Join(o.Missing, "; "), m.State.nextFor(o)))
			}
		}
	}
	if olderThan > 0 {
		problem(m.removeOld(ids, olderThan, &rep))
	}
	removed, err := workspace.Cache{Dir: m.State.MirrorsDir()}.GC(ctx, workspace.Keep{Unused: mirrorsUnused})
	rep.Removed = append(rep.Removed, removed...)
	problem(err)
	return rep, nil
}

func (m *Manager) removeOld(ids []string, olderThan time.Duration, rep *GCReport) error {
	for _, id := range ids {
		o, err := m.State.Outcome(id)
		if err != nil || time.Since(o.Finished) < olderThan {
			continue
		}
		if err := workspace.Remove(m.State.KickDir(id)); err != nil {
			return fmt.Errorf("remove kick %s: %w", id, err)
		}
		if err := m.State.forget(id); err != nil {
			return fmt.Errorf("forget kick %s: %w", id, err)
		}
		rep.Removed = append(rep.Removed, "kick "+id)
	}
	return nil
}
