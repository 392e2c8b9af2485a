package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
)

// smallCommits is how many commits are published one by one.
const smallCommits = 9

// smallCommit measures what the broker takes for one small commit, from the
// bundle to the branch, on a repository of some 30,000 objects. What its
// children take, and those of the remote, which is on this machine, counts.
func (m *measurement) smallCommit() error {
	dir := filepath.Join(m.dir, "commit")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "history"), bigHistory(), 0o600); err != nil {
		return err
	}
	out, err := exec.Command("sh", "-euc", `cd "$1"; git init -q --bare -b main mirror
		git --git-dir=mirror fast-import --quiet <history; git --git-dir=mirror repack -adq
		git clone -q --bare mirror remote; git clone -q mirror clone; cd clone
		git config user.name kick; git config user.email kick@example.com
		base=$(git rev-parse HEAD); echo more >>d1/e1/f1.txt; git commit -qam work
		git bundle create -q ../work.bundle "^$base" HEAD
		echo "$base"; git count-objects -v | sed -n 's/^in-pack: //p'`, "sh", dir).Output()
	if err != nil {
		return fmt.Errorf("make the repository: %w", err)
	}
	fields := strings.Fields(string(out))
	if len(fields) != 2 {
		return fmt.Errorf("make the repository: unexpected output %q", out)
	}
	target, err := pushbroker.NewTarget(filepath.Join(dir, "remote"), pushbroker.Access{})
	if err != nil {
		return err
	}
	var costs []time.Duration
	for i := range smallCommits {
		work := pushbroker.Work{
			KickID: "k0000000000000", Agent: "bench", Repo: "acme/demo", Bundle: filepath.Join(dir, "work.bundle"), Mirror: filepath.Join(dir, "mirror"),
			BaseOID: fields[0], Branch: fmt.Sprintf("kick/bench/%d", i), IdentityName: "kick", IdentityEmail: "kick@example.com",
		}
		before := cpuTime(syscall.RUSAGE_SELF) + cpuTime(syscall.RUSAGE_CHILDREN)
		if err := m.publish(work, filepath.Join(dir, fmt.Sprint(i)), target); err != nil {
			return err
		}
		costs = append(costs, cpuTime(syscall.RUSAGE_SELF)+cpuTime(syscall.RUSAGE_CHILDREN)-before)
	}
	slices.Sort(costs)
	m.report.WriteString(commitHeading)
	fmt.Fprintf(&m.report, `
Ingest, inspection with the scanner, and push of a commit that changes one file, on a repository of %s objects; %d runs, all
children counted, the local remote's too.

| | CPU, median, ms | least |
|---|---|---|
| one small commit (goal ≤ 500) | **%d** | %d |
`, fields[1], len(costs), costs[len(costs)/2].Milliseconds(), costs[0].Milliseconds())
	return nil
}

func (m *measurement) publish(work pushbroker.Work, dir string, target pushbroker.Target) error {
	ctx := context.Background()
	q, err := pushbroker.Ingest(ctx, dir, work, pushbroker.IngestLimits{})
	if err != nil {
		return err
	}
	v, err := pushbroker.Inspect(ctx, q, work, policy.Default(), m.scanner)
	if err != nil {
		return err
	}
	if !v.Pass {
		return fmt.Errorf("the commit does not pass: %+v", v.Findings)
	}
	if _, err := pushbroker.Push(ctx, q, target, pushbroker.Refs{Branch: work.Branch, Base: "main"}, githubapp.Token{}); err != nil {
		return err
	}
	return q.Close()
}

// bigHistory is a stream for git fast-import: 5,000 files in 500 directories,
// and 5,000 commits that each change one of them.
func bigHistory() []byte {
	const files = 5000
	var b strings.Builder
	write := func(i int, title string) {
		body := fmt.Sprintf("%s %d\n%s", title, i, strings.Repeat(fmt.Sprintf("line of %d\n", i), 40))
		fmt.Fprintf(&b, "M 100644 inline d%d/e%d/f%d.txt\ndata %d\n%s\n", i%20, i%500, i, len(body), body)
	}
	commit := func(i int) {
		fmt.Fprintf(&b, "commit refs/heads/main\ncommitter Base <base@example.com> %d +0000\ndata 2\nc\n", 1600000000+i)
	}
	commit(0)
	for i := range files {
		write(i, "file")
	}
	for i := range files {
		commit(i + 1)
		write(i, "again")
	}
	return []byte(b.String())
}
