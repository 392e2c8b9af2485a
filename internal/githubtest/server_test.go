package githubtest_test

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	jwt "github.com/golang-jwt/jwt/v4"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

func appJWT(t *testing.T, s *githubtest.Server, change func(*jwt.RegisteredClaims)) string {
	t.Helper()
	block, _ := pem.Decode(s.PrivateKey())
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	claims := jwt.RegisteredClaims{
		Issuer: strconv.Itoa(githubtest.AppID), IssuedAt: jwt.NewNumericDate(time.Now().Add(-30 * time.Second)), ExpiresAt: jwt.NewNumericDate(time.Now().Add(2 * time.Minute)),
	}
	if change != nil {
		change(&claims)
	}
	text, err := jwt.NewWithClaims(jwt.SigningMethodRS256, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAppTokenIsVerified(t *testing.T) {
	t.Parallel()
	s := githubtest.Start(t, githubtest.Options{})
	for name, tc := range map[string]struct {
		token string
		want  int
	}{
		"good":           {appJWT(t, s, nil), 200},
		"other issuer":   {appJWT(t, s, func(c *jwt.RegisteredClaims) { c.Issuer = "7" }), 401},
		"made later":     {appJWT(t, s, func(c *jwt.RegisteredClaims) { c.IssuedAt = jwt.NewNumericDate(time.Now().Add(5 * time.Minute)) }), 401},
		"expired":        {appJWT(t, s, func(c *jwt.RegisteredClaims) { c.ExpiresAt = jwt.NewNumericDate(time.Now().Add(-time.Second)) }), 401},
		"too long":       {appJWT(t, s, func(c *jwt.RegisteredClaims) { c.ExpiresAt = jwt.NewNumericDate(time.Now().Add(time.Hour)) }), 401},
		"unsigned":       {unsigned(t), 401},
		"shared secret":  {hmac(t, s), 401},
		"none":           {"", 401},
		"not a token":    {"x.y.z", 401},
		"signature lost": {strings.TrimRight(appJWT(t, s, nil), "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"), 401},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, body := get(t, s.API()+"app", tc.token); got != tc.want {
				t.Errorf("status %d, want %d: %s", got, tc.want, body)
			}
		})
	}
}

func unsigned(t *testing.T) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{"iss": "1001"}).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// hmac signs with the public key as shared secret, an old attack.
func hmac(t *testing.T, s *githubtest.Server) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"iss": "1001"}).SignedString(s.PrivateKey())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestGitRules pushes with plain git and looks at what the server says.
func TestGitRules(t *testing.T) {
	t.Parallel()
	s := githubtest.Start(t, githubtest.Options{})
	src := sample(t)
	repo := s.MustAddRepo(t, "acme", "api", githubtest.RepoOptions{From: src})
	other := s.MustAddRepo(t, "acme", "other", githubtest.RepoOptions{From: src})
	for _, err := range []error{
		repo.Protect("main"), repo.AddRule("refs/heads/signed/*", "Commits must have verified signatures."), repo.PushProtection(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	app := &githubapp.App{ID: githubtest.AppID, PrivateKey: s.PrivateKey(), BaseURL: s.API()}
	mint := func(p githubapp.Permissions) string {
		tok, err := app.Mint(t.Context(), githubapp.Request{Owner: "acme", Repo: "api", Permissions: p})
		if err != nil {
			t.Fatal(err)
		}
		return tok.Value()
	}
	write, read := mint(githubapp.Permissions{"contents": "write"}), mint(githubapp.Permissions{"contents": "read"})
	owner := s.UserToken("olga", githubtest.Permissions{"contents": "write"}, repo)
	if err := os.MkdirAll(filepath.Join(src, ".github/workflows"), 0o755); err != nil {
		t.Fatal(err)
	}
	commit := func(branch, path, content string) {
		gitIn(t, src, "checkout", "-q", "-B", branch, "main")
		if err := os.WriteFile(filepath.Join(src, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		gitIn(t, src, "add", path)
		gitIn(t, src, "commit", "-q", "-m", branch)
	}
	commit("plain", "a", "a\n")
	commit("workflow", ".github/workflows/ci.yml", "on: push\n")
	commit("secret", "conf", "one\nkey = AKIA"+"IOSFODNN7EXAMPLQ\n")

	for name, tc := range map[string]struct {
		token, repo, branch, to string
		want                    []string // empty: accepted
	}{
		"good":               {write, repo.FullName(), "plain", "good", nil},
		"owner's":            {owner, repo.FullName(), "plain", "by-olga", nil},
		"read token":         {read, repo.FullName(), "plain", "x", []string{"403", "Permission to acme/api.git denied to kick-app[bot]."}},
		"other repository":   {write, other.FullName(), "plain", "x", []string{"Repository not found."}},
		"unknown token":      {"ghs_none", repo.FullName(), "plain", "x", []string{"Invalid username or token", "Authentication failed"}},
		"protected":          {write, repo.FullName(), "plain", "main", []string{"GH006: Protected branch update failed for refs/heads/main", "[remote rejected]", "(protected branch hook declined)"}},
		"ruleset":            {write, repo.FullName(), "plain", "signed/x", []string{"GH013: Repository rule violations found for refs/heads/signed/x", "- Commits must have verified signatures.", "(push declined due to repository rule violations)"}},
		"workflow":           {write, repo.FullName(), "workflow", "x", []string{"(refusing to allow a GitHub App to create or update workflow `.github/workflows/ci.yml` without `workflows` permission)"}},
		"workflow by person": {owner, repo.FullName(), "workflow", "x", []string{"(refusing to allow a Personal Access Token to create or update workflow `.github/workflows/ci.yml` without `workflow` scope)"}},
		"secret":             {write, repo.FullName(), "secret", "x", []string{"GITHUB PUSH PROTECTION", "Push cannot contain secrets", "Amazon AWS Access Key ID", "path: conf:2"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := runGit(src, "push", "-q", withPassword(s.URL()+"/"+tc.repo+".git", tc.token), tc.branch+":refs/heads/"+tc.to)
			if (err == nil) != (len(tc.want) == 0) {
				t.Fatalf("push: %v\n%s", err, out)
			}
			for _, w := range tc.want {
				if !strings.Contains(out, w) {
					t.Errorf("%q is not in the answer:\n%s", w, out)
				}
			}
			if got := repo.Ref("refs/heads/" + tc.to); len(tc.want) == 0 && got != gitIn(t, src, "rev-parse", tc.branch) {
				t.Errorf("branch is at %q", got)
			} else if len(tc.want) > 0 && tc.to == "x" && got != "" {
				t.Errorf("refused push made the branch")
			}
		})
	}
	for _, r := range s.Requests() {
		if strings.Contains(r.Token+r.Path+r.Query, write) {
			t.Fatal("the request log holds a token")
		}
	}
}

func TestTokensExpire(t *testing.T) {
	t.Parallel()
	s := githubtest.Start(t, githubtest.Options{})
	s.MustAddRepo(t, "acme", "api", githubtest.RepoOptions{})
	app := &githubapp.App{ID: githubtest.AppID, PrivateKey: s.PrivateKey(), BaseURL: s.API()}
	tok, err := app.Mint(t.Context(), githubapp.Request{Owner: "acme", Repo: "api", Permissions: githubapp.Permissions{"contents": "read"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := get(t, s.API()+"repos/acme/api", tok.Value()); got != 200 {
		t.Fatalf("status %d with a fresh token", got)
	}
	s.ExpireAll()
	if got, _ := get(t, s.API()+"repos/acme/api", tok.Value()); got != 401 {
		t.Errorf("status %d with an expired token, want 401", got)
	}
}

func TestPullPage(t *testing.T) {
	t.Parallel()
	s := githubtest.Start(t, githubtest.Options{})
	repo := s.MustAddRepo(t, "acme", "api", githubtest.RepoOptions{From: sample(t)})
	gitIn(t, repo.Dir, "update-ref", "refs/heads/work", gitIn(t, repo.Dir, "commit-tree", "-p", "main", "-m", "<b>subject", "main^{tree}"))
	token := s.UserToken("olga", githubtest.Permissions{"contents": "write", "pull_requests": "write"}, repo)
	req, err := http.NewRequest("POST", s.API()+"repos/acme/api/pulls", strings.NewReader(`{"title":"<script>t","body":"<img src=x>","head":"work","base":"main"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "token "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	status, page := get(t, s.URL()+"/acme/api/pull/1", "")
	if status != 200 {
		t.Fatalf("status %d: %s", status, page)
	}
	for _, want := range []string{"&lt;script&gt;t", "&lt;img src=x&gt;", "&lt;b&gt;subject", "olga wants to merge"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	if status, _ := get(t, s.URL()+"/acme/api/pull/2", ""); status != 404 {
		t.Errorf("status %d for a pull request that is not there", status)
	}
}
