package sandboxtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

// Eight sandboxes of two launchers run at once, all of them alive at one time,
// and a reaper beside them touches none.
func (s *suite) eightAtOnce(t *testing.T) {
	other, err := s.h.New()
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := other.(interface{ Close() error }); ok {
		defer func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stop := make(chan struct{})
	var reaping sync.WaitGroup
	if reaper, ok := other.(sandbox.Reaper); ok {
		reaping.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				removed, err := reaper.Reap(ctx)
				if err != nil {
					t.Errorf("reap: %v", err)
					return
				}
				for _, name := range removed {
					t.Logf("reaped %s", name)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	defer reaping.Wait() // before its context ends
	defer close(stop)
	var runs []*launched
	var goOn []func(*launched)
	for i := range 8 {
		spec, f := s.waits(t, "echo $0 >>id; sleep 0 & wait; echo ready $0 $(cat id)", "echo went on")
		goOn = append(goOn, f)
		runs = append(runs, s.startWith(t, []sandbox.Launcher{s.launcher, other}[i%2], spec))
	}
	for _, r := range runs {
		r.waitFor("\n")
	}
	for i, r := range runs {
		goOn[i](r)
	}
	ids := map[string]bool{}
	for i, r := range runs {
		o := r.wait()
		var a, b string
		if n, _ := fmt.Sscanf(o.stdout, "ready %s %s\n", &a, &b); n != 2 || a != b {
			t.Errorf("run %d: stdout %q", i, o.stdout)
		}
		ids[a] = true
		if !s.wentOn(o) || len(o.Isolation.Missing()) > 0 {
			t.Errorf("run %d: %v, %s, exit code %d, %s", i, o.err, o.Reason, o.ExitCode, o.Detail)
		}
	}
	if len(ids) != 8 {
		t.Errorf("%d different ids", len(ids))
	}
}

// wentOn tells whether a run of waits ended as it was to.
func (s *suite) wentOn(o outcome) bool {
	if s.h.Sent {
		return o.err == nil && o.Reason == sandbox.ReasonCancelled
	}
	return o.err == nil && o.Reason == sandbox.ReasonExited && o.ExitCode == 0 && strings.HasSuffix(o.stdout, "went on\n")
}

// Two sandboxes of one id never run at once: the second is refused, or waits
// for the end of the first.
func (s *suite) sameID(t *testing.T) {
	first, goOn := s.waits(t, "echo ready", "echo went on")
	r := s.start(t, first)
	r.waitFor("ready\n")

	second := s.script(t, "echo second")
	second.ID = first.ID
	q := s.start(t, second)
	child := s.script(t, "echo third")
	child.ID = first.ID
	c := s.startChild(t, child)
	refused := 0
	select {
	case <-q.done:
		refused++
		if q.out.err == nil || !q.out.Started.IsZero() || len(words(q.out.err.Error())) < 4 {
			t.Errorf("second run: error %v, %+v", q.out.err, q.out.Result)
		}
	case <-q.started:
		t.Error("two sandboxes of one id run at once")
	case <-time.After(5 * time.Second):
		t.Log("the second run waits")
	}
	if refused == 1 {
		<-c.done
		if c.err == nil {
			t.Error("another process may use the id at the same time")
		}
	}
	goOn(r)
	o := r.wait()
	if !s.wentOn(o) {
		t.Errorf("first run: %v, stdout %q", o.err, o.stdout)
	}
	if refused == 0 {
		if w := q.wait(); w.err != nil || w.Started.Before(o.Finished) {
			t.Errorf("second run: %v, started %v, the first finished %v", w.err, w.Started, o.Finished)
		}
	}
	// Afterwards the id is free.
	again := s.script(t, "echo again")
	again.ID = first.ID
	s.succeed(t, again)
}
