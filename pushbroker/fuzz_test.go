package pushbroker

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/gitcmd"
)

func TestParseBundleHeader(t *testing.T) {
	t.Parallel()
	const (
		id   = "2894727a7eee541275f51a13b238a9d4fbe936c2"
		pack = "PACK\x00\x00\x00\x02\x00\x00\x00\x03"
	)
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "# v2 git bundle\n-" + id + " a subject\n" + id + " HEAD\n\n" + pack, ""},
		{"branch", "# v2 git bundle\n" + id + " refs/heads/x/y\n\n" + pack, ""},
		{"empty", "", "breaks off"},
		{"version 3", "# v3 git bundle\n@object-format=sha256\n", "version 3"},
		{"version 1", "# v1 git bundle\n", "does not begin"},
		{"carriage return", "# v2 git bundle\r\n", "does not begin"},
		{"no ref", "# v2 git bundle\n\n" + pack, "names no ref"},
		{"two refs", "# v2 git bundle\n" + id + " HEAD\n" + id + " refs/heads/x\n\n" + pack, "more than one ref"},
		{"short id", "# v2 git bundle\n" + id[:39] + " HEAD\n\n" + pack, "neither"},
		{"upper-case id", "# v2 git bundle\n" + strings.ToUpper(id) + " HEAD\n\n" + pack, "neither"},
		{"zero id", "# v2 git bundle\n" + gitcmd.ZeroOID + " HEAD\n\n" + pack, "neither"},
		{"SHA-256 id", "# v2 git bundle\n" + strings.Repeat("a", 64) + " HEAD\n\n" + pack, "neither"},
		{"option as ref", "# v2 git bundle\n" + id + " --upload-pack=x\n\n" + pack, "plain name"},
		{"climbing ref", "# v2 git bundle\n" + id + " refs/heads/../../x\n\n" + pack, "plain name"},
		{"capability", "# v2 git bundle\n@filter=blob:none\n" + id + " HEAD\n\n" + pack, "neither"},
		{"late prerequisite", "# v2 git bundle\n" + id + " HEAD\n-" + id + "\n\n" + pack, "behind a ref"},
		{"many prerequisites", "# v2 git bundle\n" + strings.Repeat("-"+id+"\n", 1001), "more than 1000"},
		{"long line", "# v2 git bundle\n-" + id + strings.Repeat(" x", 4000), "longer than"},
		{"NUL", "# v2 git bundle\n-" + id + " \x00\n", "NUL"},
		{"no pack", "# v2 git bundle\n" + id + " HEAD\n\nPACK", "pack header"},
		{"pack version 3", "# v2 git bundle\n" + id + " HEAD\n\nPACK\x00\x00\x00\x03\x00\x00\x00\x03", "no pack of version 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h, err := ParseBundleHeader(bufio.NewReader(strings.NewReader(tc.in)))
			if tc.want == "" {
				if err != nil || h.Tip != id || h.PackObjects != 3 || h.Size != int64(len(tc.in)-len(pack)) {
					t.Errorf("%+v, %v", h, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func FuzzParseBundleHeader(f *testing.F) {
	f.Add([]byte("# v2 git bundle\n-2894727a7eee541275f51a13b238a9d4fbe936c2 s\n2894727a7eee541275f51a13b238a9d4fbe936c2 HEAD\n\nPACK\x00\x00\x00\x02\x00\x00\x00\x03"))
	f.Add([]byte("# v3 git bundle\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := ParseBundleHeader(bufio.NewReader(bytes.NewReader(in)))
		if err != nil {
			return
		}
		if !gitcmd.IsOID(h.Tip) || h.Size > int64(len(in)) || string(in[h.Size:h.Size+4]) != "PACK" {
			t.Errorf("header %+v of %q", h, in)
		}
	})
}

func FuzzParseCommit(f *testing.F) {
	const head = "tree 2894727a7eee541275f51a13b238a9d4fbe936c2\n"
	f.Add([]byte(head + idents + "\nmessage\n"))
	f.Add([]byte(head + "parent 2894727a7eee541275f51a13b238a9d4fbe936c2\n" + idents + "encoding UTF-8\n\n"))
	f.Add([]byte(head + idents + "gpgsig x\n y\n\nm"))
	f.Add([]byte(head + "author <> 0 +0000\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ParseCommit(raw)
		if err != nil || c.Header != "" {
			return
		}
		// What passes the grammar has nothing that is not in the fields.
		n := len("tree \nauthor \ncommitter ") + 40 + len(c.Author.Name) + len(c.Author.Email) + len(c.Committer.Name) + len(c.Committer.Email) +
			len(c.Parents)*48 + len(c.Message)
		if extra := len(raw) - n; extra < 0 || extra > 2*(len(" <>  +0000")+10)+len("\nencoding UTF-8\n\n\n") {
			t.Errorf("%d bytes are in no field: %q", extra, raw)
		}
		if strings.ContainsAny(c.Author.Name+c.Author.Email, "\n\x00\x1b<>") {
			t.Errorf("identity %+v", c.Author)
		}
	})
}

func FuzzParseTree(f *testing.F) {
	f.Add([]byte("100644 a\x00" + strings.Repeat("x", 20) + "40000 b\x00" + strings.Repeat("y", 20)))
	f.Add([]byte("0100644 a\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		entries, err := parseTree(raw, 1000)
		if err != nil {
			return
		}
		n := 0
		for _, e := range entries {
			if e.name == "" || strings.ContainsAny(e.name, "/\x00") || len(e.oid) != 40 {
				t.Errorf("entry %+v", e)
			}
			n += len(e.name) + 22 + 5
			if e.mode >= 0o100000 {
				n++
			}
		}
		if n != len(raw) {
			t.Errorf("%d of %d bytes are accounted for", n, len(raw))
		}
	})
}

// FuzzWalkHistory walks commits whose trees are arbitrary: chunks of the input,
// which name one another by number, in cycles too. The walk must end within its
// limits, and see what it says has changed.
func FuzzWalkHistory(f *testing.F) {
	entry := func(mode, name string, tree byte) string {
		return mode + " " + name + "\x00" + string(tree) + strings.Repeat("x", 19)
	}
	f.Add([]byte(entry("100644", "a", 0) + entry("40000", "b", 1) + "\xff" + entry("120000", "c", 9)))
	f.Add([]byte(entry("40000", "a", 0) + entry("40000", "b", 0)))
	f.Add([]byte(entry("100644", "a", 0) + "\xff" + entry("100644", "A", 1) + "\xff" + entry("40000", "a", 1)))
	f.Add([]byte(entry("160000", "s", 3) + "\xff" + entry("100755", "s", 3) + entry("40000", "d", 0) + "\xff" + entry("40000", "d", 1)))
	f.Fuzz(func(t *testing.T, in []byte) {
		lim := IngestLimits{TreeDepth: 8, TreeWidth: 20, PathBytes: 64, Changes: 200, Visits: 400}
		cache := newTreeCache(nil, lim)
		chunks := bytes.SplitN(in, []byte{0xff}, 5)
		id := func(n int) string { return fmt.Sprintf("%040x", n%len(chunks)) }
		for i, raw := range chunks {
			entries, err := parseTree(raw, lim.TreeWidth)
			if err != nil {
				return
			}
			for j := range entries {
				if e := &entries[j]; e.isTree() {
					e.oid = id(int(e.oid[0]) + int(e.oid[1]))
				}
			}
			cache.trees[id(i)] = entries
		}
		h := &history{commits: []Commit{
			{OID: "one", Tree: id(1), Parents: []string{"base"}},
			{OID: "two", Tree: id(2), Parents: []string{"base"}},
			{OID: "tip", Tree: id(3), Parents: []string{"one", "two"}},
		}}
		of := map[string]string{"base": id(0), "one": id(1), "two": id(2)}
		err := walkHistory(cache, h, id(0), func(commit string) (string, error) { return of[commit], nil })
		var r *Refusal
		if err != nil {
			if !errors.As(err, &r) {
				t.Fatalf("hostile trees are the broker's failure: %v", err)
			}
			return
		}
		for _, c := range append(slices.Clone(h.changes), h.net...) {
			if c.old == c.new || c.path == "" || len(c.path) > lim.PathBytes {
				t.Errorf("change %+v", c)
			}
			if _, seen := h.first[c.new.oid]; c.commit >= 0 && c.new.hasContent() && !seen {
				t.Errorf("%q becomes %s, which is in no place to look at", c.path, c.new.oid)
			}
		}
		links := &linkTree{treeCache: cache, root: h.tipTree, folded: map[string]map[string]treeEntry{}, target: func(oid string) (string, error) {
			return []string{"a", "../a/b", "b/../..", "A/b/a"}[oid[1]%4], nil
		}}
		for _, c := range h.net {
			if c.new.mode != modeLink {
				continue
			}
			target, _ := links.target(c.new.oid)
			r, err := links.follow(c.path, target)
			if len(r.through) > maxFollowed || err != nil && !errors.As(err, new(*Refusal)) {
				t.Errorf("link %q: %+v, %v", c.path, r, err)
			}
		}
	})
}

func FuzzParsePackIndex(f *testing.F) {
	empty := append([]byte("\xfftOc\x00\x00\x00\x02"), make([]byte, 256*4+40)...)
	f.Add(empty)
	one := append([]byte("\xfftOc\x00\x00\x00\x02"), bytes.Repeat([]byte{0, 0, 0, 1}, 256)...)
	f.Add(append(one, make([]byte, 28+40)...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		entries, err := parsePackIndex(raw)
		if err == nil && len(entries)*28+1072 > len(raw) {
			t.Errorf("%d entries in %d bytes", len(entries), len(raw))
		}
	})
}

func FuzzScanPack(f *testing.F) {
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	w.Write([]byte("hello"))
	w.Close()
	whole := append(append([]byte{packBlob<<4 | 5}, z.Bytes()...), make([]byte, 20)...)
	f.Add(whole, uint32(1))
	f.Add(append(append([]byte{packRef<<4 | 5}, make([]byte, 20)...), whole[1:]...), uint32(1))
	f.Add(append([]byte{packOffset<<4 | 5, 0x81, 1}, whole[1:]...), uint32(1))
	f.Add([]byte{0xBF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F}, uint32(2))
	lim := DefaultIngestLimits()
	lim.ObjectBytes, lim.TotalBytes = 1<<16, 1<<17
	f.Fuzz(func(t *testing.T, in []byte, n uint32) {
		err := scanPack(bufio.NewReader(bytes.NewReader(in)), n, lim)
		var r *Refusal
		if err != nil && !errors.As(err, &r) {
			t.Errorf("hostile bytes are the broker's failure: %v", err)
		}
		if err == nil && len(in) < 20+int(n)*9 {
			t.Errorf("%d entries in %d bytes", n, len(in))
		}
	})
}

func FuzzContent(f *testing.F) {
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1\n"), []byte("a\nb\n"))
	f.Add([]byte("\xe2\x80\xae"), []byte("\xf3\xa0\x81\x81"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		factsOf(a)
		added, removed := lineDelta(a, b)
		back, forth := lineDelta(b, a)
		if added != forth || removed != back || added < 0 || removed < 0 || added-removed != len(lines(b))-len(lines(a)) {
			t.Errorf("%q to %q: +%d -%d, and back +%d -%d", a, b, added, removed, back, forth)
		}
	})
}
