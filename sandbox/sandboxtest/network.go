package sandboxtest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kickhq/kick/sandbox"
)

// gateway is a real HTTP server on a socket of its own, as the egress gateway
// would be.
func gateway(t *testing.T) (socket string, served *atomic.Int64) {
	t.Helper()
	// The path of a socket is limited to 108 bytes, a test's directory is longer.
	dir := temporary(t, "gw", 0o755)
	socket = filepath.Join(dir, filepath.Base(sandbox.EgressSocketPath))
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	served = new(atomic.Int64)
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		w.Header().Set("X-Path", r.URL.Path)
		_, _ = io.CopyN(w, zeros{}, 300_000) // more than any buffer on the way
	})}}
	srv.Start()
	t.Cleanup(srv.Close)
	return socket, served
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// The gateway is reached by its socket and, where a port is asked for, by that
// port of loopback; its directory cannot be written.
func (s *suite) egress(t *testing.T) {
	const port = "18080"
	socket, served := gateway(t)
	spec := s.probing(t, "get", "unix:"+sandbox.EgressSocketPath, "tcp:127.0.0.1:"+port)
	spec.Egress = sandbox.Egress{Socket: socket, Port: 18080}
	answers := s.ask(t, spec)
	for question, answer := range answers {
		network, _, _ := strings.Cut(question, ":")
		if answer != "/"+network+" 300000 <nil>" {
			t.Errorf("%s: %q", question, answer)
		}
	}
	if len(answers) != 2 || served.Load() != 20 {
		t.Errorf("%d answers, %d requests reached the gateway, want 2 and 20", len(answers), served.Load())
	}

	without := s.probing(t, "connect", "tcp:127.0.0.1:"+port, "unix:"+sandbox.EgressSocketPath)
	without.Egress = sandbox.Egress{Socket: socket}
	answers = s.ask(t, without)
	if answers["unix:"+sandbox.EgressSocketPath] != "allowed" || answers["tcp:127.0.0.1:"+port] == "allowed" {
		t.Errorf("without a port: %q", answers)
	}

	dir := filepath.Dir(sandbox.EgressSocketPath)
	write := s.script(t, "rm -f "+sandbox.EgressSocketPath+"; mv "+sandbox.EgressSocketPath+" /tmp/x; touch "+dir+"/y && echo written; true")
	write.Egress = sandbox.Egress{Socket: socket}
	if o := s.succeed(t, write); o.stdout != "" {
		t.Errorf("the gateway's directory was written: %q", o.stdout)
	}
	if _, err := os.Lstat(socket); err != nil {
		t.Errorf("the gateway's socket: %v", err)
	}
}

// In mode none there is no gateway: naming one is refused, or it is not there.
func (s *suite) networkNone(t *testing.T) {
	socket, served := gateway(t)
	for name, egress := range map[string]sandbox.Egress{"with a gateway": {Socket: socket, Port: 18081}, "without": {}} {
		t.Run(name, func(t *testing.T) {
			spec := s.probing(t, "connect", "unix:"+sandbox.EgressSocketPath, "tcp:127.0.0.1:18081", "unix:"+socket)
			spec.Network, spec.Egress = sandbox.NetworkNone, egress
			o := s.start(t, spec).wait()
			if errors.Is(o.err, sandbox.ErrSpec) && egress.Socket != "" {
				return
			}
			if o.err != nil || o.ExitCode != 0 || strings.Contains(o.stdout, `"allowed"`) || !s.h.Filtered && !strings.Contains(o.stdout, `"interfaces":"lo"`) {
				t.Errorf("%v, exit code %d, %s", o.err, o.ExitCode, o.stdout)
			}
		})
	}
	if n := served.Load(); n != 0 {
		t.Errorf("%d requests reached the gateway", n)
	}
}

// Nothing of the host's network is reached, in either mode.
func (s *suite) noOtherNetwork(t *testing.T) {
	var reached atomic.Int64
	accept := func(l net.Listener, err error) net.Listener {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				reached.Add(1)
				c.Close()
			}
		}()
		return l
	}
	dir := temporary(t, "host", 0o777)
	path := filepath.Join(dir, "host.sock")
	abstract := "@" + s.prefix + random(4)
	tcp := accept(net.Listen("tcp", "0.0.0.0:0")).Addr().(*net.TCPAddr).Port
	accept(net.Listen("unix", path))
	accept(net.Listen("unix", abstract))
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = udp.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			if _, _, err := udp.ReadFrom(b); err != nil {
				return
			}
			reached.Add(1)
		}
	}()
	datagrams := udp.LocalAddr().(*net.UDPAddr).Port
	questions := []string{"connect", fmt.Sprint("tcp:127.0.0.1:", tcp), "unix:" + path, "unix:" + abstract, "dns:example.com", "tcp:192.0.2.1:80", "tcp:[::1]:" + itoa(tcp), "udp:192.0.2.1:53"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.To4() != nil {
			questions = append(questions, fmt.Sprintf("tcp:%s:%d", ip.IP, tcp))
			if s.h.Filtered {
				questions = append(questions, fmt.Sprintf("udp:%s:%d", ip.IP, datagrams))
			}
		}
	}
	socket, _ := gateway(t)
	for name, change := range map[string]func(*sandbox.LaunchSpec){
		"restricted":                func(*sandbox.LaunchSpec) {},
		"restricted with a gateway": func(l *sandbox.LaunchSpec) { l.Egress = sandbox.Egress{Socket: socket, Port: 18082} },
		"none":                      func(l *sandbox.LaunchSpec) { l.Network = sandbox.NetworkNone },
	} {
		if name == "restricted with a gateway" && s.h.Cannot["Egress"] != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A datagram to loopback needs no listener: only the host can tell.
			spec := s.probing(t, append(questions, fmt.Sprint("udp:127.0.0.1:", datagrams))...)
			change(&spec)
			answers := s.ask(t, spec)
			if answers["interfaces"] != "lo" && !s.h.Filtered {
				t.Errorf("interfaces %q", answers["interfaces"])
			}
			for question, answer := range answers {
				// Where a filter drops what is sent, only the host can tell, too.
				unseen := strings.HasPrefix(question, "udp:127.") || s.h.Filtered && strings.HasPrefix(question, "udp:")
				if answer == "allowed" && !unseen {
					t.Errorf("%s is reached", question)
				}
			}
			if len(answers) != len(questions)+1 {
				t.Errorf("answers %q", answers)
			}
		})
	}
	t.Cleanup(func() {
		if n := reached.Load(); n != 0 {
			t.Errorf("%d messages reached the host", n)
		}
	})
}
