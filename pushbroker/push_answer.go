package pushbroker

import (
	"context"
	"errors"
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
	{lazyregexp.New(`GH006|protected branch hook declined`), ReasonProtected},
	{lazyregexp.New(`GH013|repository rule violations`), ReasonRuleset},
	{lazyregexp.New(`GH01[0-9]`), ReasonRuleset},
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
	{lazyregexp.New(`Could not resolve host|Failed to connect|Couldn't connect|Connection (refused|reset|timed out)|timed out|RPC failed|early EOF|hung up|unexpected disconnect|Empty reply|Operation too slow|SSL|TLS|recv failure`), ReasonNetwork},
}

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
	text := g.Stderr + "\n" + report
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
	e.Message, e.Details = summary(e.Reason, remote, local, report), details(remote)
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
	for _, line := range local {
		if said, ok := strings.CutPrefix(line, "fatal: "); ok {
			lines = append(lines, said)
		}
	}
	for _, line := range append(lines, local...) {
		if line = strings.TrimSpace(line); line != "" {
			return escape.String(line)
		}
	}
	return "git failed and said nothing"
}

// maxDetails bounds what of a server's answer is kept; GitHub lists at most
// five secrets.
const maxDetails = 60

// details keeps the bullets of an answer: rules, secrets and their places.
func details(remote []string) []string {
	var out []string
	for _, line := range remote {
		line = strings.Trim(line, " —")
		if line == "" || strings.HasPrefix(line, "(?)") || len(out) == maxDetails {
			continue
		}
		out = append(out, escape.String(line))
	}
	return out
}

// classifyAPI turns an error of a REST call into a PublishError.
func classifyAPI(ctx context.Context, op string, err error) *PublishError {
	e := &PublishError{Op: op, Message: escape.String(err.Error()), Err: err}
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
		e.Reason, e.Message, e.RetryAfter = ReasonRateLimit, escape.String(limit.Message), max(time.Until(limit.Rate.Reset.Time), time.Second)
	case errors.As(err, &abuse):
		e.Reason, e.Message, e.RetryAfter = ReasonRateLimit, escape.String(abuse.Message), time.Minute
		if abuse.RetryAfter != nil {
			e.RetryAfter = *abuse.RetryAfter
		}
	case errors.As(err, &answer):
		e.fromAnswer(answer)
	case errors.As(err, new(interface{ Timeout() bool })):
		e.Reason = ReasonNetwork
	case strings.Contains(err.Error(), "GitHub App"): // its key or id, before anything was sent
		e.Reason = ReasonAuthentication
	default: // an answer that is not what the API gives
		e.Reason = ReasonRejected
	}
	return e
}

// fromAnswer reads GitHub's error body.
func (e *PublishError) fromAnswer(a *github.ErrorResponse) {
	e.Message = escape.String(a.Message)
	for _, one := range a.Errors {
		words := one.Message
		if words == "" {
			words = strings.TrimSpace(one.Resource + " " + one.Field + " " + one.Code)
		}
		if len(e.Details) < maxDetails {
			e.Details = append(e.Details, escape.String(words))
		}
	}
	status := a.Response.StatusCode
	if e.Message == "" && len(e.Details) == 0 {
		e.Message = "the server answered " + escape.String(a.Response.Status)
	}
	switch {
	case status == 401:
		e.Reason = ReasonAuthentication
	case status == 403 && strings.Contains(a.Message, "archived"):
		e.Reason = ReasonReadOnly
	case status == 429, status == 403 && strings.Contains(strings.ToLower(a.Message), "rate limit"):
		e.Reason, e.RetryAfter = ReasonRateLimit, time.Minute
		if d, err := time.ParseDuration(a.Response.Header.Get("Retry-After") + "s"); err == nil && d > 0 {
			e.RetryAfter = d
		}
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
