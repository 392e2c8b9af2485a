package acceptance

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/internal/modeltest"
	"github.com/kickhq/kick/manager"
)

// TestKubeLikeEmbedded runs the same kicks in the embedded sandbox and as Jobs on a
// real node, where their one way out is the gateway of this host, and compares what
// came of them.
func TestKubeLikeEmbedded(t *testing.T) {
	c := kubetest.Open(t)
	n := c.Namespace(t)
	dir := t.TempDir()
	run(t, "", kick, "image", "shim", "--out", filepath.Join(dir, "shim.tar"))
	kube := []string{
		"--runtime", "kubernetes", "--image", n.Image, "--shim-image", c.Load(t, filepath.Join(dir, "shim.tar")),
		"--kubeconfig", n.Kubeconfig, "--namespace", n.Name, "--gateway", fmt.Sprint(n.Host, ":", n.Ports),
	}
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(kick, slices.Insert(args, 1, "--state-dir", filepath.Join(dir, "state"))...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
		return cmd
	}
	asEmbedded{runtime: "kubernetes", flags: kube, dir: t.TempDir(), seed: seedBare(t), command: command, serial: true}.run(t, everyAgent())
	if left := n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind: %s", left)
	}
}

// TestKubeShimInImage: an image that has the shim needs no init container that brings
// it, and git works in a workspace that is root's.
func TestKubeShimInImage(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t)
	dir, bare := t.TempDir(), seedBare(t)
	cmd := exec.Command(kick, "run", "--state-dir", filepath.Join(dir, "state"), "-o", "json", "--repo", bare, "--publish", "branch", "--network", "none",
		"--runtime", "kubernetes", "--image", n.Image, "--kubeconfig", n.Kubeconfig, "--namespace", n.Name,
		"--", "sh", "-c", "git log -1 >/dev/null && echo hi >f && git add f && git commit -qm hi && echo dirt >dirt")
	cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
	o, _ := objectOf(t, cmd)
	if o["outcome"] != string(manager.Published) || !strings.Contains(fmt.Sprint(o["unpublished"]), "dirt") {
		t.Errorf("%v: %v, unpublished %v", o["outcome"], o["error"], o["unpublished"])
	}
}

// TestKubeProcesses: two processes of kick at one address of this host each have a
// gateway of their own, and their agents reach it while both run.
func TestKubeProcesses(t *testing.T) {
	n := kubetest.Open(t).Namespace(t)
	dir := t.TempDir()
	run(t, "", kick, "image", "shim", "--out", filepath.Join(dir, "shim.tar"))
	shim := n.Load(t, filepath.Join(dir, "shim.tar"))
	const script = `
until [ -e /tmp/go ]; do sleep 0.1; done
exec 3<>/dev/tcp/127.0.0.1/3128
printf 'GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n' >&3
read -r version code rest <&3
[ "$code" = 403 ] && echo "$code" >answer && git add answer && git commit -q -m answered`
	ended := make(chan error, 2)
	for _, agent := range []string{"one", "two"} {
		cmd := exec.Command(kick, "run", "--state-dir", filepath.Join(dir, agent), "--repo", seedBare(t), "--publish", "branch", "--agent", agent,
			"--runtime", "kubernetes", "--image", n.Image, "--shim-image", shim, "--kubeconfig", n.Kubeconfig, "--namespace", n.Name, "--gateway", fmt.Sprint(n.Host, ":", n.Ports),
			"--", "bash", "-c", script)
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			ended <- err
		}()
	}
	// Both are let go when both run.
	var pods []string
	for deadline := time.Now().Add(3 * time.Minute); len(pods) < 2; {
		if len(ended) > 0 || time.Now().After(deadline) {
			t.Fatalf("not both run: %q, %v", pods, <-ended)
		}
		pods = strings.Fields(n.Kubectl(t, "get", "pods", "--namespace", n.Name, "--field-selector", "status.phase=Running", "--output", "name"))
	}
	for _, pod := range pods {
		n.Kubectl(t, "exec", "--namespace", n.Name, pod, "--", "sh", "-c", ">/tmp/go")
	}
	for range 2 {
		if err := <-ended; err != nil { // 0 is published
			t.Error(err)
		}
	}
}

// TestKubeWarmPool does what docs/kubernetes.md says of agent-sandbox: what kick
// prints for an agent of kick.yaml is applied, and its kick has a sandbox that stood
// by.
func TestKubeWarmPool(t *testing.T) {
	c := kubetest.Open(t)
	c.AgentSandbox(t)
	n := c.Namespace(t)
	dir := t.TempDir()
	run(t, "", kick, "image", "shim", "--out", filepath.Join(dir, "shim.tar"))
	file := filepath.Join(dir, "kick.yaml")
	text := fmt.Sprintf(`
agent_sandbox:
  enabled: true
  runtime: kubernetes
  image: %s
  network_mode: none
  limits: {memory: 1GiB}
  kubernetes: {kubeconfig: %s, namespace: %s, shim_image: %s, warm_pool: agents}
agents:
  scanner: {command: [sh, -c, "echo scanned >scanned; git add scanned; git commit -q -m scanned"], sandbox: {enabled: true}}
`, c.Image, n.Kubeconfig, n.Name, c.Load(t, filepath.Join(dir, "shim.tar")))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	apply := c.KubectlCommand(c.Kubeconfig, "apply", "--filename", "-")
	apply.Stdin = strings.NewReader(run(t, dir, kick, "manifests", "kubernetes", "--agent", "scanner", "--pool", "1", "--sandbox-namespace", n.Name, "--gateway-namespace", n.Gateway))
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.Kubectl(t, "wait", "--for=jsonpath={.status.readyReplicas}=1", "--timeout=180s", "--namespace", n.Name, "sandboxwarmpool/agents")
	cmd := exec.Command(kick, "run", "--agent", "scanner", "--state-dir", filepath.Join(dir, "state"), "-o", "json", "--repo", seedBare(t), "--publish", "branch")
	cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
	got, _ := objectOf(t, cmd)
	isolation, _ := got["isolation"].(map[string]any)
	if engine, _ := isolation["engine"].(string); got["outcome"] != "published" || !strings.HasSuffix(engine, ", a pod of warm pool agents") {
		t.Errorf("%v, %q: %v", got["outcome"], engine, got["error"])
	}
	if left := n.Kubectl(t, "get", "jobs,sandboxclaims", "--namespace", n.Name, "--output", "name"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind: %s", left)
	}
}

// TestKubeKilled kills kick with SIGKILL while its pod runs. `kick gc` comes to the
// shim that waits in the pod, takes the work, and leaves nothing.
func TestKubeKilled(t *testing.T) {
	n := kubetest.Open(t).Namespace(t)
	dir := t.TempDir()
	run(t, "", kick, "image", "shim", "--out", filepath.Join(dir, "shim.tar"))
	shim := n.Load(t, filepath.Join(dir, "shim.tar"))
	bare := seedBare(t)
	crashing := buildCrashing(t)
	for event, work := range map[string]bool{"sandbox": false, "agent-exited": true} {
		t.Run(event, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "kick")
			cmd := exec.Command(crashing, "run", "--state-dir", state, "--repo", bare, "--publish", "branch", "--network", "none",
				"--runtime", "kubernetes", "--image", n.Image, "--shim-image", shim, "--kubeconfig", n.Kubeconfig, "--namespace", n.Name,
				"--", "sh", "-c", "echo precious >work; git add work; git commit -qm precious; echo dirt >dirt")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "KICK_TEST_CRASH_AT="+event)
			out, _ := cmd.CombinedOutput()
			if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
				t.Fatalf("kick was not killed at %s: %v\n%s", event, cmd.ProcessState, out)
			}
			said, err := exec.Command(kick, "gc", "--state-dir", state).CombinedOutput()
			o := onlyOutcome(t, state)
			if err != nil || len(o.Missing) > 0 {
				t.Errorf("%v, missing %q\n%s", err, o.Missing, said)
			}
			if o.Outcome != manager.Interrupted {
				t.Errorf("outcome %s of a kick that was killed\n%s", o.Outcome, said)
			}
			if left := n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name"); strings.TrimSpace(left) != "" {
				t.Errorf("left behind: %s\n%s", left, said)
			}
			if !work {
				return
			}
			wantKept(t, bare, o)
		})
	}
}

// bystanders are what others have in the namespace: a Job that bears kick's labels under
// another name, and one of a kick of another host.
const bystanders = `{apiVersion: batch/v1, kind: Job, metadata: {name: others, namespace: %[1]s, labels: {kick.id: k1, kick.owner: elsewhere}, annotations: {kick.lifetime: 0s}}, spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: none}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: kick-k2, namespace: %[1]s, labels: {kick.id: k2, kick.owner: elsewhere}, annotations: {kick.lifetime: 1h0m0s}}, spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: none}]}}}}
`

// TestKubeKilledAnywhere kills kick with SIGKILL at any instant. "kick gc" says that all
// is well, leaves nothing, and no work is lost that the agent has made known; what others
// have in the namespace is as before.
func TestKubeKilledAnywhere(t *testing.T) {
	n := kubetest.Open(t).Namespace(t, func(m *manifests.Kubernetes) { m.Claim = true })
	claim, volume := n.Claim(t, "ReadWriteMany")
	dir := t.TempDir()
	run(t, "", kick, "image", "shim", "--out", filepath.Join(dir, "shim.tar"))
	shim := n.Load(t, filepath.Join(dir, "shim.tar"))
	n.Apply(t, fmt.Sprintf(bystanders, n.Name))
	objects := func() string {
		return n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name")
	}
	before := objects()
	bare := seedBare(t)
	// command is one kick, and takes what a whole one did.
	command := func(i int, state string) *exec.Cmd {
		cmd := exec.Command(kick, "run", "--state-dir", state, "--repo", bare, "--publish", "none", "--network", "none",
			"--runtime", "kubernetes", "--image", n.Image, "--shim-image", shim, "--kubeconfig", n.Kubeconfig, "--namespace", n.Name)
		if i%2 == 1 {
			cmd.Args = append(cmd.Args, "--claim", claim)
		}
		cmd.Args = append(cmd.Args, "--", "sh", "-c", "echo precious >work; git add work; git commit -qm precious; echo it is committed; sleep 2")
		cmd.Dir = dir
		return cmd
	}
	began := time.Now()
	if out, err := command(1, filepath.Join(dir, "whole")).CombinedOutput(); !strings.Contains(string(out), "it is committed") {
		t.Fatalf("%v\n%s", err, out)
	}
	whole := time.Since(began)
	for i := range 4 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "kick")
			cmd := command(i, state)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			after := rand.N(whole)
			killed := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // any instant will do
			err := cmd.Wait()
			killed.Stop()
			t.Logf("killed after %v of %v: %v", after, whole, err)
			committed := strings.Contains(said.String(), "it is committed")
			gc, err := exec.Command(kick, "gc", "--state-dir", state).CombinedOutput()
			if err != nil {
				t.Errorf("kick gc: %v\n%s", err, gc)
			}
			if left := objects(); left != before {
				t.Errorf("there is %s\nwas %s\n%s", left, before, gc)
			}
			if left, err := filepath.Glob(filepath.Join(volume, "kicks", "*")); err != nil || len(left) > 0 {
				t.Errorf("left in the claim: %v, %v", left, err)
			}
			if results, _ := filepath.Glob(filepath.Join(state, "kicks", "*", "result.json")); len(results) == 0 && !committed {
				return // it had not begun
			}
			o := onlyOutcome(t, state)
			if len(o.Missing) > 0 {
				t.Errorf("missing: %q", o.Missing)
			}
			if committed {
				wantKept(t, bare, o)
			}
			if again, err := exec.Command(kick, "gc", "--state-dir", state).CombinedOutput(); err != nil || len(again) > 0 && strings.Contains(string(again), "recovered") {
				t.Errorf("kick gc once more: %v\n%s", err, again)
			}
		})
	}
}

// TestKubeCodex runs a real agent of the image in a pod: its model is behind the
// gateway, which is the pod's only route.
func TestKubeCodex(t *testing.T) {
	image := os.Getenv("KICK_TEST_KUBE_CODEX_IMAGE")
	if image == "" {
		t.Skip("KICK_TEST_KUBE_CODEX_IMAGE names no image with codex")
	}
	n := kubetest.Open(t).Namespace(t)
	shim := filepath.Join(t.TempDir(), "shim.tar")
	run(t, "", kick, "image", "shim", "--out", shim)
	p, h := newProvider(t), newHub(t, githubtest.Options{})
	o, dir := p.kick(t, h, "codex", "--runtime", "kubernetes", "--image", image, "--shim-image", n.Load(t, shim),
		"--kubeconfig", n.Kubeconfig, "--namespace", n.Name, "--gateway", fmt.Sprint(n.Host, ":", n.Ports))
	p.wantPullRequest(t, h, o, dir, modeltest.Responses)
	if o.Isolation.Runtime != "kubernetes" {
		t.Errorf("isolation %+v", o.Isolation)
	}
	if left := n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind: %s", left)
	}
}
