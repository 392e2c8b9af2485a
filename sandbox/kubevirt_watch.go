package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// machineEye follows one machine. There is one watch for each: they are few, and
// each is dear in other ways.
type machineEye struct {
	client *kube.Client
	object kubeObject
	ns     string
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, with every change
	seen    *kubevirtapi.Instance
	gone    bool
	blind   error // why nothing is seen any more
}

// followMachine begins to look at a machine that is there.
func followMachine(client *kube.Client, namespace string, made *kubevirtapi.Instance) *machineEye {
	ctx, cancel := context.WithCancel(context.Background())
	e := &machineEye{client: client, object: objectOf(kubevirtapi.Instances, &made.ObjectMeta), ns: namespace, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}), seen: made}
	which := kube.Selection{Resource: kubevirtapi.Instances, Namespace: namespace, Fields: "metadata.name=" + e.object.name}
	go func() {
		defer close(e.done)
		err := kube.Follow(ctx, client, which, kube.Follower[kubevirtapi.Instance]{
			All: func(list []kubevirtapi.Instance) {
				for i := range list {
					if string(list[i].UID) == e.object.uid {
						e.update(func() { e.seen = &list[i] })
						return
					}
				}
				// A list may be older than what was made a moment ago.
				_, err := kube.Get[kubevirtapi.Instance](ctx, client, kubevirtapi.Instances, namespace, e.object.name)
				if apierrors.IsNotFound(err) {
					e.update(func() { e.gone = true })
				}
			},
			Changed: func(m *kubevirtapi.Instance) {
				if string(m.UID) == e.object.uid {
					e.update(func() { e.seen = m })
				}
			},
			Gone: func(m *kubevirtapi.Instance) {
				if string(m.UID) == e.object.uid {
					e.update(func() { e.seen, e.gone = m, true })
				}
			},
		})
		if err != nil && ctx.Err() == nil {
			e.update(func() { e.blind = err })
		}
	}()
	return e
}

func (e *machineEye) update(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	close(e.changed)
	e.changed = make(chan struct{})
}

// look returns what is known, and what is closed when there is more.
func (e *machineEye) look() (kubeNews, <-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := machineNews(e.seen)
	if e.gone && n.phase != kubeEnded {
		n = kubeNews{phase: kubeEnded, reason: ReasonLost, why: "the machine was deleted by somebody else", remedy: "Whoever did that may have had a reason: kubectl get events"}
	}
	return n, e.changed, e.blind
}

func (e *machineEye) instance() *kubevirtapi.Instance {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

func (e *machineEye) isGone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone
}

func (e *machineEye) close() {
	e.cancel()
	<-e.done
}

// remove deletes the machine with its Secret, and returns when it is gone.
func (e *machineEye) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), kubeRemove)
	defer cancel()
	err := e.client.Delete(ctx, kube.Secrets, e.ns, e.object.name, "")
	if err = errors.Join(err, e.client.Delete(ctx, e.object.resource, e.ns, e.object.name, e.object.uid)); err != nil {
		return kubeError("remove the "+e.object.String(), err)
	}
	for {
		_, changed, blind := e.look()
		switch {
		case e.isGone():
			return nil
		case blind != nil:
			return kubeError("see the end of the "+e.object.String(), blind)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &Error{Kind: ErrRuntime, Op: "remove the " + e.object.String(), Err: fmt.Errorf("it is still there after %v", kubeRemove),
				Remedy: "See that KubeVirt's controllers and the machine's node work; kick gc looks again"}
		}
	}
}

// warning is the last warning about the machine or its pod, for messages.
func (e *machineEye) warning(ctx context.Context) string {
	list, _, err := kube.List[corev1.Event](ctx, e.client, kube.Selection{Resource: kube.Events, Namespace: e.ns, Fields: "type=" + corev1.EventTypeWarning})
	if err != nil {
		return "" // what is known without it is said
	}
	var last corev1.Event
	for _, v := range list {
		name := v.InvolvedObject.Name
		if name != e.object.name && !strings.HasPrefix(name, "virt-launcher-"+e.object.name+"-") {
			continue
		}
		if last.Name == "" || !v.LastTimestamp.Before(&last.LastTimestamp) {
			last = v
		}
	}
	if last.Name == "" {
		return ""
	}
	return last.Reason + ": " + last.Message
}
