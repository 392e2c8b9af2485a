package sandbox

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kube"
)

// refusing is an API server that refuses what is to be made so many times, with words.
func refusing(t *testing.T, times int32, words string) (*kube.Client, *atomic.Int32) {
	t.Helper()
	asked := &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodPost {
			_, _ = w.Write([]byte(`{"items": []}`)) // nothing lingers
			return
		}
		if asked.Add(1) > times {
			_, _ = w.Write([]byte(`{"metadata": {"name": "kick-k1", "uid": "u1"}}`)) // who asked may be gone
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, `{"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": %q}`, words)
	}))
	t.Cleanup(s.Close)
	client, err := kube.New(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, asked
}

// TestKubeVirtQuota: a kick waits for room for its machine, as one does for its pod, and
// says what was full. What is refused for another reason, it does not ask for again.
func TestKubeVirtQuota(t *testing.T) {
	t.Parallel()
	const full, uncounted = `"kick-k1" is forbidden: exceeded quota: kick-machines, used: 16`, `"kick-k1" is forbidden: status unknown for quota: kick-machines`
	for name, c := range map[string]struct {
		words   string
		times   int32
		pending time.Duration
		asked   int32
		remedy  string // empty: the machine is made
	}{
		"room after a while":    {full, 2, time.Minute, 3, ""},
		"counted after a while": {uncounted, 2, time.Minute, 3, ""},
		"never":                 {full, 1 << 30, time.Second, 0, "raise the ResourceQuota"},
		"not allowed":           {`User "kick" cannot create resource`, 1, time.Minute, 1, "`kick manifests kubevirt` prints it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, asked := refusing(t, c.times, c.words)
			l := &KubeVirt{config: KubeVirtConfig{Pending: c.pending, KubeVirtChoice: KubeVirtChoice{Namespace: "machines"}}}
			l.cluster = &Kubernetes{kubeCluster: &kubeCluster{client: client}}
			b := &kubeVirtBox{launcher: l, client: client, spec: LaunchSpec{ID: "k1"}}
			told := ""
			b.spec.OnEvent = func(e Event) { told += e.Why }
			b.plan = newKubeVirtPlan(l.config, b.spec, frame.RunMode, "owner", "start")
			_, err := b.create(t.Context())
			if c.asked != 0 && asked.Load() != c.asked || c.asked == 0 && asked.Load() < 2 {
				t.Errorf("it asked %d times", asked.Load())
			}
			if full := name != "not allowed"; full != strings.Contains(told, "a quota has no room") {
				t.Errorf("it told of %q", told)
			}
			if c.remedy == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *Error
			if !errors.As(b.failed(t.Context(), "make the machine kick-k1", err), &e) || !strings.Contains(e.Remedy, c.remedy) || !strings.Contains(e.Error(), c.words) {
				t.Errorf("%v", e)
			}
		})
	}
}

// TestKubeVirtQuotaLingers: for a machine that a quota has no room for, the one goes that
// lingers and whose time is over first, and no other before the quota is counted anew.
func TestKubeVirtQuotaLingers(t *testing.T) {
	t.Parallel()
	l := &KubeVirt{config: KubeVirtConfig{Pending: time.Minute, KubeVirtChoice: KubeVirtChoice{Namespace: "machines"}}, cluster: &Kubernetes{kubeCluster: &kubeCluster{}}}
	machine := func(name, lifetime, linger string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q, "uid": "of %[1]s", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"kick.standby": "again", "kick.linger": %q}, "annotations": {"kick.lifetime": %q}}}`, name, linger, lifetime)
	}
	list := strings.Join([]string{
		machine("late", "20h", l.lingerFor("a")), machine("early", "10h", l.lingerFor("b")), machine("of-another-state", "1h", "0123456789abcdef.x"),
	}, ", ")
	var deleted []string
	refused := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := func(code int, reason, words string) {
			w.WriteHeader(code)
			_, _ = fmt.Fprintf(w, `{"kind": "Status", "status": "Failure", "reason": %q, "code": %d, "message": %q}`, reason, code, words)
		}
		w.Header().Set("Content-Type", "application/json")
		of, isMachine := strings.CutPrefix(r.URL.Path, "/apis/kubevirt.io/v1/namespaces/machines/virtualmachineinstances/")
		switch {
		case r.Method == http.MethodPost && refused < 3: // twice more than the deletion takes
			refused++
			status(http.StatusForbidden, "Forbidden", "exceeded quota: kick-machines")
		case r.Method == http.MethodPost:
			_, _ = w.Write([]byte(`{"metadata": {"name": "kick-k1", "uid": "u1"}}`))
		case r.Method == http.MethodDelete && isMachine && len(deleted) == 0:
			deleted = append(deleted, of)
			_, _ = w.Write([]byte(`{}`))
		case r.Method == http.MethodGet && !isMachine && strings.Contains(r.URL.RawQuery, "labelSelector"):
			_, _ = w.Write([]byte(`{"items": [` + list + `]}`))
		case r.Method == http.MethodGet && !isMachine: // who waits for its end
			_, _ = w.Write([]byte(`{"items": []}`))
		default:
			if r.Method == http.MethodDelete && isMachine && of != deleted[0] {
				deleted = append(deleted, of)
			}
			status(http.StatusNotFound, "NotFound", "not found")
		}
	}))
	defer s.Close()
	client, err := kube.New(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	l.cluster.client = client
	b := &kubeVirtBox{launcher: l, client: client, spec: LaunchSpec{ID: "k1"}}
	b.plan = newKubeVirtPlan(l.config, b.spec, frame.RunMode, "owner", "start")
	if _, err := b.create(t.Context()); err != nil || len(deleted) != 1 || deleted[0] != "early" {
		t.Errorf("%v, with %q deleted", err, deleted)
	}
}
