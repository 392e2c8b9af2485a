package sandbox

import (
	"context"
	"errors"
	"testing"

	"github.com/kickhq/kick/internal/frame"
)

// slowEngine is a runtime that gives up by itself.
type slowEngine struct{}

func (slowEngine) isolation() Isolation    { return Isolation{} }
func (slowEngine) check(*LaunchSpec) error { return nil }
func (slowEngine) together() bool          { return true }
func (slowEngine) sends() bool             { return false }
func (slowEngine) instead() Launcher       { return nil }
func (slowEngine) newBox(ctx context.Context, _ LaunchSpec, _ frame.Mode) (box, error) {
	return nil, &Error{Kind: ErrRuntime, Op: "look for a cluster", Err: errors.Join(context.DeadlineExceeded, ctx.Err())}
}

// leavingEngine is a runtime that cannot remove what it has made.
type leavingEngine struct{ slowEngine }

var errStillThere = &Error{Kind: ErrRuntime, Op: "remove the machine", Err: context.DeadlineExceeded}

func (leavingEngine) newBox(ctx context.Context, spec LaunchSpec, _ frame.Mode) (box, error) {
	spec.OnEvent(Event{}) // which cancels
	return nil, errors.Join(errors.Join(&Error{Kind: ErrRuntime, Op: "make it", Err: ctx.Err()}, errStillThere), nil)
}

// TestGivenUp: a runtime that a deadline of its own ends has failed. Whoever cancels is
// told that it was cancelled, and nobody else is.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	spec := LaunchSpec{ID: "given-up", Agent: "test", Command: []string{"true"}, Network: NetworkNone}
	if res, err := runKick(t.Context(), slowEngine{}, spec); res.Reason != ReasonStartFailed || !errors.Is(err, ErrRuntime) {
		t.Errorf("%s, %v", res.Reason, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res, err := runKick(ctx, slowEngine{}, spec); res.Reason != ReasonCancelled || err != nil {
		t.Errorf("%s, %v", res.Reason, err)
	}

	// What is there still is told.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	spec.OnEvent = func(Event) { cancel() }
	if res, err := runKick(ctx, leavingEngine{}, spec); res.Reason != ReasonCancelled || err == nil || err.Error() != errStillThere.Error() {
		t.Errorf("%s, %v", res.Reason, err)
	}
}
