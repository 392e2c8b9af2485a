package pushbroker

import (
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubapp"
)

func TestNewTarget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token := Access{Token: githubapp.UserToken("ghp_x")}
	for name, tc := range map[string]struct {
		repo   string
		access Access
		want   Target
	}{
		"path":            {repo: dir, want: Target{URL: dir, Protocol: "file"}},
		"file URL":        {repo: "file://" + dir + "/", want: Target{URL: dir, Protocol: "file"}},
		"plain https":     {repo: "https://git.example/x/y.git", want: Target{URL: "https://git.example/x/y.git", Protocol: "https", Host: "git.example"}},
		"default port":    {repo: "https://git.example:443/x/", want: Target{URL: "https://git.example/x", Protocol: "https", Host: "git.example"}},
		"ssh URL":         {repo: "ssh://git@git.example:2222/x/y", want: Target{URL: "ssh://git@git.example:2222/x/y", Protocol: "ssh", Host: "git.example:2222"}},
		"scp":             {repo: "git@github.com:acme/api.git", want: Target{URL: "git@github.com:acme/api.git", Protocol: "ssh", Host: "github.com"}},
		"loopback http":   {repo: "http://127.0.0.1:3000/x/y", want: Target{URL: "http://127.0.0.1:3000/x/y", Protocol: "http", Host: "127.0.0.1:3000"}},
		"github":          {"https://github.com/acme/api", token, Target{URL: "https://github.com/acme/api.git", Protocol: "https", Host: "github.com", Owner: "acme", Name: "api", API: "https://api.github.com/"}},
		"github by scp":   {"git@github.com:acme/api.git", token, Target{URL: "https://github.com/acme/api.git", Protocol: "https", Host: "github.com", Owner: "acme", Name: "api", API: "https://api.github.com/"}},
		"github by ssh":   {"ssh://git@GitHub.com:22/acme/api.git", token, Target{URL: "https://github.com/acme/api.git", Protocol: "https", Host: "github.com", Owner: "acme", Name: "api", API: "https://api.github.com/"}},
		"enterprise":      {"https://ghes.example/acme/api.git", token, Target{URL: "https://ghes.example/acme/api.git", Protocol: "https", Host: "ghes.example", Owner: "acme", Name: "api", API: "https://ghes.example/api/v3/"}},
		"enterprise port": {"https://ghes.example:8443/acme/api", Access{Token: token.Token, API: "https://ghes.example:8443/api/v3"}, Target{URL: "https://ghes.example:8443/acme/api.git", Protocol: "https", Host: "ghes.example:8443", Owner: "acme", Name: "api", API: "https://ghes.example:8443/api/v3/"}},
		"ghe.com":         {"https://acme.ghe.com/acme/api", token, Target{URL: "https://acme.ghe.com/acme/api.git", Protocol: "https", Host: "acme.ghe.com", Owner: "acme", Name: "api", API: "https://api.acme.ghe.com/"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := NewTarget(tc.repo, tc.access)
			if err != nil {
				t.Fatal(err)
			}
			got.access = Access{}
			if got.URL != tc.want.URL || got.Protocol != tc.want.Protocol || got.Host != tc.want.Host || got.Owner != tc.want.Owner || got.Name != tc.want.Name || got.API != tc.want.API {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestNewTargetRefuses(t *testing.T) {
	t.Parallel()
	token := Access{Token: githubapp.UserToken("ghp_x")}
	for name, tc := range map[string]struct {
		repo   string
		access Access
		want   string
	}{
		"password":           {"https://u:s3cret@github.com/acme/api", Access{}, "user name or password"},
		"credential on path": {t.TempDir(), token, "local path"},
		"one part":           {"https://github.com/acme", token, "not OWNER/NAME"},
		"three parts":        {"https://github.com/acme/api/x", token, "not OWNER/NAME"},
		"dots":               {"https://github.com/acme/..", token, "not OWNER/NAME"},
		"API elsewhere":      {"https://ghes.example/acme/api", Access{Token: token.Token, API: "https://evil.example/api/v3/"}, "not sent to another"},
		"API of a suffix":    {"https://ghes.example/acme/api", Access{Token: token.Token, API: "https://api.ghes.example.evil.example/"}, "not sent to another"},
		"API by http":        {"https://ghes.example/acme/api", Access{Token: token.Token, API: "http://ghes.example/api/v3/"}, "cannot be used"},
		"App elsewhere":      {"https://ghes.example/acme/api", Access{App: &githubapp.App{BaseURL: "https://api.github.com/"}}, "not sent to another"},
		"two credentials":    {"https://github.com/acme/api", Access{Token: token.Token, App: &githubapp.App{}}, "choose one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := NewTarget(tc.repo, tc.access)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error repeats a password: %v", err)
			}
		})
	}
}

func FuzzNewTarget(f *testing.F) {
	for _, s := range []string{"https://github.com/acme/api", "git@github.com:acme/api.git", "ssh://git@h:22/a/b", "file:///tmp", "http://localhost:1/a/b", "https://u:p@h/a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, repo string) {
		target, err := NewTarget(repo, Access{Token: githubapp.UserToken("ghp_x")})
		if err != nil {
			return
		}
		rest, ok := strings.CutPrefix(target.URL, target.Protocol+"://"+target.Host+"/")
		if !ok || rest != target.Owner+"/"+target.Name+".git" || strings.ContainsAny(target.URL, "@'\"\\$` \n") || !strings.HasPrefix(target.URL, "http") {
			t.Errorf("%q became %+v", repo, target)
		}
	})
}
