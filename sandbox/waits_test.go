package sandbox

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// What a sandbox waits for is told once it has stood for a while, and once.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waits
		var said []string
		waitFor := func(why string, during time.Duration) {
			over := time.After(during)
			for {
				select {
				case <-w.still(why):
					w.tell(func(e Event) { said = append(said, string(e.Kind)+": "+e.Why) })
				case <-over:
					return
				}
			}
		}
		waitFor("its image", waitShown-time.Second)
		waitFor("a node\x1b[2J", waitShown-time.Second)
		waitFor("its image", time.Hour)
		waitFor("its disk", waitShown-time.Second)
		waitFor("its image", time.Hour)
		waitFor("a node\x1b[2J", time.Hour)
		if want := []string{"waiting: its image", `waiting: a node\x1b[2J`}; !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
		w.tell(nil) // of a kick to whom nobody listens
	})
}
