package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/sandbox"
)

// TestKubeForgotten: a namespace that the account may not look at is told once, and not
// at the end of each kick to come. Who uses it again is told again.
func TestKubeForgotten(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	dir := t.TempDir()
	k := newKubeKick(t, n, "true", func(c *sandbox.KubernetesConfig) { c.Dir, c.Namespace = dir, "mistyped" })
	for range 2 {
		k.run(t).says(t, sandbox.ReasonStartFailed, "create jobs.batch in namespace mistyped")
		if _, err := k.l.Reap(t.Context()); err == nil || !strings.Contains(err.Error(), "list jobs.batch in namespace mistyped") || !strings.Contains(err.Error(), "does not look there again") {
			t.Errorf("the first time: %v", err)
		}
		if _, err := k.l.Reap(t.Context()); err != nil {
			t.Errorf("the second time: %v", err)
		}
	}
	// So is a kubeconfig that is gone, which another process looks for.
	own := filepath.Join(dir, "kubeconfig")
	data, err := os.ReadFile(n.Kubeconfig)
	if err == nil {
		err = os.WriteFile(own, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	there := func(c *sandbox.KubernetesConfig) { c.Dir, c.Kubeconfig = dir, own }
	if e := newKubeKick(t, n, "true", there).run(t); e.err != nil {
		t.Fatal(e.err)
	}
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	later := newKubeKick(t, n, "true", there)
	if _, err := later.l.Reap(t.Context()); err == nil || !strings.Contains(err.Error(), "does not look there again") {
		t.Errorf("without its kubeconfig: %v", err)
	}
	if _, err := later.l.Reap(t.Context()); err != nil {
		t.Errorf("the second time: %v", err)
	}
}
