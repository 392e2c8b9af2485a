package workspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unicode"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/lazyregexp"
)

// explanations turn git's and curl's words into what to do. The first pattern
// that is found in what git wrote decides; git runs with LC_ALL=C. HOST and
// WHERE are replaced.
var explanations = []struct {
	pattern *lazyregexp.Regexp
	kind    error
	remedy  string
}{
	{lazyregexp.New(`dubious ownership`), ErrSource,
		"run kick as the owner of the repository or, if you trust its owner, run: git config --global --add safe.directory WHERE"},
	{lazyregexp.New(`does not appear to be a git repository|not a git repository`), ErrSource,
		"give the directory of a git repository"},
	{lazyregexp.New(`No space left on device|Disk quota exceeded`), ErrHost,
		"free disk space, or let kick gc remove mirrors that are not used"},
	{lazyregexp.New(`could not read Username|could not read Password`), ErrRemote,
		"kick has no credential that HOST accepts for this repository; configure one, or use an ssh URL"},
	{lazyregexp.New(`Authentication failed|Invalid username or|returned error: 40[13]`), ErrRemote,
		"the credential was refused: check that it is valid and may read this repository"},
	{lazyregexp.New(`Repository not found|repository '.*' not found|returned error: 404`), ErrSource,
		"check the URL, and that the credential may read this repository"},
	{lazyregexp.New(`returned error: 30[0-9]|unable to update url base from redirection`), ErrSource,
		"the remote redirects, and kick does not follow with a credential: use the repository's present URL"},
	{lazyregexp.New(`promisor|lazy fetch`), ErrSource,
		"the repository is a partial clone: run git fetch --refetch --no-filter there, or name the repository that it was cloned from"},
	{lazyregexp.New(`Permission denied \(|Host key verification failed`), ErrRemote,
		"check that ssh to this host works without a question, with a key in an agent or in ~/.ssh"},
	{lazyregexp.New(`transport '.*' not allowed`), ErrSource,
		"use https, ssh, file, or http to this machine"},
	{lazyregexp.New(`Could not resolve|Connection refused|timed out|Operation too slow|SSL|certificate|Failed to connect`), ErrRemote,
		"check the network, the proxy and the certificates of this host"},
}

// explain turns a failed git command into an Error with a remedy and without
// the credential.
func (s *session) explain(ctx context.Context, err error) error {
	var g *gitcmd.Error
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("talk to %s: %w", s.url, context.Cause(ctx))
	case !errors.As(err, &g):
		return err
	}
	said := s.redact(printable(g.Stderr))
	e := &Error{Kind: ErrRemote, Op: "git " + g.Args[0] + " " + s.url + ": " + complaint(said), Remedy: "see git's message"}
	if said == "" {
		e.Err = g.Err
	}
	for _, x := range explanations {
		if x.pattern.MatchString(said) {
			e.Kind = x.kind
			e.Remedy = strings.NewReplacer("HOST", s.scope, "WHERE", shellWord(gitcmd.DubiousOwner(err))).Replace(x.remedy)
			break
		}
	}
	return e
}

func (s *session) redact(text string) string {
	for _, secret := range []string{s.git.Password, s.git.User} {
		if len(secret) > 3 && secret != "x-access-token" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

// complaint is the first line that git marks as an error, which says more than
// those after it, and what the remote said; everything if nothing is marked.
func complaint(said string) string {
	var git, remote string
	for line := range strings.SplitSeq(said, "\n") {
		if text, ok := strings.CutPrefix(line, "remote: "); ok && remote == "" {
			remote = " (remote: " + strings.TrimSpace(text) + ")"
		}
		_, text, ok := strings.Cut(line, ": ")
		if ok && git == "" && (strings.HasPrefix(line, "fatal: ") || strings.HasPrefix(line, "error: ")) {
			git = text
		}
	}
	if git == "" {
		return strings.ReplaceAll(said, "\n", "; ")
	}
	return git + remote
}

// shellWord quotes a path where a shell needs it.
func shellWord(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+") == "" {
		return s
	}
	return shellQuote(printable(s))
}

// printable replaces what a terminal would obey: text of a remote is in it.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, text)
}

// hostError says what could not be done on this host.
func hostError(op string, err error) error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", op, err)
	}
	e := &Error{Kind: ErrHost, Op: op, Err: err}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Remedy = "free disk space, or let kick gc remove mirrors that are not used"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		e.Remedy = "make the directory writable for the user who runs kick"
	}
	return e
}
