package manager

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/workspace"
)

// TestGone: of work that nothing has any more nobody is told that salvage may bring it,
// and no workspace without it is kept in its place.
func TestGone(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		s := newState(t)
		k, err := s.NewKick()
		if err != nil {
			t.Fatal(err)
		}
		r := &run{m: &Manager{State: s}, k: k, start: time.Now(), work: k.Path("work"), out: Outcome{ID: k.ID}}
		if err := os.Mkdir(r.work, 0o700); err != nil {
			t.Fatal(err)
		}
		if r.sink, err = workspace.NewDirSink(k.Path("out"), 1<<20); err != nil {
			t.Fatal(err)
		}
		r.judge(t.Context(), sandbox.Result{Reason: sandbox.ReasonLost, Started: time.Now(), Missing: []string{"artifacts"}, Gone: gone}, errors.New("the machine has failed"))
		if r.removal != nil {
			if err := <-r.removal; err != nil {
				t.Error(err)
			}
		}
		_, err = os.Lstat(r.work)
		kept := err == nil
		again := slices.ContainsFunc(r.out.Notes, func(n string) bool { return strings.HasPrefix(n, leftInPlace) })
		if kept == gone || again == gone || r.out.Outcome != RuntimeError {
			t.Errorf("gone: %v, kept: %v, %+v", gone, kept, r.out)
		}
		if err := errors.Join(r.sink.Close(), k.close()); err != nil {
			t.Error(err)
		}
	}
}
