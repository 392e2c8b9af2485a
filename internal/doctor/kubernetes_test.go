package doctor

import (
	"net"
	"strings"
	"testing"
)

// What keeps the gateway from listening is told before a kick meets it.
func TestGatewayPort(t *testing.T) {
	t.Parallel()
	if c := gatewayPort("127.0.0.1:0"); !c.OK || !strings.Contains(c.Found, "listen at 127.0.0.1:") {
		t.Errorf("a free port: %+v", c)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for address, want := range map[string]string{l.Addr().String(): "address already in use", "127.0.0.1": "no address and port"} {
		if c := gatewayPort(address); c.OK || c.Isolation || !strings.Contains(c.Found, want) || !strings.Contains(c.Remedy, "--gateway") {
			t.Errorf("%s: %+v, want %q", address, c, want)
		}
	}
}
