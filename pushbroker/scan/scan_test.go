package scan

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/pushbroker/scan/internal/corpus"
	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
)

// tree is a base of files and older blobs in memory.
type tree struct {
	files map[string]string
	older []string
	asked int
	fail  error
}

func (b *tree) Blob(_ context.Context, path string) ([]byte, bool, error) {
	b.asked++
	data, ok := b.files[path]
	return []byte(data), ok, b.fail
}

func (b *tree) Contains(_ context.Context, value []byte) (bool, error) {
	b.asked++
	for _, data := range b.files {
		if bytes.Contains([]byte(data), value) {
			return true, nil
		}
	}
	for _, data := range b.older {
		if bytes.Contains([]byte(data), value) {
			return true, nil
		}
	}
	return false, b.fail
}

func scanItem(t *testing.T, s *Scanner, it pushbroker.Item) []policy.Finding {
	t.Helper()
	f, err := s.Scan(context.Background(), it)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestKnownInBaseIsNotNew(t *testing.T) {
	t.Parallel()
	const held = "correct-horse-battery-staple"
	s := newScanner(t, map[string]string{"MODEL_KEY": held})
	old, fresh := ruleset.Expand("ghp_{an:36}", 1), ruleset.Expand("ghp_{an:36}", 2)
	packed := corpus.Zip("s.txt", "token "+old, 8)
	for name, c := range map[string]struct {
		base tree
		path string
		data string
		want policy.Level
	}{
		"kept in the same file":        {tree{files: map[string]string{"a": "x\n" + old}}, "a", "y\nz\n" + old + "\nmore", ""},
		"removed from the file":        {tree{files: map[string]string{"a": "x\n" + old}}, "a", "x\n", ""},
		"moved to another path":        {tree{files: map[string]string{"a": "x\n" + old}}, "b/c", "x\n" + old, ""},
		"in older history":             {tree{older: []string{"t=" + old}}, "b", "x\n" + old, ""},
		"encoded as before, elsewhere": {tree{files: map[string]string{"a": "k: " + corpus.Base64("t="+old)}}, "b", "j: " + corpus.Base64("t="+old), ""},
		"was plain, is encoded":        {tree{files: map[string]string{"a": old}}, "a", corpus.Base64("t=" + old), ""},
		"archive changed around it":    {tree{files: map[string]string{"a.zip": packed}}, "a.zip", packed + "trailer", ""},
		"new":                          {tree{files: map[string]string{"a": "x"}}, "a", fresh, policy.Block},
		"new beside an old one":        {tree{files: map[string]string{"a": old}}, "a", old + "\n" + fresh, policy.Block},
		"new file":                     {tree{}, "n", fresh, policy.Block},
		"held, in base":                {tree{files: map[string]string{"a": held}}, "a", "x " + held, policy.Report},
		"held, new":                    {tree{}, "a", "x " + held, policy.Block},
		"key store":                    {tree{}, "certs/server.P12", "\x30\x82", policy.Review},
		"key store, in base":           {tree{files: map[string]string{"s.p12": "old"}}, "s.p12", "\x30\x82", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := scanItem(t, s, pushbroker.Item{Kind: pushbroker.BlobItem, Path: c.path, Data: []byte(c.data), Base: &c.base})
			if level(got) != c.want {
				t.Errorf("level %q, want %q: %+v", level(got), c.want, got)
			}
		})
	}
	t.Run("base is not asked about nothing", func(t *testing.T) {
		base := &tree{}
		scanItem(t, s, pushbroker.Item{Kind: pushbroker.BlobItem, Path: "a", Data: []byte("nothing"), Base: base})
		if base.asked != 0 {
			t.Errorf("base was asked %d times", base.asked)
		}
	})
	t.Run("base that fails", func(t *testing.T) {
		boom := errors.New("boom")
		it := pushbroker.Item{Kind: pushbroker.BlobItem, Path: "a", Data: []byte(fresh), Base: &tree{fail: boom}}
		if _, err := s.Scan(context.Background(), it); !errors.Is(err, boom) {
			t.Errorf("error %v, want boom", err)
		}
	})
}

// TestPlaces scans every kind of item.
func TestPlaces(t *testing.T) {
	t.Parallel()
	s := newScanner(t, nil)
	token := ruleset.Expand("ghp_{an:36}", 5)
	for kind, data := range map[pushbroker.ItemKind]string{
		pushbroker.BlobItem:    "line\n  \"" + token + "\"\n",
		pushbroker.CommitItem:  "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor " + token + " <a@b> 1 +0000\n\nmessage\n",
		pushbroker.PathItem:    "dir/" + token + ".txt",
		pushbroker.SymlinkItem: "../" + token,
		pushbroker.BranchItem:  "kick/agent/" + token,
	} {
		got := scanItem(t, s, pushbroker.Item{Kind: kind, Data: []byte(data), Base: &tree{}})
		if len(got) != 1 || got[0].Level != policy.Block || got[0].Rule != "github-token" {
			t.Fatalf("%s: %+v", kind, got)
		}
		f := got[0]
		line := strings.Count(data[:strings.Index(data, token)], "\n") + 1
		column := strings.Index(data, token) - strings.LastIndex(data[:strings.Index(data, token)], "\n")
		if f.Line != line || f.Column != column {
			t.Errorf("%s: at %d:%d, want %d:%d", kind, f.Line, f.Column, line, column)
		}
		if f.Excerpt != "ghp_… (40 bytes)" || len(f.Fingerprint) != 32 || f.Message == "" || f.Remedy == "" {
			t.Errorf("%s: %+v", kind, f)
		}
	}
}

// TestFingerprints are stable for a key, and differ by rule, value and key.
func TestFingerprints(t *testing.T) {
	t.Parallel()
	one, two := ruleset.Expand("ghp_{an:36}", 1), ruleset.Expand("ghp_{an:36}", 2)
	s := newScanner(t, nil)
	fingerprint := func(s *Scanner, text string) string { return scanText(t, s, text)[0].Fingerprint }
	if fingerprint(s, one) != fingerprint(s, "elsewhere\n"+one) || fingerprint(s, one) != fingerprint(s, corpus.Base64("x "+one)) {
		t.Error("the fingerprint depends on the place")
	}
	other, err := New(Options{Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	if fingerprint(s, one) == fingerprint(s, two) || fingerprint(s, one) == fingerprint(other, one) {
		t.Error("fingerprints of two values or keys are the same")
	}
}

// TestManyFindings keeps the gravest when there are more than can be told.
func TestManyFindings(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range uint64(maxFindings + 50) {
		b.WriteString(ruleset.Expand("api_key = \"{an:32}\"\n", i))
	}
	b.WriteString(ruleset.Expand("ghp_{an:36}\n", 1))
	got := scanText(t, newScanner(t, nil), b.String())
	if len(got) != maxFindings || got[0].Level != policy.Block {
		t.Errorf("%d findings, the first %+v", len(got), got[0])
	}
}
