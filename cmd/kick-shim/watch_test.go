package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/frame"
)

// TestStat reads lines of /proc/PID/stat, whose second field the process chooses.
func TestStat(t *testing.T) {
	t.Parallel()
	const rest = " 7 7 0 -1 4194560 123 0 0 0 1 2 0 0 20 0 %d 0 5000 2494464 256 18446744073709551615"
	for _, tt := range []struct {
		name, comm string
		parent     int
		threads    int
	}{
		{"a child of process 1", "sleep", 1, 1},
		{"put in from outside", "kick-shim", 0, 9},
		{"many threads", "node", 7, 12},
		{"a name that plays an outsider", "x) S 0 7 7 0", 1, 1},
		{"a name of parentheses", ")))(((", 1, 2},
		{"an empty name", "", 0, 1},
		{"a name of several lines", "a\nb", 1, 3},
	} {
		stat := fmt.Appendf(nil, "42 (%s) S %d"+rest+"\n", tt.comm, tt.parent, tt.threads)
		if got := fromOutside(stat); got != (tt.parent == 0) {
			t.Errorf("%s: from outside %v", tt.name, got)
		}
		if got := threads(stat); got != tt.threads {
			t.Errorf("%s: %d threads, want %d", tt.name, got, tt.threads)
		}
	}
	// What went while it was read is a process inside, of one thread.
	for _, cut := range []string{"", "42", "42 (sleep", "42 (sleep)", "42 (sleep) S", "42 (sleep) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 many"} {
		if fromOutside([]byte(cut)) || threads([]byte(cut)) != 1 {
			t.Errorf("%q: from outside %v, %d threads", cut, fromOutside([]byte(cut)), threads([]byte(cut)))
		}
	}
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil || threads(own) < 2 {
		t.Errorf("%v: this process has %d threads", err, threads(own))
	}
}

func TestMemoryCounters(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files       map[string]string
		peak, kills int64
	}{
		"version 2": {map[string]string{"memory.peak": "1048576\n", "memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"}, 1 << 20, 2},
		"version 1": {map[string]string{"memory/memory.max_usage_in_bytes": "2097152\n", "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}, 2 << 20, 1},
		"no peak":   {map[string]string{"memory.events": "oom_kill 4\n"}, 0, 4},
		"not one":   {map[string]string{"memory.peak": "max\n", "memory.events": "oom_kill\n"}, 0, 0},
		"nothing":   {nil, 0, 0},
	} {
		dir := t.TempDir()
		for file, text := range tt.files {
			at := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if peak, kills := memoryCounters(dir); peak != tt.peak || kills != tt.kills {
			t.Errorf("%s: %d bytes and %d kills, want %d and %d", name, peak, kills, tt.peak, tt.kills)
		}
	}
}

// TestLookAtDisk measures workspaces against a limit of 1 MiB.
func TestLookAtDisk(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, name string, size int) {
		t.Helper()
		if err := os.WriteFile(name, make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		make func(t *testing.T, dir string)
		over bool
	}{
		"empty": {func(*testing.T, string) {}, false},
		"less":  {func(t *testing.T, dir string) { write(t, dir+"/a", 500<<10) }, false},
		"more": {func(t *testing.T, dir string) {
			write(t, dir+"/a", 600<<10)
			write(t, dir+"/b", 600<<10)
		}, true},
		"a hole": {func(t *testing.T, dir string) {
			write(t, dir+"/hole", 0)
			if err := os.Truncate(dir+"/hole", 1<<40); err != nil {
				t.Fatal(err)
			}
		}, false},
		"many empty files": {func(t *testing.T, dir string) {
			for i := range 1<<20/inodeCost + 1 {
				write(t, fmt.Sprint(dir, "/", i), 0)
			}
		}, true},
		"a link to a large file": {func(t *testing.T, dir string) {
			large := filepath.Join(t.TempDir(), "large")
			write(t, large, 2<<20)
			if err := os.Symlink(large, dir+"/link"); err != nil {
				t.Fatal(err)
			}
		}, false},
		"too deep to be looked at": {func(t *testing.T, dir string) {
			if err := os.MkdirAll(dir+strings.Repeat("/d", maxDepth+2), 0o755); err != nil {
				t.Fatal(err)
			}
		}, true},
		"gone": {func(t *testing.T, dir string) {
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "workspace")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			tt.make(t, dir)
			w := &watcher{limits: &frame.Watch{Disk: 1 << 20}}
			if over := w.lookAtDisk(dir); over != tt.over || w.used.DiskLimit != tt.over {
				t.Errorf("over %v, noted %v, want %v: %d bytes", over, w.used.DiskLimit, tt.over, w.used.Disk)
			}
			if w.limits.Disk = 0; w.lookAtDisk(dir) {
				t.Error("no limit was reached")
			}
		})
	}
}

// TestLookAtDiskUnnamed: a file without a name counts for as long as a process of the
// sandbox has it open, and once, whoever has it.
func TestLookAtDiskUnnamed(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `exec 3>u 4>&3; rm u; head -c 700k /dev/zero >&3; echo; read go; head -c 700k /dev/zero >&3; echo; read go`)
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{limits: &frame.Watch{Disk: 1 << 20}}
	for _, over := range []bool{false, true} {
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if got := w.lookAtDisk(dir); got != over {
			t.Errorf("over %v, want %v: %d bytes", got, over, w.used.Disk)
		}
		if _, err := io.WriteString(in, "go\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	w.used.DiskLimit = false
	if w.lookAtDisk(dir) {
		t.Error("over, when nobody has it open any more")
	}
}

// TestNote: the most counts, and a limit that was reached once stays so.
func TestNote(t *testing.T) {
	t.Parallel()
	w := &watcher{limits: &frame.Watch{Processes: 5}}
	for i, n := range []int{3, 4, 2} {
		if w.note(n); w.used.Full {
			t.Fatalf("full at %d, look %d", n, i)
		}
	}
	w.note(5)
	w.note(1)
	if w.used.Processes != 5 || !w.used.Full {
		t.Errorf("%+v", w.used)
	}
	w = &watcher{limits: &frame.Watch{}}
	if w.note(1000); w.used.Full {
		t.Error("full without a limit")
	}
}

// TestWatch: the watch ends the command for its workspace, and tells what it saw.
func TestWatch(t *testing.T) {
	t.Parallel()
	if used := watch(frame.Config{}).finish(frame.Config{}, true); used != nil {
		t.Errorf("nobody asked, and it tells %+v", used)
	}
	cfg := frame.Config{WorkDir: t.TempDir(), Watch: &frame.Watch{Disk: 1 << 20}}
	w := watch(cfg)
	if err := os.WriteFile(filepath.Join(cfg.WorkDir, "large"), make([]byte, 2<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	<-w.over
	if used := w.finish(cfg, false); !used.DiskLimit || used.Disk < 2<<20 {
		t.Errorf("%+v", used)
	}
	// What filled the workspace between two looks is seen at the end.
	w = watch(cfg)
	if used := w.finish(cfg, true); !used.DiskLimit {
		t.Errorf("%+v after a failure", used)
	}
}

func TestKernelKills(t *testing.T) {
	file := t.TempDir() + "/vmstat"
	for text, want := range map[string]int64{"nr_free_pages 1\noom_kill 3\nswap_ra 0\n": 3, "nr_free_pages 1\n": 0, "oom_kill\n": 0, "": 0} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := kernelKills(file); got != want {
			t.Errorf("%q has %d, want %d", text, got, want)
		}
	}
	if got := kernelKills(file + "none"); got != 0 {
		t.Errorf("a kernel that does not tell has %d", got)
	}
}

// The kernel may not take the pages of this program, once they are read.
func TestKeepProgram(t *testing.T) {
	keepProgram()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, locked, _ := strings.Cut(string(b), "VmLck:")
	var kb int
	if n, _ := fmt.Sscan(locked, &kb); n != 1 || kb < 1000 || kb > 32<<10 {
		t.Errorf("%d kB are kept in memory", kb)
	}
}
