package githubapp_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

var pushOnly = githubapp.Request{Owner: "acme", Repo: "api", Permissions: githubapp.Permissions{"contents": "write"}}

func start(t *testing.T, opts githubtest.Options) (*githubtest.Server, *githubapp.App) {
	t.Helper()
	s := githubtest.Start(t, opts)
	s.MustAddRepo(t, "acme", "api", githubtest.RepoOptions{})
	s.MustAddRepo(t, "acme", "other", githubtest.RepoOptions{NotInstalled: true})
	return s, &githubapp.App{ID: githubtest.AppID, PrivateKey: s.PrivateKey(), BaseURL: s.API()}
}

func TestMintAndRevoke(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]githubtest.Options{
		"short":      {},
		"long":       {LongTokens: true},
		"enterprise": {APIPath: "/api/v3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, app := start(t, opts)
			tok, err := app.Mint(t.Context(), pushOnly)
			if err != nil {
				t.Fatal(err)
			}
			if tok.Repository != "acme/api" || tok.DefaultBranch != "main" || tok.Permissions["contents"] != "write" {
				t.Errorf("token is for %q with %v", tok.Repository, tok.Permissions)
			}
			if left := time.Until(tok.Expires); left < 55*time.Minute || left > 61*time.Minute {
				t.Errorf("token lives for %v", left)
			}
			if n := len(tok.Value()); opts.LongTokens != (n > 400) {
				t.Errorf("token has %d characters", n)
			}
			if s.LiveTokens() != 1 {
				t.Fatalf("%d live tokens, want 1", s.LiveTokens())
			}
			if err := app.Revoke(t.Context(), tok); err != nil {
				t.Fatal(err)
			}
			if s.LiveTokens() != 0 {
				t.Error("the token is alive after its revocation")
			}
			var e *github.ErrorResponse
			if err := app.Revoke(t.Context(), tok); !errors.As(err, &e) || e.Response.StatusCode != 401 {
				t.Errorf("second revocation: %v, want a 401", err)
			}
		})
	}
}

func TestMintRefusesWhatIsWider(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*githubtest.Grant)
		want   string
	}{
		"other permission":   {func(g *githubtest.Grant) { g.Permissions["issues"] = "read" }, "issues:read"},
		"unknown permission": {func(g *githubtest.Grant) { g.Permissions["quantum_keys"] = "read" }, "quantum_keys:read"},
		"higher level":       {func(g *githubtest.Grant) { g.Permissions["contents"] = "admin" }, "contents:admin"},
		"unknown level":      {func(g *githubtest.Grant) { g.Permissions["contents"] = "owner" }, "contents:owner"},
		"metadata write":     {func(g *githubtest.Grant) { g.Permissions["metadata"] = "write" }, "metadata:write"},
		"all repositories":   {func(g *githubtest.Grant) { g.Selection = "all" }, "not acme/api alone"},
		"two repositories":   {func(g *githubtest.Grant) { g.Repositories = append(g.Repositories, "acme/other") }, "2 repositories"},
		"other repository":   {func(g *githubtest.Grant) { g.Repositories = []string{"acme/other"} }, "acme/other in place of acme/api"},
		"longer life":        {func(g *githubtest.Grant) { g.Expires = time.Now().Add(3 * time.Hour) }, "longer than an hour"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, app := start(t, githubtest.Options{})
			s.OnMint(tc.change)
			tok, err := app.Mint(t.Context(), pushOnly)
			if !errors.Is(err, githubapp.ErrTooWide) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("Mint: %v, want ErrTooWide with %q", err, tc.want)
			}
			if !tok.IsZero() {
				t.Error("a refused token was returned")
			}
			if s.LiveTokens() != 0 {
				t.Error("a refused token was left alive")
			}
		})
	}
}

func TestMintRefusesWhatIsLess(t *testing.T) {
	t.Parallel()
	s, app := start(t, githubtest.Options{})
	s.OnMint(func(g *githubtest.Grant) { delete(g.Permissions, "contents") })
	if _, err := app.Mint(t.Context(), pushOnly); err == nil || !strings.Contains(err.Error(), "lacks contents:write") {
		t.Errorf("less than asked: %v", err)
	}
	s.OnMint(func(g *githubtest.Grant) { g.Expires = time.Now().Add(-time.Minute) })
	if _, err := app.Mint(t.Context(), pushOnly); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired on arrival: %v", err)
	}
}

// TestMintRevokesWhatItCannotRead is an answer that holds a good token and is
// wrong further on.
func TestMintRevokesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	s, app := start(t, githubtest.Options{})
	tok, err := app.Mint(t.Context(), pushOnly)
	if err != nil {
		t.Fatal(err)
	}
	s.AddFault(githubtest.Fault{Match: "access_tokens", Status: 201, Body: fmt.Sprintf(`{"token":%q,"repositories":"all"}`, tok.Value())})
	if _, err := app.Mint(t.Context(), pushOnly); err == nil || strings.Contains(err.Error(), tok.Value()) {
		t.Errorf("Mint: %v", err)
	}
	if s.LiveTokens() != 0 {
		t.Error("the token is alive")
	}
}

func TestMintErrors(t *testing.T) {
	t.Parallel()
	s, app := start(t, githubtest.Options{})
	foreign, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	ecPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	for name, tc := range map[string]struct {
		app  githubapp.App
		req  githubapp.Request
		want string
	}{
		"not installed":   {*app, githubapp.Request{Owner: "acme", Repo: "other"}, "install the App"},
		"not granted":     {*app, githubapp.Request{Owner: "acme", Repo: "api", Permissions: githubapp.Permissions{"workflows": "write"}}, "422"},
		"foreign key":     {githubapp.App{ID: githubtest.AppID, Signer: foreign, BaseURL: s.API()}, pushOnly, "401"},
		"foreign id":      {githubapp.App{ID: 7, PrivateKey: s.PrivateKey(), BaseURL: s.API()}, pushOnly, "check the App's id"},
		"no key":          {githubapp.App{ID: 7, BaseURL: s.API()}, pushOnly, "cannot be read"},
		"no id":           {githubapp.App{PrivateKey: s.PrivateKey(), BaseURL: s.API()}, pushOnly, "no id"},
		"elliptic key":    {githubapp.App{ID: 7, PrivateKey: ecPEM, BaseURL: s.API()}, pushOnly, "cannot be read"},
		"elliptic signer": {githubapp.App{ID: 7, Signer: ec, BaseURL: s.API()}, pushOnly, "not RSA"},
		"plain http":      {githubapp.App{ID: 7, PrivateKey: s.PrivateKey(), BaseURL: "http://ghes.example/api/v3/"}, pushOnly, "cannot be used"},
		"userinfo":        {githubapp.App{ID: 7, PrivateKey: s.PrivateKey(), BaseURL: "https://u:p@ghes.example/"}, pushOnly, "cannot be used"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := tc.app.Mint(t.Context(), tc.req)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "mint token for acme/") {
				t.Errorf("Mint: %v, want %q", err, tc.want)
			}
		})
	}
}

func TestExternalSigner(t *testing.T) {
	t.Parallel()
	s, app := start(t, githubtest.Options{})
	block, _ := pem.Decode(s.PrivateKey())
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	app.PrivateKey, app.Signer = nil, key
	if _, err := app.Mint(t.Context(), pushOnly); err != nil {
		t.Error(err)
	}
}

func TestRedirectGetsNoCredential(t *testing.T) {
	t.Parallel()
	s, app := start(t, githubtest.Options{})
	tok, err := app.Mint(t.Context(), pushOnly)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := githubtest.NewSink()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close() })
	s.AddFault(githubtest.Fault{Redirect: sink.URL()})
	if _, err := app.Mint(t.Context(), pushOnly); err == nil {
		t.Error("a mint followed a redirect")
	}
	if err := app.Revoke(t.Context(), tok); err == nil {
		t.Error("a revocation followed a redirect")
	}
	if n, saw := sink.Requests(); n != 0 || saw {
		t.Errorf("the other host got %d requests, credential: %v", n, saw)
	}
}

func TestRevokeAfterCancel(t *testing.T) {
	t.Parallel()
	s, app := start(t, githubtest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	tok, err := app.Mint(ctx, pushOnly)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := app.Revoke(ctx, tok); err != nil || s.LiveTokens() != 0 {
		t.Errorf("revoke after cancel: %v, %d alive", err, s.LiveTokens())
	}
}

func TestFetchCredential(t *testing.T) {
	t.Parallel()
	s, app := start(t, githubtest.Options{})
	credential, revoke := app.FetchCredential("acme", "api")
	user, password, err := credential(t.Context())
	if err != nil || user != "x-access-token" {
		t.Fatalf("credential: %q, %v", user, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL()+"/acme/api.git/info/refs?service=git-upload-pack", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(user, password)
	fetch := func(service string) int {
		req.URL.RawQuery = "service=" + service
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := fetch("git-upload-pack"); got != 200 {
		t.Errorf("fetch answered %d", got)
	}
	if got := fetch("git-receive-pack"); got != 403 {
		t.Errorf("push answered %d, want 403", got)
	}
	if err := revoke(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := fetch("git-upload-pack"); got != 401 {
		t.Errorf("fetch after the revocation answered %d, want 401", got)
	}
}

func TestTokenPrintsNothing(t *testing.T) {
	t.Parallel()
	const secret = "ghs_0123456789abcdefghijABCDEFGHIJ456789"
	tok := githubapp.UserToken(secret)
	type hidden struct{ tok githubapp.Token }
	type shown struct{ Tok githubapp.Token }
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%p", "%10.3s", "%t"} {
		for name, v := range map[string]any{
			"value": tok, "pointer": &tok, "field": shown{tok}, "unexported field": hidden{tok}, "pointer to field": &hidden{tok},
			"slice": []githubapp.Token{tok}, "map": map[string]githubapp.Token{"a": tok}, "error": fmt.Errorf("push with %v", tok),
		} {
			out := fmt.Sprintf(verb, v)
			if strings.Contains(out, secret[4:12]) || strings.Contains(out, fmt.Sprintf("%x", secret[4:12])) || strings.Contains(out, fmt.Sprintf("%X", secret[4:12])) {
				t.Errorf("%s of a %s shows the token: %s", verb, name, out)
			}
		}
	}
	b, err := json.Marshal(map[string]any{"t": tok, "s": shown{tok}, "h": hidden{tok}})
	if err != nil || strings.Contains(string(b), secret[4:12]) || !strings.Contains(string(b), "redacted") {
		t.Errorf("JSON: %s, %v", b, err)
	}
	if tok.Value() != secret || (githubapp.Token{}).Value() != "" || !(githubapp.Token{}).IsZero() {
		t.Error("Value or IsZero is wrong")
	}
}
