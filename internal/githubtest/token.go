package githubtest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	jwt "github.com/golang-jwt/jwt/v4"
)

// Permissions maps a permission's name to "read", "write" or "admin".
type Permissions map[string]string

var levels = map[string]int{"": 0, "read": 1, "write": 2, "admin": 3}

// allows reports whether p includes name at the given level or above.
func (p Permissions) allows(name, level string) bool { return levels[p[name]] >= levels[level] }

// Grant is what a mint hands out. See OnMint.
type Grant struct {
	Permissions  Permissions
	Repositories []string // OWNER/NAME
	Selection    string   // "selected" or "all"
	Expires      time.Time
}

// grant is a live token.
type grant struct {
	Grant
	login   string // who acts
	app     bool   // an installation token
	revoked bool
}

func (g *grant) covers(r *Repo) bool {
	return g.Selection == "all" || slices.ContainsFunc(g.Repositories, func(n string) bool { return strings.EqualFold(n, r.FullName()) })
}

// OnMint lets a test change what the next mints hand out, for instance to
// answer with more than was asked for.
func (s *Server) OnMint(f func(*Grant)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onMint = f
}

// UserToken makes a personal access token for some repositories, e.g.
// {"contents": "write", "pull_requests": "write"}.
func (s *Server) UserToken(login string, p Permissions, repos ...*Repo) string {
	g := &grant{Grant: Grant{Permissions: p, Selection: "selected", Expires: time.Now().Add(24 * time.Hour)}, login: login}
	for _, r := range repos {
		g.Repositories = append(g.Repositories, r.FullName())
	}
	token := "ghp_" + random(36)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[token] = g
	return token
}

// LiveTokens returns how many installation tokens are neither revoked nor
// expired.
func (s *Server) LiveTokens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, g := range s.tokens {
		if g.app && !g.revoked && time.Now().Before(g.Expires) {
			n++
		}
	}
	return n
}

// Minted returns the permissions of every installation token that was handed
// out, in no order.
func (s *Server) Minted() []Permissions {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Permissions
	for _, g := range s.tokens {
		if g.app {
			out = append(out, maps.Clone(g.Permissions))
		}
	}
	return out
}

// RevokeAll revokes every token, as an administrator can at any moment.
func (s *Server) RevokeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.tokens {
		g.revoked = true
	}
}

// ExpireAll lets every token run out.
func (s *Server) ExpireAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.tokens {
		g.Expires = time.Now().Add(-time.Second)
	}
}

// presentedToken returns the credential of a request, by either scheme.
func presentedToken(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "bearer") || strings.EqualFold(scheme, "token") {
		return token
	}
	return ""
}

// lookup returns the live grant of a token.
func (s *Server) lookup(token string) *grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.tokens[token]
	if g == nil || g.revoked || !time.Now().Before(g.Expires) {
		return nil
	}
	return g
}

func (s *Server) revoke(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[token].revoked = true
}

// verifyApp checks an App's JSON web token as GitHub does: RS256, our issuer,
// made in the past, and at most ten minutes long. A minute of clock skew is
// allowed. It returns GitHub's words for what is wrong, and "" for a good one.
func (s *Server) verifyApp(token string) (refusal string) {
	if token == "" {
		return "A JSON web token could not be decoded"
	}
	var claims jwt.RegisteredClaims
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"RS256"}), jwt.WithoutClaimsValidation())
	if _, err := parser.ParseWithClaims(token, &claims, func(*jwt.Token) (any, error) { return &s.key.PublicKey, nil }); err != nil {
		return "A JSON web token could not be decoded"
	}
	now := time.Now()
	switch {
	case claims.Issuer != strconv.Itoa(AppID):
		return "'Issuer' claim ('iss') must be an Integer"
	case claims.IssuedAt == nil || claims.IssuedAt.After(now.Add(time.Minute)):
		return "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
	case claims.ExpiresAt == nil || !claims.ExpiresAt.After(now):
		return "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the assertion expires"
	case claims.ExpiresAt.After(now.Add(11 * time.Minute)):
		return "'Expiration time' claim ('exp') is too far in the future"
	}
	return ""
}

// mint makes an installation token.
func (s *Server) mint(g Grant) (string, Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.Expires = time.Now().Add(s.opts.TokenLife).Truncate(time.Second)
	if s.onMint != nil {
		s.onMint(&g)
	}
	token := "ghs_" + random(36)
	if s.opts.LongTokens {
		claims := jwt.MapClaims{"iss": "github", "sub": fmt.Sprint(installationID), "aud": "api", "exp": g.Expires.Unix(), "jti": random(16)}
		signed, err := jwt.NewWithClaims(jwt.SigningMethodRS256, claims).SignedString(s.key)
		if err != nil {
			return "", g, err
		}
		token = fmt.Sprintf("ghs_%d_%s", AppID, signed)
	}
	s.tokens[token] = &grant{Grant: g, login: botName, app: true}
	return token, g, nil
}

func random(n int) string {
	b := make([]byte, (n+1)/2)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)[:n]
}
