// Command recall measures the scanner beside gitleaks: the speed on source, the
// findings where nothing is planted, and how much of the planted corpus each
// finds; and what the broker takes for one small commit. It replaces its
// sections of docs/benchmarks.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/pushbroker/scan"
	"github.com/kickhq/kick/pushbroker/scan/internal/corpus"
)

func main() {
	gitleaks := flag.String("gitleaks", "gitleaks", "gitleaks v8.30.1, built with RE2")
	every := flag.Int("every", 10, "measure one plant in so many; 1: the whole corpus")
	out := flag.String("out", "docs/benchmarks.md", "file whose sections of this to write")
	flag.Parse()
	if err := measure(*gitleaks, *every, *out); err != nil {
		log.Fatalf("recall: %v", err)
	}
}

// decoding makes gitleaks decode as deep as it does for us.
var decoding = []string{"--no-banner", "--log-level=error", "--exit-code=0", "--max-decode-depth=2", "--max-archive-depth=2", "--ignore-gitleaks-allow"}

func measure(gitleaks string, every int, out string) (err error) {
	dir, err := os.MkdirTemp("", "kick-recall-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := scan.New(scan.Options{Key: make([]byte, 32)})
	if err != nil {
		return err
	}
	m := &measurement{gitleaks: gitleaks, dir: dir, scanner: s}
	if err := m.speed(); err != nil {
		return fmt.Errorf("speed: %w", err)
	}
	if err := m.recall(every); err != nil {
		return fmt.Errorf("corpus: %w", err)
	}
	if err := m.smallCommit(); err != nil {
		return fmt.Errorf("one small commit: %w", err)
	}
	fmt.Print(m.report.String())
	kept, err := os.ReadFile(out)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	text := string(kept)
	for _, heading := range []string{speedHeading, recallHeading, commitHeading} {
		text = without(text, heading)
	}
	return os.WriteFile(out, []byte(text+m.report.String()), 0o644)
}

// The headings of what is written here.
const (
	speedHeading  = "\n## Secret scanner: speed, and findings where nothing was planted\n"
	recallHeading = "\n## Secret scanner: recall on the planted corpus\n"
	commitHeading = "\n## Broker: one small commit\n"
)

// without returns text without the section of heading, which the last run wrote.
func without(text, heading string) string {
	before, rest, ok := strings.Cut(text, heading)
	if !ok {
		return text
	}
	if next := strings.Index(rest, "\n## "); next >= 0 {
		before += rest[next:]
	}
	return before
}

type measurement struct {
	gitleaks, dir string
	scanner       *scan.Scanner
	report        strings.Builder
}

// speed scans the same files with both, in one run.
func (m *measurement) speed() error {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	history := filepath.Join(m.dir, "history")
	if err := writeHistory(history); err != nil {
		return err
	}
	m.report.WriteString(speedHeading + `
CPU time of one core, decoding on, kick's the least of three runs; gitleaks v8.30.1 is built with RE2 and decodes two levels and
archives. Findings are those that block or ask for review; *unopened* are archives of a kind that kick does not open, for which it
asks for a review. The history is every blob of it, tests and rules with secrets drawn at random among them.

| | MB | kick, MB/s (goal ≥ 60) | gitleaks, MB/s | ratio (goal ≥ 4) | kick finds | unopened | gitleaks finds |
|---|---|---|---|---|---|---|---|
`)
	for _, tree := range []struct{ name, dir string }{
		{"Go's standard library", filepath.Join(strings.TrimSpace(string(goroot)), "src")},
		{"this project's history", history},
	} {
		size, findings, unopened, took, err := m.scanTree(tree.dir)
		if err != nil {
			return err
		}
		theirs, theirTime, err := m.runGitleaks("dir", tree.dir)
		if err != nil {
			return err
		}
		mb := float64(size) / 1e6
		fmt.Fprintf(&m.report, "| %s | %.0f | %.0f | %.1f | **%.1f** | %d | %d | %d |\n", tree.name, mb,
			mb/took.Seconds(), mb/theirTime.Seconds(), theirTime.Seconds()/took.Seconds(), findings, unopened, len(theirs))
	}
	return nil
}

// writeHistory writes every blob of this repository into a file of its own.
func writeHistory(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	list, err := exec.Command("git", "cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)").Output()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(list)) {
		if oid, ok := strings.CutPrefix(strings.TrimSpace(line), "blob "); ok {
			data, err := exec.Command("git", "cat-file", "blob", oid).Output()
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, oid), data, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// scanTree scans every file below dir three times, and returns the least that it
// took.
func (m *measurement) scanTree(dir string) (size int64, findings, unopened int, took time.Duration, err error) {
	var files [][]byte
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		files, size = append(files, data), size+int64(len(data))
		return err
	})
	if err != nil {
		return 0, 0, 0, 0, err
	}
	for run := range 3 {
		findings, unopened = 0, 0
		before := cpuTime(syscall.RUSAGE_SELF)
		for _, data := range files {
			found, err := m.scanner.Text(context.Background(), data)
			if err != nil {
				return 0, 0, 0, 0, err
			}
			for _, f := range found {
				switch {
				case f.Rule == "opaque-archive":
					unopened++
				case f.Level != policy.Report:
					findings++
				}
			}
		}
		if t := cpuTime(syscall.RUSAGE_SELF) - before; run == 0 || t < took {
			took = t
		}
	}
	return size, findings, unopened, took, nil
}

// leak is what the measurement reads of gitleaks' report.
type leak struct{ File, SymlinkFile, Commit string }

func (m *measurement) runGitleaks(args ...string) ([]leak, time.Duration, error) {
	report := filepath.Join(m.dir, "report.json")
	cmd := exec.Command(m.gitleaks, slices.Concat(args[:1], decoding, []string{"--report-format=json", "--report-path=" + report}, args[1:])...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, 0, fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	data, err := os.ReadFile(report)
	if err != nil {
		return nil, 0, err
	}
	var leaks []leak
	if err := json.Unmarshal(data, &leaks); err != nil {
		return nil, 0, err
	}
	return leaks, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

func cpuTime(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// count is how many plants there are, and how many each way finds.
type count struct{ planted, kick, git, items int }

// maxRepo is how many plants one repository holds, so that the broker takes it in.
const maxRepo = 4000

// recall plants the corpus, and counts by place, encoding and family.
func (m *measurement) recall(every int) error {
	shapes, err := corpus.Shapes()
	if err != nil {
		return err
	}
	counts := map[string]*count{}
	all := 0
	for plants := range slices.Chunk(corpus.Plants(shapes, every), maxRepo) {
		if err := m.chunk(plants, counts); err != nil {
			return err
		}
		all += len(plants)
	}
	m.report.WriteString(recallHeading)
	fmt.Fprintf(&m.report, `
%d plants, one in %d of all: the shapes of %d rules' values × %d encodings × %d places, as far as a place can hold the encoded
bytes. Values of gitleaks' rules are drawn until gitleaks finds them. *kick* is the broker with its scanner; *git* is
`+"`gitleaks git`"+` on the same commits, as one would run it; *items* is `+"`gitleaks dir`"+` given each item as a file with a
plain name, which is what a broker around gitleaks could do. Per cent of the plants.

`, all, every, len(shapes), len(corpus.Encodings), len(corpus.Places))
	m.table("place", corpus.Places, counts)
	m.table("encoding", groups(), counts)
	m.table("family", families(shapes), counts)
	m.cells(counts)
	return nil
}

func groups() (out []string) {
	for _, e := range corpus.Encodings {
		if !slices.Contains(out, e.Group) {
			out = append(out, e.Group)
		}
	}
	return out
}

func families(shapes []corpus.Shape) (out []string) {
	for _, s := range shapes {
		if !slices.Contains(out, s.Family) {
			out = append(out, s.Family)
		}
	}
	return out
}

// chunk builds one repository, and counts what is found in it.
func (m *measurement) chunk(plants []corpus.Plant, counts map[string]*count) (err error) {
	dir, err := os.MkdirTemp(m.dir, "chunk-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	repo, err := corpus.Build(dir, plants)
	if err != nil {
		return err
	}
	items := filepath.Join(dir, "items")
	if err := os.Mkdir(items, 0o700); err != nil {
		return err
	}
	var write error
	ours, err := repo.Find(context.Background(), m.scanner, dir, func(i int, it pushbroker.Item) {
		if err := os.WriteFile(filepath.Join(items, fmt.Sprintf("%06d-%s.txt", i, it.Kind)), it.Data, 0o600); err != nil {
			write = err
		}
	})
	if err := errors.Join(err, write); err != nil {
		return err
	}
	byGit, byItems := map[int]bool{}, map[int]bool{}
	leaks, _, err := m.runGitleaks("git", "--log-opts=main..work", repo.Dir)
	if err != nil {
		return err
	}
	for _, l := range leaks {
		if i, ok := repo.Plant(l.Commit, l.File); ok {
			byGit[i] = true
		}
	}
	if leaks, _, err = m.runGitleaks("dir", items); err != nil {
		return err
	}
	for _, l := range leaks {
		if i, err := strconv.Atoi(filepath.Base(l.File)[:6]); err == nil {
			byItems[i] = true
		}
	}
	for i, p := range plants {
		for _, name := range []string{"", p.Place, p.Encoding.Group, p.Shape.Family, p.Encoding.Group + "\n" + p.Place} {
			c := counts[name]
			if c == nil {
				c = &count{}
				counts[name] = c
			}
			c.planted++
			c.kick += one(ours[i] != "")
			c.git += one(byGit[i])
			c.items += one(byItems[i])
		}
		if ours[i] == "" && byItems[i] {
			fmt.Fprintf(os.Stderr, "recall: gitleaks alone finds %s, %s, %s: %.100q\n", p.Shape.Rule, p.Encoding.Name, p.Place, p.Text)
		}
	}
	return nil
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

func percent(part, of int) string { return fmt.Sprintf("%.1f", 100*float64(part)/float64(of)) }

func (m *measurement) table(by string, names []string, counts map[string]*count) {
	fmt.Fprintf(&m.report, "| %s | plants | kick | gitleaks, git | gitleaks, items |\n|---|---|---|---|---|\n", by)
	for _, name := range names {
		if c := counts[name]; c != nil {
			fmt.Fprintf(&m.report, "| %s | %d | %s | %s | %s |\n", name, c.planted, percent(c.kick, c.planted), percent(c.git, c.planted), percent(c.items, c.planted))
		}
	}
	c := counts[""]
	fmt.Fprintf(&m.report, "| **all** (goal ≥ 98) | %d | **%s** | %s | %s |\n\n", c.planted, percent(c.kick, c.planted), percent(c.git, c.planted), percent(c.items, c.planted))
}

// cells shows each encoding in each place: kick's recall and, behind a slash,
// that of gitleaks given the items.
func (m *measurement) cells(counts map[string]*count) {
	fmt.Fprintf(&m.report, "Encoding × place, kick / gitleaks given the items; – where the place cannot hold it, or no plant of the sample is:\n\n| | %s |\n|---|%s\n",
		strings.Join(corpus.Places, " | "), strings.Repeat("---|", len(corpus.Places)))
	for _, g := range groups() {
		fmt.Fprintf(&m.report, "| %s |", g)
		for _, p := range corpus.Places {
			if c := counts[g+"\n"+p]; c != nil {
				fmt.Fprintf(&m.report, " %.0f / %.0f |", 100*float64(c.kick)/float64(c.planted), 100*float64(c.items)/float64(c.planted))
			} else {
				m.report.WriteString(" – |")
			}
		}
		m.report.WriteString("\n")
	}
}
