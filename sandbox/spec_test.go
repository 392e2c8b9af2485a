package sandbox

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/frame"
)

func TestEgressByTCP(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0a", 32)
	right := func() Egress {
		return Egress{Port: 3128, TCP: &EgressTCP{Address: "10.0.0.1:8377", Secret: hash, Pin: hash, Admit: func(netip.Addr) error { return nil }}}
	}
	for name, c := range map[string]struct {
		change func(*Egress)
		want   string
	}{
		"right":        {func(*Egress) {}, ""},
		"no port":      {func(e *Egress) { e.TCP.Address = "10.0.0.1" }, "host and port"},
		"short secret": {func(e *Egress) { e.TCP.Secret = hash[1:] }, "secret"},
		"no pin":       {func(e *Egress) { e.TCP.Pin = "" }, "pin"},
		"no Admit":     {func(e *Egress) { e.TCP.Admit = nil }, "told"},
		"unreachable":  {func(e *Egress) { e.Port = 0 }, "no port in the sandbox"},
	} {
		e := right()
		c.change(&e)
		err := checkEgress(e)
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), hash)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err := wantSocket(e); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: a runtime without network takes it: %v", name, err)
		}
	}
	spec := LaunchSpec{Command: []string{"agent"}, Env: map[string]string{"A": "b"}, Egress: right()}
	spec.Egress.TCP.Trust = "certificates"
	cfg := shimConfig(spec, Limits{}, frame.RunMode)
	if cfg.EgressAddress != "10.0.0.1:8377" || cfg.EgressSecret != hash || cfg.EgressPin != hash || cfg.EgressPort != 3128 || cfg.EgressSocket != "" || cfg.Files[EgressTrustPath] != "certificates" {
		t.Errorf("the shim is told %+v", cfg)
	}
	if cfg := shimConfig(spec, Limits{}, frame.CollectMode); cfg.EgressSecret != "" {
		t.Error("a sandbox that collects has the secret")
	}
}
