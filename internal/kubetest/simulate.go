package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kickhq/kick/internal/kube"
)

// SimulatedTaints are what a pod has to tolerate to come to a simulated node: its own
// taint, and those that a node gets that does not say that it lives.
var SimulatedTaints = []string{"kick-simulated", corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}

// Simulate adds a node of which only the API server knows, and plays its kubelet for
// the namespace's pods until the test ends: one that comes to it runs, and ends when it
// is deleted and not before. There is nothing in it.
func (n *Namespace) Simulate(t testing.TB, node string) {
	t.Helper()
	n.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Node
metadata: {name: %[1]s, labels: {kubernetes.io/hostname: %[1]s}}
spec: {taints: [{key: kick-simulated, effect: NoSchedule}]}
`, node))
	const room = `{"cpu": "10k", "memory": "100Ti", "ephemeral-storage": "1000Ti", "pods": "20000"}`
	n.Kubectl(t, "patch", "node", node, "--subresource", "status", "--type", "merge", "--patch", `{"status": {"capacity": `+room+`, "allocatable": `+room+`}}`)
	config, _, err := kube.Load(kube.Where{Kubeconfig: n.Cluster.Kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	k := &simulated{server: client.Server.String(), turns: make(chan struct{}, 16)}
	if k.http, err = rest.HTTPClientFor(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.running.Go(func() {
		pods := kube.Selection{Resource: kube.Pods, Namespace: n.Name, Fields: "spec.nodeName=" + node}
		_ = kube.Follow(ctx, client, pods, kube.Follower[corev1.Pod]{ // it ends with ctx
			All: func(list []corev1.Pod) {
				for i := range list {
					k.see(t, &list[i])
				}
			},
			Changed: func(p *corev1.Pod) { k.see(t, p) },
		})
	})
	t.Cleanup(func() {
		cancel()
		k.running.Wait()
		client.Close()
		n.Kubectl(t, "delete", "node", node)
	})
}

// simulated plays a kubelet.
type simulated struct {
	server  string
	http    *http.Client
	turns   chan struct{} // has one for each call under way
	running sync.WaitGroup
}

// see does what a pod waits for, if anything.
func (k *simulated) see(t testing.TB, p *corev1.Pod) {
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", p.Namespace, p.Name)
	switch {
	case p.DeletionTimestamp != nil:
		k.running.Go(func() { k.call(t, http.MethodDelete, path+"?gracePeriodSeconds=0", nil) })
	case p.Status.Phase == corev1.PodPending:
		status, err := json.Marshal(map[string]any{"status": started(p)})
		if err != nil {
			t.Error(err)
			return
		}
		k.running.Go(func() { k.call(t, http.MethodPatch, path+"/status", status) })
	}
}

// started is the status of a pod whose containers run.
func started(p *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	s := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, PodIP: "192.0.2.1", PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}}
	for _, c := range p.Spec.InitContainers {
		s.InitContainerStatuses = append(s.InitContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}})
	}
	for _, c := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}})
	}
	return s
}

// call makes one call. That the pod is gone, or not as it was, is no error.
func (k *simulated) call(t testing.TB, method, path string, body []byte) {
	k.turns <- struct{}{}
	defer func() { <-k.turns }()
	req, err := http.NewRequest(method, k.server+path, strings.NewReader(string(body)))
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/merge-patch+json")
	res, err := k.http.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); res.StatusCode >= 300 && res.StatusCode != http.StatusNotFound && res.StatusCode != http.StatusConflict {
		t.Errorf("%s %s: %s, %v: %s", method, path, res.Status, err, text)
	}
}
