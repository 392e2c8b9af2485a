package image

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/podmantest"
)

// TestPodman loads a new image into each Podman service that scripts/podman.sh
// started, which KICK_TEST_PODMAN names: Podman knows it by the digest and the id
// that the build told. In the usual image, KICK_TEST_IMAGE, programs find what
// they need.
func TestPodman(t *testing.T) {
	services := podmantest.Services(t)
	from := t.TempDir()
	write(t, filepath.Join(from, "etc/passwd"), "root:x:0:0::/root:/bin/sh\n", 0o644)
	dir, err := os.MkdirTemp("", "kick-image-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tarball := build(t, Options{From: from, Out: filepath.Join(dir, "image.tar"), Name: "localhost/kick-image-test:tar"})
	layout := build(t, Options{From: from, Out: filepath.Join(dir, "layout")})
	for _, s := range services {
		t.Run(s.Name(), func(t *testing.T) {
			service := s.Dir
			inspect := []string{"image", "inspect", "--format", "{{.Digest}} sha256:{{.Id}} {{.Os}} {{.User}}"}
			told := tarball.Digest + " " + tarball.ID + " linux 65532:65532"
			podman(t, service, false, "load", "--quiet", "--input", tarball.Path)
			if got := podman(t, service, false, append(inspect, tarball.Name)...); got != told {
				t.Errorf("%s is %q, built as %q", tarball.Name, got, told)
			}
			podman(t, service, false, "rmi", tarball.Name)
			// Podman loads a directory only where the storage is its own, and not by its
			// name.
			podman(t, service, true, "load", "--quiet", "--input", layout.Path)
			if got := podman(t, service, false, append(inspect, layout.ID)...); got != told {
				t.Errorf("the directory is %q, built as %q", got, told)
			}
			podman(t, service, false, "rmi", layout.ID)

			run := []string{"run", "--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", os.Getenv(podmantest.ImageEnv), "bash", "-euc"}
			got := podman(t, service, false, append(run, `
				id -un; pwd
				cd /tmp && git init -q -b main x && cd x && date >a && git add a
				git -c user.name=a -c user.email=a@b commit -qm one && git log --format=%s
				awk 'BEGIN { print "awk" }'; which sh; perl -e 'print "perl\n"'
				openssl verify -CAfile /usr/lib/ssl/cert.pem /usr/share/ca-certificates/mozilla/ISRG_Root_X1.crt
				printf '\303\251' | grep -c '^.$'`)...)
			want := "agent\n/workspace\none\nawk\n/usr/bin/sh\nperl\n/usr/share/ca-certificates/mozilla/ISRG_Root_X1.crt: OK\n1"
			if got != want {
				t.Errorf("in the image:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// podman runs the podman command of a service, as its client or on its storage,
// and returns what it prints.
func podman(t *testing.T, service string, local bool, args ...string) string {
	t.Helper()
	script := `cd / && exec "$KICK_PODMAN" --remote "$@"`
	if local {
		script = `cd / && unset CONTAINER_HOST && exec "$KICK_PODMAN" "$@"`
	}
	cmd := exec.Command("../../hack/podman.sh", append([]string{"exec", service, "sh", "-c", script, "podman"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = append(out, exit.Stderr...)
		}
		t.Fatalf("podman %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
