package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestListenDir(t *testing.T) {
	t.Parallel()
	root := shortDir(t)
	at := func(name string) string { return filepath.Join(root, name) }
	ctx := context.Background()
	if err := os.Mkdir(at("full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("full/secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("file"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("file/gateway.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("target"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("target", at("link")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"full":      "the sandbox must see nothing but the socket",
		"file":      "the sandbox must see nothing but the socket",
		"link":      "name a directory that is no link",
		"no/parent": "no such file",
	} {
		if g, err := Listen(ctx, at(name), Config{Kick: "k1", Agent: "a", Audit: io.Discard}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %q", name, g, err, want)
		}
	}

	// A socket that a killed process left is taken over.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at("target/gateway.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	g, err := Listen(ctx, at("target"), Config{Kick: "k1", Agent: "a", Audit: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if got := exchange(t, g, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 403") {
		t.Errorf("answer %q", got)
	}

	// A directory whose name is longer than a socket's may be.
	deep := filepath.Join(root, strings.Repeat("d", 200))
	g2, err := Listen(ctx, deep, Config{Kick: "k1", Agent: "a", Audit: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Lstat(filepath.Join(deep, SocketName)); err != nil || fi.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("socket %v, %v", fi, err)
	}
	if err := g2.Close(); err != nil {
		t.Error(err)
	}

	ended, cancel := context.WithCancel(ctx)
	cancel()
	if g, err := Listen(ended, at("late"), Config{Kick: "k1", Agent: "a", Audit: io.Discard}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v, %v", g, err)
	}
}

// TestOtherUserReachesSocket checks the modes and, as root, has another user
// connect.
func TestOtherUserReachesSocket(t *testing.T) {
	t.Parallel()
	g, a := open(t, defaultLimits)
	dir := filepath.Dir(g.Socket())
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o711 {
		t.Errorf("directory %v, %v; want mode 0711", fi.Mode(), err)
	}
	if fi, err := os.Stat(g.Socket()); err != nil || fi.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("socket %v, %v; want mode 0666", fi.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("directory holds %v, %v", entries, err)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // stands for the mount
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{dialVariable + "=" + g.Socket()}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "HTTP/1.1 403") {
		t.Errorf("another user gets %q, %v", out, err)
	}
	if len(a.records(t)) != 1 {
		t.Errorf("audit is %+v", a.records(t))
	}
}

// dialAndReport is what the other user does.
func dialAndReport(path string) int {
	if names, err := os.ReadDir(filepath.Dir(path)); err == nil {
		fmt.Printf("the directory can be listed: %v\n", names)
		return 1
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		fmt.Println(err)
		return 1
	}
	if _, err := io.Copy(os.Stdout, c); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// FuzzGateway sends bytes to a real gateway: it answers or hangs up, never
// allows, and stays alive.
func FuzzGateway(f *testing.F) {
	for _, raw := range []string{
		"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
		"GET http://u:p@example.org/%zz HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET //x?y HTTP/1.1\r\nHost: [::1%25eth0]:1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
		"\x16\x03\x01\x00",
		"OPTIONS * HTTP/1.0\n\n",
	} {
		f.Add([]byte(raw))
	}
	dir, err := os.MkdirTemp("", "egress")
	if err != nil {
		f.Fatal(err)
	}
	a := &audit{}
	lim := defaultLimits
	lim.headerTime, lim.decisions = 100*time.Millisecond, 1<<40
	g, err := listen(context.Background(), filepath.Join(dir, "egress"), Config{Kick: "k0000000000001", Agent: "fixer", Audit: a}, lim)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = g.Close()
		os.RemoveAll(dir)
	})
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := net.Dial("unix", g.Socket())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(raw)
		if uc, ok := c.(*net.UnixConn); ok {
			_ = uc.CloseWrite()
		}
		got, err := io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the gateway neither answered nor hung up")
		}
		if len(got) > 0 && !refusal.Match(got) {
			t.Errorf("answer %.100q", got)
		}
		for _, r := range a.records(t) {
			if r.Verdict != Denied {
				t.Errorf("allowed: %+v", r)
			}
		}
		a.mu.Lock()
		a.buf.Reset()
		a.mu.Unlock()
	})
}
