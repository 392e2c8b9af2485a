package pushbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/policy"
)

// PublishRequest is inspected work and where it goes.
type PublishRequest struct {
	Target     Target
	Quarantine *Quarantine
	Verdict    Verdict
	Refs       Refs
	// PullRequest asks for a pull request after the push. The target must have
	// them.
	PullRequest bool
	// AcceptReview pushes work that asks for a review without a pull request,
	// where nobody reviews.
	AcceptReview bool
	// Description becomes the pull request's title and body. Publish fills in
	// its Refs, Verdict and Target.
	Description Description
	// RulesAt is the commit whose CODEOWNERS and template count, where the base is
	// an earlier kick's work. Empty: the quarantine's base.
	RulesAt string
	// Form is how the pull request looks and whom it asks, as policy.Policy.For
	// gives it. Signed has GitHub make the commits; Squash is the caller's to see
	// to.
	Form policy.Publish
	// Journal is called before each outside effect: "mint", "push",
	// "pull-request" and "revoke", a repetition included; before the first push
	// also with "proposal", whose field of that name is the Proposal as JSON. An
	// error stops the effect, except a revocation. May be nil.
	Journal func(event string, fields map[string]string) error
}

// Publication is what is on the remote.
type Publication struct {
	Branch string `json:"branch"`
	Commit string `json:"commit"`
	// Pushed is false when the branch was there with this commit already.
	Pushed bool `json:"pushed"`
	// Number and URL of the pull request; 0 and "" without one.
	Number int    `json:"number,omitempty"`
	URL    string `json:"url,omitempty"`
	Draft  bool   `json:"draft,omitempty"`
	// Signed tells that GitHub made the commits, so that Commit is another one
	// than was inspected, with the same tree.
	Signed bool `json:"signed,omitempty"`
	// Updated says how a branch that was there changed. Empty: it is new.
	Updated Updated `json:"updated,omitempty"`
	// Issue is the URL of the issue in the place of a pull request that may not be
	// opened. Empty: none.
	Issue string `json:"issue,omitempty"`
	// Existing tells that the pull request was there already.
	Existing bool `json:"existing,omitempty"`
	// Warnings are what went wrong without undoing the publication: a label, a
	// reviewer, a token that could not be revoked.
	Warnings []string `json:"warnings,omitempty"`
}

// ReviewLabel marks a pull request whose work asks for a review.
const ReviewLabel = "kick-review"

// Publish pushes inspected work and opens its pull request. It can be called
// again for the same work: a branch and a pull request that are there are
// found, not made twice. The Publication is valid also with an error, which is
// a *PublishError.
//
// A token is minted for the push and another for the pull request, each right
// before and revoked right after.
func Publish(ctx context.Context, req PublishRequest) (Publication, error) {
	p := &publisher{req: req}
	if err := p.check(); err != nil {
		return p.pub, err
	}
	if req.PullRequest {
		if err := p.propose(ctx); err != nil {
			return p.pub, err
		}
	}
	push := p.push
	if policy.Is(req.Form.Signed) {
		push = p.pushSigned
	}
	if err := push(ctx); err != nil {
		return p.pub, err
	}
	if !req.PullRequest {
		return p.pub, nil
	}
	return p.pub, p.request(ctx)
}

type publisher struct {
	req      PublishRequest
	proposal Proposal // set before the push, where there will be a pull request
	pub      Publication
	waited   time.Duration // because the server limits the rate
}

// check refuses what must never get here; the caller's own checks come first.
func (p *publisher) check() error {
	r := p.req
	op := "publish to " + r.Target.String()
	v := r.Verdict
	switch {
	case r.Quarantine == nil || v.Tip != r.Quarantine.Tip || v.Base != r.Quarantine.BaseOID:
		return publishError(ReasonUsage, op, "the verdict is about other work than the quarantine holds")
	case !v.Pass && !v.Review:
		return publishError(ReasonUsage, op, "the work did not pass the inspection")
	case r.PullRequest && !r.Target.HasPullRequests():
		return &PublishError{Reason: ReasonUsage, Op: op, Message: "a plain git remote has no pull requests", Remedy: "Publish a branch, or give a GitHub App or a token."}
	case policy.Is(r.Form.Signed) && !r.Target.HasPullRequests():
		return &PublishError{Reason: ReasonUnsignable, Op: op, Message: "GitHub alone makes signed commits, and this remote is reached without its API", Remedy: "Give a GitHub App or a token, or publish without signed mode."}
	case v.Review && !r.PullRequest && !r.AcceptReview:
		return &PublishError{Reason: ReasonUsage, Op: op, Message: "the work asks for a review, and a branch has no reviewer", Remedy: "Look at the work and accept the review."}
	}
	return nil
}

func (p *publisher) push(ctx context.Context) error {
	r := p.req
	return p.withToken(ctx, "push", githubapp.Permissions{"contents": "write"}, func(token githubapp.Token) error {
		return p.retry(ctx, func() error {
			if err := p.journal("push", map[string]string{"target": r.Target.String(), "branch": r.Refs.Branch, "commit": r.Quarantine.Tip, "old": r.Refs.Old}); err != nil {
				return err
			}
			pushed, err := Push(ctx, r.Quarantine, r.Target, r.Refs, token)
			if err != nil {
				return p.explainAuth(err, token)
			}
			p.pub.Branch, p.pub.Commit, p.pub.Pushed = r.Refs.Branch, r.Quarantine.Tip, pushed
			p.pub.Updated = r.Refs.updated(r.Quarantine)
			return nil
		})
	})
}

// explainAuth tells a token that was good a moment ago from one that never
// was.
func (p *publisher) explainAuth(err error, token githubapp.Token) error {
	var e *PublishError
	if p.req.Target.access.App != nil && !token.IsZero() && errors.As(err, &e) && e.Reason == ReasonAuthentication {
		e.Reason = ReasonTokenInvalid
	}
	return err
}

func (p *publisher) journal(event string, fields map[string]string) error {
	if p.req.Journal == nil {
		return nil
	}
	if err := p.req.Journal(event, fields); err != nil {
		return &PublishError{Reason: ReasonJournal, Op: "record " + event, Message: escape.String(err.Error()), Err: err}
	}
	return nil
}

func (p *publisher) warn(format string, args ...any) {
	p.pub.Warnings = append(p.pub.Warnings, escape.String(fmt.Sprintf(format, args...)))
}

// retryWaits are the pauses before the second and the third attempt after a
// server error.
var retryWaits = []time.Duration{time.Second, 4 * time.Second}

// maxLimitWait bounds what one publication waits in all because the server
// limits the rate: twice GitHub's least, a minute. A longer wait is the
// caller's.
const maxLimitWait = 2 * time.Minute

// retry repeats what failed on the server's side or on the way. What do does
// must look first whether an attempt before it arrived.
func (p *publisher) retry(ctx context.Context, do func() error) error {
	for attempt := 0; ; attempt++ {
		err := do()
		wait, again := p.patience(err, attempt)
		if !again || pause(ctx, wait) != nil {
			return err
		}
	}
}

// patience says how long to wait before another attempt, if one may help.
func (p *publisher) patience(err error, attempt int) (wait time.Duration, again bool) {
	var e *PublishError
	if !errors.As(err, &e) || attempt == len(retryWaits) {
		return 0, false
	}
	switch e.Reason {
	case ReasonServer:
		return retryWaits[attempt], true
	case ReasonNetwork, ReasonAnswer:
		// A server that was silent for minutes gets no second chance.
		return retryWaits[attempt], attempt == 0 && !errors.Is(e.Err, context.DeadlineExceeded)
	case ReasonRateLimit:
		if p.waited+e.RetryAfter > maxLimitWait {
			return 0, false
		}
		p.waited += e.RetryAfter
		p.warn("waited %s because the server limits the rate", e.RetryAfter.Round(time.Second))
		return e.RetryAfter, true
	}
	return 0, false
}

// pause is a variable for this package's tests, which do not wait.
var pause = func(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
