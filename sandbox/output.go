package sandbox

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Bounds of what is held for writers that are slower than the agent.
const (
	outputTail   = 64 << 10         // kept of what is over the limit, of each stream
	outputQueue  = 4 << 20          // bytes that wait for a writer
	outputChunks = 256              // frames that do
	outputStall  = 30 * time.Second // how long a full queue may hold the agent up
	outputFinish = 10 * time.Second // how long writers may take after the end
)

// output passes the agent's output on to two writers, from one goroutine, up to
// a limit. Beyond it the bytes are counted and all but the last are dropped.
// Writers that do not keep up slow the agent down for a while, and lose the
// output after that; they can never stop it.
type output struct {
	writers [2]io.Writer // stdout, stderr
	limit   int64        // 0: none
	chunks  chan chunk
	done    chan struct{}

	mu      sync.Mutex
	queued  int
	drained chan struct{} // has a token when the queue became shorter
	stalled bool

	total   [2]int64
	passed  int64
	dropped int64
	ending  [2]tail
}

type chunk struct {
	stream int
	b      []byte
}

func newOutput(stdout, stderr io.Writer, limit int64) *output {
	o := &output{
		writers: [2]io.Writer{stdout, stderr},
		limit:   limit,
		chunks:  make(chan chunk, outputChunks),
		done:    make(chan struct{}),
		drained: make(chan struct{}, 1),
		ending:  [2]tail{{max: outputTail}, {max: outputTail}},
	}
	go o.copy()
	return o
}

// write takes what the agent wrote to stream 0 or 1. It is called from one
// goroutine and does not keep b.
func (o *output) write(stream int, b []byte) {
	o.total[stream] += int64(len(b))
	pass := b
	if o.limit > 0 {
		pass = b[:min(int64(len(b)), o.limit-o.passed)]
	}
	o.passed += int64(len(pass))
	if len(pass) > 0 && !o.queue(chunk{stream, append([]byte(nil), pass...)}) {
		o.dropped += int64(len(pass))
	}
	if rest := b[len(pass):]; len(rest) > 0 {
		o.dropped += int64(len(rest))
		_, _ = o.ending[stream].Write(rest)
	}
}

// queue hands a chunk to the copying goroutine, unless that stands still.
func (o *output) queue(c chunk) bool {
	var stall <-chan time.Time
	for {
		o.mu.Lock()
		stalled := o.stalled
		fits := o.queued+len(c.b) <= outputQueue && len(o.chunks) < cap(o.chunks)
		if fits && !stalled {
			o.queued += len(c.b)
		}
		o.mu.Unlock()
		if stalled {
			return false
		}
		if fits {
			o.chunks <- c
			return true
		}
		if stall == nil {
			stall = time.After(outputStall)
		}
		select {
		case <-o.drained:
		case <-stall:
			o.mu.Lock()
			o.stalled = true
			o.mu.Unlock()
		}
	}
}

func (o *output) copy() {
	defer close(o.done)
	for c := range o.chunks {
		if w := o.writers[c.stream]; w != nil {
			if _, err := w.Write(c.b); err != nil {
				o.writers[c.stream] = nil
			}
		}
		o.mu.Lock()
		o.queued -= len(c.b)
		o.mu.Unlock()
		select {
		case o.drained <- struct{}{}:
		default:
		}
	}
}

// finish passes the rest on and tells whether something was dropped. The ends of
// the output over the limit come after a line on stdout that says how much is
// missing.
func (o *output) finish() (cut bool) {
	if o.dropped > 0 {
		out, err := o.ending[0].String(), o.ending[1].String()
		note := fmt.Sprintf("\n[kick: %d bytes of output cut here]\n", o.dropped-int64(len(out)+len(err)))
		o.queue(chunk{0, []byte(note + out)})
		if err != "" {
			o.queue(chunk{1, []byte(err)})
		}
	}
	close(o.chunks)
	select {
	case <-o.done:
	case <-time.After(outputFinish):
		return true // the writer hangs; its goroutine ends when it returns
	}
	return o.dropped > 0
}
