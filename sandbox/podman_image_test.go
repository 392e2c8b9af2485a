package sandbox

import (
	"archive/tar"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// servicePodman runs the service's own podman program on its storage.
func servicePodman(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Getenv("KICK_PODMAN"), args...)
	cmd.Dir = "/"
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CONTAINER_HOST=") { // it would go by way of the service
			cmd.Env = append(cmd.Env, kv)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// imageFile is a file that an image has over the tests' own.
type imageFile struct {
	tar.Header
	text string
}

func link(name, to string) imageFile {
	return imageFile{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}}
}

func regular(name, text string) imageFile {
	return imageFile{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}, text}
}

func directory(name string, mode int64) imageFile {
	return imageFile{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}}
}

func device(name string, kind byte, major, minor int64) imageFile {
	return imageFile{Header: tar.Header{Name: name, Typeflag: kind, Mode: 0o666, Devmajor: major, Devminor: minor}}
}

// hostileImages are images whose author wants out, or more than a kick gives.
var hostileImages = []struct {
	name     string
	settings string      // of the image
	files    []imageFile // over those of the tests' image
	property string      // that the proof misses; "": the kick runs, "-": it does not start
}{
	{name: "settings of the image", settings: `
ENTRYPOINT ["/bin/false"]
CMD ["no"]
ENV LD_PRELOAD=/evil.so PATH=/evil
VOLUME /workspace /tmp /home/agent /run/kick /volume
USER root
WORKDIR /not/there
STOPSIGNAL SIGCONT
HEALTHCHECK --interval=1s CMD touch /workspace/checked
ONBUILD RUN evil
LABEL kick.id=other kick.agent=other kick.deadline=2000-01-01T00:00:00Z run.oci.handler=krun io.podman.annotations.seccomp=unconfined
`},
	{name: "devices", files: []imageFile{device("device-memory", tar.TypeChar, 1, 1), device("device-disk", tar.TypeBlock, 254, 0), device("device-loop", tar.TypeBlock, 7, 0), device("device-kvm", tar.TypeChar, 10, 232)}},
	{name: "links in place of files of the network", files: []imageFile{link("etc/hosts", "/proc/kcore"), link("etc/resolv.conf", "../../../../../../etc/shadow")}},
	{name: "the host's name is a link", files: []imageFile{link("etc/hostname", "../../../../../../etc/shadow")}, property: "mounts"},
	{name: "the workspace is a link to a directory", files: []imageFile{link("workspace", "/etc")}, property: "mounts"},
	{name: "the workspace is a link that leads up", files: []imageFile{link("workspace", "../../../../../../tmp")}, property: "-"},
	{name: "the workspace is a link to the root", files: []imageFile{link("workspace", "/")}, property: "-"},
	{name: "the workspace is a link to a process", files: []imageFile{link("workspace", "/proc/1/cwd")}, property: "-"},
	{name: "the home is a link", files: []imageFile{link("home/agent", "/workspace")}, property: "-"},
	{name: "kick's directory is a link", files: []imageFile{link("run/kick", "/workspace")}, property: "mounts"},
	{name: "the shim is a link", files: []imageFile{directory("run/kick", 0o755), link("run/kick/shim", "/bin/sh")}, property: "mounts"},
	{name: "the table of users is a link", files: []imageFile{link("etc/passwd", "/proc/1/environ")}, property: "-"},
	{name: "names and groups of root", files: []imageFile{regular("etc/passwd", "agent:x:0:0::/:/bin/sh\n65532:x:0:0::/:/bin/sh\nroot:x:65532:65532::/:/bin/sh\n"), regular("etc/group", "65532:x:0:\nwheel:x:0:65532,agent,root\n")}, property: "supplementary-groups"},
	{name: "closed directories", files: []imageFile{directory("run", 0), directory("tmp", 0), directory("workspace", 0)}, property: "-"},
}

// TestOnPodmanHostileImages runs a kick in each of them. It is locked up as in any
// other image, or does not start; and nothing is written but to the workspace.
func TestOnPodmanHostileImages(t *testing.T) {
	l := newTestPodman(t)
	const script = `id -u; env | grep -e PRELOAD -e evil; for d in /device-*; do head -c 1 "$d" >/dev/null 2>&1 && echo "read $d"; done; echo work >/workspace/work`
	for i, tt := range hostileImages {
		t.Run(tt.name, func(t *testing.T) {
			image := "localhost/kick-hostile:" + string(rune('a'+i))
			base := "scratch" // rootless Podman may have to copy a whole image for its first container
			if tt.property == "" {
				base = strings.TrimPrefix(l.config.Image, "sha256:")
			}
			buildHostile(t, image, base, tt.settings, tt.files)
			defer servicePodman(t, "rmi", image)
			dir := workspaceDir(t)
			r := launch(t, l, LaunchSpec{Image: image, Command: []string{"sh", "-c", script}, Env: map[string]string{"PATH": testPath}, Workspace: Workspace{Dir: dir}})
			work, err := os.ReadFile(filepath.Join(dir, "work"))
			if tt.property == "" {
				if r.err != nil || r.ExitCode != 0 || r.stdout != "65532\n" || string(work) != "work\n" {
					t.Errorf("%v, %s, stdout %q, stderr %q, work %q, %v", r.err, r.Detail, r.stdout, r.stderr, work, err)
				}
			} else {
				var failure *Error
				if !errors.As(r.err, &failure) || r.stdout != "" || !r.Started.IsZero() || err == nil {
					t.Fatalf("it ran: %v, %s, stdout %q, work %q", r.err, r.Reason, r.stdout, work)
				}
				if tt.property != "-" && !slices.Contains(strings.Split(failure.Op, ", "), tt.property) {
					t.Errorf("the error names %q, want %s: %v", failure.Op, tt.property, failure)
				}
			}
			if list, err := os.ReadDir(dir); err != nil || slices.ContainsFunc(list, func(e os.DirEntry) bool { return e.Name() == "checked" }) {
				t.Errorf("the image's health check ran: %v, %v", list, err)
			}
		})
	}
}

// buildHostile builds an image over another one.
func buildHostile(t *testing.T, image, base, settings string, files []imageFile) {
	t.Helper()
	dir := t.TempDir()
	recipe := "FROM " + base + "\n" + settings
	if len(files) > 0 {
		recipe += "ADD files.tar /\n"
		f, err := os.Create(filepath.Join(dir, "files.tar"))
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(f)
		for _, f := range files {
			if err := w.WriteHeader(&f.Header); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(f.text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte(recipe), 0o644); err != nil {
		t.Fatal(err)
	}
	servicePodman(t, "build", "--format", "docker", "--pull=never", "--quiet", "--tag", image, "--file", filepath.Join(dir, "Containerfile"), dir)
}

// TestStatInside follows no link out of a root.
func TestStatInside(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(root+"/a/b", 0o755), os.Symlink("/etc", root+"/etc"), os.Symlink("/", root+"/a/up")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"/a/b": nil, "/etc": unix.ELOOP, "/etc/passwd": unix.ELOOP, "/a/up/etc": unix.ELOOP, "/../etc": unix.EXDEV, "/none": unix.ENOENT} {
		if _, err := statInside(root, name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// TestOnPodmanNoImage: an image that is not there, is there with another digest, or
// cannot be one, each ends with what to do about it.
func TestOnPodmanNoImage(t *testing.T) {
	const other = "@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	l := newTestPodman(t)
	for image, want := range map[string]string{
		"../../foo":                           "no name of an image: invalid reference format",
		"Foo/Bar:x":                           "no name of an image: repository name must be lowercase",
		"localhost/nobody-has-it:1":           "Podman does not have it",
		"localhost/nobody-has-it" + other:     "Podman does not have it",
		"localhost/kick-agent:latest" + other: "Podman has localhost/kick-agent:latest with another digest, sha256:",
	} {
		r := launch(t, l, LaunchSpec{Image: image, Command: []string{"true"}})
		var said *Error
		if !errors.As(r.err, &said) || !errors.Is(r.err, ErrSpec) || !strings.Contains(r.err.Error(), want) || said.Remedy == "" {
			t.Errorf("%s: %v, want what says %q and what to do", image, r.err, want)
		}
	}
}
