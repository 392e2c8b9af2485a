package sandbox_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/internal/kubetest"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

// times are how long something took, in milliseconds.
type times []float64

func (t *times) add(d time.Duration) { *t = append(*t, float64(d.Microseconds())/1000) }

func (t times) median() float64 { slices.Sort(t); return t[len(t)/2] }

// closedCanary is an address at which a pod is refused at once, whatever its network
// is: a kick that has no other waits for no NetworkPolicy.
const closedCanary = "127.0.0.1:9"

// BenchmarkKubeStart measures from the call of Run until the shim of a Job's pod has
// said that it is ready, and its isolation is proved, against a bare `kubectl create
// job` until `kubectl logs -f` prints its first line, in turn on the same node. What
// waiting for the NetworkPolicy adds is the difference to a kick that need not.
func BenchmarkKubeStart(b *testing.B) {
	c := kubetest.Open(b)
	n := c.Namespace(b)
	shimImage := c.ShimImage(b, sandbox.Shim())
	b.Run("shim in the image", func(b *testing.B) { benchmarkKubeStart(b, n, c.Image, "") })
	b.Run("shim from an init container", func(b *testing.B) { benchmarkKubeStart(b, n, c.Image, shimImage) })
}

func benchmarkKubeStart(b *testing.B, n *kubetest.Namespace, agent, shimImage string) {
	launcher := func(canaries ...string) *sandbox.Kubernetes {
		l, err := sandbox.NewKubernetes(sandbox.KubernetesConfig{
			Shim: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(sandbox.Shim())), nil }, Dir: b.TempDir(),
			KubernetesChoice: sandbox.KubernetesChoice{Kubeconfig: n.Kubeconfig, Namespace: n.Name, ShimImage: shimImage, Canaries: canaries},
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = l.Close() }) // nothing is written by it
		return l
	}
	usual, open := launcher(), launcher(closedCanary)
	var bare, kick, without times
	for b.Loop() {
		bare.add(bareJob(b, n))
		without.add(proved(b, open, agent))
		kick.add(proved(b, usual, agent))
	}
	b.ReportMetric(bare.median(), "bare-ms")
	b.ReportMetric(without.median(), "kick-ms")
	b.ReportMetric(without.median()/bare.median(), "kick/bare")
	b.ReportMetric(kick.median()-without.median(), "canary-ms")
	b.ReportMetric(0, "ns/op")
}

// proved runs a kick and returns how long it took until its sandbox was proved.
func proved(b *testing.B, l *sandbox.Kubernetes, agent string) (took time.Duration) {
	began := time.Now()
	res, err := l.Run(context.Background(), sandbox.LaunchSpec{
		ID: kickid.New(), Agent: "bench", Image: agent, Command: []string{"true"}, Env: map[string]string{"PATH": sandboxtest.DefaultPath},
		Network: sandbox.NetworkNone,
		OnEvent: func(e sandbox.Event) {
			if e.Kind == sandbox.EventProved {
				took = e.Time.Sub(began)
			}
		},
	})
	if err != nil || res.ExitCode != 0 || took == 0 {
		b.Fatalf("%v, %+v", err, res)
	}
	return took
}

// bareJob is what a person would do, in a namespace without any rule: kubectl asks
// again until the node has the log.
func bareJob(b *testing.B, n *kubetest.Namespace) time.Duration {
	name := "bare-" + kickid.New()
	began := time.Now()
	n.Kubectl(b, "create", "job", name, "--namespace", "default", "--image", n.Image, "--", "/bin/sh", "-c", "echo hi")
	for {
		cmd := n.KubectlCommand(n.Cluster.Kubeconfig, "logs", "--follow", "--namespace", "default", "job/"+name)
		if out, err := cmd.Output(); err == nil && strings.TrimSpace(string(out)) == "hi" {
			break
		} else if time.Since(began) > time.Minute {
			b.Fatalf("no log of %s: %v", name, err)
		}
	}
	took := time.Since(began)
	n.Kubectl(b, "delete", "job", name, "--namespace", "default", "--cascade=foreground")
	return took
}
