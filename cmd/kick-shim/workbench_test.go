package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/kickhq/kick/internal/frame"
)

// fiveThousand is a packed repository of 5,000 files.
func fiveThousand(b *testing.B) (repo, string) {
	base, _ := newBase(b, func(r repo) {
		for i := range 5000 {
			r.write(fmt.Sprintf("d%d/s/f%d.txt", i%100, i), fmt.Sprintf("file %d\n%s", i, noise(1000)))
		}
	})
	base.git("repack", "-a", "-d", "-q")
	return base, base.git("rev-parse", "HEAD")
}

func BenchmarkCheckout(b *testing.B) {
	base, oid := fiveThousand(b)
	b.Run("kick", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			ws := skeleton(b, base, oid, false)
			b.StartTimer()
			if err := checkout(frame.Config{WorkDir: ws.dir, BaseOID: oid}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("git-worktree-add", func(b *testing.B) {
		for b.Loop() {
			base.git("worktree", "add", "-q", "--detach", filepath.Join(b.TempDir(), "wt"), oid)
		}
	})
}

// BenchmarkCollect measures the usual kick against what plain git takes for
// the same answers, one command after the other.
func BenchmarkCollect(b *testing.B) {
	base, oid := fiveThousand(b)
	ws := skeleton(b, base, oid, false)
	cfg := frame.Config{WorkDir: ws.dir, BaseOID: oid, ArtifactMax: 1 << 30}
	if err := checkout(cfg); err != nil {
		b.Fatal(err)
	}
	ws.write("new.txt", "new\n")
	ws.commit("new")
	b.Run("kick", func(b *testing.B) {
		for b.Loop() {
			var out bytes.Buffer
			if err := collect(cfg, frame.NewWriter(&out)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("git-status", func(b *testing.B) {
		for b.Loop() {
			ws.git("--no-optional-locks", "status", "--porcelain")
		}
	})
	b.Run("git-status-and-bundle", func(b *testing.B) {
		for b.Loop() {
			ws.git("--no-optional-locks", "status", "--porcelain")
			ws.git("for-each-ref")
			ws.git("rev-list", "--count", "HEAD", "^"+oid)
			ws.git("bundle", "create", "-q", filepath.Join(b.TempDir(), "b"), "HEAD", "^"+oid)
		}
	})
}
