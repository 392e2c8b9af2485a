package workspace

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/sandbox"
)

func newSink(t *testing.T, max int64) (*DirSink, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "kick")
	s, err := NewDirSink(dir, max)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, dir
}

func put(t *testing.T, s sandbox.Sink, a sandbox.Artifact, name, content string) {
	t.Helper()
	w, err := s.Create(a, name)
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatalf("%s %s: %v", a, name, err)
	}
}

func ls(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestSinkKeepsWholeArtifacts(t *testing.T) {
	t.Parallel()
	s, dir := newSink(t, 1000)
	put(t, s, sandbox.FinalBundle, "", "final")
	put(t, s, sandbox.RestBundle, "", "rest")
	put(t, s, sandbox.DirtyArchive, "", "")
	put(t, s, sandbox.WorkSummary, "", `{"commits":1}`)
	put(t, s, sandbox.Report, "agent-report.json", "{}")
	put(t, s, sandbox.Report, "agent-report-2.json", "{}")
	if got, want := ls(t, dir), "agent-report-2.json agent-report.json dirty.tar final.bundle rest.bundle work.json"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	walk(t, dir, func(path string, info fs.FileInfo) {
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	})
	path, ok := s.Path(sandbox.FinalBundle)
	if b, err := os.ReadFile(path); !ok || err != nil || string(b) != "final" {
		t.Errorf("%s: %q %v %v", path, b, ok, err)
	}
	if _, err := s.Create(sandbox.FinalBundle, ""); err == nil || !strings.Contains(err.Error(), "came before") {
		t.Errorf("second final bundle: %v", err)
	}
}

// While it is written, and for good when it breaks off, a bundle has another
// name; a summary or a report that broke off is worth nothing.
func TestSinkAbort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		artifact sandbox.Artifact
		name     string
		left     string
	}{
		{sandbox.FinalBundle, "", "final.bundle.partial"},
		{sandbox.RestBundle, "", "rest.bundle.partial"},
		{sandbox.DirtyArchive, "", "dirty.tar.partial"},
		{sandbox.WorkSummary, "", ""},
		{sandbox.Report, "agent-report.json", ""},
	} {
		t.Run(string(c.artifact), func(t *testing.T) {
			t.Parallel()
			s, dir := newSink(t, 1000)
			w, err := s.Create(c.artifact, c.name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte("half")); err != nil {
				t.Fatal(err)
			}
			if got := ls(t, dir); !strings.HasSuffix(got, ".partial") {
				t.Errorf("while written: %s", got)
			}
			if err := w.Abort(); err != nil {
				t.Fatal(err)
			}
			if got := ls(t, dir); got != c.left {
				t.Errorf("left %q, want %q", got, c.left)
			}
			if _, ok := s.Path(c.artifact); ok {
				t.Error("passes for whole")
			}
			put(t, s, c.artifact, c.name, "whole") // a second attempt takes nothing away
			if c.left == "" {
				return
			}
			if b, err := os.ReadFile(filepath.Join(dir, c.left)); err != nil || string(b) != "half" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
}

// A kick that is salvaged again has artifacts of the process that died.
func TestSinkOnEarlierArtifacts(t *testing.T) {
	t.Parallel()
	s, dir := newSink(t, 1000)
	put(t, s, sandbox.FinalBundle, "", "first")
	put(t, s, sandbox.WorkSummary, "", `{"commits":1}`)
	again, err := NewDirSink(dir, 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	w, err := again.Create(sandbox.FinalBundle, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("broken")); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(dir + "/final.bundle"); err != nil || string(b) != "first" {
		t.Errorf("after an attempt that broke off: %q, %v", b, err)
	}
	put(t, again, sandbox.FinalBundle, "", "second")
	put(t, again, sandbox.WorkSummary, "", `{"commits":2}`)
	for name, want := range map[string]string{"final.bundle": "second", "final.bundle.earlier": "first", "final.bundle.partial": "broken"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if work, err := again.Work(); err != nil || work.Commits != 2 {
		t.Errorf("%+v, %v", work, err)
	}
}

// A checkpoint replaces the one before, and counts once.
func TestSinkCheckpoint(t *testing.T) {
	t.Parallel()
	s, dir := newSink(t, 10)
	put(t, s, sandbox.Checkpoint, "", "12345678")
	put(t, s, sandbox.Checkpoint, "", "90")
	w, err := s.Create(sandbox.Checkpoint, "")
	if err == nil {
		_, err = w.Write([]byte("broken"))
	}
	if err = errors.Join(err, w.Abort()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, string(sandbox.Checkpoint))); err != nil || string(b) != "90" {
		t.Errorf("%q, %v", b, err)
	}
	put(t, s, sandbox.FinalBundle, "", "12345678") // all that is left of the cap
	if err := errors.Join(s.DropCheckpoint(), s.DropCheckpoint()); err != nil {
		t.Error(err)
	}
	if got := ls(t, dir); strings.Contains(got, "checkpoint") {
		t.Errorf("left: %s", got)
	}
}

func TestSinkCap(t *testing.T) {
	t.Parallel()
	s, dir := newSink(t, 10)
	put(t, s, sandbox.FinalBundle, "", "123456")
	w, err := s.Create(sandbox.RestBundle, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("1234")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("5")); err == nil || !strings.Contains(err.Error(), "more than 10 bytes") {
		t.Errorf("over the cap: %v", err)
	}
	if err := w.Close(); err == nil {
		t.Error("Close made a cut artifact whole")
	}
	if got := ls(t, dir); got != "final.bundle rest.bundle.partial" {
		t.Errorf("left %s", got)
	}
}

func TestSinkRefuses(t *testing.T) {
	t.Parallel()
	s, _ := newSink(t, 1000)
	for _, c := range []struct {
		artifact sandbox.Artifact
		name     string
	}{
		{"../final.bundle", ""}, {"", ""}, {"unknown", ""},
		{sandbox.Report, ""}, {sandbox.Report, "report.json"}, {sandbox.Report, "agent-report/../../x.json"},
		{sandbox.Report, "agent-report\n.json"}, {sandbox.Report, "agent-report" + strings.Repeat("x", 200) + ".json"}, {sandbox.Report, "agent-report.json.partial"},
	} {
		if _, err := s.Create(c.artifact, c.name); err == nil {
			t.Errorf("Create(%q, %q) passed", c.artifact, c.name)
		}
	}
	for i := range maxReports {
		put(t, s, sandbox.Report, "agent-report"+strings.Repeat("x", i)+".json", "")
	}
	if _, err := s.Create(sandbox.Report, "agent-report-more.json"); err == nil {
		t.Error("too many reports passed")
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := NewDirSink(open, 1); err == nil {
		t.Error("a directory that is open to others passed")
	}
	if _, err := NewDirSink(filepath.Join(t.TempDir(), "x"), 0); err == nil {
		t.Error("a sink without a cap passed")
	}
}

func TestSinkFollowsNoLink(t *testing.T) {
	t.Parallel()
	s, dir := newSink(t, 1000)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Symlink(outside, filepath.Join(dir, "final.bundle.partial")); err != nil {
		t.Fatal(err)
	}
	put(t, s, sandbox.FinalBundle, "", "x")
	if _, err := os.Lstat(outside); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("wrote through a link: %v", err)
	}
}

func TestWork(t *testing.T) {
	t.Parallel()
	s, _ := newSink(t, 1000)
	if _, err := s.Work(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a summary: %v", err)
	}
	put(t, s, sandbox.WorkSummary, "", `{"head":"0123456789012345678901234567890123456789","branch":"main","commits":2,"dirty":["a\n"],"dirtyCount":1}`)
	w, err := s.Work()
	if err != nil || w.Commits != 2 || w.Branch != "main" || !slices.Equal(w.Dirty, []string{"a\n"}) {
		t.Errorf("%+v, %v", w, err)
	}
}

func TestParseWorkRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxWorkText+1)
	for name, in := range map[string]string{
		"nothing":       "",
		"not JSON":      "hello",
		"array":         "[]",
		"unknown field": `{"commits":1,"exitCode":0}`,
		"two objects":   `{"commits":1}{"commits":2}`,
		"wrong type":    `{"commits":"1"}`,
		"negative":      `{"commits":-1}`,
		"huge number":   `{"commits":1e30}`,
		"head":          `{"head":"main"}`,
		"long branch":   `{"branch":"` + long + `"}`,
		"long path":     `{"dirty":["` + long + `"]}`,
		"NUL":           `{"branch":"a\u0000b"}`,
		"many entries":  `{"dirty":["` + strings.Repeat(`","`, maxWorkList) + `"]}`,
		"large":         `{"branch":"` + strings.Repeat(" ", maxWorkJSON) + `"}`,
		"deep":          `{"dirty":` + strings.Repeat("[", 100000),
	} {
		if w, err := parseWork([]byte(in)); err == nil {
			t.Errorf("%s passed: %.100v", name, w)
		}
	}
}

func FuzzParseWork(f *testing.F) {
	f.Add([]byte(`{"head":"0123456789012345678901234567890123456789","branch":"main","commits":2,"unpublished":["refs/heads/x"],"stashes":1,"dirty":["a"],"dirtyCount":1,"problems":["p"]}`))
	f.Add([]byte(`{"commits":1}{`))
	f.Add([]byte(`{"dirty":[null,""],"commits":9223372036854775808}`))
	f.Add([]byte(`{"branch":"\ud800"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		w, err := parseWork(in)
		if err != nil {
			return
		}
		out, err := json.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		if w.Commits < 0 || len(w.Dirty) > maxWorkList || len(w.Branch) > maxWorkText {
			t.Errorf("caps do not hold for %q", in)
		}
		// Escaping may make it longer than the cap, but never of another meaning.
		if again, err := parseWork(out); err == nil {
			if b, _ := json.Marshal(again); string(b) != string(out) {
				t.Errorf("%q reads as %s and then as %s", in, out, b)
			}
		} else if len(out) <= maxWorkJSON {
			t.Errorf("%s is refused: %v", out, err)
		}
	})
}
