package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/sandbox"
)

// sweep removes what dead sandboxes left behind, finishes what dead kicks had
// begun to publish to the request's repository, and looks for other dead kicks.
// It runs beside a kick, and yields notes for its outcome.
func (m *Manager) sweep(ctx context.Context, req Request) <-chan []string {
	notes := make(chan []string, 1)
	go func() {
		var out []string
		launcher, _ := m.launcher(req) // the run says what is wrong
		if reaper, ok := launcher.(sandbox.Reaper); ok {
			if _, err := reaper.Reap(ctx); err != nil && ctx.Err() == nil {
				out = append(out, "clean up after dead sandboxes: "+err.Error())
			}
		}
		dead, err := m.State.dead()
		if err != nil {
			out = append(out, "look for dead kicks: "+err.Error())
		}
		dead = slices.DeleteFunc(dead, func(id string) bool {
			note, finished := m.finishFor(ctx, id, req)
			if note != "" {
				out = append(out, note)
			}
			return finished
		})
		if n := len(dead); n > 0 {
			out = append(out, fmt.Sprintf("%d kicks died before they were finished, e.g. %s: `kick gc` takes out and keeps their work, and finishes what they had begun", n, dead[0]))
		}
		notes <- out
	}()
	return notes
}

// finishFor finishes a dead kick that had begun to push to the request's
// repository, with the request's authority.
func (m *Manager) finishFor(ctx context.Context, id string, req Request) (note string, finished bool) {
	entries, err := readJournal(filepath.Join(m.State.KickDir(id), "journal.jsonl"))
	if err != nil {
		return "", false // gc says it
	}
	repo, _ := field(entries, "kick", "repo")
	if _, begun := field(entries, "push", "branch"); !begun || repo != req.Source.Repo || req.Publish == PublishNone {
		return "", false
	}
	with := *m
	with.Target = func(string) (pushbroker.Target, error) { return req.Target, nil }
	o, err := with.Recover(ctx, id)
	switch {
	case errors.Is(err, ErrBusy):
		return "", true
	case err != nil:
		return fmt.Sprintf("finish kick %s, which had died: %v", id, err), false
	case o.Unsettled:
		return "", false
	}
	return fmt.Sprintf("kick %s had died while it published: it ended as %s %s", id, o.Outcome, o.PullRequest), true
}

// dead lists the kicks that are not finished and that no process holds.
func (s *State) dead() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, "active"))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if !kickid.Valid(e.Name()) {
			continue
		}
		status, err := s.Status(e.Name())
		if err != nil {
			return ids, err
		}
		if o, err := s.Outcome(e.Name()); status == StatusDead && (err != nil || o.Unsettled) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
