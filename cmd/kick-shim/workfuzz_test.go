package main

import (
	"strings"
	"testing"
)

// FuzzRepositoryText feeds the parsers of what a repository may hold.
func FuzzRepositoryText(f *testing.F) {
	id := strings.Repeat("a1", 20)
	for _, s := range []string{
		"ref: refs/heads/main\n", id + "\n", "ref: refs/heads/../../x", "# pack-refs with: peeled\n" + id + " refs/heads/a\n^" + id + "\n",
		strings.Repeat("0", 40) + " " + id + " A <a@b> 1 +0000\tcommit\n",
		"1 .M N... 100644 100644 100644 " + id + " " + id + " a b", "? dir/", "? x", "u UU N... 1 2 3 4 " + id + " " + id + " " + id + " c", "1 ", "?", "? /",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := refReader{hex: 40, sum: &work{}}
		if oid, _ := r.parse(b); oid != "" && (!validOID(oid) || len(oid) != 40) {
			t.Errorf("parse: id %q", oid)
		}
		refs := map[string]string{}
		r.packed(b, refs)
		for name, oid := range refs {
			if !validRef(name) || !validOID(oid) || strings.ContainsAny(name, " \n") {
				t.Errorf("packed: %q %q", name, oid)
			}
		}
		for _, oid := range r.parseLog(b) {
			if !validOID(oid) {
				t.Errorf("log: %q", oid)
			}
		}
		got := &records{sep: 0, f: func(rec string) {
			if e, ok := parseStatus(rec); ok && e.path == "" {
				t.Errorf("status %q has no path", rec)
			}
		}}
		if _, err := got.Write(append(b, 0)); err != nil && len(b) < maxRecord {
			t.Error(err)
		}
	})
}
