package acceptance

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/sandbox"
)

// TestAttackSecretInShim has an agent look for the secret that its sandbox's
// shim has, wherever a process can look, and signal the shim to leave a core
// behind. The gateway is reached by TCP, through a socket that passes connections on.
func TestAttackSecretInShim(t *testing.T) {
	t.Parallel()
	in, err := egress.ListenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	}()
	var audit bytes.Buffer // written until Close, read after
	id := kickid.New()
	g, err := egress.Listen(t.Context(), filepath.Join(t.TempDir(), "egress"), egress.Config{Kick: id, Agent: "thief", Audit: &audit, TCP: in})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Admit(netip.MustParseAddr("127.0.0.1")); err != nil {
		t.Fatal(err)
	}
	launcher := embedded(t)
	script := `
import ctypes, os, re, signal, socket
form = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
def look(path, need=False):
    try:
        with open(path, "rb") as f: data = f.read(64 << 20)
    except OSError as e: return print("denied", path, e.errno)
    if need: print("read", path, len(data))
    for secret in form.findall(data): print("FOUND", path, secret.decode())
look("/proc/self/environ", True)
def shim():
    for name in ("environ", "mem", "cmdline", "maps", "auxv", "stack", "syscall", "smaps", "pagemap", "map_files", "fd", "fdinfo", "root", "cwd", "exe"):
        look("/proc/1/" + name)
    for task in os.listdir("/proc/1/task"): look("/proc/1/task/" + task + "/mem")
    for name in ("fd", "map_files"):
        try: print("LISTED", name, os.listdir("/proc/1/" + name))
        except OSError as e: print("denied list", name, e.errno)
shim()
for top in ("/run", "/tmp", "/home", "/dev/shm", "/workspace", "/var"):
    for d, _, names in os.walk(top):
        for n in names:
            p = os.path.join(d, n)
            if os.path.isfile(p): look(p)
libc = ctypes.CDLL(None, use_errno=True)
buf = ctypes.create_string_buffer(4096)
class iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
local, remote = iovec(ctypes.cast(buf, ctypes.c_void_p), 4096), iovec(0x400000, 4096)
def try_call(name, *args):
    ctypes.set_errno(0)
    print("call", name, libc.syscall(*args), ctypes.get_errno())
try_call("ptrace attach", 101, 16, 1, 0, 0)
try_call("ptrace seize", 101, 0x4206, 1, 0, 0)
try_call("process_vm_readv", 310, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
pidfd = libc.syscall(434, 1, 0)
for fd in range(12): try_call("pidfd_getfd", 438, pidfd, fd, 0)
for s in (signal.SIGQUIT, signal.SIGSEGV, signal.SIGABRT): os.kill(1, s)
shim()
s = socket.create_connection(("127.0.0.1", 3128))
s.sendall(b"GET http://example.org/ HTTP/1.1\r\nHost: x\r\n\r\n")
print("gateway", s.recv(4096).split(b"\r\n")[0].decode())
`
	decoy := strings.Repeat("0123456789abcdef", 4)
	var out bytes.Buffer
	res, err := launcher.Run(t.Context(), sandbox.LaunchSpec{
		ID: id, Command: []string{"python3", "-c", script}, Stdout: &out, Stderr: &out,
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "DECOY": decoy},
		Egress: sandbox.Egress{Socket: relaySocket(t, in.Address()), Port: agents.GatewayPort, TCP: &sandbox.EgressTCP{
			Address: in.Address(), Secret: g.Secret(), Pin: in.Pin(), Admit: g.Admit,
		}},
	})
	secret := g.Secret()
	if cerr := g.Close(); err != nil || cerr != nil || res.ExitCode != 0 {
		t.Fatalf("%v %v %+v\n%s", err, cerr, res, &out)
	}
	log := out.String()
	if strings.Contains(log, secret) || strings.Contains(log, "LISTED") || !strings.Contains(log, "FOUND /proc/self/environ "+decoy) {
		t.Errorf("the agent sees:\n%s", log)
	}
	for _, want := range []string{"denied /proc/1/environ 13", "denied /proc/1/mem 13", "denied /proc/1/maps 13", "call ptrace attach -1 1\n", "call ptrace seize -1 1\n", "call process_vm_readv -1 1\n", "gateway HTTP/1.1 403 Forbidden"} {
		if !strings.Contains(log, want) {
			t.Errorf("the agent is not told %q", want)
		}
	}
	if strings.Contains(log, "call pidfd_getfd ") && strings.Count(log, "call pidfd_getfd -1 1\n") != 12 {
		t.Error("the agent gets a descriptor of the shim")
	}
	if t.Failed() {
		t.Log(log)
	}
	if strings.Contains(audit.String(), secret) || !strings.Contains(audit.String(), "default-deny") {
		t.Errorf("audit:\n%s", &audit)
	}
}

// relaySocket passes connections on to an address, as what a machine without
// network has beside its socket.
func relaySocket(t *testing.T, address string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay") // a socket's name is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	name := filepath.Join(dir, egress.SocketName)
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for p, mode := range map[string]os.FileMode{dir: 0o711, name: 0o666} {
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := new(net.Dialer).DialContext(context.Background(), "tcp", address)
			if err != nil {
				c.Close()
				continue
			}
			go func() { defer up.Close(); _, _ = io.Copy(up, c) }()
			go func() { defer c.Close(); _, _ = io.Copy(c, up) }()
		}
	}()
	return name
}

// embedded is a launcher with the shim that was built for these tests.
func embedded(t *testing.T) *sandbox.Embedded {
	t.Helper()
	shim, err := os.Open("../cmd/kick/shim/kick-shim")
	if err != nil {
		t.Fatal(err)
	}
	defer shim.Close()
	launcher, err := sandbox.NewEmbedded(sandbox.EmbeddedConfig{Shim: shim})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { launcher.Close() })
	return launcher
}

// TestNoGateway: a sandbox that is to have a gateway, and no address to have it at, is a
// mistake that is named.
func TestNoGateway(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"": "no address and port", "nonsense": "nonsense"} {
		dir := t.TempDir()
		cmd := exec.Command(kick, "run", "--state-dir", filepath.Join(dir, "state"), "-o", "json", "--repo", seedBare(t), "--publish", "branch",
			"--runtime", "kubernetes", "--image", "localhost/none", "--gateway", address, "--", "true")
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
		o, _ := objectOf(t, cmd)
		if said, _ := o["error"].(string); o["outcome"] != string(manager.Usage) || !strings.Contains(said, want) || !strings.Contains(said, "--gateway") {
			t.Errorf("gateway %q: %v: %v", address, o["outcome"], o["error"])
		}
	}
}
