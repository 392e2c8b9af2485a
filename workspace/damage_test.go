package workspace

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFetchRebuildsDamagedMirror(t *testing.T) {
	t.Parallel()
	pack := func(t *testing.T, b *Base) string { return packs(t, b)[0] }
	src, sound := Source{Repo: newRepo(t), Base: "main"}, newCache(t)
	whole := fetch(t, sound, src)
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, b *Base) error
	}{
		{"truncated pack", func(t *testing.T, b *Base) error {
			return errors.Join(os.Chmod(pack(t, b), 0o644), os.Truncate(pack(t, b), 100))
		}},
		{"pack that ends in zeros", func(t *testing.T, b *Base) error {
			info, err := os.Stat(pack(t, b))
			return errors.Join(err, os.Chmod(pack(t, b), 0o644), os.Truncate(pack(t, b), info.Size()-30), os.Truncate(pack(t, b), info.Size()))
		}},
		{"missing pack", func(t *testing.T, b *Base) error { return os.Remove(pack(t, b)) }},
		{"missing index", func(t *testing.T, b *Base) error { return os.Remove(strings.TrimSuffix(pack(t, b), "pack") + "idx") }},
		{"missing objects", func(t *testing.T, b *Base) error { return os.RemoveAll(b.Objects()) }},
		{"garbage HEAD", func(t *testing.T, b *Base) error { return os.WriteFile(b.Mirror+"/HEAD", []byte("\x00garbage"), 0o644) }},
		{"HEAD elsewhere", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Mirror+"/HEAD", []byte("ref: refs/heads/x\n"), 0o644)
		}},
		{"missing HEAD", func(t *testing.T, b *Base) error { return os.Remove(b.Mirror + "/HEAD") }},
		{"garbage ref", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Mirror+"/refs/heads/main", []byte("zzz"), 0o644)
		}},
		{"missing ref", func(t *testing.T, b *Base) error { return os.Remove(b.Mirror + "/refs/heads/main") }},
		{"altered config", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Mirror+"/config", []byte("[core]\n\tfsmonitor = touch /tmp/x\n"), 0o644)
		}},
		{"alternates", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Objects()+"/info/alternates", []byte("/x\n"), 0o644)
		}},
		{"shallow", func(t *testing.T, b *Base) error {
			return os.WriteFile(b.Mirror+"/shallow", []byte(b.OID+"\n"), 0o644)
		}},
		{"garbage manifest", func(t *testing.T, b *Base) error { return os.WriteFile(b.Mirror+"/kick.json", []byte("{"), 0o600) }},
		{"manifest as a FIFO", func(t *testing.T, b *Base) error {
			return errors.Join(os.Remove(b.Mirror+"/kick.json"), unix.Mkfifo(b.Mirror+"/kick.json", 0o600))
		}},
		{"missing manifest", func(t *testing.T, b *Base) error { return os.Remove(b.Mirror + "/kick.json") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cache := newCache(t)
			err := errors.Join(os.CopyFS(cache.Dir, os.DirFS(sound.Dir)), os.Chmod(cache.Dir, 0o700))
			if err != nil {
				t.Fatal(err)
			}
			b := *whole
			b.Mirror = cache.Dir + strings.TrimPrefix(whole.Mirror, sound.Dir)
			if same, err := cache.Pin(t.Context(), b.Mirror, b.OID); err != nil {
				t.Fatalf("before the damage: %v", err)
			} else {
				release(t, same)
			}
			if err := c.damage(t, &b); err != nil {
				t.Fatal(err)
			}
			again := fetch(t, cache, src)
			if again.Mirror == b.Mirror || again.OID != b.OID {
				t.Errorf("got %+v", again)
			}
			git(t, again.Mirror, "fsck", "--strict")
			if _, err := os.Stat(b.Mirror); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("damaged generation is still there: %v", err)
			}
		})
	}
}

// Damage within a pack is not seen cheaply. It shows when git needs the object,
// here as the base of a delta, and when Verify reads everything.
func TestDamageWithinPack(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 100<<10)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		find func(t *testing.T, c Cache, repo string)
	}{
		{"found by fetch", func(t *testing.T, c Cache, repo string) { commit(t, repo, "noise", string(noise)+"more") }},
		{"found by verify", func(t *testing.T, c Cache, repo string) {
			problems, err := c.Verify(t.Context())
			if err != nil || len(problems) != 1 || !strings.Contains(problems[0], "built anew") {
				t.Errorf("verify: %q, %v", problems, err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			repo, cache := newRepo(t), newCache(t)
			src := Source{Repo: repo, Base: "main"}
			commit(t, repo, "noise", string(noise))
			b := fetch(t, cache, src)
			if problems, err := cache.Verify(t.Context()); err != nil || problems != nil {
				t.Fatalf("verify of a sound mirror: %q, %v", problems, err)
			}
			pack := packs(t, b)[0]
			if err := os.Chmod(pack, 0o644); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(pack, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.WriteAt(make([]byte, 1000), 50<<10)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			if again := fetch(t, cache, src); again.Mirror != b.Mirror {
				t.Error("the damage was seen at once: this test is void")
			}
			c.find(t, cache, repo)
			again := fetch(t, cache, src)
			if again.Mirror == b.Mirror {
				t.Errorf("damaged generation is used on")
			}
			git(t, again.Mirror, "fsck", "--strict")
			if problems, err := cache.Verify(t.Context()); err != nil || problems != nil {
				t.Errorf("verify after the rebuild: %q, %v", problems, err)
			}
		})
	}
}

// A process killed between manifest and ref leaves the ref behind.
func TestFetchFinishesUpdateOfKilledProcess(t *testing.T) {
	t.Parallel()
	repo, c := newRepo(t), newCache(t)
	src := Source{Repo: repo, Base: "main"}
	before := fetch(t, c, src)
	commit(t, repo, "a", "a")
	b := fetch(t, c, src)
	if err := os.WriteFile(b.Mirror+"/refs/heads/main", []byte(before.OID+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	again := fetch(t, c, src)
	if again.Mirror != b.Mirror || git(t, again.Mirror, "rev-parse", "main") != b.OID {
		t.Errorf("got %+v", again)
	}
}
