package sandbox

import "time"

// waitShown is how long a sandbox waits for the same thing before anybody is told.
const waitShown = 3 * time.Second

// waits tells, by EventWaiting, what a sandbox that does not start yet waits for.
type waits struct {
	why   string
	timer *time.Timer
	told  string
}

// still returns a channel that has a value once the sandbox has waited for that, and for
// nothing else in between, for a while.
func (w *waits) still(why string) <-chan time.Time {
	if why != w.why || w.timer == nil {
		w.why, w.timer = why, time.NewTimer(waitShown)
	}
	return w.timer.C
}

// tell tells of it, unless it is what was told last.
func (w *waits) tell(why string, on func(Event)) {
	if why == w.told || on == nil {
		return
	}
	w.told = why
	on(Event{Kind: EventWaiting, Time: time.Now(), Why: escaped(why)})
}

// follow tells of what comes until there is no more, as far as it stands for a while.
func (w *waits) follow(why <-chan string, on func(Event)) {
	for now, more := <-why; more; {
		select {
		case now, more = <-why:
		case <-w.still(now):
			w.tell(now, on)
		}
	}
}
