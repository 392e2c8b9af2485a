package sandbox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/sandbox"
)

// Verbs that a run from its beginning to its end does not miss.
var (
	toTakeOver = map[string]bool{"get jobs": true, "get sandboxclaims": true}                      // what a dead kick has left
	toReap     = map[string]bool{"list jobs": true, "list pods": true, "list sandboxclaims": true} // which a run needs only where its watch broke
	laterVerbs = map[string]bool{"create pods/exec": true}                                         // asked for by API servers of 1.35 and newer
)

// TestKubeVerbs: without any one of the verbs that the manifests grant a run fails
// and names the verb, and so does asking for the rights. So the account has no verb too
// many.
func TestKubeVerbs(t *testing.T) {
	t.Parallel()
	c := kubetest.Open(t)
	for i, r := range sandbox.KubernetesRules {
		for j, verb := range r.Verbs {
			name := verb + " " + r.Resource
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				n := c.Namespace(t)
				k := newKubeKick(t, n, "true", shortly)
				if err := k.l.Rights(t.Context()); err != nil {
					t.Errorf("with all verbs: %v", err)
				}
				n.Kubectl(t, "patch", "role", "kick", "--namespace", n.Name, "--type", "json",
					"--patch", fmt.Sprintf(`[{"op": "remove", "path": "/rules/%d/verbs/%d"}]`, i, j))
				awaitLack(t, k.l, name)
				if toTakeOver[name] {
					k.spec.Command = nil
				}
				if !laterVerbs[name] {
					k.start(t)
					e := <-k.end // what it made stays where it may not delete
					if e.err == nil && toReap[name] {
						_, e.err = k.l.Reap(t.Context())
					}
					if e.err == nil || !strings.Contains(e.err.Error(), verb) || !strings.Contains(e.err.Error(), r.Resource) {
						t.Errorf("%s %s: %v", e.res.Reason, e.res.Detail, e.err)
					}
				}
			})
		}
	}
}

// awaitLack waits until the API server refuses a verb, which it does a moment after the
// role was changed, and the launcher says so of its rights.
func awaitLack(t *testing.T, l *sandbox.Kubernetes, name string) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); err == nil && time.Now().Before(deadline); {
		err = l.Rights(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "may not: "+name) {
		t.Errorf("asked for its rights: %v", err)
	}
}
