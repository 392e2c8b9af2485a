package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

var shimBytes []byte

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		dir, err := os.MkdirTemp("", "kick-shim")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		if path := os.Getenv("KICK_TEST_SHIM"); path != "" {
			shimBytes, err = os.ReadFile(path)
			if err != nil {
				return 1, err
			}
			return m.Run(), nil
		}
		path := filepath.Join(dir, "kick-shim")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../cmd/kick-shim")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build the shim: %w\n%s", err, out)
		}
		if shimBytes, err = os.ReadFile(path); err != nil {
			return 1, err
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func newEmbedded(t testing.TB) *Embedded {
	t.Helper()
	e, err := NewEmbedded(EmbeddedConfig{Shim: shimBytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func TestRunFirst(t *testing.T) {
	e := newEmbedded(t)
	var out, errs bytes.Buffer
	start := time.Now()
	res, err := e.Run(context.Background(), LaunchSpec{ID: "kfirst", Command: []string{"/bin/sh", "-c", "id; echo $$; pwd; ls -la / /run/kick /dev; cat /proc/self/status | grep Cap; mount | head -70; echo err >&2; exit 7"}, Env: map[string]string{"PATH": "/usr/bin:/bin", "FOO": "bar"}, Stdout: &out, Stderr: &errs})
	t.Logf("%v\n%s\n%s", time.Since(start), out.String(), errs.String())
	for _, p := range res.Isolation.Properties {
		t.Logf("%+v", p)
	}
	res.Isolation.Properties = nil
	t.Logf("%+v", res)
	if err != nil {
		t.Fatal(err)
	}
	if res.ExitCode != 7 {
		t.Error("exit code")
	}
}

// BenchmarkTrue compares the embedded runtime with bubblewrap, which does less:
// no first process that reaps, no check from outside, no filters. Wall time
// depends on what else the machine does; processor time does not.
func BenchmarkTrue(b *testing.B) {
	e := newEmbedded(b)
	measure := func(name string, one func(i int) error) {
		b.Run(name, func(b *testing.B) {
			before := processorTime()
			for i := range b.N {
				if err := one(i); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((processorTime()-before).Seconds()*1000/float64(b.N), "cpu-ms/op")
		})
	}
	measure("kick", func(i int) error {
		res, err := e.Run(context.Background(), LaunchSpec{ID: fmt.Sprintf("kbench%d", i), Command: []string{"/bin/true"}})
		if err == nil && res.ExitCode != 0 {
			err = errors.New(res.Detail)
		}
		return err
	})
	measure("bwrap", func(int) error {
		return exec.Command("bwrap", "--unshare-all", "--ro-bind", "/", "/", "true").Run()
	})
}

func processorTime() time.Duration {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			panic(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
