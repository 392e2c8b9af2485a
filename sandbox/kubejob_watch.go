package sandbox

import (
	"cmp"
	"context"
	"strings"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kickhq/kick/internal/kube"
)

// kubeWatch follows all Jobs of one launcher, or its claims of sandboxes, their
// pods, and the warnings of the namespace, for any number of kicks at once: three
// watches, whatever their number. It watches while there is a kick.
type kubeWatch struct {
	client    *kube.Client
	namespace string
	labels    string
	claims    bool // and no Jobs

	mu     sync.Mutex
	kicks  map[string]*kubeEye // by id
	cancel context.CancelFunc
	done   chan struct{}
}

// kubeEye is what one kick sees of its Job.
type kubeEye struct {
	watch *kubeWatch
	id    string

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, with every change
	seen    kubeSeen
	uid     string // of the Job, claim or pod that is meant; empty: any
	start   string // the attempt that has made it
	blind   error  // why nothing is seen any more
}

// open begins to look at a Job that is yet to be made.
func (w *kubeWatch) open(id string) *kubeEye {
	e := &kubeEye{watch: w, id: id, changed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kicks == nil {
		w.kicks = map[string]*kubeEye{}
	}
	w.kicks[id] = e
	if len(w.kicks) == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		w.cancel, w.done = cancel, make(chan struct{})
		go w.follow(ctx, w.done)
	}
	return e
}

// watchOne looks at one object alone, which was there before.
func watchOne(c *kube.Client, namespace string, o kubeObject) *kubeEye {
	w := &kubeWatch{client: c, namespace: namespace, labels: labelID + "=" + o.id, claims: o.resource == kube.SandboxClaims}
	e := w.open(o.id)
	e.expectOld(o)
	return e
}

// close looks no more. The last one waits until the watches have ended.
func (e *kubeEye) close() {
	w := e.watch
	w.mu.Lock()
	delete(w.kicks, e.id)
	var done chan struct{}
	if len(w.kicks) == 0 {
		w.cancel()
		done = w.done
	}
	w.mu.Unlock()
	if done != nil {
		<-done
	}
}

func (w *kubeWatch) follow(ctx context.Context, done chan struct{}) {
	defer close(done)
	var all sync.WaitGroup
	run := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				w.each(func(e *kubeEye) { e.blind = err })
			}
		})
	}
	ours := func(r kube.Resource) kube.Selection {
		return kube.Selection{Resource: r, Namespace: w.namespace, Labels: w.labels}
	}
	run(func() error {
		if w.claims {
			return kube.Follow(ctx, w.client, ours(kube.SandboxClaims), ownersOf(w, (*sandboxClaim).meta, func(s *kubeSeen, c *sandboxClaim) { s.claim = c }))
		}
		return kube.Follow(ctx, w.client, ours(kube.Jobs), ownersOf(w, jobMeta, func(s *kubeSeen, j *batchv1.Job) {
			// What is not looked at is not kept: 5,000 Jobs are to fit into memory.
			j.Spec.Template = corev1.PodTemplateSpec{}
			s.job = j
		}))
	})
	run(func() error {
		return kube.Follow(ctx, w.client, ours(kube.Pods), kube.Follower[corev1.Pod]{All: w.allPods, Changed: w.pod, Gone: w.podGone})
	})
	run(func() error {
		warnings := kube.Selection{Resource: kube.Events, Namespace: w.namespace, Fields: "type=" + corev1.EventTypeWarning}
		return kube.Follow(ctx, w.client, warnings, kube.Follower[corev1.Event]{OnlyNew: true, Changed: w.warning})
	})
	all.Wait()
}

func (w *kubeWatch) each(f func(*kubeEye)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.kicks {
		e.update(f)
	}
}

func (w *kubeWatch) one(id string, f func(*kubeEye)) {
	w.mu.Lock()
	e := w.kicks[id]
	w.mu.Unlock()
	if e != nil {
		e.update(f)
	}
}

func (e *kubeEye) update(f func(*kubeEye)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(e)
	close(e.changed)
	e.changed = make(chan struct{})
}

// look returns what was seen, and what is closed when there is more.
func (e *kubeEye) look() (kubeSeen, <-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen, e.changed, e.blind
}

// expect forgets what was seen of another one of the same kick.
func (e *kubeEye) expect(o kubeObject) {
	e.update(func(e *kubeEye) {
		e.uid, e.start = o.uid, o.start
		if m := e.seen.owner(); m != nil && string(m.UID) != o.uid || e.seen.pod != nil && !e.owns(e.seen.pod) {
			e.seen = kubeSeen{}
		}
		e.seen.noJob = o.resource == kube.Pods
	})
}

// expectOld is expect for what was there before the watch began. So if a list does
// not have it, it is gone; a list may be older than what was made a moment ago.
func (e *kubeEye) expectOld(o kubeObject) {
	e.expect(o)
	e.update(func(e *kubeEye) {
		meta := metav1.ObjectMeta{Name: o.name, UID: types.UID(o.uid)}
		switch o.resource {
		case kube.Pods:
			e.seen.pod = cmp.Or(e.seen.pod, &corev1.Pod{ObjectMeta: meta})
		case kube.SandboxClaims:
			e.seen.claim = cmp.Or(e.seen.claim, &sandboxClaim{Metadata: meta})
		default:
			e.seen.job = cmp.Or(e.seen.job, &batchv1.Job{ObjectMeta: meta})
		}
	})
}

func jobMeta(j *batchv1.Job) *metav1.ObjectMeta { return &j.ObjectMeta }

// ownersOf follows what has the pods, of either kind.
func ownersOf[T any](w *kubeWatch, meta func(*T) *metav1.ObjectMeta, set func(*kubeSeen, *T)) kube.Follower[T] {
	changed := func(o *T) {
		m := meta(o)
		m.ManagedFields = nil
		w.one(m.Labels[labelID], func(e *kubeEye) {
			if e.uid == "" || e.uid == string(m.UID) {
				set(&e.seen, o)
			}
		})
	}
	return kube.Follower[T]{
		Changed: changed,
		Gone: func(o *T) {
			m := meta(o)
			w.one(m.Labels[labelID], func(e *kubeEye) { e.seen.jobGone = e.seen.jobGone || e.uid == string(m.UID) })
		},
		All: func(list []T) {
			there := map[string]bool{}
			for i := range list {
				there[string(meta(&list[i]).UID)] = true
				changed(&list[i])
			}
			w.each(func(e *kubeEye) {
				m := e.seen.owner()
				e.seen.jobGone = e.seen.jobGone || m != nil && !there[string(m.UID)]
			})
		},
	}
}

// owns tells whether a pod is of the Job that is meant, or was taken for the claim
// that is, or is the one that is meant.
func (e *kubeEye) owns(p *corev1.Pod) bool {
	if e.uid == string(p.UID) || e.start != "" && p.Annotations[jobStart] == e.start {
		return true
	}
	for _, o := range p.OwnerReferences {
		if e.uid == string(o.UID) {
			return true
		}
	}
	return e.uid == ""
}

func (w *kubeWatch) pod(p *corev1.Pod) {
	p.ManagedFields = nil
	w.one(p.Labels[labelID], func(e *kubeEye) {
		if e.owns(p) {
			e.seen.pod, e.seen.podGone, e.seen.unlisted = p, false, false
		}
	})
}

func (w *kubeWatch) podGone(p *corev1.Pod) {
	w.one(p.Labels[labelID], func(e *kubeEye) {
		if e.owns(p) {
			e.seen.pod, e.seen.podGone = p, true
		}
	})
}

func (w *kubeWatch) allPods(list []corev1.Pod) {
	there := map[string]bool{}
	for i := range list {
		there[string(list[i].UID)] = true
		w.pod(&list[i])
	}
	w.each(func(e *kubeEye) {
		e.seen.podGone = e.seen.podGone || e.seen.pod != nil && !e.seen.unlisted && !there[string(e.seen.pod.UID)]
	})
}

// warning takes an event. A pod's name is the Job's with five characters more, or
// that of the claim for which it was made.
func (w *kubeWatch) warning(v *corev1.Event) {
	name, isKick := strings.CutPrefix(v.InvolvedObject.Name, "kick-")
	if !isKick {
		return
	}
	message := escaped(v.Message)
	switch v.InvolvedObject.Kind {
	case "Job":
		w.one(name, func(e *kubeEye) {
			if e.uid == "" || e.uid == string(v.InvolvedObject.UID) {
				e.seen.jobSaid, e.seen.jobCause = message, v.Reason
			}
		})
	case "Pod":
		said := func(e *kubeEye) {
			if e.seen.pod == nil || e.seen.pod.UID == v.InvolvedObject.UID {
				e.seen.podSaid, e.seen.podWhat = v.Reason+": "+message, v.Reason
			}
		}
		w.one(name, said)
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			w.one(name[:i], said)
		}
	}
}
