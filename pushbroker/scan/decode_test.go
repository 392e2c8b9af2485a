package scan

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
)

// encodings are ways to write a secret other than as it is.
var encodings = map[string]func(s string) string{
	"base64":           func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	"base64 raw":       func(s string) string { return base64.RawStdEncoding.EncodeToString([]byte(s)) },
	"base64 url":       func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) },
	"base64 twice":     func(s string) string { return b64(b64(s)) },
	"base64 at 20":     func(s string) string { return wrap(b64("note: "+s), 20, "\n") },
	"base64 at 76":     func(s string) string { return wrap(b64(strings.Repeat("text ", 30)+s), 76, "\r\n") },
	"base64 indented":  func(s string) string { return wrap(b64(s), 24, "\n    ") },
	"base64 shifted 1": func(s string) string { return "x" + b64(s) },
	"base64 shifted 2": func(s string) string { return "xy" + b64(s) },
	"base64 shifted 3": func(s string) string { return "xyz" + b64(s) },
	"base64 in binary": func(s string) string { return b64("\x00\x01\xfe\xff\x80" + s + "\x00\x9a\xbc") },
	"base64 of gzip":   func(s string) string { return b64(gz(s)) },
	"base64 of utf16":  func(s string) string { return b64(u16(s, false)) },
	"hex":              func(s string) string { return hex.EncodeToString([]byte(s)) },
	"HEX":              func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) },
	"hex of base64":    func(s string) string { return hex.EncodeToString([]byte(b64(s))) },
	"percent":          func(s string) string { return each(s, "%%%02X") },
	"percent one":      func(s string) string { return strings.Replace(s, s[2:3], fmt.Sprintf("%%%02x", s[2]), 1) },
	"\\u":              func(s string) string { return each(s, `\u%04x`) },
	"\\u{}":            func(s string) string { return each(s, `\u{%x}`) },
	"\\U":              func(s string) string { return each(s, `\U%08x`) },
	"\\x":              func(s string) string { return each(s, `\x%02x`) },
	"octal":            func(s string) string { return each(s, `\%03o`) },
	"html":             func(s string) string { return each(s, "&#%d;") },
	"html hex":         func(s string) string { return each(s, "&#x%X;") },
	"utf16 le":         func(s string) string { return "\xff\xfe" + u16(s, false) },
	"utf16 be":         func(s string) string { return "\xfe\xff" + u16(s, true) },
	"utf16 no mark":    func(s string) string { return u16("a line\n"+s+"\n", false) },
	"utf16 in binary":  func(s string) string { return "\x00\x00\x01\x7f\x00\xff" + u16(s, true) + "\x01\x02" },
	"gzip":             gz,
	"gzip behind":      func(s string) string { return "some bytes before" + gz(s) },
	"gzip of gzip":     func(s string) string { return gz(gz(s)) },
	"gzip of base64":   func(s string) string { return gz(b64(s)) },
	"zip":              func(s string) string { return zipped("s.txt", s, zip.Deflate) },
	"zip stored":       func(s string) string { return zipped("s.txt", s, zip.Store) },
	"zip in zip":       func(s string) string { return zipped("inner.jar", zipped("s.txt", s, zip.Deflate), zip.Deflate) },
	"zip behind image": func(s string) string { return "\x89PNG\r\n\x1a\nimage" + zipped("s.txt", s, zip.Deflate) },
	"zip no directory": func(s string) string {
		z := zipped("s.txt", s, zip.Deflate)
		return z[:strings.Index(z, "PK\x01\x02")]
	},
	"zip, base64 inside": func(s string) string { return zipped("s.txt", "data: "+b64(s), zip.Deflate) },
	"zero width":         func(s string) string { return strings.Join(strings.Split(s, ""), "\u200b") },
	"soft hyphen":        func(s string) string { return s[:6] + "\u00ad" + s[6:] },
	"word joiner":        func(s string) string { return s[:9] + "\u2060\ufeff" + s[9:] },
	"joined go":          func(s string) string { return `v := "` + s[:7] + `" + "` + s[7:] + `"` },
	"joined three":       func(s string) string { return `v := "` + s[:5] + `" + "` + s[5:11] + "\" +\n\t\"" + s[11:] + `"` },
	"joined c":           func(s string) string { return `char *v = "` + s[:7] + `" "` + s[7:] + `";` },
	"joined php":         func(s string) string { return `$v = '` + s[:7] + `' . '` + s[7:] + `';` },
	"joined lines":       func(s string) string { return "v = (\"" + s[:7] + "\"\n     \"" + s[7:] + "\")" },
	"joined lua":         func(s string) string { return `v = "` + s[:7] + `" .. "` + s[7:] + `"` },
	"joined backslash":   func(s string) string { return "v = \"" + s[:7] + "\" \\\n  \"" + s[7:] + "\"" },
	"joined base64":      func(s string) string { e := b64(s); return `v := "` + e[:13] + `" + "` + e[13:] + `"` },
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func wrap(s string, at int, sep string) string {
	var lines []string
	for len(s) > at {
		lines, s = append(lines, s[:at]), s[at:]
	}
	return strings.Join(append(lines, s), sep)
}

func each(s, format string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}

func u16(s string, big bool) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		if big {
			b = append(b, byte(u>>8), byte(u))
		} else {
			b = append(b, byte(u), byte(u>>8))
		}
	}
	return string(b)
}

func gz(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte(s))
	w.Close()
	return b.String()
}

func zipped(name, content string, method uint16) string {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: method})
	if err != nil {
		panic(err)
	}
	f.Write([]byte(content))
	w.Close()
	return b.String()
}

// secrets are shapes of several kinds.
var secrets = map[string]string{
	"github":       "ghp_{an:36}",
	"installation": "ghs_{d:6}_eyJ{an:30}.eyJ{an:60}.{u:43}",
	"aws":          "AKIA{AN:16}",
	"slack":        "xoxb-{d:12}-{d:12}-{an:24}",
	"anthropic":    "sk-ant-api03-{u:93}AA",
	"url":          "https://bot:{an:20}@git.acme.io/x",
}

// TestDecodes writes each secret in each encoding, alone and within a file of
// source, and wants it found in the line in which it stands.
func TestDecodes(t *testing.T) {
	t.Parallel()
	s := newScanner(t, nil)
	before := strings.Repeat("package main // some text\n", 7)
	for name, encode := range encodings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kind, template := range secrets {
				for seed := range uint64(4) {
					encoded := encode(ruleset.Expand(template, seed))
					if got := level(scanText(t, s, encoded)); got != policy.Block {
						t.Errorf("%s: level %q of %.200q", kind, got, encoded)
					}
					if strings.HasPrefix(name, "zip") {
						continue // a zip archive is a file of its own
					}
					findings := scanText(t, s, before+"data = "+encoded+" ;\nmore text\n")
					if level(findings) != policy.Block {
						t.Errorf("%s within text: level %q of %.200q", kind, level(findings), encoded)
					} else if findings[0].Line < 8 || findings[0].Line > 8+strings.Count(encoded, "\n") {
						t.Errorf("%s within text: line %d, want 8", kind, findings[0].Line)
					}
				}
			}
		})
	}
}

// TestControlsPass holds texts that are full of what looks encoded or random
// and is nothing to refuse.
func TestControlsPass(t *testing.T) {
	t.Parallel()
	s := newScanner(t, nil)
	for name, text := range map[string]string{
		"digest and uuid": "image: registry.example.com/app@sha256:" + ruleset.Expand("{hex:64}", 1) + "\nrun: 6fa459ea-ee8a-3ca4-894e-db77e160355e\n",
		"go.sum":          strings.Repeat(ruleset.Expand("golang.org/x/net v0.1.0 h1:{b64:43}=\n", 3), 50),
		"lock file":       `"integrity": "sha512-` + ruleset.Expand("{b64:86}", 4) + `=="`,
		"svg":             `<path d="M12.5,3.75l-4.25,8.5h8.5z"/><image href="data:image/png;base64,` + b64("\x89PNG\r\n\x1a\n"+strings.Repeat("\x00\xff\x81", 300)) + `"/>`,
		"certificate":     "-----BEGIN CERTIFICATE-----\n" + wrap(ruleset.Expand("{b64:1200}", 5), 64, "\n") + "\n-----END CERTIFICATE-----\n",
		"public key":      "ssh-ed25519 " + ruleset.Expand("AAAAC3NzaC1lZDI1NTE5AAAAI{b64:43}", 6) + " me@host",
		"variables":       "token: ${{ secrets.GITHUB_TOKEN }}\nurl: https://x-access-token:${TOKEN}@github.com/a/b\npassword: $PASSWORD\n",
		"printf":          `fmt.Printf("%02x %d%% of %s\n", a, b, c)`,
		"commit":          "tree " + ruleset.Expand("{hex:40}", 7) + "\nparent " + ruleset.Expand("{hex:40}", 8) + "\nauthor A <a@b.c> 1 +0000\n\nfix the token parser\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, f := range scanText(t, s, text) {
				if f.Level != policy.Report {
					t.Errorf("%s %s: %s", f.Level, f.Rule, f.Excerpt)
				}
			}
		})
	}
}

// TestDocumentedExamples are values that vendors publish.
func TestDocumentedExamples(t *testing.T) {
	t.Parallel()
	s := newScanner(t, nil)
	for _, text := range []string{
		"AKIAIOSFODNN7" + "EXAMPLE", "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY",
		"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIn0" + ".SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
		"xoxb-not-a-real-token", "https://user:password@example.com/", "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
	} {
		if got := level(scanText(t, s, text)); got == policy.Block || got == policy.Review {
			t.Errorf("level %q of %q", got, text)
		}
	}
	// Text after a token does not make it an example.
	for _, after := range []string{"EXAMPLE", "_example", "-placeholder", "xxxxxxxxxxxx"} {
		for _, template := range []string{"ghp_{an:36}", "sk-ant-api03-{u:93}AA", "ghs_{d:6}_eyJ{an:60}.{u:43}"} {
			if got := level(scanText(t, s, ruleset.Expand(template, 9)+after)); got != policy.Block {
				t.Errorf("level %q of %s%s", got, template, after)
			}
		}
	}
}

// TestBudgets wants hostile items to end in time, and to say that they were
// not searched to their end.
func TestBudgets(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef")
	bomb := gz(strings.Repeat("\x00", 64<<20))
	var members bytes.Buffer
	z := zip.NewWriter(&members)
	for i := range maxMembers + 1 {
		if _, err := z.Create(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	z.Close()
	for _, c := range []struct {
		name, text string
		o          Options
	}{
		{"gzip bomb", bomb, Options{Key: key, MaxDecoded: 1 << 20}},
		{"zip bomb", zipped("a", strings.Repeat("a", 8<<20), zip.Deflate), Options{Key: key, MaxDecoded: 1 << 20}},
		{"zip of many", members.String(), Options{Key: key}},
		{"no time", strings.Repeat("api_key = \"a1b2c3d4e5f6a7b8c9\" ", 200_000), Options{Key: key, Timeout: time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := New(c.o)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			findings := scanText(t, s, c.text)
			if d := time.Since(begin); d > 20*time.Second {
				t.Errorf("took %v", d)
			}
			last := findings[len(findings)-1]
			if last.Rule != "decode-budget" || last.Level != policy.Review {
				t.Errorf("the last finding is %+v, want decode-budget at review level", last)
			}
		})
	}
	s := newScanner(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Text(ctx, []byte(strings.Repeat("ghp_"+strings.Repeat("a", 40)+" ", 5000))); err == nil {
		t.Error("a scan whose context has ended gives no error")
	}
}

// TestHostileTime wants items that were made to cost time to end by the
// budget: each is 2 MiB of what some part of the scanner finds hardest.
func TestHostileTime(t *testing.T) {
	t.Parallel()
	const budget = 2 * time.Second
	s, err := New(Options{Key: testKey, Timeout: budget})
	if err != nil {
		t.Fatal(err)
	}
	var anchors strings.Builder
	for i := range ruleTable {
		for _, a := range ruleTable[i].anchors {
			anchors.WriteString(a.lit + "=a1b2c3d4e5f6a7b8c9d0")
		}
	}
	pem := "-----BEGIN " + "PRIV" + "ATE KEY-----"
	for name, unit := range map[string]string{
		"every anchor on one line": anchors.String(), "jwt": ".eyJaaaaaaaaaaaaaaaaaa", "curl": "curl ", "curl lines": "curl -u a\n",
		"names": "api_key=", "values": "key=a1b2c3d4e5f6a7b8c9d0 ", "hex values": "key=" + strings.Repeat("0a", 20) + "\n",
		"pem": pem, "pem bodies": pem + strings.Repeat("Ab1", 300), "users": "://a:", "passwords": "://a:b1c2d3e4f5@",
		"joined": `"a" + `, "quotes": `"`, "spaced quotes": `" `, "percent": "%41", "escapes": `\u0041`, "backslashes": `\`,
		"zero width": "a\u200b", "utf16": "a\x00", "zeros": "\x00", "gzip magic": "\x1f\x8b\x08", "zip magic": "PK\x03\x04",
		"base64 lines": strings.Repeat("QUJD", 19) + "\n", "base64 letters": "Z2hw", "short lines": "QUJDRUZH\n", "hex letters": "67",
		"kind secret": "kind: secret data: ", "nothing": "x ", "newlines": "\n",
	} {
		t.Run(name, func(t *testing.T) {
			text := []byte(strings.Repeat(unit, 2<<20/len(unit)+1))
			begin, before := time.Now(), cpu(t)
			if _, err := s.Text(context.Background(), text); err != nil {
				t.Fatal(err)
			}
			t.Logf("%v, process CPU %v", time.Since(begin), cpu(t)-before)
			// Wall time is the machine's; 20 times the budget is a run-away.
			if d := time.Since(begin); d > 20*budget {
				t.Errorf("took %v of a budget of %v", d, budget)
			}
		})
	}
}
