package policy

import (
	"fmt"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/lazyregexp"
)

var contentRules = []Rule{{
	ID: "content-bidi", Level: Block,
	Reason: "a text file gains a character that shows another text than there is, or carries one that does not show",
	Remedy: "Remove the bidirectional control, tag or variation selector, or write it as an escape of the language.",
	match: onChange(func(c *Change) string {
		if c.Blob == nil {
			return ""
		}
		return c.Blob.Bidi
	}),
	Matches: []Subject{blob("a.go", Blob{Bidi: "U+202E on line 1"})},
	Misses:  []Subject{blob("a.go", Blob{}), added("a.go")},
}, {
	ID: "content-control", Level: Block,
	Reason: "a text file gains a control character, which acts on a terminal that shows the file",
	Remedy: "Write it as an escape of the language, such as \\x1b.",
	match: onChange(func(c *Change) string {
		if c.Blob == nil {
			return ""
		}
		return c.Blob.Control
	}),
	Matches: []Subject{blob("a.txt", Blob{Control: "U+001B on line 1"})},
	Misses:  []Subject{blob("a.txt", Blob{}), blob("a.png", Blob{Binary: true})},
}, {
	ID: "content-zero-width", Level: Review,
	Reason: "a text file gains a character that takes no room, which a reader does not see",
	Remedy: "Remove it, or write it as an escape of the language.",
	match: onChange(func(c *Change) string {
		if c.Blob == nil {
			return ""
		}
		return c.Blob.ZeroWidth
	}),
	Matches: []Subject{blob("a.txt", Blob{ZeroWidth: "U+200B on line 1"})},
	Misses:  []Subject{blob("a.txt", Blob{})},
}, {
	ID: "content-agent", Level: Block,
	Reason: "a file that instructs coding agents has text that a person does not see",
	Remedy: "Remove the character: what an agent is told, a person must be able to read.",
	match: onChange(func(c *Change) string {
		if c.Blob == nil || c.class(agentPaths) == "" {
			return ""
		}
		return c.Blob.ZeroWidth // what shows another text blocks in every file
	}),
	Matches: []Subject{blob("AGENTS.md", Blob{ZeroWidth: "U+200B on line 1"}), blob("sub/.cursor/rules/x.mdc", Blob{ZeroWidth: "U+2060 on line 2"})},
	Misses:  []Subject{blob("AGENTS.md", Blob{}), blob("AGENTS.md", Blob{Bidi: "U+E0041 on line 2"}), blob("docs/a.md", Blob{ZeroWidth: "U+200B on line 1"})},
}, {
	ID: "lfs-pointer", Level: Review,
	Reason: "a Git LFS pointer: its content is not in the push and was not inspected",
	Remedy: "Have a person check the object that it points to, or commit the file itself.",
	match: onChange(func(c *Change) string {
		if c.Blob == nil {
			return ""
		}
		return c.Blob.LFS
	}),
	Matches: []Subject{blob("model.bin", Blob{LFS: "sha256:00"})},
	Misses:  []Subject{blob("model.bin", Blob{})},
}, {
	ID: "binary", Level: Report,
	Reason:  "a binary file is added or changed: a review sees none of it",
	Remedy:  "Check where it comes from.",
	match:   onChange(func(c *Change) string { return ifTrue(c.Blob != nil && c.Blob.Binary, "it has a NUL byte") }),
	Matches: []Subject{blob("a.png", Blob{Binary: true})},
	Misses:  []Subject{blob("a.txt", Blob{})},
}}

// trailer finds "Some-Thing-by: name <mail>" lines, anywhere in a message:
// forges and bots do not agree on what a trailer block is.
var trailer = lazyregexp.New(`(?im)^[ \t>]*((?:signed-off|co-authored|co-developed|authored|committed|reviewed|acked|tested|approved|verified|reported|suggested|requested|helped|mentored)-by)[ \t]*:[ \t]*(.*)$`)

var skipChecks = lazyregexp.New(`(?im)^[ \t]*(skip-checks|request-checks)[ \t]*:[ \t]*\S+`)

// skipCI are the forms that GitHub, GitLab, Azure, CircleCI, Travis, AppVeyor,
// Netlify, Vercel and others document for "run nothing for this commit".
var skipCI = lazyregexp.New(`(?i)\[\s*(skip[ _-](ci|actions|azurepipelines|azp|travis|circleci|cirrus|appveyor|buildkite|jenkins|drone|netlify|vercel|render|cd|cf|github|gh|pre-commit\.ci)|(ci|cd|actions|azurepipelines|azp|travis|circleci|cirrus|appveyor|buildkite|netlify|vercel|render|cf-pages|pre-commit\.ci)[ _-]skip|no[ _-]ci)\s*\]|\*\*\*NO_CI\*\*\*`)

// WithoutSkipMarks makes the marks by which a text keeps CI from running
// readable and without effect: [skip ci] becomes (skip ci).
func WithoutSkipMarks(text string) string {
	return skipCI.ReplaceAllStringFunc(text, func(mark string) string {
		return "(" + strings.Trim(mark, "[]*") + ")"
	})
}

// releaseAs is a footer of https://github.com/googleapis/release-please.
var releaseAs = lazyregexp.New(`(?im)^[ \t]*release-as[ \t]*:.*$`)

var mailOf = lazyregexp.New(`<([^<>]*)>`)

// closing finds what a forge acts on when a message reaches the default branch:
// https://docs.github.com/issues/tracking-your-work-with-issues/using-issues/linking-a-pull-request-to-an-issue
var closing = lazyregexp.New(`(?i)\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?|implement(?:s|ed)?):?\s+(?:(?:[a-z0-9_.-]+/[a-z0-9_.-]+)?#[0-9]+|gh-[0-9]+|https?://[^\s/]+/[^\s]+/(?:issues|pull)/[0-9]+)`)

// mention finds @name and @org/team where a forge would call them: behind white
// space or a bracket, so that no address is one.
var mention = lazyregexp.New(`(?:^|[\s(\[{,;])(@[A-Za-z0-9][A-Za-z0-9-]*(?:/[A-Za-z0-9_.-]+)?)`)

// lines ends every line of a message with a line feed: to bots and browsers, a
// carriage return or a separator of Unicode ends one too.
var lines = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")

var commitRules = []Rule{{
	ID: "commit-header", Level: Block,
	Reason:  "a commit header has other lines, or another form, than git commit writes",
	Remedy:  "Make the commit again with plain git commit, without a signature.",
	match:   onCommit(func(c *Commit) string { return c.Header }),
	Matches: []Subject{{Commit: &Commit{Header: `line 5: "gpgsig" is not allowed`}}},
	Misses:  []Subject{{Commit: &Commit{}}},
}, {
	ID: "commit-identity", Level: Block,
	Reason: "a commit names an author or committer other than the kick's",
	Remedy: "Commit with the identity that the workspace is set up with.",
	match: onCommit(func(c *Commit) string {
		if c.Expect == (Identity{}) {
			return ""
		}
		for _, id := range []struct {
			role string
			Identity
		}{{"author", c.Author}, {"committer", c.Committer}} {
			unread := c.Header != "" && id.Identity == Identity{} // commit-header says why
			if id.Identity != c.Expect && !unread {
				return fmt.Sprintf("%s %q <%s>", id.role, id.Name, id.Email)
			}
		}
		return ""
	}),
	Matches: []Subject{
		{Commit: &Commit{Author: Identity{"M", "m@x"}, Committer: Identity{"k", "k@x"}, Expect: Identity{"k", "k@x"}}},
		{Commit: &Commit{Author: Identity{"k", "k@x"}, Committer: Identity{"k", "m@x"}, Expect: Identity{"k", "k@x"}}},
	},
	Misses: []Subject{
		{Commit: &Commit{Author: Identity{"k", "k@x"}, Committer: Identity{"k", "k@x"}, Expect: Identity{"k", "k@x"}}},
		{Commit: &Commit{Author: Identity{"M", "m@x"}}},
		{Commit: &Commit{Header: "there is no author", Expect: Identity{"k", "k@x"}}},
	},
}, {
	ID: "commit-sign-off", Level: Block,
	Reason: "a message carries a sign-off, review or co-author line in someone else's name",
	Remedy: "Remove the line, or have the operator allow the address under changes.co_authors.",
	match:  onCommit(foreignTrailer),
	Matches: []Subject{
		message("e\n\nSigned-off-by: Maintainer <maintainer@example.com>"),
		message("e\n\nreviewed-BY : M <m@example.com>\n"),
		message("e\n\nCo-authored-by: M <m@example.com>"),
		message("e\n\nSigned-off-by: nobody"),
		message("e\rSigned-off-by: M <m@example.com>"),
		{Commit: &Commit{Message: "e\n\nCo-authored-by: M <m@example.com> <noreply@anthropic.com>", CoAuthors: []string{"noreply@anthropic.com"}}},
		{Commit: &Commit{Message: "e\n\nSigned-off-by: M <m@example.com <k@x>", Expect: Identity{"k", "k@x"}}},
		{Commit: &Commit{Message: "e\n\nSigned-off-by: Agent <noreply@anthropic.com>", CoAuthors: []string{"noreply@anthropic.com"}}},
	},
	Misses: []Subject{
		message("stop-by: nothing\nand what a reviewed-by: line means"),
		{Commit: &Commit{Message: "e\n\nCo-authored-by: Claude <noreply@anthropic.com>", CoAuthors: []string{"noreply@anthropic.com"}}},
		{Commit: &Commit{Message: "e\n\nSigned-off-by: k <k@x>", Expect: Identity{"k", "k@x"}}},
	},
}, {
	ID: "commit-skip-checks", Level: Block,
	Reason:  "a message has a trailer that keeps required checks from running",
	Remedy:  "Remove the skip-checks line from the message.",
	match:   onCommit(func(c *Commit) string { return strings.TrimSpace(skipChecks.FindString(lines.Replace(c.Message))) }),
	Matches: []Subject{message("e\n\nskip-checks: true"), message("e\n\nSkip-Checks:true\n"), message("e\n\nrequest-checks: true"), message("e\r\rskip-checks: true"), message("e\u2028skip-checks: true")},
	Misses:  []Subject{message("explain skip-checks: what it does"), message("e")},
}, {
	ID: "commit-skip-ci", Level: Review,
	Reason:  "a message asks CI not to run",
	Remedy:  "Remove the mark from the message.",
	match:   onCommit(func(c *Commit) string { return skipCI.FindString(c.Message) }),
	Matches: []Subject{message("docs [skip ci]"), message("[ci skip] x"), message("x [No CI]"), message("***NO_CI***"), message("[skip actions]"), message("[pre-commit.ci skip]"), message("[Skip-CI]")},
	Misses:  []Subject{message("skip ci on forks"), message("[ci] skip broken test")},
}, {
	ID: "commit-release", Level: Review,
	Reason:  "a message tells a release bot what to release when it is merged",
	Remedy:  "Check that this is meant, or remove it from the message.",
	match:   onCommit(func(c *Commit) string { return strings.TrimSpace(releaseAs.FindString(lines.Replace(c.Message))) }),
	Matches: []Subject{message("x\n\nRelease-As: 9.9.9"), message("x\r\rrelease-as : 2.0.0")},
	Misses:  []Subject{message("Say what Release-As: does"), message("x\n\nReleased: yesterday")},
}, {
	ID: "commit-reference", Level: Report,
	Reason: "a message closes an issue when it is merged, or calls someone",
	Remedy: "Check that this is meant, or remove it from the message.",
	match: onCommit(func(c *Commit) string {
		if s := closing.FindString(c.Message); s != "" {
			return s
		}
		if m := mention.FindStringSubmatch(c.Message); m != nil {
			return m[1]
		}
		return ""
	}),
	Matches: []Subject{message("x\n\nCloses #1"), message("fixes acme/api#2"), message("Resolved: GH-7"), message("fix https://github.com/acme/api/issues/3"), message("thanks @octocat"), message("(@acme/platform)")},
	Misses:  []Subject{message("fix the issue of #1 in a list"), message("see #12"), message("mail me@example.com"), message("e\n\nCo-authored-by: Claude <noreply@anthropic.com>")},
}, {
	ID: "commit-empty", Level: Block,
	Reason:  "a commit changes nothing",
	Remedy:  "Drop the empty commit; it only makes CI and reviews start again.",
	match:   onCommit(func(c *Commit) string { return ifTrue(c.Empty && c.Parents > 0, "its tree is that of its parent") }),
	Matches: []Subject{{Commit: &Commit{Empty: true, Parents: 1}}, {Commit: &Commit{Empty: true, Parents: 2}}},
	Misses:  []Subject{{Commit: &Commit{Parents: 1}}},
}, {
	ID: "commit-message", Level: Block,
	Reason: "a message has a character that does not show, or that changes how text is shown",
	Remedy: "Write the message with visible characters only.",
	match: onCommit(func(c *Commit) string {
		if why := atInvalidUTF8(c.Message); why != "" {
			return "not valid UTF-8: " + why
		}
		for i, r := range c.Message {
			lone := r == '\r' && !strings.HasPrefix(c.Message[i+1:], "\n")
			if lone || escape.Control(r) && r != '\n' && r != '\t' && r != '\r' || escape.Bidi(r) {
				return onLine(c.Message, i, r)
			}
		}
		for _, find := range []func(string) (int, rune){escape.Concealed, escape.ZeroWidth} {
			if at, r := find(c.Message); at >= 0 {
				return onLine(c.Message, at, r)
			}
		}
		return ""
	}),
	Matches: []Subject{message("a\x1b[2Kb"), message("a\u202eb"), message("a\xffb"), message("tag\U000E0041"), message("a\rb"), message("a\u2028b"), message("🙂\U000E0110\U000E0111"), message("pass\u200bword")},
	Misses:  []Subject{message("übersetzt\n\n\t- ok\r\n"), message("family 👨\u200d👩\u200d👧 and ❤\ufe0f")},
}}

// onLine names a character of text and its line.
func onLine(text string, at int, r rune) string {
	return fmt.Sprintf("U+%04X on line %d", r, 1+strings.Count(text[:at], "\n"))
}

// foreignTrailer returns the first trailer that speaks for someone who is
// neither the kick's identity nor, as a co-author, allowed.
func foreignTrailer(c *Commit) string {
	for _, m := range trailer.FindAllStringSubmatch(lines.Replace(c.Message), -1) {
		kind, who := strings.ToLower(m[1]), strings.TrimSpace(m[2])
		mails := mailOf.FindAllStringSubmatch(who, -1)
		own := len(mails) > 0 && len(mails) == strings.Count(who, "<")
		for _, mail := range mails {
			own = own && (c.Expect.Email != "" && strings.EqualFold(mail[1], c.Expect.Email) ||
				kind == "co-authored-by" && containsFold(c.CoAuthors, mail[1]))
		}
		if !own {
			return m[1] + ": " + who
		}
	}
	return ""
}

func containsFold(list []string, s string) bool {
	for _, e := range list {
		if s != "" && strings.EqualFold(e, s) {
			return true
		}
	}
	return false
}

var workRules = []Rule{{
	ID: "history-rewritten", Level: Block, Fixed: true,
	Reason:  "the work does not contain the base commit: history was rewritten",
	Remedy:  "Commit on top of the base instead of amending or rebasing it.",
	match:   onWork(func(w *Work) string { return ifTrue(w.Rewritten, "the base is no ancestor of the last commit") }),
	Matches: []Subject{{Work: &Work{Rewritten: true}}},
	Misses:  []Subject{{Work: &Work{}}},
}, {
	ID: "history-unrelated", Level: Block, Fixed: true,
	Reason:  "a new commit has no parent: it brings an unrelated history",
	Remedy:  "Copy the files in instead of merging another history.",
	match:   onWork(func(w *Work) string { return w.Unrelated }),
	Matches: []Subject{{Work: &Work{Unrelated: "0123"}}},
	Misses:  []Subject{{Work: &Work{}}},
}, {
	ID: "history-foreign", Level: Block, Fixed: true,
	Reason:  "a commit is one that the repository has outside of the base",
	Remedy:  "Start a kick on the newer base instead of bringing its commits along.",
	match:   onWork(func(w *Work) string { return w.Foreign }),
	Matches: []Subject{{Work: &Work{Foreign: "0123"}}},
	Misses:  []Subject{{Work: &Work{}}},
}, {
	ID: "duplicate", Level: Block,
	Reason:  "an open pull request of another kick has the very same result",
	Remedy:  "Review or close that pull request; a second one would add nothing.",
	match:   onWork(func(w *Work) string { return w.Duplicate }),
	Matches: []Subject{{Work: &Work{Duplicate: "pull request #7"}}},
	Misses:  []Subject{{Work: &Work{}}},
}, {
	ID: "limit-files", Level: Block,
	Reason:  "more files change than the policy allows for one push",
	Remedy:  "Split the work, or have the operator raise changes.limits.files.",
	match:   onWork(func(w *Work) string { return over(int64(w.Files), int64(w.Limits.Files), "files") }),
	Matches: []Subject{{Work: &Work{Files: 1001, Limits: DefaultLimits()}}},
	Misses:  []Subject{{Work: &Work{Files: 1000, Limits: DefaultLimits()}}},
}, {
	ID: "limit-commits", Level: Block,
	Reason:  "more commits are new than the policy allows for one push",
	Remedy:  "Squash the work, or have the operator raise changes.limits.commits.",
	match:   onWork(func(w *Work) string { return over(int64(w.Commits), int64(w.Limits.Commits), "commits") }),
	Matches: []Subject{{Work: &Work{Commits: 101, Limits: DefaultLimits()}}},
	Misses:  []Subject{{Work: &Work{Commits: 100, Limits: DefaultLimits()}}},
}, {
	ID: "limit-total-bytes", Level: Block,
	Reason:  "the new content is larger than the policy allows for one push",
	Remedy:  "Leave large files out, or have the operator raise changes.limits.total_bytes.",
	match:   onWork(func(w *Work) string { return over(w.Bytes, w.Limits.TotalBytes, "bytes") }),
	Matches: []Subject{{Work: &Work{Bytes: 20<<20 + 1, Limits: DefaultLimits()}}},
	Misses:  []Subject{{Work: &Work{Bytes: 20 << 20, Limits: DefaultLimits()}}},
}}

func over(n, limit int64, unit string) string {
	if n <= limit {
		return ""
	}
	return fmt.Sprintf("%d %s, limit %d", n, unit, limit)
}

// ingestRules are raised by the push broker where it finds the thing.
var ingestRules = []Rule{{
	ID: "limit-file-bytes", Level: Block,
	Reason: "a file is larger than the policy allows",
	Remedy: "Leave the file out, or have the operator raise changes.limits.file_bytes.",
}, {
	ID: "path-not-allowed", Level: Block,
	Reason: "a path is outside of what the policy lets this agent change",
	Remedy: "Leave it as it is, or have the operator add it to changes.allow_only.",
}, {
	ID: "protected-custom", Level: Block,
	Reason: "a path that the policy protects",
	Remedy: leaveToPerson,
}, {
	ID: "exception-expired", Level: Report,
	Reason: "an exception of the policy would have applied, but has expired",
	Remedy: "Have the operator renew the exception or remove it.",
}, {
	ID: "bundle-format", Level: Block, Fixed: true,
	Reason: "the bundle is not one that kick takes",
	Remedy: "Run the kick again, or make the bundle of one branch: git bundle create FILE BASE..BRANCH. If a kick's own is refused twice, its sandbox tampers with it.",
}, {
	ID: "object-malformed", Level: Block, Fixed: true,
	Reason: "git's strict check refused an object of the work",
	Remedy: "Make the commits again with plain git commands.",
}, {
	ID: "object-stuffing", Level: Block, Fixed: true,
	Reason: "the bundle carries objects that belong to neither the work nor the base",
	Remedy: "Run the kick again; if it happens again, the sandbox tampers with the bundle.",
}, {
	ID: "limit-ingest", Level: Block, Fixed: true,
	Reason: "the work is larger than kick takes in at all",
	Remedy: "Make the work smaller: fewer or smaller files and commits.",
}, {
	ID: "too-many-findings", Level: Block, Fixed: true,
	Reason: "there are more findings than are listed",
	Remedy: "Mend those that are listed first.",
}}
