package scan

import (
	"strings"
	"testing"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/scan/internal/corpus"
	"github.com/kickhq/kick/pushbroker/scan/internal/ruleset"
)

// TestDisguises wants tokens whose form tells them to be found in each disguise,
// alone, within text, encoded, and in a private key.
func TestDisguises(t *testing.T) {
	t.Parallel()
	s := newScanner(t, nil)
	for name, write := range map[string]func(string) string{
		"reversed":                   reversed.of,
		"rot13":                      rotated.of,
		"reversed, base64":           func(s string) string { return corpus.Base64(reversed.of(s)) },
		"split over two lines":       func(s string) string { return s[:9] + "\n" + s[9:] },
		"split over comments":        func(s string) string { return "# " + s[:10] + "\n# " + s[10:] },
		"split in a list":            func(s string) string { return `["` + s[:10] + "\",\n  \"" + s[10:] + `"]` },
		"split, windows line ends":   func(s string) string { return s[:9] + "\r\n" + s[9:] },
		"split, then base64":         func(s string) string { return corpus.Base64(s[:10] + "\n" + s[10:]) },
		"rot13, then joined strings": func(s string) string { s = rotated.of(s); return `"` + s[:8] + `" + "` + s[8:] + `"` },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kind, template := range secrets {
				if kind == "url" {
					continue // it has no form of its own
				}
				for seed := range uint64(4) {
					text := write(ruleset.Expand(template, seed))
					for _, text := range []string{text, "some text\nv = " + text + " ;\nmore text\n"} {
						if got := level(scanText(t, s, text)); got != policy.Block {
							t.Errorf("%s: level %q of %.200q", kind, got, text)
						}
					}
				}
			}
		})
	}
	key := ruleset.Expand("-----BEGIN RSA PRIV{}ATE KEY-----\n{b64:64}\n{b64:64}\n-----END RSA PRIV{}ATE KEY-----\n", 1)
	for _, d := range disguises {
		if got := level(scanText(t, s, d.of(key))); got != policy.Block {
			t.Errorf("a key, %s: level %q", disguiseNames[d], got)
		}
	}
}

// TestDisguisesPass holds what begins as a token does and is none.
func TestDisguisesPass(t *testing.T) {
	t.Parallel()
	s := newScanner(t, nil)
	for _, text := range []string{
		"AKIA\nALABAMA\nALASKA\nARIZONA\nARKANSAS\nCALIFORNIA\n", // words in capitals, a line each
		"the prefix ghp_\nis that of classic tokens, gho_\nthat of OAuth\n",
		"\"AKIA\",\n\"ASIA\",\n\"AROA\",\n\"AIDA\",\n\"ANPA\",\n",
		strings.Repeat("xAIKA is no word\n", 20), strings.Repeat("tuc_ neither\n", 20),
	} {
		if found := scanText(t, s, text); len(found) > 0 {
			t.Errorf("%q: %+v", text, found)
		}
	}
}
