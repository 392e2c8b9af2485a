// Package credential is the one rule by which kick tells that the name of an
// environment variable, or a value, is a credential. Nothing that it matches
// enters a sandbox: kick.yaml is refused, and so is a kick.
//
// The rule errs towards refusing. Its reach is what can be known by form
// alone; the exact values of credentials that kick itself holds are compared
// elsewhere.
package credential

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// DummyKey is a published placeholder for agents that insist on a key although
// the egress gateway adds the real one outside the sandbox. It is worth
// nothing, so a credential-named variable may have it as its value.
const DummyKey = "kick-dummy-key"

// Names that are credentials, or lead to them, as a whole.
var exactNames = []string{
	"SSH_AUTH_SOCK", "SSH_AGENT_PID", "KUBECONFIG", "NETRC", "PGPASSFILE", "GNUPGHOME",
	"DOCKER_AUTH_CONFIG", "DOCKER_CONFIG", "CLOUDSDK_CONFIG", "AZURE_CONFIG_DIR", "NPM_CONFIG_USERCONFIG",
}

// Parts that make a name a credential wherever they are.
var nameParts = []string{
	"SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY", "API_KEY", "PRIVATE_KEY", "PRIVATEKEY",
	"ACCESS_KEY", "ACCESSKEY", "AUTHTOKEN", "ASKPASS",
}

// Last words that make a name a credential.
var lastWords = []string{"PAT", "PASS", "AUTH", "COOKIE", "JWT", "BEARER"}

// Keys that are none: "KEY" as the last word is a credential otherwise.
var harmlessKeys = []string{"PUBLIC", "CACHE", "SORT", "PRIMARY"}

// IsName reports whether a variable of that name is for a credential, whatever
// its value: *_TOKEN, *SECRET*, *_API_KEY, *PASSWORD*, AWS_*, *_PAT,
// SSH_AUTH_SOCK, npm's _auth and others, in any case and with "-" or "." for
// "_". A number of tokens (MAX_OUTPUT_TOKENS) is none.
func IsName(name string) bool {
	n := strings.NewReplacer("-", "_", ".", "_", ":", "_", "/", "_").Replace(strings.ToUpper(name))
	if slices.Contains(exactNames, n) || strings.HasPrefix(n, "AWS_") {
		return true
	}
	if slices.ContainsFunc(nameParts, func(p string) bool { return strings.Contains(n, p) }) {
		return true
	}
	words := strings.FieldsFunc(n, func(r rune) bool { return r == '_' })
	if len(words) == 0 {
		return false
	}
	counts := slices.Contains(words, "MAX") || slices.Contains(words, "MIN")
	for _, w := range words {
		if strings.HasSuffix(w, "TOKEN") || w == "TOKENS" && !counts {
			return true
		}
	}
	last := words[len(words)-1]
	before := ""
	if len(words) > 1 {
		before = words[len(words)-2]
	}
	switch last {
	case "KEY":
		return !slices.Contains(harmlessKeys, before)
	case "PWD": // MYSQL_PWD, but neither PWD nor the shell's OLDPWD
		return before != ""
	}
	return slices.Contains(lastWords, last)
}

// form is one recognisable kind of credential value.
type form struct {
	kind string
	re   *regexp.Regexp
}

// The forms are those that issuers publish for secret scanning, so that a
// match is a credential and not a guess. Generic entropy is left out: a commit
// id or a digest is a proper value.
var forms = []form{
	{"a GitHub token", regexp.MustCompile(`\bgh[a-z]_[A-Za-z0-9_.-]{16,}|\bgithub_pat_[A-Za-z0-9_]{20,}`)},
	{"a GitLab token", regexp.MustCompile(`\bgl(pat|dt|rt|cbt|ptt|ft|soat|agent|oas)-[A-Za-z0-9_.-]{16,}`)},
	{"an AWS access key", regexp.MustCompile(`\b(AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b`)},
	{"a private key", regexp.MustCompile(`-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY( BLOCK)?-----|AGE-SECRET-KEY-1[A-Z0-9]{20,}`)},
	{"a model provider's key", regexp.MustCompile(`\bsk-[A-Za-z0-9_-]{20,}|\bgsk_[A-Za-z0-9]{30,}|\bxai-[A-Za-z0-9]{30,}|\bhf_[A-Za-z0-9]{30,}`)},
	{"a Google key", regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{35}|\bya29\.[A-Za-z0-9_-]{20,}|\bGOCSPX-[A-Za-z0-9_-]{20,}`)},
	{"a Slack token", regexp.MustCompile(`\bxox[a-z]-[A-Za-z0-9-]{10,}|\bxapp-[0-9]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/T`)},
	{"a package registry's token", regexp.MustCompile(`\bnpm_[A-Za-z0-9]{30,}|\bpypi-[A-Za-z0-9_-]{40,}|\brubygems_[a-f0-9]{40,}|\bdckr_pat_[A-Za-z0-9_-]{20,}`)},
	{"a payment or mail key", regexp.MustCompile(`\b[sr]k_(live|test)_[A-Za-z0-9]{16,}|\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}`)},
	{"a Vault, Terraform, DigitalOcean or Shopify token", regexp.MustCompile(`\bhv[sbr]\.[A-Za-z0-9_-]{20,}|\.atlasv1\.[A-Za-z0-9_=-]{40,}|\bdo[oprt]_v1_[a-f0-9]{40,}|\bshp(at|ca|pa|ss)_[a-fA-F0-9]{30,}`)},
	{"a signed token (JWT)", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.`)},
	{"an authorization header", regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.~=-]{16,}`)},
	{"a password or key in a connection string", regexp.MustCompile(`(?i)\b(password|passwd|pwd|accountkey|sharedaccesskey|sharedaccesssignature|client_?secret|api_?key|access_?token|auth_?token|_auth)\s*=\s*[^\s;&,]{4,}`)},
}

// A user name alone is no credential for ssh, where keys log in, but it is a
// token's usual place for everything else.
var userinfo = regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*)://([^\s/?#@]*)@`)

// LooksLike reports whether the value has the form of a credential. It looks
// through one layer of base64, hex or percent encoding.
func LooksLike(value string) bool { return Kind(value) != "" }

// Kind says what kind of credential the value looks like, in words for a
// message ("a GitHub token"); empty when it looks like none. The answer never
// holds a part of the value.
func Kind(value string) string {
	value = strings.ReplaceAll(value, DummyKey, "")
	if k := plainKind(value); k != "" {
		return k
	}
	for _, d := range decodings(value) {
		if k := plainKind(d); k != "" {
			return "encoded: " + k
		}
	}
	return ""
}

func plainKind(value string) string {
	for _, f := range forms {
		if f.re.MatchString(value) {
			return f.kind
		}
	}
	if !strings.Contains(value, "://") { // the search below is slow on long text
		return ""
	}
	for _, m := range userinfo.FindAllStringSubmatch(value, -1) {
		scheme, user := strings.ToLower(m[1]), m[2]
		ssh := scheme == "ssh" || scheme == "git+ssh" || scheme == "ssh+git"
		if user != "" && (!ssh || strings.Contains(user, ":")) {
			return "a URL with a user name or password in it"
		}
	}
	return ""
}

// decodings returns what the value says when it is read as base64, hex or
// percent encoding.
func decodings(value string) []string {
	var out []string
	if s, err := url.PathUnescape(value); err == nil && s != value {
		out = append(out, s)
	}
	trimmed := strings.TrimSpace(value)
	if len(trimmed) < 20 { // shorter than any form above
		return out
	}
	if b, err := hex.DecodeString(trimmed); err == nil {
		out = append(out, string(b))
	}
	unpadded := strings.TrimRight(trimmed, "=")
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if b, err := enc.DecodeString(unpadded); err == nil {
			out = append(out, string(b))
		}
	}
	return out
}
