package manager

import (
	"fmt"
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
		if at := netip.MustParseAddrPort(way.tcp.Address()).Addr(); at.IsUnspecified() != everywhere || !everywhere && at.String() != "127.0.0.1" {
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
	before, _ := way.tcp.Refused()
	if note := strangersNote(way.tcp, before); note != "" {
		t.Errorf("nobody came: %s", note)
	}
	c, err := net.Dial("tcp", way.tcp.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("a stranger is served")
	}
	if note := strangersNote(way.tcp, before); !strings.Contains(note, "(1, the last from 127.0.0.1)") || !strings.Contains(note, way.tcp.Address()) {
		t.Errorf("the note is %q", note)
	}
}

// Each process has the first port that no other one has; kicks of this one share it.
func TestWayInPorts(t *testing.T) {
	t.Parallel()
	// Another process's, for all that it matters: the system refuses it to this one.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	first := int(netip.MustParseAddrPort(taken.Addr().String()).Port())
	gateway := fmt.Sprintf("127.0.0.1:%d-%d", first, min(first+20, 65535))
	way, end, err := openWayIn(gateway)
	if err != nil {
		t.Fatal(err)
	}
	if way.at != way.tcp.Address() || way.at == taken.Addr().String() {
		t.Errorf("it listens at %s, and sandboxes are told %s", way.tcp.Address(), way.at)
	}
	if joined, leave, err := openWayIn(gateway); err != nil || joined != way || leave() != nil {
		t.Errorf("a second kick has %+v: %v", joined, err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{taken.Addr().String(), fmt.Sprintf("127.0.0.1:%d-%d", first, first), "127.0.0.1:9-8", "127.0.0.1:x"} {
		if _, _, err := openWayIn(bad); err == nil {
			t.Errorf("%s is open", bad)
		}
	}
}
