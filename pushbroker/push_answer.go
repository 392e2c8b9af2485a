package pushbroker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/lazyregexp"
)

// gitAnswers map what git and GitHub print to a reason, the first match
// counts. GitHub's words are those of its push report; git's those of 2.39 to
// 2.5x under LC_ALL=C.
var gitAnswers = []struct {
	match  *lazyregexp.Regexp
	reason Reason
}{
	{lazyregexp.New(`(?i)push cannot contain secrets|GITHUB PUSH PROTECTION`), ReasonPushProtection},
	{lazyregexp.New("without [`'\"]?workflows?[`'\"]? (permission|scope)"), ReasonWorkflows},
	{lazyregexp.New(`GH006:|protected branch hook declined`), ReasonProtected},
	{lazyregexp.New(`GH01[0-9]:|repository rule violations`), ReasonRuleset},
	{lazyregexp.New(`archived so it is read-only`), ReasonReadOnly},
	{lazyregexp.New(`\[rejected\].*\((stale info|fetch first|non-fast-forward|already exists)\)|\[remote rejected\].*\((reference already exists|failed to update ref|cannot lock ref|failed to lock|incorrect old value provided|fetch first)`), ReasonBranchExists},
	{lazyregexp.New(`hook declined`), ReasonHook},
	{lazyregexp.New(`\[remote rejected\]|\[rejected\]`), ReasonRejected},
	{lazyregexp.New(`detected dubious ownership`), ReasonOwnership},
	{lazyregexp.New(`insufficient permission for adding an object|unable to create temporary object directory|Permission denied\n.*unpack|unpacker error`), ReasonReadOnly},
	{lazyregexp.New(`returned error: 429|(?i)rate limit`), ReasonRateLimit},
	{lazyregexp.New(`returned error: 5[0-9][0-9]|Internal Server Error`), ReasonServer},
	{lazyregexp.New(`returned error: 403|Permission to .* denied|denied to `), ReasonPermission},
	{lazyregexp.New(`Authentication failed|returned error: 401|could not read (Username|Password)|Invalid username or token|Permission denied \(publickey|Host key verification failed`), ReasonAuthentication},
	{lazyregexp.New(`returned error: 30[0-9]|unable to update url base from redirection`), ReasonMoved},
	{lazyregexp.New(`Repository not found|returned error: 404|does not appear to be a git repository|^fatal: repository '.*' (does not exist|not found)|not found`), ReasonNotFound},
	{lazyregexp.New(`protocol error|bad line length|bad pack header|invalid server response|not valid: is this a git repository|unexpected (flush|response)|unknown object format`), ReasonAnswer},
	{lazyregexp.New(`Could not resolve host|Failed to connect|Couldn't connect|Connection (refused|reset|timed out)|timed out|RPC failed|early EOF|hung up|unexpected disconnect|Empty reply|transfer closed|Operation too slow|SSL|TLS|recv failure`), ReasonNetwork},
}

// repeated are the addresses and paths that git repeats. They are not the
// server's words: a repository may well be called "rate limit".
var repeated = lazyregexp.New(`(?m)'(?:[a-z]+://|/)[^'\n]*'|^To .*$`)

// classifyGit turns a failed git command into a PublishError. report is what
// git push --porcelain printed.
func classifyGit(ctx context.Context, op, report string, err error) *PublishError {
	if ctx.Err() != nil {
		return &PublishError{Reason: ReasonCancelled, Op: op, Message: escape.String(context.Cause(ctx).Error()), Err: err}
	}
	var g *gitcmd.Error
	if !errors.As(err, &g) {
		return &PublishError{Reason: ReasonGit, Op: op, Message: escape.String(err.Error()), Err: err}
	}
	e := &PublishError{Reason: ReasonGit, Op: op, Err: err}
	text := repeated.ReplaceAllString(g.Stderr+"\n"+report, "''")
	for _, a := range gitAnswers {
		if a.match.MatchString(text) {
			e.Reason = a.reason
			break
		}
	}
	if e.Reason == ReasonGit && errors.Is(err, context.DeadlineExceeded) { // gitcmd's own deadline
		e.Reason = ReasonNetwork
		e.Message = "the remote took too long"
		return e
	}
	remote, local := splitStderr(g.Stderr)
	e.Message, e.Details, e.Remedy = summary(e.Reason, remote, local, report), details(remote), remedyFor(text)
	if e.Reason == ReasonPushProtection {
		e.Details = secretDetails(remote)
	}
	if e.Reason == ReasonRateLimit {
		e.RetryAfter = time.Minute // GitHub's least, and git shows no header
	}
	return e
}

// splitStderr parts what the server said from what git said.
func splitStderr(stderr string) (remote, local []string) {
	for line := range strings.SplitSeq(stderr, "\n") {
		if said, ok := strings.CutPrefix(line, "remote:"); ok {
			remote = append(remote, strings.TrimSpace(said))
		} else if line = strings.TrimSpace(line); line != "" {
			local = append(local, line)
		}
	}
	return remote, local
}

// refReason is the reason in parentheses that a ref's line of the report ends
// with.
var refReason = lazyregexp.New(`(?m)^!\t[^\t]*\t\[(?:remote )?rejected\] \((.*)\)$`)

// summary picks the line that says most.
func summary(r Reason, remote, local []string, report string) string {
	var lines []string
	if m := refReason.FindStringSubmatch(report); m != nil && r != ReasonProtected && r != ReasonRuleset && r != ReasonPushProtection {
		lines = append(lines, m[1])
	}
	for _, line := range remote {
		lines = append(lines, strings.TrimPrefix(line, "error: "))
	}
	for _, prefix := range []string{"error: RPC failed; ", "fatal: "} {
		for _, line := range local {
			if said, ok := strings.CutPrefix(line, prefix); ok {
				lines = append(lines, said)
			}
		}
	}
	for _, line := range append(lines, local...) {
		if line = strings.TrimSpace(line); line != "" {
			return shown(line)
		}
	}
	return "git failed and said nothing"
}

const (
	maxDetails = 60  // lines of a server's answer that are kept
	maxLine    = 500 // bytes of a line; GitHub's own are shorter
)

// shown makes a line of a server's answer fit to be shown.
func shown(line string) string {
	if len(line) > maxLine {
		line = strings.ToValidUTF8(line[:maxLine], "") + "…"
	}
	return escape.String(line)
}

// details keeps the lines of an answer, without hints and bare links.
func details(remote []string) []string {
	var out []string
	for _, line := range remote {
		line = strings.Trim(line, " —")
		if line == "" || strings.HasPrefix(line, "(?)") || strings.HasPrefix(line, "http") || len(out) == maxDetails {
			continue
		}
		out = append(out, shown(line))
	}
	return out
}

// listedSecrets is how many secrets GitHub lists at most.
const listedSecrets = 5

// secretDetails keeps the bullets of an answer that has push protection's among
// them, and one line for each place of a secret. The links that let a secret
// pass are left out: whoever clicks one publishes the secret.
func secretDetails(remote []string) []string {
	var out []string
	var kind, commit string
	kinds := 0
	for _, line := range remote {
		name := strings.Trim(line, " —")
		id, isCommit := strings.CutPrefix(line, "- commit: ")
		path, isPath := strings.CutPrefix(line, "path: ")
		switch {
		case len(out) == maxDetails:
		case strings.HasPrefix(line, "—") && name != "":
			kind, commit = name, ""
			kinds++
		case isCommit:
			commit = id
		case isPath && kind != "":
			out = append(out, shown(fmt.Sprintf("%s in %s of commit %.10s", kind, path, commit)))
		case strings.HasPrefix(line, "- ") && line != "- GITHUB PUSH PROTECTION":
			out = append(out, shown(line))
		}
	}
	if kinds == 0 { // in words that kick does not know
		return details(remote)
	}
	if kinds >= listedSecrets {
		out = append(out, fmt.Sprintf("the server lists %d secrets at most, and there may be more", listedSecrets))
	}
	return out
}

// further are remedies for refusals that share a reason with others.
var further = []struct {
	match  *lazyregexp.Regexp
	remedy string
}{
	{lazyregexp.New(`IP allow list`), "Add this host's address to the organization's IP allow list, or run kick where it is on it."},
	{lazyregexp.New(`SAML`), "Authorize the token for the organization's single sign-on, or use a GitHub App, which needs none."},
	{lazyregexp.New(`installation has been suspended`), "Unsuspend the App's installation in the organization's settings."},
}

// remedyFor returns what to do about a refusal in these words, if it differs
// from what its reason's remedy says.
func remedyFor(words string) string {
	for _, f := range further {
		if f.match.MatchString(words) {
			return f.remedy
		}
	}
	return ""
}

// classifyAPI turns an error of a REST call into a PublishError.
func classifyAPI(ctx context.Context, op string, err error) *PublishError {
	e := &PublishError{Op: op, Message: shown(err.Error()), Err: err}
	var (
		answer  *github.ErrorResponse
		limit   *github.RateLimitError
		abuse   *github.AbuseRateLimitError
		already *PublishError
	)
	switch {
	case errors.As(err, &already):
		return already
	case ctx.Err() != nil:
		e.Reason = ReasonCancelled
	case errors.Is(err, githubapp.ErrTooWide):
		e.Reason = ReasonTokenTooWide
	case errors.As(err, &limit):
		e.Reason, e.Message, e.RetryAfter = ReasonRateLimit, shown(limit.Message), limitWait(time.Until(limit.Rate.Reset.Time))
	case errors.As(err, &abuse):
		e.Reason, e.Message, e.RetryAfter = ReasonRateLimit, shown(abuse.Message), time.Minute
		if abuse.RetryAfter != nil {
			e.RetryAfter = limitWait(*abuse.RetryAfter)
		}
	case errors.As(err, &answer):
		e.fromAnswer(answer)
	case errors.As(err, new(interface{ Timeout() bool })), errors.Is(err, io.ErrUnexpectedEOF):
		e.Reason = ReasonNetwork
	case strings.Contains(err.Error(), "GitHub App"): // its key or id, before anything was sent
		e.Reason = ReasonAuthentication
	default:
		e.Reason = ReasonAnswer
	}
	return e
}

// limitWait bounds a wait that a server asks for: GitHub's windows last an hour
// at most, and a clock that is wrong gives any number.
func limitWait(d time.Duration) time.Duration { return min(max(d, time.Second), time.Hour) }

// headerWait reads the wait from a refusal for its rate. Without a header it is
// GitHub's least, a minute.
func headerWait(h http.Header) time.Duration {
	if n, err := strconv.ParseInt(h.Get("Retry-After"), 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return limitWait(time.Duration(min(max(n, 0), 3600)) * time.Second)
	}
	if n, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64); err == nil && h.Get("X-RateLimit-Remaining") == "0" {
		return limitWait(time.Until(time.Unix(n, 0)))
	}
	return time.Minute
}

// fromAnswer reads GitHub's error body.
func (e *PublishError) fromAnswer(a *github.ErrorResponse) {
	e.Message = shown(a.Message)
	for _, one := range a.Errors {
		words := one.Message
		if words == "" {
			words = strings.TrimSpace(one.Resource + " " + one.Field + " " + one.Code)
		}
		if len(e.Details) < maxDetails {
			e.Details = append(e.Details, shown(words))
		}
	}
	status := a.Response.StatusCode
	if e.Message == "" && len(e.Details) == 0 {
		e.Message = "the server answered " + shown(a.Response.Status)
	}
	e.Remedy = remedyFor(a.Message)
	switch {
	case status == 401:
		e.Reason = ReasonAuthentication
	case status == 403 && strings.Contains(a.Message, "archived"):
		e.Reason = ReasonReadOnly
	case status == 429, status == 403 && strings.Contains(strings.ToLower(a.Message), "rate limit"):
		e.Reason, e.RetryAfter = ReasonRateLimit, headerWait(a.Response.Header)
	case status == 403:
		e.Reason = ReasonPermission
	case status == 404:
		e.Reason = ReasonNotFound
	case status >= 300 && status < 400:
		e.Reason = ReasonMoved
	case status >= 500:
		e.Reason = ReasonServer
	case status == 422 && strings.Contains(a.Message, "permissions requested are not granted"):
		e.Reason = ReasonPermission
	default:
		e.Reason = ReasonRejected
	}
}
