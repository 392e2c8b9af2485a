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
	"syscall"
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
	fmt.Fprintf(&s.report, `# Benchmarks

`+"`make bench`"+` on %s/%s, %d CPUs, %s, git %s, %s. Milliseconds; %d runs, the
commands in turn, each after a sync, at a load of %s. CPU time is that of a command and all its children: on a machine that
is shared, where the load is above the number of CPUs, it alone counts. The agent's own commit is in the kick's time and not
in that of the plain tools.
`, runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), gitVersion(), fileSystem(dir), runs, load())
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
	kept, err := others(out)
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(s.report.Bytes(), kept...), 0o644)
}

// ownHeading begins each section that is written here.
const ownHeading = "\n## Whole kick"

// others returns the sections of the file that come after those.
func others(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for i := range b {
		if bytes.HasPrefix(b[i:], []byte("\n## ")) && !bytes.HasPrefix(b[i:], []byte(ownHeading)) {
			return b[i:], err
		}
	}
	return nil, err
}

// costs are the measurements of one repository, by what was measured.
type costs map[string][]cost

// cost is what a command took; the CPU time includes its children's.
type cost struct{ wall, cpu time.Duration }

func (c costs) add(name string, took cost) { c[name] = append(c[name], took) }

// of returns one kind of time of all runs.
func (c costs) of(name string, kind func(cost) time.Duration) []time.Duration {
	d := make([]time.Duration, len(c[name]))
	for i, took := range c[name] {
		d[i] = kind(took)
	}
	return d
}

func wall(c cost) time.Duration { return c.wall }
func cpu(c cost) time.Duration  { return c.cpu }

// What is measured.
const (
	wholeKick = "kick, warm mirror, agent that commits one file"
	plain     = "git clone --no-local + bwrap true + gitleaks + git push"
	first     = "kick run to the agent's first instruction"
	bwrap     = "bwrap --unshare-all true"
	worktree  = "git worktree add"
)

func (s *suite) repo(name, bare string) error {
	var c costs
	for i := range s.runs + 1 {
		if i <= 1 {
			c = costs{} // the first round warms the mirror and the page cache
		}
		for _, measure := range []func(costs, string) error{s.kickOnce, s.plainOnce, s.bwrapOnce, s.worktreeOnce} {
			if err := measure(c, bare); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(&s.report, ownHeading+", %s\n\n| | median | min | CPU, median |\n|---|---|---|---|\n", name)
	s.row(c, wholeKick)
	s.row(c, plain)
	compare := func(f func([]time.Duration) time.Duration, kind func(cost) time.Duration) float64 {
		return ratio(f(c.of(wholeKick, kind)), f(c.of(plain, kind)))
	}
	least := slices.Min[[]time.Duration]
	fmt.Fprintf(&s.report, "| **ratio** (goal ≤ 0.35) | **%.2f** | **%.2f** | **%.2f** |\n", compare(median, wall), compare(least, wall), compare(median, cpu))
	s.row(c, first)
	s.row(c, bwrap)
	s.row(c, worktree)
	start := func(f func([]time.Duration) time.Duration) float64 {
		return ratio(f(c.of(first, wall)), 3*f(c.of(bwrap, wall))+time.Duration(1.2*float64(f(c.of(worktree, wall)))))
	}
	fmt.Fprintf(&s.report, "| **first instruction / (3 bwrap + 1.2 worktree)** (goal ≤ 1) | **%.2f** | **%.2f** | |\n", start(median), start(least))
	for _, part := range []string{"prepare", "sandbox", "agent", "collect", "ingest", "inspect", "publish"} {
		s.row(c, "of the kick: "+part)
	}
	for _, part := range []string{"git clone", "gitleaks", "git push"} {
		s.row(c, "of the plain tools: "+part)
	}
	// Every kick checks out, lets its agent commit and pushes: what is below
	// that cannot be reached by doing the rest faster.
	floor := func(f func([]time.Duration) time.Duration) float64 {
		var sum time.Duration
		for _, part := range []string{worktree, "of the kick: agent", "of the plain tools: git push"} {
			sum += f(c.of(part, wall))
		}
		return ratio(sum, f(c.of(plain, wall)))
	}
	fmt.Fprintf(&s.report, "| git worktree add + the agent + git push, to the plain tools | %.2f | %.2f | |\n", floor(median), floor(least))
	return nil
}

func (s *suite) row(c costs, name string) {
	used := ""
	if d := median(c.of(name, cpu)); d > 0 {
		used = fmt.Sprintf("%.1f", ms(d))
	}
	fmt.Fprintf(&s.report, "| %s | %.1f | %.1f | %s |\n", name, ms(median(c.of(name, wall))), ms(slices.Min(c.of(name, wall))), used)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// kickOnce runs one kick; the agent prints the time of its first instruction.
func (s *suite) kickOnce(c costs, bare string) error {
	began, took, out, err := timed("", s.kick, "run", "--state-dir", filepath.Join(s.dir, "state"), "--repo", bare, "--publish", "branch", "-o", "json", "-q", "--",
		"sh", "-c", "date +%s%N; echo x >one-more-file; git add one-more-file; git commit -qm 'one more file'")
	if err != nil {
		return err
	}
	c.add(wholeKick, took)
	var o manager.Outcome
	if err := json.Unmarshal(out, &o); err != nil {
		return err
	}
	for step, seconds := range o.Timings {
		c.add("of the kick: "+step, cost{wall: time.Duration(seconds * float64(time.Second))})
	}
	b, err := os.ReadFile(filepath.Join(s.dir, "state", "kicks", o.ID, "transcript.log"))
	if err != nil {
		return err
	}
	ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
	if err != nil {
		return err
	}
	c.add(first, cost{wall: time.Unix(0, ns).Sub(began)})
	return run("", "git", "-C", bare, "update-ref", "-d", "refs/heads/"+o.Branch)
}

// plainOnce is what a script would do without kick. Its commit is made outside
// the measured time.
func (s *suite) plainOnce(c costs, bare string) (err error) {
	work := filepath.Join(s.dir, "plain")
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	var total cost
	step := func(part, dir, name string, args ...string) error {
		_, took, _, err := timed(dir, name, args...)
		total.wall, total.cpu = total.wall+took.wall, total.cpu+took.cpu
		c.add("of the plain tools: "+part, took)
		return err
	}
	if err := step("git clone", "", "git", "clone", "-q", "--no-local", bare, work); err != nil {
		return err
	}
	if err := step("bwrap", work, "bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"); err != nil {
		return err
	}
	if err := run(work, "sh", "-c", "echo x >one-more-file; git add one-more-file; git -c user.name=a -c user.email=a@example.com commit -qm one"); err != nil {
		return err
	}
	if err := step("gitleaks", work, s.gitleaks, "git", "--no-banner", "--log-level=error", "--log-opts=HEAD~1..HEAD", "."); err != nil {
		return err
	}
	const branch = "refs/heads/plain"
	if err := step("git push", work, "git", "push", "-q", "origin", "HEAD:"+branch); err != nil {
		return err
	}
	c.add(plain, total)
	return run("", "git", "-C", bare, "update-ref", "-d", branch)
}

func (s *suite) bwrapOnce(c costs, _ string) error {
	_, took, _, err := timed("", "bwrap", "--unshare-all", "--ro-bind", "/", "/", "true")
	c.add(bwrap, took)
	return err
}

func (s *suite) worktreeOnce(c costs, bare string) error {
	dir := filepath.Join(s.dir, "worktree")
	_, took, _, err := timed(bare, "git", "worktree", "add", "-q", "--detach", dir, "HEAD")
	if err != nil {
		return err
	}
	c.add(worktree, took)
	return run(bare, "git", "worktree", "remove", "--force", dir)
}

// timed runs a command and returns what it printed. What was written before is
// on disk by then: a command that syncs shall not pay for others.
func timed(dir, name string, args ...string) (began time.Time, took cost, stdout []byte, err error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	syscall.Sync()
	began = time.Now()
	err = cmd.Run()
	took.wall = time.Since(began)
	if err != nil {
		return began, took, nil, fmt.Errorf("%s %q: %w\n%s%s", name, args, err, &out, &stderr)
	}
	took.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return began, took, out.Bytes(), nil
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

// fileSystem names the kind of file system that dir is on.
func fileSystem(dir string) string {
	out, err := exec.Command("findmnt", "--noheadings", "--output", "FSTYPE", "--target", dir).Output()
	if err != nil {
		return "an unknown file system"
	}
	return strings.TrimSpace(string(out))
}

// load is the load average of the last five minutes.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return "unknown"
	}
	return f[1]
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
