package request

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/smallfile"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/pushbroker"
)

// TokenVariable names the environment variable with a GitHub token of the
// operator's own, in place of an App.
const TokenVariable = "KICK_GITHUB_TOKEN"

// target decides where the work goes and by what authority, and how far.
func target(req *manager.Request, o Options) error {
	t, access, err := reach(req.Source.Repo, o, req.Held)
	if err != nil {
		return err
	}
	if t.HasPullRequests() {
		req.Source.Repo = t.URL
		fetchCredential(req, t, access)
	}
	req.Target = t
	switch req.Publish = manager.PublishMode(o.Publish); {
	case req.Publish == "" && t.HasPullRequests():
		req.Publish = manager.PublishPR
	case req.Publish == "":
		req.Publish = manager.PublishBranch
	case req.Publish != manager.PublishPR && req.Publish != manager.PublishBranch && req.Publish != manager.PublishNone:
		return fmt.Errorf("--publish %s: want pr, branch or none", o.Publish)
	}
	if req.Publish == manager.PublishNone || t.HasPullRequests() {
		return nil
	}
	if github(t, o) && t.Protocol != "ssh" {
		return fmt.Errorf("no credential for %s: pass --github-app-id and --github-app-key (or set KICK_GITHUB_APP_ID and KICK_GITHUB_APP_KEY_FILE), or set %s; or go without publishing: --publish none", t, TokenVariable)
	}
	if req.Publish == manager.PublishPR {
		return fmt.Errorf("--publish pr: %s is a plain git remote, which has no pull requests: use --publish branch, or give a GitHub App for a GitHub repository (see `kick run --help`)", t)
	}
	return nil
}

// TargetFromEnvironment says how a repository is reached by the settings in the
// environment alone.
func TargetFromEnvironment(repo string) (pushbroker.Target, error) {
	t, _, err := reach(repo, Options{
		GitHubAppID: os.Getenv("KICK_GITHUB_APP_ID"), GitHubAppKey: os.Getenv("KICK_GITHUB_APP_KEY_FILE"), GitHubAPI: os.Getenv("KICK_GITHUB_API_URL"),
	}, map[string]string{})
	return t, err
}

// Destination says what the CI of a repository would see of a kick's branch and
// of its pull request into base. No credential is read and nobody is asked. An
// address that no kick could publish to is a plain remote.
func Destination(repo, base string, o Options) pushbroker.Destination {
	t, err := pushbroker.NewTarget(repo, pushbroker.Access{})
	if err != nil {
		return pushbroker.Destination{Base: base}
	}
	d := t.Destination(base, true)
	if github(t, o) {
		d.GitHub, d.PullRequest = true, true
	}
	return d
}

// reach finds the authority for a repository. What it reads is added to held.
func reach(repo string, o Options, held map[string]string) (pushbroker.Target, pushbroker.Access, error) {
	t, err := pushbroker.NewTarget(repo, pushbroker.Access{})
	if err != nil || !github(t, o) {
		return t, pushbroker.Access{}, err
	}
	access, err := gitHubAccess(o, held)
	if err != nil {
		return t, access, err
	}
	t, err = pushbroker.NewTarget(repo, access)
	return t, access, err
}

// github tells whether the target is GitHub, or a host that --github-api names.
func github(t pushbroker.Target, o Options) bool {
	return t.Host != "" && (o.GitHubAPI != "" || t.Host == "github.com" || strings.HasSuffix(t.Host, ".ghe.com"))
}

// maxAppKey is far more than an RSA key in PEM takes.
const maxAppKey = 64 << 10

// gitHubAccess reads the App or the token that the operator configured, and
// adds them to the values that must not leave.
func gitHubAccess(o Options, held map[string]string) (pushbroker.Access, error) {
	token := os.Getenv(TokenVariable)
	switch {
	case o.GitHubAppID == "" && o.GitHubAppKey == "" && token == "":
		return pushbroker.Access{}, nil
	case o.GitHubAppID == "" && o.GitHubAppKey == "":
		return pushbroker.Access{Token: githubapp.UserToken(token), API: o.GitHubAPI}, nil
	case o.GitHubAppID == "" || o.GitHubAppKey == "":
		return pushbroker.Access{}, errors.New("a GitHub App needs both --github-app-id and --github-app-key")
	}
	id, err := strconv.ParseInt(o.GitHubAppID, 10, 64)
	if err != nil || id <= 0 {
		return pushbroker.Access{}, fmt.Errorf("--github-app-id %q: want the App's number, as its settings page shows it", o.GitHubAppID)
	}
	key, err := smallfile.Read(o.GitHubAppKey, maxAppKey)
	if err != nil {
		return pushbroker.Access{}, fmt.Errorf("--github-app-key: %w: name the file that the App's settings page gave you", err)
	}
	if block, _ := pem.Decode(key); block == nil {
		return pushbroker.Access{}, fmt.Errorf("--github-app-key: %s holds no PEM key: name the file that the App's settings page gave you", o.GitHubAppKey)
	}
	held["GitHub App key "+filepath.Base(o.GitHubAppKey)] = strings.TrimSpace(string(key))
	return pushbroker.Access{App: &githubapp.App{ID: id, PrivateKey: key, BaseURL: o.GitHubAPI}}, nil
}

// fetchCredential lets the base be read with the same authority.
func fetchCredential(req *manager.Request, t pushbroker.Target, a pushbroker.Access) {
	if a.App == nil {
		req.Source.Credential = func(context.Context) (string, string, error) {
			return githubapp.GitUser, a.Token.Value(), nil
		}
		return
	}
	app := *a.App
	app.BaseURL = t.API
	req.Source.Credential, req.AfterFetch = app.FetchCredential(t.Owner, t.Name)
}
