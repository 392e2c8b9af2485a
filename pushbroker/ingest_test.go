package pushbroker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestIngestFillsTheQuarantine(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `echo one > one; git add one; git commit -qm one; git checkout -qb side; echo x >> src/long.go; git commit -qam two; git checkout -q main; echo t > t; git add t; git commit -qm t; git merge -q --no-ff -m m side`)
	dir := filepath.Join(l.dir, "q")
	q, err := Ingest(context.Background(), dir, l.work(l.bundle()), IngestLimits{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	// git's own idea of S is what the push would send.
	want := strings.Fields(l.sh(l.clone, "git rev-list --objects --no-object-names HEAD ^"+l.base))
	got := slices.Clone(q.Objects)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("objects %v, want %v", got, want)
	}
	if want := strings.Fields(l.sh(l.clone, "git rev-list --topo-order --reverse HEAD ^"+l.base)); !slices.Equal(q.Commits, want) {
		t.Errorf("commits %v, want %v", q.Commits, want)
	}
	if q.Tip != l.sh(l.clone, "git rev-parse HEAD") || q.BaseOID != l.base || q.Dir != dir {
		t.Errorf("quarantine %+v", q)
	}
	// Nothing of the sandbox is configuration there, and no ref exists.
	l.sh(dir, `test -z "$(git --git-dir=. for-each-ref)"; test ! -e hooks; git --git-dir=. fsck --strict --no-dangling `+q.Tip)
	if st, _ := os.Stat(dir); st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", st.Mode())
	}
}

func TestIngestErrors(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
	good := l.work(l.bundle())
	empty := filepath.Join(l.dir, "empty")
	l.sh(l.dir, "git init -q --bare empty; ln -s work.bundle link; mkfifo fifo")
	for _, tc := range []struct {
		name string
		edit func(w *Work)
		want string
	}{
		{"no bundle", func(w *Work) { w.Bundle += "x" }, "no such file"},
		{"bundle is a link", func(w *Work) { w.Bundle = filepath.Join(l.dir, "link") }, "open bundle"},
		{"bundle is a pipe", func(w *Work) { w.Bundle = filepath.Join(l.dir, "fifo") }, "no regular file"},
		{"bundle is a directory", func(w *Work) { w.Bundle = l.dir }, "no regular file"},
		{"base is no id", func(w *Work) { w.BaseOID = "main" }, "no full lower-case SHA-1 id"},
		{"base is an option", func(w *Work) { w.BaseOID = "--all" }, "no full lower-case SHA-1 id"},
		{"no mirror", func(w *Work) { w.Mirror += "x" }, "prepare the base again"},
		{"relative mirror", func(w *Work) { w.Mirror = "mirror" }, "absolute"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := good
			tc.edit(&w)
			dir := filepath.Join(t.TempDir(), "q")
			_, err := Ingest(context.Background(), dir, w, IngestLimits{})
			var r *Refusal
			if err == nil || errors.As(err, &r) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q and no refusal", err, tc.want)
			}
			if _, serr := os.Stat(dir); !os.IsNotExist(serr) {
				t.Error("the quarantine is left")
			}
		})
	}
	t.Run("quarantine exists", func(t *testing.T) {
		dir := t.TempDir()
		if _, err := Ingest(context.Background(), dir, good, IngestLimits{}); err == nil || !errors.Is(err, os.ErrExist) {
			t.Errorf("error %v", err)
		}
		if _, err := os.Stat(dir); err != nil {
			t.Error("a directory that was there before is removed")
		}
	})
	t.Run("mirror without the base", func(t *testing.T) {
		w := good
		w.Mirror = empty
		_, err := Ingest(context.Background(), filepath.Join(t.TempDir(), "q"), w, IngestLimits{})
		if err == nil {
			t.Error("taken")
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := Ingest(ctx, filepath.Join(t.TempDir(), "q"), good, IngestLimits{})
		var r *Refusal
		if err == nil || errors.As(err, &r) || !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("late", func(t *testing.T) {
		lim := DefaultIngestLimits()
		lim.Deadline = time.Nanosecond
		_, err := Ingest(context.Background(), filepath.Join(t.TempDir(), "q"), good, lim)
		var r *Refusal
		if !errors.As(err, &r) || r.Findings[0].Rule != "limit-ingest" {
			t.Errorf("error %v", err)
		}
	})
}

func TestIngestNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, err := Ingest(context.Background(), filepath.Join(l.dir, "q"), l.work(l.rawBundle(l.base, l.base)), IngestLimits{})
	if !errors.Is(err, ErrNothing) {
		t.Errorf("error %v", err)
	}
}

// Each cap, lowered to what one piece of work just exceeds.
func TestIngestLimits(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `mkdir -p deep/er/and/deeper; echo x > deep/er/and/deeper/f; head -c 100000 /dev/zero > big; git add -A; git commit -qm one; echo y > y; git add y; git commit -qm two
		for b in a b c; do git checkout -qb $b main; echo $b > $b; git add $b; git commit -qm $b; done; git checkout -q main; git merge -q -m all a b c`)
	w := l.work(l.bundle())
	try := func(t *testing.T, lim IngestLimits) error {
		q, err := Ingest(context.Background(), filepath.Join(t.TempDir(), "q"), w, lim)
		if err == nil {
			q.Close()
		}
		return err
	}
	if err := try(t, IngestLimits{}); err != nil {
		t.Fatal(err)
	}
	for name, lower := range map[string]func(*IngestLimits){
		"pack bytes":   func(l *IngestLimits) { l.PackBytes = 500 },
		"objects":      func(l *IngestLimits) { l.Objects = 3 },
		"object bytes": func(l *IngestLimits) { l.ObjectBytes = 99_999 },
		"total bytes":  func(l *IngestLimits) { l.TotalBytes = 100_100 },
		"commit bytes": func(l *IngestLimits) { l.CommitBytes = 100 },
		"commits":      func(l *IngestLimits) { l.Commits = 2 },
		"parents":      func(l *IngestLimits) { l.Parents = 2 },
		"depth":        func(l *IngestLimits) { l.TreeDepth = 2 },
		"width":        func(l *IngestLimits) { l.TreeWidth = 4 },
		"path":         func(l *IngestLimits) { l.PathBytes = 12 },
		"changes":      func(l *IngestLimits) { l.Changes = 2 },
		"visits":       func(l *IngestLimits) { l.Visits = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			lim := DefaultIngestLimits()
			lower(&lim)
			err := try(t, lim)
			var r *Refusal
			if !errors.As(err, &r) || r.Findings[0].Rule != "limit-ingest" {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A few hundred kilobytes of pack that inflate to 400 MB: refused by what the
// pack says of itself, before there is a quarantine for git to write it to,
// since there is no mirror to make one from.
func TestBombIsRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `head -c 400000000 /dev/zero > big; git -c core.bigFileThreshold=1m add big; git commit -qm big; rm big`)
	w := l.work(l.bundle())
	w.Mirror = filepath.Join(l.dir, "none")
	_, err := Ingest(context.Background(), filepath.Join(l.dir, "q"), w, IngestLimits{})
	var r *Refusal
	if !errors.As(err, &r) || r.Findings[0].Rule != "limit-ingest" {
		t.Fatalf("error %v", err)
	}
}

// A tree of trees that names 10^12 files in some kilobytes.
func TestTreeBombIsRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `b=$(echo x | git hash-object -w --stdin)
		t=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf '100644 blob %s\tf%s\n' $b $i; done | git mktree)
		for d in 1 2 3 4 5 6 7 8 9 10 11; do t=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf '040000 tree %s\td%s\n' $t $i; done | git mktree); done
		r=$( (git ls-tree HEAD; printf '040000 tree %s\tzz\n' $t) | git mktree); git update-ref HEAD $(echo bomb | git commit-tree $r -p HEAD)`)
	_, err := Ingest(context.Background(), filepath.Join(l.dir, "q"), l.work(l.bundle()), IngestLimits{})
	var r *Refusal
	// By a count, not by the deadline.
	if !errors.As(err, &r) || r.Findings[0].Rule != "limit-ingest" || !strings.Contains(r.Error(), "more than") || strings.Contains(r.Error(), "1m0s") {
		t.Fatalf("error %v", err)
	}
}

// What is new is the same, whatever helps git to find it: loose objects, packs,
// bitmaps, a commit graph and a chain of alternates. Reverts and copies bring
// back what base holds, or held once.
func TestNewObjectsOverBitmaps(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `git show HEAD~2:README.md > README.md; git commit -qam revert; cp -r src copy; git add copy; git commit -qm copy
		git show HEAD~4:README.md > old; git show HEAD~3:.github/workflows/ci.yml > now; git add -A; git commit -qm back`)
	w := l.work(l.bundle())
	want := strings.Fields(l.sh(l.clone, "git rev-list --objects --no-object-names HEAD ^"+l.base))
	slices.Sort(want)
	for _, tc := range []struct{ name, script string }{
		{"one pack", `git repack -qad`},
		{"loose", `mkdir ../packs; mv objects/pack/*.pack ../packs; rm -f objects/pack/*; for p in ../packs/*; do git unpack-objects -q < $p; done; ! ls objects/pack/*`},
		{"bitmaps", `git repack -qadb; ls objects/pack/*.bitmap`},
		{"bitmaps and a commit graph", `git repack -qadb; git commit-graph write --reachable --changed-paths; git multi-pack-index write --bitmap`},
		{"alternates", `git clone -q --bare . ../store; rm -rf objects/pack objects/??; mkdir -p objects/info objects/pack; echo "$PWD/../store/objects" > objects/info/alternates`},
	} {
		l.sh(l.mirror, tc.script)
		q, err := Ingest(context.Background(), filepath.Join(t.TempDir(), "q"), w, IngestLimits{})
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		got := slices.Clone(q.Objects)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d objects, want %d", tc.name, len(got), len(want))
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A mirror that is damaged is the broker's trouble, and no verdict on the work.
func TestDamagedMirrorIsNoVerdict(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `echo a >> src/long.go; git commit -qam a`)
	w := l.work(l.bundle())
	l.sh(l.mirror, `git repack -qad`)
	for name, script := range map[string]string{
		"cut pack":      `chmod u+w objects/pack/*; for f in objects/pack/*.pack; do truncate -s 100 $f; done`,
		"no objects":    `rm -f objects/pack/*`,
		"missing blob":  `mkdir ../p; mv objects/pack/*.pack ../p; rm -f objects/pack/*; cat ../p/*.pack | git unpack-objects -q; b=$(cd ../clone; git rev-parse HEAD~1:src/long.go); rm objects/$(echo $b | cut -c1-2)/$(echo $b | cut -c3-)`,
		"corrupt trees": `mkdir ../p; mv objects/pack/*.pack ../p; rm -f objects/pack/*; cat ../p/*.pack | git unpack-objects -q; b=$(cd ../clone; git rev-parse HEAD~1:src); f=objects/$(echo $b | cut -c1-2)/$(echo $b | cut -c3-); chmod u+w $f; echo garbage > $f`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.CopyFS(filepath.Join(dir, "mirror"), os.DirFS(l.mirror)); err != nil {
				t.Fatal(err)
			}
			sub := *l
			sub.t = t
			sub.sh(dir, `ln -s `+l.clone+` clone; cd mirror; `+script)
			w := w
			w.Mirror = filepath.Join(dir, "mirror")
			_, err := Ingest(context.Background(), filepath.Join(dir, "q"), w, IngestLimits{})
			var r *Refusal
			if err == nil || errors.As(err, &r) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// Settings of the user who runs kick do not reach the quarantine.
func TestIngestIgnoresConfiguration(t *testing.T) {
	l := newLab(t)
	l.sh(l.clone, `echo a > a; git add a; git commit -qm a`)
	w := l.work(l.bundle())
	mark := filepath.Join(l.dir, "mark")
	home := t.TempDir()
	hook := filepath.Join(home, "hook")
	conf := fmt.Sprintf("[core]\n\tfsmonitor = %s\n\thooksPath = %s\n[fsck]\n\tbadTree = ignore\n", hook, home)
	for name, text := range map[string]string{".gitconfig": conf, "hook": "#!/bin/sh\ntouch " + mark + "\n"} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", home)
	t.Setenv("GIT_DIR", "/nonexistent")
	t.Setenv("GIT_ALTERNATE_OBJECT_DIRECTORIES", "/nonexistent")
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
	t.Setenv("GIT_CONFIG_VALUE_0", home)
	q, err := Ingest(context.Background(), filepath.Join(l.dir, "q"), w, IngestLimits{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := Inspect(context.Background(), q, w, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(mark); !os.IsNotExist(err) {
		t.Error("a program of the user's configuration ran")
	}
}
