// Command podmanbench measures the Podman launcher against the podman program on
// the service of CONTAINER_HOST: a whole run of `true` in a container that is
// locked down, proved and removed, and a bare `podman run`. It prints one row of
// the table in docs/benchmarks.md, and `scripts/podman.sh bench` runs it on each
// service.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/sandbox"
)

func main() {
	name := flag.String("name", "", "what the row is called")
	program := flag.String("podman", "podman", "the podman program of the service")
	shim := flag.String("shim", "", "the shim to run")
	image := flag.String("image", "", "the image to run")
	goal := flag.String("goal", "", "the goal, as text")
	runs := flag.Int("runs", 15, "runs of each, in turn, after one that is not counted")
	flag.Parse()
	if err := bench(*name, *program, *shim, *image, *goal, *runs); err != nil {
		fmt.Fprintln(os.Stderr, "podmanbench:", err)
		os.Exit(1)
	}
}

func bench(name, program, shim, image, goal string, runs int) (err error) {
	dir, err := os.MkdirTemp("", "podmanbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := sandbox.NewPodman(sandbox.PodmanConfig{Shim: func() (io.ReadCloser, error) { return os.Open(shim) }, Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	var ours, bare []time.Duration
	for i := range runs + 1 {
		a, err := launch(l, image)
		if err != nil {
			return err
		}
		b, err := bareRun(program, image)
		if err != nil {
			return err
		}
		if i > 0 { // the first of each fills caches
			ours, bare = append(ours, a), append(bare, b)
		}
	}
	a, b := median(ours), median(bare)
	fmt.Printf("| %s | %.0f (%.0f) | %.0f (%.0f) | %.2f | %s |\n", name, ms(a), ms(slices.Min(ours)), ms(b), ms(slices.Min(bare)), float64(a)/float64(b), goal)
	return nil
}

func launch(l *sandbox.Podman, image string) (time.Duration, error) {
	began := time.Now()
	res, err := l.Run(context.Background(), sandbox.LaunchSpec{
		ID: kickid.New(), Image: image, Command: []string{"true"}, Env: map[string]string{"PATH": "/usr/bin:/bin"},
	})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("true ended with %s, exit code %d", res.Reason, res.ExitCode)
	}
	return time.Since(began), err
}

func bareRun(program, image string) (time.Duration, error) {
	cmd := exec.Command(program, "run", "--rm", "--network", "none", image, "true")
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CONTAINER_HOST=") { // it would go by way of the service
			cmd.Env = append(cmd.Env, kv)
		}
	}
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out)
	}
	return time.Since(began), err
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
