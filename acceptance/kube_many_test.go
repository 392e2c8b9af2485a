package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/internal/request"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/sandbox"
)

// TestKubeManyKicks: of many kicks of one manager none is lost, also where there are
// more at once than the namespace's quota lets run. KICK_TEST_KUBE_KICKS says how many.
func TestKubeManyKicks(t *testing.T) {
	const atOnce, quota = 20, 8
	kicks := 20
	if text, set := os.LookupEnv("KICK_TEST_KUBE_KICKS"); set {
		var err error
		if kicks, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	n := kubetest.Open(t).Namespace(t, func(m *manifests.Kubernetes) { m.Tiers = []manifests.Tier{{Name: manifests.NoTier, Pods: quota}} })
	dir := t.TempDir()
	run(t, "", kick, "image", "shim", "--out", filepath.Join(dir, "shim.tar"))
	bare := seedBare(t)
	m := newManager(t)
	o := request.Options{
		Repo: bare, Publish: "branch", Runtime: "kubernetes", Image: n.Image, Timeout: 10 * time.Minute, Set: func(string) bool { return false },
		Kubernetes: sandbox.KubernetesChoice{
			Kubeconfig: n.Kubeconfig, Namespace: n.Name, ShimImage: n.Load(t, filepath.Join(dir, "shim.tar")), Gateway: fmt.Sprint(n.Host, ":", n.Ports),
		},
	}
	began := time.Now()
	var all sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i := range kicks {
		o := o
		o.Command = []string{"sh", "-c", fmt.Sprintf("echo %d >number; git add number; git commit -qm number", i)}
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			req, err := request.Build(t.Context(), o)
			if err != nil {
				t.Errorf("kick %d: %v", i, err)
				return
			}
			if out, err := m.Run(t.Context(), req); err != nil || out.Outcome != manager.Published {
				t.Errorf("kick %d: %s %s, %v", i, out.Outcome, out.Error, err)
			}
		})
	}
	all.Wait()
	t.Logf("%d kicks, %d at once, %d pods at once: %v, %.1f calls a kick", kicks, atOnce, quota, time.Since(began).Round(time.Second),
		float64(m.Launchers["kubernetes"].(*sandbox.Kubernetes).Calls())/float64(kicks))

	numbers := map[string]bool{}
	for _, branch := range strings.Fields(run(t, bare, "git", "for-each-ref", "--format=%(refname)", "refs/heads/kick")) {
		numbers[run(t, bare, "git", "show", branch+":number")] = true
	}
	for i := range kicks {
		if !numbers[fmt.Sprintln(i)] {
			t.Errorf("the work of kick %d is not there", i)
		}
	}
	if left := n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// newManager is a manager in this process, as a program that runs many kicks has it.
func newManager(t *testing.T) *manager.Manager {
	t.Helper()
	state, err := manager.OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	shim, err := os.Open("../cmd/kick/shim/kick-shim")
	if err != nil {
		t.Fatal(err)
	}
	defer shim.Close()
	m, err := manager.New(state, shim, "test")
	if err != nil {
		t.Fatal(err)
	}
	return m
}
