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
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
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
