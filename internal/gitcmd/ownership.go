package gitcmd

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var inRepository = regexp.MustCompile(`repository at '([^']*)'`)

// DubiousOwner returns the directory whose owner git does not trust, "PATH" if
// git does not say which, and nothing if that is not the trouble.
func DubiousOwner(err error) string {
	var g *Error
	if !errors.As(err, &g) || !strings.Contains(g.Stderr, "dubious ownership") {
		return ""
	}
	if m := inRepository.FindStringSubmatch(g.Stderr); m != nil {
		return m[1]
	}
	return "PATH"
}

// userTrusts reports whether the user's or the system's own git configuration
// names one of dirs, which are one repository, as safe.directory. Git itself
// is run without either.
func userTrusts(ctx context.Context, dirs []string) bool {
	trusts := false
	for _, scope := range []string{"--system", "--global"} {
		cmd, err := Git{}.Command(ctx, "config", scope, "--null", "--get-all", "safe.directory")
		if err != nil {
			return false
		}
		// Both scopes are read from where git finds them by itself.
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), noRepository}, inherited("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")...)
		out, err := cmd.Output()
		if err != nil {
			continue // nothing is set
		}
		for v := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if v == "" { // forgets what was set before
				trusts = false
			}
			trusts = trusts || v == "*" || slices.ContainsFunc(dirs, func(dir string) bool {
				parent, all := strings.CutSuffix(v, "/*")
				return v == dir || all && strings.HasPrefix(dir, parent+"/")
			})
		}
	}
	return trusts
}

// trustFile returns a git configuration that trusts dirs. A file it must be:
// git takes safe.directory from no -c of a parent process.
func trustFile(dirs []string) (*os.File, error) {
	fd, err := unix.MemfdCreate("gitconfig", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "gitconfig")
	content := "[safe]\n"
	for _, d := range dirs {
		content += "\tdirectory = " + ConfigValue(d) + "\n"
	}
	if _, err := f.WriteString(content); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ConfigValue quotes a value for a file of git's configuration.
func ConfigValue(v string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(v) + `"`
}
