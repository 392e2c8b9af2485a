package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/kube"
)

// Labels of a pool's standbys. Who owns them (a Deployment, say) selects by the
// first two, so that one without labelStandby is replaced.
const (
	labelPool    = "kick.pool"    // its name; it stays after the claim
	labelStandby = "kick.standby" // standsNew until the claim, and never again
	labelShape   = "kick.shape"   // what it is made as, see shapeOf
)

// standsNew is the labelStandby of what no kick has had. See standsAgain.
const standsNew = "true"

// kubePool hands out sandboxes of one kind that stand by, each to one kick, which
// has it alone. Any number of processes may do that at once: a claim is one patch
// that holds for one version of the object, and the API server takes the first.
type kubePool[T any] struct {
	client    *kube.Client
	resource  kube.Resource
	namespace string
	// label and name are what all of the pool are labelled with, before the claim and
	// after it, and stands is the labelStandby that each has until then.
	label, name, stands string
	shape               string
	// meta is an object's metadata, and ready tells one that waits for its kick.
	meta  func(*T) *metav1.ObjectMeta
	ready func(*T) bool
}

// kubeClaim is what makes a standby a kick's own.
type kubeClaim[T any] struct {
	id, start   string // the kick, and which attempt of it
	labels      map[string]string
	annotations map[string]string
	lifetime    time.Duration           // from now on
	spec        func(*T) map[string]any // what of the specification is changed with that; nil: nothing
	remove      func(*T) error          // ends what a dead kick of this id has left
}

// errNoStandby is a pool that has nothing ready.
var errNoStandby = errors.New("none was ready")

// errNoShape is a pool whose standbys are all made as something else.
var errNoShape = errors.New("its sandboxes have another image, shim, limits or keys")

// claim makes one standby the kick's own. If none is ready it waits, at most so
// long.
func (p *kubePool[T]) claim(ctx context.Context, c kubeClaim[T], wait time.Duration) (*T, error) {
	o, err := p.claimNow(ctx, c)
	if !errors.Is(err, errNoStandby) || wait <= 0 {
		return o, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errNoStandby)
	defer cancel()
	following, stop := context.WithCancel(ctx)
	defer stop()
	try := func() {
		if o, err = p.claimNow(ctx, c); !errors.Is(err, errNoStandby) {
			stop()
		}
	}
	failed := kube.Follow(following, p.client, p.standbys(), kube.Follower[T]{
		All: func(list []T) {
			for i := range list {
				if p.ready(&list[i]) {
					try()
					return
				}
			}
		},
		Changed: func(t *T) {
			if p.ready(t) && following.Err() == nil {
				try()
			}
		},
	})
	switch {
	case following.Err() == nil: // it cannot be watched
		return nil, failed
	case errors.Is(err, errNoStandby):
		return nil, context.Cause(ctx)
	}
	return o, err
}

func (p *kubePool[T]) standbys() kube.Selection {
	return kube.Selection{Resource: p.resource, Namespace: p.namespace, Labels: p.label + "=" + p.name + "," + labelStandby + "=" + p.stands + "," + labelShape + "=" + p.shape}
}

// claimNow claims one of those that are ready, if there are any. Who comes too late
// for one takes another, and looks again when there is no other.
func (p *kubePool[T]) claimNow(ctx context.Context, c kubeClaim[T]) (*T, error) {
	for {
		list, _, err := kube.List[T](ctx, p.client, kube.Selection{Resource: p.resource, Namespace: p.namespace, Labels: p.label + "=" + p.name})
		if err != nil {
			return nil, err
		}
		var ready []*T
		others, ours := 0, 0 // standbys, ready or not
		for i := range list {
			m := p.meta(&list[i])
			switch {
			case m.Labels[labelID] == c.id && m.Annotations[jobStart] == c.start:
				return &list[i], nil // by a patch whose answer was lost
			case m.Labels[labelID] == c.id:
				if err := c.remove(&list[i]); err != nil {
					return nil, err
				}
			case m.Labels[labelStandby] != p.stands || m.DeletionTimestamp != nil:
			case m.Labels[labelShape] != p.shape:
				others++
			case p.ready(&list[i]):
				ready = append(ready, &list[i])
				ours++
			default:
				ours++
			}
		}
		if len(ready) == 0 {
			if others > 0 && ours == 0 {
				return nil, errNoShape
			}
			return nil, errNoStandby
		}
		// Any of them: all that come at once would take the first, all but one in vain.
		t := ready[rand.IntN(len(ready))]
		o, err := p.take(ctx, t, c)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return o, err
		}
		// Another one was first, or a patch whose answer was lost was this one's.
	}
}

// take is the claim of one of them: it loses the labels by which its owner knows
// it, and its owner, and is the kick's, at once or not at all.
func (p *kubePool[T]) take(ctx context.Context, t *T, c kubeClaim[T]) (*T, error) {
	m := p.meta(t)
	labels := map[string]any{labelStandby: nil, "pod-template-hash": nil}
	for k, v := range c.labels {
		labels[k] = v
	}
	annotations := maps.Clone(c.annotations)
	annotations[jobLifetime] = (max(p.client.Now().Sub(m.CreationTimestamp.Time), 0) + c.lifetime).String()
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": m.ResourceVersion, "ownerReferences": nil,
		"labels": labels, "annotations": annotations,
	}}
	if c.spec != nil {
		patch["spec"] = c.spec(t)
	}
	// Whether it was taken has to be known: nobody else would end it soon.
	return kube.Patch[T](context.WithoutCancel(ctx), p.client, p.resource, p.namespace, m.Name, patch)
}

// shapeOf is what of a specification is fixed before there is a kick, as a label.
// A kick takes a standby that is made exactly as its own would be.
func shapeOf(spec any) (string, error) {
	b, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("describe a standby: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), nil
}
