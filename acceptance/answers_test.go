package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/pushbroker"
)

// scene is a kick whose publication is about to go wrong.
type scene struct {
	*hub
	t     *testing.T
	state string
}

func (s scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// branch is the one that the kick under way will push.
func (s scene) branch() string {
	kicks, err := filepath.Glob(filepath.Join(s.state, "kicks", "k*"))
	if err != nil || len(kicks) != 1 {
		s.t.Errorf("kicks %q, %v", kicks, err)
		return "none"
	}
	return "kick/agent/" + filepath.Base(kicks[0])
}

const (
	fetchBegins = "GET /acme/api.git/info/refs?service=git-upload-pack"
	pushBegins  = "GET /acme/api.git/info/refs?service=git-receive-pack"
	gitPush     = "POST /acme/api.git/git-receive-pack"
	openPull    = "POST /repos/acme/api/pulls"
	mint        = "access_tokens" // the first is for the fetch
	rateLimits  = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits"
)

// TestServerAnswers has the server answer a push, or what belongs to it, in
// every way that it has, and holds the reason, the exit code, the words and the
// remedy, and that the work is kept or published, and no token alive.
func TestServerAnswers(t *testing.T) {
	t.Parallel()
	fault := func(f githubtest.Fault) func(scene) { return func(s scene) { s.AddFault(f) } }
	refusal := func(match string, skip, status int, message string, header ...string) func(scene) {
		h := map[string]string{}
		for i := 0; i < len(header); i += 2 {
			h[header[i]] = header[i+1]
		}
		return fault(githubtest.Fault{Match: match, Skip: skip, Status: status, Header: h, Body: fmt.Sprintf(`{"message":%q,"documentation_url":"https://docs.github.com/rest"}`, message)})
	}
	const commit = `echo hi >f; git add f; git commit -qm "add f"`
	for name, tc := range map[string]struct {
		prepare func(scene)
		repo    githubtest.RepoOptions
		script  string
		policy  string
		own     githubtest.Permissions // of a token of the operator's own
		want    pushbroker.Reason      // empty: published
		words   []string               // of the error, or of a note
		never   []string
		remedy  string
		pushed  bool
	}{
		"ruleset, every rule": {
			prepare: func(s scene) {
				s.must(s.repo.AddRule("refs/heads/kick/*", "Commits must have verified signatures."))
				s.must(s.repo.AddRule("refs/heads/kick/*", "3 of 3 required status checks are expected."))
			},
			want: pushbroker.ReasonRuleset, words: []string{"GH013", "verified signatures", "3 of 3 required status checks"}, remedy: "kick/**",
		},
		"protected branch": {
			prepare: func(s scene) { s.must(s.repo.Protect("kick/*/*")) },
			want:    pushbroker.ReasonProtected, words: []string{"GH006", "Changes must be made through a pull request"}, remedy: "protection rule",
		},
		"push protection, every secret": {
			prepare: func(s scene) {
				s.must(s.repo.PushProtection("corp-[0-9]{12}|Acme Internal Token", "acme[0-9]{9}x|Acme Build Number"))
			},
			script: `mkdir d; echo corp-123456789012 >d/a.txt; git add d; git commit -qm a; echo ok >b; printf 'x\ncorp-999999999999\nacme123456789x\n' >c; git add b c; git commit -qm b`,
			want:   pushbroker.ReasonPushProtection,
			words:  []string{"Push cannot contain secrets", "Acme Internal Token in d/a.txt:1 of commit ", "Acme Internal Token in c:2 of commit ", "Acme Build Number in c:3 of commit "},
			never:  []string{"unblock-secret", "follow this URL", "locations:"}, remedy: "rotate it",
		},
		"workflows permission": {
			script: `mkdir -p .github/workflows; printf 'on: workflow_dispatch\njobs: {}\n' >.github/workflows/new.yml; git add .github; git commit -qm ci`,
			policy: "version: 1\nchanges: {rules: {protected-ci: report}}\n",
			want:   pushbroker.ReasonWorkflows, words: []string{"`.github/workflows/new.yml`"}, remedy: "workflows:write",
		},
		"token revoked before the push": {
			prepare: func(s scene) { s.before(pushBegins, s.RevokeAll) },
			want:    pushbroker.ReasonTokenInvalid, remedy: "Run again",
		},
		"token expired before the push": {
			prepare: func(s scene) { s.before(pushBegins, s.ExpireAll) },
			want:    pushbroker.ReasonTokenInvalid, remedy: "Run again",
		},
		"token expired before the pull request": {
			prepare: func(s scene) { s.before("GET /repos/acme/api/pulls?head=", s.ExpireAll) },
			want:    pushbroker.ReasonTokenInvalid, words: []string{"is on the remote, and its pull request is not"}, remedy: "kick gc", pushed: true,
		},
		"primary rate limit": {
			prepare: func(s scene) {
				s.AddFault(githubtest.Fault{Match: openPull, Status: 403, Body: `{"message":"API rate limit exceeded for installation ID 42."}`,
					Header: map[string]string{"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": strconv.FormatInt(time.Now().Add(40*time.Minute).Unix(), 10)}})
			},
			want: pushbroker.ReasonRateLimit, words: []string{"API rate limit exceeded", "(wait "}, remedy: "kick gc", pushed: true,
		},
		"secondary rate limit": {
			prepare: fault(githubtest.Fault{Match: mint, Skip: 1, Status: 403, Header: map[string]string{"Retry-After": "600"}, Body: `{"message":"You have exceeded a secondary rate limit.","documentation_url":"` + rateLimits + `"}`}),
			want:    pushbroker.ReasonRateLimit, words: []string{"secondary rate limit", "(wait 10m0s)"}, remedy: "Run again after that time",
		},
		"rate limit with an absurd wait": {
			prepare: refusal(mint, 1, 429, "Too many requests", "Retry-After", "99999999999999999999"),
			want:    pushbroker.ReasonRateLimit, words: []string{"Too many requests"}, remedy: "Run again after that time",
		},
		"rate limit that ends soon": {
			prepare: fault(githubtest.Fault{Match: openPull, Times: 1, Status: 429, Header: map[string]string{"Retry-After": "1"}, Body: `{"message":"You have exceeded a secondary rate limit."}`}),
			words:   []string{"waited 1s because the server limits the rate"}, pushed: true,
		},
		"git answers 503 always": {prepare: fault(githubtest.Fault{Match: gitPush, Status: 503}), want: pushbroker.ReasonServer, words: []string{"503"}, remedy: "Run again later"},
		"git answers 502 once":   {prepare: fault(githubtest.Fault{Match: gitPush, Times: 1, Status: 502}), pushed: true},
		"git takes the push and answers 500": {
			prepare: fault(githubtest.Fault{Match: gitPush, Times: 1, After: true, Status: 500}), pushed: true,
		},
		"mint answers 500 always": {prepare: refusal(mint, 1, 500, "Server Error"), want: pushbroker.ReasonServer, words: []string{"Server Error"}, remedy: "Run again later"},
		"pull request is made and answered with 502": {
			prepare: fault(githubtest.Fault{Match: openPull, Times: 1, After: true, Status: 502}), pushed: true,
		},
		"repository renamed, by git": {
			prepare: func(s scene) {
				s.AddFault(githubtest.Fault{Match: gitPush, Status: 301, Header: map[string]string{"Location": s.URL() + "/acme/renamed.git/git-receive-pack"}})
			},
			want: pushbroker.ReasonMoved, remedy: "new address",
		},
		"repository renamed, by the API": {
			prepare: refusal("/repos/acme/api/installation", 1, 301, "Moved Permanently", "Location", "/repositories/1/installation"),
			want:    pushbroker.ReasonMoved, words: []string{"Moved Permanently"}, remedy: "new address",
		},
		"permission not granted": {
			repo: githubtest.RepoOptions{Granted: githubtest.Permissions{"metadata": "read", "contents": "read", "pull_requests": "write"}},
			want: pushbroker.ReasonPermission, words: []string{"not granted to this installation"}, remedy: "contents:write",
		},
		"own token revoked": {
			prepare: func(s scene) { s.before(pushBegins, s.RevokeAll) },
			own:     githubtest.Permissions{"contents": "write", "pull_requests": "write"},
			want:    pushbroker.ReasonAuthentication, remedy: "or the token",
		},
		"own token that may not push": {
			own:  githubtest.Permissions{"contents": "read", "pull_requests": "write"},
			want: pushbroker.ReasonPermission, words: []string{"Permission to acme/api.git denied to olga"}, remedy: "contents:write",
		},
		"own token that may not open pull requests": {
			own:  githubtest.Permissions{"contents": "write"},
			want: pushbroker.ReasonPermission, words: []string{"Resource not accessible"}, remedy: "pull_requests:write", pushed: true,
		},
		"App removed meanwhile": {
			prepare: refusal("/repos/acme/api/installation", 1, 404, "Not Found"),
			want:    pushbroker.ReasonNotFound, words: []string{"Not Found"}, remedy: "installed on it",
		},
		"App suspended": {
			prepare: refusal(mint, 1, 403, "This installation has been suspended"),
			want:    pushbroker.ReasonPermission, words: []string{"suspended"}, remedy: "Unsuspend",
		},
		"IP allow list": {
			prepare: refusal(mint, 1, 403, "Although you appear to have the correct authorization credentials, the `acme` organization has an IP allow list enabled, and your IP address is not permitted to access this resource."),
			want:    pushbroker.ReasonPermission, words: []string{"IP allow list"}, remedy: "Add this host's address",
		},
		"archived":                   {repo: githubtest.RepoOptions{Archived: true}, want: pushbroker.ReasonReadOnly, words: []string{"archived"}, remedy: "writable"},
		"connection cut, once":       {prepare: fault(githubtest.Fault{Match: gitPush, Times: 1, Cut: true}), pushed: true},
		"connection cut, always":     {prepare: fault(githubtest.Fault{Match: gitPush, Cut: true}), want: pushbroker.ReasonNetwork, remedy: "network"},
		"cut after the push":         {prepare: fault(githubtest.Fault{Match: gitPush, Times: 1, After: true, Cut: true}), pushed: true},
		"cut after the pull request": {prepare: fault(githubtest.Fault{Match: openPull, Times: 1, After: true, Cut: true}), pushed: true},
		"git answers with a page":    {prepare: fault(githubtest.Fault{Match: gitPush, Status: 200, Body: "<html>login</html>"}), want: pushbroker.ReasonAnswer, remedy: "proxy"},
		"git takes the push and answers with a page": {
			prepare: fault(githubtest.Fault{Match: gitPush, Times: 1, After: true, Status: 200, Body: "<html>login</html>"}), pushed: true,
		},
		"mint answers with a page": {prepare: fault(githubtest.Fault{Match: mint, Skip: 1, Status: 201, Body: "<html>"}), want: pushbroker.ReasonAnswer, remedy: "proxy"},
		"mint answers without end": {prepare: fault(githubtest.Fault{Match: mint, Skip: 1, Status: 201, Body: strings.Repeat(" ", 1<<16), Endless: true}), want: pushbroker.ReasonAnswer, remedy: "proxy"},
		"pull request refused": {
			prepare: fault(githubtest.Fault{Match: openPull, Status: 422, Body: `{"message":"Validation Failed","errors":[{"resource":"PullRequest","code":"custom","message":"The base branch is locked"}]}`}),
			want:    pushbroker.ReasonPullRequest, words: []string{"The base branch is locked", "is on the remote, and its pull request is not"}, remedy: "by hand", pushed: true,
		},
		"branch is there with other work": {
			prepare: func(s scene) {
				s.before(pushBegins, func() { run(s.t, s.repo.Dir, "git", "update-ref", "refs/heads/"+s.branch(), "main") })
			},
			want: pushbroker.ReasonBranchExists, words: []string{"the branch is there already"}, remedy: "Look at that branch",
		},
		"base rewritten meanwhile": {
			script: commit,
			prepare: func(s scene) {
				n := 0
				s.OnMint(func(*githubtest.Grant) {
					if n++; n == 2 { // for the push
						purged := run(s.t, s.repo.Dir, "git", "commit-tree", "-m", "purged", "main^{tree}")
						run(s.t, s.repo.Dir, "git", "update-ref", "refs/heads/main", strings.TrimSpace(purged))
					}
				})
			},
			want: pushbroker.ReasonRepublish, remedy: "on the new base",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := scene{hub: newHubWith(t, githubtest.Options{}, tc.repo), t: t, state: filepath.Join(t.TempDir(), "s")}
			sink, err := githubtest.NewSink()
			s.must(err)
			defer func() { s.must(sink.Close()) }()
			if tc.prepare != nil {
				tc.prepare(s)
			}
			args := s.args
			var env []string
			if tc.own != nil {
				args = []string{"--repo", s.URL() + "/acme/api", "--github-api", s.API()}
				env = []string{"KICK_GITHUB_TOKEN=" + s.UserToken("olga", tc.own, s.repo)}
			}
			if tc.policy != "" {
				file := filepath.Join(t.TempDir(), "policy.yaml")
				s.must(os.WriteFile(file, []byte(tc.policy), 0o600))
				args = append(args, "--policy", file)
			}
			if tc.script == "" {
				tc.script = commit
			}
			o, out := runKickWith(t, env, s.state, append(args, "--", "sh", "-c", tc.script)...)

			want, code := manager.PushFailed, 16
			if tc.want == "" {
				want, code = manager.Published, 0
			}
			if o.Outcome != want || o.ExitCode != code || o.PublishReason != tc.want {
				t.Fatalf("outcome %s (%d), reason %q, want %s (%d), %q: %s", o.Outcome, o.ExitCode, o.PublishReason, want, code, tc.want, o.Error)
			}
			said := o.Error + strings.Join(o.Notes, "\n")
			for _, w := range tc.words {
				if !strings.Contains(said, w) {
					t.Errorf("%q is not in %q", w, said)
				}
			}
			for _, w := range tc.never {
				if strings.Contains(out, w) {
					t.Errorf("%q is in the output:\n%s", w, out)
				}
			}
			if !strings.Contains(o.Remedy, tc.remedy) || tc.want != "" && o.Remedy == "" || strings.Contains(o.Error, o.Remedy) && o.Remedy != "" {
				t.Errorf("remedy %q, want %q; error %q", o.Remedy, tc.remedy, o.Error)
			}
			if tc.want != "" && o.KeptAt == "" {
				t.Error("the work is not kept")
			}
			arrived := s.repo.Ref("refs/heads/"+s.branch()) == o.Commit
			pulls := len(s.repo.Pulls())
			if arrived != tc.pushed || pulls > 1 || (pulls == 1) != (tc.want == "") {
				t.Errorf("the branch arrived: %v, %d pull requests", arrived, pulls)
			}
			if s.LiveTokens() != 0 {
				t.Errorf("%d tokens are alive", s.LiveTokens())
			}
			if found := s.leaked(out); len(found) > 0 {
				t.Errorf("the output holds the tokens %q", found)
			}
		})
	}
}

// TestRedirectGetsNothing redirects each request of a publication in turn to a
// second listener. That must hear nothing at all, and the work must be kept.
func TestRedirectGetsNothing(t *testing.T) {
	t.Parallel()
	for _, match := range []string{
		"GET /acme/api.git/info/refs", "POST /acme/api.git/git-upload-pack", gitPush,
		"/repos/acme/api/installation", mint, "GET /repos/acme/api/pulls", openPull, "DELETE /installation/token",
	} {
		t.Run(match, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, githubtest.Options{LongTokens: true})
			sink, err := githubtest.NewSink()
			if err != nil {
				t.Fatal(err)
			}
			h.AddFault(githubtest.Fault{Match: match, Redirect: sink.URL()})
			state := filepath.Join(t.TempDir(), "s")
			o, out := runKick(t, state, append(h.args, "--", "sh", "-c", `echo hi >f; git add f; git commit -qm "add f"`)...)
			if n, saw := sink.Requests(); n != 0 || saw {
				t.Errorf("the other host got %d requests, a credential: %v", n, saw)
			}
			if err := sink.Close(); err != nil {
				t.Error(err)
			}
			if strings.HasPrefix(match, "DELETE") != (o.Outcome == manager.Published) {
				t.Errorf("%s: %s", o.Outcome, o.Error)
			}
			if h.Count(match) == 0 || o.Outcome == manager.PushFailed && (o.PublishReason != pushbroker.ReasonMoved || o.KeptAt == "") {
				t.Errorf("%d requests, %s: %s", h.Count(match), o.PublishReason, o.Error)
			}
			if found := h.leaked(out); len(found) > 0 {
				t.Errorf("the output holds the tokens %q", found)
			}
		})
	}
}
