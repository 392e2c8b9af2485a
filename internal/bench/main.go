// Command bench measures whole kicks against the plain tools that do the same
// work, in turn and in one run, and prints the table of docs/benchmarks.md.
// What counts are the ratios: the machines that this runs on are shared.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kickhq/kick/manager"
)

func main() {
	kick := flag.String("kick", "bin/kick", "the kick to measure")
	gitleaks := flag.String("gitleaks", "gitleaks", "the gitleaks to compare with")
	runs := flag.Int("runs", 10, "counted runs of each command, after one that is not")
	out := flag.String("out", "docs/benchmarks.md", "file to write the table to")
	flag.Parse()
	if err := bench(*kick, *gitleaks, *runs, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type suite struct {
	kick, gitleaks string
	runs           int
	dir            string
	report         bytes.Buffer
}

func bench(kick, gitleaks string, runs int, out string) (err error) {
	kick, err = filepath.Abs(kick)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kick-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := &suite{kick: kick, gitleaks: gitleaks, runs: runs, dir: dir}
	fmt.Fprintf(&s.report, "# Benchmarks\n\n`make bench` on %s/%s, %d CPUs, %s, git %s. Wall time in milliseconds, median (min) of %d runs, the\ncommands in turn in one run. Machines differ and are shared: the ratios count.\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), gitVersion(), runs)
	for _, r := range []struct {
		name string
		make func(bare string) error
	}{
		{"this project's repository", cloneSelf},
		{"5,000 files and 2,000 commits", generate},
	} {
		bare := filepath.Join(dir, strings.Fields(r.name)[0]+".git")
		if err := r.make(bare); err != nil {
			return fmt.Errorf("make %s: %w", r.name, err)
		}
		if err := s.repo(r.name, bare); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	_, _ = io.Copy(os.Stdout, bytes.NewReader(s.report.Bytes()))
	return os.WriteFile(out, s.report.Bytes(), 0o644)
}

func (s *suite) repo(name, bare string) error {
	var whole, first, plain, bwrap, worktree []time.Duration
	for i := range s.runs + 1 {
		k, f, err := s.kickOnce(bare)
		if err != nil {
			return err
		}
		p, err := s.plainOnce(bare, i)
		if err != nil {
			return err
		}
		b, err := timed("", "bwrap", "--unshare-all", "--ro-bind", "/", "/", "true")
		if err != nil {
			return err
		}
		w, err := s.worktreeOnce(bare, i)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // warms the mirror and the page cache
		}
		whole, first, plain = append(whole, k), append(first, f), append(plain, p)
		bwrap, worktree = append(bwrap, b), append(worktree, w)
	}
	fmt.Fprintf(&s.report, "\n## Whole kick, %s\n\n| | median | min |\n|---|---|---|\n", name)
	s.row("kick, warm mirror, agent that commits one file", whole)
	s.row("git clone --no-local + bwrap true + gitleaks + git push", plain)
	fmt.Fprintf(&s.report, "| **ratio** (goal ≤ 0.35) | **%.2f** | **%.2f** |\n", ratio(median(whole), median(plain)), ratio(slices.Min(whole), slices.Min(plain)))
	s.row("kick run to the agent's first instruction", first)
	s.row("bwrap --unshare-all true", bwrap)
	s.row("git worktree add", worktree)
	goal := func(f func([]time.Duration) time.Duration) float64 {
		return ratio(f(first), 3*f(bwrap)+time.Duration(1.2*float64(f(worktree))))
	}
	fmt.Fprintf(&s.report, "| **first instruction / (3 bwrap + 1.2 worktree)** (goal ≤ 1) | **%.2f** | **%.2f** |\n", goal(median), goal(slices.Min[[]time.Duration]))
	return nil
}

func (s *suite) row(name string, d []time.Duration) {
	fmt.Fprintf(&s.report, "| %s | %.1f | %.1f |\n", name, ms(median(d)), ms(slices.Min(d)))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// kickOnce runs one kick; the agent prints the time of its first instruction.
func (s *suite) kickOnce(bare string) (whole, first time.Duration, err error) {
	cmd := exec.Command(s.kick, "run", "--state-dir", filepath.Join(s.dir, "state"), "--repo", bare, "--publish", "branch", "-o", "json", "-q", "--",
		"sh", "-c", "date +%s%N; echo x >one-more-file; git add one-more-file; git commit -qm 'one more file'")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("kick: %w\n%s%s", err, stdout.String(), stderr.String())
	}
	whole = time.Since(began)
	var o manager.Outcome
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		return 0, 0, err
	}
	b, err := os.ReadFile(filepath.Join(s.dir, "state", "kicks", o.ID, "transcript.log"))
	if err != nil {
		return 0, 0, err
	}
	ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
	if err != nil {
		return 0, 0, err
	}
	return whole, time.Unix(0, ns).Sub(began), run("", "git", "-C", bare, "update-ref", "-d", "refs/heads/"+o.Branch)
}

// plainOnce is what a script would do without kick. Its commit is made outside
// the measured time.
func (s *suite) plainOnce(bare string, i int) (total time.Duration, err error) {
	work := filepath.Join(s.dir, fmt.Sprintf("plain%d", i))
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	step := func(name string, args ...string) error {
		d, err := timed(work, name, args...)
		total += d
		return err
	}
	d, err := timed("", "git", "clone", "-q", "--no-local", bare, work)
	if err != nil {
		return 0, err
	}
	total += d
	if err := step("bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"); err != nil {
		return 0, err
	}
	if err := run(work, "sh", "-c", "echo x >one-more-file; git add one-more-file; git -c user.name=a -c user.email=a@example.com commit -qm one"); err != nil {
		return 0, err
	}
	if err := step(s.gitleaks, "git", "--no-banner", "--log-level=error", "--log-opts=HEAD~1..HEAD", "."); err != nil {
		return 0, err
	}
	branch := fmt.Sprintf("refs/heads/plain/%d", i)
	if err := step("git", "push", "-q", "origin", "HEAD:"+branch); err != nil {
		return 0, err
	}
	return total, run("", "git", "-C", bare, "update-ref", "-d", branch)
}

func (s *suite) worktreeOnce(bare string, i int) (time.Duration, error) {
	dir := filepath.Join(s.dir, fmt.Sprintf("worktree%d", i))
	d, err := timed(bare, "git", "worktree", "add", "-q", "--detach", dir, "HEAD")
	if err != nil {
		return 0, err
	}
	return d, run(bare, "git", "worktree", "remove", "--force", dir)
}

func timed(dir, name string, args ...string) (time.Duration, error) {
	began := time.Now()
	err := run(dir, name, args...)
	return time.Since(began), err
}

func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %q: %w\n%s", name, args, err, out)
	}
	return nil
}

func gitVersion() string {
	out, _ := exec.Command("git", "version").Output()
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "git version ")
}

func cloneSelf(bare string) error {
	return run("", "git", "clone", "-q", "--bare", "--no-local", ".", bare)
}

// generate makes a repository of 5,000 files in 100 directories and 2,000
// commits that each change one file, from a fixed seed.
func generate(bare string) error {
	if err := run("", "git", "init", "-q", "--bare", "-b", "main", bare); err != nil {
		return err
	}
	cmd := exec.Command("git", "fast-import", "--quiet")
	cmd.Dir = bare
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	file := func(n, version int) {
		var b strings.Builder
		for l := range 40 {
			fmt.Fprintf(&b, "line %d of file %d, version %d, word %d\n", l, n, version, (n*31+l*17+version*7)%1009)
		}
		fmt.Fprintf(in, "M 100644 inline dir%02d/file%04d.txt\ndata %d\n%s\n", n%100, n, b.Len(), b.String())
	}
	for c := range 2000 {
		msg := fmt.Sprintf("commit %d", c)
		fmt.Fprintf(in, "commit refs/heads/main\ncommitter Base <base@example.com> %d +0000\ndata %d\n%s\n", 1700000000+c*60, len(msg), msg)
		if c == 0 {
			for n := range 5000 {
				file(n, 0)
			}
		} else {
			file(c*13%5000, c)
		}
	}
	if err := in.Close(); err != nil {
		return err
	}
	return cmd.Wait()
}
