package sandbox

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKubeCanaryLoopback: what says nothing of a network is no canary, however often it
// is asked for one.
func TestKubeCanaryLoopback(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind": "APIVersions", "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443"}]}`) // who asked may be gone
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, fmt.Appendf(nil, "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}], clusters: [{name: a, cluster: {server: %q}}]}", s.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := NewKubernetes(KubernetesConfig{
		Shim: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader([]byte("a shim"))), nil },
		Dir:  t.TempDir(), KubernetesChoice: KubernetesChoice{Kubeconfig: file, Namespace: "sandboxes"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 2 {
		if opened, err := l.open(); err == nil || !strings.Contains(err.Error(), "each pod's own") {
			t.Errorf("it has %+v, %v", opened, err)
		}
	}
}
