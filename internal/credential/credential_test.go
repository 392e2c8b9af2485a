package credential

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"
)

func TestIsName(t *testing.T) {
	t.Parallel()
	credentials := []string{
		"GITHUB_TOKEN", "github_token", "Gh_Token", "NPM_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL", "GITHUB_TOKENS", "TOKEN", "MYTOKEN",
		"HIVE_HUB_SECRET", "client-secret", "SECRETS_DIR", "ANTHROPIC_API_KEY", "openai_apikey", "OPENAI_KEY", "PGPASSWORD", "db.password",
		"MYSQL_PWD", "DB_PASS", "SSH_PASSPHRASE", "AWS_REGION", "aws_access_key_id", "AWS_PROFILE", "SSH_AUTH_SOCK", "ssh_auth_sock",
		"KUBECONFIG", "GOOGLE_APPLICATION_CREDENTIALS", "GIT_ASKPASS", "NPM_CONFIG__AUTH", "npm_config_//registry.example/:_authToken",
		"GITHUB_PAT", "AZURE_DEVOPS_EXT_PAT", "PAT", "DOCKER_AUTH_CONFIG", "NETRC", "SESSION_COOKIE", "CI_JOB_JWT", "SIGNING_KEY",
	}
	for _, name := range credentials {
		if !IsName(name) {
			t.Errorf("IsName(%q) = false, want true", name)
		}
	}
	harmless := []string{
		"", "_", "PATH", "HOME", "PWD", "OLDPWD", "LANG", "CI", "GOFLAGS", "NODE_ENV", "MAX_OUTPUT_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
		"TOKENIZERS_PARALLELISM", "PUBLIC_KEY", "CACHE_KEY", "KEYBOARD", "COMPASS", "PATTERN", "PASSES", "AUTHOR", "GIT_AUTHOR_NAME",
		"HTTP_PROXY", "MONKEY",
	}
	for _, name := range harmless {
		if IsName(name) {
			t.Errorf("IsName(%q) = true, want false", name)
		}
	}
}

// The samples are put together at run time so that no scanner takes this file
// for a leak.
var (
	letters = strings.Repeat("aB3dE5gH", 6)
	samples = map[string]string{
		"GitHub classic":       "ghp_" + letters[:36],
		"GitHub app, new form": "ghs_" + "12345_eyJ" + letters + "." + letters,
		"GitHub fine-grained":  "github" + "_pat_" + letters,
		"GitLab":               "glpat-" + letters[:20],
		"AWS":                  "AKIA" + "IOSFODNN7EXAMPLE",
		"private key":          "-----BEGIN " + "OPENSSH PRIVATE KEY-----\nabc",
		"PGP key":              "-----BEGIN " + "PGP PRIVATE KEY BLOCK-----\nabc",
		"Anthropic":            "sk-" + "ant-api03-" + letters,
		"OpenAI":               "sk-" + "proj-" + letters,
		"Google":               "AIza" + letters[:35],
		"Slack":                "xoxb-" + "123456789012-" + letters[:12],
		"npm":                  "npm_" + letters[:36],
		"PyPI":                 "pypi-" + letters,
		"Stripe":               "sk_live_" + letters[:24],
		"Vault":                "hvs." + letters[:24],
		"JWT":                  "eyJ" + letters[:20] + ".eyJ" + letters[:20] + ".sig",
		"bearer":               "Authorization: Bearer " + letters,
		"connection string":    "Server=db;Password=" + "hunter22;",
		"proxy with password":  "http://user:" + "hunter2@proxy:3128",
		"token in URL":         "https://" + letters + "@github.com/acme/api",
		"redis":                "redis://:" + "hunter2@cache:6379/0",
		"ssh with password":    "ssh://git:" + "hunter2@example.org/r",
		"second of two URLs":   "http://a.example http://u:" + "p@b.example",
	}
)

func TestLooksLike(t *testing.T) {
	t.Parallel()
	for name, v := range samples {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kind := Kind(v)
			if kind == "" {
				t.Fatalf("not recognised")
			}
			if strings.Contains(kind, letters[:8]) || strings.Contains(kind, "hunter2") {
				t.Errorf("the kind %q repeats the value", kind)
			}
		})
	}
	for name, encode := range map[string]func(string) string{
		"base64":     func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"base64 url": func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) },
		"hex":        func(s string) string { return hex.EncodeToString([]byte(s)) },
		"percent":    func(s string) string { return url.QueryEscape("ssh://git:" + s + "@h/x") },
	} {
		if v := encode(samples["GitHub classic"]); !LooksLike(v) {
			t.Errorf("%s of a token is not recognised", name)
		}
	}
}

func TestLooksLikeMisses(t *testing.T) {
	t.Parallel()
	for _, v := range []string{
		"", "1", "true", "en_US.UTF-8", DummyKey, "Bearer " + DummyKey, "http://proxy:3128", "https://example.org/@scope/pkg", "ssh://git@github.com/acme/api",
		"git@github.com:acme/api.git", "ghcr.io/example/hive-agent:latest", "c723cd2a4f5e6d7c8b9a0f1e2d3c4b5a69788776", "--max-tokens=4096",
		"sha256:" + strings.Repeat("ab", 32), "/usr/local/bin:/usr/bin", "basic auth is off", "ghost_writer", "sk-learn", "100%",
	} {
		if k := Kind(v); k != "" {
			t.Errorf("Kind(%q) = %q, want none", v, k)
		}
	}
}

func FuzzKind(f *testing.F) {
	for _, v := range samples {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		_ = Kind(v)
		if IsName(v) != IsName(strings.ToLower(v)) && isASCII(v) {
			t.Errorf("IsName(%q) depends on case", v)
		}
	})
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > 127 }) < 0
}
