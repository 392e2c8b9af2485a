package scan

import (
	"archive/zip"
	"context"
	"strings"
	"testing"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/scan/internal/corpus"
	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
)

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
	for _, e := range corpus.Encodings {
		name, encode := e.Name, e.Encode
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

// TestQuotedPrintable breaks lines where encoders do: between words, and often
// within a long value.
func TestQuotedPrintable(t *testing.T) {
	t.Parallel()
	s := newScanner(t, nil)
	for _, text := range []string{
		ruleset.Expand("{az:40} machine git.acme.io =\nlogin bot password {an:20}", 1),
		ruleset.Expand("{az:60} machine git.acme.io login=\r\n bot password {an:20}", 2),
		corpus.Quoted(ruleset.Expand("{az:70} ops_eyJ{b64:300}", 3)),
	} {
		if got := level(scanText(t, s, text+"\n")); got != policy.Block {
			t.Errorf("level %q of %q", got, text)
		}
	}
}

// TestControlsPass holds texts that are full of what looks encoded or random
// and is nothing to refuse.
func TestControlsPass(t *testing.T) {
	t.Parallel()
	s := newScanner(t, nil)
	for name, text := range map[string]string{
		"digest and uuid":          "image: registry.example.com/app@sha256:" + ruleset.Expand("{hex:64}", 1) + "\nrun: 6fa459ea-ee8a-3ca4-894e-db77e160355e\n",
		"go.sum":                   strings.Repeat(ruleset.Expand("golang.org/x/net v0.1.0 h1:{b64:43}=\n", 3), 50),
		"sum of a module named so": ruleset.Expand("golang.org/x/oauth2 v0.30.0 h1:{b64:43}=\nexample.com/token v1.2.3 h1:{b64:43}=\n", 4),
		"list of values":           ruleset.Expand("\t\"{AN:12}APIKEY{AN:8}\",\n\t\"{AN:26}\",\n", 5),
		"names of keys":            "PrivateKey = testRSAPSS2048PrivateKey\nkeys: NewEncapsulationKey768\napi: pkg/apis/core/v1alpha\n",
		"lock file":                `"integrity": "sha512-` + ruleset.Expand("{b64:86}", 4) + `=="`,
		"svg":                      `<path d="M12.5,3.75l-4.25,8.5h8.5z"/><image href="data:image/png;base64,` + corpus.Base64("\x89PNG\r\n\x1a\n"+strings.Repeat("\x00\xff\x81", 300)) + `"/>`,
		"certificate":              "-----BEGIN CERTIFICATE-----\n" + corpus.Wrap(ruleset.Expand("{b64:1200}", 5), 64, "\n") + "\n-----END CERTIFICATE-----\n",
		"public key":               "ssh-ed25519 " + ruleset.Expand("AAAAC3NzaC1lZDI1NTE5AAAAI{b64:43}", 6) + " me@host",
		"variables":                "token: ${{ secrets.GITHUB_TOKEN }}\nurl: https://x-access-token:${TOKEN}@github.com/a/b\npassword: $PASSWORD\n",
		"printf":                   `fmt.Printf("%02x %d%% of %s\n", a, b, c)`,
		"commit":                   "tree " + ruleset.Expand("{hex:40}", 7) + "\nparent " + ruleset.Expand("{hex:40}", 8) + "\nauthor A <a@b.c> 1 +0000\n\nfix the token parser\n",
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

// TestGenericRule wants what gitleaks finds by its generic rule, which our
// checks are stricter than: a sample of the corpus holds too few of them.
func TestGenericRule(t *testing.T) {
	t.Parallel()
	shapes, err := corpus.Shapes()
	if err != nil {
		t.Fatal(err)
	}
	s := newScanner(t, nil)
	planted, found := 0, 0
	for _, shape := range shapes {
		if shape.Rule != "generic-api-key" {
			continue
		}
		for seed := range uint64(400) {
			text := shape.Draw(seed)
			if text == "" {
				continue
			}
			planted++
			if len(scanText(t, s, text+"\n")) > 0 {
				found++
			} else {
				t.Logf("missed: %q", text)
			}
		}
	}
	if planted < 300 || found*1000 < planted*995 {
		t.Errorf("of %d values we find %d", planted, found)
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

// TestBudgets wants the search of hostile items to end, and to say that they
// were not searched to their end.
func TestBudgets(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef")
	bytes64 := strings.Repeat("\x00", 64<<20)
	token := ruleset.Expand("ghp_{an:36}", 1)
	for _, c := range []struct {
		name, text, rule string
		level            policy.Level
		o                Options
	}{
		{"gzip bomb", corpus.Gzip(bytes64), "not-searched", policy.Block, Options{Key: key, MaxDecoded: 1 << 20}},
		{"zip bomb", corpus.Zip("a", bytes64[:8<<20], zip.Deflate), "not-searched", policy.Block, Options{Key: key, MaxDecoded: 1 << 20}},
		{"zstd bomb", corpus.Zstd(bytes64), "not-searched", policy.Block, Options{Key: key, MaxDecoded: 1 << 20}},
		{"xz bomb", corpus.XZ(bytes64), "not-searched", policy.Block, Options{Key: key, MaxDecoded: 1 << 20}},
		{"many magics, then a token", strings.Repeat("\x1f\x8b\x08", 100_000) + corpus.Gzip(token), "not-searched", policy.Block, Options{Key: key, MaxDecoded: 1 << 20}},
		{"much to match", strings.Repeat("api_key = \"a1b2c3d4e5f6a7b8c9\" ", 20_000), "not-searched", policy.Block, Options{Key: key, MaxMatched: 1 << 16}},
		{"encrypted zip", encrypted(corpus.Zip("a", token, zip.Deflate)), "opaque-archive", policy.Review, Options{Key: key}},
		{"bzip2", "BZh91AY&SY\x5f\x50\x75\x4f\x00", "opaque-archive", policy.Review, Options{Key: key}},
		{"7z", "7z\xbc\xaf\x27\x1c\x00\x04", "opaque-archive", policy.Review, Options{Key: key}},
		{"rar in gzip", corpus.Gzip("Rar!\x1a\x07\x01\x00"), "opaque-archive", policy.Review, Options{Key: key}},
		{"lz4 in zip", corpus.Zip("a", "\x04\x22\x4d\x18\x64\x40\xa7", zip.Deflate), "opaque-archive", policy.Review, Options{Key: key}},
		{"window of 128 MiB", corpus.Filter("xz", token, "--lzma2=dict=128MiB"), "opaque-archive", policy.Review, Options{Key: key}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, err := New(c.o)
			if err != nil {
				t.Fatal(err)
			}
			findings := scanText(t, s, c.text)
			if len(findings) == 0 {
				t.Fatal("no finding")
			}
			last := findings[len(findings)-1]
			if last.Rule != c.rule || last.Level != c.level || last.Fingerprint == "" {
				t.Errorf("the last finding is %+v, want %s at level %s", last, c.rule, c.level)
			}
		})
	}
	s := newScanner(t, nil)
	for _, text := range []string{"BZh9 is how bzip2 begins\n", "see 7z\xbc\xaf\x27\x1c\n", "MSCF\n"} {
		if found := scanText(t, s, text); len(found) > 0 {
			t.Errorf("%q: %+v", text, found)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Text(ctx, []byte(strings.Repeat("ghp_"+strings.Repeat("a", 40)+" ", 5000))); err == nil {
		t.Error("a scan whose context has ended gives no error")
	}
}

// encrypted sets the bit that says so in the header of an archive's first member.
func encrypted(archive string) string {
	b := []byte(archive)
	b[6] |= 1
	return string(b)
}

// TestManyMagics wants the one stream among many that only begin as streams do.
func TestManyMagics(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("\x1f\x8b\x08PK\x03\x04\xfd7zXZ\x00\x28\xb5\x2f\xfd", 1000) + corpus.Gzip(ruleset.Expand("ghp_{an:36}", 1))
	if got := level(scanText(t, newScanner(t, nil), text)); got != policy.Block {
		t.Errorf("level %q", got)
	}
}

// hostile are units of what some part of the scanner finds hardest.
func hostile() map[string]string {
	var anchors strings.Builder
	for i := range ruleTable {
		for _, a := range ruleTable[i].anchors {
			anchors.WriteString(a.lit + "=a1b2c3d4e5f6a7b8c9d0")
		}
	}
	pem := "-----BEGIN " + "PRIV" + "ATE KEY-----"
	return map[string]string{
		"every anchor on one line": anchors.String(), "jwt": ".eyJaaaaaaaaaaaaaaaaaa", "curl": "curl ", "curl lines": "curl -u a\n",
		"names": "api_key=", "values": "key=a1b2c3d4e5f6a7b8c9d0 ", "hex values": "key=" + strings.Repeat("0a", 20) + "\n",
		"pem": pem, "pem bodies": pem + strings.Repeat("Ab1", 300), "users": "://a:", "passwords": "://a:b1c2d3e4f5@",
		"joined": `"a" + `, "quotes": `"`, "spaced quotes": `" `, "percent": "%41", "escapes": `\u0041`, "backslashes": `\`,
		"zero width": "a\u200b", "utf16": "a\x00", "zeros": "\x00", "gzip magic": "\x1f\x8b\x08", "zip magic": "PK\x03\x04",
		"xz magic": "\xfd7zXZ\x00", "xz": corpus.XZ("a"), "zstd": corpus.Zstd("a"), "gzip": corpus.Gzip("a"),
		"base64 lines": strings.Repeat("QUJD", 19) + "\n", "base64 letters": "Z2hw", "short lines": "QUJDRUZH\n", "hex letters": "67",
		"decimals": "65,", "hex list": "41 ", "chars": "'A',", "dump": "00000010: 4142 4344 4142 4344 4142 4344 4142 4344  ABCDABCDABCDABCD\n",
		"quoted-printable": "=41=42", "soft breaks": "ab=\n", "continued lines": "ab\\\n", "base85": "87cURD]i,\"Ebo80", "base85 words": "87cURD]i,\"Ebo80AKYi4AKYi4 ",
		"base32 letters": "MFRGGZDF", "binary digits": "01000001", "utf32": "a\x00\x00\x00", "full width": "\uff41", "entities": "&lowbar;",
		"zlib magic": "x\x9c", "zlib": corpus.Zlib("a"), "reversed": "0123456789012345678901234567890123456789_phg", "reversed keys": "-----YEK ETAVIRP NIGEB-----",
		"rot13": "tuc_0123456789012345678901234567890123456789", "split": "ghp_\n# ", "split values": "ghp_0123456789a\n",
		"kind secret": "kind: secret data: ", "nothing": "x ", "newlines": "\n",
	}
}

// TestHostile wants the search of 2 MiB of each to end, within the budget or
// with a finding that says that it was not enough. What it costs is in
// BenchmarkHostile.
func TestHostile(t *testing.T) {
	t.Parallel()
	const most = 32 << 20
	s, err := New(Options{Key: testKey, MaxDecoded: most, MaxMatched: most})
	if err != nil {
		t.Fatal(err)
	}
	for name, unit := range hostile() {
		t.Run(name, func(t *testing.T) {
			findings := scanText(t, s, strings.Repeat(unit, 2<<20/len(unit)+1))
			t.Logf("%d findings, the gravest %q", len(findings), level(findings))
		})
	}
}
