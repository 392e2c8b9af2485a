package pushbroker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/gitcmd"
)

// TestClassifyGit holds words that servers and gits use against their reasons.
// Those of the stand-in are made for real in TestPublishReasons.
func TestClassifyGit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stderr, report string
		want           Reason
		message        string
	}{
		"signed commits": {stderr: "remote: error: GH013: Repository rule violations found for refs/heads/kick/a/b.\nremote:\nremote: - Commits must have verified signatures.\nremote:   Found 1 violation:\nerror: failed to push some refs to 'https://github.com/a/b'",
			report: "!\tabc:refs/heads/kick/a/b\t[remote rejected] (push declined due to repository rule violations)", want: ReasonRuleset, message: "GH013"},
		"secrets within GH013":    {stderr: "remote: error: GH013: Repository rule violations found for refs/heads/x.\nremote: - GITHUB PUSH PROTECTION\nremote:     - Push cannot contain secrets", want: ReasonPushProtection, message: "GH013"},
		"workflow by a token":     {report: "!\tabc:refs/heads/x\t[remote rejected] (refusing to allow an OAuth App to create or update workflow `.github/workflows/a.yml` without `workflow` scope)", want: ReasonWorkflows, message: "refusing to allow an OAuth App"},
		"stale lease":             {report: "!\tabc:refs/heads/x\t[rejected] (stale info)", want: ReasonBranchExists, message: "stale info"},
		"made meanwhile":          {report: "!\tabc:refs/heads/x\t[remote rejected] (reference already exists)", want: ReasonBranchExists, message: "reference already exists"},
		"unknown refusal":         {report: "!\tabc:refs/heads/x\t[remote rejected] (the moon is full)", want: ReasonRejected, message: "the moon is full"},
		"update hook":             {report: "!\tabc:refs/heads/x\t[remote rejected] (hook declined)", want: ReasonHook, message: "hook declined"},
		"GitLab push rule":        {stderr: "remote: GitLab: You cannot push commits for 'x@y'.", report: "!\tabc:refs/heads/x\t[remote rejected] (pre-receive hook declined)", want: ReasonHook, message: "pre-receive hook declined"},
		"ownership":               {stderr: "fatal: detected dubious ownership in repository at '/srv/git/a.git'\nTo add an exception", want: ReasonOwnership, message: "detected dubious ownership"},
		"disk of the remote":      {stderr: "remote: error: insufficient permission for adding an object to repository database objects\nremote: fatal: failed to write object\nerror: remote unpack failed: unpack-objects abnormal exit", report: "!\tabc:refs/heads/x\t[remote rejected] (unpacker error)", want: ReasonRejected, message: "unpacker error"},
		"password":                {stderr: "fatal: could not read Username for 'https://github.com': terminal prompts disabled", want: ReasonAuthentication, message: "could not read Username"},
		"ssh key":                 {stderr: "git@github.com: Permission denied (publickey).\nfatal: Could not read from remote repository.", want: ReasonAuthentication},
		"ssh host key":            {stderr: "Host key verification failed.\nfatal: Could not read from remote repository.", want: ReasonAuthentication},
		"no host":                 {stderr: "fatal: unable to access 'https://nowhere.invalid/a/b/': Could not resolve host: nowhere.invalid", want: ReasonNetwork, message: "Could not resolve host"},
		"refused":                 {stderr: "fatal: unable to access 'https://h/': Failed to connect to h port 443 after 1 ms: Couldn't connect to server", want: ReasonNetwork},
		"503":                     {stderr: "fatal: unable to access 'https://github.com/a/b/': The requested URL returned error: 503", want: ReasonServer},
		"RPC 502":                 {stderr: "error: RPC failed; HTTP 502 curl 22 The requested URL returned error: 502\nsend-pack: unexpected disconnect while reading sideband packet", want: ReasonServer},
		"cut":                     {stderr: "error: RPC failed; curl 18 transfer closed with outstanding read data remaining\nfatal: the remote end hung up unexpectedly", want: ReasonNetwork},
		"certificate":             {stderr: "fatal: unable to access 'https://h/': SSL certificate problem: self-signed certificate", want: ReasonNetwork},
		"escape sequences":        {stderr: "remote: \x1b]0;owned\x07 ::error::x", report: "!\tabc:refs/heads/x\t[remote rejected] (\x1b[31mno)", want: ReasonRejected, message: `\x1b`},
		"repository called GH013": {stderr: "error: failed to push some refs to 'https://github.com/a/GH013: rate limit'", report: "To https://github.com/a/GH006: x\n!\tabc:refs/heads/x\t[remote rejected] (the moon is full)", want: ReasonRejected, message: "the moon is full"},
		"no push protocol":        {stderr: "fatal: protocol error: bad line length character: <htm", want: ReasonAnswer},
		"silent":                  {want: ReasonGit, message: "said nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := classifyGit(context.Background(), "push x", tc.report, &gitcmd.Error{Args: []string{"push"}, ExitCode: 1, Stderr: tc.stderr, Err: &exec.ExitError{}})
			if e.Reason != tc.want || !strings.Contains(e.Message, tc.message) {
				t.Errorf("reason %q, message %q; want %q with %q", e.Reason, e.Message, tc.want, tc.message)
			}
			if e.ToDo() == "" {
				t.Error("no remedy")
			}
		})
	}
}

// TestPublishErrorText holds the whole line that a person reads.
func TestPublishErrorText(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  PublishError
		want string
	}{
		"rules": {
			PublishError{Op: "push b", Message: "GH013: Repository rule violations found for refs/heads/b.", Remedy: "Ask.", Details: []string{
				"error: GH013: Repository rule violations found for refs/heads/b.", "- Commits must have verified signatures.", "- Cannot update this protected ref.",
			}},
			"push b: GH013: Repository rule violations found for refs/heads/b; Commits must have verified signatures; Cannot update this protected ref. Ask.",
		},
		"two secrets": {
			PublishError{Op: "push b", Message: "GH013", Remedy: "Rotate them.", Details: []string{"AWS Key", "locations:", "path: a:1", "GitHub Token", "locations:", "path: b:2"}},
			"push b: GH013; AWS Key; locations:; path: a:1; GitHub Token; path: b:2. Rotate them.",
		},
		"wait":            {PublishError{Op: "open", Message: "Slow down.", RetryAfter: time.Minute, Remedy: "Run again."}, "open: Slow down (wait 1m0s). Run again."},
		"details alone":   {PublishError{Op: "open", Details: []string{"x."}, Remedy: "Run again."}, "open: x. Run again."},
		"remedy alone":    {PublishError{Op: "open", Reason: ReasonServer}, "open. " + remedies[ReasonServer]},
		"nothing to mend": {PublishError{Op: "open", Message: "It broke."}, "open: It broke"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.err.Error(); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestEveryReasonHasARemedy(t *testing.T) {
	t.Parallel()
	for _, a := range gitAnswers {
		if remedies[a.reason] == "" {
			t.Errorf("%s has no remedy", a.reason)
		}
	}
}

// TestSecretDetails is GitHub's own answer to a push with five secrets, among
// another rule's words.
func TestSecretDetails(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("remote: error: GH013: Repository rule violations found for refs/heads/kick/a/b.\nremote: \nremote: - GITHUB PUSH PROTECTION\nremote:   —————————————————————————————————————————\n" +
		"remote:     Resolve the following violations before pushing again\nremote: \nremote:     - Push cannot contain secrets\nremote: \nremote: \nremote:      (?) Learn how to resolve a blocked push\nremote:      https://docs.github.com/code-security/x\nremote: \n" +
		"remote:      (?) This repository does not have Secret Scanning enabled, but is eligible. Enable Secret Scanning to view and manage detected secrets.\nremote:      Visit the repository settings page, https://github.com/a/b/settings/security_analysis\n")
	for i := range 5 {
		fmt.Fprintf(&b, "remote:       —— Kind %d API Key ——————————————————————————————————\nremote:        locations:\nremote:          - commit: b6ba2be62ff7d6c34065648997f6f53b44ab209%d\nremote:            path: dir/.env %d:6\n"+
			"remote: \nremote:        (?) To push, remove secret from commit(s) or follow this URL to allow the secret.\nremote:        https://github.com/a/b/security/secret-scanning/unblock-secret/2gakJrAududURpxlhIZdNlX14ZZ\nremote: \n", i, i, i)
	}
	b.WriteString("remote: - Commits must have verified signatures.\n")
	e := classifyGit(context.Background(), "push x", "!\ta:b\t[remote rejected] (push declined due to repository rule violations)", &gitcmd.Error{Args: []string{"push"}, Stderr: b.String(), Err: &exec.ExitError{}})
	want := []string{"- Push cannot contain secrets"}
	for i := range 5 {
		want = append(want, fmt.Sprintf("Kind %d API Key in dir/.env %d:6 of commit b6ba2be62f", i, i))
	}
	want = append(want, "- Commits must have verified signatures.", "the server lists 5 secrets at most, and there may be more")
	if e.Reason != ReasonPushProtection || !slices.Equal(e.Details, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", e.Reason, strings.Join(e.Details, "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(e.Error(), "http") {
		t.Errorf("the error holds a link: %s", e)
	}
}

// FuzzClassifyAPI holds any answer of a REST API to bounds: a reason, words fit
// to be shown, and a wait of an hour at most.
func FuzzClassifyAPI(f *testing.F) {
	f.Add(403, "60", "", "", []byte(`{"message":"You have exceeded a secondary rate limit.","documentation_url":"https://docs.github.com/x#about-secondary-rate-limits"}`))
	f.Add(403, "-9223372036854775808", "0", "99999999999999", []byte(`{"message":"API rate limit exceeded"}`))
	f.Add(429, "1e30", "0", "-1", []byte(`{}`))
	f.Add(422, "", "", "", []byte(`{"message":"Validation Failed","errors":[{"resource":"PullRequest","code":"custom","message":"\u001b[2J"},"x"]}`))
	f.Add(301, "", "", "", []byte(`{"message":"Moved Permanently","url":"https://evil.example"}`))
	f.Add(201, "", "", "", []byte(`[[[`))
	f.Add(502, "", "", "", []byte("<html>\xff\x00"))
	f.Fuzz(func(t *testing.T, status int, retryAfter, remaining, reset string, body []byte) {
		h := http.Header{"Retry-After": {retryAfter}, "X-Ratelimit-Remaining": {remaining}, "X-Ratelimit-Reset": {reset}}
		req := &http.Request{Method: "POST", URL: &url.URL{Scheme: "https", Host: "api.github.com", Path: "/x"}}
		err := github.CheckResponse(&http.Response{StatusCode: status, Status: http.StatusText(status), Header: h, Body: io.NopCloser(bytes.NewReader(body)), Request: req})
		if err == nil { // then its body is read
			var v github.PullRequest
			if err = json.Unmarshal(body, &v); err == nil {
				return
			}
		}
		e := classifyAPI(context.Background(), "open pull request", err)
		text := e.Error() + strings.Join(e.Details, "")
		switch {
		case e.Reason == "" || e.ToDo() == "":
			t.Errorf("no reason or no remedy: %+v", e)
		case strings.ContainsFunc(text, escape.Control) || !utf8.ValidString(text):
			t.Errorf("not fit to be shown: %q", text)
		case len(e.Message) > 8*maxLine || len(e.Details) > maxDetails:
			t.Errorf("%d bytes and %d details of an answer", len(e.Message), len(e.Details))
		case (e.Reason == ReasonRateLimit) != (e.RetryAfter > 0) || e.RetryAfter < 0 || e.RetryAfter > time.Hour:
			t.Errorf("%s with a wait of %s", e.Reason, e.RetryAfter)
		}
	})
}

func FuzzClassifyGit(f *testing.F) {
	f.Add("remote: error: GH013: Repository rule violations found\nremote: - x", "!\ta:b\t[remote rejected] (x)")
	f.Add("remote: error: GH013: x\nremote:     - Push cannot contain secrets\nremote:       —— Kind ——\nremote:          - commit: 0\nremote:            path: a:1\nremote:   https://x", "")
	f.Add("fatal: \x1b[2J", "!\t\t[rejected] (\xff)")
	f.Fuzz(func(t *testing.T, stderr, report string) {
		e := classifyGit(context.Background(), "push x", report, &gitcmd.Error{Args: []string{"push"}, Stderr: stderr, Err: errors.New("exit status 1")})
		text := e.Error() + strings.Join(e.Details, "")
		if e.Reason == "" || e.Message == "" || strings.ContainsFunc(text, escape.Control) || len(e.Message) > 8*maxLine || len(e.Details) > maxDetails+1 {
			t.Errorf("%+v", e)
		}
	})
}
