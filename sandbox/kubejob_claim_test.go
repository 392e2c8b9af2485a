package sandbox_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/internal/manifests"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

// mayLook gives kick's account what a claim takes.
func mayLook(m *manifests.Kubernetes) { m.Claim = true }

// claimed makes a namespace with a claim, and returns the claim's directory on the
// node.
func claimed(t *testing.T) (n *kubetest.Namespace, name, dir string) {
	t.Helper()
	n = kubetest.Open(t).Namespace(t, mayLook)
	name, dir = n.Claim(t, "ReadWriteMany")
	return n, name, dir
}

// workspacesIn lists those that are in a claim.
func workspacesIn(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "kicks", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestKubeClaimContract holds kicks whose workspaces are on a claim to the launcher
// contract.
func TestKubeClaimContract(t *testing.T) {
	var remains func() ([]string, error)
	if os.Getenv(kubeConfigEnv) == "" { // the suite's other processes have it
		n := kubeNamespace(t, mayLook)
		claim, dir := n.Claim(t, "ReadWriteMany")
		t.Setenv(kubeClaimEnv, claim)
		remains = func() ([]string, error) {
			// Work that could not be handed back whole is there until its directory on
			// this host is gone, and then the reaper's.
			l, err := newKube()
			if err != nil {
				return nil, err
			}
			_, err = l.Reap(context.Background())
			left := strings.Fields(n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name"))
			return append(left, workspacesIn(t, dir)...), errors.Join(err, l.Close())
		}
	}
	h := kubeHarness(remains)
	delete(h.Cannot, "BaseObjects") // they are in the claim, and mounted read-only
	h.New = func() (sandbox.Launcher, error) { return newKube() }
	sandboxtest.TestLauncher(t, h)
}

// commitAll makes a repository of a directory, in one pack, and returns its commit.
func commitAll(t testing.TB, dir string) (oid string) {
	t.Helper()
	for _, args := range [][]string{{"init", "-q", "--template=", "-b", "main"}, {"add", "-A"}, {"commit", "-q", "-m", "base"}, {"gc", "-q"}, {"rev-parse", "HEAD"}} {
		out, err := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=test", "-c", "user.email=test@example.org"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		oid = strings.TrimSpace(string(out))
	}
	return oid
}

// skeleton makes a directory a workspace that starts at a commit of a base.
func skeleton(t testing.TB, dir, oid string) {
	t.Helper()
	for name, content := range map[string]string{
		"config":                  "[core]\n\trepositoryformatversion = 0\n\tbare = false\n[user]\n\tname = Agent\n\temail = agent@example.org\n",
		"HEAD":                    "ref: refs/heads/main\n",
		"refs/heads/main":         oid + "\n",
		"objects/info/alternates": sandbox.BaseObjectsPath + "\n",
	} {
		file := filepath.Join(dir, ".git", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// onBase gives a kick a base of its own, with a README.md.
func (k *kubeKick) onBase(t *testing.T) {
	t.Helper()
	base := t.TempDir()
	if err := os.WriteFile(filepath.Join(base, "README.md"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w := &k.spec.Workspace
	w.BaseOID, w.Objects = commitAll(t, base), filepath.Join(base, ".git/objects")
	skeleton(t, w.Dir, w.BaseOID)
}

// TestKubeClaimBase: the base is sent for the first kick alone, many read it, and
// nobody writes it. What the base has gained is sent, and not the rest again.
func TestKubeClaimBase(t *testing.T) {
	t.Parallel()
	n, claim, dir := claimed(t)
	onClaim := func(c *sandbox.KubernetesConfig) { c.Claim, c.ClaimPath = claim, "team/kick" }
	first := newKubeKick(t, n, "cat README.md; touch "+sandbox.BaseObjectsPath+"/x 2>/dev/null && echo wrote; git commit -q --allow-empty -m one", onClaim)
	first.onBase(t)
	objects := first.spec.Workspace.Objects
	run := func(k *kubeKick, want string) []os.FileInfo {
		e := k.run(t)
		if e.err != nil || e.res.ExitCode != 0 || k.out.b.String() != want || !slices.Contains(e.res.Artifacts, sandbox.FinalBundle) {
			t.Fatalf("%v, %s %s, %q, %v", e.err, e.res.Reason, e.res.Detail, k.out.b.String(), e.res.Artifacts)
		}
		packs, err := filepath.Glob(filepath.Join(dir, "team/kick/bases/*/objects/pack/*.pack"))
		if err != nil {
			t.Fatal(err)
		}
		var infos []os.FileInfo
		for _, p := range packs {
			info, err := os.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			infos = append(infos, info)
		}
		return infos
	}
	was := run(first, "hello\n")
	if len(was) != 1 {
		t.Fatalf("%d packs in the claim", len(was))
	}
	again := func() *kubeKick {
		k := newKubeKick(t, n, "cat README.md; git commit -q --allow-empty -m two", onClaim)
		k.l = first.l
		w := &k.spec.Workspace
		w.BaseOID, w.Objects = first.spec.Workspace.BaseOID, objects
		skeleton(t, w.Dir, w.BaseOID)
		return k
	}
	if is := run(again(), "hello\n"); len(is) != 1 || !os.SameFile(is[0], was[0]) {
		t.Error("the base was sent again")
	}
	// One more object, as a fetch brings it.
	cmd := exec.Command("git", "-C", filepath.Dir(objects), "hash-object", "-w", "--stdin")
	cmd.Stdin = strings.NewReader("more\n")
	oid, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	k := again()
	k.spec.Command = []string{"sh", "-c", "git cat-file blob " + strings.TrimSpace(string(oid)) + "; git commit -q --allow-empty -m three"}
	if is := run(k, "more\n"); len(is) != 1 || !os.SameFile(is[0], was[0]) {
		t.Error("all of the base was sent again")
	}
	if left, err := filepath.Glob(filepath.Join(dir, "team/kick/kicks/*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestKubeClaimSurvives: work in a claim outlives the pod that made it, whatever ends
// that, and then nothing is left of it.
func TestKubeClaimSurvives(t *testing.T) {
	t.Parallel()
	c := kubetest.Open(t)
	const work = "echo one >one.txt; git add one.txt; git commit -q -m one; echo unfinished >two.txt; echo ready; "
	for name, f := range map[string]struct {
		script string
		fault  func(*testing.T, *kubeKick)
		reason sandbox.Reason
		lost   bool
	}{
		"pod deleted by force": {
			script: work + "sleep 600", reason: sandbox.ReasonLost,
			fault: func(t *testing.T, k *kubeKick) {
				k.n.Kubectl(t, "delete", "pod", "--namespace", k.n.Name, "--selector", "kick.id="+k.spec.ID, "--force", "--grace-period=0")
			},
		},
		"job deleted": {
			script: work + "sleep 600", reason: sandbox.ReasonLost,
			fault: func(t *testing.T, k *kubeKick) {
				k.n.Kubectl(t, "delete", "job", "--namespace", k.n.Name, "kick-"+k.spec.ID, "--wait=false")
			},
		},
		"storage limit": {script: work + "head -c 200m /dev/zero >big; sleep 600", reason: sandbox.ReasonDiskLimit},
		"namespace deleted": {
			script: work + "sleep 600", reason: sandbox.ReasonLost, lost: true,
			fault: func(t *testing.T, k *kubeKick) {
				k.n.Kubectl(t, "delete", "namespace", k.n.Name, "--wait=false")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := c.Namespace(t, mayLook)
			claim, dir := n.Claim(t, "ReadWriteMany")
			k := newKubeKick(t, n, f.script, func(c *sandbox.KubernetesConfig) { c.Claim = claim })
			k.onBase(t)
			k.start(t)
			k.ready(t)
			if f.fault != nil {
				f.fault(t, k)
			}
			e := k.wait(t)
			e.says(t, f.reason)
			if f.lost {
				if len(e.res.Missing) == 0 {
					t.Error("the work is not said to be missing")
				}
				return
			}
			if !slices.Contains(e.res.Artifacts, sandbox.FinalBundle) || !strings.Contains(k.sink.content(sandbox.WorkSummary), `"commits":1`) || !strings.Contains(k.sink.content(sandbox.WorkSummary), "two.txt") {
				t.Errorf("the work is not saved: artifacts %v, missing %q, summary %s", e.res.Artifacts, e.res.Missing, k.sink.content(sandbox.WorkSummary))
			}
			if left := workspacesIn(t, dir); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// claimOrphan is an orphan whose pod is gone too.
func claimOrphan(t *testing.T, id string, n *kubetest.Namespace) (dir string) {
	t.Helper()
	dir = orphan(t, func(dir string) error {
		l, err := newKube()
		if err != nil {
			return err
		}
		_, err = l.Run(context.Background(), sandbox.LaunchSpec{
			ID: id, Agent: "test", Image: os.Getenv(kubetest.ImageEnv), Stdout: os.Stdout, Network: sandbox.NetworkNone,
			Command: []string{"sh", "-c", "echo made here >made; echo it runs; sleep 600"}, Env: map[string]string{"PATH": sandboxtest.DefaultPath},
			Workspace: sandbox.Workspace{Dir: dir, Sink: &artifactSink{}},
		})
		return err
	})
	n.Kubectl(t, "delete", "pod", "--namespace", n.Name, "--selector", "kick.id="+id, "--force", "--grace-period=0")
	return dir
}

// TestKubeClaimOrphan: the work of a kick whose process died, and whose pod is gone,
// is taken out of the claim; until then no reaper takes it.
func TestKubeClaimOrphan(t *testing.T) {
	const id = "claim-orphan"
	if os.Getenv(orphanEnv) != "" { // the process that is to die
		claimOrphan(t, id, nil)
	}
	n := kubeNamespace(t, mayLook)
	claim, volume := n.Claim(t, "ReadWriteOnce")
	t.Setenv(kubeClaimEnv, claim)
	dir := claimOrphan(t, id, n)
	l, err := newKube()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	collect := func() (sandbox.Result, *artifactSink, error) {
		sink := &artifactSink{}
		res, err := l.Run(context.Background(), sandbox.LaunchSpec{ID: id, Agent: "test", Image: n.Image, Network: sandbox.NetworkNone, Workspace: sandbox.Workspace{Dir: dir, Sink: sink}})
		return res, sink, err
	}
	if _, err := l.Reap(context.Background()); err != nil || len(workspacesIn(t, volume)) != 1 {
		t.Errorf("after the reaper, %v, there is %v", err, workspacesIn(t, volume))
	}
	res, sink, err := collect()
	if err != nil || !strings.Contains(sink.content(sandbox.DirtyArchive), "made here") {
		t.Errorf("%v, %+v", err, res)
	}
	left := n.Kubectl(t, "get", "jobs,pods", "--namespace", n.Name, "--output", "name")
	if left += strings.Join(workspacesIn(t, volume), " "); left != "" {
		t.Errorf("left: %s", left)
	}
	if res, _, err := collect(); err != nil || res.Reason != sandbox.ReasonLost {
		t.Errorf("once more: %v, %+v", err, res)
	}

	// What nobody wants any more is the reaper's.
	dir = claimOrphan(t, id, n)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if removed, err := l.Reap(context.Background()); err != nil || !slices.Contains(removed, id) || len(workspacesIn(t, volume)) != 0 {
		t.Errorf("%v, %v, and there is %v", removed, err, workspacesIn(t, volume))
	}
}

// TestKubeClaimRefused: a claim that cannot be used is named at once, with what to do.
func TestKubeClaimRefused(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t, mayLook)
	usable, dir := n.Claim(t, "ReadWriteMany")
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	only, _ := n.Claim(t, "ReadOnlyMany")
	pod, _ := n.Claim(t, "ReadWriteOncePod")
	n.Apply(t, fmt.Sprintf("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: block, namespace: %s}\nspec: {accessModes: [ReadWriteMany], volumeMode: Block, resources: {requests: {storage: 1Gi}}}\n", n.Name))
	for name, f := range map[string]struct {
		config func(*sandbox.KubernetesConfig)
		want   []string
	}{
		"absent":         {func(c *sandbox.KubernetesConfig) { c.Claim = "no-such-claim" }, []string{"no-such-claim", "there is none of that name"}},
		"read-only":      {func(c *sandbox.KubernetesConfig) { c.Claim = only }, []string{"cannot be written", "ReadWriteMany"}},
		"one pod alone":  {func(c *sandbox.KubernetesConfig) { c.Claim = pod }, []string{"ReadWriteOncePod"}},
		"block device":   {func(c *sandbox.KubernetesConfig) { c.Claim = "block" }, []string{"block device", "Filesystem"}},
		"a way out":      {func(c *sandbox.KubernetesConfig) { c.Claim, c.ClaimPath = usable, "../x" }, []string{"no path in it"}},
		"a file as path": {func(c *sandbox.KubernetesConfig) { c.Claim, c.ClaimPath = usable, "file" }, []string{"make the workspace", "not a directory"}},
		"no shim image":  {func(c *sandbox.KubernetesConfig) { c.Claim, c.ShimImage = usable, "" }, []string{"shim_image"}},
		"and a pool":     {func(c *sandbox.KubernetesConfig) { c.Claim, c.Pool = usable, "agents" }, []string{"pool"}},
		"path alone":     {func(c *sandbox.KubernetesConfig) { c.ClaimPath = "x" }, []string{"no claim"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKubeKick(t, n, "echo ran", f.config)
			e := k.run(t)
			if e.err == nil || k.out.b.Len() > 0 {
				t.Errorf("it ran: %v, %q", e.err, k.out.b.String())
			}
			e.says(t, sandbox.ReasonStartFailed, f.want...)
		})
	}
	if left := workspacesIn(t, dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestKubeClaimFull: a base for which the claim has no room ends the kick at once, and
// not only when the host is tired of bringing it.
func TestKubeClaimFull(t *testing.T) {
	t.Parallel()
	n, claim, dir := claimed(t)
	n.Narrow(t, dir, "1m")
	k := newKubeKick(t, n, "echo ran", func(c *sandbox.KubernetesConfig) { c.Claim = claim })
	base := t.TempDir()
	noise := make([]byte, 8<<20) // more than is on the way at a time
	_, _ = rand.Read(noise)      // never fails on Linux
	if err := os.WriteFile(filepath.Join(base, "noise"), noise, 0o644); err != nil {
		t.Fatal(err)
	}
	w := &k.spec.Workspace
	w.BaseOID, w.Objects = commitAll(t, base), filepath.Join(base, ".git/objects")
	skeleton(t, w.Dir, w.BaseOID)
	began := time.Now()
	e := k.run(t)
	if took := time.Since(began); e.err == nil || took > 2*time.Minute {
		t.Errorf("%v after %v", e.err, took)
	}
	e.says(t, sandbox.ReasonStartFailed, "bring the base to the claim", "no space left on device", "See whether the claim is full")
}

// TestKubeClaimLocked: what an agent locks, the workspace itself too, is collected all
// the same, and does not hide from the limit of disk.
func TestKubeClaimLocked(t *testing.T) {
	t.Parallel()
	n, claim, dir := claimed(t)
	onClaim := func(c *sandbox.KubernetesConfig) { c.Claim = claim }
	t.Run("work", func(t *testing.T) {
		t.Parallel()
		k := newKubeKick(t, n, "mkdir -p a/b; git commit -q --allow-empty -m one; echo dirt >a/b/dirt; chmod 0 a/b a .", onClaim)
		k.onBase(t)
		e := k.run(t)
		if e.err != nil || !slices.Contains(e.res.Artifacts, sandbox.FinalBundle) || !strings.Contains(k.sink.content(sandbox.DirtyArchive), "dirt") {
			t.Errorf("%v, %s %s, %v", e.err, e.res.Reason, e.res.Detail, e.res.Artifacts)
		}
	})
	t.Run("limit", func(t *testing.T) {
		t.Parallel()
		k := newKubeKick(t, n, `mkdir a; cd a; for i in 1 2 3 4 5; do head -c 20M /dev/zero >$i; done; chmod 300 . ..; sleep 240`, onClaim)
		if e := k.run(t); e.err != nil || e.res.Reason != sandbox.ReasonDiskLimit {
			t.Errorf("%v, %s %s", e.err, e.res.Reason, e.res.Detail)
		}
	})
	t.Cleanup(func() {
		if left := workspacesIn(t, dir); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// Without the verb that a claim takes a kick fails and names it.
func TestKubeClaimVerbs(t *testing.T) {
	t.Parallel()
	n := kubetest.Open(t).Namespace(t) // whose account may not
	claim, _ := n.Claim(t, "ReadWriteMany")
	k := newKubeKick(t, n, "true", func(c *sandbox.KubernetesConfig) { c.Claim = claim })
	if err := k.l.Rights(t.Context()); err == nil || !strings.Contains(err.Error(), "get persistentvolumeclaims") {
		t.Errorf("asked for its rights: %v", err)
	}
	if e := k.run(t); e.err == nil || !strings.Contains(e.err.Error(), "get persistentvolumeclaims") {
		t.Errorf("%s %s: %v", e.res.Reason, e.res.Detail, e.err)
	}
}

// BenchmarkKubeClaim measures kicks on a base of 64 MiB that cannot be made smaller,
// on a claim and by stream in turn: from the call of Run to the agent's first line,
// and to the end of everything. The claim has the base already.
func BenchmarkKubeClaim(b *testing.B) {
	c := kubetest.Open(b)
	n := c.Namespace(b, mayLook)
	useNamespace(b, n, c.ShimImage(b, sandbox.Shim()))
	base := b.TempDir()
	noise := make([]byte, 64<<20)
	_, _ = rand.Read(noise) // never fails on Linux
	if err := os.WriteFile(filepath.Join(base, "noise"), noise, 0o644); err != nil {
		b.Fatal(err)
	}
	oid := commitAll(b, base)
	launchers := map[string]*sandbox.Kubernetes{}
	for _, name := range []string{"stream", "claim"} {
		if name == "claim" {
			claim, _ := n.Claim(b, "ReadWriteMany")
			b.Setenv(kubeClaimEnv, claim)
		}
		l, err := newKube()
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		launchers[name] = l
	}
	first, whole := map[string][]float64{}, map[string][]float64{}
	run := func(name string, i int) {
		said := &firstLine{}
		dir := b.TempDir()
		skeleton(b, dir, oid)
		l := launchers[name]
		began := time.Now()
		res, err := l.Run(context.Background(), sandbox.LaunchSpec{
			ID: fmt.Sprintf("%s-%d", name, i), Agent: "test", Image: n.Image, Command: []string{"sh", "-c", "echo hi; git commit -q --allow-empty -m one"}, Stdout: said,
			Env: map[string]string{"PATH": sandboxtest.DefaultPath}, Network: sandbox.NetworkNone,
			Workspace: sandbox.Workspace{Dir: dir, BaseOID: oid, Objects: filepath.Join(base, ".git/objects"), Sink: &artifactSink{}},
		})
		if err != nil || res.ExitCode != 0 || said.at.IsZero() {
			b.Fatalf("%v, %+v", err, res)
		}
		first[name], whole[name] = append(first[name], ms(said.at.Sub(began))), append(whole[name], ms(time.Since(began)))
	}
	run("claim", 0)
	clear(first)
	clear(whole)
	for i := 1; b.Loop(); i++ {
		for name := range launchers {
			run(name, i)
		}
	}
	for name := range launchers {
		slices.Sort(first[name])
		slices.Sort(whole[name])
		b.ReportMetric(first[name][len(first[name])/2], name+"-first-ms")
		b.ReportMetric(whole[name][len(whole[name])/2], name+"-whole-ms")
	}
	b.ReportMetric(0, "ns/op")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
