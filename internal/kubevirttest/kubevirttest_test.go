package kubevirttest_test

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
	"github.com/kickhq/kick/internal/kubevirttest"
	"github.com/kickhq/kick/sandbox"
)

// TestKubeVirtAccess: the stand-in serves portforward to the API server alone, and the
// API server passes those on who may.
func TestKubeVirtAccess(t *testing.T) {
	k, c := kubevirttest.Open(t)
	n := c.Namespace(t)
	config, _, err := kube.Load(kube.Where{Kubeconfig: n.Kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	forward := func() error {
		conn, err := client.PortForward(t.Context(), kubevirtapi.Guests, n.Name, "none", 22, kubevirtapi.Protocol)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	if err := forward(); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("an account without the right: %v", err)
	}
	k.Account(t, n, sandbox.KubeVirtRules)
	if err := forward(); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a machine that is not there: %v", err)
	}
	// Around the API server there is no way, with or without its headers.
	at := c.Kubectl(t, "get", "service", "virt-api", "--namespace", "kubevirt", "--output", "jsonpath={.spec.externalName}:{.spec.ports[0].port}")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+at+"/apis/subresources.kubevirt.io/v1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Remote-User", "system:admin")
	req.Header.Set("X-Remote-Group", "system:masters")
	around := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // it is refused before anything is said
	if res, err := around.Do(req); err == nil {
		_ = res.Body.Close()
		t.Errorf("who is not the API server got %s", res.Status)
	}
}
