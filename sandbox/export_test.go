package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/podmantest"
)

// Shim returns the shim that the tests of this package have built, for those
// in package sandbox_test.
func Shim() []byte { return shimBytes }

// PreflightScript is what looks for what a kick needs of an image.
const PreflightScript = preflightScript

// SetAskTimeout sets how long a Podman service may take for an answer.
func SetAskTimeout(d time.Duration) (restore func()) {
	ask, ping := askTimeout, pingTimeout
	askTimeout, pingTimeout = d, d
	return func() { askTimeout, pingTimeout = ask, ping }
}

// PodmanChildEnv marks the process that runs the tests on one service, as the
// service's user (see TestPodman).
const PodmanChildEnv = "KICK_TEST_PODMAN_CHILD"

// OnService skips a test in any other process.
func OnService(t *testing.T) {
	t.Helper()
	if os.Getenv(PodmanChildEnv) == "" {
		t.Skip("TestPodman runs this on each service")
	}
}

// PodmanTestConfig is for a launcher on the service of this process.
func PodmanTestConfig() PodmanConfig {
	return PodmanConfig{
		Shim:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(shimBytes)), nil },
		Dir:   filepath.Join(os.Getenv("HOME"), "podman"),
		Image: os.Getenv(podmantest.ImageEnv),
	}
}

// ClaimOwner is how this process names itself in labels.
func ClaimOwner(t testing.TB) string {
	owner, err := claimOwner()
	if err != nil {
		t.Fatal(err)
	}
	return owner
}

// No test waits for two minutes for what never comes.
func init() { deleteTimeout, openShellCut = 20*time.Second, 20*time.Second }

// KubePod has a launcher make the Job of one kick, and follow it until its pod runs, as
// Run does before it comes to the shim. On a node that is simulated there is no more to
// be had. The Job is there until end.
func KubePod(ctx context.Context, l *Kubernetes, spec LaunchSpec) (end func() error, err error) {
	if err := checkSpec(&spec); err != nil {
		return nil, err
	}
	made, err := l.newBox(ctx, spec, frame.RunAndCollectMode)
	if err != nil {
		return nil, err
	}
	b := made.(*kubeBox)
	b.eye = b.launcher.watch.open(spec.ID)
	err = b.attempt(ctx)
	end = func() error {
		err := b.remove()
		b.eye.close()
		return err
	}
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return end, nil
}

// SetClock has a launcher's host believe that it is another time.
func SetClock(l *Kubernetes, now func() time.Time) error {
	o, err := l.open()
	if err == nil {
		o.client.Clock = now
	}
	return err
}

// LingerAs is how a launcher labels machines that linger for kicks like one: for whom,
// and what they are made as.
func LingerAs(l *KubeVirt, spec LaunchSpec) (trust, shape string, err error) {
	o, err := l.open()
	if err != nil {
		return "", "", err
	}
	shape, err = newKubeVirtPlan(o.config, spec, frame.RunAndCollectMode, "", "").lingerShape()
	return o.lingerFor(spec.Trust), shape, err
}

// Evict has a launcher remove the machines that linger beyond their number.
func Evict(ctx context.Context, l *KubeVirt) error {
	o, err := l.open()
	if err != nil {
		return err
	}
	return o.evict(ctx, o.config.Linger.Machines)
}
