package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

const (
	anyUser  = 65534
	childEnv = "KICK_TEST_IMAGE_OUT"
)

// TestDebian builds the usual image of Debian packages, twice: here, and, if this
// is root, as an ordinary user. Both are the same, every link in them leads
// somewhere, and what packages' scripts would make is there.
func TestDebian(t *testing.T) {
	if out := os.Getenv(childEnv); out != "" {
		tellBuild(t, out)
		return
	}
	t.Parallel()
	if testing.Short() {
		t.Skip("a short run")
	}
	if _, err := exec.LookPath("apt-get"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("this host has no apt-get")
	}
	cache := os.Getenv("KICK_CACHE")
	if cache == "" {
		cache = t.TempDir()
	}
	var steps []string
	o := Options{Cache: cache, Out: filepath.Join(t.TempDir(), "image.tar"), Step: func(name, detail string) { steps = append(steps, name+" "+detail) }}
	r := build(t, o)
	if v := r.Packages["git"]; v == "" || len(r.Packages) < 50 {
		t.Errorf("packages: %v", r.Packages)
	}
	checkSystem(t, r)

	steps = nil
	if again := build(t, o); again.Digest != r.Digest || len(steps) == 0 || steps[len(steps)-1] != "image as it was" {
		t.Errorf("again: %s after %q", again.Digest, steps)
	}
	if err := os.Truncate(r.Path, 1000); err != nil {
		t.Fatal(err)
	}
	if again := build(t, o); again.Digest != r.Digest || steps[len(steps)-1] == "image as it was" {
		t.Errorf("after the file was cut: %s after %q", again.Digest, steps)
	}
	open(t, r.Path)
	if os.Getuid() == 0 {
		if got := buildAsUser(t, cache); got.Digest != r.Digest {
			t.Errorf("as an ordinary user: %s, as root %s", got.Digest, r.Digest)
		}
	}
}

// checkSystem looks into the image.
func checkSystem(t *testing.T, r Result) {
	t.Helper()
	img := open(t, r.Path)
	files := content(t, img)
	links := map[string]bool{}
	flat := mutate.Extract(img)
	defer flat.Close()
	for in := tar.NewReader(flat); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		links[h.Name] = h.Typeflag == tar.TypeSymlink
	}
	for _, p := range []string{"bin/sh", "bin/bash", "usr/bin/git", "bin/awk", "usr/bin/which", "usr/lib/ssl/cert.pem", "usr/bin/perl"} {
		if !resolves(files, links, p) {
			t.Errorf("%s leads nowhere", p)
		}
	}
	for p := range links {
		if links[p] && (strings.HasPrefix(p, "usr/bin/") || strings.HasPrefix(p, "usr/lib/")) && !resolves(files, links, p) && !strings.Contains(p, "/ssl/") {
			t.Errorf("%s leads to %s, which is not there", p, files[p])
		}
	}
	// What agents' programs are linked to.
	for _, lib := range []string{"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(files)), func(p string) bool {
			return strings.HasPrefix(p, "usr/lib/") && path.Base(p) == lib && resolves(files, links, p)
		}) {
			t.Errorf("%s is nowhere", lib)
		}
	}
	if n := strings.Count(files["etc/ssl/certs/ca-certificates.crt"], "BEGIN CERTIFICATE"); n < 100 {
		t.Errorf("%d certificates", n)
	}
	for p, want := range map[string]string{
		"etc/passwd": "root:*:0:0:", "etc/group": "agent:x:65532:", "etc/nsswitch.conf": "hosts:", "var/lib/dpkg/status.d/git": "Package: git\n", "usr/share/doc/git/copyright": "GPL",
	} {
		if !strings.Contains(files[p], want) {
			t.Errorf("%s has no %q: %.200q", p, want, files[p])
		}
	}
	for _, p := range []string{"usr/share/doc/git/RelNotes", "usr/share/man/man1/bash.1.gz"} {
		if _, there := files[p]; there {
			t.Errorf("%s is in the image", p)
		}
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if l := cfg.Config.Labels[labelPackages]; !strings.Contains(" "+l+" ", " git="+r.Packages["git"]+" ") {
		t.Errorf("label %q", l)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{host, filepath.Dir(r.Path), os.TempDir()} {
		if strings.Contains(string(raw), secret) {
			t.Errorf("the configuration tells of this host: %s", secret)
		}
	}
}

// buildAsUser builds the image in another process as an ordinary user, with what
// was downloaded already.
func buildAsUser(t *testing.T, cache string) Result {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "kick-image-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{
		{"cp", self, filepath.Join(dir, "image.test")},
		{"cp", "-r", filepath.Join(cache, "apt"), filepath.Join(dir, "apt")},
		{"chown", "-R", "65534:65534", dir},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", c, err, out)
		}
	}
	cmd := exec.Command(filepath.Join(dir, "image.test"), "-test.run=^TestDebian$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, childEnv + "=" + filepath.Join(dir, "image.tar")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: anyUser, Gid: anyUser}, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "image.tar.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r Result
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	open(t, r.Path)
	return r
}

// tellBuild is the other process: it builds an image and writes its result
// beside it.
func tellBuild(t *testing.T, out string) {
	t.Helper()
	text, err := json.Marshal(build(t, Options{Cache: filepath.Dir(out), Out: out}))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(out+".json", text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPackages: what apt-get says about a package that it does not know is told,
// and a file that was changed where it is kept is not taken.
func TestPackages(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a short run")
	}
	if _, err := exec.LookPath("apt-get"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("this host has no apt-get")
	}
	o := fill(t, Options{Packages: []string{"no-such-package"}})
	_, err := Build(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "Unable to locate package no-such-package") {
		t.Fatalf("an unknown package: %v", err)
	}

	a, err := newApt(t.Context(), filepath.Join(o.Cache, "apt"))
	if err != nil {
		t.Fatal(err)
	}
	debs, err := a.fetch(t.Context(), []string{"usr-is-merged"})
	if err != nil || len(debs) == 0 {
		t.Fatalf("%v: %v", debs, err)
	}
	info, err := os.Stat(debs[0].file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(debs[0].file, make([]byte, info.Size()), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := a.fetch(t.Context(), []string{"usr-is-merged"}); err == nil || !strings.Contains(err.Error(), "is not what the package list says") {
		t.Errorf("a changed file: %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := filepath.Join(t.TempDir(), "image.tar")
	if _, err := Build(ctx, fill(t, Options{Cache: o.Cache, Out: out})); !errors.Is(err, context.Canceled) {
		t.Errorf("a build that was told to stop: %v", err)
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it left %s: %v", out, err)
	}
}
