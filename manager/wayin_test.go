package manager

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

// The gateway is at the address that the operator chose and at no other, where that
// is this host's own; else it is a network's that leads here.
func TestWayInAddress(t *testing.T) {
	t.Parallel()
	for address, everywhere := range map[string]bool{"127.0.0.1:0": false, "[::ffff:127.0.0.1]:0": false, "192.0.2.1:0": true, "gateway.example:0": true} {
		way, end, err := openWayIn(address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if at := netip.MustParseAddrPort(way.Address()).Addr(); at.IsUnspecified() != everywhere || !everywhere && at.String() != "127.0.0.1" {
			t.Errorf("%s: it listens at %s", address, at)
		}
		if err := end(); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, _, err := openWayIn("127.0.0.1"); err == nil || !strings.Contains(err.Error(), "no address and port") {
		t.Errorf("an address without a port: %v", err)
	}
}

// Who comes from where no sandbox is known is named, since it may be one.
func TestStrangersNote(t *testing.T) {
	t.Parallel()
	way, end, err := openWayIn("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}()
	before, _ := way.Refused()
	if note := strangersNote(way, before); note != "" {
		t.Errorf("nobody came: %s", note)
	}
	c, err := net.Dial("tcp", way.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("a stranger is served")
	}
	if note := strangersNote(way, before); !strings.Contains(note, "(1, the last from 127.0.0.1)") || !strings.Contains(note, way.Address()) {
		t.Errorf("the note is %q", note)
	}
}
