// Package githubapp mints and revokes installation access tokens of a GitHub
// App: for one repository, with the permissions that were asked for and no
// others. Nothing is cached and nothing is minted again behind the caller's
// back.
package githubapp

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/bradleyfalzon/ghinstallation/v2"
	jwt "github.com/golang-jwt/jwt/v4"
	"github.com/google/go-github/v66/github"
)

// DefaultBaseURL is the REST API of github.com.
const DefaultBaseURL = "https://api.github.com/"

// requestTimeout bounds one API request, retries not included. A variable for
// this package's tests.
var requestTimeout = 30 * time.Second

// App is a GitHub App.
type App struct {
	// ID is the App's id.
	ID int64
	// PrivateKey is the App's RSA key as PEM, PKCS#1 or PKCS#8.
	PrivateKey []byte
	// Signer is used in place of PrivateKey when it is set: an RSA key that is
	// held elsewhere, in a hardware module for instance.
	Signer crypto.Signer
	// BaseURL of the REST API. Default: DefaultBaseURL. GitHub Enterprise
	// Server has https://HOST/api/v3/.
	BaseURL string
}

// Permissions maps a permission's name, as the REST API spells it, to "read",
// "write" or "admin".
type Permissions map[string]string

// Request says what a token shall be good for.
type Request struct {
	Owner, Repo string
	Permissions Permissions
}

// ErrTooWide is a token that came back good for more than was asked. It has
// been revoked.
var ErrTooWide = errors.New("token is wider than asked for")

// Mint makes a token. Errors of the server are those of go-github.
func (a *App) Mint(ctx context.Context, req Request) (Token, error) {
	op := fmt.Sprintf("mint token for %s/%s", req.Owner, req.Repo)
	client, err := a.client()
	if err != nil {
		return Token{}, fmt.Errorf("%s: %w", op, err)
	}
	inst, _, err := client.Apps.FindRepositoryInstallation(ctx, req.Owner, req.Repo)
	if err != nil {
		return Token{}, fmt.Errorf("%s: find installation of App %d: %w%s", op, a.ID, err, remedy(err))
	}
	// go-github's own answer type drops permissions that it does not know, and
	// those are the ones that must not go unseen.
	r, err := client.NewRequest("POST", fmt.Sprintf("app/installations/%d/access_tokens", inst.GetID()), map[string]any{
		"repositories": []string{req.Repo}, "permissions": req.Permissions,
	})
	if err != nil {
		return Token{}, fmt.Errorf("%s: %w", op, err)
	}
	var got minted
	_, err = client.Do(ctx, r, &got)
	switch {
	case err != nil:
	case got.Token == "":
		err = errors.New("the answer holds no token")
	default:
		err = got.check(req, time.Now())
	}
	token := got.token()
	if err != nil {
		err = fmt.Errorf("%s: %w", op, err)
		if !token.IsZero() { // an answer that is wrong further on had it too
			err = errors.Join(err, a.Revoke(ctx, token))
		}
		return Token{}, err
	}
	return token, nil
}

// Revoke ends a token at once. The token authorises that itself.
func (a *App) Revoke(ctx context.Context, t Token) error {
	client, err := NewClient(a.BaseURL, t)
	if err == nil {
		// Without a deadline of its own, a kick that was cancelled could not
		// clean up.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		_, err = client.Apps.RevokeInstallationToken(ctx)
	}
	if err != nil {
		return fmt.Errorf("revoke token for %s: %w", t.Repository, err)
	}
	return nil
}

// FetchCredential returns a credential for workspace.Source, good for reading
// one repository and minted when it is asked for, and a function that revokes
// what was minted.
func (a *App) FetchCredential(owner, repo string) (credential func(context.Context) (user, password string, err error), revoke func(context.Context) error) {
	var tokens []Token
	credential = func(ctx context.Context) (string, string, error) {
		t, err := a.Mint(ctx, Request{Owner: owner, Repo: repo, Permissions: Permissions{"contents": "read"}})
		if err != nil {
			return "", "", err
		}
		tokens = append(tokens, t)
		return GitUser, t.Value(), nil
	}
	revoke = func(ctx context.Context) error {
		var errs []error
		for _, t := range tokens {
			errs = append(errs, a.Revoke(ctx, t))
		}
		tokens = nil
		return errors.Join(errs...)
	}
	return credential, revoke
}

// GitUser is the user name that goes with a token in git over HTTPS.
const GitUser = "x-access-token"

// NewClient returns an API client that acts with a token and follows no
// redirect. baseURL is as in App.
func NewClient(baseURL string, t Token) (*github.Client, error) {
	if t.IsZero() {
		return nil, errors.New("no token")
	}
	base, err := parseBase(baseURL)
	if err != nil {
		return nil, err
	}
	c := github.NewClient(plainClient(http.DefaultTransport)).WithAuthToken(t.Value())
	c.BaseURL = base
	return c, nil
}

// client acts as the App itself.
func (a *App) client() (*github.Client, error) {
	base, err := parseBase(a.BaseURL)
	if err != nil {
		return nil, err
	}
	signer, err := a.signer()
	if err != nil {
		return nil, err
	}
	tr, err := ghinstallation.NewAppsTransportWithOptions(http.DefaultTransport, a.ID, ghinstallation.WithSigner(signer))
	if err != nil {
		return nil, err
	}
	c := github.NewClient(plainClient(tr))
	c.BaseURL = base
	return c, nil
}

// maxAnswer bounds an answer in bytes. The largest that kick asks for, a list
// of 20 pull requests, has some 500 KiB.
const maxAnswer = 8 << 20

// bounded cuts answers that are longer than maxAnswer: go-github reads any
// whole.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}

// plainClient follows no redirect: the transports add the credential to every
// request, also to the one that a redirect makes to another host.
func plainClient(tr http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: bounded{tr}, Timeout: requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func parseBase(base string) (*url.URL, error) {
	if base == "" {
		base = DefaultBaseURL
	}
	u, err := url.Parse(strings.TrimSuffix(base, "/") + "/")
	secret := err == nil && (u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname()))
	if !secret || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("API address %q cannot be used: want https://HOST/ or https://HOST/api/v3/, without user name or password", base)
	}
	return u, nil
}

func (a *App) signer() (ghinstallation.Signer, error) {
	if a.ID <= 0 {
		return nil, errors.New("GitHub App has no id: set the id that the App's settings page shows")
	}
	if a.Signer != nil {
		if _, ok := a.Signer.Public().(*rsa.PublicKey); !ok {
			return nil, errors.New("GitHub App's key is not RSA: GitHub takes RS256 only")
		}
		return externalKey{a.Signer}, nil
	}
	key, err := jwt.ParseRSAPrivateKeyFromPEM(a.PrivateKey)
	if err != nil {
		// The parser's error does not repeat the key, but need not be trusted
		// never to.
		return nil, errors.New("GitHub App's private key cannot be read: want the PEM file of an RSA key that GitHub's settings page made")
	}
	return ghinstallation.NewRSASigner(jwt.SigningMethodRS256, key), nil
}

// externalKey signs with a key that this process does not see.
type externalKey struct{ crypto.Signer }

func (k externalKey) Sign(claims jwt.Claims) (string, error) {
	text, err := jwt.NewWithClaims(jwt.SigningMethodRS256, claims).SigningString()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(text))
	sig, err := k.Signer.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return "", err
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}

// remedy says what to do about the API's refusal to name an installation; it is
// empty where the error says it.
func remedy(err error) string {
	var r *github.ErrorResponse
	if !errors.As(err, &r) || r.Response == nil {
		return ""
	}
	switch r.Response.StatusCode {
	case http.StatusUnauthorized:
		return ": check the App's id, that the key is one of this App, and this machine's clock"
	case http.StatusNotFound:
		return ": check the repository's name and the API's address, and install the App on the repository"
	}
	return ""
}
