package pushbroker

import (
	"context"
	"encoding/json"
	"fmt"
)

// Proposal is the pull request of a push. It is decided and recorded before the
// push, so that whoever finds the branch without its pull request can open the
// very same. It holds no credential.
type Proposal struct {
	Branch string `json:"branch"`
	Base   string `json:"base"`
	Commit string `json:"commit"` // what the branch will have
	Title  string `json:"title"`
	Body   string `json:"body"`
	Draft  bool   `json:"draft,omitempty"`
	// DraftOnly forbids one that is no draft; see Verdict.
	DraftOnly bool `json:"draftOnly,omitempty"`
	// What follows is added when it is open. Teams are "org/team".
	Labels    []string `json:"labels,omitempty"`
	Assignees []string `json:"assignees,omitempty"`
	Reviewers []string `json:"reviewers,omitempty"`
	Teams     []string `json:"teams,omitempty"`
	// Comment is left on a pull request that is there already. Empty: none.
	Comment string `json:"comment,omitempty"`
	// IssueFallback allows an issue in its place.
	IssueFallback bool `json:"issueFallback,omitempty"`
}

// ParseProposal reads a Proposal that a journal recorded.
func ParseProposal(text string) (Proposal, error) {
	var p Proposal
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return p, fmt.Errorf("recorded pull request: %w", err)
	}
	return p, nil
}

// propose decides what the pull request will be and records it.
func (p *publisher) propose(ctx context.Context) error {
	var err error
	if p.proposal, err = p.decide(ctx); err != nil {
		return asPublishError("decide on the pull request", ReasonGit, err)
	}
	text, err := json.Marshal(p.proposal)
	if err != nil {
		return asPublishError("record the pull request", ReasonJournal, err)
	}
	return p.journal("proposal", map[string]string{"proposal": string(text)})
}

// Finish opens the pull request of a branch that is on the remote with the
// proposal's work, as Lookup found it; nothing is pushed. commit is what the
// branch has: the proposal's, or in signed mode GitHub's. A pull request that is
// there is found, not made twice. Publication, errors and journal are as for
// Publish.
func Finish(ctx context.Context, t Target, proposal Proposal, commit string, journal func(event string, fields map[string]string) error) (Publication, error) {
	const op = "open pull request"
	p := &publisher{
		req:      PublishRequest{Target: t, Refs: Refs{Branch: proposal.Branch, Base: proposal.Base}, PullRequest: true, Journal: journal},
		proposal: proposal,
		pub:      Publication{Branch: proposal.Branch, Commit: commit},
	}
	if err := checkRefs(p.req.Refs); err != nil {
		return p.pub, asPublishError(op, ReasonUsage, err)
	}
	if !t.HasPullRequests() {
		return p.pub, &PublishError{Reason: ReasonAuthentication, Op: op, Message: t.String() + " is reached without a credential for pull requests", Pushed: true}
	}
	return p.pub, p.request(ctx)
}
