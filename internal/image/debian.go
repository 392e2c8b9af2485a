package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kickhq/kick/sandbox"
)

// basePackages are what an agent finds in every image. libstdc++6 is for Node.js
// and for agents that have it in them. usr-is-merged keeps out usrmerge, which would
// do on installation what canonical does here.
var basePackages = []string{
	"base-files", "base-passwd", "bash", "ca-certificates", "coreutils", "dash", "debianutils", "diffutils", "findutils",
	"git", "grep", "gzip", "libc-bin", "libstdc++6", "mawk", "patch", "procps", "sed", "tar", "usr-is-merged", "util-linux",
}

// leftOut are directories of packages that no agent needs, but for what keep
// matches.
var (
	leftOut = []string{
		"usr/share/doc", "usr/share/doc-base", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bug",
	}
	keep = regexp.MustCompile(`^usr/share/doc/[^/]+/copyright$`)
)

// merged are the top directories that lie below /usr since Debian 12. Packages
// of that release still name them by their old places.
var merged = []string{"bin", "sbin", "lib", "lib32", "lib64", "libo32", "libx32"}

func canonical(p string) string {
	if top, _, _ := strings.Cut(p, "/"); slices.Contains(merged, top) {
		return "usr/" + p
	}
	return p
}

// fetchDebs downloads the Debian packages: those of the host's own apt sources,
// whose signatures apt-get checks, with all that they depend on.
func (b *builder) fetchDebs(ctx context.Context) error {
	apt, err := newApt(ctx, filepath.Join(b.Cache, "apt"))
	if err != nil {
		return err
	}
	if b.debs, err = apt.fetch(ctx, append(slices.Clone(basePackages), b.Packages...)); err != nil {
		return err
	}
	b.Step("packages", fmt.Sprintf("%d Debian packages", len(b.debs)))
	return nil
}

// debian makes the system of the packages. None of their scripts runs; what these
// would do is in settle.
func (b *builder) debian(ctx context.Context, t *tree) error {
	t.canonical = canonical
	for _, deb := range b.debs {
		if err := b.unpack(ctx, t, deb.file); err != nil {
			return fmt.Errorf("package %s: %w", filepath.Base(deb.file), err)
		}
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(b.result.Packages)) {
		list = append(list, name+"="+b.result.Packages[name])
	}
	b.labels[labelPackages] = strings.Join(list, " ")
	return settle(t)
}

// unpack adds one package to the tree.
func (b *builder) unpack(ctx context.Context, t *tree, file string) error {
	control, err := output(exec.CommandContext(ctx, "dpkg-deb", "--field", file))
	if err != nil {
		return err
	}
	name, version := field(control, "Package"), field(control, "Version")
	if !packageName.MatchString(name) || version == "" {
		return errors.New("its control file names no package")
	}
	b.result.Packages[name] = version
	// Scanners of images read the packages there.
	if err := t.text("var/lib/dpkg/status.d/"+name, control+"\n"); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		return err
	}
	err = t.entries(bufio.NewReaderSize(out, 1<<20), func(p string) bool {
		return slices.ContainsFunc(leftOut, func(dir string) bool { return strings.HasPrefix(p, dir+"/") }) && !keep.MatchString(p)
	})
	if err != nil {
		// What it still writes is of no use.
		return errors.Join(err, cmd.Process.Kill(), ended(cmd.Wait()))
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("dpkg-deb: %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	return nil
}

// packageName is what Debian policy 5.6.1 allows.
var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// field returns a field of a control file.
func field(control, name string) string {
	for line := range strings.Lines(control) {
		if v, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// settle does what the packages' scripts would do on installation, as far as it
// matters here.
func settle(t *tree) error {
	t.canonical = nil
	for _, dir := range merged {
		if !t.has("usr/" + dir) {
			continue
		}
		if err := t.symlink(dir, "usr/"+dir); err != nil {
			return err
		}
	}
	for _, link := range []struct{ name, target string }{
		{"usr/bin/awk", "mawk"}, {"usr/bin/nawk", "mawk"}, {"usr/bin/which", "which.debianutils"},
		// OpenSSL's own default, for programs that do not know Debian's bundle.
		{"usr/lib/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt"},
	} {
		if t.has(link.name) || !strings.HasPrefix(link.target, "/") && !t.has(path.Join(path.Dir(link.name), link.target)) {
			continue
		}
		if err := t.symlink(link.name, link.target); err != nil {
			return err
		}
	}
	for _, master := range []struct{ from, to string }{
		{"usr/share/base-passwd/passwd.master", "etc/passwd"},
		{"usr/share/base-passwd/group.master", "etc/group"},
		{"usr/share/libc-bin/nsswitch.conf", "etc/nsswitch.conf"},
	} {
		if t.has(master.to) || !t.has(master.from) {
			continue
		}
		if err := t.link(master.to, master.from); err != nil {
			return err
		}
	}
	var bundle strings.Builder
	for _, p := range t.below("usr/share/ca-certificates") {
		r, _ := t.open(p)
		if _, err := io.Copy(&bundle, r); err != nil {
			return err
		}
	}
	return t.text("etc/ssl/certs/ca-certificates.crt", bundle.String())
}

// finish adds what every image has, whatever it is made of: the places that the
// launcher mounts on, and the agent's user.
func finish(t *tree) error {
	for _, dir := range []struct {
		path string
		mode int64
	}{
		{"/proc", 0o755}, {"/sys", 0o755}, {"/dev", 0o755}, {"/run", 0o755}, {"/etc", 0o755},
		// What is mounted on these is the agent's to write, and OCI runtimes give a
		// tmpfs the mode of the directory that it lies on.
		{"/tmp", 0o1777}, {sandbox.HomeDir, 0o1777}, {sandbox.DefaultMountPath, 0o1777},
	} {
		if t.has(dir.path[1:]) {
			continue
		}
		if err := t.dir(dir.path, dir.mode); err != nil {
			return err
		}
	}
	for _, add := range []struct{ file, line string }{
		{"etc/passwd", fmt.Sprintf("agent:x:%d:%[1]d:agent:%s:/bin/sh\n", agentUser, sandbox.HomeDir)},
		{"etc/group", fmt.Sprintf("agent:x:%d:\n", agentUser)},
	} {
		old, err := t.old(add.file)
		if err != nil {
			return err
		}
		if strings.Contains(old, fmt.Sprintf(":%d:", agentUser)) {
			continue
		}
		if err := t.text(add.file, old+add.line); err != nil {
			return err
		}
	}
	return nil
}

// apt is apt-get with a state of its own, in which nothing is installed, so that
// it works without root and takes the host's packages for nothing.
type apt struct {
	dir string
	env []string
}

func newApt(ctx context.Context, dir string) (*apt, error) {
	for _, program := range []string{"apt-get", "apt-config", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, &InputError{fmt.Sprintf("this host has no %s, and without a root file system an image is made of Debian packages: give one with --from", program)}
		}
	}
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial", "none/partial", "parts"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "state/status"), nil, 0o644); err != nil {
		return nil, err
	}
	// The host's proxies and the like hold; its hooks and its choice of indexes do
	// not.
	host, err := output(exec.CommandContext(ctx, "apt-config", "dump", "--format", "%F \"%v\";%n", "Acquire"))
	if err != nil {
		return nil, err
	}
	var conf strings.Builder
	for line := range strings.Lines(host) {
		if !strings.HasPrefix(line, "Acquire::IndexTargets") {
			conf.WriteString(line)
		}
	}
	fmt.Fprintf(&conf, `Dir::State "%[1]s/state";
Dir::State::status "%[1]s/state/status";
Dir::Cache "%[1]s/cache";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "%[1]s/parts";
APT::Install-Recommends "false";
APT::Get::Assume-Yes "true";
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::ForceHash "sha256";
`, dir)
	file := filepath.Join(dir, "apt.conf")
	if err := os.WriteFile(file, []byte(conf.String()), 0o600); err != nil {
		return nil, err
	}
	env := append(os.Environ(), "APT_CONFIG="+file, "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	return &apt{dir, env}, nil
}

// uri is a line of apt-get's --print-uris: address, file, size, digest.
var uri = regexp.MustCompile(`(?m)^'[^']+' ([A-Za-z0-9][A-Za-z0-9.+~_%:-]*\.deb) [0-9]+ SHA256:([0-9a-f]{64})$`)

// fetch downloads the packages and all that they depend on, and returns the
// files in the order of their names.
func (a *apt) fetch(ctx context.Context, packages []string) ([]download, error) {
	if _, err := a.get(ctx, "update"); err != nil {
		return nil, err
	}
	// Of files that are there already it would print nothing.
	list, err := a.get(ctx, append([]string{"--print-uris", "--option", "Dir::Cache::archives=" + filepath.Join(a.dir, "none"), "install", "--"}, packages...)...)
	if err != nil {
		return nil, err
	}
	found := uri.FindAllStringSubmatch(list, -1)
	if len(found) == 0 {
		return nil, fmt.Errorf("apt-get names no file for %s", strings.Join(packages, " "))
	}
	if _, err := a.get(ctx, append([]string{"--download-only", "install", "--"}, packages...)...); err != nil {
		return nil, err
	}
	var files []download
	for _, m := range found {
		file := filepath.Join(a.dir, "cache", "archives", m[1])
		// apt-get checks what it downloads, and of what is there already the size alone.
		sum, err := digest(file)
		if err != nil {
			return nil, err
		}
		if sum != m[2] {
			return nil, fmt.Errorf("%s is not what the package list says: remove it and try again", file)
		}
		files = append(files, download{file, sum})
	}
	slices.SortFunc(files, func(a, b download) int { return strings.Compare(a.file, b.file) })
	// What was downloaded for older lists goes.
	_, err = a.get(ctx, "autoclean")
	return files, err
}

func (a *apt) get(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq"}, args...)...)
	cmd.Env = a.env
	return output(cmd)
}

// output runs a command and returns what it prints. Its complaint is in the error.
func output(cmd *exec.Cmd) (string, error) {
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[:min(3, len(cmd.Args))], " "), err, tail(complaint.String()))
	}
	return out.String(), nil
}

// tail keeps the end of a long complaint.
func tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-2000):]
}

// ended drops the error of a command that was killed.
func ended(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}
