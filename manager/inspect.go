package manager

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/pushbroker/scan"
)

// Inspect judges work that no kick made, as a kick would that pushes it to a
// branch of its own: ingest and inspection, and nothing else. Where the policy
// has one commit made of an agent's work, that one is judged. The quarantine is
// made in dir, which must exist. held are the values that must not leave, by
// name. It returns pushbroker.ErrNothing if the work ends at its base; a refused
// ingest is a verdict.
func Inspect(ctx context.Context, s *State, dir string, w pushbroker.Work, pol *policy.Policy, held map[string]string) (_ pushbroker.Verdict, err error) {
	// The holes of gitversion.Holes are in what no inspection uses.
	if _, err := usableGit(ctx); err != nil {
		return pushbroker.Verdict{}, err
	}
	scanner, err := s.scanner(held)
	if err != nil {
		return pushbroker.Verdict{}, err
	}
	w.KickID, w.Branch = sampleID, BranchName(cmp.Or(w.Agent, "agent"), sampleID)
	quarantine := filepath.Join(dir, "quarantine.git")
	q, err := pushbroker.Ingest(ctx, quarantine, w, pushbroker.IngestLimits{})
	var refusal *pushbroker.Refusal
	if errors.As(err, &refusal) {
		return refusal.Verdict(w), nil
	}
	if err != nil {
		return pushbroker.Verdict{}, err
	}
	defer func() { err = errors.Join(err, q.Close(), os.RemoveAll(quarantine)) }()
	v, err := pushbroker.Inspect(ctx, q, w, pol, scanner)
	if err != nil || w.Agent == "" || !policy.Is(pol.For(w.Repo, w.Agent).Publish.Squash) {
		return v, err
	}
	title, _ := pushbroker.Description{KickID: w.KickID, Agent: w.Agent, Verdict: v}.Text()
	if err := q.Squash(ctx, w, v, title); err != nil {
		return v, err
	}
	squashed, err := pushbroker.Inspect(ctx, q, w, pol, scanner)
	return squashed.WithLeftBehind(v), err
}

// scanner returns one whose fingerprints are those of all kicks of this state.
func (s *State) scanner(held map[string]string) (*scan.Scanner, error) {
	key, err := s.fingerprintKey()
	if err != nil {
		return nil, err
	}
	h, err := scan.NewHeld(key, held)
	if err != nil {
		return nil, err
	}
	return scan.New(scan.Options{Key: key, Held: h})
}
