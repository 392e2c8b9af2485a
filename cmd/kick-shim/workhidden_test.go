package main

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// What git was told not to look at is work like any other.
func TestCollectHiddenChanges(t *testing.T) {
	t.Parallel()
	model, base, oid := newWorkspace(t, func(r repo) { r.write("dir/c.txt", "c\n") })
	for _, tt := range []struct {
		name string
		make func(ws repo)
		want string // changes to the base, as git diff-tree lists them
	}{
		{"assumed unchanged", func(ws repo) {
			ws.git("update-index", "--assume-unchanged", "src/a.txt", "src/b.txt")
			ws.write("src/a.txt", "changed\n")
		}, "M src/a.txt"},
		{"assumed unchanged, and gone", func(ws repo) {
			ws.git("update-index", "--assume-unchanged", "src/a.txt")
			must(ws.t, os.Remove(filepath.Join(ws.dir, "src/a.txt")))
		}, "D src/a.txt"},
		{"assumed unchanged by a setting", func(ws repo) {
			ws.git("config", "core.ignoreStat", "true")
			must(ws.t, os.Remove(filepath.Join(ws.dir, "src/a.txt")))
			ws.git("checkout", "-q", "--", "src/a.txt")
			ws.write("src/a.txt", "changed\n")
		}, "M src/a.txt"},
		{"skipped", func(ws repo) {
			ws.git("update-index", "--skip-worktree", "src/a.txt", "src/b.txt")
			ws.write("src/a.txt", "changed\n")
		}, "M src/a.txt"},
		{"both", func(ws repo) {
			ws.git("update-index", "--skip-worktree", "src/a.txt")
			ws.git("update-index", "--assume-unchanged", "src/a.txt")
			ws.write("src/a.txt", "changed\n")
		}, "M src/a.txt"},
		{"skipped, and a link or a directory instead", func(ws repo) {
			ws.git("update-index", "--skip-worktree", "src/a.txt", "src/b.txt", "dir/c.txt")
			must(ws.t, os.Remove(filepath.Join(ws.dir, "src/a.txt")))
			must(ws.t, os.Symlink("b.txt", filepath.Join(ws.dir, "src/a.txt")))
			must(ws.t, os.Remove(filepath.Join(ws.dir, "src/b.txt")))
			ws.write("src/b.txt/x", "x\n")
			must(ws.t, os.RemoveAll(filepath.Join(ws.dir, "dir")))
			must(ws.t, os.Symlink("src", filepath.Join(ws.dir, "dir")))
		}, "A dir D dir/c.txt T src/a.txt D src/b.txt A src/b.txt/x"},
		{"split index", func(ws repo) {
			ws.git("update-index", "--assume-unchanged", "src/a.txt")
			ws.git("update-index", "--split-index")
			ws.write("src/a.txt", "changed\n")
		}, "M src/a.txt"},
		{"a monitor that saw nothing", func(ws repo) {
			ws.write(".git/monitor", "#!/bin/sh\nprintf 'token\\0'\n")
			must(ws.t, os.Chmod(filepath.Join(ws.dir, ".git/monitor"), 0o755))
			ws.git("config", "core.fsmonitor", ".git/monitor")
			ws.git("update-index", "--fsmonitor")
			ws.git("status")
			ws.write("src/a.txt", "changed\n")
		}, "M src/a.txt"},
		{"sparse checkout", func(ws repo) {
			ws.git("sparse-checkout", "set", "--no-cone", "/README.md", "/dir/")
		}, ""},
		{"sparse checkout, and a file that it left out", func(ws repo) {
			ws.git("sparse-checkout", "set", "--cone", "--sparse-index", "dir")
			ws.write("src/a.txt", "changed\n")
			ws.write("dir/c.txt", "changed\n")
		}, "M dir/c.txt M src/a.txt"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ws := model.copy(t)
			ws.git("update-index", "-q", "--refresh")
			tt.make(ws)
			marks := ws.git("ls-files", "-v")
			if got := ws.git("diff", "--name-only", "--", "src/a.txt"); got != "" && !strings.HasPrefix(tt.name, "sparse") {
				t.Fatal("git sees the change")
			}
			r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
			if got := ws.git("ls-files", "-v"); got != marks {
				t.Errorf("the workspace's index changed from %q to %q", marks, got)
			}
			if tt.want == "" {
				r.want(workSummary)
				return
			}
			clone, refs := r.fetch(restBundle, base)
			got := clone.git("diff-tree", "-r", "--name-status", "--no-renames", oid, refs["refs/kick/uncommitted"])
			if got := strings.Join(strings.Fields(got), " "); got != tt.want {
				t.Errorf("changes %q, want %q; problems %q", got, tt.want, r.work.Problems)
			}
			if !strings.HasPrefix(tt.want, "D") && !strings.Contains(r.kinds(), dirtyArchive) {
				t.Errorf("artifacts %s", r.kinds())
			}
		})
	}
}

// A file may change within the tick of the clock in which git read it. git tells
// by the time of its index that it must look again.
func TestCollectChangeInOneTick(t *testing.T) {
	t.Parallel()
	ws, base, oid := newWorkspace(t, nil)
	old := ws.git("rev-parse", "HEAD:src/a.txt")
	file, index := filepath.Join(ws.dir, "src/a.txt"), filepath.Join(ws.dir, ".git/index")
	tick := time.Now().Add(-time.Hour)
	ws.write("src/a.txt", "b\n")
	must(t, os.Chtimes(file, tick, tick))
	ws.git("add", "src/a.txt")
	b, err := os.ReadFile(index)
	must(t, err)
	// As if git had read the file before, with the size and times that it has now.
	b = bytes.Replace(b, unhex(t, ws.git("rev-parse", ":src/a.txt")), unhex(t, old), 1)
	sum := sha1.Sum(b[:len(b)-sha1.Size])
	must(t, os.WriteFile(index, append(b[:len(b)-sha1.Size], sum[:]...), 0o600))
	must(t, os.Chtimes(index, tick, tick))
	r := collectIn(t, frame.Config{WorkDir: ws.dir, BaseOID: oid})
	clone, refs := r.fetch(restBundle, base)
	if got := clone.git("show", refs["refs/kick/uncommitted"]+":src/a.txt"); got != "b" {
		t.Errorf("src/a.txt is %q", got)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	must(t, err)
	return b
}
