package kubevirttest

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// poke has the replica sets looked at again.
func (k *KubeVirt) poke() {
	select {
	case k.changed <- struct{}{}:
	default: // they will be, anyway
	}
}

// replicate keeps the instances of replica sets, as virt-controller does.
func (k *KubeVirt) replicate() {
	k.running.Go(func() {
		poke := func(*kubevirtapi.ReplicaSet) { k.poke() }
		err := kube.Follow(k.ctx, k.client, kube.Selection{Resource: kubevirtapi.ReplicaSets}, kube.Follower[kubevirtapi.ReplicaSet]{
			All: func([]kubevirtapi.ReplicaSet) { k.poke() }, Changed: poke, Gone: poke,
		})
		if err != nil && k.ctx.Err() == nil {
			panic(fmt.Sprintf("follow the replica sets: %v", err)) // no test would go on sensibly
		}
	})
	for {
		select {
		case <-k.changed:
		case <-k.ctx.Done():
			return
		}
		sets, _, err := kube.List[kubevirtapi.ReplicaSet](k.ctx, k.client, kube.Selection{Resource: kubevirtapi.ReplicaSets})
		for i := range sets {
			if err == nil {
				err = k.scale(&sets[i])
			}
		}
		if err != nil && kube.Pause(k.ctx, time.Second) {
			k.poke() // what was changed meanwhile is no error
		}
	}
}

// scale makes the instances that a set lacks, deletes those that have ended, and adopts
// those that it selects and nobody owns. An instance that it does not select is none of
// its own, whoever owned it.
func (k *KubeVirt) scale(set *kubevirtapi.ReplicaSet) error {
	ctx, cancel := context.WithTimeout(k.ctx, time.Minute)
	defer cancel()
	if set.DeletionTimestamp != nil {
		return nil
	}
	selected := kube.Selection{Resource: kubevirtapi.Instances, Namespace: set.Namespace, Labels: labels.Set(set.Spec.Selector.MatchLabels).String()}
	list, _, err := kube.List[kubevirtapi.Instance](ctx, k.client, selected)
	if err != nil {
		return err
	}
	owner := []metav1.OwnerReference{{
		APIVersion: kubevirtapi.InstanceType.APIVersion, Kind: "VirtualMachineInstanceReplicaSet", Name: set.Name, UID: set.UID, Controller: new(true), BlockOwnerDeletion: new(true),
	}}
	active, ready := int32(0), int32(0)
	for i := range list {
		m := &list[i]
		by := metav1.GetControllerOf(m)
		switch phase := phaseOf(m); {
		case by != nil && by.UID != set.UID, m.DeletionTimestamp != nil:
		case phase == kubevirtapi.Succeeded, phase == kubevirtapi.Failed:
			if err := k.client.Delete(ctx, kubevirtapi.Instances, m.Namespace, m.Name, string(m.UID)); err != nil {
				return err
			}
		default:
			active++
			if m.Status != nil && slices.ContainsFunc(m.Status.Conditions, func(c kubevirtapi.Condition) bool {
				return c.Type == kubevirtapi.Ready && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
			if by == nil {
				k.set(m.Namespace, m.Name, map[string]any{"metadata": map[string]any{"ownerReferences": owner}})
			}
		}
	}
	for ; active < set.Spec.Replicas; active++ {
		m := &kubevirtapi.Instance{TypeMeta: kubevirtapi.InstanceType, ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
		m.Namespace, m.OwnerReferences = set.Namespace, owner
		if _, err := kube.Create(ctx, k.client, kubevirtapi.Instances, set.Namespace, m, false); err != nil {
			return err
		}
	}
	if set.Status != nil && set.Status.Replicas == active && set.Status.ReadyReplicas == ready {
		return nil
	}
	_, err = kube.Patch[kubevirtapi.ReplicaSet](ctx, k.client, kubevirtapi.ReplicaSets, set.Namespace, set.Name+"/status", map[string]any{"status": kubevirtapi.ReplicaSetStatus{Replicas: active, ReadyReplicas: ready}})
	return err
}

func phaseOf(m *kubevirtapi.Instance) kubevirtapi.Phase {
	if m.Status == nil {
		return ""
	}
	return m.Status.Phase
}
