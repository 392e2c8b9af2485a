package acceptance

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
)

// insidePod is kick in the cluster, as docs/kubernetes.md says. The API server's
// address stands there since the tests' cluster has no Services.
const insidePod = `apiVersion: v1
kind: Pod
metadata: {name: kick, namespace: %[1]s, labels: {app.kubernetes.io/name: kick-gateway}}
spec:
  serviceAccountName: kick
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: kick
      image: %[2]s
      imagePullPolicy: Never
      command: [sleep, infinity]
      env:
        - {name: HOME, value: /work}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: KUBERNETES_SERVICE_HOST, value: %[3]s}
        - {name: KUBERNETES_SERVICE_PORT, value: "%[4]d"}
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
      volumeMounts: [{name: work, mountPath: /work}, {name: tmp, mountPath: /tmp}]
  volumes: [{name: work, emptyDir: {}}, {name: tmp, emptyDir: {}}]
`

// TestKubeInside runs kick in the cluster: it finds the API server by its pod's
// account, and a sandbox reaches its gateway through the policy that names pods.
func TestKubeInside(t *testing.T) {
	c := kubetest.Open(t)
	n := c.Namespace(t, func(m *manifests.Kubernetes) { m.Addresses, m.Ports = nil, manifests.Default().Ports })
	server := c.APIServer(t)
	c.Apply(t, fmt.Sprintf(insidePod, n.Gateway, c.Image, server.Addr(), server.Port()))
	c.Kubectl(t, "wait", "--for=condition=Ready", "--timeout=120s", "--namespace", n.Gateway, "pod/kick")

	inside := func(stdin []byte, script string) string {
		t.Helper()
		cmd := c.KubectlCommand(c.Kubeconfig, "exec", "--stdin", "--namespace", n.Gateway, "kick", "--", "sh", "-euc", script)
		var out bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		return strings.TrimSpace(out.String())
	}
	program, err := os.ReadFile(kick)
	if err != nil {
		t.Fatal(err)
	}
	inside(program, "cat >/work/kick; chmod 755 /work/kick")
	shim := c.Load(t, shimTar(t))
	mark := kickid.New()
	said := inside(nil, fmt.Sprintf(`cd /work; git init -q -b main task; cd task
git -c user.name=me -c user.email=me@example.org commit -q --allow-empty -m base
/work/kick run --runtime kubernetes --namespace %s --image %s --shim-image %s --gateway "$POD_IP:8377-8392" -p x -- sh -c 'echo x >f; git add f; git commit -qm %s'
git log -1 --format=%%s "$(git for-each-ref --format='%%(refname)' refs/heads/kick)"`, n.Name, c.Image, shim, mark))
	if lines := strings.Split(said, "\n"); lines[len(lines)-1] != mark {
		t.Errorf("kick in the cluster ends with:\n%s", said)
	}
}

// shimTar is the image of the shim of the kick under test.
func shimTar(t *testing.T) string {
	t.Helper()
	tar := t.TempDir() + "/shim.tar"
	run(t, "", kick, "image", "shim", "--out", tar)
	return tar
}
