package acceptance

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/internal/kubetest"
)

// TestKubePage does what docs/kubernetes.md says, its sh blocks one after the
// other, on a real cluster: from no namespace to a kick.
func TestKubePage(t *testing.T) {
	c := kubetest.Open(t)
	script := "set -eu\n"
	for _, code := range pageBlocks(t, "kubernetes.md", 6) {
		script += code
		if strings.Contains(code, "kick image shim") {
			// Where there is no registry, the page says.
			script += `AGENT=$("$KUBE" load "$CLUSTER" agent.tar) SHIM=$("$KUBE" load "$CLUSTER" shim.tar)` + "\n"
		}
	}
	t.Cleanup(func() {
		c.Kubectl(t, "delete", "namespace", "kick-sandboxes", "kick-gateway", "--ignore-not-found", "--wait=false")
	})

	c.Volume(t, "kick-sandboxes", "kick-work", "ReadWriteMany") // as a cluster's storage class would make it

	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + filepath.Dir(kick) + ":" + c.Bin + ":" + os.Getenv("PATH"), "HOME=" + dir, "KICK_CACHE=" + cacheDir(t),
		"KUBECONFIG=" + c.Kubeconfig, "ADMIN=" + c.Kubeconfig, "GATEWAY=" + c.Host.String(), "KUBE=" + c.Script, "CLUSTER=" + c.Dir,
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); lines[len(lines)-1] != "hello again" || !slices.Contains(lines, "hello") {
		t.Errorf("the page ends with:\n%s", out.String())
	}
}
