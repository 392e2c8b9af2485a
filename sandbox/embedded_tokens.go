package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Configuration files inside program directories may hold tokens: an
// administrator who writes "npm config -g set //host/:_authToken" puts one
// under /usr/etc or /usr/local/etc, where everybody can read it. In the
// sandbox these files are covered by empty ones.

// tokenPrefixes are the installation prefixes that have such files, beside the
// program directories themselves; patterns.
var tokenPrefixes = []string{"/usr", "/usr/local", "/usr/local/*", "/usr/lib/node_modules/npm", "/usr/local/lib/node_modules/npm", "/usr/share/nodejs/npm"}

// tokenNames are files and directories relative to a prefix; patterns.
var tokenNames = []string{
	// Dotfiles, as in a home directory, which a tool's own prefix often is.
	".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmrc", ".pypirc", ".netrc", "_netrc", ".git-credentials", ".gitconfig",
	".config/git/*", ".config/pip/pip.conf", ".config/gh/hosts.yml", ".config/containers/auth.json", ".config/composer/auth.json",
	".pip/pip.conf", ".docker/config.json", ".docker/.dockercfg", ".dockercfg", ".aws/credentials", ".azure/*", ".config/gcloud",
	".kube/config", ".gem/credentials", ".gemrc", ".bundle/config", ".m2/settings.xml", ".m2/settings-security.xml",
	".gradle/gradle.properties", ".gradle/init.gradle", ".nuget/NuGet/NuGet.Config", ".cargo/credentials", ".cargo/credentials.toml", ".cargo/config", ".cargo/config.toml",
	".terraformrc", ".vault-token", ".ssh", ".gnupg",
	// npm's built-in and global configuration, pip's, git's, cargo's, maven's, …
	"npmrc", "etc/npmrc", "lib/node_modules/npm/npmrc", "share/nodejs/npm/npmrc",
	"pip.conf", "etc/pip.conf", "lib/python3*/distutils/distutils.cfg",
	"gitconfig", "etc/gitconfig", "etc/git/*", "etc/gitattributes",
	"credentials", "credentials.toml", "cargo/credentials", "cargo/credentials.toml", "cargo/config", "cargo/config.toml",
	"conf/settings.xml", "conf/settings-security.xml", "share/maven/conf/settings.xml", "share/maven/conf/settings-security.xml",
	"gradle.properties", "init.gradle", "share/gradle/gradle.properties", "share/gradle/init.d", "init.d/*.gradle", "init.d/*.gradle.kts",
	"docker/config.json", "share/docker/config.json", "etc/docker/config.json",
	"etc/gemrc", "etc/bundle/config", "etc/nuget/NuGet.Config", "etc/composer/auth.json", "share/composer/auth.json", "composer/auth.json",
	"etc/odbc.ini", "etc/my.cnf", "etc/boto.cfg", "etc/s3cfg", "etc/netrc", "etc/terraformrc", "etc/environment", "etc/profile.d",
	"jupyter/jupyter_server_config.json", "etc/jupyter",
}

// tokenDirs are covered whole: nothing that distributions install lives there.
var tokenDirs = []string{"/usr/etc", "/usr/local/etc"}

// cover is a path that is hidden in the sandbox.
type cover struct {
	path string
	dir  bool
}

// tokenFiles returns what of the tables exists in the bound directories, with
// the symbolic links on the way resolved, since a mount follows them.
func tokenFiles(bound []string) []cover {
	var found []cover
	seen := map[string]bool{}
	add := func(p string) {
		real, err := filepath.EvalSymlinks(p)
		if err != nil || !within(real, bound) || seen[real] {
			return // absent, or a link to what the sandbox does not have
		}
		fi, err := os.Stat(real)
		if err != nil || !fi.IsDir() && !fi.Mode().IsRegular() {
			return
		}
		seen[real] = true
		found = append(found, cover{real, fi.IsDir()})
	}
	var prefixes []string
	for _, p := range append(slices.Clone(bound), tokenPrefixes...) {
		prefixes = append(prefixes, glob(p)...)
	}
	for _, d := range tokenDirs {
		add(d)
	}
	for _, p := range prefixes {
		has := listing(p)
		for _, name := range tokenNames {
			first, _, _ := strings.Cut(name, "/")
			if !has[first] && !strings.Contains(first, "*") {
				continue
			}
			for _, f := range glob(filepath.Join(p, name)) {
				add(f)
			}
		}
	}
	// What lies in a covered directory is gone with it.
	return slices.DeleteFunc(found, func(c cover) bool {
		return slices.ContainsFunc(found, func(o cover) bool { return o.dir && o.path != c.path && within(c.path, []string{o.path}) })
	})
}

// listing is what a directory holds. One look at it saves one for each name of
// the table, which this launcher would feel at every start.
func listing(dir string) map[string]bool {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	has := make(map[string]bool, len(names))
	for _, n := range names {
		has[n] = true
	}
	return has
}

// glob is filepath.Glob, without its cost where there is no pattern.
func glob(pattern string) []string {
	if !strings.ContainsAny(pattern, "*?[") {
		if _, err := os.Lstat(pattern); err != nil {
			return nil
		}
		return []string{pattern}
	}
	found, _ := filepath.Glob(pattern) // the patterns are ours and well formed
	return found
}
