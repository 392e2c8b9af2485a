// Package gitversion judges the host's git: whether it has what kick needs, and
// whether it has a hole that kick's use of it can reach. What a distribution
// mended without a new version number counts as mended.
package gitversion

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/gitcmd"
)

// Minimum is the oldest release that kick works with: older ones lack the
// raised severities of index-pack, and the questions to cat-file.
const Minimum = "2.39.0"

// Recommended is the release to install where no package is mended. It also has
// none of the known holes that kick does not reach.
const Recommended = "2.50.1"

// Hole is a known vulnerability of git that kick's use of git can reach.
type Hole struct {
	CVE       string
	Reach     string   // how it can be reached through kick
	Fixed     []string // the first mended release of each line, oldest line first; later lines are mended, too
	Backports []Backport
}

// Backport is a distribution's package that is mended under an older number.
type Backport struct {
	Distribution string // ID of /etc/os-release
	Package      string // the first mended version for its upstream release
}

// Holes is the table. git's other known vulnerabilities since Minimum are in
// what kick does not use: clones of local paths and submodules, git apply, git
// archive, padded formats, attributes of a work tree, prompts, credential
// helpers of others, bundle URIs, gitk and git gui. Text of a remote is escaped
// by kick itself.
// https://github.com/git/git/security/advisories
var Holes = []Hole{{
	CVE:       "CVE-2024-32004",
	Reach:     "with --repo PATH, a repository that another user made can run a program as you while git reads it",
	Fixed:     ownRepository,
	Backports: ownRepositoryBackports,
}, {
	CVE:       "CVE-2024-32465",
	Reach:     "with --repo PATH, a repository that came from elsewhere, such as an unpacked archive, can run a program as you while git reads it",
	Fixed:     ownRepository,
	Backports: ownRepositoryBackports,
}}

// Both were mended together. Ubuntu's package is by its notice USN-6793-1; a
// release of Ubuntu that gets no updates any more is not in the table.
var (
	ownRepository          = []string{"2.39.4", "2.40.2", "2.41.1", "2.42.2", "2.43.4", "2.44.1", "2.45.1"}
	ownRepositoryBackports = []Backport{
		{"ubuntu", "1:2.43.0-1ubuntu7.1"}, // 24.04
	}
)

// Name is what accepts the hole: kick run --accept-weaker NAME.
func (h Hole) Name() string { return "git-" + h.CVE }

// Git is the host's git.
type Git struct {
	Path         string
	Version      string // as git says it, e.g. "2.39.5" or "2.50.1 (Apple Git-155)"
	Distribution string // ID of /etc/os-release; empty: not known
	Package      string // version of the package that Path is from; empty: of none
	SHA1         string // its SHA-1, where it says so: "SHA1_DC" detects collisions
}

// Find asks the host's git, and the package manager only if the number alone
// does not clear it. Its error says what to do.
func Find(ctx context.Context) (Git, error) {
	path, err := gitcmd.Path()
	if err != nil {
		return Git{}, err
	}
	out, err := gitcmd.Git{}.Output(ctx, nil, "version", "--build-options")
	if err != nil {
		return Git{Path: path}, fmt.Errorf("%s does not run: %w: install a working git %s or newer", path, err, Recommended)
	}
	g := parse(string(out))
	g.Path = path
	if len(g.Holes()) > 0 {
		g.Distribution, g.Package = distribution(), packageOf(ctx, path)
	}
	return g, nil
}

func parse(out string) Git {
	var g Git
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if v, ok := strings.CutPrefix(line, "git version "); ok {
			g.Version = v
		}
		if v, ok := strings.CutPrefix(line, "SHA-1: "); ok {
			g.SHA1 = v
		}
	}
	return g
}

// Fault says what makes kick unable to work with this git; empty: nothing.
func (g Git) Fault() string {
	switch v, ok := release(g.Version); {
	case !ok:
		return fmt.Sprintf("it says version %q, which kick cannot read: install git %s or newer", g.Version, Recommended)
	case slices.Compare(v, mustRelease(Minimum)) < 0:
		return fmt.Sprintf("it lacks object checks that the push broker relies on: install git %s or newer", Recommended)
	case g.SHA1 != "" && !strings.HasPrefix(g.SHA1, "SHA1_DC"):
		return fmt.Sprintf("it was built with %s for SHA-1, which does not detect collisions: install a git that was built with SHA1_DC, the default", g.SHA1)
	}
	return ""
}

// Holes returns the reachable holes that this git has.
func (g Git) Holes() []Hole {
	v, ok := release(g.Version)
	if !ok {
		return Holes
	}
	var open []Hole
	for _, h := range Holes {
		if !h.fixedIn(v) && !h.backported(g) {
			open = append(open, h)
		}
	}
	return open
}

func (h Hole) fixedIn(v []int) bool {
	for _, f := range h.Fixed {
		if fixed := mustRelease(f); slices.Equal(v[:2], fixed[:2]) {
			return slices.Compare(v, fixed) >= 0
		}
	}
	return slices.Compare(v, mustRelease(h.Fixed[len(h.Fixed)-1])) > 0
}

func (h Hole) backported(g Git) bool {
	return slices.ContainsFunc(h.Backports, func(b Backport) bool {
		of := upstreamOf(b.Package)
		return b.Distribution == g.Distribution && of == upstreamOf(g.Package) && of == g.Version && comparePackages(g.Package, b.Package) >= 0
	})
}

// Remedy says what to install to close the hole, and how to run all the same.
func (h Hole) Remedy() string {
	older := h.Fixed[:len(h.Fixed)-1]
	return fmt.Sprintf("Update the git package, or install git %s; %s and later of their lines, and all from %s on, are mended, too. To run all the same: --accept-weaker %s",
		Recommended, strings.Join(older, ", "), h.Fixed[len(h.Fixed)-1], h.Name())
}

// String is the version, and the package's own where it was asked for.
func (g Git) String() string {
	s := g.Version
	if g.Package != "" {
		s += " (package " + g.Package + ")"
	}
	return s + " at " + g.Path
}

var number = regexp.MustCompile(`^(\d{1,5})\.(\d{1,5})(?:\.(\d{1,5}))?`)

// release returns the three numbers of a release. What follows, as in
// "2.46.0.rc1" or "2.50.1 (Apple Git-155)", says nothing of holes but this: a
// candidate comes before its release.
func release(version string) ([]int, bool) {
	m := number.FindStringSubmatch(version)
	if m == nil {
		return nil, false
	}
	v := make([]int, 3)
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // digits, or none
	}
	if strings.Contains(version, "rc") && v[2] == 0 {
		v = []int{v[0], v[1], -1}
	}
	return v, true
}

func mustRelease(s string) []int {
	v, ok := release(s)
	if !ok {
		panic("the table has no release " + s)
	}
	return v
}

func withoutEpoch(pkg string) string {
	if epoch, rest, ok := strings.Cut(pkg, ":"); ok && epoch != "" && strings.Trim(epoch, "0123456789") == "" {
		return rest
	}
	return pkg
}

// upstreamOf returns the part of a package's version that is upstream's.
func upstreamOf(pkg string) string {
	v, _, _ := strings.Cut(withoutEpoch(pkg), "-")
	return v
}

// comparePackages compares two versions of one upstream release as dpkg does,
// which is as rpm does but for "~" and letters, which git's packages do not
// mix. https://www.debian.org/doc/debian-policy/ch-controlfields.html#version
func comparePackages(a, b string) int {
	a, b = withoutEpoch(a), withoutEpoch(b)
	for a != "" || b != "" {
		var x, y string
		x, a = span(a, false)
		y, b = span(b, false)
		if c := compareText(x, y); c != 0 {
			return c
		}
		x, a = span(a, true)
		y, b = span(b, true)
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
			return c
		}
	}
	return 0
}

// span cuts off the digits at the beginning of s, or what is none.
func span(s string, digits bool) (head, rest string) {
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9') == digits {
		i++
	}
	return s[:i], s[i:]
}

// compareText orders "~" before the end, and letters before all else.
func compareText(a, b string) int {
	weight := func(s string, i int) int {
		switch {
		case i >= len(s):
			return 0
		case s[i] == '~':
			return -1
		case s[i] >= 'a' && s[i] <= 'z' || s[i] >= 'A' && s[i] <= 'Z':
			return int(s[i])
		}
		return int(s[i]) + 256
	}
	for i := range max(len(a), len(b)) {
		if c := cmp.Compare(weight(a, i), weight(b, i)); c != 0 {
			return c
		}
	}
	return 0
}

func distribution() string {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "ID="); ok {
			return strings.Trim(id, `"'`)
		}
	}
	return ""
}

// packageOf returns the version of the package that the file is from.
func packageOf(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C"}
		out, err := cmd.Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	if owner, _, ok := strings.Cut(run("dpkg-query", "--search", path), ":"); ok && owner == "git" {
		return run("dpkg-query", "--show", "--showformat=${Version}", "git")
	}
	return run("rpm", "-qf", "--queryformat=%{VERSION}-%{RELEASE}", path)
}
