package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/kube"
)

// Preflight implements Preflighter: it asks for the rights, and runs the image's
// shell in a pod.
func (l *Kubernetes) Preflight(ctx context.Context) (Isolation, error) {
	if err := l.Rights(ctx); err != nil {
		return l.isolation(), err
	}
	return runShell(ctx, l, l.config.Image, "a pod", Workspace{})
}

// Rights asks whether the account may do all that the launcher does. The error
// names what it may not.
func (l *Kubernetes) Rights(ctx context.Context) error {
	l, err := l.open()
	if err != nil {
		return err
	}
	return l.rights(ctx, l.config.Namespace, l.config.Rules())
}

// rights asks for each rule whether it is granted.
func (c *kubeCluster) rights(ctx context.Context, namespace string, rules []KubernetesRule) error {
	var missing []string
	for _, r := range rules {
		resource, sub := r.split()
		for _, verb := range r.Verbs {
			may, err := c.client.May(ctx, namespace, verb, r.Group, resource, sub)
			if err != nil {
				return kubeError("ask for the rights of kick's account", err)
			}
			if !may {
				missing = append(missing, verb+" "+r.Resource)
			}
		}
	}
	if len(missing) > 0 {
		return &Error{Kind: ErrRuntime, Op: "use namespace " + namespace, Err: errors.New("kick's account may not: " + strings.Join(missing, ", ")), Remedy: "Give it the Role that `kick manifests " + manifestsOf(rules[0].Resource+"."+rules[0].Group) + "` prints"}
	}
	return nil
}

// Reap implements Reaper, in all namespaces that this state has used. A pod whose
// kick is dead ends by itself after a while (KubernetesConfig.Alone), and until then
// has work that can still be taken: so a Job or a SandboxClaim is removed when its pod
// has ended, or when it is past its deadline, and only if its kick does not live. A directory in a
// claim has the work for longer, and goes when the workspace on this host has gone,
// which is when the work was taken or given up.
func (l *Kubernetes) Reap(ctx context.Context) ([]string, error) {
	return l.eachNamespace(func(where KubernetesChoice) ([]string, error) { return l.With(where).reap(ctx) })
}

// eachNamespace reaps in every namespace that this state has used.
func (l *Kubernetes) eachNamespace(reap func(KubernetesChoice) ([]string, error)) ([]string, error) {
	dir := filepath.Join(l.config.Dir, "clusters")
	used, err := remembered[KubernetesChoice](dir)
	var removed []string
	errs := []error{err}
	for _, where := range used {
		names, err := reap(where)
		if neverSeen(err) {
			err = errors.Join(fmt.Errorf("%w. Until another kick uses that namespace, kick does not look there again", err), forget(dir, where))
		}
		removed, errs = append(removed, names...), append(errs, err)
	}
	names, err := l.reapClaims()
	return append(removed, names...), errors.Join(append(errs, err)...)
}

// neverSeen tells a namespace that was mistyped or is not this account's any more, or a
// kubeconfig that is gone: what cannot be looked at now, no later kick will see either.
// What is left there has its own deadline.
func neverSeen(err error) bool {
	e, forbidden := kube.Forbidden(err)
	return forbidden && e.Verb == "list" && !kube.Transient(e) || errors.Is(err, fs.ErrNotExist)
}

// remember notes for a later reaper which namespace this is.
func (l *Kubernetes) remember() error {
	return remember(filepath.Join(l.config.Dir, "clusters"), KubernetesChoice{
		Kubeconfig: l.config.Kubeconfig, Context: l.config.Context, Namespace: l.config.Namespace, WarmPool: l.config.WarmPool,
	})
}

// kubeLook is how long a reaper waits for what a cluster has. Each kick waits for the
// reaper in the end, and a cluster that was used once may be there no more; an API
// server that restarts is back in 20 s.
const kubeLook = 20 * time.Second

func (l *Kubernetes) reap(ctx context.Context) ([]string, error) {
	l, err := l.open()
	if err != nil {
		return nil, err
	}
	looking, cancel := context.WithTimeout(ctx, kubeLook)
	defer cancel()
	all, err := l.objects(looking)
	if err != nil {
		return nil, err
	}
	here, err := claimOwner()
	if err != nil {
		return nil, err
	}
	removed := map[string]bool{}
	var errs []error
	for _, o := range all {
		ok, err := o.reap(here, l.client.Now(), o.ended, func() error { return removeObject(ctx, l.client, l.config.Namespace, o) })
		if errs = append(errs, err); ok {
			removed[o.id] = true
		}
	}
	return names(removed), errors.Join(errs...)
}

// objects are all that kicks have in the namespace.
func (l *Kubernetes) objects(ctx context.Context) (all []kubeObject, err error) {
	ours := kube.Selection{Resource: l.owner(), Namespace: l.config.Namespace, Labels: labelID}
	add := func(r kube.Resource, m *metav1.ObjectMeta, ended bool) {
		o := objectOf(r, m)
		o.ended = ended
		// One of another name is not one that this launcher has made.
		if idForm.MatchString(o.id) && (r == kube.Pods || o.name == "kick-"+o.id) {
			all = append(all, o)
		}
	}
	if l.config.WarmPool != "" {
		claims, _, err := kube.List[sandboxClaim](ctx, l.client, ours)
		for _, c := range claims {
			add(kube.SandboxClaims, &c.Metadata, c.condition("Finished").Status == metav1.ConditionTrue)
		}
		if err != nil && !apierrors.IsNotFound(err) { // without agent-sandbox there is no claim
			return nil, kubeError("list the SandboxClaims of kick", err)
		}
		return all, nil
	}
	jobs, _, err := kube.List[batchv1.Job](ctx, l.client, ours)
	if err != nil {
		return nil, kubeError("list the Jobs of kick", err)
	}
	for _, j := range jobs {
		add(kube.Jobs, &j.ObjectMeta, j.Status.Active == 0 && len(j.Status.Conditions) > 0)
	}
	pods, err := claimedPods(ctx, l.client, l.config.Namespace, "")
	if err != nil {
		return nil, kubeError("list the pods that kicks have claimed", err)
	}
	for _, p := range pods {
		add(kube.Pods, &p.ObjectMeta, podNews(&p, "").phase == kubeEnded)
	}
	return all, nil
}

// reap removes what a kick has, if that has ended or is past its deadline and the kick
// does not live. Whether the kick of another place lives, only that knows.
func (o kubeObject) reap(here string, now time.Time, ended bool, remove func() error) (removed bool, err error) {
	expired := o.expired(now)
	if !expired && (o.owner != here || !ended) {
		return false, nil
	}
	release, err := claimNow(o.id)
	if err != nil && !expired {
		return false, nil // its kick lives
	}
	if release != nil {
		defer release()
	}
	err = remove()
	return err == nil, err
}
