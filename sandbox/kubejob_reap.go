package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/kickhq/kick/internal/kube"
)

// Preflight implements Preflighter: it asks for the rights, and runs the image's
// shell in a pod.
func (l *Kubernetes) Preflight(ctx context.Context) (Isolation, error) {
	if err := l.Rights(ctx); err != nil {
		return l.isolation(), err
	}
	res, err := l.Run(ctx, LaunchSpec{
		ID:      fmt.Sprintf("p%d-%d", os.Getpid(), preflights.Add(1)),
		Agent:   "preflight",
		Image:   l.config.Image,
		Command: []string{"/bin/sh", "-c", ":"},
		Network: NetworkNone,
	})
	if err == nil && res.ExitCode != 0 {
		err = &Error{Kind: ErrRuntime, Op: "run /bin/sh in a pod of " + l.config.Image, Err: errors.New(res.Detail)}
	}
	return res.Isolation, err
}

// Rights asks whether the account may do all that the launcher does. The error
// names what it may not.
func (l *Kubernetes) Rights(ctx context.Context) error {
	l, err := l.open()
	if err != nil {
		return err
	}
	rules := slices.Clone(KubernetesRules)
	if l.config.Claim != "" {
		rules = append(rules, KubernetesClaimRules...)
	}
	if l.config.Pool != "" {
		rules = append(rules, KubernetesPoolRules...)
	}
	return l.rights(ctx, l.config.Namespace, rules)
}

// rights asks for each rule whether it is granted.
func (c *kubeCluster) rights(ctx context.Context, namespace string, rules []KubernetesRule) error {
	var missing []error
	for _, r := range rules {
		resource, sub := r.split()
		for _, verb := range r.Verbs {
			may, err := c.client.May(ctx, namespace, verb, r.Group, resource, sub)
			if err != nil {
				return kubeError("ask for the rights of kick's account", err)
			}
			if !may {
				missing = append(missing, fmt.Errorf("%s %s", verb, r.Resource))
			}
		}
	}
	if len(missing) > 0 {
		return &Error{Kind: ErrRuntime, Op: "use namespace " + namespace, Err: fmt.Errorf("kick's account may not: %w", errors.Join(missing...)), Remedy: "Give it the Role that `kick manifests kubernetes` prints"}
	}
	return nil
}

// Reap implements Reaper, in all namespaces that this state has used. A pod whose
// kick is dead ends by itself after a while (KubernetesConfig.Alone), and until then
// has work that can still be taken: so a Job is removed when its pod has ended, or
// when it is past its deadline, and only if its kick does not live. A directory in a
// claim has the work for longer, and goes when the workspace on this host has gone,
// which is when the work was taken or given up.
func (l *Kubernetes) Reap(ctx context.Context) ([]string, error) {
	return l.eachNamespace(func(where KubernetesChoice) ([]string, error) { return l.With(where).reap(ctx) })
}

// eachNamespace reaps in every namespace that this state has used.
func (l *Kubernetes) eachNamespace(reap func(KubernetesChoice) ([]string, error)) ([]string, error) {
	used, err := filepath.Glob(filepath.Join(l.config.Dir, "clusters", "*.json"))
	if err != nil {
		return nil, err
	}
	var removed []string
	var errs []error
	for _, file := range used {
		var where KubernetesChoice
		b, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(b, &where)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		names, err := reap(where)
		removed, errs = append(removed, names...), append(errs, err)
	}
	names, err := l.reapClaims()
	return append(removed, names...), errors.Join(append(errs, err)...)
}

// remember notes for a later reaper which namespace this is.
func (l *Kubernetes) remember() error {
	b, err := json.Marshal(KubernetesChoice{Kubeconfig: l.config.Kubeconfig, Context: l.config.Context, Namespace: l.config.Namespace})
	if err != nil {
		return err
	}
	dir := filepath.Join(l.config.Dir, "clusters")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return installFile(filepath.Join(dir, fmt.Sprintf("%x.json", sha256.Sum256(b))), b, 0o600)
}

func (l *Kubernetes) reap(ctx context.Context) ([]string, error) {
	l, err := l.open()
	if err != nil {
		return nil, err
	}
	jobs, _, err := kube.List[batchv1.Job](ctx, l.client, kube.Selection{Resource: kube.Jobs, Namespace: l.config.Namespace, Labels: labelID})
	if err != nil {
		return nil, kubeError("list the Jobs of kick", err)
	}
	here, err := claimOwner()
	if err != nil {
		return nil, err
	}
	removed := map[string]bool{}
	var errs []error
	for _, j := range jobs {
		id := j.Labels[labelID]
		if !idForm.MatchString(id) || j.Name != "kick-"+id {
			continue // not one that this launcher has made
		}
		ended := j.Status.Active == 0 && len(j.Status.Conditions) > 0
		ok, err := l.reapOne(ctx, objectOf(kube.Jobs, &j.ObjectMeta), here, ended)
		if errs = append(errs, err); ok {
			removed[id] = true
		}
	}
	errs = append(errs, l.reapClaimed(ctx, here, removed))
	return names(removed), errors.Join(errs...)
}

// reapOne removes what a kick has, if it is to be reaped.
func (l *Kubernetes) reapOne(ctx context.Context, o kubeObject, here string, ended bool) (removed bool, err error) {
	return o.reap(here, ended, func() error { return removeObject(ctx, l.client, l.config.Namespace, o) })
}

// reap removes what a kick has, if that has ended or is past its deadline and the kick
// does not live. Whether the kick of another place lives, only that knows.
func (o kubeObject) reap(here string, ended bool, remove func() error) (removed bool, err error) {
	expired := o.expired()
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
