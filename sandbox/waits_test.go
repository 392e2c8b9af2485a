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
		why, over := make(chan string), make(chan struct{})
		go func() {
			defer close(over)
			w.follow(why, func(e Event) { said = append(said, string(e.Kind)+": "+e.Why) })
		}()
		waitFor := func(what string, during time.Duration) {
			why <- what
			time.Sleep(during)
		}
		waitFor("its image", waitShown-time.Second)
		waitFor("a node\x1b[2J", waitShown-time.Second)
		waitFor("its image", time.Hour)
		waitFor("its disk", waitShown-time.Second)
		waitFor("its image", time.Hour)
		waitFor("a node\x1b[2J", time.Hour)
		close(why)
		<-over
		if want := []string{"waiting: its image", `waiting: a node\x1b[2J`}; !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
		w.tell("its image", nil) // of a kick to whom nobody listens
	})
}
