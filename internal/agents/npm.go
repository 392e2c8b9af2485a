package agents

import (
	"fmt"
	"regexp"
	"strings"
)

// NPM is where an agent's program is on npm. In Spec and Program, {version}
// stands for the agent's version, {cpu} for the processor as node names it, and
// {arch} for the processor as Rust does.
type NPM struct {
	Spec    string // the package of one platform and its version; empty: not on npm
	Program string // in the package
	Script  bool   // it needs node
}

// processors are the names of a processor, by Go's.
var processors = map[string]struct{ cpu, arch string }{
	"amd64": {"x64", "x86_64"},
	"arm64": {"arm64", "aarch64"},
}

// For returns the package of a version for a processor as Go names it, and the
// program in it.
func (n NPM) For(version, goarch string) (spec, program string, err error) {
	p, ok := processors[goarch]
	if !ok {
		return "", "", fmt.Errorf("there is no package for %s", goarch)
	}
	fill := strings.NewReplacer("{version}", version, "{cpu}", p.cpu, "{arch}", p.arch)
	return fill.Replace(n.Spec), fill.Replace(n.Program), nil
}

var version = regexp.MustCompile(`^[0-9][0-9A-Za-z.+-]{0,63}$`)

// IsVersion tells whether this looks like the version of an agent.
func IsVersion(s string) bool { return version.MatchString(s) }
