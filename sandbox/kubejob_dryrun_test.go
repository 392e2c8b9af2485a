package sandbox_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubetest"
)

// TestKubeDryRun: the real API server takes the Jobs of testdata/kube, drops no
// field of them, and takes their pods in a namespace that enforces the Pod Security
// level "restricted". It makes none of them.
func TestKubeDryRun(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	// What one of them names.
	n.Kubectl(t, "create", "serviceaccount", "sandbox", "--namespace", n.Name)
	t.Cleanup(func() { n.Kubectl(t, "delete", "runtimeclass", "gvisor", "--ignore-not-found") })
	n.Apply(t, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: gvisor}\nhandler: runsc\n")
	config, _, err := kube.Load(kube.Where{Kubeconfig: n.Cluster.Kubeconfig}) // kick's account makes Jobs and no pods
	if err != nil {
		t.Fatal(err)
	}
	c, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	golden, err := filepath.Glob("testdata/kube/*.json")
	if err != nil || len(golden) == 0 {
		t.Fatalf("%v, %d Jobs", err, len(golden))
	}
	for _, file := range golden {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			job := &batchv1.Job{}
			if err := json.Unmarshal(b, job); err != nil {
				t.Fatal(err)
			}
			job.Namespace = n.Name
			made, err := kube.Create(t.Context(), c, kube.Jobs, n.Name, job, true)
			if err != nil {
				t.Fatal(err)
			}
			for _, lost := range notIn("", fields(t, job), fields(t, made)) {
				t.Errorf("the API server does not keep %s", lost)
			}
			pod := &corev1.Pod{ObjectMeta: job.Spec.Template.ObjectMeta, Spec: job.Spec.Template.Spec}
			pod.Name, pod.Namespace = job.Name, n.Name
			if _, err := kube.Create(t.Context(), c, kube.Pods, n.Name, pod, true); err != nil {
				t.Errorf("its pod: %v", err)
			}
			// That the level is enforced, a pod shows that is not.
			pod.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = new(true)
			if _, err := kube.Create(t.Context(), c, kube.Pods, n.Name, pod, true); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
				t.Errorf("a pod that may become more: %v", err)
			}
			job.Spec.PodFailurePolicy.Rules[0].Action = "Nonsense"
			if _, err := kube.Create(t.Context(), c, kube.Jobs, n.Name, job, true); !apierrors.IsInvalid(err) {
				t.Errorf("a Job that is not valid: %v", err)
			}
		})
	}
	if made := n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name"); made != "" {
		t.Errorf("made: %s", made)
	}
}

// fields is an object as JSON has it.
func fields(t *testing.T, o any) (v any) {
	t.Helper()
	b, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// notIn lists what of one object another one has not or has otherwise. Lists have
// the same length; what is empty is not there.
func notIn(at string, want, got any) (lost []string) {
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		for name, v := range w {
			lost = append(lost, notIn(at+"."+name, v, g[name])...)
		}
	case []any:
		g, _ := got.([]any)
		if len(g) != len(w) {
			return []string{fmt.Sprintf("%s: %d for %d", at, len(g), len(w))}
		}
		for i := range w {
			lost = append(lost, notIn(fmt.Sprintf("%s[%d]", at, i), w[i], g[i])...)
		}
	default:
		if want != nil && want != got {
			lost = append(lost, fmt.Sprintf("%s: %v for %v", at, got, want))
		}
	}
	return lost
}
