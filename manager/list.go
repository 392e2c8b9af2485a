package manager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/kickid"
)

// Status is an outcome's code, or one of the states of a kick without one.
type Status string

const (
	// StatusRunning is a kick that a living process holds.
	StatusRunning Status = "running"
	// StatusDead is a kick whose process died before it had an outcome.
	StatusDead Status = "dead"
)

// Summary is one line of a list of kicks.
type Summary struct {
	ID      string    `json:"id"`
	Agent   string    `json:"agent"`
	Repo    string    `json:"repo"`
	Status  Status    `json:"status"`
	Started time.Time `json:"started"`
	Result  string    `json:"result,omitempty"` // pull request, branch, or where work is kept
}

// Status tells whether a kick without an outcome runs or is dead.
func (s *State) Status(id string) (Status, error) {
	lock, err := os.Open(filepath.Join(s.KickDir(id), "lock"))
	if errors.Is(err, os.ErrNotExist) {
		return StatusDead, nil
	}
	if err != nil {
		return "", err
	}
	defer lock.Close()
	holder := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_GETLK, &holder); err != nil {
		return "", fmt.Errorf("look at the lock of kick %s: %w", id, err)
	}
	if holder.Type == unix.F_UNLCK {
		return StatusDead, nil
	}
	return StatusRunning, nil
}

// List lists all kicks, the newest first.
func (s *State) List() ([]Summary, error) {
	ids, err := s.Kicks()
	if err != nil {
		return nil, err
	}
	slices.Reverse(ids)
	out := make([]Summary, 0, len(ids))
	for _, id := range ids {
		sum, err := s.summary(id)
		if err != nil {
			return nil, err
		}
		out = append(out, sum)
	}
	return out, nil
}

func (s *State) summary(id string) (Summary, error) {
	o, err := s.Outcome(id)
	if err == nil {
		sum := Summary{ID: id, Agent: o.Agent, Repo: o.Repo, Status: Status(o.Outcome), Started: o.Started, Result: o.KeptAt}
		switch {
		case o.PullRequest != "":
			sum.Result = o.PullRequest
		case o.Outcome == Published:
			sum.Result = o.Branch
		}
		return sum, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return Summary{}, err
	}
	status, err := s.Status(id)
	if err != nil {
		return Summary{}, err
	}
	sum := Summary{ID: id, Status: status}
	if sum.Started, err = kickid.Time(id); err != nil {
		return Summary{}, err
	}
	entries, err := readJournal(filepath.Join(s.KickDir(id), "journal.jsonl"))
	if err != nil {
		return Summary{}, err
	}
	sum.Agent, _ = field(entries, "kick", "agent")
	sum.Repo, _ = field(entries, "kick", "repo")
	return sum, nil
}

// Transcript opens what the agent wrote.
func (s *State) Transcript(id string) (*os.File, error) {
	return os.Open(filepath.Join(s.KickDir(id), "transcript.log"))
}
