package sandbox

import (
	"context"
	"sync"
	"time"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/resume"
)

// kubeLine is what the box of a pod and that of a machine have in common: the line to
// the shim, and how what is at its other end has ended.
type kubeLine struct {
	line    *resume.Client
	words   tail // of the programs that connect
	carried sync.WaitGroup
	cancel  context.CancelFunc // of carrying

	mu     sync.Mutex
	killed bool
	ending kubeNews      // how it ended, if not by the session's will
	gonech chan struct{} // closed when nothing runs there any more
}

func (l *kubeLine) noteEnd(n kubeNews) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending.phase != kubeEnded && !l.killed {
		l.ending = n
	}
}

// killObject deletes what the shim runs in, once, which ends it at once.
func (l *kubeLine) killObject(c *kube.Client, namespace string, o kubeObject) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.killed {
		return
	}
	l.killed = true
	l.carried.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), killGrace)
		defer cancel()
		_ = c.Delete(ctx, o.resource, namespace, o.name, o.uid) // end does it again
	})
	time.AfterFunc(killGrace, l.line.End)
}

func (l *kubeLine) gone() <-chan struct{} { return l.gonech }

func (l *kubeLine) lastWords() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending.phase == kubeEnded {
		return l.ending.why
	}
	return l.words.String()
}

// look: nothing outside looks into a pod or a machine. The shim has told what it saw.
func (l *kubeLine) look() {}
