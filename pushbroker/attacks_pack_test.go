package pushbroker

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// handEntry is one entry of a pack that is made by hand.
type handEntry struct {
	kind int
	size int64 // that the head claims; 0: the true one
	base string
	data string // before compression
	raw  string // in place of the compressed data
}

// handmade makes a bundle around a pack of these entries. count is what the
// pack's header claims to hold: 0 is the truth, and -1 stands for none.
func (l *lab) handmade(tip string, count int, entries ...handEntry) string {
	l.t.Helper()
	switch count {
	case 0:
		count = len(entries)
	case -1:
		count = 0
	}
	var pack bytes.Buffer
	pack.WriteString("PACK")
	must(l.t, binary.Write(&pack, binary.BigEndian, []uint32{2, uint32(count)}))
	for _, e := range entries {
		size := e.size
		if size == 0 {
			size = int64(len(e.data))
		}
		c := byte(e.kind<<4) | byte(size&15)
		for size >>= 4; size > 0; size >>= 7 {
			pack.WriteByte(c | 0x80)
			c = byte(size & 0x7F)
		}
		pack.WriteByte(c)
		pack.WriteString(e.base)
		if e.raw != "" {
			pack.WriteString(e.raw)
			continue
		}
		z := zlib.NewWriter(&pack)
		_, err := z.Write([]byte(e.data))
		must(l.t, errors.Join(err, z.Close()))
	}
	sum := sha1.Sum(pack.Bytes())
	pack.Write(sum[:])
	out := filepath.Join(l.dir, "hand.bundle")
	must(l.t, os.WriteFile(out, slices.Concat([]byte("# v2 git bundle\n-"+l.base+" base\n"+tip+" HEAD\n\n"), pack.Bytes()), 0o600))
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func objectID(kind, body string) string {
	sum := sha1.Sum([]byte(fmt.Sprintf("%s %d\x00%s", kind, len(body), body)))
	return hex.EncodeToString(sum[:])
}

// varint is a size as deltas have it.
func varint(n uint64) string {
	var b []byte
	for ; n > 0x7F; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return string(append(b, byte(n)))
}

// honest are the entries of a commit that adds a file, and its id. They are
// whole; a pack that has them and something hostile is refused for that alone.
func (l *lab) honest() (tip string, entries []handEntry) {
	blob := "honest\n"
	tree := unhex(l.sh(l.clone, "git cat-file tree HEAD^{tree} | od -An -v -tx1 | tr -d ' \n'")) + "100644 zz\x00" + unhex(objectID("blob", blob))
	commit := "tree " + objectID("tree", tree) + "\nparent " + l.base + "\n" + idents + "\nx\n"
	return objectID("commit", commit), []handEntry{{kind: packCommit, data: commit}, {kind: packTree, data: tree}, {kind: packBlob, data: blob}}
}

// TestPackAttacks are packs that git would not make.
func TestPackAttacks(t *testing.T) {
	t.Parallel()
	honestBlob := objectID("blob", "honest\n")
	growing := func(n int) (entries []handEntry) {
		// Each object is the one before it twice.
		content := strings.Repeat("x", 1<<20)
		entries = append(entries, handEntry{kind: packBlob, data: content})
		id, size := objectID("blob", content), uint64(len(content))
		for range n {
			copyAll := func(off uint64) string {
				var b strings.Builder
				for o := uint64(0); o < size; o += 0x10000 {
					at := off + o
					b.WriteString(string([]byte{0x80 | 0x0F, byte(at), byte(at >> 8), byte(at >> 16), byte(at >> 24)}))
				}
				return b.String()
			}
			entries = append(entries, handEntry{kind: packRef, base: unhex(id), data: varint(size) + varint(2*size) + copyAll(0) + copyAll(0)})
			size *= 2
			id = strings.Repeat("0", 40) // what comes next is never reached
		}
		return entries
	}
	for _, tc := range []struct {
		name  string
		extra []handEntry
		count int // that the header claims; 0: the true one, -1: none
		rule  string
	}{
		{name: "nothing hostile"},
		{name: "entry that inflates to more than it says", extra: []handEntry{{kind: packBlob, size: 5, data: strings.Repeat("\x00", 1<<20)}}, rule: "bundle-format"},
		{name: "entry that inflates to less than it says", extra: []handEntry{{kind: packBlob, size: 5000, data: "x"}}, rule: "bundle-format"},
		{name: "entry that claims a terabyte", extra: []handEntry{{kind: packBlob, size: 1 << 40, data: "x"}}, rule: "limit-ingest"},
		{name: "entry whose size has no end", extra: []handEntry{{kind: packBlob, size: 1<<62 + 1<<61, data: "x"}}, rule: "bundle-format"},
		{name: "entry that is no zlib stream", extra: []handEntry{{kind: packBlob, size: 5, raw: "garbage garbage"}}, rule: "bundle-format"},
		{name: "entry with a preset dictionary", extra: []handEntry{{kind: packBlob, size: 5, raw: "\x78\xbb\x00\x00\x00\x01garbage"}}, rule: "bundle-format"},
		{name: "entry of type 5", extra: []handEntry{{kind: 5, data: "x"}}, rule: "bundle-format"},
		{name: "entry of type 0", extra: []handEntry{{kind: 0, data: "x"}}, rule: "bundle-format"},
		{name: "delta of an object that is nowhere", extra: []handEntry{{kind: packRef, base: strings.Repeat("\x11", 20), data: varint(1) + varint(1) + "\x01x"}}, rule: "object-malformed"},
		{name: "delta of itself", extra: []handEntry{{kind: packOffset, base: "\x00", data: varint(1) + varint(1) + "\x01x"}}, rule: "object-malformed"},
		{name: "delta of what is before the pack", extra: []handEntry{{kind: packOffset, base: "\xfe\xff\x7f", data: varint(1) + varint(1) + "\x01x"}}, rule: "object-malformed"},
		{name: "delta that claims a terabyte", extra: []handEntry{{kind: packRef, base: unhex(honestBlob), data: varint(7) + varint(1<<40) + "\x01x"}}, rule: "limit-ingest"},
		{name: "delta whose sizes have no end", extra: []handEntry{{kind: packRef, base: unhex(honestBlob), data: strings.Repeat("\xff", 40)}}, rule: "bundle-format"},
		{name: "delta that copies from beyond its base", extra: []handEntry{{kind: packRef, base: unhex(honestBlob), data: varint(7) + varint(5) + "\x91\x70\x05"}}, rule: "object-malformed"},
		{name: "delta of another length than it says", extra: []handEntry{{kind: packRef, base: unhex(honestBlob), data: varint(7) + varint(50) + "\x01x"}}, rule: "object-malformed"},
		{name: "delta with the reserved instruction", extra: []handEntry{{kind: packRef, base: unhex(honestBlob), data: varint(7) + varint(1) + "\x00"}}, rule: "object-malformed"},
		{name: "delta of another base size", extra: []handEntry{{kind: packRef, base: unhex(honestBlob), data: varint(9) + varint(1) + "\x01x"}}, rule: "object-malformed"},
		{name: "header that claims fewer objects", extra: []handEntry{{kind: packBlob, data: "x"}}, count: 3, rule: "bundle-format"},
		{name: "header that claims more objects", count: 4, rule: "bundle-format"},
		{name: "header that claims four billion objects", count: 1<<32 - 1, rule: "limit-ingest"},
		{name: "header that claims none", count: -1, rule: "bundle-format"},
		{name: "one object twice", extra: []handEntry{{kind: packBlob, data: "honest\n"}}, rule: "object-malformed"},
		{name: "tag with a message", extra: []handEntry{{kind: packTag, data: "object " + honestBlob + "\ntype blob\ntag t\ntagger " + ident + "\n\nhidden\n"}}, rule: "object-stuffing"},
		{name: "commit that is no commit", extra: []handEntry{{kind: packCommit, data: "hidden"}}, rule: "object-malformed"},
		{name: "tree that is no tree", extra: []handEntry{{kind: packTree, data: "hidden"}}, rule: "object-malformed"},
		{name: "blob that nothing names", extra: []handEntry{{kind: packBlob, data: "hidden"}}, rule: "object-stuffing"},
		{name: "empty blob that nothing names", extra: []handEntry{{kind: packBlob, data: ""}}, rule: "object-stuffing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			tip, entries := l.honest()
			l.wantRule(l.handmade(tip, tc.count, append(entries, tc.extra...)...), tc.rule)
		})
	}
	t.Run("deltas that double", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		tip, entries := l.honest()
		l.wantRule(l.handmade(tip, 0, append(entries, growing(9)...)...), "limit-ingest")
	})
	t.Run("long chain of deltas", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		l.sh(l.clone, `i=0; printf 'commit refs/heads/main\ncommitter kick <kick@example.com> 1700000000 +0000\ndata 2\nc\nfrom HEAD^0\n' >../in
			while [ $i -lt 900 ]; do printf 'M 100644 inline c/f%d\ndata 2050\n%02048d%02d' $i $i 7 >>../in; echo >>../in; i=$((i+1)); done; git fast-import --quiet --force <../in
			printf '# v2 git bundle\n-%s base\n%s HEAD\n\n' `+l.base+` $(git rev-parse HEAD) >../work.bundle
			git rev-list --objects HEAD ^`+l.base+` | git pack-objects -q --stdout --depth=4000 --window=10 --no-reuse-delta >>../work.bundle`)
		l.wantRule(filepath.Join(l.dir, "work.bundle"), "")
	})
}

// wantRule judges a bundle: it must be refused by that rule alone, or pass.
func (l *lab) wantRule(bundle, rule string) {
	l.t.Helper()
	v := l.judge(bundle, nil)
	got := ""
	for _, f := range v.Findings {
		got += f.Rule
	}
	if got != rule || v.Pass != (rule == "") {
		l.t.Errorf("pass %v, findings %+v; want %q", v.Pass, v.Findings, rule)
	}
}

// TestMutatedBundles changes bytes of a good bundle. Each is refused, or its
// tip is one of which git has checked every object: never an error of ours, for
// that would be a wrong verdict.
func TestMutatedBundles(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh(l.clone, `echo one > one; git add one; git commit -qm one; echo x >> src/long.go; git commit -qam two`)
	good, err := os.ReadFile(l.bundle())
	must(t, err)
	rnd := rand.New(rand.NewPCG(1, 2))
	passed := 0
	for range 60 {
		bad := slices.Clone(good)
		for range 1 + rnd.IntN(3) {
			bad[rnd.IntN(len(bad))] ^= byte(1 + rnd.IntN(255))
		}
		file := filepath.Join(l.dir, "bad.bundle")
		must(t, os.WriteFile(file, bad, 0o600))
		v, err := l.try(l.work(file), nil)
		if err != nil {
			t.Errorf("%v", err)
		}
		if v.Pass {
			passed++ // a name in the header, which means nothing
		}
	}
	if passed > 10 {
		t.Errorf("%d of 60 broken bundles passed", passed)
	}
}
