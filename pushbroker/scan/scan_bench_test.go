package scan

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
)

func cpu(b testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkGoSource scans Go's standard library, decoding on. The figure to
// look at is MB of CPU second: wall time is that of the machine's load.
func BenchmarkGoSource(b *testing.B) {
	s := newScanner(b, map[string]string{"TOKEN": ruleset.Expand("ghs_{d:6}_{an:500}", 1), "KEY": ruleset.Expand("sk-ant-{an:90}", 2)})
	var files [][]byte
	size := int64(0)
	goSource(b, func(_ string, data []byte) {
		files, size = append(files, data), size+int64(len(data))
	}, "")
	b.SetBytes(size)
	before := cpu(b)
	for b.Loop() {
		for _, data := range files {
			if _, err := s.Text(context.Background(), data); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(size)*float64(b.N)/1e6/(cpu(b)-before).Seconds(), "MB/cpu-s")
}

// BenchmarkHistory scans every object of this repository: much of it is source
// with rules, examples and encodings, so that more of it strikes.
func BenchmarkHistory(b *testing.B) {
	s := newScanner(b, nil)
	out, err := exec.Command("git", "cat-file", "--batch-all-objects", "--batch", "--buffer").Output()
	if err != nil {
		b.Fatal(err)
	}
	var objects [][]byte
	size := int64(0)
	for rest := out; len(rest) > 0; {
		header, body, _ := bytes.Cut(rest, []byte("\n"))
		fields := bytes.Fields(header) // id, type, size
		n, err := strconv.Atoi(string(fields[len(fields)-1]))
		if err != nil {
			b.Fatal(err)
		}
		objects, size, rest = append(objects, body[:n]), size+int64(n), body[n+1:]
	}
	b.SetBytes(size)
	before := cpu(b)
	for b.Loop() {
		for _, data := range objects {
			if _, err := s.Text(context.Background(), data); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(size)*float64(b.N)/1e6/(cpu(b)-before).Seconds(), "MB/cpu-s")
}

// BenchmarkHostile is 2 MiB of what is hardest for some part of the scanner.
func BenchmarkHostile(b *testing.B) {
	s := newScanner(b, nil)
	for name, unit := range hostile() {
		b.Run(name, func(b *testing.B) {
			text := []byte(strings.Repeat(unit, 2<<20/len(unit)+1))
			before := cpu(b)
			for b.Loop() {
				if _, err := s.Text(context.Background(), text); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}

// BenchmarkSmall is one item of 1 KiB, as most commits, paths and messages are.
func BenchmarkSmall(b *testing.B) {
	s := newScanner(b, nil)
	data := []byte(strings.Repeat("func add(a, b int) int { return a + b } // adds up\n", 20))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := s.Text(context.Background(), data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNew is what a process pays before its first scan.
func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		newScanner(b, nil)
	}
}

// BenchmarkIndex is the prefilter alone.
func BenchmarkIndex(b *testing.B) {
	e := newEngine(nil)
	var all []byte
	goSource(b, func(_ string, data []byte) { all = append(all, data...) }, "net")
	b.SetBytes(int64(len(all)))
	before := cpu(b)
	for b.Loop() {
		e.index.find(all, func(int, int) bool { return true })
	}
	b.ReportMetric(float64(len(all))*float64(b.N)/1e6/(cpu(b)-before).Seconds(), "MB/cpu-s")
}

// BenchmarkStart is what linking the package and making a scanner cost a
// process: the CPU time of a program that does, less that of one that does not.
func BenchmarkStart(b *testing.B) {
	dir, err := os.MkdirTemp("testdata", "start-")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	build := func(name, source string) string {
		file := filepath.Join(dir, name+".go")
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			b.Fatal(err)
		}
		out := filepath.Join(b.TempDir(), name)
		if msg, err := exec.Command("go", "build", "-o", out, file).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, msg)
		}
		return out
	}
	with := build("with", `package main
import "github.com/kickhq/kick/pushbroker/scan"
func main() { if _, err := scan.New(scan.Options{Key: make([]byte, 16)}); err != nil { panic(err) } }`)
	without := build("without", `package main
import "github.com/kickhq/kick/pushbroker"
func main() { _ = pushbroker.Item{} }`)
	run := func(program string) time.Duration {
		cmd := exec.Command(program)
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	var more time.Duration
	for b.Loop() {
		more += run(with) - run(without)
	}
	b.ReportMetric(float64(more.Microseconds())/1e3/float64(b.N), "cpu-ms/start")
}

// TestCompilesNothing wants a process to compile no expression before one of
// its literals strikes, and then that rule's alone. A process of its own counts,
// since the other tests compile all.
func TestCompilesNothing(t *testing.T) {
	const child = "KICK_TEST_COMPILES"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCompilesNothing$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	compiled := func() (ids []string) {
		for i := range compiledRules {
			if compiledRules[i].expr != nil {
				ids = append(ids, ruleTable[i].id)
			}
		}
		return ids
	}
	s := newScanner(t, nil)
	scan := func(text string) {
		if _, err := s.Text(context.Background(), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	scan("func add(a, b int) int { return a + b } // adds up\n")
	if ids := compiled(); len(ids) > 0 {
		t.Errorf("compiled before a literal struck: %q", ids)
	}
	scan("dckr_pat_" + ruleset.Expand("{an:27}", 1))
	if ids := compiled(); len(ids) != 1 || ids[0] != "docker-token" {
		t.Errorf("compiled %q after a Docker token", ids)
	}
}

// TestLinksNoGitleaks wants a program with the scanner to carry the table, and
// nothing of what it was made from.
func TestLinksNoGitleaks(t *testing.T) {
	t.Parallel()
	deps, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(deps), "kick/policy") {
		t.Fatalf("the list of dependencies is not one: %s", deps)
	}
	for _, d := range strings.Fields(string(deps)) {
		for _, not := range []string{"gitleaks", "toml", "/scan/internal/"} {
			if strings.Contains(d, not) {
				t.Errorf("the package links %s", d)
			}
		}
	}
}
