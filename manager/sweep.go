package manager

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/sandbox"
)

// sweep removes what dead sandboxes left behind and looks for dead kicks. It
// runs beside a kick, and yields notes for its outcome.
func (m *Manager) sweep(ctx context.Context, runtime string) <-chan []string {
	notes := make(chan []string, 1)
	go func() {
		var out []string
		if reaper, ok := m.Launchers[runtime].(sandbox.Reaper); ok {
			if _, err := reaper.Reap(ctx); err != nil && ctx.Err() == nil {
				out = append(out, "clean up after dead sandboxes: "+err.Error())
			}
		}
		dead, err := m.State.dead()
		if err != nil {
			out = append(out, "look for dead kicks: "+err.Error())
		}
		if n := len(dead); n > 0 {
			out = append(out, fmt.Sprintf("%d kicks died before they had an outcome, e.g. %s: `kick gc` takes out and keeps their work", n, dead[0]))
		}
		notes <- out
	}()
	return notes
}

// dead lists the kicks without an outcome that no process holds.
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
		if _, err := s.Outcome(e.Name()); status == StatusDead && err != nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
