package sandbox

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kickhq/kick/internal/kube"
)

// kubeWatch follows all Jobs of one launcher, or its claims of sandboxes, their
// pods, and the warnings of the namespace, for any number of kicks at once: three
// watches, whatever their number. It watches while there is a kick, and a while after.
type kubeWatch struct {
	client    *kube.Client
	namespace string
	labels    string
	claims    bool // and no Jobs
	one       bool // it is for one object that was there before

	mu      sync.Mutex
	kicks   map[string]*kubeEye // by id
	watches *kubeWatches        // that are going on; nil: none
	idle    *time.Timer         // ends them, when there is no kick
}

// kubeWatches are the three watches, while they are going on.
type kubeWatches struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// watchIdle is how long a launcher watches on without a kick: for the next one, and
// for what removes this one's directory from a claim.
const watchIdle = 10 * time.Second

// kubeEye is what one kick sees of its Job.
type kubeEye struct {
	watch *kubeWatch
	id    string

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, with every change
	seen    kubeSeen
	uid     string                         // of the Job, claim or pod that is meant; empty: any
	start   string                         // the attempt that has made it
	differs func(*corev1.PodSpec) []string // tells in what a pod is not as asked for; nil: it matters to nobody
	blind   error                          // why nothing is seen any more
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
	if w.idle != nil {
		w.idle.Stop()
	}
	if w.watches == nil {
		ctx, cancel := context.WithCancel(context.Background())
		w.watches = &kubeWatches{cancel, make(chan struct{})}
		go w.follow(ctx, w.watches)
	}
	return e
}

// watchOne looks at one object alone, which was there before.
func watchOne(c *kube.Client, namespace string, o kubeObject) *kubeEye {
	w := &kubeWatch{client: c, namespace: namespace, labels: labelID + "=" + o.id, claims: o.resource == kube.SandboxClaims, one: true}
	e := w.open(o.id)
	e.expectOld(o)
	return e
}

// close looks no more.
func (e *kubeEye) close() {
	w := e.watch
	w.mu.Lock()
	delete(w.kicks, e.id)
	idle := len(w.kicks) == 0
	if idle && !w.one {
		w.idle = time.AfterFunc(watchIdle, w.end)
	}
	w.mu.Unlock()
	if idle && w.one {
		w.end()
	}
}

// end ends the watches, if no kick has begun meanwhile.
func (w *kubeWatch) end() {
	w.mu.Lock()
	watches := w.watches
	if len(w.kicks) > 0 || watches == nil {
		w.mu.Unlock()
		return
	}
	w.watches = nil
	w.mu.Unlock()
	watches.cancel()
	<-watches.done
}

// fail tells all kicks that nothing is seen any more. The next one watches anew.
func (w *kubeWatch) fail(watches *kubeWatches, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watches != watches {
		return
	}
	w.watches = nil
	watches.cancel()
	for _, e := range w.kicks {
		e.update(func(e *kubeEye) { e.blind = err })
	}
}

func (w *kubeWatch) follow(ctx context.Context, watches *kubeWatches) {
	defer close(watches.done)
	var all sync.WaitGroup
	run := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				w.fail(watches, err)
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
			j.Spec = batchv1.JobSpec{Suspend: j.Spec.Suspend} // see keep
			s.job = j
		}))
	})
	run(func() error {
		return kube.Follow(ctx, w.client, ours(kube.Pods), kube.Follower[corev1.Pod]{All: w.allPods, Changed: w.pod, Gone: w.podGone, NoneYet: !w.one})
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

func (w *kubeWatch) update(id string, f func(*kubeEye)) {
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
		w.update(m.Labels[labelID], func(e *kubeEye) {
			if e.uid == "" || e.uid == string(m.UID) {
				m.Labels, m.Annotations = nil, nil
				set(&e.seen, o)
			}
		})
	}
	return kube.Follower[T]{
		NoneYet: !w.one,
		Changed: changed,
		Gone: func(o *T) {
			m := meta(o)
			w.update(m.Labels[labelID], func(e *kubeEye) { e.seen.jobGone = e.seen.jobGone || e.uid == string(m.UID) })
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

// keep takes a pod as it is now. What it was asked to be is judged at once, and what
// nobody looks at later is not kept: 5,000 kicks are to fit into memory.
func (e *kubeEye) keep(p *corev1.Pod) {
	e.seen.podDiffers = nil
	if e.differs != nil {
		e.seen.podDiffers = e.differs(&p.Spec)
	}
	kept := corev1.PodSpec{NodeName: p.Spec.NodeName, AutomountServiceAccountToken: p.Spec.AutomountServiceAccountToken}
	for _, c := range p.Spec.Containers {
		kept.Containers = append(kept.Containers, corev1.Container{Name: c.Name, Command: slices.Clone(c.Command[:min(len(c.Command), 1)])})
	}
	p.Spec, p.ManagedFields = kept, nil
	e.seen.pod = p
}

func (w *kubeWatch) pod(p *corev1.Pod) {
	w.update(p.Labels[labelID], func(e *kubeEye) {
		if e.owns(p) {
			e.keep(p)
			e.seen.podGone, e.seen.unlisted = false, false
		}
	})
}

func (w *kubeWatch) podGone(p *corev1.Pod) {
	w.update(p.Labels[labelID], func(e *kubeEye) {
		if e.owns(p) {
			e.keep(p)
			e.seen.podGone = true
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
		w.update(name, func(e *kubeEye) {
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
		w.update(name, said)
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			w.update(name[:i], said)
		}
	}
}
