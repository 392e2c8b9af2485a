package policy

import (
	"fmt"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/lazyregexp"
)

var contentRules = []Rule{{
	ID: "content-bidi", Level: Block,
	Reason: "a text file gains a character that changes the order in which code is shown",
	Remedy: "Remove the bidirectional controls, or write them as escapes of the language.",
	match: onChange(func(c *Change) string {
		if c.Blob == nil {
			return ""
		}
		return c.Blob.Bidi
	}),
	Matches: []Subject{blob("a.go", Blob{Bidi: "U+202E on line 1"})},
	Misses:  []Subject{blob("a.go", Blob{}), added("a.go")},
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
// Netlify and Vercel document for "run nothing for this commit".
var skipCI = lazyregexp.New(`(?i)\[\s*(skip[ -](ci|actions|azurepipelines|azp|travis|circleci|appveyor|netlify|vercel|cd|github)|(ci|actions|azurepipelines|azp|travis|appveyor|vercel)[ -]skip|no ci)\s*\]|\*\*\*NO_CI\*\*\*`)

var mailOf = lazyregexp.New(`<([^<>]*)>\s*$`)

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
		if c.Author != c.Expect {
			return fmt.Sprintf("author %q <%s>", c.Author.Name, c.Author.Email)
		}
		if c.Committer != c.Expect {
			return fmt.Sprintf("committer %q <%s>", c.Committer.Name, c.Committer.Email)
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
	match:   onCommit(func(c *Commit) string { return strings.TrimSpace(skipChecks.FindString(c.Message)) }),
	Matches: []Subject{message("e\n\nskip-checks: true"), message("e\n\nSkip-Checks:true\n"), message("e\n\nrequest-checks: true")},
	Misses:  []Subject{message("explain skip-checks: what it does"), message("e")},
}, {
	ID: "commit-skip-ci", Level: Review,
	Reason:  "a message asks CI not to run",
	Remedy:  "Remove the mark from the message.",
	match:   onCommit(func(c *Commit) string { return skipCI.FindString(c.Message) }),
	Matches: []Subject{message("docs [skip ci]"), message("[ci skip] x"), message("x [No CI]"), message("***NO_CI***"), message("[skip actions]")},
	Misses:  []Subject{message("skip ci on forks"), message("[ci] skip broken test")},
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
			if escape.Control(r) && r != '\n' && r != '\t' && r != '\r' || escape.Bidi(r) || 0xE0000 <= r && r <= 0xE007F || r == 0x200B {
				return fmt.Sprintf("U+%04X on line %d", r, 1+strings.Count(c.Message[:i], "\n"))
			}
		}
		return ""
	}),
	Matches: []Subject{message("a\x1b[2Kb"), message("a\u202eb"), message("a\xffb"), message("tag\U000E0041")},
	Misses:  []Subject{message("übersetzt\n\n\t- ok\r\n"), message("family 👨\u200d👩\u200d👧 and ❤\ufe0f")},
}}

// foreignTrailer returns the first trailer that speaks for someone who is
// neither the kick's identity nor, as a co-author, allowed.
func foreignTrailer(c *Commit) string {
	for _, m := range trailer.FindAllStringSubmatch(c.Message, -1) {
		kind, who := strings.ToLower(m[1]), strings.TrimSpace(m[2])
		mail := ""
		if a := mailOf.FindStringSubmatch(who); a != nil {
			mail = a[1]
		}
		if c.Expect.Email != "" && strings.EqualFold(mail, c.Expect.Email) {
			continue
		}
		if kind == "co-authored-by" && containsFold(c.CoAuthors, mail) {
			continue
		}
		return m[1] + ": " + who
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
	Remedy: "Run the kick again; if it happens again, the sandbox tampers with the bundle.",
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
