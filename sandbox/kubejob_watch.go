package sandbox

import (
	"context"
	"strings"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kickhq/kick/internal/kube"
)

// kubeWatch follows all Jobs of one launcher, their pods, and the warnings of the
// namespace, for any number of kicks at once: three watches, whatever their number.
// It watches while there is a kick.
type kubeWatch struct {
	client    *kube.Client
	namespace string
	labels    string

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
	uid     string // of the Job that is meant; empty: any
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
		return kube.Follow(ctx, w.client, ours(kube.Jobs), kube.Follower[batchv1.Job]{All: w.allJobs, Changed: w.job, Gone: w.jobGone})
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
		e.uid = o.uid
		if e.seen.job != nil && string(e.seen.job.UID) != o.uid || e.seen.pod != nil && !e.owns(e.seen.pod) {
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
		if e.seen.noJob && e.seen.pod == nil {
			e.seen.pod = &corev1.Pod{ObjectMeta: meta}
		}
		if !e.seen.noJob && e.seen.job == nil {
			e.seen.job = &batchv1.Job{ObjectMeta: meta}
		}
	})
}

func (w *kubeWatch) job(j *batchv1.Job) {
	// What is not looked at is not kept: 5,000 Jobs are to fit into memory.
	j.ManagedFields, j.Spec.Template = nil, corev1.PodTemplateSpec{}
	w.one(j.Labels[labelID], func(e *kubeEye) {
		if e.uid == "" || e.uid == string(j.UID) {
			e.seen.job = j
		}
	})
}

func (w *kubeWatch) jobGone(j *batchv1.Job) {
	w.one(j.Labels[labelID], func(e *kubeEye) {
		if e.uid == string(j.UID) {
			e.seen.jobGone = true
		}
	})
}

func (w *kubeWatch) allJobs(list []batchv1.Job) {
	there := map[string]bool{}
	for i := range list {
		there[string(list[i].UID)] = true
		w.job(&list[i])
	}
	w.each(func(e *kubeEye) {
		e.seen.jobGone = e.seen.jobGone || e.seen.job != nil && !there[string(e.seen.job.UID)]
	})
}

// owns tells whether a pod is of the Job that is meant, or the one that is meant.
func (e *kubeEye) owns(p *corev1.Pod) bool {
	if e.uid == string(p.UID) {
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

// warning takes an event. A pod's name is the Job's with five characters more.
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
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			w.one(name[:i], func(e *kubeEye) {
				if e.seen.pod == nil || e.seen.pod.UID == v.InvolvedObject.UID {
					e.seen.podSaid, e.seen.podWhat = v.Reason+": "+message, v.Reason
				}
			})
		}
	}
}
