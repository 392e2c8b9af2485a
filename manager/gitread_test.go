package manager

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/workspace"
)

func TestReadCredentialReachesTheOwnRepositoryAlone(t *testing.T) {
	t.Parallel()
	minted, revoked := 0, 0
	var fault error
	req := Request{
		Target: pushbroker.Target{Host: "github.com", Owner: "Acme", Name: "api", API: "https://api.github.com/"},
		Source: workspace.Source{Credential: func(context.Context) (string, string, error) {
			minted++
			return "x-access-token", fmt.Sprint("token ", minted), fault
		}},
		AfterFetch: func(context.Context) error { revoked++; return nil },
	}
	c := newReadCredential(req)
	for _, other := range [][2]string{{"github.com", "acme/lib"}, {"github.com", "acme/api2"}, {"example.com", "acme/api"}, {"github.com", ""}, {"", ""}} {
		if user, password, err := c.get(t.Context(), other[0], other[1]); user != "" || password != "" || err != nil {
			t.Errorf("%q: %q, %v", other, user, err)
		}
	}
	if err := c.revoke(t.Context()); err != nil || minted != 0 || revoked != 0 {
		t.Errorf("without a fetch: %v, %d minted, %d revoked", err, minted, revoked)
	}
	for range 3 {
		if user, password, err := c.get(t.Context(), "github.com", "acme/API"); user != "x-access-token" || password != "token 1" || err != nil {
			t.Errorf("own repository: %q, %q, %v", user, password, err)
		}
	}
	c.at = c.at.Add(-readAgain)
	if _, password, _ := c.get(t.Context(), "github.com", "acme/api"); password != "token 2" {
		t.Errorf("after %s: %q", readAgain, password)
	}
	if err := errors.Join(c.revoke(t.Context()), c.revoke(t.Context())); err != nil || revoked != 1 {
		t.Errorf("%v, revoked %d times", err, revoked)
	}
	fault = errors.New("the key was revoked")
	if _, _, err := c.get(t.Context(), "github.com", "acme/api"); !errors.Is(err, fault) {
		t.Errorf("error %v", err)
	}

	req.Target.API = "" // a plain remote
	if user, password, err := newReadCredential(req).get(t.Context(), "github.com", "acme/api"); user+password != "" || err != nil {
		t.Errorf("plain remote: %q, %v", user, err)
	}
}
