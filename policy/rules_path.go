package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/lazyregexp"
)

// MaxPath and MaxName are the longest path and the longest name that can be
// checked out on Linux (PATH_MAX, NAME_MAX), in bytes.
const (
	MaxPath = 4095
	MaxName = 255
	// maxTarget is the longest link target that Windows and Linux both take.
	maxTarget = 1023
)

var pathRules = []Rule{{
	ID: "path-encoding", Level: Block,
	Reason:  "a path is not valid UTF-8",
	Remedy:  "Rename the file to a UTF-8 name and amend the commit.",
	match:   onAdded(func(p string) string { return atInvalidUTF8(p) }),
	Matches: []Subject{added("caf\xe9.txt"), added("a/\xff/b"), modes("x\xc0\xaf", 0, modeExec)},
	Misses:  []Subject{added("café.txt"), deleted("caf\xe9.txt"), edited("caf\xe9.txt")},
}, {
	ID: "path-control", Level: Block,
	Reason: "a path has a character that does not show, or that changes how text is shown",
	Remedy: "Rename the file to a name of visible characters and amend the commit.",
	match: onAdded(func(p string) string {
		for i, r := range p {
			if escape.Control(r) || escape.Invisible(r) {
				return fmt.Sprintf("U+%04X at byte %d", r, i+1)
			}
		}
		return ""
	}),
	Matches: []Subject{added("bad\x1b[31mname.txt"), added("a\nb"), added("evil\u202etxt.exe"), added("zero\u200bwidth"), added("tag\U000E0041")},
	Misses:  []Subject{added("a file with 'quotes' and spaces.txt"), added("日本語.md"), deleted("a\nb")},
}, {
	ID: "path-form", Level: Block,
	Reason: "a path cannot be checked out on every system, or is another one there",
	Remedy: "Rename the file so that no part of its path ends with a dot or a space, is a device name or a short name as GITHUB~1, or has : * ? \" < > | or a backslash.",
	match: onAdded(func(p string) string {
		for part := range strings.SplitSeq(p, "/") {
			if why := badName(part); why != "" {
				return fmt.Sprintf("%q %s", part, why)
			}
		}
		return ""
	}),
	Matches: []Subject{added("a./b"), added("name "), added("CON"), added("src/aux.c"), added("com1.txt"), added(`a\b`), added("x:stream"), added("LPT9"), added("what?"), added("CONIN$"), added("a|b"), added("GITHUB~1/workflows/x.yml"), added("gi7eba~1")},
	Misses:  []Subject{added("console.go"), added("auxiliary.c"), added(".hidden"), added("a.b.c"), added("com10"), added("notes.txt~"), added("v1~2-rc"), deleted("CON")},
}, {
	ID: "path-git", Level: Block,
	Reason: "a path is a form of .git, which a checkout could take for the repository itself",
	Remedy: "Remove the file from the history; no file may be below a name that stands for .git.",
	match: onChange(func(c *Change) string {
		if c.New == 0 {
			return ""
		}
		for part := range strings.SplitSeq(c.Path, "/") {
			if gitLike(part) {
				return fmt.Sprintf("%q", part)
			}
		}
		return ""
	}),
	Matches: []Subject{added(".git/config"), added("sub/.GIT/hooks/pre-commit"), added("GIT~1/config"), added(".g\u200cit/x"), added(".git /x"), added(".git::$INDEX_ALLOCATION/x"), added("．git/config"), added(`a\.git\config`), edited(".Git")},
	Misses:  []Subject{added(".gitignore"), added("git/x"), added("my.git/x"), added(".github/x"), deleted(".git/x")},
}, {
	ID: "path-length", Level: Block,
	Reason: "a path is too long to be checked out",
	Remedy: fmt.Sprintf("Shorten the path to at most %d bytes, each name to at most %d.", MaxPath, MaxName),
	match: onAdded(func(p string) string {
		if len(p) > MaxPath {
			return fmt.Sprintf("%d bytes", len(p))
		}
		for part := range strings.SplitSeq(p, "/") {
			if len(part) > MaxName {
				return fmt.Sprintf("a name of %d bytes", len(part))
			}
		}
		return ""
	}),
	Matches: []Subject{added(strings.Repeat("a", 256)), added(strings.Repeat("dir/", 1100) + "x")},
	Misses:  []Subject{added(strings.Repeat("a", 255)), added(strings.Repeat("dir/", 100) + "x")},
}, {
	ID: "path-collision", Level: Block,
	Reason: "a path is the same as another one on some systems",
	Remedy: "Rename the file so that the two differ by more than case, normalisation or invisible characters.",
	match: func(s *Subject) string {
		if s.Names == nil || s.Names.Path == s.Names.Other || Fold(s.Names.Path) != Fold(s.Names.Other) {
			return ""
		}
		return fmt.Sprintf("%q", s.Names.Other)
	},
	Matches: []Subject{collide("readme.md", "README.md"), collide("caf\u00e9", "cafe\u0301"), collide("STRASSE", "stra\u00dfe"), collide("a.", "a"), collide("Docs/x", "docs/X")},
	Misses:  []Subject{collide("readme.txt", "README.md"), collide("docs/x", "doc/x"), added("readme.md")},
}, {
	ID: "path-hive", Level: Block,
	Reason:  "a path is in .hive/, which holds the task and reports of a kick and is not part of the work",
	Remedy:  "Remove .hive/ from the commits; write reports there, but do not commit them.",
	paths:   mustGlobs("/.hive/**"),
	Matches: []Subject{added(".hive/kick-prompt.txt"), added(".HIVE/x"), deleted(".hive/x"), link(".hive", "docs")},
	Misses:  []Subject{added("hive/x"), added("docs/.hive/x")},
}}

func atInvalidUTF8(p string) string {
	for i := 0; i < len(p); {
		r, n := utf8.DecodeRuneInString(p[i:])
		if r == utf8.RuneError && n == 1 {
			return fmt.Sprintf("byte 0x%02x at position %d", p[i], i+1)
		}
		i += n
	}
	return ""
}

// badName says what Windows would make of one name of a path, or "".
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file
func badName(name string) string {
	switch {
	case name == "" || name == "." || name == "..":
		return "is no name"
	case strings.HasSuffix(name, "."), strings.HasSuffix(name, " "):
		return "ends with a dot or a space"
	}
	if i := strings.IndexAny(name, `\:*?"<>|`); i >= 0 {
		return fmt.Sprintf("has %q", name[i])
	}
	if shortName.MatchString(name) {
		return "is the form of a short name, which Windows has for longer ones"
	}
	stem, _, _ := strings.Cut(strings.ToUpper(name), ".")
	stem = strings.TrimRight(stem, " ")
	switch stem {
	case "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$":
		return "is a device name"
	}
	if strings.HasPrefix(stem, "COM") || strings.HasPrefix(stem, "LPT") {
		switch stem[3:] {
		case "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "¹", "²", "³":
			return "is a device name"
		}
	}
	return ""
}

// shortName is a name of MS-DOS's form, under which NTFS knows a long one too:
// GITHUB~1 is .github.
var shortName = lazyregexp.New(`^[^.~]{1,6}~[0-9](\.[^.]{0,3})?$`)

// gitLike reports whether some system takes name for ".git". Names such as
// "a\.git\b" are looked at part by part, as Windows would.
func gitLike(name string) bool {
	for part := range strings.SplitSeq(name, `\`) {
		switch f := Fold(part); f {
		case ".git", "git~1", "git~2", "git~3", "git~4":
			return true
		}
	}
	return false
}

var entryRules = []Rule{{
	ID: "symlink-escape", Level: Block,
	Reason: "a symbolic link is absolute, leaves the repository or points into .git",
	Remedy: "Make the link relative and let it stay within the repository.",
	match: onChange(func(c *Change) string {
		if c.New != modeLink {
			return ""
		}
		if why := BadTarget(c.Path, c.Target); why != "" {
			return why
		}
		return c.Leads
	}),
	Matches: []Subject{link("l", "/etc/passwd"), link("l", "../x"), link("a/b", "../../x"), link("l", ".git/hooks"), link("a/b", "../.GIT/config"), link("l", `C:\x`), link("l", `..\x`), link("l", ""), link("l", "a\nb"), link("a/b", "c/../../../d"), {Change: &Change{Path: "l", New: modeLink, Target: "up/../x", Leads: "it leaves"}}},
	Misses:  []Subject{link("docs-link", "README.md"), link("a/b", "../README.md"), link("a/b/c", "../../x/y"), link("l", "..data"), added("/etc/passwd")},
}, {
	ID: "gitlink", Level: Block,
	Reason:  "a submodule is added, changed or removed",
	Remedy:  "Leave submodules as they are; a person has to change them.",
	match:   onChange(func(c *Change) string { return ifTrue(c.Old == modeGitlink || c.New == modeGitlink, "mode 160000") }),
	Matches: []Subject{modes("sub", 0, modeGitlink), modes("sub", modeGitlink, modeGitlink), modes("sub", modeGitlink, 0), modes("x", modeGitlink, modeFile)},
	Misses:  []Subject{added("sub"), modes("dir", 0, modeLink)},
}, {
	ID: "file-mode", Level: Block,
	Reason: "an entry has a mode that is none of 100644, 100755, 120000 and 160000",
	Remedy: "Add the file again with git, which writes only those modes.",
	match: onChange(func(c *Change) string {
		switch c.New {
		case 0, modeFile, modeExec, modeLink, modeGitlink:
			return ""
		}
		return fmt.Sprintf("%06o", c.New)
	}),
	Matches: []Subject{modes("empty-directory", 0, 0o040000), modes("x", 0, 0o104755), modes("x", modeFile, 0o100664), modes("x", 0, 0o100666)},
	Misses:  []Subject{added("x"), modes("x", 0, modeExec), modes("x", 0o100664, modeFile), modes("x", 0o100664, 0)},
}, {
	ID: "new-executable", Level: Report,
	Reason: "a file becomes executable",
	Remedy: "Look at what it does.",
	match: onChange(func(c *Change) string {
		return ifTrue(c.New == modeExec && c.Old != modeExec, "mode 100755")
	}),
	Matches: []Subject{modes("tool.sh", 0, modeExec), modes("tool.sh", modeFile, modeExec)},
	Misses:  []Subject{modes("tool.sh", modeExec, modeExec), modes("tool.sh", modeExec, modeFile), added("tool.sh")},
}}

func ifTrue(cond bool, s string) string {
	if cond {
		return s
	}
	return ""
}

// BadTarget says why a link at p must not have this target, by the target's
// text alone, or is empty.
func BadTarget(p, target string) string {
	switch {
	case target == "":
		return "the target is empty"
	case len(target) > maxTarget:
		return fmt.Sprintf("the target has %d bytes", len(target))
	case !utf8.ValidString(target):
		return "the target is not valid UTF-8"
	}
	for _, r := range target {
		if escape.Control(r) || escape.Invisible(r) {
			return fmt.Sprintf("the target has U+%04X", r)
		}
	}
	t := strings.ReplaceAll(target, `\`, "/")
	if strings.HasPrefix(t, "/") || len(t) >= 2 && t[1] == ':' {
		return fmt.Sprintf("%q is absolute", target)
	}
	// Lexically, and also step by step: "c/../../../d" leaves the tree before
	// it would come back.
	depth := strings.Count(p, "/")
	for part := range strings.SplitSeq(t, "/") {
		switch {
		case part == "..":
			if depth--; depth < 0 {
				return fmt.Sprintf("%q leaves the repository", target)
			}
		case part == "" || part == ".":
		case gitLike(part):
			return fmt.Sprintf("%q points into .git", target)
		default:
			depth++
		}
	}
	if end := path.Join(path.Dir(p), t); end == ".." || strings.HasPrefix(end, "../") {
		return fmt.Sprintf("%q leaves the repository", target)
	}
	return ""
}

// classRule matches changes whose path, on either side, is in a class. In a
// raw difference a rename is a deletion and an addition, so both are seen.
func classRule(globs []Glob) func(*Subject) string {
	return onChange(func(c *Change) string {
		g := c.class(globs)
		if g == "" {
			return ""
		}
		return c.verb() + " (" + g + ")"
	})
}

// class returns the pattern that makes the path, or a link to it, one of a
// class; "" if it is none.
func (c *Change) class(globs []Glob) string {
	if g := firstMatch(globs, Fold(c.Path)); g != "" {
		return g
	}
	for _, link := range c.Aliases {
		if g := firstMatch(globs, Fold(link)); g != "" {
			return g + fmt.Sprintf(", by the link %q", link)
		}
	}
	return ""
}

// Protected reports whether a path is in one of the built-in classes.
func Protected(path string) bool {
	c := Change{Path: path}
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.paths != nil && c.class(r.paths) != "" })
}

func (c *Change) verb() string {
	switch {
	case c.Old == 0:
		return "added"
	case c.New == 0:
		return "deleted"
	}
	return "changed"
}

const leaveToPerson = "Leave it as it is and name the wanted change in the report, or have the operator add an exception for this path to the policy."

var classRules = []Rule{{
	ID: "protected-ci", Level: Block,
	Reason:  "a file that decides what CI runs, or with what rights",
	Remedy:  leaveToPerson,
	paths:   ciPaths,
	Matches: []Subject{added(".github/workflows/new.yml"), added(".github/workflows/é.yml"), deleted(".GitHub/workflows/ci.yml"), edited(".gitlab-ci.yml"), added("sub/Jenkinsfile"), added("tools/x/action.yml"), link(".github", "docs"), added("．github/workflows/x.yml"), added(".circleci /config.yml"), added(".readthedocs.yaml"), added(".builds/x.yml"), edited("ci/release.jenkinsfile")},
	Misses:  []Subject{added("docs/github.md"), added("src/.github/x"), added("github/workflows/x.yml"), added("deploy.yml")},
}, {
	ID: "protected-governance", Level: Block,
	Reason:  "a file that says who owns, reviews, merges or licenses the code, what scanners leave out, or what kick may do",
	Remedy:  leaveToPerson,
	paths:   governancePaths,
	Matches: []Subject{edited("CODEOWNERS"), deleted("docs/codeowners"), edited("LICENSE"), edited("pkg/OWNERS"), edited("SECURITY.md"), edited("kick.yaml"), added(".mergify.yml"), edited(".asf.yaml"), added("sub/.gitleaksignore")},
	Misses:  []Subject{added("third_party/x/LICENSE"), added("owners_test.go"), added("docs/index.md")},
}, {
	ID: "protected-git", Level: Block,
	Reason:  "a file that changes how git treats others",
	Remedy:  leaveToPerson,
	paths:   gitPaths,
	Matches: []Subject{added(".gitattributes"), added("deep/down/.gitattributes"), added(".gitmodules"), edited(".LFSconfig"), added(".mailmap"), deleted(".gitattributes")},
	Misses:  []Subject{added(".gitignore"), added("gitattributes"), added(".gitkeep")},
}, {
	ID: "protected-open", Level: Review,
	Reason:  "a file that an editor or shell acts on when the directory is opened",
	Remedy:  "Have a person look at it before anyone opens the branch.",
	paths:   openPaths,
	Matches: []Subject{added(".vscode/tasks.json"), edited(".envrc"), added("app/.devcontainer/devcontainer.json"), added("x.code-workspace"), added("sub/.Rprofile"), added(".gdbinit")},
	Misses:  []Subject{added("vscode/tasks.json"), added("envrc.md")},
}, {
	ID: "protected-build", Level: Review,
	Reason:  "a file that names dependencies or that a build runs",
	Remedy:  "Have a person look at it before anyone builds the branch.",
	paths:   buildPaths,
	Matches: []Subject{edited("go.mod"), added("sub/package.json"), edited("Dockerfile"), edited("Dockerfile.dev"), deleted("Cargo.lock"), added("MAKEFILE"), added(".husky/pre-commit"), added("requirements-dev.txt"), edited("web/vite.config.ts"), added(".eslintrc.cjs"), added("x.cabal")},
	Misses:  []Subject{added("main.go"), added("docs/make.md"), added("deploy.yml"), added("tool.sh"), added("src/config.js"), added("src/app/app.config.ts")},
}, {
	ID: "protected-agent", Level: Review,
	Reason:  "a file that instructs coding agents",
	Remedy:  "Have a person look at it: it acts on every later agent.",
	paths:   agentPaths,
	Matches: []Subject{edited("AGENTS.md"), added("sub/claude.md"), added(".cursor/rules/x.mdc"), added(".mcp.json"), link("CLAUDE.md", "README.md"), {Change: &Change{Path: "docs/agents.md", Old: modeFile, New: modeFile, Aliases: []string{"CLAUDE.md"}}}},
	Misses:  []Subject{added("agents.go"), added("docs/agents/index.md"), added("README.md")},
}, {
	ID: "git-ignore", Level: Report,
	Reason:  "a file that says what git leaves out of commits",
	Remedy:  "Check that nothing is hidden by it that belongs into a review.",
	paths:   mustGlobs(".gitignore"),
	Matches: []Subject{added("sub/.gitignore"), deleted(".gitignore")},
	Misses:  []Subject{added("gitignore.md")},
}, {
	ID: "deleted-test", Level: Report,
	Reason: "a test is deleted",
	Remedy: "Check that what it tested is gone, or tested elsewhere.",
	match: onChange(func(c *Change) string {
		if c.New != 0 {
			return ""
		}
		return firstMatch(testPaths, Fold(c.Path))
	}),
	Matches: []Subject{deleted("pkg/x_test.go"), deleted("tests/a.py"), deleted("src/app.spec.ts")},
	Misses:  []Subject{edited("pkg/x_test.go"), deleted("pkg/x.go"), deleted("contest.go")},
}}
