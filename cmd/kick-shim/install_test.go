package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// bring is a host that brings a base: it answers what the shim asks for, each file
// with its name for content, and returns what that was.
func bring(t *testing.T, list string, dirs ...string) (asked []string, problem string) {
	t.Helper()
	var c net.Conn
	for until := time.Now().Add(10 * time.Second); ; {
		var err error
		if c, err = net.Dial("unix", linePath); err == nil {
			break
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
	}
	defer c.Close()
	to, from := frame.NewWriter(c), frame.NewReader(c)
	if err := errors.Join(to.Write(frame.Files, []byte(list)), to.Write(frame.Whole, nil)); err != nil {
		t.Fatal(err)
	}
	var answer []byte
	for {
		typ, p, err := from.Read()
		if err != nil {
			t.Fatal(err)
		}
		if typ == frame.Problem {
			return nil, string(p)
		}
		if typ == frame.End {
			break
		}
		answer = append(answer, p...)
	}
	if err := json.Unmarshal(answer, &asked); err != nil {
		t.Fatal(err)
	}
	files := tar.NewWriter(to.Stream(frame.Files))
	for _, d := range dirs {
		if err := files.WriteHeader(&tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range asked {
		if err := files.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o444, Size: int64(len(name))}); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Write([]byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(files.Close(), to.Write(frame.Whole, nil)); err != nil {
		t.Fatal(err)
	}
	typ, p, err := from.Read()
	if err != nil {
		t.Fatal(err)
	}
	if typ != frame.Goodbye {
		return asked, string(p)
	}
	return asked, ""
}

// A base is asked for as far as it lacks, once; one that nobody used for long goes.
func TestHaveBase(t *testing.T) {
	volume := t.TempDir()
	old, base := filepath.Join(volume, "bases/old"), filepath.Join(volume, "bases/b")
	long := time.Now().Add(-2 * unusedBases)
	if err := errors.Join(os.MkdirAll(filepath.Join(old, "objects"), 0o755), os.Chtimes(old, long, long)); err != nil {
		t.Fatal(err)
	}
	have := func(objects, list string) []string {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- haveBase(frame.Install{Base: base, Objects: objects, WaitMS: 10_000}) }()
		var asked []string
		if list != "" {
			var problem string
			if asked, problem = bring(t, list, "pack", "ab"); problem != "" {
				t.Fatal(problem)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		slices.Sort(asked)
		return asked
	}
	const first, second = `{"pack/p.pack": 11, "pack/p.idx": 10}`, `{"pack/p.pack": 11, "pack/p.idx": 10, "ab/cd": 5}`
	if asked := have("1", first); !slices.Equal(asked, []string{"pack/p.idx", "pack/p.pack"}) {
		t.Errorf("asked for %q", asked)
	}
	have("1", "") // nobody comes
	if asked := have("2", second); !slices.Equal(asked, []string{"ab/cd"}) {
		t.Errorf("asked for %q", asked)
	}
	have("2", "")
	for _, name := range []string{"pack/p.pack", "pack/p.idx", "ab/cd"} {
		if b, err := os.ReadFile(filepath.Join(base, "objects", name)); err != nil || string(b) != name {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(base))
	if err != nil || len(left) != 1 {
		t.Errorf("there are %v, %v", left, err)
	}
	// What the host says is not believed beyond the directory.
	done := make(chan error, 1)
	go func() { done <- haveBase(frame.Install{Base: base, Objects: "3", WaitMS: 2_000}) }()
	if _, problem := bring(t, `{"../x": 1}`); !strings.Contains(problem, "../x") {
		t.Errorf("a way out: %q", problem)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "wait for the host") {
		t.Errorf("it goes on: %v", err)
	}
}

// A workspace is made anew, whatever is there.
func TestMakeWork(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "kicks/k1")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "closed"), 0o755), os.Chmod(filepath.Join(dir, "closed"), 0)); err != nil {
		t.Fatal(err)
	}
	if err := makeWork(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
