package workspace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func release(t *testing.T, b *Base) {
	t.Helper()
	if err := b.Release(); err != nil {
		t.Fatal(err)
	}
}

// age makes a mirror look unused for d.
func age(t *testing.T, b *Base, d time.Duration) {
	t.Helper()
	then := time.Now().Add(-d)
	if err := os.Chtimes(filepath.Join(filepath.Dir(b.Mirror), "lock"), then, then); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestGC(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	if removed, err := c.GC(t.Context(), Keep{}); err != nil || removed != nil {
		t.Errorf("without a cache: %s, %v", removed, err)
	}
	get := func(unused time.Duration) *Base {
		b, err := c.Fetch(t.Context(), Source{Repo: newRepo(t), Base: "main"})
		if err != nil {
			t.Fatal(err)
		}
		age(t, b, unused)
		return b
	}
	fresh, old, pinned, borrowed, locked := get(time.Minute), get(time.Hour*2), get(time.Hour*2), get(time.Hour*2), get(time.Hour*2)
	release(t, fresh)
	release(t, old)
	ws := prepare(t, borrowed, task())
	release(t, borrowed)
	release(t, locked)
	l, err := lock(t.Context(), filepath.Join(filepath.Dir(locked.Mirror), "lock"), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	removed, err := c.GC(t.Context(), Keep{Unused: time.Hour})
	if err != nil || len(removed) != 1 || removed[0] != old.Mirror {
		t.Errorf("removed %s, %v; want %s", removed, err, old.Mirror)
	}
	for b, want := range map[*Base]bool{fresh: true, old: false, pinned: true, borrowed: true, locked: true} {
		if exists(t, b.Mirror) != want || exists(t, filepath.Dir(b.Mirror)) != want {
			t.Errorf("%s is there: %v, want %v", b.Mirror, !want, want)
		}
	}
	if err := errors.Join(l.Close(), Remove(ws)); err != nil {
		t.Fatal(err)
	}
	release(t, pinned)
	if _, err := c.GC(t.Context(), Keep{}); err != nil {
		t.Fatal(err)
	}
	if got := ls(t, c.Dir); got != "" {
		t.Errorf("left %s", got)
	}
	if b := fetch(t, c, Source{Repo: fresh.Repo, Base: "main"}); b.OID != fresh.OID {
		t.Errorf("after GC: %+v", b)
	}
}

func TestPinAgain(t *testing.T) {
	t.Parallel()
	c, src := newCache(t), Source{Repo: newRepo(t), Base: "main"}
	first, err := c.Fetch(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, src.Repo, "a", "a")
	second := fetch(t, c, src)
	release(t, first)
	again, err := c.Pin(t.Context(), first.Mirror, first.OID)
	if err != nil {
		t.Fatal(err)
	}
	if again.OID != first.OID || again.OID == second.OID || again.Mirror != first.Mirror || again.Branch != "main" {
		t.Errorf("got %+v, want %+v", again, first)
	}
	release(t, second)
	if _, err := c.GC(t.Context(), Keep{}); err != nil || !exists(t, first.Mirror) {
		t.Errorf("a pinned mirror was removed (%v)", err)
	}
	release(t, again)
	if _, err := c.GC(t.Context(), Keep{}); err != nil || exists(t, first.Mirror) {
		t.Errorf("a released mirror is still there (%v)", err)
	}
	_, err = c.Pin(t.Context(), first.Mirror, first.OID)
	wantError(t, err, ErrSource, "cannot be used any more")
	if exists(t, filepath.Dir(first.Mirror)) {
		t.Error("Pin made an entry")
	}
	for _, bad := range [][2]string{{"/etc", first.OID}, {first.Mirror, "main"}, {filepath.Join(c.Dir, "x/../../y/g1"), first.OID}} {
		_, err := c.Pin(t.Context(), bad[0], bad[1])
		wantError(t, err, ErrSource, "journal")
	}
}

func TestGCBytes(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	var bases []*Base
	for i := range 3 {
		b, err := c.Fetch(t.Context(), Source{Repo: newRepo(t), Base: "main"})
		if err != nil {
			t.Fatal(err)
		}
		release(t, b)
		age(t, b, time.Duration(3-i)*time.Minute)
		bases = append(bases, b)
	}
	size := treeSize(filepath.Dir(bases[0].Mirror))
	if size < 1000 {
		t.Fatalf("a mirror has %d bytes", size)
	}
	removed, err := c.GC(t.Context(), Keep{Unused: time.Hour, Bytes: size*2 + size/2})
	if err != nil || len(removed) != 1 || removed[0] != bases[0].Mirror {
		t.Errorf("removed %s, %v; want the least recently used", removed, err)
	}
}

// GC removes an entry while others fetch it; nobody fails.
func TestGCBesideFetches(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	type result struct {
		out []byte
		err error
	}
	done := make(chan result)
	for range 2 {
		cmd := fetcher{Cache: c.Dir, Repo: repo, Base: "main", Times: 6}.command(t)
		go func() {
			out, err := cmd.Output()
			done <- result{out, err}
		}()
	}
	removed := 0
	for left := 2; left > 0; {
		select {
		case r := <-done:
			if r.err != nil {
				t.Errorf("fetcher: %v", r.err)
			}
			for _, l := range parseFetched(t, r.out) {
				if l.Error != "" {
					t.Error(l.Error)
				}
			}
			left--
		default:
			r, err := c.GC(t.Context(), Keep{})
			if err != nil {
				t.Error(err)
			}
			removed += len(r)
		}
	}
	if removed == 0 {
		t.Error("nothing was removed meanwhile: this test is void")
	}
}

// A child that another goroutine starts shares our open files until its exec.
func TestLockGivenUpWhileShared(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	l, err := lock(t.Context(), path, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := unix.Dup(int(l.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(shared)
	if other, err := tryLock(path); other != nil || err != nil {
		t.Fatalf("a held lock was taken: %v, %v", other, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	other, err := tryLock(path)
	if other == nil || err != nil {
		t.Fatalf("a lock that was given up is still held: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
}
