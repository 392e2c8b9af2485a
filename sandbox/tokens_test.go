package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const plantedToken = "planted-token-0123456789"

// plant writes a token at every place of the table below a prefix.
func plant(t *testing.T, prefix string) (n int) {
	t.Helper()
	for _, name := range tokenNames {
		p := filepath.Join(prefix, strings.NewReplacer("python3*", "python3.99", "*", "planted").Replace(name))
		if fi, err := os.Stat(p); err == nil && fi.IsDir() {
			p = filepath.Join(p, "planted")
		}
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(plantedToken), 0o644); err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// TestTokensInProgramDir plants a token at every known place of a program
// directory, next to one that is none of them.
func TestTokensInProgramDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(workspaceDir(t), "tool")
	if n := plant(t, dir); n < 50 {
		t.Fatalf("only %d places", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "program.txt"), []byte(plantedToken), 0o644); err != nil {
		t.Fatal(err)
	}
	r := launch(t, newEmbedded(t), LaunchSpec{
		Command:     []string{"grep", "-rls", plantedToken, "/usr/etc", "/usr/local/etc", "/etc", dir},
		ProgramDirs: []string{dir},
	})
	if want := filepath.Join(dir, "program.txt") + "\n"; r.err != nil || r.stdout != want {
		t.Errorf("readable are %q, want %q; %v", r.stdout, want, r.err)
	}
}

// TestTokensInPrefixes plants a token at every known place of every prefix, and
// in the host's /etc, in a mount namespace of its own.
func TestTokensInPrefixes(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return // takes mounts over /usr
	}
	if os.Getenv("KICK_TEST_PREFIXES") == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		script := `mount --make-rprivate / && mount -t tmpfs t "$1" && mkdir "$1"/uu "$1"/uw "$1"/eu "$1"/ew &&
mount -t overlay o -o "lowerdir=/usr,upperdir=$1/uu,workdir=$1/uw" /usr && mount -t overlay o -o "lowerdir=/etc,upperdir=$1/eu,workdir=$1/ew" /etc &&
exec "$2" -test.run='^TestTokensInPrefixes$' -test.v`
		shim := filepath.Join(t.TempDir(), "shim")
		if err := os.WriteFile(shim, shimBytes, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("unshare", "-m", "sh", "-c", script, "sh", dir, self)
		cmd.Env = append(os.Environ(), "KICK_TEST_PREFIXES=1", "KICK_TEST_SHIM="+shim)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestTokensInPrefixes") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for _, p := range tokenPrefixes {
		p = strings.ReplaceAll(p, "*", "planted")
		plant(t, p)
	}
	for _, f := range []string{"/etc/gitconfig", "/etc/npmrc", "/etc/pip.conf", "/etc/environment", "/etc/maven/settings.xml", "/etc/docker/daemon.json", "/etc/ssl/private/key.pem", "/etc/ssh/ssh_config", "/etc/shadow"} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(plantedToken), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The whole of /usr would take long, and nothing of the tables is elsewhere.
	r := launch(t, newEmbedded(t), LaunchSpec{Command: []string{"sh", "-c",
		`(find /usr -maxdepth 3 -type f -size -2; find /etc /usr/etc /usr/local /usr/lib/node_modules/npm /usr/share/nodejs/npm -type f -size -2 -mmin -60) 2>/dev/null >/tmp/small; xargs grep -ls ` + plantedToken + ` </tmp/small; wc -l </tmp/small`}})
	lines := strings.Fields(r.stdout)
	if r.err != nil || len(lines) != 1 || lines[0] == "0" {
		t.Errorf("readable are %q (the last is the number of files that were read), %v, %s", lines, r.err, r.stderr)
	}
}
