package githubtest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

// The paths that the stand-in serves, as GitHub's description spells them.
var served = []string{
	"/app",
	"/app/installations/{installation_id}/access_tokens",
	"/installation/token",
	"/repos/{owner}/{repo}",
	"/repos/{owner}/{repo}/branches/{branch}",
	"/repos/{owner}/{repo}/branches/{branch}/protection",
	"/repos/{owner}/{repo}/git/commits/{commit_sha}",
	"/repos/{owner}/{repo}/git/ref/{ref}",
	"/repos/{owner}/{repo}/git/refs",
	"/repos/{owner}/{repo}/git/refs/{ref}",
	"/repos/{owner}/{repo}/installation",
	"/repos/{owner}/{repo}/issues",
	"/repos/{owner}/{repo}/issues/{issue_number}/assignees",
	"/repos/{owner}/{repo}/issues/{issue_number}/comments",
	"/repos/{owner}/{repo}/issues/{issue_number}/labels",
	"/repos/{owner}/{repo}/pulls",
	"/repos/{owner}/{repo}/pulls/{pull_number}/requested_reviewers",
}

// description returns the part of GitHub's description that is about the
// served paths. The whole has 800 paths and takes a minute to load.
func description(t *testing.T, file string) []byte {
	t.Helper()
	cache := os.Getenv("KICK_CACHE")
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(base, "kick")
	}
	raw, err := os.ReadFile(filepath.Join(cache, "octokit-openapi-23.0.2", file))
	if os.IsNotExist(err) && os.Getenv("CI") == "" {
		t.Skip("GitHub's API description is not in the cache: run internal/githubtest/openapi.sh")
	}
	if err != nil {
		t.Fatalf("%v: run internal/githubtest/openapi.sh", err)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	paths := doc["paths"].(map[string]any)
	kept := map[string]any{}
	for _, p := range served {
		if paths[p] == nil {
			t.Fatalf("%s describes no path %s", file, p)
		}
		kept[p] = paths[p]
	}
	small := map[string]any{
		"openapi": doc["openapi"], "info": doc["info"], "paths": kept,
		"servers": []any{map[string]any{"url": "http://standin.example"}},
	}
	all := doc["components"].(map[string]any)
	components := map[string]any{}
	var follow func(v any)
	follow = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				follow(e)
			}
		case map[string]any:
			delete(v, "examples")
			for _, e := range v {
				follow(e)
			}
			ref, _ := v["$ref"].(string)
			kind, name, ok := strings.Cut(strings.TrimPrefix(ref, "#/components/"), "/")
			if !ok || kind == "examples" {
				return
			}
			group, _ := components[kind].(map[string]any)
			if group == nil {
				group = map[string]any{}
				components[kind] = group
			}
			if group[name] == nil {
				group[name] = all[kind].(map[string]any)[name]
				follow(group[name])
			}
		}
	}
	follow(kept)
	small["components"] = components
	out, err := json.Marshal(small)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// exchange is one request and its answer, as they were on the wire.
type exchange struct {
	method, path, query string
	header              http.Header
	request             []byte
	status              int
	answerHeader        http.Header
	answer              []byte
}

type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.body.Write(b)
	return r.ResponseWriter.Write(b)
}

// TestAnswersMatchGitHubsDescription calls every endpoint, for a success and
// for the refusals, and holds requests and answers against the OpenAPI
// descriptions of github.com and of GitHub Enterprise Server.
func TestAnswersMatchGitHubsDescription(t *testing.T) {
	t.Parallel()
	for file, path := range map[string]string{"api.github.com.json": "", "ghes-3.19.json": "/api/v3"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			doc, err := libopenapi.NewDocument(description(t, file))
			if err != nil {
				t.Fatal(err)
			}
			v, errs := validator.NewValidator(doc)
			if len(errs) > 0 {
				t.Fatalf("build validator: %v", errs)
			}
			var mu sync.Mutex
			var seen []exchange
			s := githubtest.Start(t, githubtest.Options{APIPath: path, Intercept: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					r.Body = io.NopCloser(bytes.NewReader(body))
					e := exchange{method: r.Method, path: strings.TrimPrefix(r.URL.Path, path), query: r.URL.RawQuery, header: r.Header.Clone(), request: body}
					rec := &recorder{ResponseWriter: w, status: 200}
					next.ServeHTTP(rec, r)
					e.status, e.answerHeader, e.answer = rec.status, w.Header().Clone(), rec.body.Bytes()
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, e)
				})
			}})
			callEverything(t, s)

			used := map[string]bool{}
			for _, e := range seen {
				used[e.method+" "+template(e.path)+" "+http.StatusText(e.status)] = true
				if !json.Valid(e.answer) && e.status != 204 {
					t.Errorf("%s %s: the answer is not JSON: %.80s", e.method, e.path, e.answer)
					continue
				}
				check(t, v, e)
			}
			for _, want := range []string{
				"GET /app OK", "POST /app/installations/{installation_id}/access_tokens Created", "POST /app/installations/{installation_id}/access_tokens Unprocessable Entity",
				"DELETE /installation/token No Content", "GET /repos/{owner}/{repo} OK", "GET /repos/{owner}/{repo} Not Found",
				"GET /repos/{owner}/{repo}/branches/{branch} OK", "GET /repos/{owner}/{repo}/branches/{branch}/protection OK",
				"GET /repos/{owner}/{repo}/git/ref/{ref} OK", "GET /repos/{owner}/{repo}/installation OK", "POST /repos/{owner}/{repo}/issues Created",
				"POST /repos/{owner}/{repo}/issues/{issue_number}/labels OK", "POST /repos/{owner}/{repo}/pulls Created", "GET /repos/{owner}/{repo}/pulls OK",
				"POST /repos/{owner}/{repo}/pulls Unprocessable Entity", "POST /repos/{owner}/{repo}/pulls Forbidden",
				"POST /repos/{owner}/{repo}/pulls/{pull_number}/requested_reviewers Created",
				"POST /repos/{owner}/{repo}/pulls/{pull_number}/requested_reviewers Unprocessable Entity",
				"POST /repos/{owner}/{repo}/issues/{issue_number}/assignees Created", "GET /repos/{owner}/{repo}/issues OK",
				"POST /repos/{owner}/{repo}/issues/{issue_number}/comments Created", "GET /repos/{owner}/{repo}/issues/{issue_number}/comments OK",
				"POST /repos/{owner}/{repo}/git/refs Created", "POST /repos/{owner}/{repo}/git/refs Unprocessable Entity",
				"DELETE /repos/{owner}/{repo}/git/refs/{ref} No Content", "GET /repos/{owner}/{repo}/git/commits/{commit_sha} OK",
			} {
				if !used[want] {
					t.Errorf("not called: %s", want)
				}
			}
		})
	}
}

// template is the path as the description spells it.
func template(path string) string {
	for _, p := range served {
		re := "^" + regexp.MustCompile(`\\\{[a-z_]+\\\}`).ReplaceAllString(regexp.QuoteMeta(p), "[^/]+") + "$"
		if strings.HasSuffix(p, "/{ref}") {
			re = strings.TrimSuffix(re, "[^/]+$") + ".+$"
		}
		if regexp.MustCompile(re).MatchString(path) {
			return p
		}
	}
	return path
}

func check(t *testing.T, v validator.Validator, e exchange) {
	t.Helper()
	path := e.path
	for _, kind := range []string{"/git/ref/", "/git/refs/"} { // one parameter with slashes
		if before, ref, ok := strings.Cut(path, kind); ok {
			path = before + kind + strings.ReplaceAll(ref, "/", "-")
		}
	}
	r, err := http.NewRequest(e.method, "http://standin.example"+path+"?"+e.query, bytes.NewReader(e.request))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = e.header
	resp := &http.Response{StatusCode: e.status, Header: e.answerHeader, Body: io.NopCloser(bytes.NewReader(e.answer)), Request: r}
	// The description leaves out most error answers; those that it has must
	// match.
	if ok, errs := v.ValidateHttpResponse(r, resp); !ok {
		for _, e2 := range errs {
			if e.status >= 400 && strings.Contains(e2.Message, "does not exist") {
				continue
			}
			t.Errorf("answer to %s %s (%d): %v", e.method, e.path, e.status, e2)
		}
	}
	// GitHub takes a bare array of labels too, which go-github sends and the
	// description leaves out.
	if e.status < 400 && !bytes.HasPrefix(e.request, []byte("[")) {
		r.Body = io.NopCloser(bytes.NewReader(e.request))
		if ok, errs := v.ValidateHttpRequest(r); !ok {
			for _, e2 := range errs {
				t.Errorf("request %s %s: %v", e.method, e.path, e2)
			}
		}
	}
}

func callEverything(t *testing.T, s *githubtest.Server) {
	t.Helper()
	ctx := t.Context()
	repo := s.MustAddRepo(t, "acme", "api", githubtest.RepoOptions{From: sample(t), People: []string{"octo"}, Teams: []string{"owners"}, Granted: githubtest.Permissions{
		"metadata": "read", "contents": "write", "pull_requests": "write", "issues": "write", "administration": "read"}})
	if err := repo.Protect("main"); err != nil {
		t.Fatal(err)
	}
	gitIn(t, repo.Dir, "update-ref", "refs/heads/work", gitIn(t, repo.Dir, "commit-tree", "-p", "main", "-m", "work", "main^{tree}"))
	app := &githubapp.App{ID: githubtest.AppID, PrivateKey: s.PrivateKey(), BaseURL: s.API()}
	perms := githubapp.Permissions{"contents": "write", "pull_requests": "write", "issues": "write", "administration": "read"}
	tok, err := app.Mint(ctx, githubapp.Request{Owner: "acme", Repo: "api", Permissions: perms})
	if err != nil {
		t.Fatal(err)
	}
	c, err := githubapp.NewClient(s.API(), tok)
	if err != nil {
		t.Fatal(err)
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused := func(what string, err error, want int) {
		t.Helper()
		var e *github.ErrorResponse
		if !errors.As(err, &e) || e.Response.StatusCode != want {
			t.Errorf("%s: %v, want status %d", what, err, want)
		}
	}
	callAsApp(t, s)
	_, _, err = c.Repositories.Get(ctx, "acme", "api")
	must("get repository", err)
	_, _, err = c.Repositories.Get(ctx, "acme", "none")
	refused("get unknown repository", err, 404)
	_, _, err = c.Git.GetRef(ctx, "acme", "api", "refs/heads/work")
	must("get ref", err)
	_, _, err = c.Git.GetRef(ctx, "acme", "api", "refs/heads/none")
	refused("get unknown ref", err, 404)
	for _, b := range []string{"main", "work"} {
		_, _, err = c.Repositories.GetBranch(ctx, "acme", "api", b, 0)
		must("get branch", err)
	}
	_, _, err = c.Repositories.GetBranchProtection(ctx, "acme", "api", "main")
	must("get protection", err)
	if _, _, err = c.Repositories.GetBranchProtection(ctx, "acme", "api", "work"); err == nil {
		t.Error("an unprotected branch has protection")
	}
	pr, _, err := c.PullRequests.Create(ctx, "acme", "api", &github.NewPullRequest{Title: github.String("work"), Head: github.String("work"), Base: github.String("main"), Draft: github.Bool(true)})
	must("create pull request", err)
	_, _, err = c.PullRequests.Create(ctx, "acme", "api", &github.NewPullRequest{Title: github.String("work"), Head: github.String("work"), Base: github.String("main")})
	refused("create it twice", err, 422)
	_, _, err = c.PullRequests.Create(ctx, "acme", "api", &github.NewPullRequest{Title: github.String("work"), Head: github.String("none"), Base: github.String("main")})
	refused("create without head", err, 422)
	if list, _, err := c.PullRequests.List(ctx, "acme", "api", &github.PullRequestListOptions{Head: "acme:work", State: "all"}); err != nil || len(list) != 1 || list[0].GetNumber() != pr.GetNumber() {
		t.Errorf("list pull requests: %v, %v", list, err)
	}
	_, _, err = c.Issues.AddLabelsToIssue(ctx, "acme", "api", pr.GetNumber(), []string{"review"})
	must("label", err)
	_, _, err = c.Issues.AddLabelsToIssue(ctx, "acme", "api", 99, []string{"review"})
	refused("label nothing", err, 404)
	_, _, err = c.PullRequests.RequestReviewers(ctx, "acme", "api", pr.GetNumber(), github.ReviewersRequest{Reviewers: []string{"octo"}})
	must("request reviewers", err)
	_, _, err = c.PullRequests.RequestReviewers(ctx, "acme", "api", pr.GetNumber(), github.ReviewersRequest{TeamReviewers: []string{"owners"}})
	must("request a team", err)
	_, _, err = c.PullRequests.RequestReviewers(ctx, "acme", "api", pr.GetNumber(), github.ReviewersRequest{Reviewers: []string{"nobody"}})
	refused("request an unknown user", err, 422)
	issue, _, err := c.Issues.AddAssignees(ctx, "acme", "api", pr.GetNumber(), []string{"octo", "nobody"})
	must("assign", err)
	if len(issue.Assignees) != 1 {
		t.Errorf("assigned: %v", issue.Assignees)
	}
	if list, _, err := c.PullRequests.List(ctx, "acme", "api", nil); err != nil || len(list) != 1 || len(list[0].RequestedTeams) != 1 || len(list[0].Assignees) != 1 {
		t.Errorf("list pull requests: %v, %v", list, err)
	}
	_, _, err = c.Issues.CreateComment(ctx, "acme", "api", pr.GetNumber(), &github.IssueComment{Body: github.String("hi")})
	must("comment", err)
	if list, _, err := c.Issues.ListComments(ctx, "acme", "api", pr.GetNumber(), nil); err != nil || len(list) != 1 {
		t.Errorf("list comments: %v, %v", list, err)
	}
	ref := &github.Reference{Ref: github.String("refs/heads/new"), Object: &github.GitObject{SHA: github.String(repo.Ref("refs/heads/main"))}}
	_, _, err = c.Git.CreateRef(ctx, "acme", "api", ref)
	must("create ref", err)
	_, _, err = c.Git.CreateRef(ctx, "acme", "api", ref)
	refused("create ref twice", err, 422)
	_, err = c.Git.DeleteRef(ctx, "acme", "api", "refs/heads/new")
	must("delete ref", err)
	_, _, err = c.Git.GetCommit(ctx, "acme", "api", repo.Ref("refs/heads/main"))
	must("get commit", err)
	_, _, err = c.Issues.Create(ctx, "acme", "api", &github.IssueRequest{Title: github.String("t"), Body: github.String("b"), Labels: &[]string{"x"}})
	must("create issue", err)
	_, _, err = c.Issues.ListByRepo(ctx, "acme", "api", &github.IssueListByRepoOptions{State: "all"})
	must("list issues", err)
	if p := repo.Pulls()[0]; !p.Draft || len(p.Labels) != 1 || len(p.Reviewers) != 1 || len(repo.Issues()) != 1 {
		t.Errorf("pull request is %+v", p)
	}
	narrow, err := app.Mint(ctx, githubapp.Request{Owner: "acme", Repo: "api", Permissions: githubapp.Permissions{"contents": "read"}})
	must("mint", err)
	nc, err := githubapp.NewClient(s.API(), narrow)
	must("client", err)
	_, _, err = nc.PullRequests.Create(ctx, "acme", "api", &github.NewPullRequest{Title: github.String("x"), Head: github.String("work"), Base: github.String("main")})
	refused("create without the permission", err, 403)
	must("revoke", app.Revoke(ctx, tok))
	_, _, err = c.Repositories.Get(ctx, "acme", "api")
	refused("use a revoked token", err, 401)
}

// callAsApp calls what only the App itself may.
func callAsApp(t *testing.T, s *githubtest.Server) {
	t.Helper()
	app := &githubapp.App{ID: githubtest.AppID, PrivateKey: s.PrivateKey(), BaseURL: s.API()}
	if _, err := app.Mint(t.Context(), githubapp.Request{Owner: "acme", Repo: "api", Permissions: githubapp.Permissions{"workflows": "write"}}); err == nil {
		t.Error("the stand-in handed out a permission that the installation lacks")
	}
	req, err := http.NewRequest("GET", s.API()+"app", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+appJWT(t, s, nil))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("GET /app: %s", resp.Status)
	}
}

// sample is a repository with one commit on main.
func sample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	gitIn(t, "", "init", "-q", "-b", "main", dir)
	if err := os.WriteFile(filepath.Join(dir, "README"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	gitIn(t, dir, "add", "README")
	gitIn(t, dir, "commit", "-q", "-m", "first")
	return dir
}

func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := runGit(dir, args...)
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(out)
}

func runGit(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func withPassword(base, password string) string {
	u, _ := url.Parse(base)
	u.User = url.UserPassword("x-access-token", password)
	return u.String()
}
