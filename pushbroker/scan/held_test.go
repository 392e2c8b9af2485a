package scan

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/scan/internal/corpus"
	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
)

var testKey = []byte("0123456789abcdef0123456789abcdef")

func TestHeldIsFound(t *testing.T) {
	t.Parallel()
	// Values that no rule knows, one with letters that base64 and URLs change.
	values := map[string]string{
		"MODEL_KEY": "correct horse/battery+staple??",
		"QUOTED":    `one "two" <three> & four\five`,
		"SHORT":     "pw:8char",
		"APP_KEY":   "-----BEGIN TESTING KEY-----\n" + corpus.Wrap(ruleset.Expand("{b64:300}", 3), 64, "\n") + "\n-----END TESTING KEY-----\n",
	}
	s := newScanner(t, values)
	reversed := func(v string) string {
		b := []byte(v)
		slices.Reverse(b)
		return string(b)
	}
	forms := map[string]func(string) string{
		"plain": func(v string) string { return v }, "reversed": reversed, "rot13": rotated.of, "query": url.QueryEscape, "path": url.PathEscape,
		"glued":            func(v string) string { return "abc" + v + "def" },
		"json":             func(v string) string { b, _ := json.Marshal(v); return string(b) },
		"json /":           func(v string) string { b, _ := json.Marshal(v); return strings.ReplaceAll(string(b), "/", `\/`) },
		"in lines":         func(v string) string { return corpus.Wrap(v, 10, "\n  ") },
		"in pieces":        func(v string) string { return `f("` + v[:len(v)/2] + `" +` + "\n\t\t" + `"` + v[len(v)/2:] + `")` },
		"escaped line end": func(v string) string { return v[:len(v)/2] + `\n` + v[len(v)/2:] },
	}
	for _, e := range corpus.Encodings {
		name, encode := e.Name, e.Encode
		if !strings.HasPrefix(name, "joined") && !strings.Contains(name, "one") {
			forms[name] = encode
		}
	}
	for name, encode := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for owner, v := range values {
				if owner == "APP_KEY" && (name == "zero width" || name == "reversed" || name == "soft hyphen" || name == "word joiner") {
					continue // a line of it is found, the whole of it not
				}
				if owner == "SHORT" && (strings.HasPrefix(name, "in ") || name == "escaped line end" || name == "base64 of utf16" || name == "base64 of utf16 be" || name == "base64 in binary" ||
					name == "base64 of bytes, gzip" || name == "word joiner" || strings.Contains(name, "85") || name == "binary run") {
					continue // shorter than what decoding looks at
				}
				got := scanText(t, s, "x\n"+encode(strings.TrimSpace(v))+"\n")
				if !slices.ContainsFunc(got, func(f policy.Finding) bool {
					return f.Rule == "held-value" && f.Level == policy.Block && strings.Contains(f.Message, owner)
				}) {
					t.Errorf("%s is not found in %.120q: %+v", owner, encode(v), got)
				}
			}
		})
	}
	t.Run("one line of a key", func(t *testing.T) {
		line := strings.Split(values["APP_KEY"], "\n")[2]
		if got := level(scanText(t, s, `k = "`+line+`"`)); got != policy.Block {
			t.Errorf("level %q", got)
		}
	})
	t.Run("controls", func(t *testing.T) {
		for _, text := range []string{"correct horse/battery", "-----BEGIN TESTING KEY-----", "pw:8cha", ""} {
			if got := scanText(t, s, text); len(got) != 0 {
				t.Errorf("%q: %+v", text, got)
			}
		}
	})
}

func TestNewHeldRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key    []byte
		values map[string]string
		want   string
	}{
		"short value":   {testKey, map[string]string{"TOKEN": "1234567"}, "held value TOKEN has fewer than 8 bytes"},
		"blank value":   {testKey, map[string]string{"TOKEN": "           \n"}, "fewer than 8 bytes"},
		"long value":    {testKey, map[string]string{"TOKEN": strings.Repeat("x", maxHeld+1)}, "more than 65536"},
		"no name":       {testKey, map[string]string{"": "123456789"}, "no name"},
		"short key":     {testKey[:8], map[string]string{"TOKEN": "123456789"}, "at least 16"},
		"without a key": {nil, nil, "at least 16"},
	} {
		if _, err := NewHeld(c.key, c.values); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a scanner without a key is made")
	}
	if _, err := New(Options{Key: testKey, MaxDecoded: -1}); err == nil {
		t.Error("a scanner with a negative budget is made")
	}
}

// TestNothingPrintsValues prints everything in every way.
func TestNothingPrintsValues(t *testing.T) {
	t.Parallel()
	const value = "correct-horse-battery-staple"
	h, err := NewHeld(testKey, map[string]string{"MODEL_KEY": value})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Key: testKey, Held: h})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, v := range []any{h, *h, s, Options{Key: nil, Held: h}} {
		all = append(all, fmt.Sprintf("%v %+v %#v %s", v, v, v, v))
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(j))
	}
	token := ruleset.Expand("ghp_{an:36}", 1)
	findings := scanText(t, s, "a "+value+"\n"+token+"\n"+corpus.Base64(ruleset.Expand("AKIA{AN:16}", 2)+" "+value))
	if len(findings) < 3 {
		t.Fatalf("findings: %+v", findings)
	}
	j, err := json.Marshal(findings)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, string(j), s.Digest(), s.HeldDigest())
	for _, text := range all {
		for _, secret := range []string{value[:6], value[10:16], token[4:10], string(testKey), fmt.Sprintf("%d", testKey)[1:20]} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is in %s", secret, text)
			}
		}
	}
}

func TestDigests(t *testing.T) {
	t.Parallel()
	one := map[string]string{"A": "12345678", "B": "abcdefgh"}
	digest := func(key []byte, v map[string]string) string {
		h, err := NewHeld(key, v)
		if err != nil {
			t.Fatal(err)
		}
		return h.Digest()
	}
	base := digest(testKey, one)
	if base != digest(testKey, map[string]string{"B": "abcdefgh", "A": "12345678"}) {
		t.Error("the digest depends on the order")
	}
	for name, d := range map[string]string{
		"another key":   digest([]byte("another key of some length"), one),
		"another value": digest(testKey, map[string]string{"A": "12345679", "B": "abcdefgh"}),
		"another name":  digest(testKey, map[string]string{"A": "12345678", "C": "abcdefgh"}),
		"moved bytes":   digest(testKey, map[string]string{"A1": "2345678x", "B": "abcdefgh"}),
	} {
		if d == base {
			t.Errorf("%s gives the same digest", name)
		}
	}
	s1, s2 := newScanner(t, nil), newScanner(t, one)
	if s1.Digest() != s2.Digest() || s1.HeldDigest() != "" || s2.HeldDigest() == "" {
		t.Error("the rules' digest depends on held values, or theirs is wrong")
	}
	s3, err := New(Options{Key: testKey, MaxDecoded: 5})
	if err != nil {
		t.Fatal(err)
	}
	if s3.Digest() == s1.Digest() {
		t.Error("the digest does not tell budgets apart")
	}
}
