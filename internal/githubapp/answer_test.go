package githubapp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// FuzzMinted holds any answer to a mint against what was asked for: what passes
// is for that repository alone and for no other permission.
func FuzzMinted(f *testing.F) {
	f.Add([]byte(`{"token":"x","expires_at":"2030-01-01T00:30:00Z","permissions":{"contents":"write","metadata":"read"},"repository_selection":"selected","repositories":[{"full_name":"acme/api"}]}`))
	f.Add([]byte(`{"token":"x","expires_at":"2030-01-01T00:30:00Z","permissions":{"contents":"admin"},"repository_selection":"all"}`))
	f.Add([]byte(`{"permissions":{"Contents":"write"},"repositories":[{"full_name":"ACME/API"},{}]}`))
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	req := Request{Owner: "acme", Repo: "api", Permissions: Permissions{"contents": "write"}}
	f.Fuzz(func(t *testing.T, answer []byte) {
		var m minted
		if json.Unmarshal(answer, &m) != nil {
			return
		}
		token := m.token()
		if m.check(req, now) != nil {
			return
		}
		if !strings.EqualFold(token.Repository, "acme/api") || token.Expires.After(now.Add(maxLife)) || token.Permissions["contents"] != "write" {
			t.Errorf("a token was taken for %q, %v, until %s", token.Repository, token.Permissions, token.Expires)
		}
		for name, level := range token.Permissions {
			if name != "contents" && (name != "metadata" || level != "read") {
				t.Errorf("a token was taken with %s:%s", name, level)
			}
		}
	})
}

// TestAnswersAreBounded has a server that does not stop, and one that does not
// begin. It changes the deadline, so it runs alone.
func TestAnswersAreBounded(t *testing.T) {
	defer func(d time.Duration) { requestTimeout = d }(requestTimeout)
	closing := make(chan struct{})
	var sent atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/silent/") {
			select {
			case <-r.Context().Done():
			case <-closing:
			}
			return
		}
		blank := []byte(strings.Repeat(" ", 1<<20))
		for err := error(nil); err == nil; sent.Add(1) {
			_, err = w.Write(blank)
		}
	}))
	defer srv.Close()
	defer close(closing)
	client := func(path string) error {
		c, err := NewClient(srv.URL+path, UserToken("x"))
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = c.Repositories.Get(t.Context(), "acme", "api")
		return err
	}
	if err := client("/"); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("an endless answer: %v", err)
	}
	if n := sent.Load(); n > 64 {
		t.Errorf("%d MiB of it were read", n)
	}
	requestTimeout = 100 * time.Millisecond
	if err := client("/silent/"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
}
