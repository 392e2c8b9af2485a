package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/sandbox"
)

// build builds an image that must succeed.
func build(t *testing.T, o Options) Result {
	t.Helper()
	r, err := Build(t.Context(), fill(t, o))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fill gives what a test does not care for.
func fill(t *testing.T, o Options) Options {
	t.Helper()
	if o.Out == "" {
		o.Out = filepath.Join(t.TempDir(), "image.tar")
	}
	if o.Cache == "" {
		o.Cache = t.TempDir()
	}
	if o.Name == "" {
		o.Name = "localhost/test:1"
	}
	if o.Time.IsZero() {
		o.Time = DefaultTime
	}
	return o
}

// open reads the image of a layout, a directory or a tar, and checks it. Of
// layers the library checks only those in gzip.
func open(t *testing.T, out string) v1.Image {
	t.Helper()
	if strings.HasSuffix(out, ".tar") {
		dir := t.TempDir()
		if text, err := exec.Command("tar", "-xf", out, "-C", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		out = dir
	}
	index, err := layout.ImageIndexFromPath(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index, validate.Fast); err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		checkLayer(t, l)
	}
	return img
}

func checkLayer(t *testing.T, l v1.Layer) {
	t.Helper()
	r, err := l.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sum, size, err := v1.SHA256(r)
	if err != nil {
		t.Fatal(err)
	}
	digest, err1 := l.Digest()
	diff, err2 := l.DiffID()
	told, err3 := l.Size()
	if err := errors.Join(err1, err2, err3); err != nil || digest != sum || diff != sum || told != size {
		t.Errorf("a layer of %d bytes, %s, is told as %d bytes, %s, %s: %v", size, sum, told, digest, diff, err)
	}
}

// content returns what is in an image, by path: the content of a file, or the
// target of a link.
func content(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	flat := mutate.Extract(img)
	defer flat.Close()
	found := map[string]string{}
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimSuffix(h.Name, "/")] = h.Linkname + string(text)
	}
}

// write writes a file with its directories.
func write(t *testing.T, name, content string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), mode), os.Chmod(name, mode)); err != nil {
		t.Fatal(err)
	}
}

// system makes a small root file system.
func system(t *testing.T, at time.Time) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "bin/sh"), "#!shell", 0o755)
	write(t, filepath.Join(dir, "bin/su"), "#!su", 0o4755|os.ModeSetuid)
	write(t, filepath.Join(dir, "etc/passwd"), "root:x:0:0::/root:/bin/sh", 0o644)
	if err := errors.Join(
		os.Link(filepath.Join(dir, "bin/sh"), filepath.Join(dir, "bin/dash")),
		os.Symlink("../bin/sh", filepath.Join(dir, "etc/shell")),
		syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644),
		os.Chtimes(filepath.Join(dir, "bin/sh"), at, at),
	); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRootFileSystem(t *testing.T) {
	t.Parallel()
	dir := system(t, time.Now())
	r := build(t, Options{From: dir})
	if r.Dropped != (Dropped{SetID: 1, Special: 1}) {
		t.Errorf("dropped %+v", r.Dropped)
	}
	img := open(t, r.Path)
	for p, want := range map[string]string{
		"bin/sh": "bin/dash", "bin/dash": "#!shell", "bin/su": "#!su", "etc/shell": "../bin/sh",
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nagent:x:65532:65532:agent:/home/agent:/bin/sh\n",
		"etc/group":  "agent:x:65532:\n", "workspace": "", "home/agent": "", "tmp": "", "proc": "",
	} {
		if got, ok := content(t, img)[p]; !ok || got != want {
			t.Errorf("%s is %q, want %q", p, got, want)
		}
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := cfg.Config; c.User != "65532:65532" || c.WorkingDir != sandbox.DefaultMountPath || !strings.HasPrefix(c.Env[0], "PATH=/") {
		t.Errorf("configuration %+v", c)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if id, err := img.ConfigName(); err != nil || digest.String() != r.Digest || id.String() != r.ID {
		t.Errorf("digest %s, id %s: %v, but told %+v", digest, id, err, r)
	}
}

// TestShim: an image has the shim, another shim makes another image, and what the
// system says of git stays.
func TestShim(t *testing.T) {
	t.Parallel()
	shim := func(text string) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
	}
	dir := system(t, time.Now())
	const own = "[core]\n\tabbrev = 9"
	write(t, filepath.Join(dir, "etc/gitconfig"), own, 0o644)
	r := build(t, Options{From: dir, Shim: shim("one")})
	got := content(t, open(t, r.Path))
	if got[shimPath] != "one" || got["etc/gitconfig"] != own+"\n[safe]\n\tdirectory = *\n" {
		t.Errorf("the shim is %q, git's configuration %q", got[shimPath], got["etc/gitconfig"])
	}
	if other := build(t, Options{From: dir, Shim: shim("two")}); other.Digest == r.Digest {
		t.Error("images with other shims have one digest")
	}
	if _, err := Build(t.Context(), fill(t, Options{From: dir, Shim: func() (io.ReadCloser, error) { return nil, os.ErrNotExist }})); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the shim: %v", err)
	}
}

// TestReproducible: when, where and by whom the files were made does not matter,
// nor whether they came as a directory or as a tar, nor in what form the image
// leaves; what they are does.
func TestReproducible(t *testing.T) {
	t.Parallel()
	from := system(t, time.Now())
	want := build(t, Options{From: from})

	packed := filepath.Join(t.TempDir(), "rootfs.tar.gz")
	if out, err := exec.Command("tar", "--sort=name", "--owner=joe:1000", "--group=joe:1000", "-czf", packed, "-C", from, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, o := range map[string]Options{
		"made at another time": {From: system(t, time.Unix(1, 0))},
		"a tar":                {From: packed},
		"to a directory":       {From: from, Out: filepath.Join(t.TempDir(), "layout")},
		"another name":         {From: from, Name: "localhost/other:2"},
	} {
		if got := build(t, o); got.Digest != want.Digest || got.ID != want.ID {
			t.Errorf("%s: %s, want %s", name, got.Digest, want.Digest)
		}
	}

	other := system(t, time.Now())
	write(t, filepath.Join(other, "bin/sh"), "#!shelL", 0o755)
	for name, o := range map[string]Options{
		"another content": {From: other},
		"another time":    {From: from, Time: time.Unix(1_700_000_000, 0)},
	} {
		if got := build(t, o); got.Digest == want.Digest {
			t.Errorf("%s gave the same image", name)
		}
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	from, dir := system(t, time.Now()), t.TempDir()
	layout, tarball, foreign := filepath.Join(dir, "layout"), filepath.Join(dir, "image.tar"), filepath.Join(dir, "foreign")
	write(t, filepath.Join(foreign, "precious"), "x", 0o644)
	for range 2 {
		for _, out := range []string{layout, tarball} {
			r := build(t, Options{From: from, Out: out})
			if d, err := open(t, out).Digest(); err != nil || d.String() != r.Digest {
				t.Errorf("%s: %s: %v", out, d, err)
			}
		}
	}
	_, err := Build(t.Context(), fill(t, Options{From: from, Out: foreign}))
	var input *InputError
	if !errors.As(err, &input) || !strings.Contains(err.Error(), "no OCI layout") {
		t.Errorf("a directory that is none: %v", err)
	}
	if _, err := os.Stat(filepath.Join(foreign, "precious")); err != nil {
		t.Error(err)
	}
	// Nothing else is left.
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 3 {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestInputs(t *testing.T) {
	t.Parallel()
	dir, empty := system(t, time.Now()), t.TempDir()
	for name, tc := range map[string]struct {
		o    Options
		want string
	}{
		"no such agent":          {Options{From: dir, Agent: "codecs"}, "`kick agents` lists them"},
		"an agent elsewhere":     {Options{From: dir, Agent: "aider"}, "give that with --from"},
		"a version that is none": {Options{From: dir, Agent: "codex@latest"}, "want one like 0."},
		"no such system":         {Options{From: filepath.Join(dir, "none")}, "no such file"},
		"an empty system":        {Options{From: empty}, "it is empty"},
		"a system that is none":  {Options{From: filepath.Join(dir, "bin/sh")}, "unexpected EOF"},
		"no name":                {Options{From: dir, Name: "Local Host"}, "image name"},
		"no such place":          {Options{From: dir, Out: filepath.Join(dir, "none/image.tar")}, "no such file"},
	} {
		_, err := Build(t.Context(), fill(t, tc.o))
		var input *InputError
		if !errors.As(err, &input) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestTimeOf(t *testing.T) {
	t.Parallel()
	for epoch, want := range map[string]int64{"": 315532800, "0": 0, "1700000000": 1700000000} {
		if at, err := TimeOf(epoch); err != nil || at.Unix() != want {
			t.Errorf("%q: %v %v", epoch, at, err)
		}
	}
	for _, epoch := range []string{"now", "-1", "1.5", "999999999999999", "99999999999999999999"} {
		if _, err := TimeOf(epoch); err == nil {
			t.Errorf("%q is taken", epoch)
		}
	}
}

// TestAgent puts agents into an image, from packages that lie where npm's
// downloads are kept.
func TestAgent(t *testing.T) {
	t.Parallel()
	from, cache := system(t, time.Now()), t.TempDir()
	program := map[string]string{}
	for spec, n := range map[string]agents.NPM{"codex@9.9.9": npmOf(t, "codex"), "gemini@9.9.9": npmOf(t, "gemini"), "node@" + nodeVersion: nodejs} {
		command, version, _ := strings.Cut(spec, "@")
		full, p, err := n.For(version, "amd64")
		if err != nil {
			t.Fatal(err)
		}
		program[command] = "opt/" + command + "/" + p
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		private := file("package/"+p, "program of "+command)
		private.Mode = 0o600
		if _, err := z.Write(archive(t, private, file("package/package.json", "{}"), file("outside", "x"), symlink("package/link", "/etc"))); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(cache, "npm", packFile(full)), b.String(), 0o644)
	}

	r := build(t, Options{From: from, Agent: "codex@9.9.9", Cache: cache})
	img := open(t, r.Path)
	got := content(t, img)
	if got[program["codex"]] != "program of codex" || got["usr/local/bin/codex"] != "/"+program["codex"] {
		t.Errorf("codex is %q, its link %q", got[program["codex"]], got["usr/local/bin/codex"])
	}
	for _, p := range []string{"opt/codex/link", "opt/codex/outside", "outside", "opt/node"} {
		if _, there := got[p]; there {
			t.Errorf("%s is in the image", p)
		}
	}
	if cfg, err := img.ConfigFile(); err != nil || cfg.Config.Labels[labelAgent] != "codex@9.9.9" || r.Agent != "codex@9.9.9" {
		t.Errorf("label %q, result %q: %v", cfg.Config.Labels[labelAgent], r.Agent, err)
	}

	got = content(t, open(t, build(t, Options{From: from, Agent: "gemini@9.9.9", Cache: cache}).Path))
	if got["usr/local/bin/gemini"] != "#!/bin/sh\nexec node /"+program["gemini"]+" \"$@\"\n" || got[program["node"]] != "program of node" {
		t.Errorf("gemini is %q, node %q", got["usr/local/bin/gemini"], got[program["node"]])
	}

	full, _, err := npmOf(t, "codex").For("9.9.8", "amd64")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(cache, "npm", packFile(full)), "no gzip", 0o644)
	if _, err := Build(t.Context(), fill(t, Options{From: from, Agent: "codex@9.9.8", Cache: cache})); err == nil || !strings.Contains(err.Error(), "npm package @openai/codex@9.9.8") {
		t.Errorf("a broken package: %v", err)
	}
}

func npmOf(t *testing.T, kind string) agents.NPM {
	t.Helper()
	k, ok := agents.Find(kind)
	if !ok {
		t.Fatalf("there is no kind %s", kind)
	}
	return k.NPM
}

// resolves tells whether a path of the image leads to something in it.
func resolves(files map[string]string, links map[string]bool, p string) bool {
	for range 40 { // as many as Linux follows
		p = strings.TrimPrefix(path.Clean("/"+p), "/")
		parts := strings.Split(p, "/")
		followed := false
		for i := range parts {
			at := strings.Join(parts[:i+1], "/")
			if !links[at] {
				continue
			}
			to := files[at]
			if !strings.HasPrefix(to, "/") {
				to = path.Join(path.Dir(at), to)
			}
			p, followed = path.Join(to, strings.Join(parts[i+1:], "/")), true
			break
		}
		if !followed {
			_, there := files[p]
			return there
		}
	}
	return false
}
