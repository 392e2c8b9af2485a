package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/workspace"
)

// withWork takes a kick's kept commits into a quarantine for the time of f.
func withWork(ctx context.Context, s *State, id string, f func(g gitcmd.Git, base, tip string) error) (err error) {
	entries, err := readJournal(filepath.Join(s.KickDir(id), "journal.jsonl"))
	if err != nil {
		return err
	}
	mirror, _ := field(entries, "prepared", "mirror")
	base, _ := field(entries, "prepared", "commit")
	agent, _ := field(entries, "kick", "agent")
	bundle := filepath.Join(s.KickDir(id), "out", string(sandbox.FinalBundle))
	if _, err := os.Stat(bundle); errors.Is(err, os.ErrNotExist) {
		return s.whyNoCommits(id)
	}
	pinned, err := workspace.Cache{Dir: s.MirrorsDir()}.Pin(ctx, mirror, base)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pinned.Release()) }()
	tmp, err := os.MkdirTemp(s.KickDir(id), "look-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	dir := filepath.Join(tmp, "quarantine.git")
	q, err := pushbroker.Ingest(ctx, dir, pushbroker.Work{KickID: id, Agent: agent, Bundle: bundle, Mirror: mirror, BaseOID: base}, pushbroker.IngestLimits{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	return f(gitcmd.Git{Dir: dir}, base, q.Tip)
}

// ErrNoCommits is a kick whose commits cannot be shown because there are none.
var ErrNoCommits = errors.New("no commits")

// whyNoCommits says why a kick has no bundle of commits, and what to do.
func (s *State) whyNoCommits(id string) error {
	if o, err := s.Outcome(id); err == nil {
		if len(o.Missing) > 0 {
			return fmt.Errorf("the commits of kick %s could not be taken out: %s", id, s.nextFor(o))
		}
		return fmt.Errorf("kick %s made %w: `kick show %s` tells how it ended and what is kept", id, ErrNoCommits, id)
	}
	status, err := s.Status(id)
	switch {
	case err != nil:
		return err
	case status == StatusRunning:
		return fmt.Errorf("kick %s is still running: its commits come out when its agent has ended", id)
	}
	return fmt.Errorf("the process of kick %s died: `kick salvage %s` takes its commits out", id, id)
}

// Diff writes what a kick's commits change, escaped.
func Diff(ctx context.Context, s *State, id string, stat bool, w io.Writer) error {
	return withWork(ctx, s, id, func(g gitcmd.Git, base, tip string) error {
		args := []string{"diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"}
		if stat {
			args = append(args, "--stat")
		}
		out := escape.NewWriter(w)
		if err := g.Run(ctx, nil, out, append(args, base, tip)...); err != nil {
			return err
		}
		return out.Flush()
	})
}

// DescribeWork lists a kick's kept commits, the newest first, escaped.
func DescribeWork(ctx context.Context, s *State, id string) ([]string, error) {
	var lines []string
	err := withWork(ctx, s, id, func(g gitcmd.Git, base, tip string) error {
		out, err := g.Output(ctx, nil, "log", "--no-color", "--no-show-signature", "--max-count=50", "--format=%h %s", base+".."+tip)
		for _, l := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			lines = append(lines, escape.String(l))
		}
		return err
	})
	return lines, err
}
